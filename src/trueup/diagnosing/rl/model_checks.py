"""Checks of what models gave the same tokens: log-probs of rollout, policy and reference, values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from trueup.diagnosing.rl.fits import differs, in_doubt
from trueup.diagnosing.rl.formulas import number
from trueup.diagnosing.rl.steps import Quantity, QuantityCheck, RLStepPair
from trueup.diagnosing.rl.tables import Apart, SequencePair, SequenceTable, rms
from trueup.diagnosing.rl.thresholds import DOUBT, ENGINES, ENOUGH, MODEL, MOVED, REPEATED, STRETCHED
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.mismatch.measuring import correlation
from trueup.mismatch.needed import dtype_needed
from trueup.mismatch.thresholds import SPREAD
from trueup.numerics.dtypes import DTYPES
from trueup.store.rollouts import Setting
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

ROLLOUT, OLD, REFERENCE, VALUES = "rollout_log_probs", "old_log_probs", "ref_log_probs", "values"


def rollout(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Generations, and the rollout's log-probs. Other generations are no fault."""
    batch = pair.batch
    if batch is None:
        return
    tokens = pair.quantity(Stage.ROLLOUT, "responses", "rollout")
    repeated = [repeats(table, held) for table, held in zip(batch.whole, pair.settings, strict=True)]
    if batch.is_whole:
        yield tokens.passed(RLCode.EQUAL)
    elif repeated[0] is not None and repeated[1] is None:
        yield tokens.failed(repeated[0])
    else:
        total = len(batch.whole[1])
        yield tokens.undecided(reason(RLCode.ROLLOUTS, shared=batch.num_shared, total=total))
    if all(ROLLOUT in side and OLD in side for side in batch.whole):
        quantity = pair.quantity(Stage.ROLLOUT, ROLLOUT, "rollout")
        yield _engines(pair, quantity) if not batch.num_shared else _rollout(pair, quantity, batch)


def repeats(table: SequenceTable, settings: Mapping[str, Setting]) -> Reason | None:
    """Answers to one prompt that are alike more often than their own log-probs let independent draws be.

    Of two draws the second equals the first with the first's probability. The number of such pairs exceeds k
    with a probability below exp(-m) (e m / k)^k where m are expected (Chernoff).
    """
    held = table.get(ROLLOUT)
    cut = number(settings, "top_p", 1.0) < 1 or number(settings, "top_k", -1.0) > 0
    if held is None or cut or not number(settings, "temperature", 1.0):
        return None  # probabilities are others than the recorded ones
    chances, groups = np.exp((held * table.valid).sum(axis=1)), Counter(table.prompts)
    expected = sum(chance * (groups[one] - 1) / 2 for chance, one in zip(chances, table.prompts, strict=True))
    num = len(table) - len(set(table.keys))
    if num <= expected:
        return None
    surprise = num * (np.log(num / expected) - 1) + expected if expected > 0 else np.inf
    if surprise < REPEATED:
        return None
    return reason(RLCode.REPEATED, num=num, total=len(table), expected=float(expected))


def _mismatch(table: SequenceTable) -> Floats:
    """Trainer less rollout, of tokens that count; those that are not finite are left out."""
    training, sampled = table.get(OLD), table.get(ROLLOUT)
    assert training is not None
    assert sampled is not None
    inside = (table.mask > 0) & np.isfinite(training) & np.isfinite(sampled)
    return (training - sampled)[inside]


def _is_finite(table: SequenceTable) -> bool:
    """Whether all log-probs of tokens that count are, of both engines."""
    held = [one[table.mask > 0] for one in (table.get(OLD), table.get(ROLLOUT)) if one is not None]
    return all(bool(np.isfinite(one).all()) for one in held)


