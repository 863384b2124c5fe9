"""Why a record has no verdict, or one of its own, checked of steps that were written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.comparing.test_noise import measured
from tests.comparing.test_sentences import drawn, frame_of
from tests.comparing.traces import Recorder, network
from tests.diagnosing.made_steps import facts_of
from trueup.comparing.result import Comparison, plain
from trueup.comparing.run import compare, compare_sources
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS
from trueup.reporting.comparison.advice import causes_of
from trueup.reporting.comparison.result import ComparisonResult
from trueup.store import StepTables, Trace
from trueup.store.gaps import Gap
from trueup.types.codes import EvidenceCode as Is
from trueup.types.codes import NextCode, NoteCode, SuspectCode, ToleranceCode
from trueup.types.codes import RecordCode as Code
from trueup.types.reason import reason, reason_from_json
from trueup.wording import advice, document, text


def of_two(folder: Path, target: Recorder, reference: Recorder) -> Comparison:
    target.write(folder / "t")
    reference.write(folder / "r")
    return compare(folder / "t", folder / "r")


def told(found: Comparison, code: Code) -> list[dict[str, Any]]:
    return [row for row in frame_of(found) if row["reason_code"] == code.value]


@pytest.mark.parametrize(("read", "same"), [(False, False), (True, False), (False, True)])
def test_a_view_that_nothing_reads(tmp_path: Path, read: bool, same: bool) -> None:
    """Memory that is shown and left alone, and memory that is multiplied afterwards."""
    sides = []
    for seed in ("left", "left" if same else "other"):
        out = Recorder()
        root = out.call("module", "", type_="Net")
        shown = drawn(seed, 6, 6)
        out.api(root, "torch.Tensor.view", shown)
        if read:
            call = out.call("api", "torch.matmul", root)
            out.record(call, "forward", "input.0", shown)
            out.record(call, "forward", "output.0", shown @ shown.T)
        out.record(root, "forward", "output.0", drawn("out"))
        sides.append(out)
    rows = told(of_two(tmp_path, *sides), Code.NOT_READ)
    assert [row["name"] for row in rows] == ([] if read or same else ["torch.Tensor.view"])


@pytest.mark.parametrize(
    ("off", "dtype"), [(0.0, "float16"), (1e-6, "float16"), (3e-4, "float16"), (3e-4, "float32")]
)
def test_a_mean_of_tokens(tmp_path: Path, off: float, dtype: str) -> None:
    """Of equal logits in a coarse dtype: what rounding each token explains is a small part of their mean."""
    sides = []
    for factor in (1 + off, 1.0):
        out = Recorder()
        root = out.call("module", "", type_="Net")
        out.record(root, "forward", "input.0", np.arange(512).reshape(4, 128))
        out.record(root, "forward", "output.0", drawn("logits", 4, 128, 50).astype(dtype))
        out.record(out.call("loss", "loss"), "loss", "value", np.array(3.9 * factor, np.float32))
        sides.append(out)
    found = of_two(tmp_path, *sides)
    rows = told(found, Code.MEAN_OF_TOKENS)
    assert len(rows) == (off == 3e-4 and dtype == "float16")
    for row in rows:
        assert row["slot"] == "value"
        said = reason_from_json(json.loads(row["reason_facts"]))
        assert said == reason(Code.MEAN_OF_TOKENS, tokens=512.0, dtype="float16")
        before = [one for one in frame_of(found) if one["order"] < row["order"]]
        assert all(one["bits_equal"] for one in before)


def test_a_coarser_dtype_with_an_effect(tmp_path: Path) -> None:
    """Errors of a coarse record that later records in float32 show, many times what they may."""
    seen = []
    for size in (0.0, 1e-7, 4e-4, 8e-4):
        for coarse in (True, False):

            def change(
                site: str, array: np.ndarray[Any, Any], size: float = size, coarse: bool = coarse
            ) -> Any:
                if site == "linear.0" and coarse:
                    return array.astype(np.float16)
                later = not site.startswith(("param", "new", "input", "in.0", "linear.0"))
                return array * np.float32(1 + size) if later else array

            rows = told(
                of_two(tmp_path / f"{size}{coarse}", network(change), network()),
                Code.DTYPE_DIFFERS_WITH_EFFECT,
            )
            assert len(rows) <= (coarse and size > 1e-6)
            for row in rows:
                seen.append(size)
                assert (row["target_dtype"], row["reference_dtype"]) == ("float16", "float32")
                assert (row["name"], row["status"]) == ("torch.nn.functional.linear", "origin")
                assert row["rel_l2"] > row["tolerance"]
    assert seen


class Changed(Trace):
    """A trace as another source would give it."""

    def __init__(self, path: Path, change: Callable[[StepTables], StepTables]) -> None:
        super().__init__(path)
        self._change = change

    def read(self, step: int, rank: int) -> StepTables:
        return self._change(super().read(step, rank))


GAPS = {
    Code.ONE_GRADIENT_DUMPED: Gap(phase="param_grad", slot="clipped", code=Code.ONE_GRADIENT_DUMPED),
    Code.KEYWORD_GRADIENTS_NOT_DUMPED: Gap(
        phase="backward", slot=r"input\.[a-z].*", code=Code.KEYWORD_GRADIENTS_NOT_DUMPED
    ),
}


@pytest.mark.parametrize("code", sorted(GAPS))
def test_what_a_source_never_holds(tmp_path: Path, code: Code) -> None:
    """Only of records that the other trace lacks and its source does not keep."""
    target = network()
    calls = target.step.calls["name"]
    slots = {
        Code.ONE_GRADIENT_DUMPED: ("param_grad", "clipped"),
        Code.KEYWORD_GRADIENTS_NOT_DUMPED: ("backward", "input.mask"),
    }
    phase, slot = slots[code]
    name = "layers.0.weight" if phase == "param_grad" else "layers.0"
    target.record(calls.index(name), phase, slot, drawn("more", 8, 8))
    target.write(tmp_path / "t")
    network().write(tmp_path / "r")
    for gap in (True, False):
        other = Changed(tmp_path / "r", lambda of, gap=gap: replace(of, gaps=(GAPS[code],) if gap else ()))  # type: ignore[misc]
        rows = told(compare_sources(Trace(tmp_path / "t"), other), code)
        assert [(row["name"], row["slot"]) for row in rows] == ([(name, slot)] if gap else [])


def test_statistics_without_a_norm(tmp_path: Path) -> None:
    """Of values that differ, where neither a norm nor both extremes are there, nothing may be allowed."""
    kept = HAS_STATISTICS | HAS_DIGEST
    network(lambda site, array: array * np.float32(1 + 1e-6) if site == "out.1" else array, want=kept).write(
        tmp_path / "t"
    )
    network(want=kept).write(tmp_path / "r")
    seen = []
    for lost in (("l2_norm", "minimum", "maximum"), ("l2_norm", "minimum"), ()):

        def without(of: StepTables, lost: tuple[str, ...] = lost) -> StepTables:
            gone = (pl.lit(None, pl.Float64).alias(name) for name in lost if name in of.summaries.columns)
            return replace(of, summaries=of.summaries.with_columns(*gone))

        found = compare_sources(Changed(tmp_path / "t", without), Changed(tmp_path / "r", without))
        for row in told(found, Code.NO_NORM):
            seen.append(lost)
            assert {"l2_norm", "minimum"} <= set(lost)
            assert not row["bits_equal"]
            assert row["tolerance"] is None or not row["tolerance"] > 0
    assert seen


def test_an_input_and_a_dtype_before_the_first_difference(tmp_path: Path) -> None:
    for more in ("target", "reference", ""):
        sides = {}
        for side in ("target", "reference"):
            out = Recorder()
            root = out.call("module", "", type_="Net")
            out.record(root, "forward", "input.0", drawn("x"))
            if side == more:
                out.record(root, "forward", "input.bias", drawn("bias"))
            inner = out.call("module", "inner", root, "Block")
            out.record(
                inner, "forward", "input.0", drawn("h").astype("float16" if side == "target" else "float32")
            )
            out.record(inner, "forward", "output.0", drawn("y"))
            out.record(root, "forward", "output.0", drawn("z") * np.float32(1.5 if side == "target" else 1))
            sides[side] = out
        found = of_two(tmp_path / (more or "none"), sides["target"], sides["reference"])
        facts = facts_of(found.verdict.evidence, Is.INPUT_OF_ONE_SIDE)
        assert facts == ({"side": more, "name": "bias", "module": ""} if more else None)
        dtypes = facts_of(found.verdict.evidence, Is.DTYPES_DIFFER)
        if dtypes is not None:
            assert dtypes == {"site": "inner · input.0", "target": "float16", "reference": "float32"}


def test_where_tolerances_come_from(tmp_path: Path) -> None:
    reference = measured(tmp_path, 1e-4)
    network().write(tmp_path / "t")
    for path, code in (
        (reference, ToleranceCode.NOISE_FORMULA),
        (tmp_path / "t", ToleranceCode.DTYPE_FORMULA),
    ):
        assert compare(tmp_path / "t", path).content.tolerance.formula.code is code


def test_two_implementations_are_noted(tmp_path: Path) -> None:
    """Other names and other classes of all modules, and of all weights."""
    for renamed in (True, False):
        target = network(layers=6)
        if renamed:
            calls = target.step.calls
            calls["name"] = [
                name.replace("layers.", "h.").replace(".weight", ".w") if at else name
                for at, name in enumerate(calls["name"])
            ]
            calls["type"] = [f"Other{of}" if of else of for of in calls["type"]]
        found = of_two(tmp_path / f"{renamed}", target, network(layers=6))
        noted = facts_of(found.content.notes, NoteCode.ACROSS_IMPLEMENTATIONS)
        assert (noted is not None) is renamed
        assert noted is None or noted["factor"] > 1


PHASES = {
    "param": (SuspectCode.WEIGHT, "weights"),
    "loss": (SuspectCode.LOSS, "labels"),
    "param_grad": (SuspectCode.PARAMETER_GRADIENT, "gradients"),
    "collective": (SuspectCode.COLLECTIVE, "process groups"),
    "optimizer": (SuspectCode.OPTIMIZER, "hyperparameter"),
}


def test_usual_causes_by_phase() -> None:
    for role in ("linear", "other", "norm"):
        for phase, (code, word) in PHASES.items():
            for differing in (set[str](), {"param_grad"}, {"forward"}):
                said = causes_of(role, phase, differing)
                assert said.code is code
                shown = text(said) + (advice(said) or "")
                earlier = phase == "optimizer" and "param_grad" in differing
                assert ("the gradients differ too" in shown) is earlier
                assert ("the gradients agree" in shown) is (phase == "optimizer" and not earlier)
                assert word in shown or earlier
    assert causes_of("other", "forward", set()).code is SuspectCode.FORWARD
    assert causes_of("residual", "forward", set()).code is SuspectCode.FORWARD
    assert causes_of("linear", "forward", set()).code is not SuspectCode.FORWARD
    for code, written, shown in (
        (NextCode.READ_REPORT, NextCode.READ_WRITTEN_REPORT, "read out/report.html at this site"),
        (NextCode.READ_UNDECIDED, NextCode.READ_WRITTEN_UNDECIDED, "read out/report.html: the unmatched"),
    ):
        assert text(reason(written, page="out/report.html")).startswith(shown)
        following = reason(code, target="t", reference="r", command="python train.py", step=0)
        held: Any = {"verdict": plain(document({"next": following}))}
        made = ComparisonResult(summary=held, records=pl.LazyFrame(), precision=pl.LazyFrame())
        assert made.next_step("out/report.html") == ("", text(reason(written, page="out/report.html")))
        assert made.next_step("") != made.next_step("out/report.html")
