"""Weight decay before or after the update, in a class of optimizer that the program writes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import StagesCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402


class OwnAdam(torch.optim.Optimizer):
    """``last``: what is updated decays. ``inner``: eps is added before bias is corrected. ``share``: of the
    rate that is taken."""

    def __init__(
        self, params: Any, lr: float, decay: float, *, last: bool, inner: bool = False, share: float = 1.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": decay})
        self.last, self.inner, self.share = last, inner, share

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (first, second), pull = group["betas"], group["lr"] * group["weight_decay"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].mul_(first).add_(p.grad, alpha=1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                top = state["exp_avg"] / (1 - first ** state["step"])
                root = (1 - second ** state["step"]) ** 0.5
                bottom = state["exp_avg_sq"].sqrt()
                bottom = (bottom + group["eps"]) / root if self.inner else bottom / root + group["eps"]
                if not self.last:
                    p.mul_(1 - pull)
                p.sub_(self.share * group["lr"] * top / bottom)
                if self.last:
                    p.mul_(1 - pull)


def groups_of(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


def trained(folder: Path, width: int, warm: bool, own: dict[str, Any] | None) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, 6))
    groups = groups_of(model, 0.1)
    if own is None:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            groups, lr=4e-3, betas=(0.9, 0.98), weight_decay=0.1
        )
    else:
        optimizer = OwnAdam(groups, 4e-3, 0.1, **own)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 2 if warm else 1.0)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            given: Tensor = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
            F.mse_loss(model(given), given[:, :6]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return folder


def order(
    tmp_path: Path, sides: list[dict[str, Any] | None], *, width: int = 24, warm: bool = False
) -> Reason | None:
    run, clean = (trained(tmp_path / str(at), width, warm, own) for at, own in enumerate(sides))
    findings = diagnose(run, clean, output=tmp_path / "out").findings
    said = [one.headline for one in findings if one.stage is Stage.OPTIMIZER]
    return next((one for one in said if one.code is StagesCode.DECAY_ORDER), None)


AFTER = {"last": True}


@pytest.mark.parametrize("warm", [False, True], ids=["first step", "rate 0 first"])
@pytest.mark.parametrize(("width", "inner"), [(24, False), (40, True)])
def test_decay_of_what_was_updated(width: int, inner: bool, warm: bool, tmp_path: Path) -> None:
    said = order(tmp_path, [{**AFTER, "inner": inner}, None], width=width, warm=warm)
    assert said is not None
    assert (said.place("target"), said.place("reference")) == ("after the update", "before it")


def test_the_reference_may_be_the_one(tmp_path: Path) -> None:
    said = order(tmp_path, [None, AFTER])
    assert said is not None
    assert said.place("reference") == "after the update"


@pytest.mark.parametrize(
    "own",
    [
        {"last": False},
        {"last": False, "inner": True},
        {"last": False, "share": 0.9996},
        {"last": True, "share": 0.999},
    ],
    ids=["alike", "eps elsewhere", "a smaller rate for all", "another rate besides"],
)
def test_other_differences_are_no_order_of_decay(own: dict[str, Any], tmp_path: Path) -> None:
    """The third takes less by rate times decay, as decay would, of weights that do not decay too."""
    assert order(tmp_path, [own, None]) is None
