"""What one run computes in another dtype leads the verdict where it explains what differs, not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.adapters.torch.reading import capture
from tests.models.mixed_gpt import Program, train
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

Compared = Callable[..., Comparison]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    @cache
    def captured(program: Program, level: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        capture(folder / "trace", lambda: train(program), level=level)
        return folder / "trace"

    def pair(target: Program, reference: Program, level: str = "mix") -> Comparison:
        return compare(captured(target, level), captured(reference, level))

    return pair


BASE = Program()
LOWER = {
    "autocast": (Program(autocast="bfloat16"), "bfloat16", "linear"),
    "autocast-float16": (Program(autocast="float16"), "float16", "linear"),
    "model": (Program(dtype="bfloat16"), "bfloat16", None),
    "norm": (Program(norm="bfloat16"), "bfloat16", "Norm"),
    "norm-float16": (Program(norm="float16"), "float16", "Norm"),
    "loss": (Program(loss="bfloat16"), "bfloat16", "cross_entropy"),
}


@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize("case", LOWER)
def test_the_dtype_is_the_first_thing_said(case: str, side: str, compared: Compared) -> None:
    lower, dtype, named = LOWER[case]
    pair = (lower, BASE) if side == "target" else (BASE, lower)
    verdict = compared(*pair).verdict
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    sides = {name: verdict.headline.place(name) for name in ("target", "reference")}
    assert sides.pop(side) == dtype
    assert list(sides.values()) == ["float32"]
    assert named is None or named in verdict.headline.place("functions")
    assert verdict.headline.place("autocast") == (side if case.startswith("autocast") else "")
    assert bool(verdict.headline.number("weights")) is (case == "model")
    codes = [one.code for one in verdict.evidence]
    assert EvidenceCode.NONE_BEYOND in codes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_cast_that_one_side_alone_has(dtype: str, side: str, compared: Compared) -> None:
    lower = Program(embedding=dtype)
    verdict = compared(*((lower, BASE) if side == "target" else (BASE, lower))).verdict
    assert verdict.headline.code is VerdictCode.CASTS_TO
    assert (verdict.headline.place("side"), verdict.headline.place(side)) == (side, dtype)
    assert verdict.owner == ""


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_at_other_levels(level: str, compared: Compared) -> None:
    verdict = compared(Program(autocast="bfloat16"), BASE, level).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    assert {"Linear", "linear"} & set(verdict.headline.place("functions"))


def test_what_the_dtype_does_not_explain_is_named_beside_it(compared: Compared) -> None:
    verdict = compared(Program(autocast="bfloat16", shift=3.0), BASE).verdict
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    (beyond,) = [one for one in verdict.evidence if one.code is EvidenceCode.FIRST_BEYOND]
    assert "blocks.1.norm" in beyond.place("site")


def test_a_fault_before_the_first_cast_stays_the_first(compared: Compared) -> None:
    verdict = compared(Program(norm="bfloat16", early=1.01), BASE).verdict
    assert verdict.headline.code in (VerdictCode.FIRST_DIVERGENCE, VerdictCode.ARGUMENT_DIFFERS)
    assert verdict.owner == ""


def test_a_fault_beside_a_cast_of_no_effect_stays_the_first(compared: Compared) -> None:
    """Both runs round to bfloat16; that one of them keeps its norms in float32 changes no more than that."""
    lower = Program(dtype="bfloat16", norm="float32")
    verdict = compared(
        Program(dtype="bfloat16", norm="float32", shift=3.0), Program(dtype="bfloat16")
    ).verdict
    assert verdict.owner is not None
    assert verdict.owner.startswith("blocks.1")
    assert compared(lower, Program(dtype="bfloat16")).verdict.outcome is Outcome.AGREE


BENIGN = {
    "float32": BASE,
    **{f"small-{seed}": Program(rows=2, seed=seed) for seed in range(1, 6)},
    "long": Program(length=64, seed=2),
    "autocast": Program(autocast="bfloat16"),
    "autocast-long": Program(autocast="bfloat16", length=64, seed=3),
    "model": Program(dtype="bfloat16"),
}


@pytest.mark.parametrize("case", BENIGN)
def test_another_attention_kernel_is_no_difference(case: str, compared: Compared) -> None:
    """A fused query, key and value: the key's bias has no gradient in exact arithmetic, only rounding."""
    program = BENIGN[case]
    verdict = compared(replace(program, eager=True), program).verdict
    assert verdict.outcome is Outcome.AGREE, verdict
