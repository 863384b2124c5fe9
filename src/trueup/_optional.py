"""Optional dependencies, imported when first needed, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from trueup.errors import ConfigError

_EXTRA_OF = {"torch": "torch", "mindspore": "mindspore", "plotly": "curves", "matplotlib": "curves"}


def require(module: str, *, purpose: str) -> ModuleType:
    """Import and return ``module``.

    Raises:
        ConfigError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        extra = _EXTRA_OF.get(package)
        install = f"pip install 'trueup[{extra}]'" if extra else f"pip install {package}"
        message = f"{purpose} needs the package '{package}', which is not installed. Try: {install}"
        raise ConfigError(message) from error
