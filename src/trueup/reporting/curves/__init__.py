"""Reports of compared curves: terminal, page, pictures, workbook, text to sign."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from trueup.curves.comparison import CurveComparison
from trueup.errors import ConfigError
from trueup.reporting.curves.report import curves_report
from trueup.reporting.document import Document
from trueup.reporting.render import write
from trueup.wording import document as as_document

if TYPE_CHECKING:
    from trueup.diagnosing.around import Around

FILES = {
    "json": "curves.json",
    "html": "curves.html",
    "png": "curves.png",
    "xlsx": "acceptance.xlsx",
    "md": "acceptance.md",
}
FORMATS = tuple(FILES)


def write_reports(
    comparisons: Sequence[CurveComparison],
    folder: Path,
    formats: Collection[str],
    *,
    around: Mapping[str, Around] | None = None,
) -> dict[str, Path]:
    """Write the reports asked for into ``folder``: one file a format, one picture a target.

    ``around``: target's name -> what traces say of the steps around its onset.

    Raises:
        ConfigError: a format needs a package that is not installed; all others are written before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    document = document_of(comparisons, around or {})
    report = curves_report(comparisons, around=around)
    written: dict[str, Path] = {}
    missing: list[str] = []
    for name in FORMATS:
        if name not in formats:
            continue
        try:
            written |= _write(name, comparisons, document, report, folder)
        except ConfigError as error:
            missing.append(str(error))
    if missing:
        raise ConfigError("; ".join(missing))
    return written


class CurvesDocument(TypedDict):
    """What curves.json holds."""

    version: int
    exit_code: int
    comparisons: list[dict[str, object]]


def document_of(comparisons: Sequence[CurveComparison], around: Mapping[str, Around]) -> CurvesDocument:
    """The document of curves.json: one entry a target, numbers that are not finite as null."""
    entries = [as_document(c.to_json()) | {"around": around.get(c.target.name)} for c in comparisons]
    codes = [entry["exit_code"] for entry in entries]
    plain = _finite({"version": 2, "exit_code": exit_code(codes), "comparisons": entries})
    return cast(CurvesDocument, plain)


def exit_code(codes: Sequence[int]) -> int:
    """Of several targets: 1 where one differs, else 2 where one is undecided."""
    return 1 if 1 in codes else max(codes, default=2)


def _write(
    name: str,
    comparisons: Sequence[CurveComparison],
    document: Mapping[str, object],
    report: Document,
    folder: Path,
) -> dict[str, Path]:
    if name == "json":
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1, default=str)
        (folder / FILES[name]).write_text(text + "\n", encoding="utf-8")
        return {name: folder / FILES[name]}
    if name != "png":
        return {name: write(report, folder / FILES[name])}
    from trueup.reporting.curves.png import write_png

    if len(comparisons) == 1:
        return {name: write_png(comparisons[0], folder / FILES[name])}
    return {
        f"png {number}": write_png(comparison, folder / f"curves-{number}.png")
        for number, comparison in enumerate(comparisons, 1)
    }


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
