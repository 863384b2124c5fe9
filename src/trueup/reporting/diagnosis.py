"""diagnosis.html: a page that reads like the report of an incident, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trueup.reporting.diagnosis_drawing import model_drawing
from trueup.reporting.diagnosis_errors import error_drawing
from trueup.reporting.diagnosis_model import NUMERICAL, Report, coordinates, report_from, sources
from trueup.reporting.formatting import as_sentence, plain, short_site
from trueup.reporting.templates import asset, furniture, write_page

_OUTCOME = {
    "agree": ("✓", "The runs agree"),
    "differ": ("≠", "The runs differ"),
    "undecided": ("?", "Undecided"),
}
_STAGE = {
    "passed": ("✓", "passed"),
    "failed": ("✕", "failed"),
    "consequence": ("→", "follows from an earlier stage"),
    "undecided": ("?", "cannot be told"),
    "skipped": ("·", "not looked at"),
}
_FAMILY = {NUMERICAL: "a numerical problem: word length, order of operations, dtype"}
_OTHERWISE = "a problem of the model: data, settings, structure, use of the framework"


def write_html(document: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a diagnosis (the document of diagnosis.json): nothing is loaded from elsewhere, every
    name in it is escaped."""
    return write_page(asset("diagnosis.html.j2"), _context(report_from(document)), path)


def _context(report: Report) -> dict[str, Any]:
    document = report.document
    style = asset("page.css") + asset("diagnosis.css")
    glyph, word = _OUTCOME.get(report.outcome, _OUTCOME["undecided"])
    apart = [phase for phase in ("forward", "backward") if any(p["error"] for p in report.points(phase))]
    drawings = [(phase.capitalize(), error_drawing(report, phase)) for phase in apart]
    return {
        **furniture(style, asset("diagnosis.js")),
        "names": {side: plain(document[side]) for side in ("target", "reference")},
        "outcome": report.outcome,
        "glyph": glyph,
        "word": word,
        "headline": plain(report.headline),
        "lede": _lede(report),
        "glance": _glance(report),
        "model": Markup(model_drawing(report)),
        "way": _way(report),
        "errors": [(name, Markup(drawing)) for name, drawing in drawings if drawing],
        "noise": not str(document["tolerance"]).startswith("dtype bound"),
        "stages": [_stage(stage) for stage in report.stages],
        "findings": [_finding(finding) for finding in report.findings],
        "texts": _texts(report),
        "notes": [plain(note) for note in dict.fromkeys(document["notes"])],
        "facts": _facts(report),
        "compare": plain(document["runs"].get("compare", "")),
    }


def _lede(report: Report) -> str:
    """What the likeliest kind says of this case; where there is none, the first piece of evidence."""
    if report.kind is not None:
        sentence = plain(report.kind["sentence"])
        return as_sentence(sentence).rstrip(".") + "."
    evidence = report.verdict.get("evidence") or []
    return plain(evidence[0]) if evidence else ""


def _glance(report: Report) -> list[dict[str, Any]]:
    verdict, kind = report.verdict, report.kind
    facts: list[dict[str, Any]] = []

    def add(name: str, value: str, *, also: str = "", mono: bool = False, meter: float | None = None) -> None:
        facts.append({"name": name, "value": plain(value), "also": plain(also), "mono": mono, "meter": meter})

    if not verdict:
        add("How sure", f"{report.document['confidence']:.0%}", meter=float(report.document["confidence"]))
        return facts
    if verdict.get("site"):
        add("Where", short_site(str(verdict["site"])), also=report.coordinates, mono=True)
    if kind is not None:
        add(
            "Kind of fault", str(kind["name"]).replace("_", " "), also=_FAMILY.get(kind["family"], _OTHERWISE)
        )
    how = (verdict.get("origin") or {}).get("basis")
    basis = {
        "replay": "by replay",
        "noise": "from the traces, against measured noise",
        "bound": "from the traces alone",
    }
    add(
        "How sure",
        f"{verdict['confidence']:.0%}",
        also=basis.get(str(how), ""),
        meter=float(verdict["confidence"]),
    )
    losses = report.document["losses"]
    if losses:
        shown = next((e for e in losses if e["target"] != e["reference"]), losses[0])
        value = f"{shown['target']:.7g} against {shown['reference']:.7g}"
        same = "the same" if shown["target"] == shown["reference"] else "where it first differs"
        add(f"Loss of step {shown['step']}", value, also=same)
    return facts


