"""A plan as YAML that a person can read and edit (docs/weights.md).

version: 1
names:                          # the short form: target: source, as it is
  norm.gamma: norm.weight
entries:
- target: qkv.weight
  pieces:
  - q.weight                    # a source as it is
  - source: k.weight
    steps:
    - reshape: [2, 8, 16]
    - permute: [1, 0, 2]
    - slice: {dim: 0, start: 0, stop: 4}
  join: concat
  dim: 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from zlib import crc32

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from trueup.errors import ConfigError
from trueup.store.nesting import refuse_deep
from trueup.weights.plan import (
    ConversionPlan,
    MovingStep,
    Permute,
    PlannedWeight,
    Reshape,
    Slice,
    SourcePiece,
)

_AS_WRITTEN = "# not edited; checksum of the lines above:"
"""begins the last line of a plan that no person has changed"""
_Size = Annotated[StrictInt, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _SliceFields(_Strict):
    dim: _Size
    start: _Size
    stop: _Size


class _StepFields(_Strict):
    reshape: list[_Size] | None = None
    permute: list[_Size] | None = None
    slice: _SliceFields | None = None


class _PieceFields(_Strict):
    source: StrictStr
    steps: list[_StepFields] = Field(default_factory=list)


class _EntryFields(_Strict):
    target: StrictStr
    pieces: list[StrictStr | _PieceFields] = Field(min_length=1)
    join: Literal["concat", "stack"] | None = None
    dim: _Size = 0
    steps: list[_StepFields] = Field(default_factory=list)
    padding: _Size = 0
    how: StrictStr = "map"
    confidence: float = Field(default=1.0, ge=0, le=1)


class _PlanFields(_Strict):
    version: Literal[1]
    names: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    entries: list[_EntryFields] = Field(default_factory=list)
    only_target: list[StrictStr] = Field(default_factory=list)
    only_source: list[StrictStr] = Field(default_factory=list)


def read_plan(path: Path) -> ConversionPlan:
    """The plan in ``path``.

    Raises:
        ConfigError: no such file, no YAML, no plan, or two entries of one name; names the line or the entry.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; expected a file with a plan (docs/weights.md)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from error
    plan = plan_from_text(text, name=str(path))
    named = Counter(entry.target for entry in plan.entries)
    if twice := [target for target, times in named.items() if times > 1]:
        raise ConfigError(f"{path} makes {twice[0]!r} twice")
    return plan


def write_plan(plan: ConversionPlan, path: Path) -> None:
    """Write ``plan`` so that ``read_plan`` gives it back, equal in every field.

    Raises:
        ConfigError: a file is there that was not left here, or has been edited: work would be lost.
    """
    text = text_from_plan(plan)
    if path.is_file() and not _is_as_written(path.read_bytes()):
        raise ConfigError(
            f"{path} is there already, and is no plan as trueup left it: if it is your edited plan, give it "
            "with --plan; else name another file with --save-plan, or remove it"
        )
    path.write_text(f"{text}{_AS_WRITTEN} {crc32(text.encode()):08x}\n", encoding="utf-8")


def _is_as_written(content: bytes) -> bool:
    text, mark, checksum = content.rpartition(_AS_WRITTEN.encode())
    return bool(mark) and checksum.strip() == f"{crc32(text):08x}".encode()


def plan_from_text(text: str, *, name: str = "plan") -> ConversionPlan:
    """See ``read_plan``; ``name`` is what errors call the text."""
    refuse_deep(text, name)
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
        plain = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    try:
        fields = _PlanFields.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(f"{name}{_problem(error, node)}") from error
    entries = [
        PlannedWeight(target=target, pieces=(SourcePiece(source=source),), how="map")
        for target, source in fields.names.items()
    ]
    for number, entry in enumerate(fields.entries):
        entries.append(_entry(entry, f"{name}, entry {number + 1} ({entry.target})"))
    return ConversionPlan(
        entries=tuple(entries), only_target=tuple(fields.only_target), only_source=tuple(fields.only_source)
    )


