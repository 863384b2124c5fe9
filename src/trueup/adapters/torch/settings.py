"""How modules are set: the plain numbers and words they carry, and a model's own configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, str)
_LONGEST = 200
"""characters of a word; a longer one is no setting"""
_NEVER = ("training", "call_super_init", "dump_patches")


def settings_of(module: nn.Module, prefix: str) -> dict[str, dict[str, Any]]:
    """Module fqn -> its plain attributes, modules without any left out.

    Example:
        >>> settings_of(nn.LayerNorm(8), "norm")["norm"]["eps"]
        1e-05
    """
    found = {}
    for inner, child in module.named_modules():
        plain = {name: _said(value) for name, value in vars(child).items() if _is_setting(name, value)}
        if plain:
            found[".".join(part for part in (prefix, inner) if part)] = plain
    return found


def configuration_of(module: nn.Module) -> dict[str, Any]:
    """The configuration object of a model that has one (``model.config``), as plain values."""
    config = getattr(module, "config", None)
    to_dict = getattr(config, "to_dict", None)
    values = to_dict() if callable(to_dict) else getattr(config, "__dict__", {})
    return {str(k): _said(v) for k, v in dict(values).items() if _is_setting(str(k), v)}


def _is_setting(name: str, value: Any) -> bool:
    if name.startswith("_") or name in _NEVER:
        return False
    if isinstance(value, str):
        return len(value) <= _LONGEST
    if isinstance(value, (tuple, list)):
        return len(value) <= 16 and all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, (*_PLAIN, torch.dtype))


def _said(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return list(value) if isinstance(value, tuple) else value
