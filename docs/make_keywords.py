"""Writes the keyword types of `trueup.Tracer` and `trueup.Monitor` from the option dataclasses they fill.

Editors complete them and type checkers find a wrong one; `tests/test_typed_api.py` holds both to each other.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

from trueup.capture.options import CaptureOptions
from trueup.monitoring.settings import MonitorSettings, RuleSettings
from trueup.types.option import OptionField, option_fields
from trueup.types.plain import Plain

SOURCE = Path(__file__).parents[1] / "src" / "trueup"
_WIDTH = 106
_MANY = "list[str] | tuple[str, ...] | set[str] | frozenset[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keywords:
    """A TypedDict: the fields of ``options`` as keyword arguments."""

    name: str
    options: type
    what: str
    without: frozenset[str] = frozenset()
    nested: str = ""
    """the TypedDict that a mapping for a field of another dataclass is"""

    @property
    def fields(self) -> list[OptionField]:
        """Those that may be given by name."""
        return [field for field in option_fields(self.options) if field.name not in self.without]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A file of them."""

    path: str
    headline: str
    imports: str
    classes: tuple[Keywords, ...]

    def text(self) -> str:
        """The complete file."""
        head = f'"""{self.headline}\n\nWritten by ``python docs/make_keywords.py``.\n"""\n\n'
        parts = [head + "from __future__ import annotations\n\n" + self.imports.strip("\n")]
        parts += ["\n".join(_class_lines(one)) for one in self.classes]
        return "\n\n\n".join(parts) + "\n"


MODULES = (
    Module(
        path="capture/keywords.py",
        headline="Keyword arguments of ``Tracer``, for editors and type checkers.",
        imports="""
from os import PathLike
from typing import Literal, TypedDict

from trueup.capture.options import Level, StepSet, Task
""",
        classes=(
            Keywords(
                name="TracerKeywords",
                options=CaptureOptions,
                what="Options of ``CaptureOptions`` by name, each in the forms that ``Tracer`` takes.",
                without=frozenset({"output"}),
            ),
        ),
    ),
    Module(
        path="monitoring/keywords.py",
        headline="Keyword arguments of ``Monitor``, for editors and type checkers.",
        imports="""
from typing import TypedDict

from trueup.monitoring.settings import RuleSettings
""",
        classes=(
            Keywords(
                name="RuleKeywords",
                options=RuleSettings,
                what="Thresholds of ``RuleSettings`` by name: ``Monitor(rules={...})``.",
            ),
            Keywords(
                name="MonitorKeywords",
                options=MonitorSettings,
                what="Settings of ``MonitorSettings`` by name.",
                nested="RuleKeywords",
            ),
        ),
    ),
)


def _class_lines(keywords: Keywords) -> Iterator[str]:
    yield f"class {keywords.name}(TypedDict, total=False):"
    yield f'    """{keywords.what}"""'
    hints = get_type_hints(keywords.options, include_extras=True)
    for field in keywords.fields:
        yield ""
        yield f"    {field.name}: {_accepted(hints[field.name], field, keywords.nested)}"
        yield from textwrap.wrap(
            f'"""{_sentence(field)}"""', _WIDTH, initial_indent="    ", subsequent_indent="    "
        )


def _sentence(field: OptionField) -> str:
    default = field.default_text() or ("off" if field.default is False else "")
    parts = [
        field.option.help,
        field.option.bounds and f"{field.option.bounds[0].upper()}{field.option.bounds[1:]}.",
    ]
    parts += [field.option.unit and f"Unit: {field.option.unit}.", default and f"Default: {default}."]
    parts += [field.option.no_effect and f"No effect {field.option.no_effect}."]
    return " ".join(filter(None, parts)).replace("\\", "\\\\")


def _accepted(hint: object, field: OptionField, nested: str) -> str:
    """The type of what ``fields_from_json`` takes for a field, in the order: value, text, nothing."""
    forms = [
        one
        for kind in _kinds(hint)
        for form in _forms(kind, nested)
        for one in re.split(r" \| (?![^\[]*\])", form)
    ]
    if field.option.read is not None:
        forms.append("str")
    none = any(kind is NoneType for kind in _kinds(hint)) or any(_is_plain(kind) for kind in _kinds(hint))
    return " | ".join([*dict.fromkeys(forms), *(["None"] if none else [])])


def _kinds(hint: object) -> tuple[object, ...]:
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if type(hint).__name__ in ("UnionType", "_UnionGenericAlias", "Union"):
        return get_args(hint)
    return (hint,)


def _is_plain(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Plain)


def _forms(kind: object, nested: str) -> Iterator[str]:
    origin, args = get_origin(kind), get_args(kind)
    if kind is NoneType:
        return
    if kind is Path:
        yield "str | PathLike[str]"
    elif origin is Literal:
        yield f"Literal[{', '.join(map(repr, args))}]"
    elif origin in (tuple, frozenset) and args[0] is str and (origin is frozenset or args[-1] is Ellipsis):
        yield _MANY
    elif origin is tuple and Ellipsis not in args:
        inside = ", ".join(arg.__name__ for arg in args)
        yield f"tuple[{inside}] | list[{args[0].__name__}]"
    elif origin is dict:
        yield f"dict[{', '.join(arg.__name__ for arg in args)}]"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield kind.__name__
        words = ", ".join(f'"{member.value}"' for member in kind)
        yield f"Literal[{words}]"
    elif _is_plain(kind) and isinstance(kind, type):
        yield f"{kind.__name__} | str | list[int] | list[int | str] | list[tuple[int, int]]"
    elif kind in (bool, int, float, str) and isinstance(kind, type):
        yield kind.__name__
    elif isinstance(kind, type) and nested:
        yield f"{kind.__name__} | {nested}"
    else:
        raise TypeError(f"{kind}: say here in which forms it is taken")


if __name__ == "__main__":
    for module in MODULES:
        (SOURCE / module.path).write_text(module.text(), encoding="utf-8")
