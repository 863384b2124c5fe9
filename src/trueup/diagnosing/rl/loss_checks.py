"""Checks of losses: what they were given, each term, the total, and the update between mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trueup.diagnosing.rl.batch_checks import KL_KINDS, mask_difference, moved_by, settings_apart
from trueup.diagnosing.rl.fits import (
    SINGLE,
    Case,
    FormulaValue,
    by_formula,
    differs,
    fitted,
    in_doubt,
    scalar,
)
from trueup.diagnosing.rl.formulas import Aggregation, PolicyLoss, kl, number, short, value_loss
from trueup.diagnosing.rl.loss_forms import policy_forms, value_forms
from trueup.diagnosing.rl.steps import QuantityCheck, RLStepPair
from trueup.diagnosing.rl.tables import Apart, SequencePair, SequenceTable
from trueup.diagnosing.rl.thresholds import FORMULA
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.store.rollouts import RLRecord, Setting
from trueup.types.arrays import Floats
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

Settings = Mapping[str, Setting]
Cases = Callable[[RLRecord, Settings], list[Case]]
MODES = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One number of a loss."""

    stage: Stage
    name: str
    role: str
    settings: tuple[str, ...]
    cases: Cases


def given(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """The losses are given what the batch holds."""
    if pair.batch is None:
        return
    for role, stage in (("actor", Stage.POLICY_LOSS), ("critic", Stage.VALUE_LOSS)):
        if not pair.losses(role, 0) or not pair.losses(role, 1):
            continue
        sides = [
            SequencePair.of(SequenceTable.of(pair.losses(role, at)), pair.batch.whole[at]) for at in (0, 1)
        ]
        if all(one.apart(name) is None for one in sides for name in _GIVEN):
            continue
        found = [dict(_given_other(one)) for one in sides]
        quantity = pair.quantity(stage, "inputs", role)
        bad = [difference for name, difference in found[0].items() if name not in found[1]]
        counted = [_counts(pair, role, side) for side in (0, 1)]
        if bad:
            yield quantity.failed(bad[0], *bad[1:])
        elif counted[0] is not None and counted[1] is None:
            yield quantity.failed(counted[0])
        else:
            yield quantity.passed(RLCode.GIVEN_ALIKE if found[0] else RLCode.GIVEN_HELD)


_GIVEN = ("response_mask", "advantages", "old_log_probs", "ref_log_probs", "values", "returns")


def _given_other(pair: SequencePair) -> Iterator[tuple[str, Reason]]:
    for name in _GIVEN:
        apart, both = pair.apart(name), pair.both(name)
        if apart is None or both is None or apart.agrees:
            continue
        difference = mask_difference(*both) if name == "response_mask" else differs(name, apart)
        yield name, reason(RLCode.GIVEN_OTHER, _instead(pair, name) or difference, quantity=name)


def _instead(pair: SequencePair, name: str) -> Reason | None:
    """What a loss was given has the bits of another of its own or of the batch's arrays."""
    held = pair.target.get(name)
    for other in ("log_probs", "predictions", "rewards", "rollout_log_probs", *_GIVEN):
        same = pair.reference.get(other) if other in pair.reference else pair.target.get(other)
        if held is not None and same is not None and other != name and held.shape[0] == same.shape[0]:
            width = min(held.shape[1], same.shape[1])
            if held.any() and np.array_equal(held[:, :width], same[:, :width]):
                return reason(RLCode.COPIED, quantity=name, of=other)
    return None


def weights(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Importance weights of the rollout's tokens: the trainer's probability over the rollout's, truncated
    where the reference's are. Of another kind in the reference: what it has for the same tokens."""
    if pair.batch is None or any("rollout_weights" not in side for side in pair.batch.whole):
        return
    quantity = pair.quantity(Stage.POLICY_LOSS, "rollout_weights", "trainer")
    target, reference = pair.batch.whole
    cap = float(reference.arrays["rollout_weights"].max(initial=0.0))
    own, other = (_weight_forms(side, cap) for side in (target, reference))
    if own and other.get(RLCode.FORMULA_HOLDS, np.inf) <= 1:
        code = next((code for code, error in own.items() if error <= 1), RLCode.FORMULA_FAILS)
        reached = float(target.arrays["rollout_weights"].max(initial=0.0))
        numbers = {"used": reached, "wanted": cap} if code is RLCode.WEIGHTS_NOT_CAPPED else {}
        if code is RLCode.FORMULA_HOLDS:
            yield quantity.passed(code)
        elif code is RLCode.FORMULA_FAILS:
            error = own.get(RLCode.FORMULA_HOLDS)
            yield quantity.failed(reason(code, quantity="rollout_weights", side="target", error=error))
        else:
            yield quantity.failed(reason(code, **numbers))
        return
    apart = pair.batch.apart("rollout_weights", pair.unit(), pair.changed("actor"))
    if apart is None or apart.agrees:
        yield quantity.passed(RLCode.EQUAL) if apart is None else quantity.agreeing(apart)
    elif apart.is_beyond and pair.agrees("old_log_probs", "rollout_log_probs") and not pair.has_failed_before:
        yield quantity.failed(differs("rollout_weights", apart))
    else:
        yield quantity.undecided(in_doubt("rollout_weights", apart))


def _weight_forms(table: SequenceTable, cap: float) -> dict[RLCode, float]:
    """How far recorded weights are from those that a run's own log-probs give, in what rounding allows."""
    held, old, rollout = (
        table.get(name) for name in ("rollout_weights", "old_log_probs", "rollout_log_probs")
    )
    if held is None or old is None or rollout is None or not (held[table.mask > 0] < cap).any():
        return {}  # all that is truncated is the same whatever it is made from
    inside, apart = table.mask > 0, (old - rollout) * table.mask
    summed = np.broadcast_to(apart.sum(axis=1, keepdims=True), apart.shape)
    forms = {
        RLCode.FORMULA_HOLDS: np.minimum(np.exp(apart), cap),
        RLCode.WEIGHTS_NOT_CAPPED: np.exp(apart),
        RLCode.WEIGHTS_INVERTED: np.minimum(np.exp(-apart), cap),
        RLCode.WEIGHTS_OF_SEQUENCES: np.minimum(np.exp(summed), cap),
    }
    size = max(table.unit("rollout_weights"), SINGLE) * (1 + np.abs(old) + np.abs(rollout)) * np.abs(held)
    return {
        code: float((np.abs(held - value) / np.maximum(FORMULA * size, 1e-300))[inside].max(initial=0.0))
        for code, value in forms.items()
    }


def entropies(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """What the policy's distributions give before the first update, where their log-probs agree."""
    first = next(pair.mini_batches("actor"), None)
    if first is None or any(name not in side for side in first.whole for name in ("entropy", "log_probs")):
        return
    both, probabilities = first.both("entropy"), first.apart("log_probs", pair.unit())
    if both is None or probabilities is None:
        return
    quantity = pair.quantity(Stage.POLICY_LOSS, "entropy", "actor")
    inside, unit = first.valid(both[0]), max(pair.unit() or 0.0, first.reference.unit("entropy"))
    apart = Apart.of(both[0][inside], both[1][inside], unit, least=1.0, changed=pair.changed("actor"))
    if apart.agrees:
        yield quantity.agreeing(apart)
    elif not probabilities.agrees or pair.has_failed_before:
        yield quantity.follows()
    elif apart.is_beyond:
        yield quantity.failed(differs("entropy", apart))
    else:
        yield quantity.undecided(in_doubt("entropy", apart))


def _counts(pair: RLStepPair, role: str, side: int) -> Reason | None:
    """Whether the number of tokens that a mini-batch is divided by is not the number that it has."""
    held: dict[int, list[RLRecord]] = {}
    for one in pair.losses(role, side):
        held.setdefault(one.number, []).append(one)
    for records in held.values():
        declared = {number(one.settings, "num_tokens", -1) for one in records}
        actual = sum(float(SequenceTable.of([one]).mask.sum()) for one in records)
        other = declared - {-1, actual}
        if other:
            return reason(RLCode.LOCAL_COUNT, told=max(other), actual=actual, calls=len(records))
    return None


def losses(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """Every term of every loss."""
    for term in TERMS:
        check = _term(pair, term)
        if check is not None:
            pair.found.append(check)
            yield check


def _term(pair: RLStepPair, term: Term) -> QuantityCheck | None:
    sides = [pair.losses(term.role, side) for side in (0, 1)]
    if any(not side or any(term.name not in one.numbers for one in side) for side in sides):
        return None
    fits = [fitted([c for one in side for c in term.cases(one, one.settings)]) for side in sides]
    other = fitted([c for one in sides[0] for c in term.cases(one, {**one.settings, **_of(sides[1], term)})])
    effective = other is not None and not other.holds
    return by_formula(
        pair.quantity(term.stage, term.name, term.role),
        (fits[0], fits[1]),
        settings_apart(sides[0][0].settings, sides[1][0].settings, term.settings) if effective else (),
        _sums(sides[0], sides[1], term.name),
        inputs_agree=pair.agrees(
            "inputs",
            "advantages",
            "returns",
            "old_log_probs",
            "ref_log_probs",
            "values",
            "entropy",
            "rollout_weights",
            "weights",
        ),
    )


def _of(records: tuple[RLRecord, ...], term: Term) -> dict[str, Setting]:
    return {name: records[0].settings[name] for name in term.settings if name in records[0].settings}


def _sums(target: tuple[RLRecord, ...], reference: tuple[RLRecord, ...], name: str) -> Apart | None:
    """Of the first mini-batch, where both cut it into as many calls."""
    sides = [[one.numbers[name] for one in side if one.number == 0] for side in (target, reference)]
    if len(sides[0]) != len(sides[1]):
        return None
    unit = max(SequenceTable.of([side[0]]).unit("log_probs", "predictions") for side in (target, reference))
    return Apart.of(np.array([sum(sides[0])]), np.array([sum(sides[1])]), unit)


# -- terms ------------------------------------------


def _aggregation(table: SequenceTable, settings: Settings) -> Aggregation:
    def known(name: str) -> float | None:
        return None if settings.get(name) is None else number(settings, name, 0.0)

    return Aggregation(
        mode=str(settings.get("loss_agg_mode")),
        mask=table.mask,
        num_tokens=known("num_tokens"),
        num_sequences=known("num_sequences"),
        num_replicas=number(settings, "num_replicas", 1.0),
        horizon=known("horizon"),
    )


def _aggregated(
    values: Floats | None, by: Aggregation, terms: Floats | None = None, narrow: Floats | None = None
) -> FormulaValue | None:
    """Values of tokens as one number; ``terms``: the size of what each is made from; ``narrow``: the values
    as their inputs' dtype gives them."""
    if values is None:
        return None
    total, size = by.total(values), by.total(np.abs(values) + (0.0 if terms is None else np.abs(terms)))
    if total is None or size is None:
        return None
    return scalar(total, size, None if narrow is None else by.total(narrow))


def _other_aggregations(
    values: Floats, table: SequenceTable, by: Aggregation, narrow: Floats | None = None
) -> Iterator[tuple[Reason, FormulaValue | None]]:
    def value(**changed: object) -> FormulaValue | None:
        return _aggregated(values, replace(by, **changed), None, narrow)  # type: ignore[arg-type]

    for mode in MODES:
        if mode != by.mode:
            variant = reason(RLCode.AGGREGATED, mode=mode, wanted=by.mode)
            yield variant, value(mode=mode)
            yield variant, value(mode=mode, num_tokens=None, num_sequences=None)
    if by.mode.startswith("seq-mean"):
        own = float((table.mask.sum(axis=1) > 0).sum())
        counts = {"told": own, "actual": by.num_sequences, "unit": "sequences"}
    else:
        counts = {"told": float(table.mask.sum()), "actual": by.num_tokens, "unit": "tokens"}
    yield reason(RLCode.LOCAL_COUNT, **counts, calls=1), value(num_tokens=None, num_sequences=None)
    if by.mode == "seq-mean-token-sum-norm":
        yield reason(RLCode.HORIZON), value(horizon=float(table.mask.sum(axis=1).max(initial=1.0)))
    valid = table.valid.astype(np.float64)
    yield reason(RLCode.MASK_IGNORED), value(mask=valid)
    yield reason(RLCode.MASK_IGNORED), value(mask=np.ones_like(valid))
    for step in (1, -1):
        for moved in (np.roll(table.mask, step, axis=1), moved_by(table.mask, step)):
            yield reason(RLCode.MASK_MOVED, by=step), value(mask=moved)
    yield reason(RLCode.SIGN), _aggregated(-values, by, None, None if narrow is None else -narrow)


def _case(
    record: RLRecord,
    name: str,
    expected: FormulaValue | None,
    variants: Iterator[tuple[Reason, FormulaValue | None]],
    unit: float,
) -> list[Case]:
    if expected is None:
        return []
    known = ((variant, value) for variant, value in variants if value is not None)
    recorded = np.array([record.numbers[name]])
    return [Case(recorded=recorded, expected=expected, variants=known, unit=unit)]


def _policy(record: RLRecord, settings: Settings) -> list[Case]:
    table = SequenceTable.of([record])
    loss = _objective(table, settings)
    if loss is None:
        return []
    by = _aggregation(table, settings)
    rounded = table.rounding("log_probs", "old_log_probs")

    def value(form: PolicyLoss, by: Aggregation = by) -> FormulaValue | None:
        narrow = replace(form, rounded=rounded).computed()
        return _aggregated(form.computed(), by, np.abs(loss.advantages) * (1 + loss.ratio), narrow)

    def variants() -> Iterator[tuple[Reason, FormulaValue | None]]:
        for variant, form in policy_forms(loss, table):
            yield variant, value(form)
        narrow = replace(loss, rounded=rounded).computed()
        yield from _other_aggregations(loss.computed(), table, by, narrow)

    return _case(record, "policy_loss", value(loss), variants(), table.unit("advantages"))


def _objective(table: SequenceTable, settings: Settings) -> PolicyLoss | None:
    """None of a form that is not known here."""
    now, old, gains = (table.get(name) for name in ("log_probs", "old_log_probs", "advantages"))
    mode = settings.get("loss_mode") or "vanilla"
    if now is None or old is None or gains is None or mode not in ("vanilla", "gspo"):
        return None
    low = number(settings, "clip_low", 0.2)
    return PolicyLoss(
        log_probs=now,
        old=old,
        advantages=gains,
        low=low,
        high=number(settings, "clip_high", low),
        dual=None
        if settings.get("clip_dual") is None or mode == "gspo"
        else number(settings, "clip_dual", 3.0),
        of_sequences=table.mask if mode == "gspo" else None,
        weights=table.get("rollout_weights"),
    )


def _kl(record: RLRecord, settings: Settings) -> list[Case]:
    table = SequenceTable.of([record])
    now, ref = table.get("log_probs"), table.get("ref_log_probs")
    kind = str(settings.get("kl_loss_type"))
    if now is None or ref is None:
        return []
    by, rounded = _aggregation(table, settings), table.rounding("log_probs", "ref_log_probs")

    def value(one: Floats, other: Floats, kind: str) -> FormulaValue | None:
        size = 1 + np.abs(now - ref)
        return _aggregated(kl(one, other, kind), by, size, kl(one, other, kind, rounded))

    def variants() -> Iterator[tuple[Reason, FormulaValue | None]]:
        for other in KL_KINDS:
            yield reason(RLCode.KL_KIND, kind=other, wanted=kind), value(now, ref, other)
        yield reason(RLCode.KL_SWAPPED, kind=kind), value(ref, now, kind)
        for name in ("old_log_probs", "rollout_log_probs"):
            policy = table.get(name)
            if policy is not None:
                yield reason(RLCode.KL_TO_OTHER, to=name), value(now, policy, kind)
        own = kl(now, ref, kind)
        if own is not None:
            yield from _other_aggregations(own, table, by, kl(now, ref, kind, rounded))

    unit = table.unit("log_probs", "ref_log_probs")
    return _case(record, "kl_loss", value(now, ref, kind), variants(), unit)


def _entropy(record: RLRecord, settings: Settings) -> list[Case]:
    table = SequenceTable.of([record])
    held, by = table.get("entropy"), _aggregation(table, settings)
    if held is None:
        return []
    variants = _other_aggregations(held, table, by)
    return _case(record, "entropy_loss", _aggregated(held, by), variants, table.unit("entropy"))


def _total(record: RLRecord, settings: Settings) -> list[Case]:
    """The policy's loss, less the entropy's, and the KL's, each by its coefficient."""
    if "policy_loss" not in record.numbers:
        return _whole(record, settings)
    parts = {name: record.numbers.get(name, 0.0) for name in ("policy_loss", "entropy_loss", "kl_loss")}
    own = {
        "policy_loss": 1.0,
        "entropy_loss": -number(settings, "entropy_coef", 0.0),
        "kl_loss": number(settings, "kl_coef", 0.0) if settings.get("use_kl_loss", True) else 0.0,
    }

    def value(factors: Mapping[str, float]) -> FormulaValue:
        terms = [factors[name] * parts[name] for name in parts]
        size = sum(map(abs, terms))
        return scalar(sum(terms), size, summands=size)

    def variants() -> Iterator[tuple[Reason, FormulaValue | None]]:
        for name, factor in own.items():
            if factor:
                yield reason(RLCode.TERM_SIGN, term=name), value({**own, name: -factor})
                yield reason(RLCode.TERM_MISSING, term=name), value({**own, name: 0.0})
        for name, factor in own.items():
            rest = record.numbers["loss"] - sum(own[n] * parts[n] for n in parts if n != name)
            if parts[name] and factor:
                used = short(rest / parts[name])
                sign = -1 if name == "entropy_loss" else 1  # which is taken off
                variant = reason(RLCode.TERM_FACTOR, term=name, used=sign * used, wanted=sign * factor)
                yield variant, value({**own, name: used})

    return _case(record, "loss", value(own), variants(), SequenceTable.of([record]).unit("log_probs"))


def _whole(record: RLRecord, settings: Settings) -> list[Case]:
    """The total of a trainer that adds the terms token by token, as TRL's does."""
    table = SequenceTable.of([record])
    loss, ref = _objective(table, settings), table.get("ref_log_probs")
    if loss is None:
        return []
    by, size = _aggregation(table, settings), np.abs(loss.advantages) + 1 + np.abs(loss.log_probs)
    size = size * (1 + loss.ratio)
    factor = number(settings, "kl_coef", 0.0) if settings.get("use_kl_loss") else 0.0
    kind = str(settings.get("kl_loss_type"))
    weight = loss.ratio if settings.get("kl_weighted") else np.ones(table.valid.shape)

    def value(form: PolicyLoss, kind: str = kind, factor: float = factor) -> FormulaValue | None:
        term = kl(loss.log_probs, ref, kind) if ref is not None else np.zeros(table.valid.shape)
        return None if term is None else _aggregated(form.computed() + factor * term * weight, by, size)

    def variants() -> Iterator[tuple[Reason, FormulaValue | None]]:
        for other in KL_KINDS:
            yield reason(RLCode.KL_KIND, kind=other, wanted=kind), value(loss, other)
        yield reason(RLCode.TERM_MISSING, term="kl_loss"), value(loss, factor=0.0)
        yield reason(RLCode.TERM_SIGN, term="kl_loss"), value(loss, factor=-factor)
        for variant, form in policy_forms(loss, table):
            yield variant, value(form)
        term = kl(loss.log_probs, ref, kind) if ref is not None else None
        values = loss.computed() + (0.0 if term is None else factor * term * weight)
        yield from _other_aggregations(values, table, by)

    return _case(record, "loss", value(loss), variants(), table.unit("log_probs", "old_log_probs"))


def _value(record: RLRecord, settings: Settings) -> list[Case]:
    table = SequenceTable.of([record])
    now, old, goal = (table.get(name) for name in ("predictions", "values", "returns"))
    if now is None or old is None or goal is None:
        return []
    clip = None if settings.get("value_clip") is None else number(settings, "value_clip", 0.5)
    by, own = _aggregation(table, settings), value_loss(now, old, goal, clip)
    terms, narrow = now * now + goal * goal, value_loss(now, old, goal, clip, table.rounding("values"))

    def variants() -> Iterator[tuple[Reason, FormulaValue | None]]:
        for variant, form in value_forms(now, old, goal, clip):
            yield variant, _aggregated(form, by, terms)
        yield reason(RLCode.NOT_HALVED), _aggregated(2 * own, by, terms, 2 * narrow)
        yield from _other_aggregations(own, table, by, narrow)

    unit = table.unit("predictions", "returns")
    return _case(record, "value_loss", _aggregated(own, by, terms, narrow), variants(), unit)


_AGGREGATES = ("loss_agg_mode", "horizon")
TERMS = (
    Term(
        stage=Stage.POLICY_LOSS,
        name="policy_loss",
        role="actor",
        settings=("loss_mode", "clip_low", "clip_high", "clip_dual", *_AGGREGATES),
        cases=_policy,
    ),
    Term(stage=Stage.POLICY_LOSS, name="entropy_loss", role="actor", settings=_AGGREGATES, cases=_entropy),
    Term(
        stage=Stage.KL_TERM, name="kl_loss", role="actor", settings=("kl_loss_type", *_AGGREGATES), cases=_kl
    ),
    Term(
        stage=Stage.POLICY_LOSS,
        name="loss",
        role="actor",
        settings=("use_kl_loss", "kl_coef", "entropy_coef"),
        cases=_total,
    ),
    Term(
        stage=Stage.VALUE_LOSS,
        name="value_loss",
        role="critic",
        settings=("value_clip", *_AGGREGATES),
        cases=_value,
    ),
)
"""in the order in which they are computed"""


# -- update ------------------------------------------


def updates(pair: RLStepPair) -> Iterator[QuantityCheck]:
    """What the models give in the mini-batches after the first, where all before agrees."""
    for role, name in (("actor", "log_probs"), ("critic", "predictions")):
        pairs = list(pair.mini_batches(role))
        if len(pairs) > 1 and all(name in side for one in pairs for side in one.whole):
            yield _updated(pair, role, name, pairs)


def _updated(pair: RLStepPair, role: str, name: str, pairs: list[SequencePair]) -> QuantityCheck:
    quantity = pair.quantity(Stage.UPDATE, "weights", role)
    if not all(one.is_whole for one in pairs):
        return quantity.undecided(reason(RLCode.OTHER_ROWS, role=role))
    found = [one.apart(name, pair.unit(), pair.changed(role, at + 1)) for at, one in enumerate(pairs)]
    doubtful = [one for one in found[1:] if one is not None and not one.agrees]
    if not doubtful:
        return quantity.agreeing(max((one for one in found[1:] if one is not None), key=lambda one: one.rms))
    bad = (StageStatus.FAILED, StageStatus.CONSEQUENCE)
    if pair.has_failed_before or any(one.status in bad for one in pair.found):
        return quantity.follows()
    beyond = next((one for one in doubtful if one.is_beyond), None)
    if beyond is None:
        return quantity.undecided(in_doubt("weights", doubtful[0]))
    conclusion = reason(RLCode.UPDATE, role=role, step=pair.step, rms=beyond.rms, allowed=beyond.allowed)
    return quantity.failed(conclusion, confirmed=False)
