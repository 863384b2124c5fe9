"""A place where an error was made, put into a finding: which kind, how sure, both sides' lines."""

from __future__ import annotations

import math
from dataclasses import replace

from trueup.diagnosing.stages.context import Context, sure_by
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.whose import whose
from trueup.numerics.dtypes import DTYPES
from trueup.store import TraceSource
from trueup.types.finding import Basis, Finding, Kind, Origin, Stage

_SURE_OF_SETTING = 0.96
_SAID = {
    Stage.FORWARD: "computes something else in the forward pass",
    Stage.LOSS: "is computed in another way",
    Stage.BACKWARD: "sends back other gradients",
    Stage.REDUCTION: "is accumulated, reduced or clipped in another way",
    Stage.OPTIMIZER: "is updated in another way",
    Stage.WEIGHTS: "starts from other weights",
    Stage.DATA: "is fed other data",
}


_KINDS = {
    "wrong_scale": "a wrong scale",
    "wrong_sign": "a wrong sign",
    "transposed_or_permuted": "another layout of the same numbers",
    "shifted_by_one": "a shift by one",
    "dtype_or_rounding": "another dtype or rounding",
    "missing_or_extra_term": "a missing or an extra term",
    "wrong_mask": "another mask",
    "stale_value": "a stale value",
    "constant_argument": "a constant of another value",
    "randomness": "other random numbers",
    "non_determinism": "an order of operations that is not fixed",
    "overflow_underflow": "overflow or underflow",
    "bit_flip": "a flipped bit",
    "frozen_or_missing_gradient": "a gradient that is not there",
    "missing_all_reduce": "a sum over ranks that is not made",
    "missing_zero_grad": "gradients that are not cleared",
    "wrong_data": "other data",
}


def finding_from_origin(origin: Origin, context: Context) -> Finding:
    """The finding, with the kinds the rules name for it."""
    settings = settings_that_differ(origin.module, context)
    kinds = _with_settings(_with_exchange(context.kinds_of(origin), origin, context), settings)
    best = kinds[0] if kinds else None
    attributed = origin
    origin = replace(
        origin,
        source=_with_code(origin.source, context.replayed or context.target, context),
        reference_source=_with_code(origin.reference_source, context.reference, context),
    )
    causes = tuple(dict.fromkeys([*settings, *(best.causes if best else ())]))
    said = [*((best.sentence,) if best else ()), *settings, *_norms_of(origin, context), *origin.evidence]
    finding = Finding(
        stage=_stage_of(origin, context),
        headline=_headline(origin, best),
        module=origin.module,
        site=origin.site,
        phase=origin.phase,
        step=origin.step,
        rank=origin.rank,
        source=origin.source,
        kinds=kinds,
        confidence=sure_by(origin, _sureness(origin)),
        evidence=tuple(dict.fromkeys(said)),
        counter_evidence=origin.counter_evidence,
        causes=causes,
        next_note=_next(settings, best),
        origin=origin,
    )
    return whose(finding, attributed, kinds, context)


def _norms_of(origin: Origin, context: Context) -> tuple[str, ...]:
    """The local norms of the gradients of the module's own weights in the first step."""
    if origin.step != context.steps[0][0] or origin.phase not in ("forward", "backward"):
        return ()
    norms = context.comparison.summary.get("local_norms", [])
    gaps = {n["fqn"]: n["rel_l2"] if math.isfinite(n["rel_l2"]) else n["rel_diff"] for n in norms}
    furthest = max(gaps, key=gaps.__getitem__, default=None)
    said = []
    for n in norms:
        gap = gaps[n["fqn"]]
        if n["fqn"].rpartition(".")[0] != origin.module or not gap:
            continue
        how = "element by element" if math.isfinite(n["rel_l2"]) else "in norm"
        rank = f", the furthest of {len(gaps)} weights" if n["fqn"] == furthest and len(gaps) > 1 else ""
        said.append(
            f"the first step's gradient of {n['fqn']} is {gap:.2g} apart {how}{rank} "
            f"(local norm {n['target']:.6g} against {n['reference']:.6g})"
        )
    return tuple(said)


