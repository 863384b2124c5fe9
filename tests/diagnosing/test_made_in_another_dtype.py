"""Features that an encoder without gradients made in a coarse dtype, told from others that differ by more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare_sources  # noqa: E402
from trueup.diagnosing.stages import data  # noqa: E402
from trueup.diagnosing.stages.context import Context  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import EvidenceCode  # noqa: E402

Encode = Callable[[nn.Module, Tensor], Tensor]


class Encoder(nn.Module):
    """Of pictures; it is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 96), nn.Linear(96, 24)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(pictures)))


def plain(encoder: nn.Module, pictures: Tensor) -> Tensor:
    return encoder(pictures)


def in_bfloat16(encoder: nn.Module, pictures: Tensor) -> Tensor:
    return encoder.bfloat16()(pictures.bfloat16()).float()


def in_float16(encoder: nn.Module, pictures: Tensor) -> Tensor:
    return encoder.half()(pictures.half()).float()


def of_other_pictures(encoder: nn.Module, pictures: Tensor) -> Tensor:
    return encoder.bfloat16()((1.5 * pictures).bfloat16()).float()


def shifted(encoder: nn.Module, pictures: Tensor) -> Tensor:
    return encoder(pictures) + 0.003 * torch.sin(torch.arange(24.0))


def trained(folder: Path, encode: Encode) -> Path:
    """Features are made one step ahead, the first before the capture begins."""
    torch.manual_seed(0)
    encoder, model = (
        Encoder().eval().requires_grad_(False),
        nn.Sequential(nn.Linear(24, 16), nn.Linear(16, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def features_of(step: int) -> Tensor:
        with torch.no_grad():
            return encode(encoder, torch.randn(8, 48, generator=torch.Generator().manual_seed(step)))

    features = features_of(0)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            F.mse_loss(model(features), torch.ones(8, 4)).backward()
            features = features_of(step + 1)
            optimizer.step()
            optimizer.zero_grad()
    return folder


def dtypes(tmp_path: Path, target: Encode, reference: Encode = plain) -> dict[str, object]:
    """Those of the call that is named for the model's input, if one is."""
    sides = [
        Trace(trained(tmp_path / name, encode)) for name, encode in (("run", target), ("clean", reference))
    ]
    context = Context(target=sides[0], reference=sides[1], comparison=compare_sources(*sides))
    said = data._made_in_another_dtype(context.pair(), ("microbatch 0", "input.0"), context)
    assert all(one.code is EvidenceCode.DTYPES_DIFFER for one in said)
    return {side: said[0].place(side) for side in ("target", "reference")} if said else {}


@pytest.mark.parametrize(("encode", "dtype"), [(in_bfloat16, "bfloat16"), (in_float16, "float16")])
def test_features_made_in_a_coarser_dtype(encode: Encode, dtype: str, tmp_path: Path) -> None:
    assert dtypes(tmp_path, encode) == {"target": dtype, "reference": "float32"}


def test_the_reference_may_be_the_coarser_one(tmp_path: Path) -> None:
    assert dtypes(tmp_path, plain, in_bfloat16) == {"target": "float32", "reference": "bfloat16"}


@pytest.mark.parametrize(
    ("target", "reference"),
    [(of_other_pictures, plain), (shifted, plain), (in_bfloat16, in_bfloat16)],
    ids=["more than rounding", "in one dtype", "alike"],
)
def test_other_features_are_no_matter_of_dtypes(target: Encode, reference: Encode, tmp_path: Path) -> None:
    assert dtypes(tmp_path, target, reference) == {}
