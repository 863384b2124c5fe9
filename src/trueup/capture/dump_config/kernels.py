"""``kernels`` of a dump configuration: which operators a pattern means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from trueup.errors import ConfigError

_REGEX_HEAD, _REGEX_END = "name-regex(", ")"


def operators_of(kernel: str, operators: Iterable[str]) -> list[str]:
    """The operators ``kernel`` means, by MindSpore's rules, blanks left out.

    ``name-regex(...)`` matches whole names; what has a ``/`` or ``-op`` in it is one name; everything else is
    part of an operator's type, in upper or lower case.

    Raises:
        ConfigError: the regular expression is none.

    Example:
        >>> operators_of("matmul", ["Default/fc1-Dense/MatMul-op0", "Default/fc1-Dense/BiasAdd-op0"])
        ['Default/fc1-Dense/MatMul-op0']
    """
    kernel = kernel.replace(" ", "")
    if kernel.startswith(_REGEX_HEAD) and kernel.endswith(_REGEX_END):
        pattern = compiled(kernel)
        return [name for name in operators if pattern.fullmatch(name)]
    if not is_type(kernel):
        return [name for name in operators if name == kernel]
    return [name for name in operators if kernel.lower() in _type_of(name).lower()]


def compiled(kernel: str) -> re.Pattern[str]:
    """The expression inside ``name-regex(...)``.

    Raises:
        ConfigError: it is none.
    """
    try:
        return re.compile(kernel.removeprefix(_REGEX_HEAD).removesuffix(_REGEX_END))
    except re.error as error:
        raise ConfigError(f"{kernel!r} is no regular expression: {error}") from error


def is_regex(kernel: str) -> bool:
    """Whether ``kernel`` is meant as a regular expression."""
    return kernel.replace(" ", "").startswith(_REGEX_HEAD)


def is_type(kernel: str) -> bool:
    """Whether ``kernel`` means every operator of a type.

    Example:
        >>> is_type("MatMul"), is_type("Default/MatMul-op0"), is_type("name-regex(.+)")
        (True, False, False)
    """
    return not is_regex(kernel) and "/" not in kernel and "-op" not in kernel


def nearest(kernel: str, operators: list[str]) -> str | None:
    """The operator a person may have meant, or None.

    Example:
        >>> nearest("Default/fc1-Dense/Matmul-op0", ["Default/fc1-Dense/MatMul-op0"])
        'Default/fc1-Dense/MatMul-op0'
    """
    if is_regex(kernel):
        return None
    candidates = operators if "/" in kernel else sorted({_type_of(name) for name in operators})
    lower = {name.lower(): name for name in candidates}
    near = difflib.get_close_matches(kernel.lower(), lower, n=1, cutoff=0.5)
    return lower[near[0]] if near else None


def _type_of(name: str) -> str:
    last = name.rpartition("/")[2]
    return last.rpartition("-")[0] or last
