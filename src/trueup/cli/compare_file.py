"""msprobe's ``compare.json``: which two dumps to compare, by its old and its new keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trueup.capture.config_file import read_json_object
from trueup.errors import ConfigError
from trueup.types.option import expected, unknown_key_message

_TARGET = ("target_path", "npu_path")
_REFERENCE = ("golden_path", "bench_path")
_NO_EFFECT = ("stack_path", "is_print_compare_log")
"""accepted: stacks are found beside the dumps, and there is no log of every line"""


def sides_from_compare_file(path: Path) -> tuple[Path, Path]:
    """Target and reference as ``path`` names them; relative ones count from the working folder.

    Raises:
        ConfigError: not a JSON object, an unknown key (the nearest known one named), a side missing or named
            twice.
    """
    plain = read_json_object(path)
    for key in plain:
        if key not in (*_TARGET, *_REFERENCE, *_NO_EFFECT):
            raise ConfigError(f"{path}: {unknown_key_message(key, (*_TARGET, *_REFERENCE, *_NO_EFFECT))}")
    return _side(plain, _TARGET, path), _side(plain, _REFERENCE, path)


def _side(plain: Mapping[str, object], keys: tuple[str, str], path: Path) -> Path:
    given = [key for key in keys if key in plain]
    if len(given) != 1:
        raise ConfigError(
            f"{path}: expected one of: {', '.join(keys)} (got {' and '.join(given) or 'neither'})"
        )
    value = plain[given[0]]
    if not isinstance(value, str) or not value:
        raise expected(f"{path}: {given[0]}", "the path of a dump", value)
    return Path(value)
