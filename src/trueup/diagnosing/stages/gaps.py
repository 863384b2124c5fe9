"""Where two optimizers differ, parameter by parameter: what each says of itself, and what each did."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from trueup.comparing.optimizer_settings import Settings, declared, flat, setting_gaps
from trueup.diagnosing.optimizer_fit import FittedConstant
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.trainable import frozen_on_one_side
from trueup.diagnosing.thresholds import DECAY_APART, DECAY_LEAST, EPS_APART, GAP_ERRORS, IMPRECISE_FIT
from trueup.diagnosing.update_rule import Update
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource
from trueup.store.view import ACCUMULATED, UPDATED, WEIGHT

HALVES = ("bfloat16", "float16")
"""dtypes that a copy in float32 may stand behind"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantGap:
    """One constant that differs for one parameter."""

    key: str
    """a setting, or ``moved`` (by the update), ``rounded_away`` (of a coarse dtype, on one side), ``count``
    (of steps), ``updates`` (a step), ``dtype``, ``state``, ``updated_dtype`` (of what the optimizer updates:
    the weights, or copies of them)"""
    target: str
    """a value; of ``moved`` and ``rounded_away`` one of ``stepped not_held changed unchanged``"""
    reference: str
    declared: bool
    """the program itself says so, beside what was measured"""
    alike: str | None = None
    """of what was measured: the value that both programs give this setting themselves"""


def sides_of(context: Context, at: int) -> tuple[dict[str, Update], dict[str, Update]]:
    """What each side's optimizer did in a pair of steps, by parameter; the target's with the reference's
    gradients put in where that was done."""
    rank = context.ranks[0]
    out = []
    for source in (context.target, context.reference):
        own, step = source, context.steps[at][source is context.reference]
        if (
            source is context.target
            and context.given is not None
            and context.given_step is not None
            and at == 0
        ):
            own, step = context.given, context.given_step
        out.append(context.updates(own, step, rank))
    return out[0], out[1]


def gaps_of(context: Context) -> tuple[dict[str, dict[str, ConstantGap]], list[str]]:
    """Parameter -> key -> difference; and all parameters compared."""
    target, reference = sides_of(context, 0)
    if any(map(are_unseen, (target, reference), context.pair(), (context.target, context.reference))):
        return {}, []
    if any(map(is_left_out, (target, reference), context.pair())):
        return {}, []
    says = [declared(context.facts(s)) for s in (context.target, context.reference)]
    found: dict[str, dict[str, ConstantGap]] = {}
    compared = []
    frozen = frozen_on_one_side(context)
    copies = [
        _stands_for(book, updates, names)
        for book, updates, names in zip(
            context.pair(),
            (target, reference),
            (list(context.matched), list(context.matched.values())),
            strict=True,
        )
    ]
    later = sides_of(context, 1) if len(context.steps) > 1 else None
    for fqn, other in context.matched.items():
        if fqn in frozen or (other not in reference and fqn not in target):
            continue
        compared.append(fqn)
        gaps: dict[str, ConstantGap] = {}
        if (fqn in target) != (other in reference):
            stand_ins = copies[0].get(fqn), copies[1].get(other)
            gaps = _held_gap((target.get(fqn), reference.get(other)), stand_ins)
        else:
            own, others = says[0].get(fqn, {}), says[1].get(other, {})
            for one in setting_gaps(own, others):
                values = {"target": one.target_text, "reference": one.reference_text}
                gaps[one.key] = ConstantGap(key=one.key, **values, declared=True)
            # A constant is measured as if all others were alike: beside one that is not, what both declare
            # alike is alike.
            alike = flat(own).keys() & flat(others).keys() if gaps else set()
            for gap in _measured_gaps(target[fqn], reference[other]):
                if gap.key not in alike:
                    gaps.setdefault(gap.key, replace(gap, alike=_declared_alike(gap.key, own, others)))
            _drop_contradicted(gaps, target[fqn], reference[other])
            gaps = gaps or _later_state(later, fqn, other)
            if "count" in gaps and (updates := _updates_a_step(later, fqn, other, target, reference)):
                gaps["updates"] = updates
                del gaps["count"]
        if gaps:
            found[fqn] = gaps
    return _moved_or_rounded(found, (target, reference)), compared


def are_unseen(updates: Collection[str], book: StepView, source: TraceSource) -> bool:
    """Whether a run without an update may have made some: they were not captured, or it ended before them."""
    captured = source.manifest.get("options", {}).get("optimizer") is not False
    ended = not any(book.parameter(fqn, *ACCUMULATED) is not None for fqn in book.parameters)
    return not updates and (ended or not captured)


def is_left_out(updates: Collection[str], book: StepView) -> bool:
    """Whether a step has no update since gradients are not finite: that says nothing of what is updated."""
    return not updates and any(
        book.has_not_finite(book.parameter(fqn, *ACCUMULATED)) for fqn in book.parameters
    )


