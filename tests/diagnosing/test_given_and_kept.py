"""What a run is given on one side alone, what its buffers keep, how its steps are cut: named, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.adapters.torch.reading import capture
from trueup.comparing.options import CompareOptions
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.store.same_rows import row_keys, spans_of
from trueup.types.codes import EvidenceCode, StagesCode, VerdictCode
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import Finding, Stage
from trueup.types.verdict import Outcome, Verdict

pytestmark = pytest.mark.torch

STORED = frozenset({"module", "parameter", "labels", "configuration", "integers"})
SIZE, WIDTH = 40, 16


class Model(nn.Module):
    """Embeds tokens and places, attends to nothing, returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(SIZE, WIDTH), nn.Embedding(64, WIDTH)
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, SIZE)

    def forward(self, ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        placed = self.place.weight[: ids.shape[1]] if positions is None else self.place.weight[positions]
        x = torch.relu(self.hidden(self.embed(ids) + placed))
        if mask is not None:
            x = x * mask[..., None]
        return self.head(x)


Step = Callable[[Model, Tensor, int], Tensor]
Program = Callable[[], None]


def plain(model: Model, ids: Tensor, step: int) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def trained(step: Step, *, microbatches: int = 1) -> Program:
    def program() -> None:
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at in range(2):
            rows = torch.randint(0, SIZE, (4, 13), generator=torch.Generator().manual_seed(at))
            for ids in rows.chunk(microbatches):
                (step(model, ids, at) / microbatches).backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def both(
    folder: Path, target: Callable[[], None], reference: Callable[[], None]
) -> tuple[Verdict, list[Finding]]:
    for name, program in (("target", target), ("reference", reference)):
        capture(folder / name, program, level="L0", store_values_of=STORED)
    sides = folder / "target", folder / "reference"
    verdict = compare(*sides, output=None, options=CompareOptions()).verdict
    return verdict, list(diagnose(*sides, output=folder / "out").findings)


# -- inputs of one side ------------------------------------------


def moved(model: Model, ids: Tensor, step: int) -> Tensor:
    positions = torch.arange(1, 13).expand(4, 12)
    return F.cross_entropy(model(ids[:, :-1], positions=positions).flatten(0, 1), ids[:, 1:].flatten())


def spelt_out(model: Model, ids: Tensor, step: int) -> Tensor:
    positions = torch.arange(12).expand(4, 12)
    return F.cross_entropy(model(ids[:, :-1], positions=positions).flatten(0, 1), ids[:, 1:].flatten())


def test_an_input_of_one_side_comes_first(tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, trained(moved), trained(plain))
    assert verdict.headline.code is VerdictCode.INPUT_OF_ONE_SIDE
    assert (verdict.headline.place("side"), verdict.headline.place("name")) == ("target", "positions")
    assert (findings[0].stage, findings[0].headline.code) == (Stage.DATA, StagesCode.INPUT_OF_ONE_SIDE)


def scaled(step: Step) -> Step:
    """The same, with what the embedding returns times 1.01."""

    def again(model: Model, ids: Tensor, at: int) -> Tensor:
        with model.embed.register_forward_hook(lambda module, given, made: made * 1.01):
            return step(model, ids, at)

    return again


@pytest.mark.parametrize(("step", "is_cause"), [(moved, True), (spelt_out, False)])
def test_a_default_that_is_spelt_out_is_no_cause(step: Step, is_cause: bool, tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, trained(scaled(step)), trained(plain))
    assert verdict.owner == "embed"
    assert (verdict.headline.code is VerdictCode.INPUT_OF_ONE_SIDE) is is_cause
    assert (findings[0].stage is Stage.DATA) is is_cause


def test_a_default_that_is_spelt_out_is_no_finding(tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, trained(spelt_out), trained(plain))
    assert verdict.outcome is Outcome.AGREE
    assert not findings


# -- losses ------------------------------------------


def smoothed(model: Model, ids: Tensor, step: int) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)