def _rollout(pair: RLStepPair, quantity: Quantity, batch: SequencePair) -> QuantityCheck:
    """The same tokens: who differs, the rollout or the policy?"""
    changed = pair.changed("actor")
    apart, old = batch.apart(ROLLOUT, pair.unit(), changed), batch.apart(OLD, pair.unit(), changed)
    assert apart is not None
    assert old is not None
    if apart.agrees:
        return quantity.agreeing(apart)
    if not apart.is_finite:
        return quantity.failed(differs(ROLLOUT, apart)) if old.agrees else quantity.follows()
    noise = rms(_mismatch(batch.reference))
    stretched = variant(batch, ROLLOUT)
    if old.agrees:
        evidence = reason(RLCode.ROLLOUT_ONLY, rms=apart.rms, policy=old.rms, mismatch=noise)
        if stretched is not None and apart.rms > noise:
            return quantity.failed(stretched, evidence)
        if apart.is_beyond and apart.rms > ENGINES * noise:
            return quantity.failed(evidence)
        return (
            quantity.undecided(in_doubt(ROLLOUT, apart))
            if apart.rms > ENGINES * noise
            else quantity.passed(RLCode.WITHIN_ENGINES, times=ENGINES)
        )
    between = rms(_mismatch(batch.target) - _mismatch(batch.reference)) if _same_mask(batch) else np.inf
    if between <= max(apart.allowed, ENGINES * noise):
        return quantity.follows()
    return quantity.undecided(in_doubt(ROLLOUT, apart))


def _same_mask(batch: SequencePair) -> bool:
    return np.array_equal(batch.target.mask > 0, batch.reference.mask > 0)


def _engines(pair: RLStepPair, quantity: Quantity) -> QuantityCheck:
    """Other tokens: rollout against trainer, beside what the reference has."""
    target, reference = batch_sides(pair)
    if _is_finite(reference) and not _is_finite(target):
        return quantity.failed(reason(RLCode.NOT_FINITE, quantity=ROLLOUT))
    own, other = rms(_mismatch(target)), rms(_mismatch(reference))
    unit = max(pair.unit() or 0.0, target.unit(OLD, ROLLOUT))
    old = target.get(OLD)
    allowed = MODEL * unit * rms(np.zeros(0) if old is None else old[target.mask > 0])
    conclusion = reason(RLCode.ENGINES, target=own, reference=other)
    if own > max(ENGINES * other, DOUBT * allowed) and len(_mismatch(target)) >= ENOUGH:
        return quantity.failed(conclusion, confirmed=False)
    return quantity.passed(RLCode.WITHIN_ENGINES, conclusion, times=ENGINES)


def batch_sides(pair: RLStepPair) -> tuple[SequenceTable, SequenceTable]:
    """Both whole batches."""
    assert pair.batch is not None
    return pair.batch.whole


