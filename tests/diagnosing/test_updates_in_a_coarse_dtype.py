"""What an optimizer keeps in a coarse dtype, and updates that a coarse dtype rounds away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.stages.handed_back import stale_elements  # noqa: E402
from trueup.numerics.dtypes import DTYPES  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).bfloat16()


def nearest(x: Tensor) -> Tensor:
    return x.bfloat16()


def at_random(x: Tensor) -> Tensor:
    """Up or down, the nearer number the likelier."""
    noise = torch.randint(0, 1 << 16, x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    return ((x.contiguous().view(torch.int32) + noise) & -65536).view(torch.float32).bfloat16()


class Momentum(torch.optim.Optimizer):
    def __init__(self, params: object, dtype: torch.dtype, rounded: object, frozen: str = "") -> None:
        super().__init__(params, {"lr": 0.02})
        self.dtype, self.rounded, self.frozen = dtype, rounded, frozen

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for at, weight in enumerate(self.param_groups[0]["params"]):
            buffer = self.state[weight].setdefault("momentum", torch.zeros(weight.shape, dtype=self.dtype))
            buffer.mul_(0.9).add_(weight.grad.to(self.dtype))
            if self.frozen != str(at):
                weight.copy_(self.rounded(weight.float() - 0.02 * buffer.float()))


def trained(
    folder: Path, dtype: torch.dtype = torch.float32, rounded: object = nearest, frozen: str = ""
) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)).bfloat16()
    optimizer = Momentum(model.parameters(), dtype, rounded, frozen)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            (0.05 * model(X).float().square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run")


def said(run: Path, reference: Path, tmp_path: Path) -> Diagnosis:
    return diagnose(run, reference, output=tmp_path / "out")


def test_a_momentum_kept_in_a_coarse_dtype(reference: Path, tmp_path: Path) -> None:
    """In the first step it is a gradient, which is as coarse in either run."""
    found = said(trained(tmp_path / "run", torch.bfloat16), reference, tmp_path)
    first = found.findings[0]
    assert (first.stage, first.headline.place("key")) == (Stage.OPTIMIZER, "state")
    assert (first.headline.place("target"), first.headline.place("reference")) == ("bfloat16", "float32")


def test_a_momentum_in_a_finer_dtype_on_both_sides(reference: Path, tmp_path: Path) -> None:
    assert said(trained(tmp_path / "run"), reference, tmp_path).outcome is Outcome.AGREE


def test_an_update_that_rounding_drops_on_one_side(reference: Path, tmp_path: Path) -> None:
    (first, *_) = said(reference, trained(tmp_path / "run", rounded=at_random), tmp_path).findings
    assert (first.stage, first.headline.code) == (Stage.OPTIMIZER, Stages.ROUNDED_AWAY)
    assert first.kinds[0].name == "dtype_or_rounding"


def test_a_weight_that_is_not_updated_is_a_lost_update(reference: Path, tmp_path: Path) -> None:
    """Its twin: the other run moves it by more than to the next number."""
    (first, *_) = said(trained(tmp_path / "run", frozen="0"), reference, tmp_path).findings
    assert (first.stage, first.headline.code) == (Stage.OPTIMIZER, Stages.UPDATE_LOST)


def test_a_larger_rate_is_told_before_the_roundings_that_it_changes(tmp_path: Path) -> None:
    def run(name: str, rate: float) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with trueup.Tracer(tmp_path / name, level="L0", steps="0", task="tensor"):
            (0.05 * model(X).float().square().mean()).backward()
            optimizer.step()
        return tmp_path / name

    first, *more = said(run("run", 0.6), run("reference", 0.2), tmp_path).findings
    assert (first.headline.code, first.headline.place("key")) == (Stages.SETTING, "lr")
    assert Stages.ROUNDED_AWAY not in {one.headline.code for one in more}


@pytest.mark.parametrize(("dtype", "is_stale"), [("float32", True), ("bfloat16", False)])
def test_an_update_that_a_coarse_weight_does_not_show_is_not_missing(dtype: str, is_stale: bool) -> None:
    """Weights near 1: the reference's update takes them to the next number of bfloat16, the target's, half as
    large, moves those alone that lie near the middle between two."""
    old = np.ones(64)
    reference = old - DTYPES["bfloat16"].eps
    target = np.where(np.arange(64) % 3 == 0, reference, old)
    found = stale_elements(target, reference, old, DTYPES[dtype].eps)
    assert (found is not None) is is_stale


def test_a_coarse_weight_that_did_not_move_at_all_is_stale() -> None:
    old = np.ones(64)
    reference = np.where(np.arange(64) % 3 == 0, old, old - DTYPES["bfloat16"].eps)
    assert stale_elements(old, reference, old, DTYPES["bfloat16"].eps) is not None


@pytest.mark.parametrize(("rows", "is_stale"), [(slice(2, 4), True), (slice(0, 0), False)])
def test_rows_that_did_not_arrive_and_elements_whose_gradient_cancels(rows: slice, is_stale: bool) -> None:
    """Eight elements here and there that one run leaves alone are no part of a weight; two rows are."""
    old = np.linspace(1.0, 2.0, 256).reshape(16, 16)
    reference, target = old + 0.1, old + 0.1
    target.reshape(-1)[5::32] = old.reshape(-1)[5::32]
    target[rows] = old[rows]
    assert (stale_elements(target, reference, old) is not None) is is_stale


def stepped(folder: Path, size: float, *, put_back: bool = False) -> Path:
    """A bias whose gradient is of this size; ``put_back``: its update is undone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bias = model[0].bias
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        (model(X.float()) - size * bias.mean()).square().mean().backward()
        bias.grad.mul_(size)
        held = bias.detach().clone()
        if put_back:
            optimizer.register_step_post_hook(lambda *_: bias.data.copy_(held))
        optimizer.step()
    return folder


@pytest.mark.parametrize(("size", "put_back", "lost"), [(1e-8, False, False), (0.5, True, True)])
def test_a_gradient_too_small_to_move_a_weight_loses_no_update(
    size: float, put_back: bool, lost: bool, tmp_path: Path
) -> None:
    """That of an attention's key bias is rounding: it moves the weight in one run, and not in the other."""
    small = stepped(tmp_path / "small", size, put_back=put_back)
    found = said(small, stepped(tmp_path / "plain", 1.0), tmp_path)
    assert (Stages.UPDATE_LOST in {one.headline.code for one in found.findings}) is lost


def by_hand(folder: Path, rate: float, kept: int = -1) -> Path:
    """Signs of gradients, by a loop; the norm's weights, all 1, move by a step at most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8)).bfloat16()
    values = ["module", "parameter", "labels", "configuration"]
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=values):
        for _ in range(2):
            model(X).float().square().mean().backward()
            with torch.no_grad():
                for at, weight in enumerate(model.parameters()):
                    if at != kept:
                        weight.sub_(rate * weight.grad.sign())
            model.zero_grad()
    return folder


@pytest.mark.parametrize(("rate", "kept", "lost"), [(0.0012, -1, False), (0.003, 0, True)])
def test_smaller_updates_of_all_weights_are_not_lost_where_they_are_below_half_a_step(
    rate: float, kept: int, lost: bool, tmp_path: Path
) -> None:
    found = said(by_hand(tmp_path / "target", rate, kept), by_hand(tmp_path / "reference", 0.003), tmp_path)
    assert (Stages.NOT_COPIED_BACK in {one.headline.code for one in found.findings}) is lost
