"""Findings of one cause put together: what it shows at many places is told once, where it was first seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import VerdictCode
from trueup.types.finding import Basis, EvidenceRank, Finding
from trueup.types.reason import Reason, reason

_OF_PLACE = frozenset({"module", "origin_phase", "origin_slot", "part_seen", "place", "site", "parameter"})
"""facts of a conclusion that say where, not what"""
_SAME_DIGITS = 2
"""of solved numbers: values of one cause are known to about two"""
_SOLVED = ("target", "reference", "factor")
_NAMED_OF_PLACE = (Stages.SETTING_DIFFERS, VerdictCode.MODULE_CLASS_DIFFERS)


def together(findings: Sequence[Finding], code: Sequence[tuple[Reason, ...]] = ()) -> tuple[Finding, ...]:
    """The same findings, in their order, each cause once.

    ``code``: the statements of each finding's own place that the other program writes otherwise. Where they
    are those of the first, it explains what is made there too, whatever that looks like; not what a setting
    that both runs record does.
    """
    groups: dict[object, list[Finding]] = {}
    follow, own = list[Finding](), code[0] if code else ()
    for number in _of_first_step(findings):
        finding = findings[number]
        key = _cause(finding)
        if own and code[number] == own and groups and key not in groups and not _is_recorded(finding):
            follow.append(finding)
        else:
            groups.setdefault(key, []).append(finding)
    found = [_one(*some) for some in groups.values()]
    if follow:
        found[0] = _with_same_code(found[0], follow, own)
    return tuple(found)


def _is_recorded(finding: Finding) -> bool:
    return any(kind.rank is EvidenceRank.STATED for kind in finding.kinds[:1])


def _with_same_code(first: Finding, others: Sequence[Finding], code: Sequence[Reason]) -> Finding:
    """With where else the code differs, behind what differs in it."""
    places = dict.fromkeys(str(one.module) for one in others)
    places.pop(str(first.module), None)
    same_code = (reason(Stages.SAME_CODE_IN, num=len(places), modules=tuple(places)),) if places else ()
    after = max((at + 1 for at, one in enumerate(first.evidence) if one in code), default=1)
    return replace(first, evidence=(*first.evidence[:after], *same_code, *first.evidence[after:]))


def _of_first_step(findings: Sequence[Finding]) -> list[int]:
    """By number, without what the traces alone show of modules in later steps than the first that differs:
    weights and random numbers differ by then, so that it may follow, whatever it looks like."""
    first = min((one.step for one in findings if one.step is not None), default=None)
    return [
        number
        for number, one in enumerate(findings)
        if not number
        or first is None
        or one.origin is None
        or one.origin.basis is Basis.REPLAY
        or (one.step or first) <= first
    ]


def _cause(finding: Finding) -> object:
    """What is said of a finding but for its place; of one whose cause is not named, all that is said."""
    headline = finding.headline
    if headline.code in _NAMED_OF_PLACE:
        return headline.code, _facts(headline)
    kind = finding.kinds[0] if finding.kinds else None
    if finding.origin is None or kind is None or not kind.rank.is_named:
        return headline, finding.phase
    return finding.stage, finding.phase, kind.name, kind.sentence.code, _facts(kind.sentence)


def _facts(sentence: Reason) -> tuple[object, ...]:
    solved = ((name, value) for name, value in sentence.numbers if name in _SOLVED and value is not None)
    rounded = (f"{name} {value:.{_SAME_DIGITS}g}" for name, value in solved)
    return (*sorted(rounded), *(one for one in sentence.places if one[0] not in _OF_PLACE))


def _one(first: Finding, *others: Finding) -> Finding:
    """The first, with where else the same was seen."""
    places = dict.fromkeys(str(one.module if one.module is not None else one.site) for one in others)
    places.pop(str(first.module), None)
    factors = _factors(first, *others)
    also = (reason(Stages.ALSO_IN, num=len(places), modules=tuple(places), **factors),) if places else ()
    ranks = [set(one.ranks) for one in (first, *others)]
    return replace(
        first,
        evidence=(*first.evidence[:1], *also, *first.evidence[1:]),
        ranks=tuple(sorted(set.union(*ranks))) if all(ranks) else (),
    )


def _factors(*findings: Finding) -> dict[str, float]:
    """The smallest and the largest factor, where they show as two."""
    kinds = [finding.kinds[0] for finding in findings if finding.kinds]
    found = sorted(kind.factor for kind in kinds if kind.factor is not None)
    if len(found) < len(findings) or f"{found[0]:.4g}" == f"{found[-1]:.4g}":
        return {}
    return {"low": found[0], "high": found[-1]}
