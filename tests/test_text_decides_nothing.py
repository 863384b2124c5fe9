"""No module decides by rendered text: conclusions are compared by their codes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "trueup"
RENDERED = {
    *(
        "headline",
        "sentence",
        "conclusion",
        "said",
        "counter_evidence",
        "causes",
        "next_note",
        "advice",
        "title",
    ),
    *("measured", "detail", "remarks", "reason", "reasons"),
}
"""attributes, keys of documents and variables that hold conclusions, or what they say"""
RENDERERS = {"text", "texts", "headline", "advice", "reason_text"}
"""functions that put a reason into words"""
TAKE_APART = {
    *("startswith", "endswith", "find", "index", "count", "split", "rsplit", "partition", "rpartition"),
    *("removeprefix", "removesuffix", "replace", "lower", "upper", "isdigit"),
}
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
ALLOWED = {
    "wording": "words are put together from words",
    "reporting/render": "a label is left out where the headline begins with it",
    "reporting/formatting.py": "how a sentence begins and ends on a page",
}
"""folders and files below ``src/trueup`` that may look at text, and why"""


def is_rendered(node: ast.expr) -> bool:
    """Whether an expression is the text of a conclusion, as far as its name tells."""
    if isinstance(node, ast.Attribute):
        return node.attr in RENDERED
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in RENDERED
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "get" and node.args:
            return isinstance(node.args[0], ast.Constant) and node.args[0].value in RENDERED
        if isinstance(called, ast.Name) and called.id == "str" and node.args:
            return is_rendered(node.args[0])
        return isinstance(called, ast.Name) and called.id in RENDERERS
    return isinstance(node, ast.Name) and node.id in {"headline", "sentence"}


def is_words(node: ast.expr) -> bool:
    """Whether an expression is text that the code states."""
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        return any(map(is_words, node.elts))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_pattern(called: ast.Attribute) -> bool:
    """Whether it is a function of the module ``re`` that looks at text."""
    return isinstance(called.value, ast.Name) and called.value.id == "re" and called.attr in PATTERNS


def decisions(tree: ast.AST) -> Iterator[int]:
    """Lines on which text is taken apart, or compared with words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            taken = node.func.attr in TAKE_APART and node.args and is_rendered(of)
            if taken or (is_pattern(node.func) and any(map(is_rendered, node.args[1:]))):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_rendered, sides)) and any(map(is_words, sides)):
                yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "x.headline.startswith('Refused')",
        "'measured' in finding['sentence']",
        "row.get('reason') == 'not captured'",
        "text(one) in ('a', 'b')",
        "re.search('by ([0-9.]+)', str(row['reason']))",
        "outcome.detail != f'{a} of {b}'",
        "sentence.partition(':')[0]",
    ],
)
def test_a_decision_by_text_is_found(line: str) -> None:
    assert list(decisions(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "x.headline.code is VerdictCode.AGREE",
        "x.reason == y.reason",
        "'reason' in row",
        "name.startswith('input')",
        "x.reason is None",
        "text(one) if one else ''",
    ],
)
def test_other_code_is_left_alone(line: str) -> None:
    assert list(decisions(ast.parse(line))) == []


def test_no_module_decides_by_text() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not any(place == one or place.startswith(f"{one}/") for one in ALLOWED):
            found += [f"{place}:{line}" for line in decisions(ast.parse(path.read_text(encoding="utf-8")))]
    assert found == []


@pytest.mark.parametrize("place", ALLOWED)
def test_what_is_allowed_is_there(place: str) -> None:
    assert (SOURCE / place).exists()
