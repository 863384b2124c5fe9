"""Settings of a monitor as a person writes them in a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from trueup.errors import ConfigError
from trueup.monitoring.settings import MonitorSettings


def read_settings(path: Path, **given: object) -> MonitorSettings:
    """The settings in a file; those given by name (not None) take precedence.

    Raises:
        ConfigError: it cannot be read, or holds an unknown key or a wrong value; says which.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected settings of a monitor, such as every: 10 (got {content!r})")
    return settings_from_plain(content, source=str(path), **given)


def settings_from_plain(content: Mapping[str, object], *, source: str, **given: object) -> MonitorSettings:
    """The same, from plain values.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    chosen = {**content, **{name: value for name, value in given.items() if value is not None}}
    return MonitorSettings.from_json(chosen, source)
