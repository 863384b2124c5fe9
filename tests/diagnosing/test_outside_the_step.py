"""What a program does outside its steps: between two backwards, before the first forward, and to a weight
that it reads beside its module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.utils.parametrizations import weight_norm  # noqa: E402

import trueup  # noqa: E402
from tests.comparing.traces import Recorder  # noqa: E402
from tests.diagnosing.made_steps import context_of, run, step  # noqa: E402
from tests.diagnosing.replaying import replay  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay import origins  # noqa: E402
from trueup.diagnosing.stages.reduction import ReductionStage  # noqa: E402
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL  # noqa: E402
from trueup.types.codes import (  # noqa: E402
    BatchCode,
    ClippingCode,
    StagesCode,
    VerdictCode,
    WeightsCode,
)
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.finding import Finding, Stage  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

Loop = Callable[[], None]
WIDTH, IDS = 8, torch.randint(0, 12, (2, 4, 6), generator=torch.Generator().manual_seed(5))


def diagnosed(folder: Path, target: Loop, reference: Loop) -> Diagnosis:
    """Both captured as the preset does, and diagnosed without a replay."""
    for name, loop in (("target", target), ("reference", reference)):
        with trueup.Tracer(folder / name, level="L0", steps="0,1", store_values_of=VALUES):
            loop()
    return diagnose(folder / "target", folder / "reference", output=folder / "out")


def codes(said: Reason) -> set[object]:
    """Of a headline and what it is about: the tests around are no one code."""
    return {said.code, *(part.code for part in said.parts)}


def kinds(finding: Finding) -> list[object]:
    return [kind.sentence.code for kind in finding.kinds]


# -- between two backwards ------------------------------------------


def sharp(
    *,
    radius: float = 0.05,
    sign: float = 1.0,
    squared: bool = False,
    back: str = "subtract",
    rate: float = 0.1,
) -> Loop:
    """Sharpness-aware minimisation: up the gradient, a second backward, back, and an update."""

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        weights = list(model.parameters())
        for _ in range(2):
            x, y = torch.randn(5, WIDTH), torch.arange(5) % 3
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                norm = torch.stack([w.grad.norm() for w in weights]).norm()  # type: ignore[union-attr]
                old = [w.clone() for w in weights]
                moves = [(w.grad * w.square() if squared else w.grad) * radius / norm for w in weights]  # type: ignore[operator]
                for w, move in zip(weights, moves, strict=True):
                    w.add_(move, alpha=sign)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for w, move, before in zip(weights, moves, old, strict=True):
                    if back == "copy":
                        w.copy_(before)
                    elif back == "subtract":
                        w.sub_(move, alpha=sign)
            optimizer.step()
            optimizer.zero_grad()

    return run


@pytest.mark.parametrize(
    ("target", "code", "sides"),
    [
        (sharp(radius=0.08), StagesCode.MOVED_TIMES, None),
        (sharp(sign=-1.0), StagesCode.MOVED_TIMES, None),
        (sharp(squared=True), StagesCode.MOVED_BETWEEN, (None, 0.05)),
        (sharp(back=""), StagesCode.MOVE_KEPT, None),
    ],
    ids=["longer", "down", "along another direction", "not taken back"],
)
def test_a_move_between_the_passes_is_told_by_its_length_and_direction(
    target: Loop, code: StagesCode, sides: tuple[float | None, float] | None, tmp_path: Path
) -> None:
    found = diagnosed(tmp_path, target, sharp())
    first = found.findings[0]
    assert (first.stage, first.step) == (Stage.OPTIMIZER, 1)
    (said,) = [one for one in (first.headline, *first.headline.parts) if one.code is code]
    if sides is not None:
        assert said.number("reference") == pytest.approx(sides[1], rel=1e-3)
    if code is StagesCode.MOVED_TIMES:
        (along,) = [
            one
            for one in first.evidence
            if one.code is StagesCode.MOVED_ALONG and one.place("side") == "target"
        ]
        assert along.number("length") == pytest.approx(
            abs(along.number("factor") or 0) * (along.number("norm") or 0)
        )


def test_a_move_that_is_taken_back_by_other_means_is_the_same(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, sharp(back="copy"), sharp()).outcome is Outcome.AGREE


def test_another_update_after_equal_moves_is_no_move(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, sharp(rate=0.2), sharp())
    assert not any(
        codes(one.headline) & {StagesCode.MOVED_TIMES, StagesCode.MOVE_KEPT} for one in found.findings
    )


# -- before the first forward ------------------------------------------


class Tokens(nn.Module):
    """``gain`` stands in both models, ``drawn`` draws numbers in training."""

    def __init__(self, gain: float = 1.0, *, drawn: float = 0.0) -> None:
        super().__init__()
        self.ids, self.inner, self.head = (
            nn.Embedding(12, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 12),
        )
        self.gain, self.drawn = gain, drawn

    def forward(self, ids: Tensor) -> Tensor:
        x = F.dropout(self.inner(self.ids(ids)), self.drawn, self.training)
        return self.head(x * self.gain)  # type: ignore[no-any-return]


class Teacher(Tokens):
    """Another name."""


def taught(
    *, gain: float = 1.0, power: float = 1.0, after: bool = False, parts: int = 2, other: bool = False
) -> Loop:
    """Two steps of a model that follows another one, which is asked before it or ``after``; ``other``: about
    ids of its own."""

    def run() -> None:
        torch.manual_seed(0)
        teacher, model = Teacher(gain).requires_grad_(False).eval(), Tokens(gain)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for ids in IDS:
            for part in ids.split(4 // parts):
                about = (part + 1) % 12 if other else part
                with torch.no_grad():
                    aim = None if after else teacher(about)
                made = model(part)
                if aim is None:
                    with torch.no_grad():
                        aim = teacher(about)
                (made - aim).abs().pow(power + 1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def test_what_a_teacher_gave_before_the_step_is_not_charged_to_the_loss(tmp_path: Path) -> None:
    replay(tmp_path, taught(), taught(gain=1.5))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert {one.stage for one in found} == {Stage.FORWARD}


def test_a_loss_that_is_another_is_charged_whoever_is_asked(tmp_path: Path) -> None:
    replay(tmp_path, taught(), taught(power=2.0))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert {one.stage for one in found} == {Stage.LOSS}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("gain", "outcome"), [(1.0, Outcome.AGREE), (1.001, Outcome.DIFFER)])
def test_a_teacher_is_asked_after_the_model(
    gain: float, outcome: Outcome, parts: int, tmp_path: Path
) -> None:
    runs = taught(gain=gain, after=True, parts=parts), taught(parts=parts)
    assert diagnosed(tmp_path, *runs).outcome is outcome
    assert compare(tmp_path / "target", tmp_path / "reference").verdict.outcome is outcome


def test_a_teacher_that_is_given_something_else(tmp_path: Path) -> None:
    """Both ask it after the model: its calls stand in one place, and what it is given is compared."""
    diagnosed(tmp_path, taught(after=True, other=True), taught(after=True))
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.DATA_DIFFERS)


# -- a weight beside its module ------------------------------------------


class Tied(nn.Module):
    """The head multiplies with the embedding's weight."""

    def __init__(self, *, detached: bool, factor: float) -> None:
        super().__init__()
        self.ids, self.inner = nn.Embedding(12, WIDTH, padding_idx=0), nn.Linear(WIDTH, WIDTH)
        self.detached, self.factor = detached, factor

    def forward(self, ids: Tensor) -> Tensor:
        weight = self.ids.weight.detach() if self.detached else self.ids.weight
        scaled = weight + (weight * self.factor - (weight * self.factor).detach())
        return F.linear(self.inner(self.ids(ids)), scaled)


