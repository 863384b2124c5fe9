"""The dtype that equal gradients of microbatches are added up in, from what the optimizer gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.comparing.traces import Recorder
from trueup.comparing.coarse_sums import Added, added_up
from trueup.comparing.run import compare
from trueup.numerics.dtypes import rounded_to
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

PARTS = [
    (torch.randn(16, 32, generator=torch.Generator().manual_seed(n)) * 2.0**-n).to(torch.bfloat16).float()
    for n in range(4)
]


def in_float32(parts: list[Tensor]) -> Tensor:
    return sum(parts, torch.zeros(16, 32))


def in_bfloat16(parts: list[Tensor]) -> Tensor:
    total = torch.zeros(16, 32, dtype=torch.bfloat16)
    for part in parts:
        total += part
    return total.float()


def once(parts: list[Tensor]) -> Tensor:
    return in_float32(parts).to(torch.bfloat16).float()


def run(folder: Path, total: Tensor, *, master: bool = True, parts: list[Tensor] = PARTS) -> Path:
    """Gradients of microbatches of one weight, and what the optimizer gets, of it or of a master."""
    out = Recorder()
    weight, other = out.call("parameter", "up.weight"), out.call("parameter", "down.weight")
    for number, part in enumerate(parts):
        out.record(weight, "param_grad", "local", part.numpy(), microbatch=number)
        out.record(other, "param_grad", "local", part.flip(0).numpy() ** 2, microbatch=number)
    held = out.call("parameter", "AdamW.group0.0") if master else weight
    out.record(held, "param_grad", "clipped", total.numpy())
    out.write(folder, values=True)
    return folder


def verdict(folder: Path, target: Tensor, reference: Tensor, **more: object) -> Verdict:
    runs = (run(folder / "target", target, **more), run(folder / "reference", reference, **more))
    return compare(*runs).verdict


@pytest.mark.parametrize("master", [True, False], ids=["of masters", "of the weights"])
@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize("coarse", [in_bfloat16, once], ids=["each", "once"])
def test_sums_in_a_coarse_dtype(coarse: object, side: str, master: bool, tmp_path: Path) -> None:
    pair = [0.37 * coarse(PARTS), 0.37 * in_float32(PARTS)]
    found = verdict(tmp_path, *(pair if side == "target" else pair[::-1]), master=master)
    assert found.headline.code is VerdictCode.SUMS_IN
    other = "reference" if side == "target" else "target"
    assert (found.headline.place(side), found.headline.place(other)) == ("bfloat16", "float32")
    (told,) = [one for one in found.evidence if one.code is EvidenceCode.SUM_DTYPES]
    assert bool(told.number(f"{side}_once")) is (coarse is once)


@pytest.mark.parametrize(
    ("target", "reference", "why"),
    [
        (in_float32(PARTS[::-1]), in_float32(PARTS), "another order"),
        (in_float32(PARTS) / 3 * 3.0001, in_float32(PARTS), "another factor"),
        (in_float32(PARTS).to(torch.bfloat16).float() / 3, in_bfloat16(PARTS[::-1]) / 3, "no order is known"),
    ],
)
def test_what_is_no_coarser_sum(target: Tensor, reference: Tensor, why: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, target, reference).headline.code is not VerdictCode.SUMS_IN, why


def test_other_gradients_tell_nothing_of_a_sum(tmp_path: Path) -> None:
    others = [part * (1 + 2**-9) for part in PARTS]
    runs = (
        run(tmp_path / "target", in_bfloat16(PARTS)),
        run(tmp_path / "reference", in_float32(PARTS), parts=others),
    )
    assert compare(*runs).verdict.headline.code is not VerdictCode.SUMS_IN


def test_one_microbatch_is_no_sum(tmp_path: Path) -> None:
    found = verdict(tmp_path, once(PARTS), in_float32(PARTS), parts=PARTS[:1])
    assert found.headline.code is not VerdictCode.SUMS_IN


def test_equal_sums_are_equal(tmp_path: Path) -> None:
    assert verdict(tmp_path, in_bfloat16(PARTS), in_bfloat16(PARTS)).outcome is Outcome.AGREE


@pytest.mark.parametrize("factor", [1.0, 0.1, 1 / 3])
def test_each_way_of_adding(factor: float) -> None:
    parts: list[NDArray[np.float64]] = [part.double().numpy() for part in PARTS]
    given = [in_float32(PARTS), in_bfloat16(PARTS), once(PARTS)]
    found = [added_up((factor * one).double().numpy(), parts) for one in given]
    assert found == [Added("float32"), Added("bfloat16"), Added("bfloat16", once=True)]
    assert added_up(rounded_to(0.3 * np.sum(parts, axis=0), "bfloat16"), parts) is None


def test_gradients_of_one_microbatch_are_parts_of_a_weight(tmp_path: Path) -> None:
    """Of a weight that the other run has in three, of three shapes."""
    runs = []
    for name, total in (("target", in_bfloat16(PARTS)), ("reference", in_float32(PARTS))):
        out = Recorder()
        weight, held = out.call("parameter", "up.weight"), out.call("parameter", "AdamW.group0.0")
        for part in (PARTS[0], PARTS[1][:8]):
            out.record(weight, "param_grad", "local", part.numpy(), microbatch=0)
        out.record(held, "param_grad", "clipped", total.numpy())
        out.write(tmp_path / name, values=True)
        runs.append(tmp_path / name)
    assert compare(*runs).verdict.headline.code is not VerdictCode.SUMS_IN


def test_a_vector_of_all_weights_is_no_sum_of_one(tmp_path: Path) -> None:
    """One run's master lies in a longer vector: nothing is said of how it was summed, and nothing fails."""
    flat = torch.cat([in_float32(PARTS).flatten(), torch.ones(7)])
    assert verdict(tmp_path, flat, in_float32(PARTS)).headline.code is not VerdictCode.SUMS_IN
