"""What ranks exchange for the loss of each token may be shifted otherwise; what they report may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402

WORDS, ROWS, LENGTH = 20, 4, 6


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """One process: what it exchanges is what it gives."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(ids)))


def trained(folder: Path, *, shift: float = 0.0, reported: float = 1.0) -> Path:
    torch.manual_seed(0)
    model, ids = Net(), torch.randint(WORDS, (ROWS, LENGTH + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        logits = model(ids[:, :-1]) - shift
        own = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
        losses = Summed.apply(logits.exp().sum(-1)).log() - Summed.apply(own)
        loss = losses.mean()
        dist.all_reduce(torch.stack([loss.detach() * reported, torch.tensor(1.0)]))
        loss.backward()
        optimizer.step()
    return folder


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("other", "exit_code"),
    [({"shift": 1.5}, 0), ({"reported": 1.5}, 1), ({"shift": 1.5, "reported": 1.5}, 1)],
    ids=["another shift", "another report", "both"],
)
def test_of_what_is_exchanged_the_shift_alone_is_no_difference(
    other: dict[str, float], exit_code: int, tmp_path: Path
) -> None:
    pair = trained(tmp_path / "target", **other), trained(tmp_path / "reference")
    assert compare(*pair).exit_code == exit_code


class Everywhere(Summed):
    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class SharedNorm(nn.Module):
    """A norm over all rows of all ranks; what is exchanged for the variance depends on ``form``."""

    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.form, self.weight = form, nn.Parameter(torch.ones(width))
        self.register_buffer("spread", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = Everywhere.apply(x.mean((0, 1)))
        if self.form == "squares":
            spread = Everywhere.apply(x.square().mean((0, 1))) - mean.square()
        else:
            spread = Everywhere.apply((x - mean).square().mean((0, 1)))
        if self.form == "unbiased":
            spread = spread * 1.05
        with torch.no_grad():
            self.spread.lerp_(spread * (1.05 if self.form == "kept otherwise" else 1), 0.1)
        return (x - mean) * self.weight * (spread + 1e-5).rsqrt()


def normed(folder: Path, form: str) -> Path:
    torch.manual_seed(0)
    model, ids = Net(), torch.randint(WORDS, (ROWS, LENGTH + 1))
    model.words = nn.Sequential(model.words, SharedNorm(16, form))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor") as tracer:
        for _ in range(2):
            optimizer.zero_grad()
            logits = model(ids[:, :-1])
            nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
            tracer.step()
    return folder


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("forms", "exit_code"),
    [
        (("deviations", "squares"), 0),
        (("unbiased", "squares"), 1),
        (("kept otherwise", "deviations"), 1),
        (("deviations", "deviations"), 0),
    ],
    ids=str,
)
def test_another_form_of_what_a_module_exchanges_is_no_difference(
    forms: tuple[str, str], exit_code: int, tmp_path: Path
) -> None:
    """But what a step leaves in buffers is, be it a thousandth of them, where all else is equal."""
    target, reference = (normed(tmp_path / str(at), form) for at, form in enumerate(forms))
    assert compare(target, reference).exit_code == exit_code
