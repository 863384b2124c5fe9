"""Whether an answer is right about an entry."""

from __future__ import annotations

from dataclasses import dataclass

from bugzoo.entries import Entry
from bugzoo.scoreboard.answers import RAN, Answer, Named


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Right or wrong; None where it is not asked."""

    stage: bool | None = None
    site: bool | None = None
    """the first place named is right"""
    among_three: bool | None = None
    kind: bool | None = None
    """the first kind of the first place is right"""
    whose: bool | None = None
    """so is the axis, or the process, that it names"""
    false_alarm: bool | None = None
    """of a change that is no fault"""


def judge(entry: Entry, answer: Answer | None) -> Judged:
    """Stage, site and kind of a fault; whether a change that is none is called a difference.

    A fault that no module owns is found where its stage is named.
    """
    if answer is None or answer.state != RAN:
        return Judged()
    if entry.is_benign:
        return Judged(false_alarm=answer.outcome == "differ")
    first = answer.named[0] if answer.named and answer.outcome != "agree" else None
    three = answer.named[:3] if first else []
    return Judged(
        stage=first is not None and is_stage(entry, first),
        site=first is not None and is_place(entry, first),
        among_three=any(is_place(entry, named) for named in three),
        kind=first is not None and bool(first.kinds) and first.kinds[0] in entry.kinds,
        whose=is_whose(entry, first),
    )


def is_whose(entry: Entry, named: Named | None) -> bool | None:
    """Whether the processes that err are named: some alone, or the axis along which all do not agree."""
    if entry.axes is None and entry.ranks is None:
        return None
    if named is None:
        return False
    if entry.ranks is not None:
        return named.ranks == entry.ranks
    return named.axis in entry.axes if entry.axes else named.axis is None and not named.ranks


def is_stage(entry: Entry, named: Named) -> bool:
    """Whether the stage is the entry's, or one that is right too."""
    return named.stage in (entry.stage, *entry.also_stages)


def is_place(entry: Entry, named: Named) -> bool:
    """Whether the site is the entry's; where no module owns it, whether the stage is."""
    return is_stage(entry, named) if entry.sites is None else entry.is_site(named.site)
