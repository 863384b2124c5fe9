"""What a comparison says of records that one run alone has, of dtypes, noise and captures, checked from what
was written into the traces, without its rules."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.comparing.traces import Recorder, network
from tests.diagnosing.made_steps import facts_of, gradients, run, step
from trueup.comparing.buffers import BufferGaps
from trueup.comparing.coarse_activations import ActivationGap
from trueup.comparing.comparable import traces_noted
from trueup.comparing.counted_rows import CountedRows
from trueup.comparing.first import First, Preceding
from trueup.comparing.ledger import Ledger
from trueup.comparing.microbatches import led_by_microbatches
from trueup.comparing.noise import SCHEMA, NoiseProfile
from trueup.comparing.pairing import _numbers
from trueup.comparing.precision import _note, role_of
from trueup.comparing.program_code import Near, _Pair, _replaced
from trueup.comparing.record_row import JudgedRow
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare
from trueup.comparing.scalars import ScalarPair
from trueup.comparing.updated_copies import UpdatedCopies
from trueup.comparing.verdict import RunPair, verdict_from
from trueup.numerics.summary import HAS_DIGEST, HAS_STATISTICS
from trueup.types.codes import EvidenceCode as Is
from trueup.types.codes import NextCode, NoteCode, RecordCode, StagesCode, ToleranceCode, VerdictCode
from trueup.types.reason import Reason, given, reason
from trueup.types.status import Outcome, Status
from trueup.types.verdict import Verdict
from trueup.wording import text

RANDOM = np.random.default_rng(81)
SIDES = ("target", "reference")


@dataclass
class Program:
    """What one run calls, and what it records of it."""

    modules: dict[str, list[str]] = field(default_factory=dict)
    """module -> functions that it calls"""
    parameters: set[str] = field(default_factory=set)
    phases: set[str] = field(default_factory=set)
    slots: dict[str, set[str]] = field(default_factory=dict)
    """module -> slots of its forward"""

    def recorded(self) -> Recorder:
        out = Recorder()
        for name in sorted(self.parameters):
            out.record(out.call("parameter", name), "param", "value", drawn(name))
        root = out.call("module", "", type_="Net")
        out.record(root, "forward", "input.0", drawn("input"))
        calls = {}
        for name, functions in self.modules.items():
            calls[name] = out.call("module", name, root, "Block")
            for at, function in enumerate(functions):
                out.api(calls[name], function, drawn(f"{name}{function}{at}"))
            for slot in sorted(self.slots[name]):
                out.record(calls[name], "forward", slot, drawn(f"{name}{slot}"))
        out.record(root, "forward", "output.0", drawn("output"))
        if "backward" in self.phases:
            for name, call in calls.items():
                out.record(call, "backward", "output.0", drawn(f"{name}back"))
        return out


def drawn(seed: str, *shape: int) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(zlib.crc32(seed.encode()))
    return generator.standard_normal(shape or (4, 8)).astype(np.float32)


def program() -> Program:
    of = Program(phases={"forward"})
    for name in ("a", "b", "c"):
        if RANDOM.random() < 0.85:
            of.modules[name] = [str(one) for one in RANDOM.permutation(["torch.f", "torch.g", "torch.h"])[:2]]
            of.modules[name].sort()
            of.slots[name] = {slot for slot in ("input.0", "output.0", "output.1") if RANDOM.random() < 0.8}
            of.parameters |= {f"{name}.weight", *([f"{name}.bias"] if RANDOM.random() < 0.7 else [])}
    if RANDOM.random() < 0.7:
        of.phases |= {"backward"}
    return of


def check_alone(why: Reason, has: Program, lacks: Program, side: str, row: dict[str, Any]) -> None:
    """``side`` lacks a record that the other run has."""
    module, name = row["module"], row["name"]
    if why.code is RecordCode.PHASE_NOT_CAPTURED:
        assert why.facts == {"side": side, "phase": row["phase"]}
        assert row["phase"] not in lacks.phases
    elif why.code is RecordCode.NO_SUCH_TENSOR:
        assert row["phase"] == "forward"
        assert why.facts == {"side": side}
        assert row["slot"] not in lacks.slots[name]
    elif why.code is RecordCode.MODULE_UNMATCHED:
        assert why.place("module") == module
        assert module not in lacks.modules
    elif why.code is RecordCode.NO_PARAMETER:
        assert why.facts == {"side": side, "parameter": name}
        assert name not in lacks.parameters
    elif why.code is RecordCode.NOT_CALLED:
        assert why.facts == {"side": side, "call": name}
        assert name not in (lacks.modules if row["kind"] == "module" else lacks.modules[module])
    else:
        assert why.code is RecordCode.OTHER_CALLS, why
        assert set(why.facts["calls"]) <= {*lacks.modules, *(lacks.modules.get(module) or ())}  # type: ignore[arg-type]


def frame_of(found: Comparison) -> list[dict[str, Any]]:
    frame = found.frame()
    text_of = [name for name, kind in frame.schema.items() if kind == pl.Categorical]
    return frame.with_columns(pl.col(text_of).cast(pl.String)).to_dicts()


def test_records_of_one_run_alone(tmp_path: Path) -> None:
    seen: Counter[Any] = Counter()
    for at in range(6):
        programs = [program(), program()]
        for side, one in zip(SIDES, programs, strict=True):
            one.recorded().write(tmp_path / f"{at}" / side)
        found = compare(*(tmp_path / f"{at}" / side for side in SIDES))
        every = frame_of(found)
        for group in found.content.counts.unmatched:
            seen[group.reason.code] += 1
            at_side = SIDES.index(group.side)
            has, lacks = programs[at_side], programs[1 - at_side]
            rows = [
                row
                for row in every
                if (row["module"], row["name"], row["reason_code"])
                == (group.module, group.name, group.reason.code.value)
                and (row[f"{SIDES[1 - at_side]}_record"] is None)
            ]
            assert len(rows) == group.count
            for row in rows:
                check_alone(group.reason, has, lacks, SIDES[1 - at_side], row)
    assert seen.keys() >= {
        RecordCode.PHASE_NOT_CAPTURED,
        RecordCode.NO_SUCH_TENSOR,
        RecordCode.NO_PARAMETER,
        RecordCode.MODULE_UNMATCHED,
        RecordCode.NOT_CALLED,
    }


def test_what_agrees_but_for_phases_of_one_run(tmp_path: Path) -> None:
    """Whole phases that one run has; alike captured it is open, else that tells how to capture."""
    whole, part = network(), network()
    for at in [n for n, phase in enumerate(part.step.records["phase"]) if phase == "backward"][::-1]:
        for column in part.step.records.values():
            del column[at]
    options = {"level": "mix", "task": "statistics"}
    whole.write(tmp_path / "t", options=options)
    for name, manifest, code in (
        ("same", {"options": options}, NextCode.CHECK_TRAINING),
        ("other", {"options": {**options, "backward": False}}, NextCode.CAPTURE_SAME_PHASES),
        ("unknown", {}, NextCode.CAPTURE_SAME_PHASES),
    ):
        part.write(tmp_path / name, **manifest)
        found = compare(tmp_path / "t", tmp_path / name)
        verdict = found.verdict
        assert verdict.headline.code is VerdictCode.AGREE_IN_PART
        assert verdict.evidence[0] == reason(Is.COMPARED_AND_AGREE, compared=found.content.counts.compared)
        assert verdict.evidence[1] == reason(Is.PHASES_NOT_COMPARED, phases=["backward"])
        assert verdict.next is not None
        assert verdict.next.code is code
        assert found.content.counts.by_status[Status.UNMATCHED] == 6
        assert (verdict.outcome is Outcome.UNDECIDED) is (code is NextCode.CHECK_TRAINING)


@pytest.mark.parametrize("want", ["everything", "statistics"])
def test_the_first_record_with_other_bits(tmp_path: Path, want: str) -> None:
    """How many before it are the same, and by how much it differs, or at least."""
    kept = HAS_STATISTICS | HAS_DIGEST if want == "statistics" else 7
    changes: dict[str, Any] = {}

    def nudged(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        changes[site] = array
        if site in ("out.1", "output", "loss"):
            return np.asarray(array.astype(np.float32) * np.float32(1 + 1e-6))
        return array

    network(nudged, want=kept).write(tmp_path / "t")
    network(want=kept).write(tmp_path / "r")
    found = compare(tmp_path / "t", tmp_path / "r")
    rows = frame_of(found)
    first = next(
        at for at, row in enumerate(rows) if row["status"] not in ("equal",) and row["tolerance"] is not None
    )
    facts = facts_of(found.verdict.evidence, Is.FIRST_APART)
    if facts is not None:
        assert facts["site"] == rows[first]["site"]
        assert facts["equal"] == sum(row["status"] == "equal" for row in rows[:first])
        apart = np.linalg.norm(changes["out.1"] * np.float32(1 + 1e-6) - changes["out.1"])
        exact = float(apart / np.linalg.norm(changes["out.1"]))
        assert bool(facts.get("at_least")) is (want == "statistics")
        assert facts["rel_l2"] <= exact * 1.01
    assert found.content.tolerance.formula.code is ToleranceCode.DTYPE_FORMULA


def test_requires_grad(tmp_path: Path) -> None:
    sides = [Recorder(), Recorder()]
    drawn_flags = [RANDOM.choice([True, False, None], 12).tolist() for _ in sides]  # type: ignore[list-item]
    for out, flags in zip(sides, drawn_flags, strict=True):
        root = out.call("module", "", type_="Net")
        for at, flag in enumerate(flags):
            out.record(root, "forward", f"output.{at}", drawn(f"{at}"), requires_grad=flag)
    for side, out in zip(SIDES, sides, strict=True):
        out.write(tmp_path / side)
    notes = compare(*(tmp_path / side for side in SIDES)).content.notes
    apart = sum(a is not None and b is not None and a != b for a, b in zip(*drawn_flags, strict=True))
    expected = None if not apart else {"step": 0, "rank": 0, "records": apart}
    assert facts_of(notes, NoteCode.REQUIRES_GRAD_DIFFERS) == expected


def test_dtypes_of_calls() -> None:
    """Of a call whose dtypes differ: that part differs, known on both sides where any is."""
    dtypes = ("float32", "bfloat16", "")
    for _ in range(400):
        row = {
            f"{side}_{part}_dtypes": str(RANDOM.choice(dtypes))
            for side in SIDES
            for part in ("input", "weight", "output", "stored")
        }
        parts = {
            NoteCode.WEIGHT_DTYPE: "weight",
            NoteCode.INPUT_DTYPE: "input",
            NoteCode.OUTPUT_DTYPE: "output",
            NoteCode.WEIGHT_NOT_CAST: "weight",
        }
        both = {part: [row[f"{side}_{part}_dtypes"] for side in SIDES] for part in parts.values()}
        if all(a == b for a, b in both.values()):
            continue
        said = _note(row)
        own, other = both[parts[said.code]]  # type: ignore[index]
        assert own != other
        known = any(a != b and a and b for a, b in both.values())
        assert not known or (own and other)
        if said.code is not NoteCode.WEIGHT_NOT_CAST:
            assert said.facts == {"target": own, "reference": other}
            assert f"{own or 'not recorded'} (target) vs {other or 'not recorded'} (reference)" in text(said)
    assert role_of("module", "h.0.ln_1", None) == "norm"


def test_noise_of_a_profile() -> None:
    for _ in range(20):
        num = int(RANDOM.integers(1, 30))
        columns = {
            name: RANDOM.choice([0.0, 1e-7, 3e-6, math.nan], num)
            for name in ("repeat", "perturbed", "gain", "bias")
        }
        table = pl.DataFrame({name: columns.get(name, [0] * num) for name in SCHEMA if name in columns})
        said = NoiseProfile(table=table, path=Path("runs/a/noise")).summary()
        for code, name in ((NoteCode.NOISE_REPEATS, "repeat"), (NoteCode.NOISE_PERTURBED, "perturbed")):
            known = columns[name][~np.isnan(columns[name])]
            moved = known[known > 0]
            facts = facts_of(said, code)
            if code is NoteCode.NOISE_REPEATS:
                assert (facts is not None) is bool(len(known))
                assert facts is None or (facts["equal"], facts["total"]) == (
                    len(known) - len(moved),
                    len(known),
                )
            else:
                assert (facts is not None) is bool(len(moved))
                assert facts is None or (facts["moved"], facts["total"]) == (len(moved), len(known))
            if facts is not None and len(moved):
                assert (facts["median"], facts["most"]) == (np.median(moved), moved.max())
        assert facts_of(said, NoteCode.NOISE_PROFILE) == {"num": num, "path": "runs/a/noise"}


def test_numbers_that_are_not_in_both() -> None:
    for _ in range(60):
        here, there, chosen = (set(RANDOM.integers(0, 6, RANDOM.integers(1, 5)).tolist()) for _ in range(3))
        notes: list[Reason] = []
        pairs = _numbers(here, there, frozenset(chosen), None, None, "step", notes)
        assert pairs == [(n, n) for n in sorted(here & there & chosen)]
        absent = sorted(chosen - (here & there))
        facts = facts_of(notes, NoteCode.NOT_IN_BOTH)
        assert facts == ({"what": "step", "numbers": tuple(map(str, absent))} if absent else None)


@pytest.mark.parametrize(("own", "other"), [(1234, 1235), (1234, 1234), (3, -3)])
def test_facts_of_two_captures(tmp_path: Path, own: Any, other: Any) -> None:
    one = step({"w": gradients(1)})
    limits = {"limits": ["functions inside backward are not seen"]}
    notes = traces_noted(
        run(tmp_path / "t", one, seed=own, facts=limits), run(tmp_path / "r", one, seed=other)
    )
    said = [one for one in notes if one.code is NoteCode.MANIFESTS_DIFFER]
    assert len(said) == (own != other and None not in (own, other))
    for one_note in said:
        assert one_note.place("name") == "seed"
        shown = text(one_note).removeprefix("seed: ").removesuffix(" (reference)").split(" (target) vs ")
        assert shown[0] != shown[1]
    limit = reason(NoteCode.CAPTURE_LIMIT, given(limits["limits"][0]), side="target")
    assert [one for one in notes if one.code is NoteCode.CAPTURE_LIMIT] == [limit]


RUNS = RunPair(target="t", reference="r", level="mix", command="python train.py")
PRECEDING = Preceding(equal=3, within=0, exceeding=0)


def first(**columns: Any) -> First:
    row = JudgedRow.from_columns(
        {
            "site": "m · output.0",
            "name": "m",
            "module": "m",
            "phase": "forward",
            "slot": "output.0",
            "kind": "module",
            "status": "different",
            "evidence": "values",
            "confidence": 1.0,
            **columns,
        },
        None,
    )
    return First(
        step=0, rank=0, order=3, row=row, owner="m", before=PRECEDING, arguments=[], argument=None, dtypes=[]
    )


def test_verdicts_over_records_that_agree() -> None:
    """Of each thing that no record shows: what is said of it are its own facts, and where it is not there
    nothing is."""
    ledger = Ledger()
    ledger.compared = 12
    told = {
        Is.BUFFER_DIFFERS: verdict_from(
            ledger,
            [],
            replace(
                RUNS,
                buffers=BufferGaps(
                    initial={
                        "rope.inv_freq": (
                            {"dtype": "bfloat16", "content": "1"},
                            {"dtype": "float32", "content": "2"},
                        )
                    },
                    written=(),
                ),
            ),
        )
    }
    for code, (name, value) in {
        Is.ACTIVATIONS: ("activation", ActivationGap(at=first(), target="gelu", reference="silu", numbers=7)),
        Is.ROWS_OF_ONE_SIDE: ("counted", CountedRows(at=first(), target=5, reference=3, total=9, order=2)),
        Is.UPDATES_COPIES: (
            "copies",
            UpdatedCopies(side="target", target="float32", reference="bfloat16", weights=("a", "b")),
        ),
    }.items():
        one = Ledger()
        one.compared = 12
        setattr(one, name, value)
        told[code] = verdict_from(one, [], RUNS)
    facts: dict[Any, Any] = {
        Is.BUFFER_DIFFERS: {
            "name": "inv_freq",
            "module": "rope",
            "target": "bfloat16",
            "reference": "float32",
        },
        Is.ACTIVATIONS: {"num": 7, "target": "gelu", "reference": "silu"},
        Is.ROWS_OF_ONE_SIDE: {"target": 5, "reference": 3, "total": 9},
        Is.UPDATES_COPIES: {
            "side": "target",
            "parameters": ("a", "b"),
            "num": 2,
            "target": "float32",
            "reference": "bfloat16",
        },
    }
    for code, verdict in told.items():
        assert verdict.outcome is Outcome.DIFFER
        assert facts_of(verdict.evidence, code) == facts[code]
        precise = code in (Is.BUFFER_DIFFERS, Is.UPDATES_COPIES)
        assert verdict.next is not None
        assert (verdict.next.code is NextCode.ALIGN_PRECISION) is precise
        for other in facts:
            assert other is code or facts_of(verdict.evidence, other) is None
    open_ = Ledger()
    open_.not_bracketed = 4
    assert verdict_from(open_, [], RUNS).headline == reason(VerdictCode.NOT_BRACKETED, records=4, digests=0)
    assert verdict_from(Ledger(), [], RUNS).headline.code is not VerdictCode.NOT_BRACKETED


def test_phases_that_no_record_has_in_common() -> None:
    captured = reason(Is.CAPTURE_DIFFERS, name="level", target="L0", reference="L1")
    for differ in (True, False):
        ledger = Ledger()
        ledger.compared = 5
        ledger.counts.update({("param", Status.EQUAL): 5, ("forward", Status.UNMATCHED): 8})
        ledger.one_sided.update({("target", "forward"): 4, ("reference", "forward"): 4})
        found = verdict_from(ledger, [], replace(RUNS, captured=(captured,) if differ else ()))
        assert found.evidence[0] == reason(Is.PHASES_NOT_COMPARED, phases=["forward"])
        assert found.evidence[1] == reason(Is.COMPARED_AND_AGREE, compared=5, others=True)
        assert found.next == Reason(NextCode.CAPTURE_SAME_OPTIONS)
        assert text(found.evidence[1]) == "5 other records compared; all agree"


def test_an_error_that_came_in_already() -> None:
    """Records that exceed their tolerance where none introduces the error."""
    for error_in in (0.25, math.inf, None):
        ledger = Ledger()
        ledger.firsts = {"forward": first(error_in=error_in, rel_l2=0.5, tolerance=0.1, score=5.0)}
        ledger.exceeding = 1
        ledger.limits = {0: {"loss": 0.0, "gradient": 0.0}}
        found = verdict_from(ledger, [], RUNS)
        entered = {"error_in": 0.25} if error_in == 0.25 else {}
        assert found.evidence[0] == reason(Is.INPUTS_DIFFER_ALREADY, **entered)


def test_most_records_are_not_compared() -> None:
    verdict = Verdict(
        outcome=Outcome.DIFFER, headline=reason(VerdictCode.AGREE), where="loss · value", step=0, phase="loss"
    )
    for compared in (3, 5, 7):
        ledger = Ledger()
        ledger.counts.update(
            {("forward", Status.EQUAL): compared, ("forward", Status.UNDECIDED): 10 - compared}
        )
        ledger.compared = compared
        ledger.limits = {0: {"loss": 0.0, "gradient": 0.0}}
        pair = ScalarPair(
            step=0, rank=0, name="microbatches", target=4, reference=2, beyond=True, rel_diff=1.0
        )
        found = led_by_microbatches(verdict, ledger, [pair])
        assert (found is not None) is (compared < 5)
        if found is not None:
            assert found.evidence[0] == reason(Is.WITHOUT_COUNTERPART, records=10 - compared, total=10)
            assert text(found.evidence[0]) == f"{10 - compared} of 10 records are not compared"


def test_code_of_one_place() -> None:
    """A headline is led by code of the place itself, where that is known to be another."""
    headline = reason(VerdictCode.FIRST_DIVERGENCE, phase="forward", slot="output.0", step=0)
    sides = {"target": "1e-05", "reference": "1e-06"}
    value = reason(Is.CODE_VALUE_DIFFERS, name="eps", function="Norm.forward", at="a.py:1", **sides)
    code = reason(
        Is.CODE_DIFFERS, function="Norm.forward", target="x", reference="y", target_at="a", reference_at="b"
    )
    another = _replaced(_Pair("f", "torch.f", "torch.g"), None, None)
    casts = reason(Is.CODE_CASTS, **code.facts)
    assert _replaced(_Pair("f", "torch.f", "torch.f"), None, None) is None
    assert another is not None
    assert another.code is Is.CODE_CALLS_ANOTHER
    assert another.place("target") != another.place("reference")
    for own in (True, False):
        assert Near(reasons=(another,), is_own=own).headline(headline) == headline
        led = {
            VerdictCode.OTHER_VALUE_IN_CODE: Near(reasons=(value,), is_own=own).headline(headline),
            VerdictCode.OTHER_CODE: Near(reasons=(code, casts), is_own=own).headline(headline),
            VerdictCode.OTHER_CASTS: Near(reasons=(casts,), is_own=own).headline(headline),
        }
        for expected, found in led.items():
            assert found.code is (expected if own else headline.code)
        if own:
            assert led[VerdictCode.OTHER_VALUE_IN_CODE].facts == {"name": "eps", **sides}
            assert led[VerdictCode.OTHER_CODE].facts == {"function": "Norm.forward"}
    acts = reason(StagesCode.ACTS_HERE, value)
    evidence = (value, acts, reason(Is.NO_OTHER))
    assert Near(reasons=(code,), is_own=True).beside(evidence, known=True) == (value, acts, code, evidence[2])
    assert Near(reasons=(code,), is_own=True).beside(evidence, known=False) == (code, *evidence)


CONTENTS: dict[str, Any] = {
    "same": lambda x: x,
    "near": lambda x: x * np.float32(1 + 2e-7),
    "turned": lambda x: x[::-1].copy(),
    "nan": lambda x: np.full_like(x, np.nan),
    "some nan": lambda x: np.where(x > 1, np.float32(np.nan), x),
    "none": lambda x: None,
    "half": lambda x: x.astype(np.float16),
}


@pytest.mark.parametrize("kept", [HAS_STATISTICS | HAS_DIGEST, 7])
def test_records_that_cannot_be_compared(tmp_path: Path, kept: int) -> None:
    """Pairs of tensors of every kind of content, and of no content at all."""
    sides = [Recorder(want=kept), Recorder(want=kept)]
    roots = [out.call("module", "", type_="Net") for out in sides]
    held = []
    for own in CONTENTS:
        for other in CONTENTS:
            values = drawn(f"{own}{other}", 16, 8)
            pair = [CONTENTS[name](values) for name in (own, other)]
            for out, root, array in zip(sides, roots, pair, strict=True):
                out.record(root, "forward", f"output.{len(held)}", array)
            held.append((own, other, pair))
    for side, out in zip(SIDES, sides, strict=True):
        out.write(tmp_path / side)
    seen: set[str] = set()
    for row in frame_of(compare(*(tmp_path / side for side in SIDES))):
        own, other, pair = held[int(row["slot"].partition(".")[2])]
        code = row["reason_code"]
        seen.add(code)
        lacks = [side for side, array in zip(SIDES, pair, strict=True) if array is None]
        assert (code == RecordCode.NO_SUMMARY.value) is bool(lacks), (own, other, row["reason"])
        if lacks:
            assert [side for side in SIDES if f"({side})" in row["reason"]] == lacks
            assert RecordCode.SIDE_WITHOUT_SUMMARY.value in row["reason_facts"]
            continue
        finite = [bool(np.isfinite(array).any()) for array in pair]
        if code == RecordCode.NOTHING_FINITE.value:
            assert not all(finite), (own, other)
        if code == RecordCode.LOWER_BOUND.value:
            assert kept != 7
            assert pair[0].tobytes() != pair[1].tobytes()
            exact = np.linalg.norm(pair[0].astype(float) - pair[1].astype(float)) / np.linalg.norm(pair[1])
            assert row["rel_l2"] <= exact + 1e-6
        if row["status"] == "equal":
            assert pair[0].tobytes() == pair[1].tobytes()
    assert RecordCode.NO_SUMMARY.value in seen
    assert kept == 7 or RecordCode.LOWER_BOUND.value in seen
