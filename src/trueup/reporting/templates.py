"""What every page is made with: a template, its style and its script, which nothing but their hashes allows.

Every text in a page is escaped, and none turns the direction of those beside it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

import trueup
from trueup.reporting.formatting import upright

PAGES = "trueup.reporting.html"


def asset(name: str, package: str = PAGES) -> str:
    """A file that lies beside the package's code."""
    return (files(package) / name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """SHA-256 as a content security policy writes it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def furniture(style: str, script: str) -> dict[str, Any]:
    """What every template reads: ``style``, ``script`` (a scope of its own), their hashes, the version."""
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    return {
        "style": Markup(style),
        "style_hash": content_hash(style),
        "script": Markup(script),
        "script_hash": content_hash(script),
        "version": trueup.__version__,
    }


def template(text: str) -> Template:
    """The template of a page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_upright
    )
    return environment.from_string(text)


def write_page(text: str, context: Mapping[str, Any], path: Path) -> Path:
    """Fill the template ``text`` and write it."""
    template(text).stream(context).dump(str(path), encoding="utf-8", errors="replace")
    return path


def _upright(value: Any) -> Any:
    return upright(value) if isinstance(value, str) else value
