"""What is computed from bit-equal values is held to the dtype that it is computed in, and a logged loss is no
collective of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.losses.mean import MicrobatchLosses
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

VOCABULARY, ROWS, LENGTH = 32, 4, 16
Loss = Callable[[Tensor], Tensor]


class Model(nn.Module):
    """In bfloat16; gives logits, or the loss of every token in float32."""

    def __init__(self, *, per_token: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.per_token = per_token
        self.to(torch.bfloat16)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(ids))
        if not self.per_token:
            return logits
        return F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")


def train(
    folder: Path, loss_of: Callable[[Tensor, Tensor], Tensor], *, level: str, per_token: bool, task: str
) -> Path:
    """One step."""
    torch.manual_seed(0)
    model = Model(per_token=per_token)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(VOCABULARY, (ROWS, LENGTH), generator=draw) for _ in range(2))
    with trueup.Tracer(folder, level=level, task=task, steps="0"):
        loss_of(model(ids, labels), labels).backward()
        optimizer.step()
    return folder


def mean(given: Tensor, labels: Tensor) -> Tensor:
    return given.mean()


def larger(given: Tensor, labels: Tensor) -> Tensor:
    return given.mean() * 1.004


def in_other_order(given: Tensor, labels: Tensor) -> Tensor:
    return given.flatten().flip(0).cumsum(0)[-1] / given.numel()


def of_logits(given: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(given.float().flatten(0, 1), labels.flatten())


def of_logits_larger(given: Tensor, labels: Tensor) -> Tensor:
    return of_logits(given, labels) * 1.004


def of_rounded_parts(given: Tensor, labels: Tensor) -> Tensor:
    """Each token's logarithm in bfloat16, as the logits are; their mean in float32."""
    parts = F.log_softmax(given, dim=-1).flatten(0, 1)
    return -parts.gather(1, labels.flatten()[:, None]).float().mean()


def verdict(
    tmp_path: Path, target: Loss, reference: Loss, *, level: str, per_token: bool, task: str = "statistics"
) -> Verdict:
    paths = [
        train(tmp_path / name, loss_of, level=level, per_token=per_token, task=task)  # type: ignore[arg-type]
        for name, loss_of in (("target", target), ("reference", reference))
    ]
    return compare(*paths).verdict


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_factor_that_bfloat16_would_hide_is_found_in_a_loss_of_float32(tmp_path: Path, level: str) -> None:
    found = verdict(tmp_path, larger, mean, level=level, per_token=True)  # type: ignore[arg-type]
    assert found.outcome is Outcome.DIFFER
    assert found.phase in ("loss", "forward")
    assert found.headline.code is VerdictCode.FIRST_DIVERGENCE


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_another_order_of_the_same_sum_is_rounding(tmp_path: Path, level: str) -> None:
    found = verdict(tmp_path, in_other_order, mean, level=level, per_token=True)  # type: ignore[arg-type]
    assert found.outcome is not Outcome.DIFFER


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_functions_show_what_the_loss_of_coarse_logits_is_computed_in(tmp_path: Path, level: str) -> None:
    found = verdict(tmp_path, of_logits_larger, of_logits, level=level, per_token=False)  # type: ignore[arg-type]
    assert found.outcome is Outcome.DIFFER
    assert found.phase in ("loss", "forward")


def test_out_of_sight_the_loss_of_coarse_logits_may_be_computed_as_they_are(tmp_path: Path) -> None:
    found = verdict(tmp_path, of_rounded_parts, of_logits, level="L0", per_token=False)  # type: ignore[arg-type]
    assert found.outcome is not Outcome.DIFFER


def in_chunks(given: Tensor, labels: Tensor) -> Tensor:
    """The same mean, row by row, the last row first."""
    rows = [
        F.cross_entropy(one.float(), own, reduction="sum") for one, own in zip(given, labels, strict=True)
    ]
    return torch.stack(rows[::-1]).sum() / labels.numel()


def smoothed(given: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(given.float().flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def of_rounded_parts_summed_otherwise(given: Tensor, labels: Tensor) -> Tensor:
    parts = F.log_softmax(given, dim=-1).flatten(0, 1).gather(1, labels.flatten()[:, None])
    return -parts.float().mean().to(torch.bfloat16).float()


@pytest.mark.parametrize(
    ("target", "reference", "differs"),
    [
        (of_rounded_parts, of_logits, True),
        (of_logits_larger, of_logits, True),
        (in_chunks, of_logits, False),
        (of_rounded_parts_summed_otherwise, of_rounded_parts, False),
        (smoothed, smoothed, False),
    ],
)
def test_with_values_the_loss_of_the_same_logits_is_held_to_the_exact_one(
    tmp_path: Path, target: Loss, reference: Loss, differs: bool
) -> None:
    """A reference that is not what float64 gives sets no bound."""
    found = verdict(tmp_path, target, reference, level="L0", per_token=False, task="tensor")
    assert (found.outcome is Outcome.DIFFER) is differs
    if differs:
        assert (found.phase, found.where) == ("loss", "loss · value")


# -- the logged loss ------------------------------------------


def logging_step(folder: str, factor: float, logged: float) -> None:
    """In every process: the mean over processes of the loss is taken before backward, for the log."""
    import torch.distributed as dist

    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0"):
        loss = model(torch.full((2, 8), 1.0 + dist.get_rank())).square().mean() * factor
        shown = loss.detach() * logged
        dist.all_reduce(shown)
        loss.backward()
        optimizer.step()


@pytest.mark.distributed
@pytest.mark.xdist_group("worlds")
@pytest.mark.parametrize(
    ("factor", "logged", "phase"),
    [(1.01, 1.0, "loss"), (1.0, 1.01, "collective"), (1.01, 1.02, "collective")],
)
def test_the_loss_is_named_where_its_logged_mean_differs_as_it_does(
    tmp_path: Path, factor: float, logged: float, phase: str
) -> None:
    from tests.trainer.worlds import world

    place = "tests.comparing.test_loss_of_equal_logits:logging_step"
    world(2).run(place, str(tmp_path / "target"), factor, logged)
    world(2).run(place, str(tmp_path / "reference"), 1.0, 1.0)
    found = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (found.outcome, found.phase) == (Outcome.DIFFER, phase)


def test_a_loss_whose_terms_cancel_to_zero(tmp_path: Path) -> None:
    """As a policy's, where all answers earned the same: of a sum of nothing no relative error is known."""
    for name, left, shift in (("target", 1e-9, 1), ("reference", 0.0, 0)):
        torch.manual_seed(0)
        model = Model(per_token=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
        with trueup.Tracer(tmp_path / name, level="L0", steps="0"):
            (model(ids, ids).float().mean() * 0.0 + left).backward()
            of_logits(model((ids + shift) % VOCABULARY, ids), ids).backward()
            optimizer.step()
    found = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert found.outcome is Outcome.DIFFER
    assert found.where == "(root) · input.0"


def test_a_microbatch_without_loss_among_others() -> None:
    losses = {"target": np.array([0.0, 2.0]), "reference": np.array([0.0, 2.0000002])}
    held = {"tokens": np.full(2, 64.0), "largest": np.full(2, 4.0)}
    one = MicrobatchLosses(coarsest=2.0**-8, own=2.0**-24, **losses, **held)
    assert one.error < one.tolerance
