"""The canonical fields every dialect maps to (fields.yaml), and values brought to one form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trueup.errors import ConfigError

Kind = Literal[
    "int", "float", "bool", "dtype", "choice", "text", "list", "version", "files", "shares", "names"
]
_CLOSE = 1e-7
"""What a run keeps as float32, or a log prints, is the number that was written."""
_DTYPES = {
    "float32": "fp32 float32 float full 32 32-true ms.float32 mstype.float32 float_32",
    "bfloat16": "bf16 bfloat16 bf16-mixed bf16-true bfloat",
    "float16": "fp16 float16 half 16 16-mixed 16-true",
    "float64": "fp64 float64 double 64 64-true",
    "float8": "fp8 float8 e4m3 hybrid",
}
_DTYPE_OF = {word: name for name, words in _DTYPES.items() for word in words.split()}
_TRUTH = {
    "true": True,
    "on": True,
    "yes": True,
    "1": True,
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FieldSpec(_Strict):
    """One canonical field."""

    kind: Kind
    about: str
    derive: tuple[str, ...] = ()
    """expressions over other canonical fields, tried in order where no file sets it"""
    aliases: Mapping[str, str] = Field(default_factory=dict)
    """for a choice: canonical value -> other spellings, separated by blanks"""
    names: str = ""
    """other names plain files use for it, separated by blanks"""


class FieldSection(_Strict):
    """Fields that belong together."""

    title: str
    fields: dict[str, FieldSpec]


@dataclass(frozen=True)
class Fields:
    """All of fields.yaml."""

    sections: dict[str, FieldSection]

    def spec(self, name: str) -> FieldSpec:
        """The field of that name."""
        return self.all[name]

    @cached_property
    def all(self) -> dict[str, FieldSpec]:
        """Every field in the order of the file."""
        return {name: spec for section in self.sections.values() for name, spec in section.fields.items()}


def yaml_of(name: str) -> object:
    """A data file of the checklist.

    Raises:
        ConfigError: it is not YAML.
    """
    import yaml

    source = files("trueup.checklist") / name
    try:
        return yaml.load(
            source.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {error}") from error


@lru_cache(maxsize=1)
def fields() -> Fields:
    """The canonical fields.

    Raises:
        ConfigError: fields.yaml was edited into another form.
    """
    content = cast("Mapping[str, object]", yaml_of("fields.yaml"))
    try:
        return Fields({key: FieldSection.model_validate(value) for key, value in content.items()})
    except ValidationError as error:
        raise ConfigError(f"checklist/fields.yaml: {error}") from error


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ALL = frozenset({"all", "all-linear"})
_LARGEST_COUNT = 2**53
"""exact in float64; no setting counts further"""


class NotAValue(ValueError):
    """A setting that no value of its field can be made of."""


def canonical(value: object, spec: FieldSpec) -> object:
    """The value in the one form of its kind: dtypes as ``bfloat16``, choices by their first name.

    Raises:
        NotAValue: ``auto``, an unresolved variable, another type.
    """
    try:
        return _CONVERT[spec.kind](value, spec)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise NotAValue(f"{value!r} is not a value of kind {spec.kind}") from error


def same(left: object, right: object) -> bool:
    """Whether two canonical values are one: numbers to single precision, all else exactly."""
    if isinstance(left, float) or isinstance(right, float):
        return isinstance(left, (int, float)) and isinstance(right, (int, float)) and math.isclose(
            left, right, rel_tol=_CLOSE, abs_tol=1e-300
        )  # fmt: skip
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _int(value: Any, spec: FieldSpec) -> int:
    if isinstance(value, str):
        value = float(value) if not value.strip().lstrip("+-").isdigit() else int(value)
    if isinstance(value, bool) or value != int(value) or abs(value) > _LARGEST_COUNT:
        raise ValueError(value)
    return int(value)


def _float(value: Any, spec: FieldSpec) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _bool(value: object, spec: FieldSpec) -> bool:
    return value if isinstance(value, bool) else _TRUTH[str(value).strip().lower()]


def dtype_name(value: object) -> object:
    """``bfloat16`` of any spelling of it; what is no dtype stays."""
    word = str(value).strip().lower().removeprefix("torch.").removeprefix("mstype.").removeprefix("ms.")
    return _DTYPE_OF.get(word, value) if isinstance(value, str) else value


def _dtype(value: object, spec: FieldSpec) -> str:
    word = str(value).strip().lower()
    return _DTYPE_OF[word.removeprefix("torch.").removeprefix("mstype.").removeprefix("ms.")]


def _choice(value: object, spec: FieldSpec) -> str:
    word = str(value).strip().lower().replace("-", "_").replace(" ", "_")
    for name, words in spec.aliases.items():
        if word == name or word in words.lower().replace("-", "_").split():
            return name
    return word


def _text(value: object, spec: FieldSpec) -> str:
    return str(value).strip()


def _list(value: object, spec: FieldSpec) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _files(value: object, spec: FieldSpec) -> list[object]:
    """Paths of training data, each behind its share where several are mixed: ``["0.3 /a", "0.7 /b"]``.

    Takes Megatron's list of weights and paths, and text with blanks or commas between them; the weight of a
    single path says nothing.
    """
    items = value if isinstance(value, (list, tuple)) else [value]
    items = [item.get("path", item) if isinstance(item, dict) else item for item in items]
    words = [word for item in items for word in _words_of(item)]
    weights = [float(word) for word in words if _is_number(word)]
    paths = [word for word in words if not _is_number(word)]
    if len(weights) != len(paths) or len(paths) < 2 or not sum(weights):
        return list(paths)
    return [f"{w / sum(weights):.6g} {path}" for w, path in zip(weights, paths, strict=True)]


def _words_of(item: object) -> list[str]:
    """``1, /data/wiki`` as a weight and a path; a path with blanks stays one word."""
    text = str(item).strip().strip(",").strip()
    head = re.split(r"[\s,]+", text, maxsplit=1)
    if len(head) == 2 and _is_number(head[0]):
        return [word for word in re.split(r"[\s,]+", text) if word]
    return [text] if text else []


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text))


def _names(value: object, spec: FieldSpec) -> list[object]:
    """Names in any order, also with commas between them; ``all-linear`` and its like are ``all``."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    names = sorted({str(item).strip() for item in items})
    return ["all"] if len(names) == 1 and names[0].replace("_", "-") in _ALL else list(names)


def _shares(value: object, spec: FieldSpec) -> str:
    """Parts as shares of one: ``98,2,0``, ``[98, 2, 0]`` and ``0.98, 0.02, 0`` are the same split."""
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    words = [word for word in re.split(r"[\s,/()\[\]]+", text) if word]
    if not words or not all(map(_is_number, words)) or not sum(map(float, words)):
        return text.strip()
    total = sum(map(float, words))
    shares = [float(word) / total for word in words]
    while len(shares) > 1 and not shares[-1]:
        shares.pop()
    return ", ".join(f"{share:.6g}" for share in shares)


_CONVERT = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "dtype": _dtype,
    "choice": _choice,
    "text": _text,
    "version": _text,
    "list": _list,
    "files": _files,
    "names": _names,
    "shares": _shares,
}
