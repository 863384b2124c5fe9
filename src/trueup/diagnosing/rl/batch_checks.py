"""Checks of a batch as the trainer has it: prompts, rewards, masks, KL in the reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from trueup.diagnosing.rl.fits import SINGLE, Case, FormulaValue, by_formula, differs, fitted, in_doubt
from trueup.diagnosing.rl.formulas import kl, number, short
from trueup.diagnosing.rl.steps import QuantityCheck, RLStepPair
from trueup.diagnosing.rl.tables import Apart, SequencePair, SequenceTable, rms
from trueup.diagnosing.rl.thresholds import FORMULA, LONG, MOVED
from trueup.store.rollouts import Setting
from trueup.types.arrays import Array, Floats
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

KL_KINDS = ("k1", "k2", "k3", "abs", "k3_unbounded")


def prompts(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """The same prompts, in whatever order."""
    if pair.batch is None:
        return
    quantity = pair.quantity(Stage.PROMPTS, "prompts", "trainer")
    target, reference = (Counter(side.prompts) for side in pair.batch.whole)
    if target == reference:
        yield quantity.passed(RLCode.EQUAL)
        return
    missing, extra = reference.keys() - target.keys(), target.keys() - reference.keys()
    if missing:
        cut = sum(any(one.endswith(key) or one.startswith(key) for key in extra) for one in missing)
        code = RLCode.TRUNCATED if cut == len(missing) else RLCode.PROMPTS
        difference = reason(code, num=len(missing), total=len(reference))
    elif extra:
        difference = reason(RLCode.MORE_PROMPTS, num=len(extra), total=len(target))
    else:
        apart = sum(num != target[key] for key, num in reference.items())
        difference = reason(RLCode.PROMPT_COUNTS, num=apart, total=len(reference))
    yield quantity.failed(difference)


def rewards(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """What the reward function gave each sequence, and on which token."""
    if pair.batch is None or any("scores" not in side for side in pair.batch.whole):
        return
    quantity = pair.quantity(Stage.REWARDS, "scores", "reward")
    both = pair.batch.both("scores")
    misplaced = _misplaced(pair.batch)
    if both is None:
        if misplaced is not None:
            yield quantity.failed(misplaced)
        else:
            yield quantity.undecided(reason(RLCode.NO_SHARED, quantity="scores"))
        return
    target, reference = (one.sum(axis=1) for one in both)
    unit = max(side.unit("scores") for side in (pair.batch.target, pair.batch.reference))
    sums, tokens = Apart.of(target, reference, unit), pair.batch.apart("scores")
    if tokens is None or tokens.agrees:
        yield quantity.passed(RLCode.EQUAL) if tokens is None else quantity.agreeing(tokens)
    elif sums.agrees:
        yield quantity.failed(misplaced or _place(pair.batch, both))
    elif _on_every_token(pair.batch, target, reference):
        yield quantity.failed(reason(RLCode.REWARD_REPEATED))
    elif (difference := _of_rows(target, reference) or _of_some(pair.batch, target, reference)) is not None:
        yield quantity.failed(difference)
    elif sums.rms <= tokens.allowed:
        yield quantity.undecided(in_doubt("scores", tokens))
    else:
        yield quantity.failed(differs("scores", sums))


def _last(table: SequenceTable) -> Floats:
    last: Floats = np.maximum(table.valid.sum(axis=1) - 1, 0).astype(np.float64)
    return last


def _misplaced(batch: SequencePair) -> Reason | None:
    """Rewards that the reference puts on the last token of a response, and the target elsewhere."""
    shares = []
    for side in batch.whole:
        scores = side.get("scores")
        if scores is None or scores.ndim < 2:
            return None
        row, at = np.nonzero(scores)
        shares.append(float((at == _last(side)[row]).mean()) if len(row) else 1.0)
    if shares[1] < 1 or shares[0] == 1:
        return None
    return reason(RLCode.REWARD_PLACE, share=1 - shares[0])


def _on_every_token(batch: SequencePair, target: Floats, reference: Floats) -> bool:
    """The reference's reward of a sequence stands on each of its tokens."""
    tokens = batch.target.valid.sum(axis=1)
    return bool((tokens > 1).any()) and np.allclose(target, reference * tokens, rtol=FORMULA * SINGLE, atol=0)


