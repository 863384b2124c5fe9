"""Write ``src/trueup/matching/defaults.json``: the parameters of PyTorch's functions, and their defaults.

    python scripts/make_defaults.py

Functions of ``torch.nn.functional`` are read from their signatures; those that are built in, and the methods
of tensors, from the operators' schemas, where all overloads agree on a parameter.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

TARGET = Path(__file__).parents[1] / "src" / "trueup" / "matching" / "defaults.json"
Known = tuple[list[str], dict[str, Any]]
"""names of parameters in order, and plain defaults by name"""


def defaults() -> dict[str, Known]:
    """By name: ``functional.softmax`` of the library of functions, ``softmax`` of operators."""
    found = {name: known for name in sorted(_operators()) if (known := _of_operator(name)) is not None}
    for name, function in sorted(vars(functional).items()):
        if name.startswith("_") or not callable(function) or inspect.isclass(function):
            continue
        known = _of_signature(function)
        if known is not None:
            found[f"functional.{name}"] = known
    return found


def _operators() -> set[str]:
    names = {name for name in dir(torch._C._VariableFunctions) if not name.startswith("_")}
    names |= {name for name in dir(torch._C._nn) if not name.startswith("_")}
    return names | {name for name in dir(torch.Tensor) if not name.startswith("_")}


def _of_signature(function: Any) -> Known | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    given = {one.name: one.default for one in parameters if one.default is not one.empty}
    names = [one.name for one in parameters]
    return _kept(names, given) or (names, {})


def _of_operator(name: str) -> Known | None:
    schemas = [
        one
        for one in torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        if not any(argument.is_out for argument in one.arguments)
    ]
    if not schemas:
        return None
    names = [argument.name for argument in schemas[0].arguments]
    given: dict[str, Any] = {}
    for at, one in enumerate(schemas):
        stated = {a.name: a.default_value for a in one.arguments if a.has_default_value()}
        given = stated if at == 0 else {k: v for k, v in given.items() if stated.get(k, object()) == v}
    same = [
        all(len(one.arguments) > at and one.arguments[at].name == name for one in schemas)
        for at, name in enumerate(names)
    ]
    alike = names[: same.index(False)] if False in same else names
    return _kept(alike, given)


def _kept(names: list[str], given: dict[str, Any]) -> Known | None:
    kinds = (bool, int, float, str)
    plain = {k: v for k, v in given.items() if isinstance(v, kinds) and not k.startswith("_")}
    return (names, plain) if plain else None


def text() -> str:
    """The file, one function a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(known)}" for name, known in defaults().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