def tied(*, detached: bool = False, factor: float = 0.0, grown: float = 1.0, times: float = 1.0) -> Loop:
    def run() -> None:
        torch.manual_seed(0)
        model = Tied(detached=detached, factor=factor)
        model.ids.weight.register_hook(lambda made: made * times)
        model.inner.register_full_backward_hook(lambda *_: (_[1][0] * grown,))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for ids in IDS:
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (tied(detached=True), KindReason.OTHER_USE),
        (tied(factor=1.0), KindReason.OTHER_USES_DIFFER),
    ],
)
def test_another_use_of_a_weight_is_told_from_what_its_module_makes(
    target: Loop, code: KindReason, tmp_path: Path
) -> None:
    found = diagnosed(tmp_path, target, tied()).findings[0]
    assert (found.module, kinds(found)[0]) == ("ids", code)


@pytest.mark.parametrize("how", [{"grown": 1.5}, {"times": 1.01}], ids=["sent back", "scaled by a hook"])
def test_what_the_module_itself_makes_is_no_other_use(how: dict[str, float], tmp_path: Path) -> None:
    found = diagnosed(tmp_path, tied(**how), tied())
    assert not any(
        code in (KindReason.OTHER_USE, KindReason.OTHER_USES_DIFFER)
        for one in found.findings
        for code in kinds(one)
    )


