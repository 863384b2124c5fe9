"""A document as one HTML file that loads nothing from elsewhere; every text in it is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

import trueup
from trueup._optional import require
from trueup.reporting.document import (
    Block,
    Cell,
    Custom,
    Document,
    Form,
    Line,
    Look,
    On,
    Picture,
    Plots,
    Section,
    Span,
    Tone,
    Trend,
    shown,
    visible,
)
from trueup.reporting.formatting import plain, upright
from trueup.reporting.render.plots import figures, svg_plot

HERE = "trueup.reporting.render"


_TAGS = {Look.STRONG: "b", Look.CODE: "code", Look.COMMAND: "code"}


def write(document: Document, path: Path) -> Path:
    """Write the page.

    Raises:
        ConfigError: it has plots to zoom into and plotly is not installed.
    """
    _environment().get_template("document.html.j2").stream(_context(document)).dump(
        str(path), encoding="utf-8", errors="replace"
    )
    return path


# In one piece: a page's parts, each collected from the blocks that have it.
def _context(document: Document) -> dict[str, object]:
    blocks = visible(document.blocks, On.PAGE)
    first = next((at for at, block in enumerate(blocks) if isinstance(block, Section)), len(blocks))
    found = list(_inside(blocks))
    customs = [block for block in found if isinstance(block, Custom)]
    zoomed = any(isinstance(block, Plots) and block.zoom for block in found)
    names = [(HERE, "document.css"), *((c.package, name) for c in customs for name in c.styles)]
    scripts = [(HERE, "document.js"), *([(HERE, "plots.js")] if zoomed else [])]
    scripts += [(c.package, name) for c in customs for name in c.scripts]
    style = Markup("".join(asset(name, package) for package, name in names))
    ready = [] if customs else ['document.documentElement.dataset.ready = "true";\n']
    script = "\n".join([*(asset(name, package) for package, name in scripts), *ready])
    programs = [f'(() => {{\n"use strict";\n{script}}})();\n']
    if zoomed:
        plotly = require("plotly.offline", purpose="the page of the curves").get_plotlyjs()
        programs.insert(0, plotly.replace("</script", "<\\/script"))
    return {
        "document": document,
        "ahead": blocks[:first],
        "sections": blocks[first:],
        "nav": [block for block in found if isinstance(block, Section) and block.nav],
        "data": [entry for custom in customs for entry in custom.data()],
        "style": style,
        "style_policy": "'unsafe-inline'" if zoomed else f"'sha256-{content_hash(style)}'",
        "programs": [Markup(program) for program in programs],
        "hashes": [content_hash(program) for program in programs],
        "wide": bool(customs),
        "version": trueup.__version__,
    }


def _inside(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from _inside(visible(block.blocks, On.PAGE))


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: upright(value) if isinstance(value, str) else value,
        loader=FunctionLoader(lambda name: asset(*reversed(name.split("|"))) if "|" in name else asset(name)),
    )
    environment.filters["line"] = _line
    environment.filters["visible"] = lambda blocks: visible(blocks, On.PAGE)
    environment.globals.update(
        Form=Form,
        kind=lambda block: type(block).__name__,
        on_page=lambda one: On.PAGE in one.on,
        on_page_head=lambda table: On.PAGE in table.head,
        cell=lambda value: value if isinstance(value, Cell) else Cell(value=value),
        shown=shown,
        is_command=lambda line: isinstance(line, Span) and line.look is Look.COMMAND,
        image=_image,
        figures=lambda plots: Markup(json.dumps(figures(plots), allow_nan=False).replace("<", "\\u003c")),
        svg_plot=lambda plot: Markup(svg_plot(plot)),
        markup=Markup,
    )
    return environment


def _line(line: Line | Trend) -> Markup:
    """A line as markup; numbers over time are not drawn."""
    if isinstance(line, Trend):
        return Markup("")
    if isinstance(line, tuple):
        return Markup("").join(_line(piece) for piece in line)
    if isinstance(line, str):
        return escape(upright(plain(line)))
    inside = escape(upright(plain(line.text)))
    if line.href:
        return Markup('<a href="{}">{}</a>').format(line.href, inside)
    tag = _TAGS.get(line.look, "span")
    tone = f"tone {line.tone.value}" if line.tone is not Tone.PLAIN else ""
    style = " ".join(name for name in ("muted" if line.look is Look.QUIET else "", tone) if name)
    if tag == "span" and not style:
        return inside
    return Markup('<{0} class="{1}">{2}</{0}>').format(tag, style, inside)


def _image(picture: Picture) -> str:
    """A bitmap as a data address; nothing where there is none."""
    if picture.png is None or not picture.png.is_file():
        return ""
    return "data:image/png;base64," + base64.b64encode(picture.png.read_bytes()).decode()


def asset(name: str, package: str = HERE) -> str:
    """The text of a file of a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """SHA-256 as a content security policy writes it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
