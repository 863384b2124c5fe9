"""How places of a program are written."""

from __future__ import annotations


def shown_name(name: str) -> str:
    """The name of a module or call as a person sees it: the root is called so, a blank one is quoted."""
    if not name:
        return "(root)"
    return name if name.strip() else f"'{name}'"
