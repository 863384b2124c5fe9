"""Notes and advice of a comparison: each where it is true, and not where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.comparing.traces import network
from tests.diagnosing.made_steps import codes_of, facts_of, gradients, run, step
from trueup.comparing.run import compare
from trueup.comparing.worth import traces_noted
from trueup.reporting.comparison.advice import _role, causes_of
from trueup.types.codes import NoteCode, RecordCode, SuspectCode

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
