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
_CHOSEN = {"step_id": "steps", "rank_id": "ranks"}
"""lists of numbers, empty for all, that ``--steps`` and ``--ranks`` are"""
_KNOWN = (*_TARGET, *_REFERENCE, *_NO_EFFECT, *_CHOSEN)


def sides_from_compare_file(path: Path) -> tuple[Path, Path]:
    """Target and reference as ``path`` names them; relative ones count from the working folder.

    Raises:
        ConfigError: not a JSON object, an unknown key (the nearest known one named), a side missing or named
            twice.
    """
    plain = read_json_object(path)
    for key in plain:
        if key not in _KNOWN:
            raise ConfigError(f"{path}: {unknown_key_message(key, _KNOWN)}")
    return _side(plain, _TARGET, path), _side(plain, _REFERENCE, path)


def chosen_in_compare_file(path: Path) -> dict[str, frozenset[int]]:
    """The steps and ranks that ``path`` chooses, by the names of ``CompareOptions``; none of an empty list.

    Raises:
        ConfigError: not a JSON object, or something else than a list of numbers.
    """
    found = {}
    for key, name in _CHOSEN.items():
        numbers = read_json_object(path).get(key)
        if numbers is None or numbers == []:
            continue
        if not isinstance(numbers, list) or not all(type(one) is int and one >= 0 for one in numbers):
            raise expected(f"{path}: {key}", "a list of numbers such as [0, 1]", numbers)
        found[name] = frozenset(numbers)
    return found


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
