"""Every mistake of the MindSpore half changes it in the step its entry says, not before; what is none, by
rounding."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bugzoo.bases import bases
from bugzoo.entries import Entry, entries

from trueup_gpt.launching import launch

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.xdist_group("mindspore worlds"),
]
HALF = {name: entry for name, entry in entries().items() if bases()[entry.base].framework == "mindspore"}
LOSS, NORM = 2e-6, 2e-5
"""relative differences rounding may make in the first step"""
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    """What each process saw of every base and entry: all have two processes, started once."""
    folder = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("GLOG_v", "3")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        assert launch(2, ["-m", "tests.bugzoo.half_worker", str(folder)], folder, quiet=True) == 0
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", HALF.values(), ids=HALF)
def test_an_entry_does_what_it_says(entry: Entry, trained: list[dict[str, Found]]) -> None:
    pairs = [(found[entry.name], found[entry.base]) for found in trained]
    if entry.is_benign:
        for found, clean in pairs:
            assert found[0]["loss"] == pytest.approx(clean[0]["loss"], rel=LOSS)
            assert found[0]["norm"] == pytest.approx(clean[0]["norm"], rel=NORM)
        return
    apart = [
        next(
            (step for step, (one, other) in enumerate(zip(found, clean, strict=False)) if one != other), None
        )
        for found, clean in pairs
    ]
    assert min(step for step in apart if step is not None) == entry.step
    assert all(one["finite"] for found, _ in pairs for one in found), "losses, norms or weights are not"


def test_there_are_enough_of_them() -> None:
    benign = [entry for entry in HALF.values() if entry.is_benign]
    assert len(benign) >= 5
    assert len(HALF) - len(benign) >= 15
