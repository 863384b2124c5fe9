"""The guide's checklist in a sign-off: one item a section, and the learning rates that settings lead to."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.accepting.item import GUIDE, Item, Part, State
from trueup.checklist.fields import fields
from trueup.checklist.judging import Row, Status
from trueup.checklist.rules import SECTIONS
from trueup.diagnosing.stages.config import Configurations, row_said
from trueup.wording import texts

HOW = "--config TARGET REFERENCE, the configuration files of both runs"
_THRESHOLD = "no setting that makes another training differs"
_COMPARED = (Status.ALIGNED, Status.DEFAULT, Status.DIFFERENT)
_LISTED = 8


def checklist_items(both: Configurations | None) -> list[Item]:
    """One item a section of the checklist, then the schedules."""
    if both is None:
        return [_nothing("checklist", "Settings of both runs")]
    found = [_section(section, both) for section in SECTIONS]
    return [item for item in (*found, _schedules(both)) if item is not None]


def by_hand(both: Configurations | None) -> list[str]:
    """What only a person can look at."""
    rows = both.checklist.rows if both is not None else ()
    return [
        f"{row.reason}{f' ({row.advice})' if row.advice else ''}"
        for row in rows
        if row.status is Status.BY_HAND
    ]


def _nothing(key: str, title: str) -> Item:
    return Item(
        key=key,
        part=Part.CHECKLIST,
        title=title,
        state=State.NOT_SHOWN,
        binding=False,
        measured="neither run tells of them",
        threshold=_THRESHOLD,
        origin=f"{GUIDE}, checklist",
        how=HOW,
    )


def _section(section: str, both: Configurations) -> Item | None:
    checklist = both.checklist
    rows = [row for row in checklist.rows if row.section == section and row.status is not Status.BY_HAND]
    compared = [row for row in rows if row.status in _COMPARED]
    title = fields().sections[section].title
    if not compared:
        return None if section == "moe" and rows == [] else _nothing(f"checklist:{section}", title)
    grave = [row for row in rows if row.matters and row.severity == "error"]
    light = [row for row in rows if row.matters and row.severity != "error"]
    unkept = [row for row in rows if row.status is Status.BROKEN and row.severity != "note"]
    open_ = [row for row in rows if row in checklist.undecided]
    state = (
        State.FAILED
        if grave
        else State.NOT_SHOWN
        if open_
        else State.WARNING
        if light or unkept
        else State.PASSED
    )
    evidence = [
        *texts(map(row_said, (*grave, *light))),
        *(f"{row.key}: {row.reason}" for row in unkept),
        *(f"{row.key} is not compared: {row.reason}" for row in open_),
    ]
    return Item(
        key=f"checklist:{section}",
        part=Part.CHECKLIST,
        title=title,
        state=state,
        binding=state is State.FAILED,
        measured=_measured(compared, grave, light, open_),
        threshold=_THRESHOLD,
        origin=f"{GUIDE}, checklist: {title.lower()}",
        evidence=_few(evidence),
        how=HOW if state is State.NOT_SHOWN else "",
    )


def _measured(
    compared: Sequence[Row], grave: Sequence[Row], light: Sequence[Row], open_: Sequence[Row]
) -> str:
    aligned = len(compared) - sum(row.status is Status.DIFFERENT for row in compared)
    words = [f"{aligned} of {len(compared)} settings aligned"]
    if grave:
        words.append(f"another training: {', '.join(row.key for row in grave[:4])}")
    if light:
        words.append(f"may change rounding: {', '.join(row.key for row in light[:4])}")
    if open_:
        words.append(f"{len(open_)} not comparable")
    return "; ".join(words)


def _few(texts: Sequence[str]) -> tuple[str, ...]:
    more = len(texts) - _LISTED
    return (*texts[:_LISTED], *((f"and {more} more, in the checklist's report",) if more > 0 else ()))


def _schedules(both: Configurations) -> Item:
    found = both.checklist.schedules
    state = {True: State.PASSED, False: State.FAILED, None: State.NOT_SHOWN}[found.same]
    if found.same is False:
        measured = f"apart from step {found.first_step_apart}"
    elif found.same:
        measured = f"the same in all {len(found.target.steps):,} steps"
    else:
        missing = found.target.missing or (found.reference.missing if found.reference else "")
        measured = f"cannot be computed{f': {missing}' if missing else ''}"
    return Item(
        key="checklist:schedules",
        part=Part.CHECKLIST,
        title="Learning rate and weight decay, computed step by step",
        state=state,
        binding=state is State.FAILED,
        measured=measured,
        threshold="the same at every step",
        origin=f"{GUIDE}, checklist: optimizer, lr and lr_warmup_fraction",
        how=HOW if state is State.NOT_SHOWN else "",
    )
