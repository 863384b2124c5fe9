"""Reports of a sign-off: the screen, the page and the text to file, and pages of what it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trueup.accepting.procedure import Procedure
from trueup.accepting.signoff import FILE
from trueup.errors import ConfigError

STATES = {
    "passed": ("✓", "passed"),
    "failed": ("✕", "failed"),
    "warning": ("!", "beyond, does not reject"),
    "not shown": ("·", "not shown"),
}
"""glyph and words of each state"""
OUTCOMES = {"accepted": ("✓", "Accepted"), "refused": ("✕", "Refused"), "undecided": ("?", "Undecided")}
CURVES, NO_UPDATE = "long-run", "learning-rate-0"


def write_reports(procedure: Procedure, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Write signoff.html and signoff.md into ``folder`` beside signoff.json, and the reports they point to.

    Returns:
        The files of the sign-off, and what could not be written, with the reason.
    """
    from trueup.reporting.signoff.html import write_html
    from trueup.reporting.signoff.markdown import write_markdown

    document = procedure.signoff.to_json()
    details, missing = _details(procedure, folder)
    written = {
        "html": write_html(document, folder / "signoff.html", details=details),
        "md": write_markdown(document, folder / "signoff.md", details=details),
        "json": folder / FILE,
    }
    return written, missing


def _details(procedure: Procedure, folder: Path) -> tuple[dict[str, str], list[str]]:
    """part -> its own report, relative to the folder."""
    found: dict[str, str] = {}
    missing: list[str] = []
    jobs: dict[str, Callable[[], Path | None]] = {
        "checklist": lambda: _checklist(procedure, folder / "checklist"),
        "first_steps": lambda: _diagnosis(procedure, folder / "diagnosis"),
        "long_run": lambda: _curves(procedure.curves, folder / CURVES),
        "no_update": lambda: _curves(procedure.no_update, folder / NO_UPDATE),
    }
    for part, job in jobs.items():
        try:
            path = job()
        except ConfigError as error:
            missing.append(str(error))
            continue
        if path is not None:
            found[part] = path.relative_to(folder).as_posix()
    return found, list(dict.fromkeys(missing))


def _checklist(procedure: Procedure, folder: Path) -> Path | None:
    if procedure.configurations is None:
        return None
    from trueup.checklist.document import to_json
    from trueup.reporting.checklist_html import write_html

    folder.mkdir(parents=True, exist_ok=True)
    document = to_json(procedure.configurations.checklist)
    text = json.dumps(document, ensure_ascii=False, indent=2)
    (folder / "checklist.json").write_text(text + "\n", encoding="utf-8")
    return write_html(document, folder / "checklist.html")


def _diagnosis(procedure: Procedure, folder: Path) -> Path | None:
    if procedure.diagnosis is None:
        return None
    from trueup.reporting.diagnosis import write_html

    return write_html(procedure.diagnosis.to_json(), folder / "diagnosis.html")


def _curves(comparison: Any, folder: Path) -> Path | None:
    if comparison is None:
        return None
    from trueup.reporting.curves import write_reports

    return write_reports([comparison], folder, ("json", "html", "png"))["html"]


def items_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every item in the guide's order."""
    return [item for part in document["parts"] for item in part["items"]]
