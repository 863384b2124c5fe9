"""A batch norm of another memory format sums a channel in another order: the bound holds, and not by far."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402


class Net(nn.Module):
    """A batch norm between two convolutions, smooth so that no rounding is a jump."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(torch.tanh(self.bn(self.stem(x))))).pow(2).mean()


def trained(folder: Path, *, channels_last: bool = False, eps: float = 1e-5, size: int = 24) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    model.bn.eps = eps
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, size, size) + 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        model(x.contiguous(memory_format=torch.channels_last) if channels_last else x).backward()
        optimizer.step()
    return folder


@pytest.mark.parametrize("size", [8, 24, 64])
def test_another_memory_format_agrees(size: int, tmp_path: Path) -> None:
    pair = (
        trained(tmp_path / "target", channels_last=True, size=size),
        trained(tmp_path / "reference", size=size),
    )
    assert compare(*pair).exit_code == 0


def test_a_small_fault_in_another_memory_format_differs(tmp_path: Path) -> None:
    pair = trained(tmp_path / "target", channels_last=True, eps=1.2e-4), trained(tmp_path / "reference")
    assert compare(*pair).verdict.owner == "bn"


@pytest.mark.parametrize("terms", [256, 8_192, 32_768, 200_704])
@pytest.mark.parametrize("offset", [0.0, 1.0, 4.0])
def test_sums_one_after_another_are_off_by_the_root_of_their_number(terms: int, offset: float) -> None:
    """In roundoffs, times the rms of the input over its spread."""
    torch.manual_seed(0)
    x = torch.randn(terms // 64, 16, 8, 8) + offset
    bn = nn.BatchNorm2d(16)
    with torch.no_grad():
        exact, found = bn.double()(x.double()), bn.float()(x.contiguous(memory_format=torch.channels_last))
    steep = float(x.square().mean().sqrt() / x.std())
    error = float((found.double() - exact).norm() / exact.norm()) / 2**-24
    assert error <= terms**0.5 * steep


def test_a_norm_that_is_given_the_reference_s_tensors_may_be_off_by_its_own_sums(tmp_path: Path) -> None:
    """As in a replay: of every call what it sums itself, nothing of those before."""
    from trueup.comparing.metrics import measure
    from trueup.comparing.pairing import StepPair
    from trueup.comparing.rows import rows_from_match
    from trueup.comparing.tolerance import rounding_bound
    from trueup.matching import match_step
    from trueup.store import Trace

    trace = Trace(trained(tmp_path / "run", size=64))
    pair = StepPair(step=0, rank=0, reference_step=0, reference_rank=0)
    tables = trace.read(pair.step, pair.rank)
    rows = rows_from_match(tables, tables, match_step(tables, tables))
    bounds = [rounding_bound(rows, measure(rows), 1.0, alone=alone).relative for alone in (False, True)]
    names = [rows.match.words.name[code] for code in rows.of_call("name").tolist()]
    of_norm = [name == "bn" for name in names] & rows.phase_is("forward") & rows.slot_starts("output")
    later = [name == "last" for name in names] & rows.phase_is("forward") & rows.slot_starts("output")
    assert (bounds[1][of_norm] > 2 * bounds[0][of_norm]).all()
    assert (bounds[1][later] == bounds[0][later]).all()
