"""The outcome of a check as one JSON document: what every report is drawn from."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from trueup.checklist.check import Checklist
from trueup.checklist.configuration import Configuration
from trueup.checklist.fields import fields
from trueup.checklist.judging import DemandRow, DemandSide
from trueup.checklist.recommendations import Unmet
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
        "verdict": {
            "same_training": None
            if checklist.reference is None
            else {"outcome": checklist.training, "headline": training_headline(checklist)},
            "suspects": [row.key for row in checklist.suspects],
            "recommendations": {"outcome": checklist.advised, "headline": advice_headline(checklist)},
        },
        "target": _side(checklist.target),
        "reference": None if checklist.reference is None else _side(checklist.reference),
        "counts": dict(Counter(row.status.value for row in checklist.rows)),
        "sections": {key: section.title for key, section in fields().sections.items()},
        "rows": [_row(row, is_open=row in checklist.undecided) for row in checklist.rows],
        "recommendations": [_unmet(one) for one in checklist.unmet],
        "schedules": _schedules(checklist),
        "versions": {
            name: {"together": verdict.together, "sentence": verdict.sentence}
            for name, verdict in checklist.versions.items()
        },
        "unread": checklist.unread(),
        "not_judged": [asdict(one) for one in checklist.not_judged],
    }


def headline(checklist: Checklist) -> Reason:
    """Both parts of the verdict; of one side the recommendations alone."""
    if checklist.reference is None:
        nothing = not checklist.limited and not checklist.read_on_all_sides and not checklist.unmet
        return reason(Code.NOTHING_READ) if nothing else advice_headline(checklist)
    return reason(Code.TWO_PARTS, training_headline(checklist), advice_headline(checklist))


def advice_headline(checklist: Checklist) -> Reason:
    """How many of the guide's recommendations are not followed."""
    if not checklist.recommends:
        return reason(Code.NOT_ASKED)
    grave = sum(one.counts for one in checklist.unmet)
    notes = len(checklist.unmet) - grave
    if grave:
        return reason(Code.UNMET, num=grave, notes=notes)
    if notes:
        return reason(Code.NOTES_UNMET, num=notes, limited=checklist.limited)
    return reason(Code.LIMITED_MET if checklist.limited else Code.ALL_MET)


def training_headline(checklist: Checklist) -> Reason:
    """How many settings differ, and how much they matter."""
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
    if checklist.not_judged:
        return reason(Code.NOT_JUDGED, num=len(checklist.not_judged))
    if checklist.limited:
        return reason(Code.LIMITED_SAME)
    if not checklist.read_on_all_sides:
        return reason(Code.NOTHING_READ)
    is_training = checklist.read_on_all_sides - {"environment"}
    return reason(Code.SAME_TRAINING if is_training else Code.SAME_ENVIRONMENT)


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


def _row(row: DemandRow, *, is_open: bool) -> dict[str, object]:
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


def _unmet(one: Unmet) -> dict[str, object]:
    return {
        "key": one.key,
        "section": one.section,
        "about": one.about,
        "severity": one.severity,
        "sides": list(one.sides),
        "target": None if one.target is None else _cell(one.target),
        "reference": None if one.reference is None else _cell(one.reference),
        "recommended": one.wanted,
        "recommended_value": one.value,
        "reason": one.reason or "",
        "why": one.why,
        "advice": one.advice,
        "set_with": dict(one.how),
        "sources": list(one.sources),
    }


def _cell(cell: DemandSide) -> dict[str, object]:
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
