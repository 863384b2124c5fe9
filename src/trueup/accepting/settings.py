"""The guide's checklist in a sign-off: one item a section, and the learning rates that settings lead to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueup.accepting.item import Item, ProcedurePart, State
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandRow, DemandStatus
from trueup.checklist.rules import SECTIONS
from trueup.diagnosing.stages.config import Configurations, row_reason
from trueup.types.codes import AcceptCode as Code
from trueup.types.reason import Reason, reason

_COMPARED = (DemandStatus.ALIGNED, DemandStatus.DEFAULT, DemandStatus.DIFFERENT)
_LISTED = 8


def checklist_items(both: Configurations | None) -> list[Item]:
    """One item a section of the checklist, then the schedules."""
    if both is None:
        none = _nothing("checklist", reason(Code.TITLE, key="checklist"))
        return [replace(none, measured=reason(Code.NO_CONFIGS))]
    found = [_section(section, both) for section in SECTIONS]
    return [item for item in (*found, _schedules(both)) if item is not None]


def by_hand(both: Configurations | None) -> list[Reason]:
    """What only a person can look at."""
    rows = both.checklist.rows if both is not None else ()
    return [
        reason(Code.BY_HAND, row.reason, advice=row.advice)
        for row in rows
        if row.status is DemandStatus.BY_HAND and row.reason is not None
    ]


def _nothing(key: str, title: Reason) -> Item:
    return Item(
        key=key,
        part=ProcedurePart.CHECKLIST,
        title=title,
        state=State.NOT_SHOWN,
        binding=False,
        measured=reason(Code.NO_SETTINGS),
        threshold=reason(Code.NO_SETTING),
        origin=reason(Code.CHECKLIST, section=""),
        how=reason(Code.GIVE_CONFIGS),
    )


# In one piece: one branch a state, in the order of what weighs most.
def _section(section: str, both: Configurations) -> Item | None:
    checklist = both.checklist
    rows = [
        row for row in checklist.rows if row.section == section and row.status is not DemandStatus.BY_HAND
    ]
    compared = [row for row in rows if row.status in _COMPARED]
    name = fields().sections[section].title
    title = reason(Code.SECTION, title=name)
    nothing = _nothing(f"checklist:{section}", title)
    if not rows:
        return None if section in ("moe", "rl") else nothing
    grave = [row for row in rows if row.matters and row.severity == "error"]
    light = [row for row in rows if row.matters and row.severity != "error"]
    open_ = [row for row in rows if row in checklist.undecided]
    suspects = [row for row in rows if row.status is DemandStatus.SUSPECT]
    state = (
        State.FAILED
        if grave
        else State.NOT_SHOWN
        if open_
        else State.WARNING
        if light or suspects
        else State.PASSED
    )
    evidence = [
        *map(row_reason, (*grave, *light)),
        *(reason(Code.SUSPECT, row.reason, key=row.key) for row in suspects if row.reason is not None),
        *(reason(Code.NOT_COMPARED, row.reason, key=row.key) for row in open_ if row.reason is not None),
    ]
    if not compared:
        return replace(nothing, evidence=_few(evidence))
    return Item(
        key=f"checklist:{section}",
        part=ProcedurePart.CHECKLIST,
        title=title,
        state=state,
        binding=state is State.FAILED,
        measured=_measured(compared, grave, light, open_),
        threshold=reason(Code.NO_SETTING),
        origin=reason(Code.CHECKLIST, section=name.lower()),
        evidence=_few(evidence),
        how=reason(Code.GIVE_CONFIGS) if state is State.NOT_SHOWN else None,
    )


def _measured(
    compared: Sequence[DemandRow],
    grave: Sequence[DemandRow],
    light: Sequence[DemandRow],
    open_: Sequence[DemandRow],
) -> Reason:
    aligned = len(compared) - sum(row.status is DemandStatus.DIFFERENT for row in compared)
    return reason(
        Code.SETTINGS,
        aligned=aligned,
        total=len(compared),
        grave=[row.key for row in grave],
        light=[row.key for row in light],
        open=len(open_),
    )


def _few(evidence: Sequence[Reason]) -> tuple[Reason, ...]:
    more = len(evidence) - _LISTED
    return (*evidence[:_LISTED], *((reason(Code.AND_MORE, num=more),) if more > 0 else ()))


def _schedules(both: Configurations) -> Item:
    found = both.checklist.schedules
    state = {True: State.PASSED, False: State.FAILED, None: State.NOT_SHOWN}[found.same]
    if found.same is False:
        measured = reason(Code.SCHEDULES_DIFFER, step=found.first_step_apart)
    elif found.same:
        measured = reason(Code.SCHEDULES_EQUAL, num=len(found.target.steps))
    else:
        sides = {"target": found.target, "reference": found.reference}
        lacking = {name: side.missing for name, side in sides.items() if side is not None and side.missing}
        side, missing = next(iter(lacking.items()), ("", ""))
        alike = len(lacking) == 2 and len({*lacking.values()}) == 1
        measured = reason(Code.NO_SCHEDULE, missing=missing, side="" if alike else side)
    return Item(
        key="checklist:schedules",
        part=ProcedurePart.CHECKLIST,
        title=reason(Code.TITLE, key="checklist:schedules"),
        state=state,
        binding=state is State.FAILED,
        measured=measured,
        threshold=reason(Code.EVERY_STEP),
        origin=reason(Code.CHECKLIST, section="optimizer, lr and lr_warmup_fraction"),
        how=reason(Code.GIVE_CONFIGS) if state is State.NOT_SHOWN else None,
    )
