"""A loss scale, the place of a reduction, the form of a mask or of labels: the same by other means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from tests.comparing.rules.judging import step_of  # noqa: E402
from tests.comparing.traces import Recorder  # noqa: E402
from trueup.comparing.rules import judge_step  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.store import Trace, step_view  # noqa: E402
from trueup.types.codes import NoteCode, RecordCode  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

X = torch.randn(6, 9, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 12, (6, 9), generator=torch.Generator().manual_seed(2))
SEEN = torch.arange(9)[None] < torch.tensor([9, 5, 7, 9, 3, 8])[:, None]


class Model(nn.Module):
    """Attention over what a mask of tokens, or of pairs of them, lets it see."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.head, self.loss = nn.Linear(16, 16), nn.Linear(16, 12), loss

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = self.inner(x)
        seen = mask if mask.ndim == 3 else mask[:, None, :].expand(-1, 9, -1)
        scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        return self.loss(self.head(hidden + scores.softmax(-1) @ hidden), LABELS)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gathered(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, labels[..., None]).mean()


def trained(
    folder: Path,
    *,
    scale: float | None = None,
    mask: Tensor = SEEN,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    wrong: float = 1.0,
    by_hand: float | None = None,
    level: str = "L0",
) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(loss)
    model.inner.weight.register_hook(lambda grad: grad * wrong)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    with trueup.Tracer(folder, level=level, steps="0-1", task="tensor"):
        for _ in range(2):
            scaled = scaler.scale(model(X, mask))
            (scaled if by_hand is None else scaled * by_hand).backward()
            if by_hand is not None:
                for weight in model.parameters():
                    weight.grad = None if weight.grad is None else weight.grad / by_hand
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("scaled") / "run", scale=1024.0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("scale", [64.0, 1000.0, 65536.0])
def test_another_loss_scale_is_the_same_training(scale: float, scaled: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", scale=scale)
    comparison = compare(run, scaled)
    assert comparison.exit_code == 0
    (note,) = [n for n in comparison.content.notes if n.code is NoteCode.LOSS_SCALES_DIFFER]
    assert (note.number("target"), note.number("reference")) == (scale, 1024.0)
    assert diagnose(run, scaled, output=tmp_path / "out").outcome is Outcome.AGREE


def test_a_wrong_gradient_under_another_loss_scale_differs(scaled: Path, tmp_path: Path) -> None:
    comparison = compare(trained(tmp_path / "run", scale=64.0, wrong=1.001), scaled)
    assert (comparison.exit_code, comparison.verdict.owner) == (1, "inner")


def test_another_loss_scale_is_the_same_training_at_the_level_of_functions(tmp_path: Path) -> None:
    """Scaler, loss and gradients hold it outside of the model. Twin: a gradient made otherwise."""
    reference = trained(tmp_path / "reference", scale=1024.0, level="mix")
    run = trained(tmp_path / "run", scale=64.0, level="mix")
    assert compare(run, reference).exit_code == 0
    assert diagnose(run, reference, output=tmp_path / "out").outcome is Outcome.AGREE
    wrong = compare(trained(tmp_path / "wrong", scale=64.0, wrong=1.001, level="mix"), reference)
    assert wrong.exit_code == 1


def test_a_run_without_a_scaler_has_the_scale_1(scaled: Path, plain: Path, tmp_path: Path) -> None:
    for target, reference in ((scaled, plain), (plain, scaled)):
        assert compare(target, reference).exit_code == 0
        assert diagnose(target, reference, output=tmp_path / "out").outcome is Outcome.AGREE


def test_a_scale_that_is_not_taken_out_differs(plain: Path, tmp_path: Path) -> None:
    """Its twin: the loss is multiplied by hand and nothing divides."""
    wrong = trained(tmp_path / "run", loss=lambda logits, labels: 64.0 * cross_entropy(logits, labels))
    assert compare(wrong, plain).exit_code == 1


def test_one_side_scales_by_hand(scaled: Path, tmp_path: Path) -> None:
    """Gradients of one size, though one run alone has a scaler: nothing is taken out of them."""
    comparison = compare(trained(tmp_path / "run", by_hand=1024.0), scaled)
    assert comparison.verdict.phase == "loss"  # the loss that backward was called on
    assert not [n for n in comparison.content.notes if n.code is NoteCode.LOSS_SCALES_DIFFER]


def by_hand(
    folder: Path,
    *,
    factor: float = 1.0,
    sent: float | None = None,
    undone: bool = True,
    limit: float | None = None,
    reported: bool = True,
    coarse: bool = False,
) -> Path:
    """Two steps whose loss is multiplied, and whose gradients are divided again before they are clipped;
    ``sent``: what backward multiplies by, if another factor; ``coarse``: autocast to bfloat16."""
    sent = factor if sent is None else sent
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(cross_entropy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=coarse):
                loss = model(X, SEEN)
            (loss * sent + loss.detach() * (factor - sent)).backward()
            grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
            for grad in grads if undone else ():
                grad /= sent
            if limit is not None and reported:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            elif limit is not None:
                norm = torch.stack([grad.norm() for grad in grads]).norm()
                for grad in grads:
                    grad *= limit / norm
            optimizer.step()
            optimizer.zero_grad()
    return folder


def undone(target: Path, reference: Path) -> bool:
    notes = compare(target, reference).content.notes
    return any(note.code is NoteCode.LOSS_SCALE_UNDONE for note in notes)


@pytest.mark.parametrize(("factor", "limit"), [(2.0, None), (1 / 3, None), (3.0, 1e-3)])
def test_a_factor_of_the_loss_that_is_taken_out_again(
    factor: float, limit: float | None, tmp_path: Path
) -> None:
    runs = by_hand(tmp_path / "run", factor=factor, limit=limit), by_hand(tmp_path / "reference", limit=limit)
    for target, reference in (runs, runs[::-1]):
        assert (compare(target, reference).exit_code, undone(target, reference)) == (0, True)
        found = diagnose(target, reference, output=tmp_path / "out")
        assert (found.outcome, found.findings) == (Outcome.AGREE, ())


@pytest.mark.parametrize(
    "how",
    [
        {"factor": 2.0, "undone": False},
        {"factor": 1.004, "sent": 1.0025},
        {"factor": 2.0, "undone": False, "limit": 1e-3},
        {"factor": 2.0, "undone": False, "limit": 1e-3, "reported": False},
        {"factor": 0.94, "undone": False, "limit": 1e-3, "coarse": True},
    ],
    ids=["nothing divides", "the value alone", "clipping hides it", "by hand", "a small one in bfloat16"],
)
def test_a_factor_of_the_loss_that_stays(how: dict[str, Any], tmp_path: Path) -> None:
    same = {name: value for name, value in how.items() if name in ("limit", "reported", "coarse")}
    runs = by_hand(tmp_path / "run", **how), by_hand(tmp_path / "reference", **same)
    assert (compare(*runs).exit_code, undone(*runs)) == (1, False)


def test_labels_behind_a_scaled_loss_are_recorded(scaled: Path, plain: Path) -> None:
    for run in (scaled, plain):
        view = step_view(Trace(run), 0, 0)
        labels = [view.slot[i] for i, phase in enumerate(view.phase) if phase == "loss"]
        assert labels == ["labels", "value"]


def test_a_mask_of_pairs_is_the_mask_of_tokens(plain: Path, tmp_path: Path) -> None:
    pairs = SEEN[:, None, :].expand(-1, 9, -1).clone()
    assert compare(trained(tmp_path / "run", mask=pairs), plain).exit_code == 0


def test_another_mask_of_pairs_differs(plain: Path, tmp_path: Path) -> None:
    pairs = SEEN[:, None, :].expand(-1, 9, -1).clone()
    pairs[0, 4, 2] = False
    assert compare(trained(tmp_path / "run", mask=pairs), plain).exit_code == 1


def test_a_cross_entropy_written_out_agrees(plain: Path, tmp_path: Path) -> None:
    assert compare(trained(tmp_path / "run", loss=gathered), plain).exit_code == 0


SOME = torch.where(torch.arange(54).view(6, 9) % 5 == 0, -100, LABELS)


def ignored(logits: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), SOME.flatten())