def _moved_or_rounded(
    found: dict[str, dict[str, ConstantGap]], sides: tuple[dict[str, Update], dict[str, Update]]
) -> dict[str, dict[str, ConstantGap]]:
    """The same; an optimizer that moves nothing at all is none that rounds."""
    if not all(any(one.moved for one in of.values()) for of in sides):
        for gaps in found.values():
            if "rounded_away" in gaps:
                gaps["moved"] = replace(gaps.pop("rounded_away"), key="moved")
    return found


def _later_state(
    later: tuple[dict[str, Update], dict[str, Update]] | None, fqn: str, other: str
) -> dict[str, ConstantGap]:
    """Two dtypes of the state in the second step: in the first it is a gradient, which may be as coarse as a
    dtype that a later one is not held in."""
    if later is None or fqn not in later[0] or other not in later[1]:
        return {}
    state = _state_gap(later[0][fqn], later[1][other])
    return {} if state is None else {state.key: state}


def _updates_a_step(
    later: tuple[dict[str, Update], dict[str, Update]] | None,
    fqn: str,
    other: str,
    target: dict[str, Update],
    reference: dict[str, Update],
) -> ConstantGap | None:
    """Step counts that rise by another number each step: no state was lost, the update is made more often."""
    if later is None or fqn not in later[0] or other not in later[1]:
        return None
    counts = [(target[fqn].count, later[0][fqn].count), (reference[other].count, later[1][other].count)]
    rises = [after - before for before, after in counts if before is not None and after is not None]
    if len(rises) < len(counts) or rises[0] == rises[1] or min(rises) <= 0:
        return None
    return ConstantGap(key="updates", target=f"{rises[0]:g}", reference=f"{rises[1]:g}", declared=False)


def _held_gap(
    held: tuple[Update | None, Update | None], stand_ins: tuple[Update | None, Update | None]
) -> dict[str, ConstantGap]:
    """What tells apart a parameter that only one side's optimizer holds; a copy may stand for it."""
    target, reference = (one or other for one, other in zip(held, stand_ins, strict=True))
    if target is None or reference is None:
        words = ["not_held" if one is None else "stepped" for one in held]
        return {"moved": ConstantGap(key="moved", target=words[0], reference=words[1], declared=True)}
    after, other = (one.after_dtype or one.held_dtype for one in (target, reference))
    if after is None or other is None or after == other:  # what a trace lacks is no other dtype
        return {}
    key = "updated_dtype"
    return {key: ConstantGap(key=key, target=after, reference=other, declared=True)}


def _stands_for(book: StepView, updates: dict[str, Update], names: list[str]) -> dict[str, Update]:
    """Weights in half precision that no optimizer holds -> the update of a copy in float32 that one holds in
    their place: copies are told by their shapes, and only where there is one for each weight."""
    apart = [
        fqn for fqn in names if fqn not in updates and book.dtype(book.parameter(fqn, *WEIGHT)) in HALVES
    ]
    unnamed = [name for name in updates if name not in names and _is_fine(updates[name])]
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name in unnamed:
        by_shape.setdefault(tuple(book.shape(book.parameter(name, *UPDATED)) or ()), []).append(name)
    found: dict[str, Update] = {}
    for fqn in apart:
        same = by_shape.get(tuple(book.shape(book.parameter(fqn, *WEIGHT)) or ()), [])
        if not same:
            return {}
        found[fqn] = updates[same.pop()]
    return found


def _is_fine(update: Update) -> bool:
    return (update.after_dtype or update.held_dtype) == "float32"


def _is_rounded_away(target: Update, reference: Update) -> bool:
    """Whether weights of one coarse dtype stay as they are where the other run moves none further than to the
    next number: rounding to nearest drops an update below half of that."""
    spacings = (reference if reference.moved else target).most_spacings
    return target.after_dtype == reference.after_dtype and spacings is not None and 0 < spacings <= 1


def _is_too_small_to_move(still: Update, moving: Update) -> bool:
    """Whether a step as long for its gradient as the other run's would be lost in the weight's own rounding:
    the gradient of an attention's key bias is rounding, and moves a weight in one run and none in another.
    Of rules whose step is in proportion to the gradient: without a second moment."""
    plain = all(set(one.state_dtypes) <= _PROPORTIONAL for one in (still, moving))
    known = still.gradient_norm, moving.gradient_norm, still.weight_norm
    if not plain or None in known or not moving.gradient_norm or still.held_dtype not in DTYPES:
        return False
    step = moving.length * (still.gradient_norm or 0.0) / moving.gradient_norm
    return step <= DTYPES[still.held_dtype].eps * (still.weight_norm or 0.0)


_PROPORTIONAL = {"momentum_buffer", "step"}


