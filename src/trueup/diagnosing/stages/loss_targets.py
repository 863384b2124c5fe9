"""What a loss comes near to: soft labels, or values to predict, where these differ between two runs.

They are made by the program beside the model's inputs, so order and shard of the samples are known to agree
where the inputs do: what is left is how they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from trueup.comparing.losses.calls import loss_records
from trueup.comparing.losses.divergence import TARGETS, class_rows
from trueup.diagnosing.batches import value_relation
from trueup.diagnosing.kinds.thresholds import MIN_NUMBERS
from trueup.diagnosing.squared_errors import squares_of
from trueup.diagnosing.stages.batch import StepBatch, data_finding
from trueup.diagnosing.stages.context import Context, is_beyond
from trueup.diagnosing.stages.loss_factors import values_of
from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.thresholds import SCALED_ROUNDINGS
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView
from trueup.store.given import root_inputs
from trueup.types.arrays import Floats
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import EvidenceRank, Finding, Origin, Stage
from trueup.types.reason import Reason, reason

_SAY_THE_CAUSE = (
    *(Batches.TARGETS_SMOOTHED, Batches.TARGETS_OF_TEMPERATURE, Batches.TARGETS_MIXED),
    *(Batches.TARGETS_WEIGHTED, Batches.TARGETS_PARTNERS, Batches.TARGETS_COMBINED),
    *(Batches.TARGETS_SPREAD, Batches.TARGETS_AVERAGED, Batches.TARGETS_OF_MODULES),
)


def loss_targets(context: Context, stage: Stage) -> tuple[Finding, ...]:
    """One where the first step's differences begin at what a loss comes near to: of the data, or of the
    forward pass where both models make it themselves of equal inputs."""
    own, other = (StepBatch.of(book) for book in context.pair())
    if stage is not (Stage.FORWARD if own.has_same_inputs(other) else Stage.DATA):
        return ()
    first = _first_origin(context)
    if first is not None and first.phase != "loss":
        return ()  # they may be made of what differs before: of another model's output, say
    origin = first if first is not None and first.slot.startswith(TARGETS) else None
    rank = rank_of_other_loss(context) if origin is None else None
    if rank is not None:
        relation = _spread(context.pair(rank=rank))
        if relation is None and first is not None:
            return _of_squares(first, context, stage)
    else:
        relation = None if origin is None else _relation(origin, context)
    if origin is None and relation is None:
        return ()
    return (_finding(origin, relation, stage, context),)


def _finding(
    origin: Origin | None, relation: Reason | None, stage: Stage, context: Context, *seen: Reason
) -> Finding:
    own, other = (StepBatch.of(book) for book in context.pair())
    headline = Reason(Batches.TARGETS_DIFFER)
    if relation is None or relation.code not in (*_SAY_THE_CAUSE, Batches.SCALED, Batches.MOVED):
        made = None if origin is None else _of_modules(origin, context)
        if made is not None:
            headline, relation = made, made
    if relation is not None and relation.code in (Batches.TARGETS_SPREAD, Batches.TARGETS_AVERAGED):
        headline = reason(Batches.TARGETS_BROADCAST, side=relation.place("side"))
    causes: tuple[Reason, ...] | None = None
    if relation is not None and relation.code in _SAY_THE_CAUSE:
        causes = ()
    elif own.is_given_the_same(other):
        causes = (Reason(CauseCode.TARGETS_MADE),)
    rank = EvidenceRank.MOST if relation is None else EvidenceRank.EVERY_ELEMENT
    kind = kind_named("wrong_data", rank, relation or headline, causes=causes, phase="loss")
    found = data_finding(
        headline=headline,
        site="loss · targets" if origin is None else origin.site,
        book=own.book if origin is None else context.pair(rank=origin.rank)[0],
        phase="loss",
        kinds=(kind,),
        evidence=(
            *(() if relation is None else (relation,)),
            *seen,
            *(() if origin is None else origin.evidence),
        ),
        next_note=Reason(Batches.CHECK_TARGETS),
    )
    return replace(found, stage=stage)


def _of_squares(origin: Origin, context: Context, stage: Stage) -> tuple[Finding, ...]:
    """The same of squares that the program writes itself, and whose target is kept nowhere: what the loss
    sends back holds it. Nothing before the loss differs, so that the predictions are the same."""
    evidence = None if context.evidence_of is None else context.evidence_of(origin)
    if evidence is None:
        return ()
    at = origin.microbatch or 0
    sides = squares_of(evidence, at)
    if sides is None:
        return ()
    target, reference, spread = sides
    seen = reason(Batches.SQUARES, num=target.errors.size)
    if spread is not None:
        averaged = reason(Batches.TARGETS_AVERAGED, side=spread, rows=len(target.errors))
        return (_finding(origin, averaged, stage, context, seen),)
    books, rounding = context.pair(rank=origin.rank), max(target.rounding, reference.rounding)
    size = max(float(np.abs(one.targets).max()) for one in (target, reference))
    if np.abs(target.targets - reference.targets).max() <= SCALED_ROUNDINGS * rounding * size:
        return ()
    both = target.targets, reference.targets
    inputs = _equal_inputs(books, origin.microbatch, target.targets.shape)
    of_inputs = (combined(*both, values, name, rounding) for name, values in inputs)
    of_each = max(target.rounding_of_each, reference.rounding_of_each)
    relation = next((one for one in of_inputs if one is not None), None) or value_relation(*both, of_each)
    return (_finding(origin, relation, stage, context, seen),)


def _first_origin(context: Context) -> Origin | None:
    step = context.steps[0][0]
    return min((one for one in context.passive if one.step == step), key=lambda one: one.order, default=None)


def rank_of_other_loss(context: Context) -> int | None:
    """The first rank whose loss differs in the first step, where nothing before a loss does."""
    first = _first_origin(context)
    if first is not None and first.phase != "loss":
        return None
    step = context.steps[0][0]
    losses = context.rows.filter(
        is_beyond() & (pl.col("phase") == "loss") & (pl.col("slot") == "value") & (pl.col("step") == step)
    )
    ranks = losses["rank"].to_list()
    return int(ranks[0]) if ranks else None


def _relation(origin: Origin, context: Context) -> Reason | None:
    """How the target's are made of the reference's."""
    both = values_of(origin, context)
    books = context.pair(rank=origin.rank)
    rounding = _rounding(origin, books)
    if both is None or rounding is None:
        return None
    target, reference = both
    rows = tuple(class_rows(-one if one.max() <= 0 else one, rounding) for one in both)  # -target * log p
    if rows[0] is not None and rows[1] is not None:
        of_classes = class_relation(rows[0], rows[1], rounding)
        if of_classes is not None:
            return of_classes
    for name, values in _equal_inputs(books, origin.microbatch, target.shape):
        of_input = combined(target, reference, values, name, rounding)
        if of_input is not None:
            return of_input
    return value_relation(target, reference, rounding)


def _of_modules(origin: Origin, context: Context) -> Reason | None:
    """Whose output the targets are, bit for bit, where one run takes that of another module: a layer of a
    teacher beside its neighbour. A model without gradients is called before its student, so that the calls of
    a step are among the records of the step before; of the first step there may be none, and the next one
    tells of the same lines of the program."""
    for at in range(len(context.steps)):
        before = context.pair(at - 1, origin.rank) if at else None
        made = [
            _returned(book, () if before is None else before[side : side + 1], origin.slot)
            for side, book in enumerate(context.pair(at, origin.rank))
        ]
        if all(made) and not set(made[0]) & set(made[1]):
            target, reference = (_shown(min(ones, key=lambda one: (one[0].count("."), one))) for ones in made)
            return reason(Batches.TARGETS_OF_MODULES, target=target, reference=reference)
    return None


def _shown(place: tuple[str, str]) -> str:
    name, _, which = place[0], *place[1].partition(".")[1:]
    return name if which in ("", "0") else f"{name} ({which})"


def _returned(book: StepView, earlier: Iterable[StepView], slot: str) -> list[tuple[str, str]]:
    """Modules and slots that returned the first microbatch's targets of a slot; none where these are one
    number."""
    at = next((row for _, row in loss_records(book, TARGETS) if book.slot[row] == slot), None)
    values = None if at is None else book.value(at)
    if at is None or values is None or values.size < MIN_NUMBERS or (values == values.flat[0]).all():
        return []
    digest = book.digest(at)
    return [
        (view.name[view.record_call[row]], view.slot[row])
        for view in (book, *earlier)
        for row, phase in enumerate(view.phase)
        if phase == "forward"
        and view.slot[row].startswith("output")
        and view.digest(row) == digest
        and view.kind[view.record_call[row]] == "module"
        and view.name[view.record_call[row]]
    ]


def _spread(books: tuple[StepView, StepView]) -> Reason | None:
    """Targets of another shape in one run, which hold the other's in every row or column: a broadcast."""
    sides = [{view.slot[at]: at for _, at in loss_records(view, TARGETS)} for view in books]
    for slot in sorted(sides[0].keys() & sides[1].keys()):
        own, other = (view.value(held[slot]) for view, held in zip(books, sides, strict=True))
        for side, wide, narrow in (("target", own, other), ("reference", other, own)):
            if wide is not None and narrow is not None and is_spread(wide, narrow):
                shapes = {"shape": str(list(wide.shape)), "other": str(list(narrow.shape))}
                return reason(Batches.TARGETS_SPREAD, side=side, **shapes)
    return None


