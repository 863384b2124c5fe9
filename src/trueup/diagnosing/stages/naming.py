"""Kinds and groups of parameters in the words of a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trueup.diagnosing.kinds import rule_of
from trueup.diagnosing.kinds.rule import Found
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import EvidenceRank, Kind, KindCode
from trueup.types.reason import Reason, reason


def kind_named(
    name: str,
    rank: EvidenceRank,
    sentence: Reason,
    *,
    causes: Sequence[Reason] | None = None,
    phase: str | None = None,
    without: Sequence[CauseCode] = (),
) -> Kind:
    """A kind with this case's sentence and its causes: those that are known of the case (``causes``, or none
    where it is empty), else the usual ones, of which those of another ``phase`` and those that cannot be
    (``without``) are left out."""
    found = Found(rank=rank, sentence=sentence, without=tuple(without))
    kind = rule_of(KindCode(name)).kind(found, phase=phase)
    return kind if causes is None else replace(kind, causes=tuple(dict.fromkeys(causes)))


_NORM = re.compile(r"norm|(?:^|[._])ln(?![a-z])", re.IGNORECASE)
"""in names of weights of normalization layers"""


def site_of(names: Sequence[str], part: str) -> str:
    """A part of some parameters, such as their gradients, under the name of the first."""
    return f"{names[0]} · {part}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def described(names: Sequence[str], shapes: Mapping[str, Sequence[int]]) -> str:
    """A set of parameters as a person would say it; ``shapes`` are those of all parameters.

    Example:
        >>> described(["a.bias", "b.bias", "c"], {"a.bias": [4], "b.bias": [4], "c": [1], "d": [4, 4]})
        'the 3 one-dimensional parameters'
    """
    chosen, everything = set(names), set(shapes)
    small = {name for name in everything if len(shapes[name]) <= 1}
    biases = {name for name in small if name.endswith("bias")}
    flat = all(len(shapes[name]) == 1 for name in small)
    square = all(len(shapes[name]) == 2 for name in everything - small)
    norms = all(map(_NORM.search, small - biases))
    if len(chosen) <= 2:
        return " and ".join(names)
    if chosen == everything:
        return f"all {len(everything)} parameters"
    groups = (
        (small, "one-dimensional parameters" if flat else "parameters of one dimension or none"),
        (everything - small, "matrices" if square else "parameters of two dimensions or more"),
        (biases, "biases"),
        (small - biases, "norm weights" if norms else "one-dimensional parameters that are no biases"),
        (everything - biases, "parameters that are no biases"),
    )
    for group, words in groups:
        if chosen == group:
            return f"the {len(group)} {words}"
    return f"{len(chosen)} of {len(everything)} parameters ({', '.join(names[:2])}, …)"


def names_listed(names: Sequence[str]) -> tuple[Reason, ...]:
    """The names of a set of parameters, where there are several."""
    return (reason(Stages.PARAMETERS, names=names),) if len(names) >= 3 else ()


def one_module_of(names: Sequence[str]) -> str:
    """The innermost module all these parameters are in ("" is the root)."""
    parts = [name.split(".")[:-1] for name in names]
    common: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)


def place_of(names: Sequence[str], everything: Iterable[str]) -> str | None:
    """Where a set of parameters is: the parameter itself, the innermost module that holds these and no
    others, else the first of them; None where it is all there are.

    Example:
        >>> place_of(["a.w", "b.w"], ["a.w", "a.bias", "b.w", "b.bias"])
        'a.w'
    """
    all_names = set(everything)
    if len(names) == 1:
        return names[0]
    if set(names) == all_names:
        return None
    module = one_module_of(names)
    inside = {name for name in all_names if name.startswith(module + ".")} if module else all_names
    return module if inside == set(names) else names[0]
