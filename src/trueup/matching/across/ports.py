"""The places where tensors enter and leave calls, and who is paired with whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from trueup.matching.across.tensors import Contents, contents_of
from trueup.matching.codes import Codes
from trueup.matching.names import family
from trueup.matching.tree import TreeSide, Words
from trueup.store import StepTables

MOVING = frozenset(
    [
        *("view", "transpose", "clone", "to", "getitem", "split", "unsqueeze", "squeeze", "expand", "cat"),
        *("stack", "unbind", "tile", "repeat", "repeat_interleave", "roll", "pad", "identity", "dropout"),
        *("depend", "view_as_real", "view_as_complex", "gather", "index_select"),
    ]
)
"""Families that hand values on (dropout too where its rate is 0)."""

Port = tuple[int, int]
"""a call, and the code of a slot"""


@dataclass(slots=True)
class Ports:
    """One side: calls with their tensors in and out."""

    side: TreeSide
    words: Words
    contents: Contents
    families: list[str]
    outputs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """call -> slot codes that hold a tensor it returned"""
    inputs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    content: dict[Port, int] = field(default_factory=dict)
    """place -> number of the content, -1 where nothing is known of the tensor"""
    shape: dict[Port, int] = field(default_factory=dict)

    def family(self, call: int) -> str:
        """Family of the function of a call; a module's class."""
        name = int(self.side.name[call])
        return self.families[name]

    def kind(self, call: int) -> str:
        """``module``, ``api``, ``collective``, ``loss``, ``parameter``."""
        return self.words.kind[int(self.side.kind[call])]

    def head(self, slot: int) -> str:
        """``input`` or ``output``."""
        return self.words.slot[slot].partition(".")[0]


def ports_of(tables: StepTables, side: TreeSide, words: Words) -> Ports:
    """The tensors at every call of one side, forward."""
    contents = contents_of(tables)
    out = Ports(side=side, words=words, contents=contents, families=[family(name) for name in words.name])
    forward = words.phase.index("forward") if "forward" in words.phase else -2
    heads = [word.partition(".")[0] for word in words.slot]
    rows = np.flatnonzero(side.record_phase == forward)
    calls, slots = side.record_call[rows].tolist(), side.record_slot[rows].tolist()
    summaries = side.record_summary[rows]
    known = contents.of_summary[summaries] if len(contents.of_summary) else np.full(len(rows), -1)
    content = np.where(summaries >= 0, known, -1).tolist()
    shape = np.where(summaries >= 0, side.summary_shape[summaries], -1).tolist() if len(rows) else []
    for call, slot, number, form in zip(calls, slots, content, shape, strict=True):
        place = (call, slot)
        if place in out.content:
            continue
        out.content[place], out.shape[place] = number, form
        if heads[slot] == "output":
            out.outputs[call].append(slot)
        elif heads[slot] == "input":
            out.inputs[call].append(slot)
    return out


@dataclass(slots=True)
class PortPairs:
    """Places paired one to one, with how and confidence; and which contents were found to be the same."""

    reference_of: dict[Port, Port] = field(default_factory=dict)
    target_of: dict[Port, Port] = field(default_factory=dict)
    how: dict[Port, tuple[str, float]] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)
    """content of the target -> content of the reference"""
    same_back: dict[int, int] = field(default_factory=dict)

    def add(self, target: Port, reference: Port, how: str, confidence: float) -> bool:
        """Pair two places; those that have a partner keep it."""
        if target in self.reference_of or reference in self.target_of:
            return False
        self.reference_of[target], self.target_of[reference] = reference, target
        self.how[target] = how, confidence
        return True

    def add_same(self, target: int, reference: int) -> None:
        """Note that two contents are the same tensor; the first word stands."""
        if target >= 0 and reference >= 0:
            self.same.setdefault(target, reference)
            self.same_back.setdefault(reference, target)

    def agree(self, target: int, reference: int) -> bool:
        """Whether two contents are known to be the same."""
        return target >= 0 and self.same.get(target) == reference

    def contradict(self, target: int, reference: int) -> bool:
        """Whether either is known to be something else."""
        if target < 0 or reference < 0 or self.agree(target, reference):
            return False
        return self.same_back.get(reference) not in (None, target) or target in self.same


def in_order(side: TreeSide, anchors: Codes) -> dict[int, list[int]]:
    """Anchor -> the calls below it that lie in no deeper anchor, in execution order."""
    out: dict[int, list[int]] = defaultdict(list)
    for call, anchor in enumerate(anchors.tolist()):
        out[anchor].append(call)
    return out


def nearest_anchor(side: TreeSide, is_anchor: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Codes:
    """For every call the nearest enclosing anchor, -1 at top level."""
    found: Codes = side.parent.copy()
    while True:
        climb = (found >= 0) & ~is_anchor[found]
        if not climb.any():
            return found
        found = np.where(climb, side.parent[found], found)
