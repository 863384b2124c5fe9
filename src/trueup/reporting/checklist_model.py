"""What the reports of a check share: how values, places and statuses read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trueup.reporting.formatting import plain

STATUS = {
    "different": ("≠", "different"),
    "broken": ("!", "recommendation not kept"),
    "not_comparable": ("?", "not comparable"),
    "not_set": ("∅", "not set on one side"),
    "not_configurable": ("–", "not configurable there"),
    "framework_default": ("≈", "aligned, by a framework's default"),
    "aligned": ("=", "aligned"),
    "by_hand": ("☞", "to look at by hand"),
}
"""glyph and words of each status, worst first"""
SEVERITY = {"error": "another training", "warning": "may change the numbers", "note": "to know"}
_LONGEST = 44


def shown(value: Any, *, longest: int = _LONGEST) -> str:
    """A value as people write it: ``1e-05`` as 1e-5, a long list by its ends, an en dash for none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    text = plain(value)
    return text if len(text) <= longest else f"{text[: longest // 2 - 1]}…{text[-longest // 2 :]}"


def number_text(value: float) -> str:
    """A setting as exactly as it was written: ``1e-8``, ``0.95``, ``500000``."""
    if value == int(value) and abs(value) < 1e9:
        return str(int(value)) if abs(value) >= 10 or value == 0 else f"{value:.1f}"
    mantissa, _, exponent = f"{value:.10g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def place(cell: Mapping[str, Any] | None) -> str:
    """Where a cell's value stands: key and line, or what else gives it."""
    if cell is None or cell["value"] is None:
        return ""
    if cell["origin"] == "default":
        return f"default of {cell['says']}"
    if cell["places"]:
        words = f"{cell['keys'][0]} ({file_and_line(cell['places'][0])})"
        more = len(cell["places"]) - 1
        return (
            words
            + (f" and {more} more" if more else "")
            + (" (computed)" if cell["origin"] == "derived" else "")
        )
    return str(cell["says"])


def file_and_line(text: str) -> str:
    """A place without the folders before its file."""
    where, bracket, what = text.partition(" (")
    return where.rpartition("/")[2] + bracket + what


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of one section: worst status first, then severity, else as the rules stand."""
    statuses, severities = list(STATUS), list(SEVERITY)
    return sorted(rows, key=lambda row: (statuses.index(row["status"]), severities.index(row["severity"])))


def telling(row: Mapping[str, Any]) -> bool:
    """Whether a row belongs on the first screen: it differs, breaks a rule, or leaves the verdict open."""
    if row["status"] in ("different", "broken", "not_comparable"):
        return bool(row["severity"] != "note")
    return bool(row["open"])


def sources(row: Mapping[str, Any]) -> str:
    """The rows of the guide a demand comes from."""
    return f"accuracy guide, {'; '.join(row['sources'])}"
