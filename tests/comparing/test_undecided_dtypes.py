"""Choices that may follow from rounding: other dtypes are said first, of the innermost module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, NoteCode
from trueup.types.status import Outcome

SCORES = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float16)


def routed(folder: Path, dtype: type, choices: list[int]) -> Path:
    """A router between layers that compute in float16."""
    out = Recorder()
    root = out.call("module", "", type_="Net")
    layer = out.call("module", "mlp", root, type_="Moe")
    gate = out.call("module", "mlp.gate", layer, type_="Router")
    noise = 1 + 1e-3 * (dtype is np.float32)
    out.record(root, "forward", "input.0", (SCORES.astype(np.float32) * noise).astype(np.float16))
    out.record(gate, "forward", "output.0", SCORES.astype(dtype))
    out.record(gate, "forward", "output.1", np.array(choices))
    out.record(layer, "forward", "output.0", SCORES.astype(dtype))
    out.write(folder)
    return folder


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_module_that_chooses_is_named_with_its_dtypes(dtype: type, tmp_path: Path) -> None:
    pair = routed(tmp_path / "a", dtype, [0, 1, 2, 3]), routed(tmp_path / "b", np.float32, [0, 1, 3, 2])
    comparison = compare(*pair)
    first = comparison.verdict.evidence[0]
    notes = [note.code for note in comparison.content.notes]
    if dtype is np.float32:
        assert first.code is not NoteCode.DTYPES_DIFFER
        return
    assert comparison.verdict.outcome is Outcome.UNDECIDED
    assert (first.code, first.place("site")) == (NoteCode.DTYPES_DIFFER, "mlp.gate")
    assert NoteCode.DTYPES_DIFFER not in notes
    assert comparison.verdict.evidence[1].code is EvidenceCode.NOT_BRACKETED