def is_spread(wide: Floats, narrow: Floats) -> bool:
    """Whether ``wide`` is ``narrow`` once more along one of its dimensions, several times."""
    for dim in range(wide.ndim):
        num = wide.shape[dim]
        if num > 1 and wide.size == num * narrow.size:
            one = np.take(wide, [0], axis=dim)
            if np.array_equal(one.ravel(), narrow.ravel()) and (wide == one).all():
                return True
    return False


def _rounding(origin: Origin, books: tuple[StepView, StepView]) -> float | None:
    """Unit roundoff of the coarser side; None where the values of one were not kept."""
    records = (origin.target_record, origin.reference_record)
    held = [None if at is None else book.raw(at) for book, at in zip(books, records, strict=True)]
    kept = [DTYPES[one[0]].eps for one in held if one is not None and DTYPES[one[0]].kind == "float"]
    return max(kept) if len(kept) == len(books) else None


def _equal_inputs(
    books: tuple[StepView, StepView], microbatch: int | None, shape: tuple[int, ...]
) -> Iterator[tuple[str, Floats]]:
    """Inputs of both models with the same bits and of that shape, by name."""
    other = {(at, slot): books[1].digest(row) for at, slot, row in root_inputs(books[1])}
    for at, slot, row in root_inputs(books[0]):
        digest = books[0].digest(row)
        if at == microbatch and digest is not None and other.get((at, slot)) == digest:
            values = books[0].value(row)
            if values is not None and values.shape == shape:
                yield slot.partition(".")[2], values


