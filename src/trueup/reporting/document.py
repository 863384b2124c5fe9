"""A report as a value: blocks that every renderer draws, each in its own way.

A family of reports (weights, checklist, curves, ...) builds one ``Document`` from its result; ``render``
draws any document on a terminal, as a page, as a workbook or as markdown. A block says what it is, never how
it looks; where one medium should show less, ``on`` names the media.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, Flag, auto
from pathlib import Path

import polars as pl

from trueup.reporting.formatting import plain
from trueup.types.arrays import Array, Floats
from trueup.types.reason import Reason
from trueup.types.status import Outcome
from trueup.wording import text


class On(Flag):
    """Media."""

    SCREEN = auto()
    """a terminal: one screen, read while working"""
    PAGE = auto()
    """a self-contained HTML file"""
    BOOK = auto()
    """a workbook: one sheet a section with a table"""
    TEXT = auto()
    """markdown, to be filed"""
    FILES = PAGE | BOOK | TEXT
    ALL = SCREEN | PAGE | BOOK | TEXT


class Tone(str, Enum):
    """How a thing should be taken; the renderers give it a colour."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    FOLLOWS = "follows"
    """consequence of something else"""
    QUIET = "quiet"


class Look(str, Enum):
    """How a piece of a line is set."""

    PLAIN = "plain"
    STRONG = "strong"
    QUIET = "quiet"
    CODE = "code"
    COMMAND = "command"
    """to be copied: a line that is one command has a copy button on a page"""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line."""

    text: str
    look: Look = Look.PLAIN
    tone: Tone = Tone.PLAIN
    href: str = ""


Line = str | Span | tuple[str | Span, ...]
"""One line of text; never markup, never control characters"""


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """Numbers over time as a row of bars, drawn on screens alone."""

    values: Floats
    width: int = 12
    zero: bool = False
    """zero in the middle; else the smallest value is the lowest bar"""


@dataclass(frozen=True, slots=True)
class Mark:
    """A status: glyph, words, tone."""

    glyph: str
    words: str
    tone: Tone = Tone.PLAIN


OUTCOMES = {
    Outcome.AGREE: Mark("✓", "The runs agree", Tone.GOOD),
    Outcome.DIFFER: Mark("✗", "The runs differ", Tone.BAD),
    Outcome.UNDECIDED: Mark("?", "Undecided", Tone.WARN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Lines behind a label."""

    label: str
    lines: tuple[Line | Trend, ...]
    note: str = ""
    """small print beside the value"""
    """0 to 1, drawn as a bar"""
    tone: Tone = Tone.PLAIN
    limit: int | None = None
    """lines that a screen shows; the others are counted"""
    fit: bool = False
    """a screen leaves out the middle of a long line in place of folding it"""
    most: int | None = None
    """lines of a screen that each takes at most; the middle of a longer one is left out"""
    flow: bool = False
    """lines are short: a screen puts as many as fit into one"""
    on: On = On.ALL


class Form(Enum):
    """What facts are on a page."""

    ROWS = auto()
    """a table of two columns"""
    TILES = auto()
    """a few values side by side"""
    LISTS = auto()
    """each a heading with a list, in two columns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Labelled lines."""

    rows: tuple[Fact, ...]
    form: Form = Form.ROWS
    on: On = On.ALL


Value = Line | Trend | float | None
"""Numbers stay numbers in a workbook"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value with smaller lines below it."""

    value: Value
    under: tuple[Line, ...] = ()
    on: On = On.ALL
    """where the smaller lines are shown"""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str = ""
    show: Callable[[float | None], str] | None = None
    """how numbers read; a number column stands on the right"""
    width: int | None = None
    """characters, in a workbook and at most on a screen"""
    grow: bool = False
    """gets the room that is left on a screen, and folds"""
    fit: bool = False
    """leaves out the middle of what is too long for a screen, in place of folding it"""
    clip: bool = False
    """leaves out the end of it"""
    even: bool = False
    """as wide as ``width`` on a screen even if its text is shorter: tables below each other line up"""
    code: bool = False
    words: bool = False
    """plain words, which a page never breaks inside"""
    below: bool = False
    """goes below its row where a screen is too narrow for it"""
    least: int = 0
    """columns a screen must have for it to be shown"""
    on: On = On.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row; ``cells`` are as many as the columns."""

    cells: tuple[Value | Cell, ...]
    mark: Mark | None = None
    loud: bool = False
    """differs: set in bold, shaded by the tone of its mark"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows in columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    head: On = On.ALL
    """where the titles of the columns are shown"""
    limit: int | None = None
    """rows that a screen shows"""
    more: str = ""
    """said below, where rows are left out"""
    steps: bool = False
    """rows are stages of one procedure: a page draws them as such"""
    on: On = On.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A table as large as a result, read lazily; a workbook holds it whole, nothing else shows it."""

    columns: tuple[FrameColumn, ...]
    frame: pl.LazyFrame
    num_rows: int
    shades: Mapping[str, Tone]
    """value of ``shade`` -> tone of the row"""
    shade: pl.Expr
    on: On = On.BOOK


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameColumn:
    """One column: heading, expression over the frame, how it is written, width in characters."""

    title: str
    value: pl.Expr
    kind: str = "text"
    """``text``, ``integer``, ``float`` or ``percent``"""
    width: float = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Running text."""

    line: Line
    on: On = On.ALL


