"""Two configurations, or one, held against the rules: one row a demand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from trueup.checklist.configuration import Configuration
from trueup.checklist.dialect import CanonicalValue, ValueOrigin
from trueup.checklist.expression import Unset, parsed
from trueup.checklist.fields import fields, same
from trueup.checklist.rules import Demand, Severity, rules
from trueup.errors import ConfigError
from trueup.types.codes import ChecklistCode as Code
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

_ENDINGS = re.compile(
    r"(_(text|content|tokens|input_ids))?(_(document|sentence))?"
    r"(\.(bin|idx|mindrecord\d*|jsonl?|parquet|arrow|npy|txt|csv))?$"
)
"""what Megatron's preprocessing and file formats add to the name of a data set"""

_SHARE = re.compile(r"([\d.]+ )?(.*)", re.DOTALL)
"""the share of a mixture, and the path"""


class DemandStatus(Enum):
    """What became of one demand."""

    DIFFERENT = "different"
    BROKEN = "broken"
    NOT_COMPARABLE = "not_comparable"
    SUSPECT = "suspect"
    """not configurable on a side, and computed otherwise there as far as its framework's code goes"""
    NOT_SET = "not_set"
    NOT_CONFIGURABLE = "not_configurable"
    DEFAULT = "framework_default"
    ALIGNED = "aligned"
    BY_HAND = "by_hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSide:
    """One side of a row; ``value`` is None where the side says nothing."""

    value: object = None
    origin: ValueOrigin | None = None
    keys: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    says: str = ""
    set_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """One demand and its outcome. ``reference`` is None in a check of one side."""

    key: str
    section: str
    about: str
    status: DemandStatus
    severity: Severity
    target: DemandSide
    reference: DemandSide | None
    reason: Reason | None = None
    why: str = ""
    advice: str = ""
    """what to do, where a recommendation is not met or a condition broken"""
    sources: tuple[str, ...] = ()
    acts: tuple[Stage, ...] = ()
    """stages of a diagnosis in which a difference shows"""

    @property
    def matters(self) -> bool:
        """Whether it is a difference that can change the numbers."""
        return self.status is DemandStatus.DIFFERENT and self.severity != "note"


def judged(target: Configuration, reference: Configuration | None) -> list[DemandRow]:
    """Every row, in the order of the sections. A field no side speaks of has none."""
    return [
        row
        for section, file in rules().items()
        for rule in file
        for row in _rows(rule, section, target, reference)
    ]


def _rows(
    rule: Demand, section: str, target: Configuration, reference: Configuration | None
) -> Iterator[DemandRow]:
    sides = [target] if reference is None else [target, reference]
    if rule.by_hand:
        yield _row(
            rule,
            section,
            DemandStatus.BY_HAND,
            reason=reason(Code.BY_HAND, says=rule.by_hand),
            advice=rule.command,
        )
    elif not any(applies(rule.when, side) for side in sides):
        return
    elif rule.field:
        if reference is None:
            yield from _one_side(rule, section, target)
        else:
            yield from _compared(rule, section, target, reference)
    else:
        yield from _conditions(rule, section, target, reference)


def applies(condition: str, side: Configuration) -> bool:
    """Whether a condition on one side holds; one that cannot be decided does not limit the rule away."""
    return not condition or holds(condition, side) is not False


def holds(condition: str, scope: Configuration) -> bool | None:
    """Whether it holds; None where that cannot be decided."""
    try:
        return bool(parsed(condition).evaluate(scope))
    except (Unset, ConfigError):
        return None


def _conditions(
    rule: Demand, section: str, target: Configuration, reference: Configuration | None
) -> Iterator[DemandRow]:
    sides = {"target": target} if reference is None else {"target": target, "reference": reference}
    broken = [
        name for name, side in sides.items() if applies(rule.when, side) and holds(rule.each, side) is False
    ]
    if not broken:
        return
    names = parsed(rule.each).names
    words = {
        name: ", ".join(f"{n} {side.values[n].value}" for n in names if n in side.values)
        for name, side in sides.items()
    }
    cells = {name: DemandSide(value=words[name]) if name in broken else DemandSide() for name in sides}
    yield _row(
        rule,
        section,
        DemandStatus.BROKEN,
        target=cells["target"],
        reference=cells.get("reference"),
        reason=reason(Code.BROKEN, sides=broken if reference is not None else (), says=rule.says),
        advice=rule.advice,
    )


