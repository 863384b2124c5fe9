"""What the accuracy guide recommends for runs that are compared, and where a side, or both, do not follow it.

Apart from the comparison of the two sides: a setting on which both agree may still be one the guide advises
against. Severities are of the guide's own words (docs/decisions/0028).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trueup.checklist.configuration import Configuration
from trueup.checklist.dialect import ValueOrigin
from trueup.checklist.expression import Unset, parsed
from trueup.checklist.fields import NotAValue, canonical, fields
from trueup.checklist.judging import DemandRow, DemandSide, DemandStatus, cell_of, holds
from trueup.checklist.rules import Demand, Severity, rules
from trueup.checklist.versions import VersionVerdict
from trueup.checklist.writing import setting_words
from trueup.errors import ConfigError
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import Reason, reason

VERSIONS = "versions"
"""the row of versions that were not published together"""
_ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """One recommendation that a side, or both, do not follow."""

    key: str
    section: str
    about: str
    severity: Severity
    sides: tuple[str, ...]
    """``target``, ``reference`` or both; of one value on both sides that is not there, both"""
    target: DemandSide | None
    reference: DemandSide | None
    """None where the side says nothing of it, or there is one side only"""
    wanted: Reason
    """what is recommended"""
    value: object = None
    """the recommended value, where it is one"""
    why: str = ""
    advice: str = ""
    how: tuple[tuple[str, str], ...] = ()
    """side -> how it is set there, in the side's own form"""
    reason: Reason | None = None
    sources: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it decides the verdict."""
        return self.severity != "note"


def recommendations(
    rows: Iterable[DemandRow],
    target: Configuration,
    reference: Configuration | None,
    versions: Mapping[str, VersionVerdict],
) -> tuple[Unmet, ...]:
    """Every recommendation that is not met, in the order of the rows.

    Args:
        rows: of the check, those left out taken away.
        target: the side in question.
        reference: the other one; None where there is none.
        versions: the verdict on each side's versions, where it has one.
    """
    sides = {"target": target} if reference is None else {"target": target, "reference": reference}
    by_key = {rule.key: rule for file in rules().values() for rule in file}
    found = [one for row in rows for one in _of_row(row, by_key[row.key], _effective(by_key[row.key], sides))]
    return (*found, *_of_versions(versions))


def _effective(rule: Demand, sides: Mapping[str, Configuration]) -> Mapping[str, Configuration]:
    """The sides with what the rule's field follows where it is not set: that breaks it as a default does."""
    return {
        name: side.with_followed(rule.field) if rule.recommended else side for name, side in sides.items()
    }


def _of_row(row: DemandRow, rule: Demand, sides: Mapping[str, Configuration]) -> Iterator[Unmet]:
    if rule.each:
        if row.status is DemandStatus.BROKEN:
            yield _of_condition(row, rule)
        return
    broken = tuple(name for name, side in sides.items() if _breaks(rule, side))
    if broken:
        yield _of_field(row, rule, sides, broken)
    elif rule.consistent and row.status is DemandStatus.DIFFERENT and row.severity == "note":
        yield replace(
            _of_field(row, rule, sides, tuple(sides)),
            wanted=reason(Code.SAME_ON_BOTH),
            value=None,
            how=(),
            reason=None,
        )


def _breaks(rule: Demand, side: Configuration) -> bool:
    """Whether the side states a value, or leaves it to a default, that is not the recommended one."""
    if not rule.recommended or rule.field not in side.values:
        return False
    applies = not rule.when or holds(rule.when, side) is not False
    return applies and holds(rule.recommended, side) is False


