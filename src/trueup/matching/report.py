"""What ``trueup match`` says: which module, weight and call of one run is which of the other, and what is
unsure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.errors import NothingCompared
from trueup.matching.across.sites import site_of
from trueup.matching.bridge import Bridge, bridge_between
from trueup.matching.calls import PASSES
from trueup.matching.mapping import VERSION, NamePairs
from trueup.matching.step import StepMatch, match_step
from trueup.matching.thresholds import SURE
from trueup.store import TraceSource
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason

KINDS = ("module", "parameter", "api")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One pair, or one thing without a counterpart and why."""

    target: str | None
    reference: str | None
    how: str = ""
    confidence: float = 1.0
    reason: Reason | None = None

    @property
    def paired(self) -> bool:
        """Whether both sides are there."""
        return self.target is not None and self.reference is not None

    @property
    def unsure(self) -> bool:
        """Whether a person should look at it."""
        return self.paired and self.confidence < SURE


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchReport:
    """Lines in the target's execution order, then what the reference alone has."""

    modules: Sequence[Line]
    weights: Sequence[Line]
    calls: Sequence[Line]
    across: bool
    """the two are of two implementations"""

    @property
    def unsure(self) -> list[Line]:
        """Pairs to look at, and weights that found no counterpart on either side."""
        lines = [line for part in (self.modules, self.weights, self.calls) for line in part if line.unsure]
        open_ = [line for line in self.weights if not line.paired]
        sides = {line.target is not None for line in open_}
        return sorted(lines, key=lambda line: line.confidence) + (open_ if len(sides) == 2 else [])

    @property
    def exit_code(self) -> int:
        """0 where nothing is unsure, else 1."""
        return 1 if self.unsure else 0

    def to_yaml(self, text: Callable[[Reason], str]) -> str:
        """A map that can be edited and given back with ``--map``; ``text`` puts reasons into words."""
        import yaml

        weights: dict[str, list[str]] = {}
        for line in self.weights:
            if line.target is not None and line.reference is not None:
                weights.setdefault(line.target, []).append(line.reference)
        held = {
            "version": VERSION,
            "modules": _paired(self.modules),
            "weights": {name: found[0] if len(found) == 1 else found for name, found in weights.items()},
            "calls": _paired(self.calls),
            "unsure": [
                f"{line.target} = {line.reference} ({line.how}, {line.confidence:.2f})"
                for line in self.unsure
            ],
            "unmatched": [
                f"{line.target or line.reference}: {text(line.reason)}"
                for part in (self.modules, self.weights)
                for line in part
                if not line.paired and line.reason is not None
            ],
        }
        return str(yaml.safe_dump(held, sort_keys=False, allow_unicode=True, width=200))


def _paired(lines: Sequence[Line]) -> dict[str, str]:
    return {
        line.target: line.reference
        for line in lines
        if line.target is not None and line.reference is not None
    }


def match_traces(
    target: TraceSource, reference: TraceSource, *, step: int | None = None, given: NamePairs | None = None
) -> MatchReport:
    """Pair the first step both traces have, or ``step``.

    Raises:
        NothingCompared: they have no step in common.
        ConfigError: the map names what is not there.
    """
    common = [s for s in target.steps() if s in reference.steps() and (step is None or s == step)]
    if not common:
        raise NothingCompared(f"{target.path} and {reference.path} have no step in common to be matched on")
    rank = min(target.steps()[common[0]]), min(reference.steps()[common[0]])
    tables = target.read(common[0], rank[0]), reference.read(common[0], rank[1])
    bridge = bridge_between(target, reference, (common[0], common[0]), rank, given)
    return report_of(match_step(*tables, bridge))


def report_of(match: StepMatch) -> MatchReport:
    """The lines of one matched step."""
    modules, weights, calls = (_lines(match, kind) for kind in KINDS)
    if match.bridge is not None:
        weights = _of_weights(match.bridge)
    return MatchReport(modules=modules, weights=weights, calls=calls, across=match.bridge is not None)


def _lines(match: StepMatch, kind: str) -> list[Line]:
    """One line a pair of sites, at its first call."""
    words, calls = match.words, match.calls
    code = words.kind.index(kind) if kind in words.kind else -2
    found: dict[str, Line] = {}
    for call in np.flatnonzero(match.target.kind == code).tolist():
        site, other = site_of(match.target, words, call), int(calls.reference_of[call])
        if site in found and found[site].paired:
            continue
        if other >= 0:
            found[site] = Line(
                target=site,
                reference=site_of(match.reference, words, other),
                how=PASSES[calls.pass_code[call]],
                confidence=float(calls.confidence[call]),
            )
        else:
            found[site] = Line(target=site, reference=None, reason=_why(match, site, kind, of_target=True))
    lines = list(found.values())
    paired = {line.reference for line in lines}
    for call in np.flatnonzero((match.reference.kind == code) & (calls.target_of < 0)).tolist():
        site = site_of(match.reference, words, call)
        if site not in paired:
            paired.add(site)
            lines.append(Line(target=None, reference=site, reason=_why(match, site, kind, of_target=False)))
    return lines


def _why(match: StepMatch, site: str, kind: str, *, of_target: bool) -> Reason:
    other = "reference" if of_target else "target"
    if match.bridge is None:
        return reason(RecordCode.NO_SUCH_CALL, side=other)
    modules = match.bridge.modules
    known = (modules.why_target if of_target else modules.why_reference) if kind == "module" else {}
    unknown = reason(RecordCode.TENSOR_UNKNOWN, side=other)
    return known.get("" if site == "(root)" else site, unknown)


def _of_weights(bridge: Bridge) -> list[Line]:
    lines = [
        Line(target=t, reference=s, how=atom.how, confidence=atom.confidence)
        for atom in bridge.weights.atoms
        for t in atom.targets
        for s in _sources(bridge, t, atom.sources)
    ]
    lacking, lacking_here = (reason(RecordCode.NO_SUCH_WEIGHT, side=side) for side in ("reference", "target"))
    lines += [
        Line(target=name, reference=None, reason=lacking)
        for name in (*bridge.weights.left_target, *bridge.weights.mapped_to_none)
    ]
    lines += [Line(target=None, reference=name, reason=lacking_here) for name in bridge.weights.left_source]
    return lines


def _sources(bridge: Bridge, target: str, sources: Sequence[str]) -> list[str]:
    """Of a group, the sources this target is made of, where the plan tells."""
    entry = next((e for e in bridge.weights.entries if e.target == target), None)
    return list(sources) if entry is None else list(dict.fromkeys(piece.source for piece in entry.pieces))


def write_map(report: MatchReport, path: Path, text: Callable[[Reason], str]) -> None:
    """Write the report as a map; ``text`` puts reasons into words.

    Raises:
        OSError: it cannot be written.
    """
    path.write_text(report.to_yaml(text), encoding="utf-8")
