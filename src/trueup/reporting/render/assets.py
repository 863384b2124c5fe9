"""Files that lie beside the package's code: templates, styles, scripts."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

HERE = "trueup.reporting.render"


def asset(name: str, package: str = HERE) -> str:
    """The text of a file of a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """SHA-256 as a content security policy writes it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