class Headed(nn.Module):
    """A head that is the embedding's weight, or a copy of it."""

    def __init__(self, *, shares: bool) -> None:
        super().__init__()
        self.ids, self.head = nn.Embedding(12, WIDTH), nn.Linear(WIDTH, 12, bias=False)
        self.inner = nn.Linear(WIDTH, WIDTH)
        if shares:
            self.head.weight = self.ids.weight
        else:
            self.head.weight.data.copy_(self.ids.weight.data)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(self.ids(ids)))


def headed(*, shares: bool, times: float = 1.0) -> Loop:
    def run() -> None:
        torch.manual_seed(0)
        model = Headed(shares=shares)
        model.ids.weight.register_hook(lambda made: made * times)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for ids in IDS:
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("times", [1.0, 1.5])
def test_a_tie_explains_the_gradient_that_is_the_sum_of_both(
    shares: bool, times: float, tmp_path: Path
) -> None:
    again, reference, _ = replay(
        tmp_path, headed(shares=not shares), headed(shares=shares, times=times), store_values_of=VALUES
    )
    found = diagnose(tmp_path / "free", reference.path, output=tmp_path / "out", replay=again.path)
    headlines = [one.headline.code for one in found.findings]
    assert headlines[0] is WeightsCode.TIE
    assert (len(headlines) == 1) is (times == 1.0), "a gradient that is not the sum is a fault of its own"
    verdict = compare(tmp_path / "free", reference.path, output=tmp_path / "compared").verdict
    assert verdict.headline.code is WeightsCode.TIE


# -- weights ------------------------------------------


def made(*, normed: bool = True, rows: int = 0, seed: int = 0) -> Loop:
    """A model with a weight norm, of whose first weight ``rows`` are drawn anew."""

    def run() -> None:
        torch.manual_seed(seed)
        first, second = nn.Linear(WIDTH, 12), nn.Linear(12, 12)
        if rows:
            with torch.no_grad():
                first.weight[:rows] = torch.randn(rows, WIDTH)
        last = nn.Linear(12, 3)
        inner = weight_norm(second) if normed else second
        model = nn.Sequential(first, nn.Tanh(), inner, nn.Tanh(), last)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            x = torch.randn(5, WIDTH, generator=generator)
            F.cross_entropy(model(x), torch.arange(5) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


@pytest.mark.parametrize(
    ("target", "reference", "side"), [(False, True, "reference"), (True, False, "target")]
)
def test_a_weight_that_one_run_parametrizes(target: bool, reference: bool, side: str, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, made(normed=target), made(normed=reference)).findings[0]
    assert (found.stage, found.module, found.headline.place("side")) == (Stage.WEIGHTS, "2", side)
    assert found.headline.code is WeightsCode.PARAMETRIZED


def test_a_weight_norm_in_both_runs_is_no_difference(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, made(), made()).outcome is Outcome.AGREE


def test_rows_drawn_anew_stand_before_the_draws_that_follow(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, made(rows=4), made()).findings
    assert [one.headline.place("way") for one in found[:2]] == ["part", "other_draw"]
    assert any(one.code is WeightsCode.DRAWN_AFTER for one in found[0].evidence)


class WithTable(nn.Module):
    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.first, self.table, self.last = nn.Linear(WIDTH, 12), nn.Embedding(buckets, 3), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)) + self.table(torch.arange(len(x)) % self.table.num_embeddings)


def sized(buckets: int, *, seed: int = 0) -> Callable[[], None]:
    """A model whose weights are all drawn anew when it is built, as libraries do, with a table inside."""

    def run() -> None:
        torch.manual_seed(seed)
        model = WithTable(buckets)
        for weight in model.parameters():
            nn.init.normal_(weight)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
        F.cross_entropy(model(x), torch.arange(5) % 3).backward()
        optimizer.step()

    return run


def test_a_table_of_another_size_stands_before_the_draws_that_follow(tmp_path: Path) -> None:
    first = diagnosed(tmp_path, sized(4), sized(32)).findings[0]
    assert (first.headline.place("way"), first.module) == ("shape", "table")
    assert any(one.code is WeightsCode.DRAWN_AFTER for one in first.evidence)