def _one_side(rule: Demand, section: str, side: Configuration) -> Iterator[DemandRow]:
    """One side against the recommendation."""
    value = side.values.get(rule.field)
    if value is None:
        if rule.field in side.unreadable:
            cell = cell_of(rule, side)
            why = reason(Code.UNREADABLE, side="", why=side.unreadable[rule.field])
            yield _row(rule, section, DemandStatus.NOT_COMPARABLE, target=cell, reason=why)
        elif fixed := side.not_configurable(rule.field):
            yield _row(
                rule,
                section,
                DemandStatus.NOT_CONFIGURABLE,
                target=cell_of(rule, side),
                reason=reason(Code.NOT_CONFIGURABLE, side="", why=fixed),
                advice=_verify(rule),
            )
        return
    met = holds(rule.recommended, side) if rule.recommended else None
    status = (
        DemandStatus.BROKEN
        if met is False
        else DemandStatus.DEFAULT
        if value.origin is ValueOrigin.DEFAULT
        else DemandStatus.ALIGNED
    )
    yield _row(
        rule,
        section,
        status,
        target=cell_of(rule, side),
        reason=_default("", value) if value.origin is ValueOrigin.DEFAULT else None,
        advice=rule.advice if met is False else "",
    )


def _compared(
    rule: Demand, section: str, target: Configuration, reference: Configuration
) -> Iterator[DemandRow]:
    values = target.values.get(rule.field), reference.values.get(rule.field)
    cells = cell_of(rule, target), cell_of(rule, reference)
    unreadable = [
        reason(Code.UNREADABLE, side=name, why=side.unreadable[rule.field])
        for name, side in (("target", target), ("reference", reference))
        if rule.field in side.unreadable
    ]
    severity = _severity(rule, target, reference)
    if unreadable:
        yield _row(rule, section, DemandStatus.NOT_COMPARABLE, severity, *cells, reason=_joined(unreadable))
        return
    if followed := _followed(rule, section, severity, target, reference):
        yield followed
        return
    if values[0] is None and values[1] is None:
        return
    if values[0] is None or values[1] is None:
        yield _one_sided(rule, section, severity, target, reference)
        return
    left, right = _effective(rule, target, values[0]), _effective(rule, reference, values[1])
    equal = same(left, right) or _alike(rule.field, left, right, target, reference)
    defaults = [
        _default(name, v)
        for name, v in (("target", values[0]), ("reference", values[1]))
        if v.origin is ValueOrigin.DEFAULT
    ]
    status = (
        DemandStatus.DIFFERENT if not equal else DemandStatus.DEFAULT if defaults else DemandStatus.ALIGNED
    )
    why = _joined(defaults)
    if equal and not same(values[0].value, values[1].value):
        why = reason(Code.SAME_EFFECT, *defaults)
    if not equal and same(values[0].value, values[1].value):
        why = reason(Code.OTHER_EFFECT)
    yield _row(rule, section, status, severity, *cells, reason=why, advice=_not_met(rule, target, reference))


def _followed(
    rule: Demand, section: str, severity: Severity, target: Configuration, reference: Configuration
) -> DemandRow | None:
    """Two values of which one or both only follow from other settings, in the code of their framework: where
    they differ, or could be set as the guide recommends."""
    sides = {"target": target, "reference": reference}
    followed = {name: side.followed(rule.field) for name, side in sides.items()}
    if all(value is None for value in followed.values()):
        return None
    cells = {name: cell_of(rule, side) for name, side in sides.items()}
    for name, value in followed.items():
        if value is not None:
            says = sides[name].not_configurable(rule.field) or ""
            cells[name] = DemandSide(value=value, origin=ValueOrigin.FIXED, says=says)
    left, right = (cells[name].value for name in sides)
    could = rule.recommended and any(side.with_followed(rule.field) is not side for side in sides.values())
    if left is None or right is None or (same(left, right) and not could):
        return None
    why = [
        reason(Code.FOLLOWS, side=name, value=str(value), why=cells[name].says)
        for name, value in followed.items()
        if value is not None
    ]
    return _row(
        rule,
        section,
        DemandStatus.DEFAULT if same(left, right) else _status_of_followed(followed, cells, sides),
        severity,
        cells["target"],
        cells["reference"],
        reason=_joined(why),
        advice=_verify(rule),
    )


def _status_of_followed(
    followed: Mapping[str, object], cells: Mapping[str, DemandSide], sides: Mapping[str, Configuration]
) -> DemandStatus:
    """What a file sets differs from what another of one program follows: without the key it has one way."""
    given = [name for name, value in followed.items() if value is None]
    dialects = [{document.dialect for document in side.documents} for side in sides.values()]
    is_known = len(given) == 1 and dialects[0] == dialects[1] and cells[given[0]].origin is ValueOrigin.SET
    return DemandStatus.DIFFERENT if is_known else DemandStatus.SUSPECT