def masked(logits: Tensor, counted: Tensor) -> Tensor:
    """Labels that do not count are 0 under a mask."""
    ids = torch.where(SOME == -100, 0, SOME)
    each = logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    return -(each * counted).sum() / counted.sum()


@pytest.mark.parametrize("more", [0, 1], ids=["the same", "one label more"])
def test_labels_under_a_mask_are_those_that_are_ignored(more: int, tmp_path: Path) -> None:
    counted = SOME != -100
    counted.view(-1)[:more] = True
    runs = (
        trained(tmp_path / "run", loss=lambda logits, _: masked(logits, counted)),
        trained(tmp_path / "reference", loss=ignored),
    )
    assert compare(*runs).exit_code == more
    assert diagnose(*runs, output=tmp_path / "diagnosis").exit_code == more


# -- the place of a reduction ------------------------------------------


def gradients(out: Recorder, accumulated: np.ndarray, clipped: np.ndarray) -> None:
    """One parameter, with its gradient as backward leaves it and as the optimizer is given it."""
    weight = out.call("parameter", "m.weight")
    out.record(weight, "param", "value", np.ones((4, 3), np.float32))
    out.record(weight, "param_grad", "accumulated", accumulated.astype(np.float32))
    out.record(weight, "param_grad", "clipped", clipped.astype(np.float32))