def _stage_of(origin: Origin, context: Context) -> Stage:
    """Forward and loss are one stage; what a criterion sends back belongs to the loss, of which it is the
    gradient."""
    of_loss = origin.stage is Stage.LOSS
    if origin.stage is Stage.BACKWARD and origin.module:
        of_loss = origin.module in context.pair(0, origin.rank)[0].criteria
    return Stage.FORWARD if of_loss else origin.stage


def _with_exchange(kinds: tuple[Kind, ...], origin: Origin, context: Context) -> tuple[Kind, ...]:
    """A sum over ranks that the reference alone makes inside the module outweighs what is left without it;
    not a factor, which says more."""
    if not context.mesh.wide_axes or origin.phase != "forward" or (kinds and kinds[0].name == "wrong_scale"):
        return kinds
    at = next((n for n, steps in enumerate(context.steps) if steps[0] == origin.step), 0)
    mine, theirs = (book.exchanges(origin.module) for book in context.pair(at, origin.rank))
    lacking = [(name, group) for name, group in theirs - mine if "reduce" in name]
    if not lacking:
        return kinds
    name, group = lacking[0]
    over = group or tuple(context.ranks)
    said = f"the reference calls {name} over ranks {', '.join(map(str, over))} inside it, the target does not"
    found = replace(kind_named("missing_all_reduce", 0.96, said), over=over)
    return (found, *(kind for kind in kinds if kind.name != found.name))


def _with_settings(kinds: tuple[Kind, ...], settings: dict[str, str]) -> tuple[Kind, ...]:
    """What both programs say of the very module outweighs what its values look like."""
    if not settings:
        return kinds
    sentence, name = next(iter(settings.items()))
    said = kind_named(name, _SURE_OF_SETTING, sentence)
    return (said, *(kind for kind in kinds if kind.name != said.name))


def _next(settings: dict[str, str], kind: Kind | None) -> str:
    if settings:
        first = next(iter(settings))
        return f"bring the setting named first to the reference's value and run again: {first}"
    return kind.next or "" if kind else "compare the code of both sides at this place"


def _with_code(source: str | None, trace: TraceSource, context: Context) -> str | None:
    """The frame of a call stack that stands at ``file:line``: its function and its line of code too."""
    if source is None or " | " in source:
        return source
    step = min(trace.steps(), default=None)
    if step is None:
        return source
    stacks = context.book(trace, step, trace.steps()[step][0]).tables.stacks["frames"].to_list()
    wanted = source.partition(" ")[0] + " "
    return next((frame for frames in stacks for frame in frames if frame.startswith(wanted)), source)


def _headline(origin: Origin, kind: Kind | None) -> str:
    who = "The loss" if origin.stage is Stage.LOSS else (origin.module or "The root module's own code")
    what = _SAID.get(origin.stage, "differs")
    named = f": {said_of(kind)}" if kind is not None and kind.confidence >= 0.5 else ""
    return f"{who} {what}{named}."


def said_of(kind: Kind) -> str:
    """A kind as a person would name it."""
    return _KINDS.get(kind.name, kind.name.replace("_", " "))


def _sureness(origin: Origin) -> float:
    """1 - 1/(1 + s^2) of the stronger of score and bias: half at the bound, 0.99 at ten times it."""
    score = max(origin.score, abs(origin.bias_z or 0.0) / 6)
    if score == float("inf"):
        return 0.99
    return 1.0 - 1.0 / (1.0 + score * score) if origin.basis is Basis.REPLAY else 1.0 - 1.0 / (1.0 + score)


def settings_that_differ(module: str, context: Context) -> dict[str, str]:
    """Plain attributes of a module that are set otherwise in the reference, as far as both captures kept
    them: a sentence -> the kind of fault that is."""
    rank = context.ranks[0]
    mine, theirs = (
        (source.rank_facts(rank).get("settings") or {}).get(module, {})
        for source in (context.target, context.reference)
    )
    owner = module or "the root"
    return {
        f"{owner}.{name} is {value} in the target, {theirs[name]} in the reference": _kind_of_setting(
            value, theirs[name]
        )
        for name, value in mine.items()
        if name in theirs and value != theirs[name]
    }


def _kind_of_setting(*values: object) -> str:
    dtypes = all(isinstance(value, str) and value in DTYPES for value in values)
    return "dtype_or_rounding" if dtypes else "constant_argument"