def _joined(reasons: Sequence[Reason]) -> Reason | None:
    return reason(Code.SIDES, *reasons) if len(reasons) > 1 else next(iter(reasons), None)


def _alike(field: str, left: object, right: object, target: Configuration, reference: Configuration) -> bool:
    """Two spellings of one setting: files in other folders, windows that count the token itself or not,
    labels to ignore that are no word's id, each framework's own."""
    if field == "chat_template":
        from trueup.checklist.templates import same_template

        return same_template(left, right) is True
    if field in ("data_files", "tokenizer"):
        return _file_names(left) == _file_names(right)
    own = {document.dialect for document in target.documents}
    crossing = own.isdisjoint(document.dialect for document in reference.documents)
    if field == "ignore_token_id" and isinstance(left, int) and isinstance(right, int):
        return crossing and max(left, right) < 0
    if field == "sliding_window" and isinstance(left, int) and isinstance(right, int):
        return crossing and min(left, right) > 0 and abs(left - right) == 1
    return False


def _file_names(value: object) -> list[str]:
    """Names without folder and the endings that a format gives; the share of a mixture stays."""
    items = value if isinstance(value, list) else [value]
    parts = [_SHARE.match(str(item).rstrip("/")) for item in items]
    return [_ENDINGS.sub("", f"{part[1]}{part[2].rpartition('/')[2]}") for part in parts if part]


def _one_sided(
    rule: Demand, section: str, severity: Severity, target: Configuration, reference: Configuration
) -> DemandRow:
    """A field one side says nothing of: it cannot, or it did not."""
    silent, name = (target, "target") if rule.field not in target.values else (reference, "reference")
    cells = cell_of(rule, target), cell_of(rule, reference)
    fixed = silent.not_configurable(rule.field)
    if fixed:
        return _row(
            rule,
            section,
            DemandStatus.NOT_CONFIGURABLE,
            severity,
            *cells,
            reason=reason(Code.NOT_CONFIGURABLE, side=name, why=fixed),
            advice=_verify(rule),
        )
    return _row(
        rule,
        section,
        DemandStatus.NOT_SET,
        severity,
        *cells,
        reason=reason(Code.NOT_SET, side=name),
        advice=_not_met(rule, target, reference),
    )


def _effective(rule: Demand, side: Configuration, value: CanonicalValue) -> object:
    if not rule.compare:
        return value.value
    try:
        return parsed(rule.compare).evaluate(side)
    except (Unset, ConfigError):
        return value.value


def _severity(rule: Demand, target: Configuration, reference: Configuration) -> Severity:
    frameworks = [
        side.values["framework"].value for side in (target, reference) if "framework" in side.values
    ]
    crossing = len(frameworks) == 2 and frameworks[0] != frameworks[1]
    return rule.across if crossing and rule.across else rule.severity


def _not_met(rule: Demand, target: Configuration, reference: Configuration) -> str:
    if not rule.recommended:
        return ""
    sides = [side for side in (target, reference) if rule.field in side.values and applies(rule.when, side)]
    return rule.advice if any(holds(rule.recommended, side) is False for side in sides) else ""


def _verify(rule: Demand) -> str:
    return f"{rule.verify} in the precision table of trueup compare" if rule.verify else ""


def _default(side: str, value: CanonicalValue) -> Reason:
    return reason(Code.DEFAULT, side=side, of=value.says)


def cell_of(rule: Demand, side: Configuration) -> DemandSide:
    """The field's value on one side, with where it comes from."""
    value = side.values.get(rule.field)
    how = side.how_to_set(rule.field)
    if value is None:
        return DemandSide(set_with=how)
    return DemandSide(
        value=value.value,
        origin=value.origin,
        keys=tuple(s.key for s in value.settings),
        places=tuple(s.place for s in value.settings),
        says=value.says,
        set_with=how,
    )


def _row(
    rule: Demand,
    section: str,
    status: DemandStatus,
    severity: Severity | None = None,
    target: DemandSide | None = None,
    reference: DemandSide | None = None,
    *,
    reason: Reason | None = None,
    advice: str = "",
) -> DemandRow:
    about = fields().spec(rule.field).about if rule.field else rule.key.replace("_", " ")
    return DemandRow(
        key=rule.key,
        section=section,
        about=about,
        status=status,
        severity=severity or rule.severity,
        target=target or DemandSide(),
        reference=reference,
        reason=reason,
        why=rule.why,
        advice=advice,
        sources=rule.sources,
        acts=rule.acts,
    )
