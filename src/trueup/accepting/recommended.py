"""The guide's recommendations in a sign-off, and settings that differ without a rule that judges them: none
is signed over unless a person waives it with a reason."""

from __future__ import annotations

from collections.abc import Mapping

from trueup.accepting.item import Item, ProcedurePart, State
from trueup.checklist.check import EXTRA_ROWS, NotJudged
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandSide
from trueup.checklist.recommendations import Unmet
from trueup.checklist.rules import rules
from trueup.diagnosing.stages.config import Configurations
from trueup.errors import ConfigError
from trueup.types.codes import AcceptCode as Code
from trueup.types.option import unknown_key_message
from trueup.types.reason import Reason, reason

_KEY = "recommendations"


def recommendation_items(both: Configurations | None, waived: Mapping[str, str]) -> list[Item]:
    """One item for each recommendation that is not followed, or one that says all are.

    An item that is not waived decides: the sign-off stays open until the setting is changed or waived.
    """
    if both is None:
        return []
    found = [one for one in both.checklist.unmet if one.counts]
    return [_item(one, waived.get(one.key)) for one in found] or [_followed(both)]


def unjudged_items(both: Configurations | None, waived: Mapping[str, str]) -> list[Item]:
    """One item for each setting that differs and that no rule reads: only a person knows what it changes."""
    return [] if both is None else [_unjudged(one, waived.get(one.key)) for one in both.checklist.not_judged]


def needless(both: Configurations | None, waived: Mapping[str, str]) -> list[Reason]:
    """Waivers of rows that are followed, of settings that do not differ, or that nothing given tells of.

    Raises:
        ConfigError: a waived row that there is not.
    """
    open_, differing = waivable(both), set[str]()
    known = {*EXTRA_ROWS, *(rule.key for file in rules().values() for rule in file)}
    if both is not None:
        differing = {row.key for row in both.checklist.rows if row.matters}
        known |= open_ | both.checklist.unread_keys()
    for key in waived:
        if key not in known:
            raise ConfigError(f"--waive: {unknown_key_message(key, known, 'row')}")
    return [
        reason(Code.NO_WAIVER if key in differing else Code.NEEDLESS_WAIVER, key=key)
        for key in waived
        if key not in open_
    ]


def waivable(both: Configurations | None) -> set[str]:
    """Rows and settings that only a waiver signs over."""
    if both is None:
        return set()
    unmet = {one.key for one in both.checklist.unmet if one.counts}
    return unmet | {one.key for one in both.checklist.not_judged}


def _unjudged(one: NotJudged, why_waived: str | None) -> Item:
    return Item(
        key=f"setting:{one.key}",
        part=ProcedurePart.CHECKLIST,
        title=reason(Code.UNJUDGED, key=one.key),
        state=State.WARNING if why_waived is None else State.WAIVED,
        binding=why_waived is None,
        measured=reason(Code.VALUES_DIFFER, **_texts(one)),
        threshold=reason(Code.SAME_VALUE),
        origin=reason(Code.CHECKLIST, section=""),
        evidence=_waived(why_waived),
        how=reason(Code.WAIVE_SETTING, key=one.key) if why_waived is None else None,
    )


def _texts(one: NotJudged) -> dict[str, str]:
    """Both values; quoted where they read alike, or like none."""
    values = {"target": one.target, "reference": one.reference}
    alike = str(one.target) == str(one.reference) or "" in values.values()
    return {side: "" if of is None else repr(of) if alike else str(of) for side, of in values.items()}


def _waived(why: str | None) -> tuple[Reason, ...]:
    return () if why is None else (reason(Code.WAIVED_BECAUSE, why=why),)


def _item(one: Unmet, why_waived: str | None) -> Item:
    return Item(
        key=f"recommendation:{one.key}",
        part=ProcedurePart.CHECKLIST,
        title=reason(Code.RECOMMENDATION, key=one.key),
        state=State.WARNING if why_waived is None else State.WAIVED,
        binding=why_waived is None,
        measured=reason(Code.NOT_FOLLOWED, target=_value(one.target), reference=_value(one.reference)),
        threshold=one.wanted,
        origin=reason(Code.CHECKLIST, section=fields().sections[one.section].title.lower()),
        evidence=(*_waived(why_waived), *([reason(Code.WHY, why=one.why)] if one.why else [])),
        how=reason(Code.WAIVE, key=one.key, ways=[f"{side}: {text}" for side, text in one.how])
        if why_waived is None
        else None,
    )


def _value(cell: DemandSide | None) -> str:
    return "" if cell is None or cell.value is None else str(cell.value)


def _followed(both: Configurations) -> Item:
    return Item(
        key=_KEY,
        part=ProcedurePart.CHECKLIST,
        title=reason(Code.TITLE, key=_KEY),
        state=State.PASSED,
        binding=False,
        measured=reason(Code.ALL_FOLLOWED),
        threshold=reason(Code.ALL_FOLLOWED),
        origin=reason(Code.CHECKLIST, section=""),
    )