def _way(report: Report) -> str:
    verdict = report.verdict
    if not verdict:
        return "Every part of the model on both sides, forward to the loss and back."
    stage = verdict["stage"]
    if verdict.get("phase") == "param_grad" and stage == "backward":
        return (
            "Forward and backward agree; the gradient of one weight does not, and the error goes on with "
            "that weight's update. Numbers mark the findings."
        )
    said = {
        "config": "The settings differ; on the way of the captured steps nothing else is wrong.",
        "long_run": "The captured steps agree, forward to the loss and back; the runs part later.",
        "data": "The error enters with the batch, before anything is computed, and reaches all that follows.",
        "weights": "The error is in the weights from the start, and reaches all that is computed with them.",
        "reduction": "Forward and backward agree; the error is made on the gradients' way to the optimizer.",
        "optimizer": "Up to the update both sides agree; the error is made there and shows in the next loss.",
        "resume": "The optimizer's state is not the reference's; the error shows after the first update.",
        "backward": "The forward agrees; the error is made in the backward and goes to the layers before it.",
    }.get(
        stage,
        "The error is made in the forward at the mark, and reaches the loss and every gradient.",
    )
    return said + " Numbers mark the findings."


def _stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    glyph, word = _STAGE[stage["status"]]
    name, _, what = str(stage["title"]).partition(": ")
    return {
        "status": stage["status"],
        "status_word": word,
        "glyph": glyph,
        "name": name,
        "what": what,
        "said": plain(stage["said"]),
        "evidence": [plain(sentence) for sentence in stage["evidence"]][:6],
    }


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    kinds = finding.get("kinds") or []
    parts = [short_site(plain(finding["site"])) if finding.get("site") else "", coordinates(finding)]
    if kinds:
        parts.append(f"{kinds[0]['name'].replace('_', ' ')} ({float(kinds[0]['confidence']):.0%})")
    parts.append(f"{float(finding['confidence']):.0%} sure")
    note = plain(finding.get("next_note") or "")
    return {
        "headline": plain(finding["headline"]),
        "line": " · ".join(part for part in parts if part),
        "sources": [(side, plain(place), plain(code)) for side, place, code in sources(finding)],
        "evidence": [plain(sentence) for sentence in dict.fromkeys(finding["evidence"])],
        "counter_evidence": [plain(sentence) for sentence in finding["counter_evidence"]],
        "causes": [plain(cause) for cause in finding["causes"]][:5],
        "others": "; ".join(
            f"{k['name'].replace('_', ' ')} ({float(k['confidence']):.0%}): {plain(k['sentence'])}"
            for k in kinds[1:3]
        ),
        "next": plain(finding["next"]) if finding.get("next") else "",
        "next_note": as_sentence(note),
    }


def _texts(report: Report) -> list[dict[str, Any]]:
    for stage in report.stages:
        found = stage["details"].get("texts")
        if found:
            return [
                {key: plain(value) if isinstance(value, str) else value for key, value in row.items()}
                for row in found
            ]
    return []


def _facts(report: Report) -> list[tuple[str, str]]:
    document = report.document
    facts = [("target", document["target"]), ("reference", document["reference"])]
    if document["command"]:
        facts.append(("the target's command", document["command"]))
    facts += [(f"folder of {name}", folder) for name, folder in document["runs"].items()]
    if document["seconds"]:
        facts.append(
            ("seconds", ", ".join(f"{name} {value:.1f}" for name, value in document["seconds"].items()))
        )
    return [(name, plain(value)) for name, value in facts]
