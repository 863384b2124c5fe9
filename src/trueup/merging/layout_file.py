"""A layout that a person writes, in YAML: the keys of ``layout`` in docs/trace-format.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trueup.errors import ConfigError
from trueup.types.layout import Layout, layout_from_plain
from trueup.types.placement import placement_from

Size = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RowFile(BaseModel):
    """``{name: "*.up.weight", tp: shard(0)}``: a pattern, and a placement for each axis named."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    slot: str = "*"
    phase: str | None = None
    split: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _placements(self) -> RowFile:
        for axis, text in (self.model_extra or {}).items():
            if not isinstance(text, str):
                raise ValueError(f"{axis}: {text!r} is not a placement, such as shard(0)")
            try:
                placement_from(text)
            except ConfigError as error:
                raise ValueError(f"{axis}: {error}") from error
        return self


class PipelineFile(_Model):
    """Which stages each process along ``axis`` has, in the order in which they run."""

    axis: str = "pp"
    stages: list[list[int]]


class LayoutFile(_Model):
    """The file."""

    version: int = 1
    mesh: dict[str, Size]
    batch: list[str] = []
    pipeline: PipelineFile | None = None
    reduced: list[str] = []
    parameters: list[RowFile] = []
    tensors: list[RowFile] = []

    @field_validator("mesh")
    @classmethod
    def _some(cls, mesh: dict[str, int]) -> dict[str, int]:
        if not mesh:
            raise ValueError("at least one axis with its size, slowest first, such as {dp: 2, tp: 4}")
        return mesh


def read_layout(path: Path) -> Layout:
    """The layout a file describes.

    Raises:
        ConfigError: no such file, not YAML, an unknown key, or a placement that is none.
    """
    import yaml

    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the layout {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold a mapping; expected mesh, parameters and tensors")
    try:
        file = LayoutFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join(LayoutFile.model_fields)
        hint = f"; known keys: {known}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{path}: {where}: {first['msg']}{hint}") from error
    plain = file.model_dump(exclude_none=True)
    try:
        return layout_from_plain(plain, source=f"from {path.name}")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
