"""Which supposed causes are tried in a further replay, and what a finding makes of what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from trueup.comparing.attributes import apart
from trueup.diagnosing.kinds.thresholds import FULL_SHARE
from trueup.diagnosing.replay.trials import Settings, Tried
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import kind_named
from trueup.types.codes import ReplayCode
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Kind, Origin
from trueup.types.reason import Reason

MOST = 12
"""modules in which a cause is tried, the first of the step"""
_COARSE = frozenset({"float16", "bfloat16"})
_ROUNDING = "dtype_or_rounding"


class ToTry(NamedTuple):
    """What is worth a replay."""

    settings: Settings
    coarse: tuple[str, ...]
    """modules that may round where the reference does not"""


def to_try(context: Context) -> ToTry:
    """Of the modules whose forward pass a replay found to err: settings that differ, coarse dtypes."""
    found = [o for o in context.origins if o.basis is Basis.REPLAY and o.phase == "forward"]
    first = sorted(found, key=lambda one: (one.step, one.order))[:MOST]
    settings = {o.module: of for o in first if (of := _settings_of(o.module, context))}
    coarse = [o.module for o in first if o.module not in settings and _may_round(o, context)]
    return ToTry(settings, tuple(dict.fromkeys(coarse)))


def _settings_of(module: str, context: Context) -> dict[str, object]:
    facts = (context.facts(trace).get("settings") or {} for trace in (context.target, context.reference))
    return {name: value for name, (_, value) in apart(module, *facts).items()}


def _may_round(origin: Origin, context: Context) -> bool:
    """Whether it may round where the reference does not: the run has coarse dtypes. Whatever the error looks
    like: what one coarse number does to a row looks like a term, or a factor, of that row."""
    if context.replayed is None:
        return False
    used = context.replayed.read(origin.step, origin.rank).summaries["dtype"].cast(str).unique()
    return not _COARSE.isdisjoint(used.to_list())


class Judged(NamedTuple):
    """A finding's kinds and settings, after the trials."""

    kinds: tuple[Kind, ...]
    settings: dict[Reason, str]
    """those that a trial does not speak against, what explains most first"""
    evidence: tuple[Reason, ...]


def judged(module: str, kinds: tuple[Kind, ...], settings: dict[Reason, str], context: Context) -> Judged:
    """What is left of the supposed causes of a module's error.

    A setting that leaves the error as it is explains nothing; one that changes nothing in the running program
    may have acted when the model was made, so that it gives way only to what the values themselves say.
    """
    tried = context.trials.of_settings.get(module, [])
    if tried:
        settings = _held(settings, tried, any(kind.rank.is_named for kind in kinds))
    acting = [one for one in tried[1:] if one.left <= FULL_SHARE and not one.is_unchanged]
    evidence = tuple(dict.fromkeys(one.evidence for one in acting or tried[:1]))
    rounding = context.trials.in_float32.get(module)
    if rounding is not None and rounding.left <= 1 - FULL_SHARE:
        evidence = (rounding.evidence, *evidence)
        own = next((kind for kind in kinds if kind.name == _ROUNDING and kind.rank.is_named), None)
        # what float32 alone puts right, bit for bit, is no other order of sums
        without = (CauseCode.OTHER_ORDER_OR_KERNEL,) if rounding.left == 0 else ()
        named = own or kind_named(_ROUNDING, EvidenceRank.STATED, rounding.evidence)
        kinds = (replace(named, causes=tuple(one for one in named.causes if one.code not in without)),)
    return Judged(kinds, settings, evidence)


def _held(settings: Mapping[Reason, str], tried: Sequence[Tried], named: bool) -> dict[Reason, str]:
    """The settings that stand, what leaves least of the error first."""
    together, *single = tried
    if together.is_unchanged:
        return {} if named else dict(settings)
    if together.left > FULL_SHARE:
        return {}
    left = {_name(one): one.left for one in single if not one.is_unchanged and one.left <= FULL_SHARE}
    if not left:
        return dict(settings)
    kept = [one for one in settings if str(one.place("name")) in left]
    return {one: settings[one] for one in sorted(kept, key=lambda one: left[str(one.place("name"))])}


def _name(tried: Tried) -> str:
    """Of the one setting that was tried."""
    part = next(part for part in tried.change if part.code is ReplayCode.WITH_SETTING)
    return str(part.place("name"))
