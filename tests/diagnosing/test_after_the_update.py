"""What follows an update: the state it leaves to the next one, and evaluation with the weights it made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from bugzoo.models.gpt import GPT, batch, loss_of  # noqa: E402

from tests.diagnosing.diagnosed import Program, capture, clipped, diagnosed  # noqa: E402
from tests.diagnosing.runs import SMALL  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import StagesCode, VerdictCode  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


class SignMomentum(torch.optim.Optimizer):
    """Lion: the sign of a mixture of gradient and momentum, which decays at a rate of its own."""

    def __init__(
        self,
        params: Any,
        *,
        mixed: float = 0.9,
        kept: float = 0.99,
        decay: float = 0.1,
        way: str = "mul",
        size: Callable[[torch.Tensor], torch.Tensor | float] = lambda p: 1.0,
    ) -> None:
        super().__init__(params, {"lr": 1e-3, "mixed": 0.9})
        self.constants, self.size = (mixed, kept, decay, way), size

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update."""
        mixed, kept, decay, way = self.constants
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * decay)
                mixture = state["momentum"].mul(mixed).add(p.grad, alpha=1 - mixed)
                p.sub_(self.size(mixture) * mixture.sign() * group["lr"])
                if way == "abs":
                    state["momentum"].mul_(kept).add_(p.grad.abs(), alpha=1 - kept)
                elif way == "mul":
                    state["momentum"].mul_(kept).add_(p.grad, alpha=1 - kept)
                else:
                    state["momentum"].lerp_(p.grad, 1 - kept)


def moved_scale(model: GPT) -> None:
    """The scale of the scores, in the weights that make the queries instead: the same in another form."""
    for layer in model.layers:
        width = layer.attn.qkv.weight.shape[0] // 3
        with torch.no_grad():
            layer.attn.qkv.weight[:width] *= 2
            layer.attn.qkv.bias[:width] *= 2
        layer.attn.scale /= 2


def program(
    *, average: float = 0.1, evaluated: Callable[[GPT], None] = lambda model: None, **constants: Any
) -> Program:
    """A small GPT whose averaged copy is evaluated after each update."""

    def make(model: GPT) -> torch.optim.Optimizer:
        updater = SignMomentum(model.parameters(), **constants)
        slow = copy.deepcopy(model).requires_grad_(False).eval()
        step: Callable[[], None] = updater.step

        def stepped() -> None:
            step()
            with torch.no_grad():
                for mine, theirs in zip(slow.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, average)
                shown = copy.deepcopy(slow)
                evaluated(shown)
                loss_of(shown, *batch(SMALL, step=99, size=2))

        updater.step = stepped  # type: ignore[method-assign, assignment]
        return updater

    return {"optimizer": make, "before_step": clipped(0.5)}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return capture(tmp_path_factory.mktemp("reference") / "run", program())


@pytest.mark.parametrize(
    ("constants", "headline"),
    [
        ({"kept": 0.9}, StagesCode.SHARE_KEPT),  # the first update is the same
        ({"mixed": 0.0, "kept": 0.9}, StagesCode.SHARE_KEPT),  # a sign hides every factor
        ({"way": "abs"}, StagesCode.UNNAMED_STATE),  # no multiple of the gradient
        ({"decay": 0.5}, StagesCode.UPDATE_PULLED),
        ({"size": lambda p: 3.0}, StagesCode.UPDATE_SCALED),
        ({"size": lambda p: 1 + p.abs() / p.abs().max()}, StagesCode.UNNAMED),  # one factor an element
    ],
)
def test_an_optimizer_is_told_by_its_update_and_by_what_it_keeps(
    tmp_path: Path, reference: Trace, constants: dict[str, float], headline: StagesCode
) -> None:
    """The averaged model's evaluation comes after the update, and is no first difference of a forward."""
    found = diagnosed(tmp_path, reference, program(**constants), replay=True, gradients=True)
    assert [one.stage for one in found.findings] == [Stage.OPTIMIZER]
    said = found.findings[0].headline
    assert headline in {said.code, *(part.code for part in said.parts)}  # the tests around are no one code


