"""Writes docs/codes.md: every code with what it says, made from the catalogue. ``--check`` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src")]

from trueup.types.codes import Code  # noqa: E402
from trueup.types.reason import Reason, reason  # noqa: E402
from trueup.wording import advice, command, headline, phrase_of, phrases, text  # noqa: E402

PAGE = HERE / "codes.md"
HEAD = """# Codes

Every conclusion in trueup's JSON output has a `code` beside its `text`. Codes are stable: scripts should read
them, and the `numbers` and `places` beside them, never the text. This page is generated from the catalogue by
`python docs/make_codes.py`; the texts are examples with sample numbers.
"""


def page() -> str:
    """The whole page."""
    phrases()  # imports every room
    rooms = sorted(Code.__subclasses__(), key=lambda room: room.__module__ + room.__name__)
    return "\n".join([HEAD, *(line for room in rooms for line in section(room))]) + "\n"


def section(room: type[Code]) -> Iterator[str]:
    """One enum class: its docstring and a table."""
    yield f"## {title(room)}\n\n{' '.join((room.__doc__ or '').split())}\n"
    yield "| code | numbers and places | example |\n|---|---|---|"
    for code in room:
        example = sample(code)
        facts = ", ".join(f"`{name}`" for name in example.facts)
        yield f"| `{code.value}` | {facts} | {'<br>'.join(map(cell, said(example)))} |"
    yield ""


def title(room: type[Code]) -> str:
    """``CurvesCode`` as ``Curves``."""
    return room.__name__.removesuffix("Code")


def sample(code: Code) -> Reason:
    """The first sample of a code's phrase."""
    facts = dict(phrase_of(code).samples[0])
    parts = facts.pop("parts", ())
    return reason(code, *parts, **facts)  # type: ignore[misc,arg-type]


def said(one: Reason) -> Iterator[str]:
    """Its texts, each once."""
    yield text(one)
    if headline(one) != text(one):
        yield f"**{headline(one)}**"
    if advice(one):
        yield f"*{advice(one)}*"
    if command(one):
        yield f"`{command(one)}`"


def cell(said: str) -> str:
    """Text that cannot break a table."""
    return said.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def main() -> int:
    """Write, or say whether the page is what the catalogue makes."""
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
        print("docs/codes.md is up to date" if current else "run: python docs/make_codes.py")
        return 0 if current else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
