"""How torch's modules are set (``adapters.settings``)."""

from __future__ import annotations

import torch
from torch import nn

from trueup.adapters.settings import Settings

_NEVER = frozenset({"training", "call_super_init", "dump_patches", "name_or_path"})
_settings = Settings((torch.dtype,), never=_NEVER, alike={})
configuration_of = _settings.of_configuration


def settings_of(module: nn.Module, prefix: str) -> dict[str, dict[str, object]]:
    """Module fqn -> its plain attributes, modules without any left out.

    Example:
        >>> settings_of(nn.LayerNorm(8), "norm")["norm"]["eps"]
        1e-05
    """
    return _settings.of_modules(module.named_modules(), prefix)
