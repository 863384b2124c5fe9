"""Notes and advice of a comparison: each where it is true, and not where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.comparing.test_verdict import cut_into
from tests.comparing.traces import network
from tests.diagnosing.made_steps import codes_of, facts_of, gradients, run, step
from trueup.comparing.comparable import traces_noted
from trueup.comparing.run import compare, compare_sources
from trueup.reporting.comparison.advice import _role, causes_of
from trueup.types.codes import NextCode, NoteCode, RecordCode, SuspectCode, VerdictCode
from trueup.types.reason import reason

ONE = step({"w": gradients(1)})


@pytest.mark.parametrize(
    ("facts", "code", "told"),
    [
        ({"num_failures": 3}, NoteCode.CAPTURE_FAILED, {"side": "target", "failures": 3}),
        ({"num_failures": 0}, None, {}),
        ({"stood_aside": "a profiler"}, NoteCode.CAPTURE_DISABLED, {"side": "target"}),
        ({"stood_aside": ""}, None, {}),
    ],
)
def test_what_capture_says_of_itself(
    tmp_path: Path, facts: dict[str, Any], code: NoteCode | None, told: dict[str, Any]
) -> None:
    notes = traces_noted(run(tmp_path / "t", ONE, facts=facts), run(tmp_path / "r", ONE))
    said = codes_of(notes) & {NoteCode.CAPTURE_FAILED, NoteCode.CAPTURE_DISABLED}
    assert said == ({code} if code else set())
    if code is not None:
        assert facts_of(notes, code) == told


@pytest.mark.parametrize(("second", "missed"), [(3, (1, 2)), (1, None)])
def test_steps_between_those_that_were_captured(
    tmp_path: Path, second: int, missed: tuple[int, int] | None
) -> None:
    def rounded(site: str, array: Any) -> Any:
        return np.nextafter(array, np.float32(9)) if site.startswith("new") else array

    for number in (0, second):
        network(rounded).write(tmp_path / "t", step=number)
        network().write(tmp_path / "r", step=number)
    notes = compare(tmp_path / "t", tmp_path / "r").content.notes
    facts = facts_of(notes, NoteCode.STEPS_NOT_CAPTURED)
    assert (None if facts is None else (facts["first"], facts["last"])) == missed


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_wrapper_has_no_counterpart(tmp_path: Path, wrapped: bool) -> None:
    target = network(prefix="module." if wrapped else "")
    for call in (at for at, name in enumerate(target.step.calls["name"]) if name == ""):
        target.record(call, "forward", "input.1", np.ones((4, 8), np.float32))
    target.write(tmp_path / "t")
    network().write(tmp_path / "r")
    frame = compare(tmp_path / "t", tmp_path / "r").frame()
    codes = set(frame["reason_code"].cast(pl.String).drop_nulls())
    assert (RecordCode.WRAPPER.value in codes) is wrapped


@pytest.mark.parametrize(
    ("name", "type_", "code"),
    [
        ("apply_rotary_pos_emb", None, SuspectCode.ROTARY),
        ("torch.softmax", None, SuspectCode.SOFTMAX),
        ("tokens", "Embedding", SuspectCode.EMBEDDING),
        ("torch.nn.functional.dropout", None, SuspectCode.DROPOUT),
        ("torch.nn.functional.silu", None, SuspectCode.ACTIVATION),
        ("torch.nn.functional.linear", None, SuspectCode.LINEAR),
        ("input_layernorm", "RMSNorm", SuspectCode.NORM),
        ("torch.Tensor.view", None, SuspectCode.OTHER),
    ],
)
def test_usual_causes_of_a_call_in_the_forward(name: str, type_: str | None, code: SuspectCode) -> None:
    role = _role({"name": name, "type": type_})  # type: ignore[typeddict-item]
    assert causes_of(role, "forward", set()).code is code
    assert causes_of(role, "backward", set()).code is SuspectCode.BACKWARD


BY_ROWS = {
    "version": 1,
    "mesh": {"dp": 2},
    "parameters": [{"name": "*", "dp": "invariant"}],
    "tensors": [{"name": "*", "batch": "shard(0)", "dp": "shard(0)"}],
    "batch": ["dp"],
}


@pytest.mark.parametrize(("number", "apart"), [(3, True), (1, False)])
def test_ranks_put_together_whose_later_steps_have_other_microbatches(
    tmp_path: Path, number: int, apart: bool
) -> None:
    """What is taken together is told by the first step."""
    first, later = cut_into(1), cut_into(number, batch=12)
    lines = [{"microbatches": 1}, {"microbatches": number}]
    target = run(tmp_path / "t", [first, first], [later, later], lines=lines, layout=BY_ROWS)
    both = [{"microbatches": 2}, {"microbatches": 2}]
    verdict = compare_sources(target, run(tmp_path / "r", cut_into(2), cut_into(2), lines=both)).verdict
    assert verdict.next is not None
    assert (verdict.next.code is NextCode.ALIGN_MICROBATCHES) is apart
    if apart:
        assert verdict.headline == reason(VerdictCode.MICROBATCHES_DIFFER, target=6, reference=2)