@dataclass(frozen=True, slots=True)
class Source:
    """A line of code."""

    side: str
    place: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where it is in the programs."""

    items: tuple[Source, ...]
    on: On = On.PAGE | On.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What a person is to tick off."""

    lines: tuple[Line, ...]
    on: On = On.FILES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """One line of a plot."""

    name: str
    role: str
    """``target``, ``reference``, ``repeat``, ``raw`` or ``smooth``: how it is drawn"""
    x: Array
    y: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plot:
    """Numbers over steps: drawn on a page, tabulated with a chart in a workbook."""

    key: str
    title: str
    y_title: str
    lines: tuple[Series, ...]
    x_title: str = "step"
    band: tuple[Array, Floats, Floats] | None = None
    """x, low, high"""
    band_name: str = ""
    marks: tuple[tuple[int, str], ...] = ()
    """steps to point at, with what happened there"""
    bars: bool = False
    zero: bool = False
    notes: str = ""
    span: tuple[float, float] | None = None
    """of the y axis; None where the lines decide"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plots:
    """Plots beside each other."""

    items: tuple[Plot, ...]
    zoom: bool = False
    """a person zooms into them: drawn with plotly, which adds megabytes to a page"""
    on: On = On.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing: SVG text of ours, or a bitmap beside the report that is embedded."""

    svg: str = ""
    png: Path | None = None
    caption: str = ""
    alt: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """class of the style sheet, words"""
    on: On = On.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """Part of a page that has a template, style and script of its own: names of files in ``package``."""

    package: str
    template: str
    context: Mapping[str, object]
    styles: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    data: Callable[[], Iterable[tuple[str, str, str]]] = tuple
    """address, media type and text of what the scripts read, made when a page is written, at its end"""
    on: On = On.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Blocks under a title; inside another section, an item of it."""

    title: str
    blocks: tuple[Block, ...]
    key: str = ""
    """address on a page, name of a sheet"""
    nav: str = ""
    """name in the page's head; empty is not there"""
    lead: str = ""
    note: str = ""
    """small print beside the title"""
    link: str = ""
    """address of the whole report of this part"""
    number: int | None = None
    collapsed: bool = False
    on: On = On.ALL


Block = Facts | Table | Frame | Paragraph | Sources | Tasks | Plots | Picture | Custom | Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    mark: Mark
    headline: str
    lede: str = ""
    subject: tuple[str, ...] = ()
    """target and reference; or what it is about"""
    blocks: tuple[Block, ...]
    footer: str = ""
    """its inputs"""


def reason_text(reason: Reason) -> str:
    """A reason in words, safe to print; text of a version 1 document as it is."""
    return plain(text(reason))


def fact(
    label: str,
    *lines: Line | Trend,
    note: str = "",
    tone: Tone = Tone.PLAIN,
    limit: int | None = None,
    fit: bool = False,
    most: int | None = None,
    on: On = On.ALL,
) -> Fact:
    """A fact of the lines that are not empty."""
    kept = tuple(line for line in lines if line != "")
    return Fact(label=label, lines=kept, note=note, tone=tone, limit=limit, fit=fit, most=most, on=on)


def facts(rows: Iterable[Fact | None], form: Form = Form.ROWS, on: On = On.ALL) -> Facts:
    """Those that have lines."""
    return Facts(rows=tuple(row for row in rows if row is not None and row.lines), form=form, on=on)


def visible(blocks: Iterable[Block], medium: On) -> list[Block]:
    """The blocks that a medium shows, without those that are empty there."""
    return [block for block in blocks if medium in block.on and not _is_empty(block, medium)]


def _is_empty(block: Block, medium: On) -> bool:
    if isinstance(block, Section):
        return not visible(block.blocks, medium)
    if isinstance(block, Facts):
        return not any(medium in row.on for row in block.rows)
    if isinstance(block, Table):
        return not block.rows
    if isinstance(block, (Sources, Plots)):
        return not block.items
    return isinstance(block, Tasks) and not block.lines


def source_fact(sources: Iterable[Source]) -> Fact:
    """Lines of code on a screen."""
    lines = [
        (Span(f"{one.side} ", Look.QUIET), one.place, Span(f"  {one.code}" if one.code else "", Look.CODE))
        for one in sources
    ]
    return fact("source", *lines, fit=True, on=On.SCREEN)


def words(line: Line | Trend) -> str:
    """The text of a line."""
    if isinstance(line, str):
        return line
    if isinstance(line, Trend):
        return ""
    if isinstance(line, Span):
        return line.text
    return "".join(words(piece) for piece in line)


def shown(column: Column, value: Value) -> Line | Trend:
    """A value of a column as it reads."""
    if column.show is not None and (value is None or isinstance(value, (int, float))):
        return column.show(value)
    return "" if value is None else f"{value:,}" if isinstance(value, (int, float)) else value
