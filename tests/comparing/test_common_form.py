"""Masks in other forms, and what is repeated along a dimension, are the same; other masks are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.traces import Recorder
from trueup.comparing.options import CompareOptions
from trueup.comparing.run import compare
from trueup.types.status import Status

LOWEST = float(np.finfo(np.float32).min)
FORMS = {
    "lowest": lambda visible: np.where(visible, 0.0, LOWEST).astype(np.float32),
    "half of the lowest": lambda visible: np.where(visible, 0.0, LOWEST / 2).astype(np.float32),
    "infinite": lambda visible: np.where(visible, 0.0, -np.inf).astype(np.float32),
    "-1e9": lambda visible: np.where(visible, 0.0, -1e9).astype(np.float32),
    "float16": lambda visible: np.where(visible, 0.0, -65504.0).astype(np.float16),
    "float64": lambda visible: np.where(visible, 0.0, np.finfo(np.float64).min),
    "boolean": lambda visible: np.ascontiguousarray(visible),
}
AGREE = {Status.EQUAL.value, Status.WITHIN_NOISE.value}


def causal(*, length: int = 9, padding: int = 0) -> NDArray[np.bool_]:
    visible = np.broadcast_to(np.tril(np.ones((length, length), bool)), (2, 1, length, length)).copy()
    visible[-1, ..., length - padding :] = False
    return visible


def with_input(array: NDArray[Any]) -> Recorder:
    out = Recorder()
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", np.ones((2, 9), np.float32))
    attention = out.call("module", "attn", root, "Attention")
    out.record(attention, "forward", "input.mask", array)
    out.record(attention, "forward", "output.0", np.ones((2, 9), np.float32))
    loss = out.call("loss", "loss")
    out.record(loss, "loss", "value", np.float32([2.0])[0:1])
    return out


def judged(
    folder: Path,
    target: NDArray[Any],
    reference: NDArray[Any],
    *,
    values: bool = True,
    want: int | None = None,
) -> dict[str, Any]:
    for name, array in (("target", target), ("reference", reference)):
        with_input(array).write(folder / name, values=values)
    result = compare(folder / "target", folder / "reference", options=CompareOptions())
    (row,) = result.frame().filter(_is_mask()).to_dicts()
    return row


def _is_mask() -> Any:
    import polars as pl

    return pl.col("slot").cast(pl.String) == "input.mask"


@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("reference", FORMS)
def test_forms_of_one_mask_agree(tmp_path: Path, target: str, reference: str, values: bool) -> None:
    visible = causal(padding=3)
    row = judged(tmp_path, FORMS[target](visible), FORMS[reference](visible), values=values)
    assert str(row["status"]) in AGREE, row


@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
@pytest.mark.parametrize(
    ("target", "reference"), [("boolean", "lowest"), ("infinite", "-1e9"), ("lowest", "lowest")]
)
def test_one_more_hidden_element_differs(tmp_path: Path, target: str, reference: str, values: bool) -> None:
    row = judged(
        tmp_path, FORMS[target](causal(padding=3)), FORMS[reference](causal(padding=2)), values=values
    )
    assert str(row["status"]) not in AGREE, row


def test_an_inverted_mask_differs(tmp_path: Path) -> None:
    visible = causal()
    assert str(judged(tmp_path, FORMS["boolean"](~visible), FORMS["lowest"](visible))["status"]) not in AGREE


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint8])
def test_zeros_and_ones_are_booleans(tmp_path: Path, kind: type) -> None:
    flags = causal()[:, 0, 5]
    assert str(judged(tmp_path / "same", flags, flags.astype(kind))["status"]) in AGREE
    other = flags.copy()
    other[0, 0] ^= True
    assert str(judged(tmp_path / "other", other, flags.astype(kind))["status"]) not in AGREE


@pytest.mark.parametrize("hidden", [LOWEST, -np.inf, -1e9])
def test_scores_beside_hidden_ones_are_compared(tmp_path: Path, hidden: float) -> None:
    """An error of a thousandth in what is visible is not lost in the lowest numbers of a dtype."""
    scores = np.random.default_rng(0).standard_normal((2, 1, 9, 9)).astype(np.float32)
    masked = np.where(causal(), scores, np.float32(hidden))
    assert str(judged(tmp_path / "same", masked, masked.copy())["status"]) in AGREE
    row = judged(
        tmp_path / "other", np.where(causal(), scores * 1.001, np.float32(hidden)).astype(np.float32), masked
    )
    assert str(row["status"]) not in AGREE
    assert row["rel_l2"] == pytest.approx(0.001, rel=0.5)
    assert row["tolerance"] < 1e-4


@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
@pytest.mark.parametrize("shape", [(1, 9), (9,)])
def test_what_is_repeated_agrees(tmp_path: Path, shape: tuple[int, ...], values: bool) -> None:
    positions = np.arange(9).reshape(shape)
    row = judged(tmp_path / "same", np.broadcast_to(positions, (2, 9)).copy(), positions, values=values)
    assert str(row["status"]) in AGREE, row
    apart = np.broadcast_to(positions, (2, 9)).copy()
    apart[1] += 1
    row = judged(tmp_path / "other", apart, positions, values=values)
    assert str(row["status"]) not in AGREE, row


def test_other_shapes_stay_undecided(tmp_path: Path) -> None:
    row = judged(tmp_path, np.ones((3, 9), np.float32), np.ones((2, 9), np.float32))
    assert str(row["status"]) == Status.UNDECIDED.value


@pytest.mark.parametrize("values", [True, False])
def test_a_view_is_the_same_and_a_transposed_tensor_is_not(tmp_path: Path, values: bool) -> None:
    array = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
    viewed = judged(tmp_path / "viewed", array.reshape(12, 8), array, values=values)
    assert viewed["status"] in AGREE
    turned = np.ascontiguousarray(array.reshape(12, 8).T)
    assert judged(tmp_path / "turned", turned, array, values=values)["status"] == Status.UNDECIDED.value


def test_a_view_of_other_numbers_differs(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
    row = judged(tmp_path, array[::-1].copy().reshape(12, 8), array)
    assert row["status"] in ("propagated", "amplified", "origin")
