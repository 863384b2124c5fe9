"""msprobe's ``compare.json``: which two dumps to compare, in its old and its new words."""

from __future__ import annotations

from pathlib import Path

from trueup.errors import ConfigError

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
    from trueup.capture.config_file import read_json_object, unknown_key_message

    plain = read_json_object(path)
    for key in plain:
        if key not in (*_TARGET, *_REFERENCE, *_NO_EFFECT):
            raise ConfigError(f"{path}: {unknown_key_message(key, (*_TARGET, *_REFERENCE, *_NO_EFFECT))}")
    return _side(plain, _TARGET, path), _side(plain, _REFERENCE, path)


def _side(plain: dict[str, object], keys: tuple[str, str], path: Path) -> Path:
    given = [key for key in keys if key in plain]
    if len(given) != 1:
        problem = "are both there; keep one" if given else "are both missing; one is wanted"
        raise ConfigError(f"{path}: {keys[0]} and {keys[1]} {problem}")
    value = plain[given[0]]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{path}: {given[0]} is {value!r}; the path of a dump is wanted")
    return Path(value)
