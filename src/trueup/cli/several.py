"""Options that take several words, which the command-line library reads one at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from trueup.errors import ConfigError

SEVERAL: Mapping[str, tuple[str, ...]] = {
    "accept": ("--curves", "--learning-rate-0"),
    "curves": ("--reference", "-r"),
    "diagnose": ("--curves",),
}
"""verb -> its options that go on until the next option"""


def with_each_named(argv: list[str], options: Collection[str]) -> list[str]:
    """``--reference A B`` as ``--reference A --reference B``.

    Example:
        >>> with_each_named(["curves", "t", "--reference", "a", "b", "-o", "out"], ["--reference"])
        ['curves', 't', '--reference', 'a', '--reference', 'b', '-o', 'out']
    """
    out: list[str] = []
    named, first = "", False
    for word in argv:
        if named and not first and not word.startswith("-"):
            out.append(named)
        out.append(word)
        first = False
        if word.startswith("-") and word != "-":
            named = word if word in options else ""
            first = bool(named)
    return out


def check_pair(option: str, given: tuple[str, str] | tuple[Path, Path] | None) -> None:
    """Refuse a pair whose second word is the next option.

    Raises:
        ConfigError: one word was given where two are wanted.
    """
    if given is not None and str(given[1]).startswith("-"):
        raise ConfigError(f"{option} {given[0]}: two words are wanted, the target's and the reference's")
