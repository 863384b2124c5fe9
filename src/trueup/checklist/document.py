"""The outcome of a check as one JSON document: what every report is drawn from."""

from __future__ import annotations

from collections import Counter

from trueup.checklist.check import Checklist
from trueup.checklist.configuration import Configuration
from trueup.checklist.fields import fields
from trueup.checklist.judging import Cell, Row, Status
from trueup.checklist.schedule import Schedule
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import Reason, reason

FORMAT = 1
_DRAWN_POINTS = 400


def to_json(checklist: Checklist) -> dict[str, object]:
    """``checklist.json``, version 1; docs/check.md says what is in it."""
    return {
        "format": FORMAT,
        "outcome": checklist.outcome,
        "exit_code": checklist.exit_code,
        "headline": headline(checklist),
        "target": _side(checklist.target),
        "reference": None if checklist.reference is None else _side(checklist.reference),
        "counts": dict(Counter(row.status.value for row in checklist.rows)),
        "sections": {key: section.title for key, section in fields().sections.items()},
        "rows": [_row(row, is_open=row in checklist.undecided) for row in checklist.rows],
        "schedules": _schedules(checklist),
        "versions": {
            name: {"together": verdict.together, "sentence": verdict.sentence}
            for name, verdict in checklist.versions.items()
        },
        "unread": checklist.unread(),
    }


def headline(checklist: Checklist) -> Reason:
    """How many settings differ, and how much they matter."""
    if checklist.reference is None:
        unmet = [row for row in checklist.rows if row.status is Status.BROKEN and row.severity != "note"]
        return reason(Code.UNMET, num=len(unmet)) if unmet else reason(Code.ALL_MET)
    rows = [row for row in checklist.rows if row.matters]
    errors = sum(row.severity == "error" for row in rows)
    if errors:
        return reason(Code.OTHER_TRAINING, num=errors, more=len(rows) - errors)
    if rows:
        return reason(Code.OTHER_NUMBERS, num=len(rows))
    if checklist.rates_part:
        return reason(Code.RATES_DIFFER)
    if checklist.undecided:
        return reason(Code.OPEN, num=len(checklist.undecided))
    return reason(Code.LIMITED_SAME if checklist.limited else Code.SAME_TRAINING)


def _side(side: Configuration) -> dict[str, object]:
    return {
        "name": side.name,
        "documents": [
            {
                "path": t.document.path,
                "dialect": t.document.dialect,
                "title": t.dialect.default_words(),
                "num_settings": len(t.document.settings),
            }
            for t in side.translations
        ],
        "notes": list(side.notes),
        "values": {
            name: {"value": value.value, "origin": value.origin.value, "says": value.says}
            for name, value in side.values.items()
        },
    }


def _row(row: Row, *, is_open: bool) -> dict[str, object]:
    return {
        "key": row.key,
        "section": row.section,
        "about": row.about,
        "status": row.status.value,
        "severity": row.severity,
        "matters": row.matters,
        "open": is_open,
        "target": _cell(row.target),
        "reference": None if row.reference is None else _cell(row.reference),
        "reason": row.reason or "",
        "why": row.why,
        "advice": row.advice,
        "sources": list(row.sources),
    }


def _cell(cell: Cell) -> dict[str, object]:
    return {
        "value": cell.value,
        "origin": None if cell.origin is None else cell.origin.value,
        "keys": list(cell.keys),
        "places": list(cell.places),
        "says": cell.says,
        "set_with": cell.set_with,
    }


def _schedules(checklist: Checklist) -> dict[str, object]:
    found = checklist.schedules
    return {
        "same": found.same if checklist.weighs_schedules else None,
        "learning_rate_gap": found.learning_rate_gap,
        "weight_decay_gap": found.weight_decay_gap,
        "first_step_apart": found.first_step_apart,
        "target": _schedule(found.target),
        "reference": None if found.reference is None else _schedule(found.reference),
    }


def _schedule(schedule: Schedule) -> dict[str, object]:
    every = max(1, -(-len(schedule.steps) // _DRAWN_POINTS))
    chosen = sorted({*range(0, len(schedule.steps), every), len(schedule.steps) - 1})
    rate, decay = schedule.learning_rate, schedule.weight_decay
    return {
        "steps": [int(schedule.steps[i]) for i in chosen],
        "learning_rate": None if rate is None else [float(rate[i]) for i in chosen],
        "weight_decay": None if decay is None else [float(decay[i]) for i in chosen],
        "missing": schedule.missing,
    }