def test_other_draws_throughout_follow_from_no_weight(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, made(seed=1), made()).findings
    assert not any(one.code is WeightsCode.DRAWN_AFTER for finding in found for one in finding.evidence)


# -- evaluation, further losses ------------------------------------------


def evaluated(*, trained: bool = False) -> Loop:
    """A model whose average is evaluated after each update, or the model itself."""

    def run() -> None:
        torch.manual_seed(0)
        model, slow = Tokens(drawn=0.3), Teacher().requires_grad_(False).eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for ids in IDS:
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                (model if trained else slow)(IDS[0])

    return run


def test_another_model_is_evaluated(tmp_path: Path) -> None:
    """In training mode: it draws the numbers that the next step would have drawn."""
    found = diagnosed(tmp_path, evaluated(trained=True), evaluated())
    assert StagesCode.OTHER_MODEL_EVALUATED in codes(found.findings[0].headline)


def test_the_same_model_is_evaluated(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, evaluated(), evaluated()).outcome is Outcome.AGREE


def ahead(places: int, *, doubled: float = 1.0) -> Loop:
    """A second loss of labels some places further on."""

    def run() -> None:
        torch.manual_seed(0)
        model = Tokens()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for ids in IDS:
            made = model(ids)
            near = F.cross_entropy(made[:, :-2].flatten(0, 1), ids[:, 1:-1].flatten())
            stop = ids.shape[1] - 2 + places
            far = F.cross_entropy(doubled * made[:, :-2].flatten(0, 1), ids[:, places:stop].flatten())
            (near + far).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


@pytest.mark.parametrize(("doubled", "is_told"), [(1.0, True), (2.0, False)], ids=["labels", "logits"])
def test_labels_of_a_second_loss_are_compared(doubled: float, is_told: bool, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, ahead(1 if is_told else 2, doubled=doubled), ahead(2))
    said = found.findings[0].headline.code
    assert found.outcome is Outcome.DIFFER
    assert (said is BatchCode.SHIFT_DIFFERS) is is_told


# -- the norm that clipping takes ------------------------------------------

OWN = [np.random.default_rng(rank).standard_normal((6, 5)).astype(np.float32) for rank in range(2)]
WHOLE = (OWN[0] + OWN[1]) / 2


def reduced(
    *, own: bool, cut: float = 1.0, halved: bool = False
) -> tuple[list[Sequence[Recorder]], dict[str, Any]]:
    """A step of two ranks that reduce after backward; the norm they clip by is of their ``own`` gradients or
    of the reduced ones."""
    factors = [cut / float(np.linalg.norm(part)) if own else 1.0 for part in OWN]
    given = (factors[0] * OWN[0] + factors[1] * OWN[1]) / 2 if cut < 1.0 else WHOLE
    given = given if own or cut == 1.0 else given * (cut / float(np.linalg.norm(WHOLE)))
    steps = [step({"w": {LOCAL: part, ACCUMULATED: part, CLIPPED: given}}) for part in OWN]
    norms = [float(np.linalg.norm(part if own else WHOLE)) * (0.5 if halved else 1.0) for part in OWN]
    return [steps], {"lines": [{"grad_norm": norm, "rank": rank} for rank, norm in enumerate(norms)]}


def reduction(folder: Path, target: Any, reference: Any) -> tuple[Finding, ...]:
    traces = [run(folder / name, *steps, **told) for name, (steps, told) in (("t", target), ("r", reference))]
    return ReductionStage().check(context_of(*traces)).findings


@pytest.mark.parametrize("cut", [1.0, 0.1], ids=["that cuts nothing", "that cuts"])
def test_a_norm_of_gradients_before_they_are_reduced(cut: float, tmp_path: Path) -> None:
    (found,) = reduction(tmp_path, reduced(own=True, cut=cut), reduced(own=False, cut=cut))
    assert (found.headline.code, found.headline.place("side")) == (
        ClippingCode.NORM_BEFORE_REDUCTION,
        "target",
    )


def test_another_norm_of_reduced_gradients_is_told_as_it_is(tmp_path: Path) -> None:
    (found,) = reduction(tmp_path, reduced(own=False, halved=True), reduced(own=False))
    assert found.headline.code is VerdictCode.GRADIENT_NORM_DIFFERS


def test_equal_norms_of_equal_gradients(tmp_path: Path) -> None:
    assert reduction(tmp_path, reduced(own=True), reduced(own=True)) == ()
