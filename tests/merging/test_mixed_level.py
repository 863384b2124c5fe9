"""At the level of functions too a layout agrees with one process; what no layout places is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparing.reading import nested
from tests.merging.runs import traced
from tests.merging.test_trainer import LAYOUTS, pair
from tests.trainer.layouts import cut
from trueup.comparing.run import compare
from trueup.types.codes import MergingCode

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_agrees_at_the_level_of_functions(name: str, tmp_path: Path) -> None:
    many, one = pair(tmp_path, name, level="mix")
    found = compare(many, one)
    assert found.exit_code == 0, found.summary["verdict"]
    assert nested(found.content.notes, MergingCode.FUNCTIONS_LEFT_OUT)


def test_another_training_differs_at_the_level_of_functions(tmp_path: Path) -> None:
    _, one = pair(tmp_path, "z2 tp2 sp", level="mix")
    size, sections = LAYOUTS["z2 tp2 sp"]
    other = cut({**sections, "training": {"seed": 8}}, size, "float64")
    assert compare(traced(other, size, tmp_path / "other", level="mix"), one).exit_code == 1
