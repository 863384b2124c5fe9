"""Which tests run in one worker: those of a file, or of an ``xdist_group`` that is marked in the source.

What the tests of a file share (a trained model, a group of processes) is then made once. pytest-xdist's own
``--dist loadgroup`` puts the group behind a test's name, which pytest 9.2 no longer passes on: each test went
to the next free worker, and every worker made the same things again.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent


class ByFile(LoadScopeScheduling):
    """Deals whole files and groups to the workers, in the order in which they are collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """The group that a test is of, or its file."""
    file, _, test = nodeid.partition("::")
    groups = _groups(file)
    return groups.get(test.partition("[")[0]) or groups.get("") or file


@cache
def _groups(file: str) -> dict[str, str]:
    """Group of each function with the mark, and of the whole file under no name."""
    found, text = dict[str, str](), (ROOT / file).read_text(encoding="utf-8")
    for node in ast.parse(text).body if "xdist_group" in text else ():
        if isinstance(node, ast.FunctionDef):
            name, marks = node.name, node.decorator_list
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            name, marks = "", [node.value]
        else:
            continue
        for group in (one for mark in marks for one in _named(mark)):
            found[name] = group
    return found


def _named(marks: ast.expr) -> list[str]:
    calls = [one for one in ast.walk(marks) if isinstance(one, ast.Call)]
    return [ast.literal_eval(one.args[0]) for one in calls if ast.unparse(one.func).endswith("xdist_group")]
