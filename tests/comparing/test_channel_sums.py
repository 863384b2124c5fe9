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
    bounds = [
        rounding_bound(rows, measure(rows), 1.0, single_calls=alone).relative for alone in (False, True)
    ]
    names = [rows.match.words.name[code] for code in rows.of_call("name").tolist()]
    of_norm = [name == "bn" for name in names] & rows.phase_is("forward") & rows.slot_starts("output")
    later = [name == "last" for name in names] & rows.phase_is("forward") & rows.slot_starts("output")
    assert (bounds[1][of_norm] > 2 * bounds[0][of_norm]).all()
    assert (bounds[1][later] == bounds[0][later]).all()


class Pooled(nn.Module):
    """A batch norm before a pooling over all places, whose gradient is one number a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.fc = nn.BatchNorm2d(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.bn(x)).mean((2, 3))).pow(2).mean()


def pooled(folder: Path, *, channels_last: bool = False, size: int = 16, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Pooled()
    x = torch.randn(8, 16, size, size)
    if channels_last:
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )
    model.bn.bias.register_hook(lambda gradient: gradient * factor)
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        model(x).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    return folder


@pytest.mark.parametrize("size", [16, 32, 64])
def test_gradients_that_are_equal_at_all_places_agree(size: int, tmp_path: Path) -> None:
    pair = (
        pooled(tmp_path / "target", channels_last=True, size=size),
        pooled(tmp_path / "reference", size=size),
    )
    assert compare(*pair).exit_code == 0


def test_a_factor_of_such_a_gradient_differs(tmp_path: Path) -> None:
    """Eight thousand roundings of float32, ten times what is allowed of 2,048 rows of 256 places."""
    pair = pooled(tmp_path / "target", factor=1 + 2.0**-10), pooled(tmp_path / "reference")
    assert compare(*pair).exit_code == 1


@pytest.mark.parametrize(("samples", "size"), [(4, 8), (8, 16), (8, 32), (4, 64), (32, 32)])
def test_sums_of_equal_numbers_are_off_by_the_root_of_rows_times_places(samples: int, size: int) -> None:
    """Half of the places of each sample have its number, the others 0: in roundoffs, of the whole sum."""
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(samples, 16, size, size)
        shape = (samples, 16, 1, 1)
        gradient = (torch.rand(shape) + 0.1) * (torch.rand(x.shape) > 0.5)
        biases = []
        for dtype in (torch.float64, torch.float32):
            bn = nn.BatchNorm2d(16).to(dtype)
            given = x.to(dtype).contiguous(memory_format=torch.channels_last)
            bn(given).backward(gradient.to(dtype).contiguous(memory_format=torch.channels_last))
            biases.append(bn.bias.grad.double())
        error = float((biases[1] - biases[0]).norm() / biases[0].norm()) / 2**-24
        assert error <= (samples * size**4) ** 0.5 / 4


class Convolved(nn.Module):
    """A transposed convolution, whose bias is summed one row after another, beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.fc = nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(self.up(x)).permute(0, 2, 3, 1)).pow(2).mean()


@pytest.mark.parametrize("size", [4, 16, 64])
@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_gradients_of_a_convolution_are_off_by_the_root_of_their_rows(size: int, offset: float) -> None:
    """In roundoffs of the operands' size, in one memory format against the other."""
    torch.manual_seed(0)
    up, x = nn.ConvTranspose2d(16, 16, 4, 2, 1), torch.randn(8, 16, size, size)
    arriving = torch.randn(8, 16, 2 * size, 2 * size) + offset
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        up.zero_grad()
        up(x.contiguous(memory_format=memory_format)).backward(
            arriving.contiguous(memory_format=memory_format)
        )
        found.append([p.grad.double().clone() for p in (up.weight, up.bias)])  # type: ignore[union-attr]
    rows = 8 * (2 * size) ** 2
    scales = [float(arriving.norm() * x.norm()) / rows**0.5, float(arriving.norm())]
    for one, other, scale in zip(*found, scales, strict=True):
        assert float((one - other).norm()) <= 2**-24 * rows**0.5 * max(scale, float(other.norm()))


def test_measured_noise_leaves_room_for_a_convolution_s_gradients_alone(tmp_path: Path) -> None:
    from trueup.comparing.metrics import measure
    from trueup.comparing.rows import rows_from_match
    from trueup.comparing.tolerance import rounding_bound
    from trueup.matching import match_step
    from trueup.store import Trace

    torch.manual_seed(0)
    model, x = Convolved(), torch.randn(8, 4, 8, 8)
    with trueup.Tracer(tmp_path, level="L0", steps="0"):
        model(x).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    tables = Trace(tmp_path).read(0, 0)
    rows = rows_from_match(tables, tables, match_step(tables, tables))
    unvaried = rounding_bound(rows, measure(rows), 1.0).unvaried
    names = [rows.match.words.name[code] for code in rows.of_call("name").tolist()]
    gradients = rows.phase_is("param_grad")
    of_up = [name.startswith("up.") for name in names] & gradients
    assert of_up.any()
    assert unvaried[of_up] == pytest.approx(2**-24 * (8 * 16 * 16 / 16) ** 0.5)
    assert (unvaried[~of_up] == 0).all()