def _state_gap(target: Update, reference: Update) -> ConstantGap | None:
    """The first state that the optimizers keep in two dtypes."""
    for name in sorted(set(target.state_dtypes) & set(reference.state_dtypes) - {"step"}):
        sides = {"target": target.state_dtypes[name], "reference": reference.state_dtypes[name]}
        if sides["target"] != sides["reference"]:
            return ConstantGap(key="state", **sides, declared=False)
    return None


def _declared_alike(key: str, own: Settings, others: Settings) -> str | None:
    """The one value that both programs give a setting."""
    sides = [flat(side).get(key) for side in (own, others)]
    return None if sides[0] is None or sides[0] != sides[1] else str(sides[0])


# In one piece: one branch a constant of an optimizer.
def _measured_gaps(target: Update, reference: Update) -> Iterator[ConstantGap]:
    if target.moved != reference.moved and max(target.length, reference.length) > 0:
        still, moving = (reference, target) if target.moved else (target, reference)
        if not still.has_gradient or _is_too_small_to_move(still, moving):
            return
        words = ["changed" if moved else "unchanged" for moved in (target.moved, reference.moved)]
        key = "rounded_away" if _is_rounded_away(target, reference) else "moved"
        yield ConstantGap(key=key, target=words[0], reference=words[1], declared=False)
        return
    if target.count is not None and reference.count is not None and target.count != reference.count:
        yield ConstantGap(
            key="count", target=f"{target.count:g}", reference=f"{reference.count:g}", declared=False
        )
    for one, other in ((target.dtype, reference.dtype), (target.after_dtype, reference.after_dtype)):
        if one is not None and other is not None and one != other:  # what a trace lacks is no other dtype
            yield ConstantGap(key="dtype", target=one, reference=other, declared=False)
            break
    state = _state_gap(target, reference)
    if state is not None:
        yield state
    if (
        None not in (target.bias_corrected, reference.bias_corrected)
        and target.bias_corrected != reference.bias_corrected
    ):
        words = [str(bool(on)) for on in (target.bias_corrected, reference.bias_corrected)]
        yield ConstantGap(key="bias_correction", target=words[0], reference=words[1], declared=False)
    if target.coupled is not None and reference.coupled is not None and target.coupled != reference.coupled:
        words = [str(not coupled) for coupled in (target.coupled, reference.coupled)]
        yield ConstantGap(key="decoupled", target=words[0], reference=words[1], declared=False)
    if None not in (target.eps_inside, reference.eps_inside) and target.eps_inside != reference.eps_inside:
        words = [f"{'inside' if s.eps_inside else 'outside'} the root" for s in (target, reference)]
        yield ConstantGap(key="eps_place", target=words[0], reference=words[1], declared=False)
    for key in target.constants:
        a, b = target.constants[key], reference.constants.get(key)
        if b is not None and _constant_differs(key, a, b):
            yield ConstantGap(key=key, target=f"{a.value:.4g}", reference=f"{b.value:.4g}", declared=False)


def _constant_differs(key: str, a: FittedConstant, b: FittedConstant) -> bool:
    gap, errors, largest = abs(a.value - b.value), a.error + b.error, max(abs(a.value), abs(b.value))
    if key == "eps":
        return gap > EPS_APART * largest and gap > GAP_ERRORS * errors
    if key == "weight_decay":
        return gap > GAP_ERRORS * errors + DECAY_APART * largest + DECAY_LEAST
    return a.apart(b) > 1


# In one piece: one branch a gap that makes others imprecise.
def _drop_contradicted(gaps: dict[str, ConstantGap], target: Update, reference: Update) -> None:
    """What was measured for a side beside its declared settings only speaks where it is precise; other
    dtypes make all of it imprecise, and coupled decay leaves no trace in the update's own."""
    if "dtype" in gaps or "state" in gaps or "count" in gaps:
        for key in [
            k for k, gap in gaps.items() if not gap.declared and k not in ("dtype", "state", "count", "moved")
        ]:
            del gaps[key]
    if "decoupled" in gaps:
        for key in ("weight_decay", "beta1", "beta2", "eps", "lr"):
            if key in gaps and not gaps[key].declared:
                del gaps[key]
    if "eps_place" in gaps and "eps" in gaps and not gaps["eps"].declared:
        del gaps["eps"]
    if "bias_correction" in gaps and "eps" in gaps and not gaps["eps"].declared:
        del gaps["eps"]
    if (
        "moved" in gaps
        and "lr" in gaps
        and gaps["lr"].declared
        and "0" in (gaps["lr"].target, gaps["lr"].reference)
    ):
        del gaps["moved"]  # a learning rate of 0 moves nothing
    residuals = target.residual or 0.0, reference.residual or 0.0
    if max(residuals) > IMPRECISE_FIT:
        for key in [k for k in ("lr", "weight_decay", "eps") if k in gaps and not gaps[k].declared]:
            del gaps[key]