@pytest.mark.parametrize("by_shape", [True, False])
def test_factors_of_an_unknown_update(tmp_path: Path, reference: Trace, by_shape: bool) -> None:
    """Decay beside them stays as it was: it is a multiple of the weight."""
    sizes = {"size": lambda p: len(p) ** 0.5 if by_shape else 1 + 9 * bool(p.flatten()[0] > 0)}
    found = diagnosed(tmp_path, reference, program(**sizes), replay=True, gradients=True)
    known = next(one for one in found.findings[0].evidence if one.code is StagesCode.UPDATE_FACTORS)
    factors = [float(one) for one in known.place("factors") or ()]
    lengths = {len(p) for p in GPT(SMALL).parameters()}
    expected = sorted(length**0.5 for length in lengths) if by_shape else [10]  # of those that differ
    assert factors == pytest.approx(expected, rel=1e-3)
    headline = found.findings[0].headline
    scaled = next(one for one in (headline, *headline.parts) if one.code is StagesCode.UPDATE_SCALED)
    assert bool(scaled.number("by_shape")) is by_shape


def test_what_an_unknown_optimizer_keeps_of_the_gradient(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, program(kept=0.9), replay=True, gradients=True)
    headline = found.findings[0].headline
    share = next(one for one in (headline, *headline.parts) if one.code is StagesCode.SHARE_KEPT)
    assert share.place("state") == "momentum"
    assert share.number("target") == pytest.approx(0.1, rel=1e-3)
    assert share.number("reference") == pytest.approx(0.01, rel=1e-3)


def test_what_an_unknown_update_takes_off(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, program(decay=0.5), replay=True, gradients=True)
    headline = found.findings[0].headline
    known = next(one for one in (headline, *headline.parts) if one.code is StagesCode.UPDATE_PULLED)
    assert known.number("low") == pytest.approx(1e-3 * (0.5 - 0.1), rel=0.01)
    assert known.number("high") == pytest.approx(1e-3 * (0.5 - 0.1), rel=0.01)


def test_a_state_rounded_otherwise_is_the_same(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, program(way="lerp"), replay=True, gradients=True)
    assert (found.outcome, found.findings) == (Outcome.AGREE, ())


def test_an_average_of_equal_updates_keeps_its_own_difference(tmp_path: Path, reference: Trace) -> None:
    """The weights agree after the update, so that it explains nothing of what is evaluated."""
    found = diagnosed(tmp_path, reference, program(average=0.5), replay=True, gradients=True)
    lead, finding = found.findings
    assert lead.stage is Stage.OPTIMIZER
    assert VerdictCode.AVERAGE_DECAY_DIFFERS in {part.code for part in (lead.headline, *lead.headline.parts)}
    said = finding.headline
    assert (finding.stage, finding.module) == (Stage.FORWARD, "GPT")
    assert StagesCode.EVALUATED_WEIGHTS in {said.code, *(part.code for part in said.parts)}


def test_an_evaluated_model_in_another_form_is_the_same(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, program(evaluated=moved_scale), gradients=True)
    assert (found.outcome, found.findings) == (Outcome.AGREE, ())


# -- the gradient of a loss ------------------------------------------


def of_rows(*, detached: bool = False, weight: float = 1.0, smoothed: float = 0.0) -> Program:
    """A loss whose second row is weighted, or sends nothing back."""

    def loss(model: torch.nn.Module, ids: Any, labels: Any) -> Any:
        each = torch.nn.functional.cross_entropy(
            model(ids).mT, labels, reduction="none", label_smoothing=smoothed
        )
        rows = each.mean(-1)
        second = rows[1].detach() + 0.5 * (rows[1] - rows[1].detach()) if detached else weight * rows[1]
        return rows[0] + second

    return {"loss": loss}


@pytest.mark.parametrize("smoothed", [0.0, 0.1])
@pytest.mark.parametrize(("fault", "alone"), [({"detached": True}, True), ({"weight": 0.5}, False)])
def test_a_loss_of_equal_value_with_another_gradient(
    tmp_path: Path, fault: dict[str, Any], alone: bool, smoothed: float
) -> None:
    """Where labels are smoothed the gradient tells no token's weight."""
    reference = capture(tmp_path / "reference", of_rows(smoothed=smoothed))
    found = diagnosed(tmp_path, reference, of_rows(smoothed=smoothed, **fault), replay=True).findings[0]
    codes = {found.headline.code, *(part.code for part in found.headline.parts)}
    assert found.stage is Stage.FORWARD
    assert (KindReason.WEIGHTS_OF_TOKENS in codes) is (not smoothed)
    assert (StagesCode.LOSS_GRADIENT in codes) is (alone and bool(smoothed))
    assert (StagesCode.DETACHED_CAUSE in {one.code for one in found.causes}) is alone
