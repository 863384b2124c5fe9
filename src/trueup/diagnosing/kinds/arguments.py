"""What the calls of a module were given besides tensors, on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trueup.diagnosing.evidence import Evidence, NeighbourCall
from trueup.diagnosing.kinds.naming import rule_book
from trueup.matching.names import family

MASK_ARGUMENTS = ("is_causal", "diagonal", "window_size", "sliding_window")
MASK_FUNCTIONS = ("triu", "tril", "masked_fill")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentDifference:
    """One argument of one call that both sides make."""

    call: NeighbourCall
    name: str
    target: Any
    reference: Any

    @property
    def sentence(self) -> str:
        """``layer_norm: eps 1e-06 for 1e-05``."""
        short = self.call.name.rpartition(".")[2] or self.call.name
        return f"{short}: {plain_name(self.name)} {self.target!r} for {self.reference!r}"


def plain_name(slot: str) -> str:
    """``input.eps`` is ``eps``; a positional one is called by its number."""
    rest = slot.partition(".")[2] or slot
    return f"argument {rest}" if rest.replace(".", "").isdigit() else rest


def relevant_calls(evidence: Evidence) -> Iterator[NeighbourCall]:
    """Calls that can have made the origin's tensor: its own, or those of its module up to it."""
    around = evidence.surroundings
    own = [c for c in around.neighbours if c.own]
    if around.kind != "module" and own:
        return iter(own)
    return (c for c in around.neighbours if c.before or c.own)


def argument_differences(evidence: Evidence) -> list[ArgumentDifference]:
    """Arguments that differ, those without effect left out."""
    found = []
    for call in relevant_calls(evidence):
        if call.target is None or call.reference is None:
            continue
        for name, mine, theirs in _differing(call.target, call.reference):
            if name not in rule_book().without_effect:
                found.append(ArgumentDifference(call=call, name=name, target=mine, reference=theirs))
    return found


def is_mask(difference: ArgumentDifference) -> bool:
    """Whether the argument says what a mask hides."""
    name = difference.name.rpartition(".")[2]
    return name in MASK_ARGUMENTS or family(difference.call.name) in MASK_FUNCTIONS


def is_layout(call: NeighbourCall) -> bool:
    """Whether the call only lays the same numbers out anew."""
    return call.kind == "api" and family(call.name) in rule_book().layout


def is_cast(call: NeighbourCall) -> bool:
    """Whether the call changes the dtype."""
    return call.kind == "api" and family(call.name) in rule_book().casts


def _differing(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name), theirs.get(name)
        if a != b and not (a is None and name not in mine and b in (False, 0, None)):
            yield name, a, b


def layout_differences(evidence: Evidence) -> list[str]:
    """How the layout calls of the module differ; empty where calls of other sorts do too."""
    found: list[str] = []
    for call in evidence.surroundings.neighbours:
        if not (call.before or call.own) or is_cast(call):
            continue
        if call.target is None or call.reference is None:
            if not is_layout(call):
                return []
            side = "the target also calls" if call.reference is None else "the target does not call"
            found.append(f"{side} {call.name.rpartition('.')[2]}")
            continue
        for name, mine, theirs in _differing(call.target, call.reference):
            if name in rule_book().without_effect:
                continue
            if not is_layout(call):
                return []
            short = call.name.rpartition(".")[2]
            found.append(f"{short}: {plain_name(name)} {mine!r} for {theirs!r}")
    return found
