"""Weights that are one tensor in one run and two in the other: each then has the gradient of its own use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.types.trace import ParameterFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class TieApart:
    """A parameter, and what it is one tensor with in either run."""

    parameter: str
    target: str | None
    reference: str | None

    @property
    def names(self) -> frozenset[str]:
        """Of all that get another gradient by it."""
        return frozenset(filter(None, (self.parameter, self.target, self.reference)))

    @property
    def sides(self) -> dict[str, str]:
        """As they are written."""
        return {"target": self.target or "", "reference": self.reference or ""}


def ties_apart(
    target: Sequence[ParameterFacts], reference: Sequence[ParameterFacts], matched: Mapping[str, str]
) -> tuple[TieApart, ...]:
    """Those that are not tied alike; ``matched``: names of the target -> those of the reference."""
    held = {entry["fqn"]: entry.get("tied_to") for entry in reference}
    found = []
    for entry in target:
        fqn, tied = entry["fqn"], entry.get("tied_to")
        other = matched.get(fqn, fqn)
        if other in held and (None if tied is None else matched.get(tied, tied)) != held[other]:
            found.append(TieApart(parameter=fqn, target=tied, reference=held[other]))
    return tuple(found)