# -- soft labels -------------------------------------


def class_relation(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """How soft labels (rows, classes) of the same rows came from the reference's: smoothed, of another
    temperature, mixed in one run alone, with other weights, or with other rows."""
    if target.shape != reference.shape:
        return None
    looks = (_smoothed, _of_temperature, _mixed)
    return next((one for look in looks if (one := look(target, reference, rounding))), None)


def _smoothed(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """A share of each label spread evenly over all classes, in one run alone."""
    even = 1 / target.shape[1]
    sides = {"target": target - even, "reference": reference - even}
    for side, other in (("target", "reference"), ("reference", "target")):
        size = np.vdot(sides[other], sides[other])
        scale = float(np.vdot(sides[side], sides[other]) / size) if size else 0.0
        error = np.abs(sides[side] - scale * sides[other]).max()
        if 0 < scale < 1 - SCALED_ROUNDINGS * rounding and error <= SCALED_ROUNDINGS * rounding:
            return reason(Batches.TARGETS_SMOOTHED, side=side, amount=1 - scale)
    return None


def _of_temperature(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """A softmax of the same logits divided by another number: logarithms of the probabilities that are, but
    for a number a row, a multiple of the reference's."""
    if min(target.min(), reference.min()) <= 0:
        return None
    sides = [np.log(side) for side in (target, reference)]
    sides = [side - side.mean(axis=1, keepdims=True) for side in sides]
    size = np.vdot(sides[1], sides[1])
    factor = float(np.vdot(sides[0], sides[1]) / size) if size else 0.0
    largest = max(float(np.abs(np.log(side)).max()) for side in (target, reference))
    error = SCALED_ROUNDINGS * rounding * max(largest, 1.0) * max(factor, 1.0)
    if factor <= 0 or np.abs(sides[0] - factor * sides[1]).max() > error:
        return None
    return reason(Batches.TARGETS_OF_TEMPERATURE, factor=factor)


def _mixed(target: Floats, reference: Floats, rounding: float) -> Reason | None:
    """Labels of two rows mixed: in one run alone, with other weights, or with other rows. What all classes of
    a row have at least is smoothing."""
    error = SCALED_ROUNDINGS * rounding
    held = {side: rows > rows.min(axis=1, keepdims=True) + error for side, rows in _sides(target, reference)}
    num = {side: int((one.sum(axis=1) > 1).sum()) for side, one in held.items()}
    for side, other in (("target", "reference"), ("reference", "target")):
        if not num[side] and num[other]:
            return reason(Batches.TARGETS_MIXED, side=other, num=num[other], total=len(target))
    if 2 * max(one.sum(axis=1).max() for one in held.values()) >= target.shape[1] or not any(num.values()):
        return None
    total = len(target)
    same = (held["target"] == held["reference"]).all(axis=1)
    if same.all():
        at = int(np.argmax(np.abs(target - reference).max(axis=1)))
        weights = {
            f"{side}_weights": _weights(rows[at][held[side][at]]) for side, rows in _sides(target, reference)
        }
        return reason(Batches.TARGETS_WEIGHTED, total=total, row=at, **weights)
    equal = (np.abs(target - reference) <= error) & held["target"]
    mixed = (held["target"].sum(axis=1) > 1) & (held["reference"].sum(axis=1) > 1)  # a row with its own class
    if (equal.any(axis=1) | same)[mixed].all() and 2 * mixed.sum() > total:
        return reason(Batches.TARGETS_PARTNERS, num=int((~same).sum()), total=total)
    return None


def _sides(target: Floats, reference: Floats) -> tuple[tuple[str, Floats], tuple[str, Floats]]:
    return ("target", target), ("reference", reference)


def _weights(row: Floats) -> tuple[str, ...]:
    return tuple(f"{one:.3g}" for one in row.tolist())


# -- values to predict -------------------------------


def combined(target: Floats, reference: Floats, given: Floats, name: str, rounding: float) -> Reason | None:
    """Whether the target's values (samples, ...) are in each sample a multiple of the reference's plus a
    multiple of what both models are given: noise, clean samples and velocities of a diffusion model are, of
    each other. Two numbers a sample explain no more than two of its values by chance."""
    sides = [one.reshape(len(one), -1) if one.ndim > 1 else one[:0] for one in (target, reference, given)]
    if not sides[0].size or sides[0].shape[1] < MIN_NUMBERS:
        return None
    pairs, errors = list[Floats](), list[float]()
    for values, other, noisy in zip(*sides, strict=True):
        basis = np.stack([other, noisy], axis=1)
        pair, _, rank, singular = np.linalg.lstsq(basis, values, rcond=None)
        size = max(np.abs(values).max(), np.abs(basis * pair).max())
        error = SCALED_ROUNDINGS * rounding * size
        if rank < len(pair) or np.abs(basis @ pair - values).max() > error:
            return None
        pairs.append(pair)
        errors.append(error * np.sqrt(len(values)) / singular[-1])
    numbers, bounds = np.array(pairs), np.array(errors)
    if (np.abs(numbers[:, 1]) <= bounds).all():
        return None  # a multiple alone: nothing of what the model is given is in it
    at = int(np.argmax(np.abs(numbers[:, 1])))
    first = {"of_reference": float(numbers[at, 0]), "of_input": float(numbers[at, 1])}
    law = _law(numbers, bounds)
    return reason(Batches.TARGETS_COMBINED, name=name, num=len(numbers), row=at, law=law, **first)


def _law(numbers: Floats, errors: Floats) -> str:
    """What the two factors (samples, 2) say of a diffusion model, each true to ``errors``; empty where they
    fit none.

    With x = a s + b n, a a + b b = 1 (Ho et al. 2020) and velocity v = a n - b s (Salimans and Ho 2022):
    v = (n - b x) / a = (a x - s) / b, n = a v + b x, s = a x - b v, n = (x - a s) / b. With
    x = (1 - u) s + u n and velocity v = n - s (Lipman et al. 2023): n = x + (1 - u) v, s = x - u v,
    v = (n - x) / (1 - u) = (x - s) / u, s = (x - u n) / (1 - u).
    """
    of_reference, of_input = numbers.T
    slack = 2 * (np.abs(numbers).sum(axis=1) + 1) * errors
    positive, negative = (of_reference > 0).all(), (of_reference < 0).all()
    laws = {
        "flow_velocity": np.abs(of_reference + of_input) <= slack,
        "of_flow_velocity": np.abs(of_input - 1) <= slack,
        "velocity": np.abs(of_reference**2 - of_input**2 - 1) <= slack,
        "of_velocity": np.abs(of_reference**2 + of_input**2 - 1) <= slack,
        "flow_noise_or_sample": np.abs(of_reference + of_input - 1) <= slack,
        "noise_or_sample": np.abs(of_input**2 - of_reference**2 - 1) <= slack,
    }
    law = next((name for name, holds in laws.items() if holds.all()), "")
    if not law or not (positive or negative):
        return ""
    if law.endswith("noise_or_sample"):
        return law
    return f"{law}_{'noise' if positive else 'sample'}"