def _place(batch: SequencePair, both: tuple[Floats, Floats]) -> Reason:
    return reason(RLCode.REWARD_PLACE, share=float((both[0] != both[1]).any(axis=1).mean()))


def _of_rows(target: Floats, reference: Floats) -> Reason | None:
    """Rewards of other sequences, or of another scale."""
    if np.array_equal(np.sort(target), np.sort(reference)):
        return reason(RLCode.REWARD_ROWS, num=int((target != reference).sum()), total=len(target))
    if reference.std() > 0 and len(reference) > 2:
        factor, offset = np.polyfit(reference, target, 1)
        if rms(target - (factor * reference + offset)) < MOVED * rms(target - reference):
            return reason(RLCode.REWARD_LINE, factor=float(factor), offset=float(offset))
    return None


def _of_some(batch: SequencePair, target: Floats, reference: Floats) -> Reason | None:
    """Rewards that are clipped, or another for long responses alone."""
    other, lengths = target != reference, batch.target.valid.sum(axis=1)
    low, high = float(target.min()), float(target.max())
    cut = [len(np.unique(reference[other & (target == bound)])) for bound in (low, high)]
    if not other.all() and max(cut) > 1 and np.array_equal(target, np.clip(reference, low, high)):
        return reason(RLCode.REWARD_BOUNDED, low=low, high=high)
    if other.sum() >= LONG and not other.all() and lengths[other].min() > lengths[~other].max():
        numbers = {"tokens": int(lengths[other].min()), "num": int(other.sum()), "total": len(other)}
        return reason(RLCode.REWARD_OF_LONG, **numbers)
    return None