def whole_rows(model: Model, ids: Tensor, step: int) -> Tensor:
    labels = F.pad(ids[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def without_last(model: Model, ids: Tensor, step: int) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_smoothing_is_read_off_the_gradient(tmp_path: Path) -> None:
    _, findings = both(tmp_path, trained(smoothed), trained(plain))
    sentences = [kind.sentence for finding in findings for kind in finding.kinds]
    one = next(said for said in sentences if said.code is KindReason.LABEL_SMOOTHING)
    assert one.number("target") == pytest.approx(0.1, abs=1e-4)
    assert one.number("reference") == 0


def test_labels_that_do_not_count_at_the_end_of_rows_are_no_difference(tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, trained(without_last), trained(whole_rows))
    assert verdict.outcome is Outcome.AGREE
    assert not findings


def shifted_again(model: Model, ids: Tensor, step: int) -> Tensor:
    labels = F.pad(ids[:, 2:], (0, 2), value=-100)
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def test_labels_shifted_once_more_are(tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, trained(shifted_again), trained(whole_rows))
    assert verdict.outcome is Outcome.DIFFER
    assert findings[0].stage in (Stage.DATA, Stage.FORWARD)


# -- microbatches ------------------------------------------


def test_the_same_rows_in_other_microbatches_are_one_batch(tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, trained(plain, microbatches=4), trained(plain, microbatches=2))
    assert verdict.outcome is Outcome.AGREE
    assert not findings


def test_other_rows_in_other_microbatches_are_another(tmp_path: Path) -> None:
    def other(model: Model, ids: Tensor, step: int) -> Tensor:
        return plain(model, (ids + 1) % SIZE, step)

    _, findings = both(tmp_path, trained(other, microbatches=4), trained(plain, microbatches=2))
    assert findings[0].stage is Stage.DATA


# -- buffers ------------------------------------------


def of_images(momentum: float = 0.1, change: Callable[[nn.Module], object] = lambda model: None) -> Program:
    def program() -> None:
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(4, momentum=momentum)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Flatten(), nn.Linear(4 * 36, 3))
        change(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for at in range(2):
            x = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(at))
            F.cross_entropy(model(x), torch.arange(6) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def test_running_statistics_are_part_of_a_run(tmp_path: Path) -> None:
    verdict, findings = both(tmp_path, of_images(0.01), of_images())
    assert verdict.headline.code is VerdictCode.ARGUMENT_DIFFERS
    assert verdict.headline.place("name") == "momentum"
    assert any(one.code is EvidenceCode.BUFFERS_WRITTEN for one in verdict.evidence)
    assert findings[0].stage is Stage.FORWARD


def test_running_statistics_that_round_otherwise_agree(tmp_path: Path) -> None:
    def channels_last(model: nn.Module) -> None:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    verdict, findings = both(tmp_path, of_images(change=channels_last), of_images())
    assert verdict.outcome is Outcome.AGREE
    assert not findings


class Tabled(nn.Module):
    """Scales by a table of frequencies."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(1, 2, 16).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.frequencies.to(x.dtype)


def test_numbers_of_a_short_buffer_are_shown(tmp_path: Path) -> None:
    def program(last: float) -> Program:
        def train() -> None:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 16), Tabled(torch.float32), nn.Linear(16, 1))
            model[1].frequencies = torch.linspace(1, last, 16)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
            for _ in range(2):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        return train

    verdict, findings = both(tmp_path, program(4.0), program(2.5))
    known = [one for one in verdict.evidence if one.code is EvidenceCode.BUFFER_DIFFERS]
    assert known[0].place("target_numbers") == ("1", "1.2", "1.4", "1.6", "…")
    assert known[0].place("reference_numbers") == ("1", "1.1", "1.2", "1.3", "…")
    assert any(one.code is EvidenceCode.BUFFER_DIFFERS for one in findings[0].evidence)


def test_a_buffer_in_another_dtype_is_named(tmp_path: Path) -> None:
    def program(dtype: torch.dtype) -> Program:
        def train() -> None:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 16), Tabled(dtype), nn.Linear(16, 1)).to(torch.bfloat16)
            model[1].frequencies = model[1].frequencies.to(dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.bfloat16)
            for _ in range(2):
                model(x).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        return train

    verdict, findings = both(tmp_path, program(torch.bfloat16), program(torch.float32))
    assert verdict.headline.code is VerdictCode.BUFFER_DIFFERS
    dtypes = verdict.headline.place("target"), verdict.headline.place("reference")
    assert dtypes == ("bfloat16", "float32")
    assert findings[0].kinds[0].name == "dtype_or_rounding"


# -- clearing ------------------------------------------


class Climbing(torch.optim.SGD):
    """Plain descent, with a step up."""

    @torch.no_grad()
    def climb(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=0.01)

    def step(self, closure: Any = None) -> None:
        """The update, whose code a run reaches when it first makes one."""
        super().step(closure)


def test_gradients_cleared_before_the_update(tmp_path: Path) -> None:
    def program(*, clears: bool) -> Program:
        def train() -> None:
            torch.manual_seed(0)
            model = Model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for at in range(2):
                rows = torch.randint(0, SIZE, (4, 13), generator=torch.Generator().manual_seed(at))
                for number, ids in enumerate(rows.chunk(2)):
                    plain(model, ids, at).backward()
                    if clears and number == 0:
                        optimizer.zero_grad()
                optimizer.step()
                optimizer.zero_grad()

        return train

    _, findings = both(tmp_path, program(clears=True), program(clears=False))
    codes = [one.headline.code for one in findings]
    assert StagesCode.CLEARED_BEFORE_UPDATE in codes
    assert StagesCode.STEPS_AFTER not in codes
    stages = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "again").stages
    assert StagesCode.CLEARED_NOT_REDUCED in [one.conclusion.code for one in stages]


def test_gradients_that_the_reference_clears_between_two_passes(tmp_path: Path) -> None:
    """Sharpness-aware minimisation: a step up, cleared gradients, and the update from where that leads."""

    def program(*, clears: bool) -> Program:
        def train() -> None:
            torch.manual_seed(0)
            model = Model()
            optimizer = Climbing(model.parameters(), lr=0.1)
            for at in range(2):
                ids = torch.randint(0, SIZE, (2, 13), generator=torch.Generator().manual_seed(at))
                plain(model, ids, at).backward()
                optimizer.climb()
                if clears:
                    optimizer.zero_grad()
                plain(model, ids, at).backward()
                optimizer.step()
                optimizer.zero_grad()

        return train

    _, findings = both(tmp_path, program(clears=False), program(clears=True))
    assert [one.headline.code for one in findings] == [StagesCode.SUMMED_BEFORE_UPDATE]
    said = {one.code for one in findings[0].evidence}
    assert EvidenceCode.CODE_OF_ONE_SIDE not in said  # the reference's update is in a later step


@pytest.mark.parametrize(
    ("ids", "mask", "same"),
    [
        ([5, 6, 0, 0], [1, 1, 0, 0], True),
        ([0, 0, 5, 6], [0, 0, 1, 1], True),
        ([5, 7, 0, 0], [1, 1, 0, 0], False),
        ([5, 0, 6, 0], [1, 0, 1, 0], False),
        ([5, 6, 0, 0], [1, 1, 1, 0], False),
    ],
)
def test_a_row_is_what_it_is_without_its_padding(ids: list[int], mask: list[int], same: bool) -> None:
    given = {"input.input_ids": np.array([ids]), "input.attention_mask": np.array([mask])}
    trimmed = {"input.input_ids": np.array([[5, 6]]), "input.attention_mask": np.array([[1, 1]])}
    keys = [row_keys(one, spans_of(one, without_padding=True)) for one in (given, trimmed)]
    assert (keys[0] == keys[1]) is same


@pytest.mark.parametrize(
    ("ids", "beside", "same"),
    [
        ([[5, 6, 0], [7, 8, 9]], [[1, 1, 0], [1, 1, 1]], True),
        ([[5, 0, 0], [7, 8, 9]], [[1, 0, 0], [1, 1, 1]], False),
        ([[5, 6, 0], [7, 8, 9]], [[1, 0, 0], [1, 1, 1]], False),  # hides a token beside the padding
        ([[5, 6, 0], [7, 8, 9]], [[0, 1, 1], [0, 0, 1]], False),  # types of tokens
        ([[1, 1, 0], [1, 0, 1]], [[4, 4, 4], [4, 4, 4]], False),  # tokens of two kinds
        ([[5, 6, 0], [7, 8, 9]], [[1, 1, 2], [1, 1, 1]], False),
    ],
    ids=["padding", "another row", "a token hidden", "types", "two tokens", "no mask"],
)
def test_what_hides_padding_needs_no_name(ids: list[list[int]], beside: list[list[int]], same: bool) -> None:
    def rows(held: list[list[int]], shown: list[list[int]]) -> bytes:
        given = {"input.0": np.array(held), "input.1": np.array(shown)}
        return row_keys(given, spans_of(given, without_padding=True))[0]

    alone = [[5, 6]] if ids[0][0] > 1 else [[1, 1]]
    assert (rows(ids, beside) == rows(alone, [[1, 1]])) is same