def _of_field(
    row: DemandRow, rule: Demand, sides: Mapping[str, Configuration], broken: tuple[str, ...]
) -> Unmet:
    cells = {name: cell_of(rule, side) for name, side in sides.items() if rule.field in side.values}
    wanted = {name: _wanted(rule, sides[name]) for name in broken}
    known = [w for w in wanted.values() if w is not None]
    value = known[0] if all(w == known[0] for w in known) and known else None  # one that holds of both sides
    how = {name: setting_words(sides[name], rule.field, wanted[name]) for name in broken}
    grave = bool(rule.grave) and any(holds(rule.grave, sides[name]) for name in broken)
    return Unmet(
        key=row.key,
        section=row.section,
        about=row.about,
        severity=row.severity if grave else rule.unmet or row.severity,
        sides=broken,
        target=cells.get("target"),
        reference=cells.get("reference"),
        wanted=_wanted_value(value, rule),
        value=value,
        why=row.why,
        advice=rule.advice if rule.value or not any(how.values()) else "",
        how=tuple((name, words) for name, words in how.items() if words),
        reason=_defaults({name: cells[name] for name in broken if name in cells}),
        sources=row.sources,
    )


def _wanted_value(value: object, rule: Demand) -> Reason:
    if isinstance(value, bool):
        return reason(Code.WANTED_ON if value else Code.WANTED_OFF)
    if isinstance(value, (int, float, str)):
        return reason(Code.WANTED, value=value)
    return reason(Code.WANTED_WORDS, words=rule.advice)


def _defaults(cells: Mapping[str, DemandSide]) -> Reason | None:
    """Which of the values a framework takes because nobody set them."""
    found = [
        reason(Code.DEFAULT, side=name if len(cells) > 1 else "", of=cell.says)
        for name, cell in cells.items()
        if cell.origin is ValueOrigin.DEFAULT
    ]
    return _joined(found)


def _joined(found: Iterable[Reason]) -> Reason | None:
    each = list(dict.fromkeys(found))
    return reason(Code.SIDES, *each) if len(each) > 1 else next(iter(each), None)


def _of_condition(row: DemandRow, rule: Demand) -> Unmet:
    cells = {"target": row.target, "reference": row.reference}
    stated = {name: cell for name, cell in cells.items() if cell is not None and cell.value is not None}
    return Unmet(
        key=row.key,
        section=row.section,
        about=row.about,
        severity=rule.severity,
        sides=tuple(stated),
        target=stated.get("target"),
        reference=stated.get("reference"),
        wanted=reason(Code.WANTED_WORDS, words=rule.advice),
        why=row.why,
        advice=rule.advice,
        reason=row.reason,
        sources=row.sources,
    )


def _of_versions(versions: Mapping[str, VersionVerdict]) -> Iterator[Unmet]:
    wrong = {name: verdict for name, verdict in versions.items() if verdict.together is False}
    if not wrong:
        return
    cells = {name: DemandSide(value=verdict.stated) for name, verdict in wrong.items()}
    yield Unmet(
        key=VERSIONS,
        section=_ENVIRONMENT,
        about="Versions of the Ascend stack",
        severity="warning",
        sides=tuple(wrong),
        target=cells.get("target"),
        reference=cells.get("reference"),
        wanted=reason(Code.PUBLISHED_TOGETHER),
        why="Only versions that were published together are tested together.",
        advice="Install a set of the table",
        reason=_joined([verdict.sentence for verdict in wrong.values()]),
        sources=("other: Version Check",),
    )


def _wanted(rule: Demand, side: Configuration) -> object:
    """The recommended value on a side: the rule's own, or what its recommendation compares with."""
    text = rule.value or (_compared_with(rule.recommended) if rule.recommended else "")
    if not text:
        return None
    try:
        return canonical(parsed(text).evaluate(side), fields().spec(rule.field))
    except (Unset, NotAValue, ConfigError):
        return None


def _compared_with(text: str) -> str:
    """The value in ``x == value``, ``x in [value, ...]``, ``x`` or ``not x``, alone or before an ``or``."""
    tree = ast.parse(text.strip(), mode="eval").body
    if isinstance(tree, ast.BoolOp):
        tree = tree.values[0]
    match tree:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant() as wanted]):
            return ast.unparse(wanted)
        case ast.Compare(ops=[ast.In()], comparators=[ast.List(elts=[first, *_])]):
            return ast.unparse(first)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name()):
            return "False"
        case ast.Name():
            return "True"
    return ""
