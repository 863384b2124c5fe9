"""Draws docs/images/imports.svg: which package imports which, layer by layer, read from the source.

``--check`` says whether the picture is that of the present source. Layers come from the contract in
pyproject.toml, so that picture and check cannot disagree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from html import escape
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "trueup"
PICTURE = ROOT / "docs" / "images" / "imports.svg"

EVERYWHERE = {"types", "errors", "_optional"}
"""imported by all: drawn without arrows"""
WIDTH, BOX, HIGH, ROW, TOP = 980, 128, 34, 74, 24
STYLE = """
  svg { font: 13px system-ui, sans-serif; background: #fff }
  rect { fill: #f3f6fa; stroke: #52657a; rx: 6 }
  text { fill: #16202b; text-anchor: middle; dominant-baseline: central }
  path { fill: none; stroke: #6b7f95; stroke-opacity: .32 }
"""


def layers() -> list[list[str]]:
    """Packages from the outermost to the innermost layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [[name.strip().removeprefix("trueup.") for name in re.split(r"[|:]", row)] for row in listed]


def imports() -> Counter[tuple[str, str]]:
    """(package, imported package) -> number of files that import it."""
    known = {name for row in layers() for name in row}
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        modules = {
            module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for module in imported(node)
        }
        found.update(
            (own, name) for name in modules & known if own in known and name != own and name not in EVERYWHERE
        )
    return found


def imported(node: ast.AST) -> set[str]:
    """Packages of trueup that one statement imports."""
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [f"trueup.{a.name}" for a in node.names] if node.module == "trueup" else [node.module]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("trueup.")}


def picture() -> str:
    """The drawing: a row a layer, an arrow an import, thicker where more files make it."""
    rows = layers()
    place = {}
    for number, row in enumerate(rows):
        gap = WIDTH / (len(row) + 1)
        for column, name in enumerate(row, 1):
            place[name] = (gap * column, TOP + number * ROW)
    high = TOP * 2 + (len(rows) - 1) * ROW + HIGH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}">',
        f"<style>{STYLE}</style>",
    ]
    for (own, other), number in sorted(imports().items()):
        (x, y), (x2, y2) = place[own], place[other]
        y += HIGH
        bend, bow = (y2 - y) * 0.45, (WIDTH / 2 - x) * 0.12
        curve = f"M{x:.0f} {y} C{x - bow:.0f} {y + bend:.0f} {x2 + bow:.0f} {y2 - bend:.0f} {x2:.0f} {y2}"
        title = f"{own} imports {other} in {number} {'file' if number == 1 else 'files'}"
        wide = min(1 + number / 12, 5)
        parts.append(f'<path stroke-width="{wide:.1f}" d="{curve}"><title>{title}</title></path>')
    for name, (x, y) in place.items():
        parts.append(f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HIGH}"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + HIGH / 2:.0f}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    """Write, or compare."""
    if "--check" in sys.argv[1:]:
        shape = re.compile(r"<title>(\S+) imports (\S+)")
        current = PICTURE.exists() and shape.findall(PICTURE.read_text()) == shape.findall(picture())
        print("docs/images/imports.svg is up to date" if current else "run: python docs/make_architecture.py")
        return 0 if current else 1
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