OWN, OTHERS = np.random.default_rng(0).normal(size=(2, 4, 3))
WHOLE = (OWN + OTHERS) / 2


@pytest.mark.parametrize(
    ("accumulated", "clipped", "is_left"),
    [
        (OWN, WHOLE, True),
        (OWN, OWN, False),
        (OWN, WHOLE * 1.001, False),
        (2 * WHOLE, WHOLE, False),
    ],
    ids=["reduced later", "never reduced", "reduced otherwise", "a factor that clipping takes away"],
)
def test_a_gradient_reduced_after_backward(
    accumulated: np.ndarray, clipped: np.ndarray, is_left: bool, tmp_path: Path
) -> None:
    target, reference = Recorder(), Recorder()
    gradients(target, accumulated, clipped)
    gradients(reference, WHOLE, WHOLE)
    context, metrics = step_of(tmp_path, target, reference)
    judgement = judge_step(context, metrics)
    codes = {why.code for why in judgement.reasons.values()}
    assert (RecordCode.REDUCED_LATER in codes) is is_left


@pytest.mark.parametrize(
    ("others", "is_left"),
    [((0.02 * OTHERS, OTHERS), True), ((0.02 * OTHERS, 0.02 * OWN), False)],
    ids=["of one rank by chance", "a factor of all"],
)
def test_gradients_of_which_one_rank_makes_most(
    others: tuple[np.ndarray, np.ndarray], is_left: bool, tmp_path: Path
) -> None:
    """Such a part is nearly a multiple of the mean: of one gradient by chance, of all a factor."""
    target, reference = Recorder(), Recorder()
    for name, other in zip(("a.weight", "b.weight"), others, strict=True):
        for out, left in ((target, OWN), (reference, (OWN + other) / 2)):
            weight = out.call("parameter", name)
            out.record(weight, "param_grad", "accumulated", left.astype(np.float32))
            out.record(weight, "param_grad", "clipped", ((OWN + other) / 2).astype(np.float32))
    context, metrics = step_of(tmp_path, target, reference)
    codes = {why.code for why in judge_step(context, metrics).reasons.values()}
    assert (RecordCode.REDUCED_LATER in codes) is is_left


@pytest.mark.parametrize(
    ("calls", "gradient", "is_left"),
    [([OTHERS, WHOLE], WHOLE, True), ([OTHERS, WHOLE], OWN, False), ([OTHERS], WHOLE, False)],
    ids=["in parts", "in parts that are not the whole", "once, of something else"],
)
def test_gradients_reduced_in_more_calls(
    calls: list[np.ndarray], gradient: np.ndarray, is_left: bool, tmp_path: Path
) -> None:
    target, reference = Recorder(), Recorder()
    for out, reduced, made in ((target, calls, gradient), (reference, [OWN], WHOLE)):
        for one in reduced:
            call = out.call("api", "c10d.allreduce_")
            out.record(call, "collective", "input.0", one.astype(np.float32))
        gradients(out, made, made)
    context, metrics = step_of(tmp_path, target, reference)
    codes = {why.code for why in judge_step(context, metrics).reasons.values()}
    assert (RecordCode.REDUCED_IN_PARTS in codes) is is_left


CLIPPED = WHOLE / 4


@pytest.mark.parametrize(
    ("parts", "given", "loss", "is_left"),
    [
        (((3.0, 7.0), (5.0, 8.0)), CLIPPED, 0.7, True),
        (((5.0, 7.0), (5.0, 8.0)), CLIPPED, 0.7, True),
        (((3.0, 7.0), (5.0, 8.0)), WHOLE, 0.7, False),
        (((3.0, 7.0), (5.0, 8.0)), OWN / 4, 0.7, False),
        (((3.0, 7.0), (5.0, 8.0)), CLIPPED, 5.0, False),
    ],
    ids=["other parts", "other parts of others", "nothing clipped", "other gradients", "the loss, to report"],
)
def test_a_norm_of_other_parts(
    parts: tuple[tuple[float, float], ...], given: np.ndarray, loss: float, is_left: bool, tmp_path: Path
) -> None:
    """Squares that ranks add up: where both clip to what comes of them and gradients agree, so do they."""
    sides = (Recorder(), Recorder())
    for out, (part, total), handed in zip(
        sides, parts, (given, WHOLE if given is WHOLE else CLIPPED), strict=True
    ):
        out.record(out.call("loss", "loss"), "loss", "value", np.full((), loss, np.float32))
        weight = out.call("parameter", "m.weight")
        out.record(weight, "param_grad", "accumulated", WHOLE.astype(np.float32))
        call = out.call("api", "c10d.allreduce_")
        out.record(call, "collective", "input.0", np.full((), part, np.float32))
        out.record(call, "collective", "output.0", np.full((), total, np.float32))
        out.record(weight, "param_grad", "clipped", handed.astype(np.float32))
    context, metrics = step_of(tmp_path, *sides)
    codes = {why.code for why in judge_step(context, metrics).reasons.values()}
    assert (RecordCode.NORM_IN_PARTS in codes) is is_left


