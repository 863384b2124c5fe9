"""Kinds and groups of parameters in the words of a finding."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.diagnosing.kinds.naming import rule_book
from trueup.types.finding import Kind


def kind_named(name: str, confidence: float, sentence: str, *, causes: Sequence[str] = ()) -> Kind:
    """A kind as the rules describe it, with this case's sentence; ``causes`` stand before the usual ones."""
    about = rule_book().kinds[name]
    return Kind(
        name=name,
        family=about.family,
        confidence=round(confidence, 3),
        sentence=sentence,
        causes=tuple(dict.fromkeys([*causes, *(text for text, _ in about.causes)])),
        next=about.next,
    )


def described(names: Sequence[str], shapes: dict[str, Sequence[int]]) -> str:
    """A set of parameters as a person would say it; ``shapes`` are those of all parameters.

    Example:
        >>> described(["a.bias"], {"a.weight": [4, 4], "a.bias": [4], "b.weight": [4, 4]})
        'the one-dimensional parameters (1: a.bias)'
    """
    chosen, everything = set(names), set(shapes)
    small = {name for name in everything if len(shapes[name]) <= 1}
    biases = {name for name in small if name.endswith("bias")}
    if chosen == everything:
        return f"all {len(everything)} parameters"
    groups = (
        (small, "the one-dimensional parameters"),
        (everything - small, "the matrices"),
        (biases, "the biases"),
        (small - biases, "the norm weights"),
        (everything - biases, "all but the biases"),
    )
    for group, words in groups:
        if group and chosen == group:
            return f"{words} ({_shown(names)})"
    if len(chosen) <= 2:
        return " and ".join(names)
    return f"{len(chosen)} of {len(everything)} parameters ({', '.join(names[:2])}, …)"


def _shown(names: Sequence[str]) -> str:
    return f"{len(names)}: {', '.join(names[:3])}" + (", …" if len(names) > 3 else "")


def one_module_of(names: Sequence[str]) -> str:
    """The innermost module all these parameters are in ("" is the root)."""
    parts = [name.split(".")[:-1] for name in names]
    common: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)
