"""Settings of a monitor as a person writes them in a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from trueup.errors import ConfigError
from trueup.monitoring.settings import MonitorSettings

_SETTINGS = TypeAdapter(MonitorSettings)


def read_settings(path: Path, **given: Any) -> MonitorSettings:
    """The settings in a file; those given by name (not None) win over it.

    Raises:
        ConfigError: it cannot be read, or holds a key or value that cannot be; says which.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no settings of a monitor; keys such as every: 10 are wanted")
    return settings_from_plain(content, source=str(path), **given)


def settings_from_plain(content: dict[str, Any], *, source: str, **given: Any) -> MonitorSettings:
    """The same, from plain values.

    Raises:
        ConfigError: a key or value that cannot be.
    """
    chosen = {**content, **{name: value for name, value in given.items() if value is not None}}
    try:
        return _SETTINGS.validate_python(chosen)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "settings"
        raise ConfigError(f"{source}: {place}: {first['msg']}, not {first['input']!r}") from error
