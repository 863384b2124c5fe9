"""Gradients that are multiplied by a factor in their own dtype, or rounded to a coarser one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.store.view import ACCUMULATED, step_view  # noqa: E402
from trueup.types.codes import ClippingCode  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402

Change = Callable[[Tensor], Tensor]


def trained(folder: Path, dtype: torch.dtype, change: Change | None = None) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = ["module", "parameter", "labels", "configuration"]
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=values):
        model(torch.randn(8, 16).to(dtype)).float().square().mean().backward()
        for one in model.parameters():
            if change is not None and one.grad is not None:
                one.grad.copy_(change(one.grad))
        optimizer.step()
    return folder


@pytest.mark.parametrize(
    ("dtype", "change", "is_rounded"),
    [
        (torch.bfloat16, lambda grad: grad * 0.3586, False),
        (torch.float32, lambda grad: (grad * 0.3586).bfloat16().float(), True),
    ],
    ids=["scaled in its own dtype", "through a coarser dtype"],
)
def test_a_factor_rounds_in_the_dtype_of_the_gradient(
    dtype: torch.dtype, change: Change, is_rounded: bool, tmp_path: Path
) -> None:
    runs = trained(tmp_path / "run", dtype, change), trained(tmp_path / "reference", dtype)
    found = diagnose(*runs, output=tmp_path / "out").findings
    codes = {one.headline.code for one in found}
    assert (Stages.ROUNDED in codes) is is_rounded
    assert codes & set(ClippingCode) or is_rounded


LIMIT = 0.01
"""below the norm of every half of the gradients"""


def clipped(
    folder: Path,
    left: str = "",
    counted: bool = False,
    times: float = 1.0,
    dtype: str = "float32",
    limit: float = LIMIT,
) -> Path:
    """Gradients clipped to one norm, but for some weights: those are multiplied, and may count."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = ["module", "parameter", "labels", "configuration"]
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=values):
        model(torch.randn(8, 16).to(kind)).float().square().mean().backward()
        grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        out = [name for name in grads if left and name.startswith(left)]
        norm = torch.stack([g.float().norm() for n, g in grads.items() if counted or n not in out]).norm()
        for name, grad in grads.items():
            grad.mul_(times if name in out else limit / norm)
        optimizer.step()
    return folder


@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize(
    ("counted", "times", "counts"),
    [(False, 1.0, "out"), (True, 1.0, "in"), (False, 0.5, None), (True, 0.99, None)],
    ids=["not in the norm", "in the norm", "halved", "nearly left"],
)
def test_gradients_that_are_not_clipped(
    counted: bool, times: float, counts: str | None, side: str, tmp_path: Path
) -> None:
    """Twins: gradients with a factor of their own."""
    runs = [clipped(tmp_path / "odd", "2.bias", counted, times), clipped(tmp_path / "plain")]
    findings = diagnose(*runs[:: 1 if side == "target" else -1], output=tmp_path / "out").findings
    led = [one.headline for one in findings if one.headline.code is ClippingCode.LEFT_OUT]
    assert [(one.place("side"), one.place("counts")) for one in led] == ([(side, counts)] if counts else [])
    if counts:
        (finding,) = findings
        said = finding.evidence[0]
        assert (said.code, said.number("limit")) == (ClippingCode.OTHERS_CUT, pytest.approx(LIMIT, rel=1e-3))
    else:
        assert findings


@pytest.mark.parametrize(("share", "counts"), [(0.1, "own"), (0.9, "own"), (1.05, "below")])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_groups_that_are_clipped_by_norms_of_their_own(
    share: float, counts: str, side: str, tmp_path: Path
) -> None:
    """A limit between the norms of both leaves the smaller one as it is: it is not said to be unclipped."""
    book = step_view(Trace(clipped(tmp_path / "norm")), 0, 0)
    small = book.norm(book.parameter("2.bias", *ACCUMULATED))
    assert small is not None
    limit, times = share * small, min(1.0, share)
    runs = [
        clipped(tmp_path / "odd", "2.bias", times=times, limit=limit),
        clipped(tmp_path / "plain", limit=limit),
    ]
    findings = diagnose(*runs[:: 1 if side == "target" else -1], output=tmp_path / "out").findings
    led = [one.headline for one in findings if one.headline.code is ClippingCode.LEFT_OUT]
    assert [(one.place("side"), one.place("counts")) for one in led] == [(side, counts)]
    assert findings[0].causes[0].code is ClippingCode.GROUPS_CAUSE


@pytest.mark.parametrize(("times", "is_told"), [(None, False), (1.02, True)])
def test_a_clipping_factor_is_known_to_the_rounding_of_the_gradients(
    times: float | None, is_told: bool, tmp_path: Path
) -> None:
    """In bfloat16 the factor of a few elements is off by a rounding; a twin is off by five."""
    reference = clipped(tmp_path / "plain")
    factor = 1.0 if times is None else times * LIMIT / _norm(tmp_path / "norm")
    run = clipped(tmp_path / "run", "" if times is None else "2.bias", True, factor, "bfloat16")
    coarse = clipped(tmp_path / "coarse", dtype="bfloat16")
    found = diagnose(run, coarse, output=tmp_path / "out").findings
    assert bool(found) is is_told
    mixed = diagnose(coarse, reference, output=tmp_path / "mixed").findings
    assert not [one for one in mixed if one.headline.code in (Stages.SCALED, Stages.CHANGED)]


@pytest.mark.parametrize(("times", "is_told"), [(1.004, False), (1.012, True)])
def test_a_limit_is_known_to_the_rounding_of_the_gradients(
    times: float, is_told: bool, tmp_path: Path
) -> None:
    """The factor of all gradients is worked out in bfloat16 too; a limit a hundredth larger is another."""
    runs = [
        clipped(tmp_path / name, dtype="bfloat16", limit=limit)
        for name, limit in (("run", times * LIMIT), ("plain", LIMIT))
    ]
    codes = {one.headline.code for one in diagnose(*runs, output=tmp_path / "out").findings}
    assert (ClippingCode.NORM_DIFFERS in codes) is is_told


def _norm(folder: Path) -> float:
    """Of all gradients in bfloat16."""
    book = step_view(Trace(clipped(folder, "0.", True, 1.0, "bfloat16")), 0, 0)
    held = (book.norm(book.parameter(name, *ACCUMULATED)) or 0.0 for name in book.parameters)
    return math.sqrt(sum(one**2 for one in held))