@pytest.mark.parametrize(
    ("master", "is_left"),
    [(WHOLE, True), (WHOLE * 1.001, False), (np.append(WHOLE, WHOLE), False)],
    ids=["agrees", "differs", "of another shape"],
)
def test_what_backward_left_where_the_optimizer_has_masters(
    master: np.ndarray, is_left: bool, tmp_path: Path
) -> None:
    sides = (Recorder(), Recorder())
    for out, left, given in ((sides[0], OWN + OTHERS, master), (sides[1], OTHERS, WHOLE)):
        given = given if given.shape == master.shape else np.append(given, given)
        weight = out.call("parameter", "m.weight")
        out.record(weight, "param_grad", "local", OTHERS.astype(np.float32))
        out.record(weight, "param_grad", "accumulated", left.astype(np.float32))
        held = out.call("parameter", "AdamW.group0.0")
        out.record(held, "param_grad", "clipped", given.astype(np.float32))
    context, metrics = step_of(tmp_path, *sides)
    codes = {why.code for why in judge_step(context, metrics).reasons.values()}
    assert (RecordCode.GATHERED_ELSEWHERE in codes) is is_left


MOVED = np.random.default_rng(3).normal(size=(4, 3)) / 800


@pytest.mark.parametrize(
    ("updated", "copies", "is_left"),
    [
        (1 + MOVED, ("clipped",), True),
        (1 + MOVED * 1.1, ("clipped",), True),
        (1 + MOVED[::-1], ("clipped",), False),
        (1 + MOVED, ("clipped", "param"), False),
        (np.ones((4, 3)), ("clipped",), False),
    ],
    ids=["updated alike", "to rounding", "by other gradients", "apart on the ranks too", "not moved"],
)
def test_gradients_of_ranks_that_the_optimizer_reduces(
    updated: np.ndarray, copies: tuple[str, ...], is_left: bool, tmp_path: Path
) -> None:
    """In half precision the bound of an updated weight is wider than the update."""
    sides = Recorder(), Recorder()
    for out, after in zip(sides, (updated, updated if not np.ptp(updated) else 1 + MOVED), strict=True):
        weight = out.call("parameter", "m.weight")
        out.record(weight, "param", "value", np.ones((4, 3), np.float16))
        out.record(weight, "param_grad", "clipped", WHOLE.astype(np.float32))
        out.record(weight, "optimizer", "param", after.astype(np.float16))
    context, metrics = step_of(tmp_path, *sides)
    tables = context.rows.target.tables
    why = Reason(RecordCode.COPIES_DIFFER, (("rel_l2", 0.8),))
    at = [n for n, slot in enumerate(tables.records["slot"].to_list()) if slot in copies]
    target = replace(context.rows.target, tables=replace(tables, reasons=dict.fromkeys(at, why)))
    judgement = judge_step(replace(context, rows=replace(context.rows, target=target)), metrics)
    codes = {why.code for why in judgement.reasons.values()}
    assert (RecordCode.REDUCED_BY_OPTIMIZER in codes) is is_left
    assert (RecordCode.COPIES_DIFFER in codes) is not is_left


@pytest.mark.parametrize("received", [WHOLE, OWN], ids=["to the same end", "to another"])
def test_a_gradient_that_one_run_reduces_after_each_microbatch(received: np.ndarray, tmp_path: Path) -> None:
    """FSDP with a reduction in every microbatch has a gradient after each; without, after the last alone."""
    target, reference = Recorder(), Recorder()
    for out, calls, made in ((target, [OTHERS, WHOLE], received), (reference, [OWN], WHOLE)):
        for one in calls:
            call = out.call("api", "torch.distributed.reduce_scatter_single")
            out.record(call, "collective", "input.input", one.astype(np.float32))
        weight = out.call("parameter", "m.weight")
        if out is target:
            out.record(weight, "param_grad", "accumulated", OTHERS.astype(np.float32))
        for slot in ("accumulated", "clipped"):
            out.record(weight, "param_grad", slot, made.astype(np.float32), microbatch=1)
    context, metrics = step_of(tmp_path, target, reference)
    judgement = judge_step(context, metrics)
    codes = {why.code for why in judgement.reasons.values()}
    is_left = received is WHOLE
    assert (RecordCode.REDUCED_IN_PARTS in codes) is is_left
    alone = ~context.rows.paired & context.rows.phase_is("param_grad")
    assert alone.any()
    assert bool(judgement.bracketable[alone].all()) is is_left