def masks(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Which tokens count: the same on both sides; without shared sequences, all of the response where the
    reference has that."""
    if pair.batch is None or any("response_mask" not in side for side in pair.batch.whole):
        return
    quantity = pair.quantity(Stage.ADVANTAGES, "response_mask", "trainer")
    both = pair.batch.both("response_mask")
    agrees = RLCode.EQUAL if both is not None else RLCode.ALL_COUNT
    ids = (pair.batch.target if both is not None else pair.batch.whole[0]).arrays["responses"]
    if both is None:
        whole = [bool((side.mask == side.valid).all()) for side in pair.batch.whole]
        both = (pair.batch.whole[0].mask, pair.batch.whole[0].valid.astype(float)) if whole[1] else None
    if both is None:
        yield quantity.undecided(reason(RLCode.NO_SHARED, quantity="response_mask"))
    elif np.array_equal(*both):
        yield quantity.passed(agrees)
    else:
        yield quantity.failed(mask_difference(*both, ids))


def mask_difference(target: Floats, reference: Floats, ids: Array | None = None) -> Reason:
    """How a mask differs. ``ids``: of the tokens."""
    num, total = int((target != reference).sum()), int(reference.sum())
    earlier, later = moved_by(reference, -1), moved_by(reference, 1)
    if np.array_equal(target, earlier * reference):
        # of tokens that count up to the end, the same as a shift
        return reason(RLCode.MASK_END, num=num)
    if np.array_equal(target, later * reference):
        return reason(RLCode.MASK_START, num=num)
    for by, moved in ((1, later), (-1, earlier)):
        if np.array_equal(target, moved):
            return reason(RLCode.MASK_SHIFTED, by=by, num=num)
    out = (reference > 0) & (target == 0)
    if ids is not None and num == out.sum():
        ids = ids[:, : out.shape[1]]
        left = np.unique(ids[out])
        if len(left) == 1 and not target[ids == left[0]].any():
            return reason(RLCode.MASK_ID, id=int(left[0]), num=num, total=total)
    return reason(RLCode.MASK, num=num, total=total)


def moved_by(mask: Floats, by: int) -> Floats:
    """Each row moved by so many places, with zeros where nothing comes from."""
    moved = np.zeros_like(mask)
    width = mask.shape[1]
    moved[:, max(by, 0) : width + min(by, 0)] = mask[:, max(-by, 0) : width + min(-by, 0)]
    return moved


def kl_in_reward(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Rewards are scores less the KL to the reference policy."""
    sides = [(table, settings) for table, settings in sides_of(pair) if "rewards" in table]
    if len(sides) < 2:
        return
    cases = [_reward_cases(table, settings) for table, settings in sides]
    other = fitted(_reward_cases(sides[0][0], sides[1][1]))
    quantity = pair.quantity(Stage.KL_TERM, "rewards", "trainer")
    names = ("use_kl_in_reward", "kl_penalty", "kl_coef_in_reward")
    yield by_formula(
        quantity,
        (fitted(cases[0]), fitted(cases[1])),
        settings_apart(*pair.settings, names) if other is not None and not other.holds else (),
        None if pair.batch is None else pair.batch.apart("rewards"),
        inputs_agree=pair.agrees("scores", "old_log_probs", "ref_log_probs", "response_mask"),
    )


def _reward_cases(table: SequenceTable, settings: Mapping[str, Setting]) -> list[Case]:
    scores, held = table.get("scores"), table.get("rewards")
    old, ref = table.get("old_log_probs"), table.get("ref_log_probs")
    if scores is None or held is None:
        return []
    plain = FormulaValue(value=scores, magnitude=np.abs(scores))
    if not settings.get("use_kl_in_reward"):
        return [Case(recorded=held, expected=plain, variants=(), unit=table.unit("rewards"))]
    if old is None or ref is None:
        return []
    beta, mask = number(settings, "kl_coef_in_reward", 0.0), table.mask
    rounded = table.rounding("old_log_probs", "ref_log_probs")

    def less(kind: str, towards: tuple[Floats, Floats], beta: float = beta) -> FormulaValue | None:
        term, narrow = kl(*towards, kind), kl(*towards, kind, rounded)
        if term is None or narrow is None:
            return None
        return FormulaValue(
            value=scores - beta * term * mask,
            magnitude=np.abs(scores) + beta * (1 + np.abs(old - ref)) * mask,
            narrow=scores - beta * narrow * mask,
            summands=np.abs(scores) + beta * np.abs(term) * mask,
        )

    kind = str(settings.get("kl_penalty") or "kl")
    expected = less(kind, (old, ref))
    if expected is None:
        return []
    variants = [(reason(RLCode.WITHOUT_KL), plain)]
    for other in KL_KINDS:
        value = less(other, (old, ref))
        if value is not None:
            variants.append((reason(RLCode.KL_KIND, kind=other, wanted=kind), value))
    swapped = less(kind, (ref, old))
    if swapped is not None:
        variants.append((reason(RLCode.KL_SWAPPED, kind=kind), swapped))
    term = kl(old, ref, kind)
    if term is not None:
        variants += _other_coefficient(
            scores - held, term * mask, beta, lambda used: less(kind, (old, ref), used)
        )
        summed = np.zeros_like(scores)
        summed[np.arange(len(scores)), _last(table).astype(int)] = (term * mask).sum(axis=1)
        size = np.abs(scores) + beta * (np.abs(summed) + (np.abs(term) * mask).sum(axis=1, keepdims=True))
        variants.append(
            (reason(RLCode.KL_ON_LAST), FormulaValue(value=scores - beta * summed, magnitude=size))
        )
    return [Case(recorded=held, expected=expected, variants=variants, unit=table.unit("rewards"))]


def _other_coefficient(
    taken: Floats, term: Floats, beta: float, less: Callable[[float], FormulaValue | None]
) -> list[tuple[Reason, FormulaValue]]:
    """The coefficient that gives what was taken from the scores, as a person would have written it."""
    size = float((term * term).sum())
    used = short(float((taken * term).sum()) / size) if size else 0.0
    value = less(used) if used else None
    variant = reason(RLCode.TERM_FACTOR, term="kl_in_reward", used=used, wanted=beta)
    return [] if value is None else [(variant, value)]


def sides_of(pair: RLStepPair) -> Iterator[tuple[SequenceTable, Mapping[str, Setting]]]:
    """Both whole batches with their settings."""
    if pair.batch is not None:
        yield from zip(pair.batch.whole, pair.settings, strict=True)


def settings_apart(
    target: Mapping[str, Setting], reference: Mapping[str, Setting], names: tuple[str, ...]
) -> tuple[Reason, ...]:
    """Those of some settings that differ."""
    return tuple(
        reason(RLCode.SETTING, name=name, target=str(target.get(name)), reference=str(reference.get(name)))
        for name in names
        if target.get(name) != reference.get(name)
    )
