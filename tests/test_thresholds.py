"""Every constant that decides is an entry, and the case just below it is judged otherwise than the one just
above.

A room is converted once its folder stands in ``CONVERTED``: no other float may decide there. For each entry a
module named ``deciding_*`` beside the room's tests has a function under ``@decides``.
"""

from __future__ import annotations

import ast
import math
from importlib import import_module
from pathlib import Path

import pytest

from tests.deciding import DECIDERS, Decider
from trueup.types.threshold import GENERATED, Threshold, thresholds

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[1]
CONVERTED = {"src/trueup/diagnosing/kinds": "kinds", "src/trueup/diagnosing/evidence": None}
"""folder -> the first word of its entries' names, None: it decides nothing by a constant"""
TABLES = ("trueup.diagnosing.kinds.thresholds",)
DECIDING = ("tests.diagnosing.deciding_kinds",)
ARITHMETIC = (0.0, 0.5, 1.0, 2.0)
"""floats that any formula holds"""
ALLOWED = {
    "diagnosing/kinds/functions.py": {0.044715, 1.702},  # of the definitions of gelu
    "diagnosing/kinds/updates.py": {1e-8, 0.9, 0.999},  # PyTorch's defaults of Adam
    "diagnosing/kinds/attended.py": {1e4},  # never read without a rotary embedding
    "diagnosing/kinds/attention.py": {1e2, 1e8, 1.1},  # between which a search looks
    "diagnosing/evidence/vectors.py": {3e-7, 1e140, 1e-140},  # of the sketch's dtype; against overflow
}
for _table in (*TABLES, *DECIDING):
    import_module(_table)
ENTRIES = {name: one for name, one in thresholds().items() if not name.startswith("doctest")}


def floats(path: Path) -> list[tuple[int, float]]:
    """Line and value of every float literal."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [(node.lineno, node.value) for node in nodes if isinstance(node.value, float)]


@pytest.mark.parametrize("folder", CONVERTED)
def test_no_other_float_decides(folder: str) -> None:
    bare = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        allowed = ALLOWED.get(str(path.relative_to(ROOT / "src/trueup")), set())
        if path.name == "thresholds.py" or allowed is None:
            continue
        bare += [
            f"{path.name}:{at} {x}" for at, x in floats(path) if x not in ARITHMETIC and x not in allowed
        ]
    assert bare == []


def test_a_float_that_decides_is_seen(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("def rule(x: float) -> bool:\n    return x > 0.97\n")
    assert floats(tmp_path / "rule.py") == [(2, 0.97)]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_has_an_account_and_a_test(entry: Threshold) -> None:
    assert entry.unit
    assert len(entry.account.split()) > 3
    assert entry.test != GENERATED or entry.name in DECIDERS, "add a @decides function"
    assert entry.name.split(".")[0] in CONVERTED.values()


@pytest.mark.parametrize("name", sorted(DECIDERS))
def test_a_near_miss_on_either_side(name: str) -> None:
    """The decision changes between just below and just above the entry's value."""
    decider = DECIDERS[name]
    below, above = sides(ENTRIES[name], decider)
    assert decider.decide(below) != decider.decide(above), (below, above)


def sides(entry: Threshold, decider: Decider) -> tuple[float, float]:
    """The nearest values that a case can have; of counts the entry's own and the one beside it."""
    if isinstance(entry.value, int) and decider.margin is None:
        return entry.value + decider.beside[0], entry.value + decider.beside[1]
    margin = decider.margin or 0.01
    sides = sorted((entry.value * (1 - margin), entry.value * (1 + margin)))
    assert math.isfinite(sum(sides))
    return sides[0], sides[1]
