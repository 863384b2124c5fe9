"""Both sides reduced together: the same rungs on either, and each rung held against the other side's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueup.checklist.check import Checklist, compared
from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.ladder import expanded, rung_names
from trueup.checklist.prepare import Reduced, Rung, prepared
from trueup.checklist.readers import read_side
from trueup.checklist.settings import SettingsDocument

SIDES = ("target", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class RungPair:
    """One rung of both sides."""

    name: str
    checklist: Checklist
    """whether both describe the same training; recommendations are left out, since rungs put features back"""
    given: frozenset[str]
    """settings in which the two configurations that were reduced differ already"""

    @property
    def differs(self) -> tuple[str, ...]:
        """Settings in which the two are not the same training, or cannot be compared."""
        return _differing(self.checklist)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothReduced:
    """What was written for both sides, and whether they are aligned."""

    sides: Mapping[str, Reduced]
    pairs: tuple[RungPair, ...]

    @property
    def exit_code(self) -> int:
        """0 where every rung is the same training on both sides, 1 where one is not."""
        return int(any(pair.checklist.training != "agree" for pair in self.pairs))

    def to_json(self) -> dict[str, object]:
        """As one JSON document."""
        return {
            **{name: reduced.to_json() for name, reduced in self.sides.items()},
            "aligned": [
                {
                    "name": p.name,
                    "outcome": p.checklist.training,
                    "differs": list(p.differs),
                    "differs_as_given": [name for name in p.differs if name in p.given],
                }
                for p in self.pairs
            ],
            "exit_code": self.exit_code,
        }


def reduced_together(
    target: Sequence[SettingsDocument], reference: Sequence[SettingsDocument], output: Path, *, ladder: bool
) -> BothReduced:
    """Write both sides below ``output``, in ``target`` and ``reference``: reduced, or every rung.

    Raises:
        ConfigError: a side of which no document can be written.
    """
    given = dict(zip(SIDES, (target, reference), strict=True))
    shared = _shared(target, reference)
    names = frozenset(name for side in given.values() if ladder for name in rung_names(side, shared))
    written = {}
    for side, documents in given.items():
        folder = output / side
        folder.mkdir(parents=True, exist_ok=True)
        written[side] = (
            expanded(documents, folder, also=names, shared=shared)
            if ladder
            else prepared(documents, folder, shared=shared)
        )
    as_given = compared(configured(target), configured(reference), recommend=False)
    pairs = zip(written["target"].rungs, written["reference"].rungs, strict=True)
    found = [
        RungPair(
            name=one.name,
            checklist=compared(_read(one, target), _read(other, reference), recommend=False),
            given=frozenset(_differing(as_given)),
        )
        for one, other in pairs
    ]
    return BothReduced(sides=written, pairs=tuple(found))


def _differing(checklist: Checklist) -> tuple[str, ...]:
    rows = [row.key for row in checklist.rows if row.matters]
    return (*rows, *(row.key for row in checklist.undecided))


def _shared(*sides: Sequence[SettingsDocument]) -> dict[str, object]:
    """The batch of one device in one step, where the sides cut theirs otherwise: the smaller."""
    found = [configured(side).values.get("micro_batch_size") for side in sides]
    sizes = {value.whole for value in found if value is not None}
    if len(sizes) < len(sides):
        return {}
    return {"micro_batch_size": min(sizes), "global_batch_size": min(sizes)}


def _read(rung: Rung, documents: Sequence[SettingsDocument]) -> Configuration:
    """What was written, with the documents that stay as they are."""
    kept = [document for document in documents if document.kind in ("environment", "trace")]
    return configured([*read_side([str(path) for path in rung.files]), *kept])