def policy(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Old log-probs: what the policy gives before its update, on the same tokens."""
    yield from _given(pair, Stage.OLD_LOG_PROBS, OLD, "actor")


def reference_policy(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Log-probs of the reference policy, which never changes."""
    yield from _given(pair, Stage.REFERENCE_LOG_PROBS, REFERENCE, "reference")


def values(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Values of the critic."""
    yield from _given(pair, Stage.VALUES, VALUES, "critic")


def _given(pair: RLStepPair, stage: Stage, name: str, role: str) -> Iterator[QuantityCheck]:
    batch = pair.batch
    if batch is None or any(name not in side for side in batch.whole):
        return
    quantity = pair.quantity(stage, name, role)
    apart = batch.apart(name, pair.unit(), pair.changed(role))
    exact = None if apart is None or apart.agrees else _moved_or_copied(batch, name)
    stale = _stale(pair) if name == OLD else None
    copies = list(_copies(*batch.whole, name))
    weak = exact is None or exact.code is RLCode.COPIED
    if stale is not None and weak and (pair.before or apart is None or apart.agrees):
        yield quantity.failed(stale, *copies)
    elif apart is None:
        if copies:
            yield quantity.failed(copies[0])
        else:
            yield quantity.undecided(reason(RLCode.NO_SHARED, quantity=name))
    elif apart.agrees:
        yield quantity.agreeing(apart)
    else:
        yield _differing(pair, quantity, apart, exact)


def _differing(pair: RLStepPair, quantity: Quantity, apart: Apart, exact: Reason | None) -> QuantityCheck:
    assert pair.batch is not None
    name = quantity.name
    if exact is not None:
        return quantity.failed(exact, differs(name, apart))
    if pair.has_failed_before:
        return quantity.follows()
    if not apart.is_beyond:
        return quantity.undecided(in_doubt(name, apart))
    if _changed(pair, name):
        return _update(pair, quantity, apart)
    stretched = variant(pair.batch, name)
    if stretched is not None:
        return quantity.failed(stretched, differs(name, apart))
    agreed = [one.step for one in pair.before if one.quantity == name == REFERENCE and one.passed]
    if agreed:
        conclusion = reason(RLCode.REFERENCE_CHANGED, step=max(agreed), rms=apart.rms, allowed=apart.allowed)
        return quantity.failed(conclusion, differs(name, apart))
    return quantity.failed(differs(name, apart), confirmed=bool(pair.before))


def _changed(pair: RLStepPair, name: str) -> bool:
    """Whether a quantity agreed in the step before and is of a model that is trained."""
    return name != REFERENCE and any(
        one.quantity == name and one.step < pair.step and one.passed for one in pair.before
    )


def _update(pair: RLStepPair, quantity: Quantity, apart: Apart) -> QuantityCheck:
    """All of the preceding step agrees, and the model is another afterwards."""
    last = max(one.step for one in pair.before)
    conclusion = reason(RLCode.UPDATE, role=quantity.role, step=last, rms=apart.rms, allowed=apart.allowed)
    return QuantityCheck(
        step=last,
        stage=Stage.UPDATE,
        quantity="weights",
        role=quantity.role,
        status=StageStatus.FAILED,
        conclusion=conclusion,
        evidence=(differs(quantity.name, apart),),
    )


def _stale(pair: RLStepPair) -> Reason | None:
    """Whether old log-probs are not what the policy gives in its first mini-batch; the reference's are."""
    first = next(pair.mini_batches("actor"), None)
    if first is None:
        return None
    own, other = (_first_ratio(side, pair.unit()) for side in first.whole)
    if own is None or other is None or not own.is_beyond or own.rms <= ENGINES * other.rms:
        return None
    return reason(RLCode.STALE, rms=own.rms, reference=other.rms, tokens=own.num_tokens)


def _first_ratio(table: SequenceTable, unit: float | None) -> Apart | None:
    now, old = table.get("log_probs"), table.get(OLD)
    if now is None or old is None:
        return None
    inside = table.mask > 0
    return Apart.of(now[inside], old[inside], max(unit or 0.0, table.unit("log_probs", OLD)))


# -- how a quantity differs ------------------------------------------


def variant(batch: SequencePair, name: str) -> Reason | None:
    """A known way in which the target's numbers are made from the reference's."""
    both = batch.both(name)
    if both is None:
        return None
    inside = batch.valid(both[0])
    exact = _moved_or_copied(batch, name)
    if exact is not None or name == VALUES or inside.sum() < ENOUGH:
        return exact
    return _stretched(both[0][inside], both[1][inside], name)


def _moved_or_copied(batch: SequencePair, name: str) -> Reason | None:
    both = batch.both(name)
    if both is None:
        return None
    target, reference = both
    inside = batch.valid(target)
    moved = _shifted(target, reference, inside)
    if moved is not None:
        return reason(RLCode.SHIFTED, quantity=name, by=moved)
    copied = next(_copies(batch.target, batch.reference, name), None)
    if copied is not None or inside.sum() < ENOUGH:
        return copied
    coarse = [dtype_needed(side[inside]) for side in (target, reference)]
    if DTYPES[coarse[0]].eps > max(DTYPES[coarse[1]].eps, DTYPES["float32"].eps):
        return reason(RLCode.COARSE, quantity=name, target=coarse[0], reference=coarse[1])
    return None


def _shifted(target: Floats, reference: Floats, inside: Bools) -> int | None:
    own = rms((target - reference)[inside])
    both = inside[:, 1:] & inside[:, :-1]
    for by, moved in ((1, target[:, 1:] - reference[:, :-1]), (-1, target[:, :-1] - reference[:, 1:])):
        if both.sum() >= ENOUGH and rms(moved[both]) < MOVED * own:
            return by
    return None


def _stretched(target: Floats, reference: Floats, name: str) -> Reason | None:
    """As by a temperature."""
    if not reference.std() > 0:
        return None
    factor, alike = float(target.std() / reference.std()), correlation(target, reference)
    if alike < STRETCHED or abs(factor - 1) < SPREAD:
        return None
    return reason(RLCode.STRETCHED, quantity=name, factor=factor, correlation=alike)


def _copies(target: SequenceTable, reference: SequenceTable, name: str) -> Iterator[Reason]:
    """Other arrays of the target that this one equals bit by bit, and does not in the reference."""
    for other in (ROLLOUT, OLD, REFERENCE):
        if other == name or other not in target or other not in reference:
            continue
        same = [bool((side.get(name) == side.get(other)).all()) for side in (target, reference)]  # type: ignore[union-attr]
        if same == [True, False]:
            yield reason(RLCode.COPIED, quantity=name, of=other)