def _problem(error: ValidationError, node: yaml.Node | None) -> str:
    """Where the first problem is and what it is; pydantic's names of union members are left out."""
    problem = error.errors(include_url=False)[-1]
    if problem["type"] == "model_type" and not problem["loc"]:
        return ": no plan; expected a mapping with version: 1 and names or entries (docs/weights.md)"
    loc = [part for part in problem["loc"] if part not in _UNION_MEMBERS]
    line = _line_of(node, loc)
    place = ".".join(str(part + 1) if isinstance(part, int) else part for part in loc)
    return f", line {line}: {place + ': ' if place else ''}{problem['msg'][:1].lower()}{problem['msg'][1:]}"


_UNION_MEMBERS = ("str", "constrained-str", _PieceFields.__name__)


def _line_of(node: yaml.Node | None, loc: Sequence[object]) -> int:
    """The line of the innermost part of ``loc`` that is there."""
    for part in loc:
        below = None
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            below = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            below = next((value for key, value in node.value if key.value == part), None)
        if below is None:
            break
        node = below
    return node.start_mark.line + 1 if node is not None else 1


def _entry(fields: _EntryFields, where: str) -> PlannedWeight:
    pieces = tuple(
        SourcePiece(source=piece)
        if isinstance(piece, str)
        else SourcePiece(source=piece.source, steps=_steps(piece.steps, where))
        for piece in fields.pieces
    )
    return PlannedWeight(
        target=fields.target,
        pieces=pieces,
        join=fields.join,
        dim=fields.dim,
        steps=_steps(fields.steps, where),
        padding=fields.padding,
        how=fields.how,
        confidence=fields.confidence,
    )


def _steps(found: Sequence[_StepFields], where: str) -> tuple[MovingStep, ...]:
    return tuple(_step(step, where) for step in found)


def _step(step: _StepFields, where: str) -> MovingStep:
    if len(step.model_fields_set) != 1:
        raise ConfigError(
            f"{where}: a step is one of reshape, permute, slice; found {sorted(step.model_fields_set)}"
        )
    if step.reshape is not None:
        return Reshape(shape=tuple(step.reshape))
    if step.permute is not None:
        return Permute(dims=tuple(step.permute))
    if step.slice is None:
        raise ConfigError(f"{where}: a step without a value")
    return Slice(dim=step.slice.dim, start=step.slice.start, stop=step.slice.stop)


def text_from_plan(plan: ConversionPlan) -> str:
    """The YAML of ``plan``."""
    plain: dict[str, object] = {"version": 1, "entries": [_plain_entry(entry) for entry in plan.entries]}
    plain |= {key: list(names) for key in ("only_target", "only_source") if (names := getattr(plan, key))}
    text: str = yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False
    )
    return text


class _Row(list[int]):
    """A list written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes ``_Row`` on one line and never uses anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Text with control characters in double quotes: in single ones PyYAML loses some line breaks."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _quoted)
_Dumper.add_representer(
    _Row, lambda dumper, row: dumper.represent_sequence("tag:yaml.org,2002:seq", row, flow_style=True)
)


def _plain_entry(entry: PlannedWeight) -> dict[str, object]:
    plain: dict[str, object] = {
        "target": entry.target,
        "pieces": [
            {"source": piece.source, "steps": [_plain_step(step) for step in piece.steps]}
            if piece.steps
            else piece.source
            for piece in entry.pieces
        ],
    }
    if entry.join is not None or entry.dim:
        plain |= {"join": entry.join, "dim": entry.dim}
    if entry.steps:
        plain["steps"] = [_plain_step(step) for step in entry.steps]
    if entry.padding:
        plain["padding"] = entry.padding
    return plain | {"how": entry.how, "confidence": float(entry.confidence)}


def _plain_step(step: MovingStep) -> dict[str, object]:
    if isinstance(step, Reshape):
        return {"reshape": _Row(step.shape)}
    if isinstance(step, Permute):
        return {"permute": _Row(step.dims)}
    return {"slice": {"dim": step.dim, "start": step.start, "stop": step.stop}}
