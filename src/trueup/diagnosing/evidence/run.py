"""Numbers of one run at one step: sizes, scales, settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from trueup.comparing.losses.calls import loss_arguments, loss_records, reduction_of
from trueup.comparing.losses.inputs import LossInputs
from trueup.diagnosing.evidence.facts import LossFacts, RunFacts
from trueup.diagnosing.loss_form import LossForm, loss_form
from trueup.numerics.ulp import unit_roundoff
from trueup.store import StepView, TraceSource, view_if_there
from trueup.store.given import root_inputs
from trueup.store.recorded import MOST_SAMPLED
from trueup.types.arrays import Array, Bools, Floats, Ints
from trueup.types.trace import ScalarLine

MAX_RANKS = 64
_SIZES = ("l2_norm", "minimum", "maximum")


# In one piece: one entry a fact, each of which may be missing.
def run_facts(source: TraceSource, step: int, rank: int, view: StepView | None) -> RunFacts:
    """What a trace says of its run at a step."""
    lines = source.scalars(rank)
    line = _line(lines, step)
    manifest = source.manifest
    ranks = source.steps().get(step, [])[:MAX_RANKS]
    of_ranks = {r: line if r == rank else _line(source.scalars(r), step) for r in ranks}
    tokens = [_number(entry.get("tokens")) for entry in of_ranks.values()]
    return RunFacts(
        world_size=_whole(manifest.get("world_size")),
        data_parallel_size=_whole(line.get("data_parallel_size")),
        microbatches=_microbatches(line, view),
        microbatches_elsewhere=_most_common(lines, step),
        loss_scale=_number(line.get("loss_scale")),
        tokens=_number(line.get("tokens")),
        rank_tokens=tuple(t for t in tokens if t is not None),
        rank_counted=_counted(source, step, ranks, _whole(line.get("data_parallel_size"))),
        grad_norm=_number(line.get("grad_norm")),
        learning_rate=_numbers(line.get("learning_rate")),
        learning_rates={
            s: _numbers(entry.get("learning_rate"))
            for s, entry in _by_step(lines)
            if entry.get("learning_rate")
        },
        loss=_number(line.get("loss")),
        losses={} if view is None else _losses_once(view, _number(line.get("loss_scale")) or 1.0),
        sent_back={} if view is None else view.once(_sent_back, lambda: _sent_back(view)),
        sent_from={} if view is None else view.once(_sent_from, lambda: _sent_from(view)),
        row_inputs={} if view is None else _row_inputs(view),
        sent_sizes={} if view is None else _sent_sizes(view, _number(line.get("loss_scale")) or 1.0),
        sent_as_reference=frozenset() if view is None else _sent_as_reference(view),
        weighed={} if view is None else view.once(_weighed, lambda: _weighed(view)),
        reduction=None if view is None else reduction_of(loss_arguments(view)),
        skipped=line.get("skipped") if isinstance(line.get("skipped"), bool) else None,
        draws=_draws(line),
        drawn_by_ranks=drawn_by_ranks([_draws(entry) or {} for entry in of_ranks.values()]),
        modules=view.once(_modules, lambda: _modules(view)) if view and "draws" in line else frozenset(),
        batch_digest=line.get("batch_digest"),
        batch_digests={s: str(e["batch_digest"]) for s, e in _by_step(lines) if e.get("batch_digest")},
        rank_batch_digests={r: str(e["batch_digest"]) for r, e in of_ranks.items() if e.get("batch_digest")},
        collectives={} if view is None else Counter(view.name[c] for c in view.calls_of_kind("collective")),
        leading={} if view is None else _leading(view),
        dtypes=frozenset() if view is None else _dtypes(view),
        on_cpu=manifest.get("devices") in ([], ["CPU"]),
        deterministic=manifest.get("deterministic")
        if isinstance(manifest.get("deterministic"), bool)
        else None,
    )


def _draws(line: ScalarLine) -> dict[tuple[int, str], tuple[int, ...]] | None:
    """Calls that drew, by microbatch and module."""
    if "draws" not in line:
        return None
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    for entry in line["draws"]:
        match entry:
            case [str(name), int(microbatch), int(stood), True]:
                found[microbatch, name] = (*found.get((microbatch, name), ()), stood)
    return found


def drawn_by_ranks(draws: Sequence[Mapping[tuple[int, str], tuple[int, ...]]]) -> frozenset[tuple[int, str]]:
    """Calls as which began the generators of two ranks or more stood alike."""
    seen = Counter((at, stood) for of_rank in draws for at, stood in of_rank.items())
    return frozenset(at for (at, _), num in seen.items() if num > 1)


def _modules(view: StepView) -> frozenset[str]:
    return frozenset(view.name[call] for call in view.calls_of_kind("module"))


def _microbatches(line: ScalarLine, view: StepView | None) -> int | None:
    """A run counts those after whose backward a forward comes; a pipeline runs several forwards first."""
    counted, passes = _whole(line.get("microbatches")), 0 if view is None else len(view.passes)
    return max(counted, passes) if counted is not None and passes else counted


def _most_common(lines: list[ScalarLine], step: int) -> int | None:
    """Microbatches of most of the steps but this one."""
    counted = (_whole(line.get("microbatches")) for at, line in _by_step(lines) if at != step)
    found = Counter(one for one in counted if one)
    return found.most_common(1)[0][0] if found else None


def _counted(
    source: TraceSource, step: int, ranks: Sequence[int], data_parallel: int | None
) -> tuple[int, ...]:
    """Labels that count on every rank; none where one kept none, or ranks may share their data."""
    if len(ranks) < 2 or data_parallel not in (None, len(ranks)):
        return ()
    views = [view_if_there(source, step, rank) for rank in ranks]
    held = [LossInputs.of(view) for view in views if view is not None]
    counted = [
        sum(int((labels != one.ignore_index).sum()) for labels in one.labels.values())
        for one in held
        if one.labels and not one.masks
    ]
    return tuple(counted) if len(counted) == len(ranks) else ()


def with_forms_of(facts: RunFacts, free: TraceSource | None, step: int, rank: int) -> RunFacts:
    """The facts of a replay, with the forms of losses as the run by itself showed them, and where its
    generators stood: a replay keeps what differs alone, a loss has one form whatever its logits are, and the
    program draws as it did."""
    is_known = all(loss.form is not None for loss in facts.losses.values()) and facts.draws is not None
    view = None if free is None or is_known else view_if_there(free, step, rank)
    if free is None or view is None:
        return facts
    own = run_facts(free, step, rank, view)
    losses = {
        microbatch: loss
        if loss.form is not None or microbatch not in own.losses
        else replace(loss, form=own.losses[microbatch].form)
        for microbatch, loss in facts.losses.items()
    }
    if facts.draws is None:
        drawn = own.drawn_by_ranks
        facts = replace(facts, draws=own.draws, drawn_by_ranks=drawn, modules=own.modules)
    return replace(facts, losses=losses)


def _row_inputs(view: StepView) -> dict[int, dict[str, Floats]]:
    """Inputs of one number a row: no other dimension is longer than 1."""
    found: dict[int, dict[str, Floats]] = {}
    for microbatch, slot, record in root_inputs(view):
        shape = view.shape(record) or ()
        values = view.value(record) if shape and shape[0] == math.prod(shape) > 1 else None
        if values is not None:
            found.setdefault(microbatch, {})[slot] = values.astype(np.float64).ravel()
    return found


def _leading(view: StepView) -> dict[int, tuple[int, ...]]:
    """Tokens ahead of each row's first shown one, of the inputs that hold 0 and 1 alone, both of them."""
    found = {}
    for microbatch, _, record in root_inputs(view):
        mask = None if len(view.shape(record) or ()) != 2 else view.value(record)
        if mask is not None and mask.size and set(np.unique(mask).tolist()) == {0.0, 1.0}:
            found[microbatch] = tuple(int(n) for n in np.argmax(mask > 0, axis=1))
    return found


def _dtypes(view: StepView) -> frozenset[str]:
    return frozenset(view.tables.summaries["dtype"].cast(pl.String).unique().drop_nulls().to_list())


def _losses_once(view: StepView, scale: float) -> dict[int, LossFacts]:
    return view.once((_losses, scale), lambda: _losses(view, scale))


def _losses(view: StepView, scale: float) -> dict[int, LossFacts]:
    """What each microbatch's loss was made of, where one loss of it is known, with its labels; ``scale``:
    what it was multiplied by before backward."""
    held = LossInputs.of(view)
    values = Counter(microbatch for microbatch, _ in loss_records(view, "value"))
    rows = {m: shape[0] for m, _, record in root_inputs(view) if len(shape := view.shape(record) or ()) == 2}
    found: dict[int, LossFacts] = {}
    for microbatch, record in loss_records(view, "value"):
        labels, value = held.labels.get(microbatch), view.value(record)
        if value is None or value.size != 1 or values[microbatch] > 1:
            continue
        if labels is None:
            own = _without_labels(view, microbatch, float(value.ravel()[0]), scale)
            if own is not None:
                found[microbatch] = own
            continue
        mask = held.masks.get(microbatch)
        counts = labels != held.ignore_index
        if mask is not None and mask.size == labels.size and np.isin(mask, (0.0, 1.0)).all():
            counts = counts & (mask.reshape(labels.shape) > 0)
        found[microbatch] = LossFacts(
            value=float(value.ravel()[0]),
            counted=int(counts.sum()),
            positions=labels.size,
            rows=rows.get(microbatch),
            steepest=_steepest(view, microbatch, labels, scale),
            form=_form(view, microbatch, labels, counts, scale),
        )
    return found


def _without_labels(view: StepView, microbatch: int, value: float, scale: float) -> LossFacts | None:
    """A cross-entropy that the program writes itself, of whose labels nothing was recorded: the word that the
    gradient of a token's logits raises is its label. None where what that leaves is no such loss."""
    call, slot, _ = _sent_rows(view).get(microbatch, (-1, "", ()))
    records = [view.record(call, phase, slot) for phase in ("forward", "backward")]
    logits, gradient = (None if record is None else view.value(record) for record in records)
    dtype = view.dtype(records[1])
    if dtype is None or logits is None or gradient is None or logits.shape != gradient.shape:
        return None
    z, g = (values.reshape(-1, values.shape[-1]) for values in (logits, gradient / scale))
    counts = np.asarray(g != 0).any(axis=1)
    labels = g.argmin(axis=1).astype(np.int64)
    form = loss_form(z, labels, g, np.asarray(counts), roundoff=unit_roundoff(dtype))
    if form is None:
        return None
    return LossFacts(
        value=value,
        counted=int(counts.sum()),
        positions=len(g),
        rows=len(logits) if logits.ndim > 2 else None,
        steepest=float(-g.min()),
        form=form,
    )


def _sent_back(view: StepView) -> dict[int, Floats]:
    """Of the first output with rows of the outermost module, in every microbatch."""
    values = {microbatch: view.value(record) for microbatch, record in _first_sent(view)}
    return {microbatch: value for microbatch, value in values.items() if value is not None}


def _sent_from(view: StepView) -> dict[int, Floats]:
    """The output itself."""
    values = {
        microbatch: view.value(view.record(call, "forward", slot))
        for microbatch, (call, slot, _) in _sent_rows(view, MOST_SAMPLED).items()
    }
    return {microbatch: value for microbatch, value in values.items() if value is not None}


def _sent_sizes(view: StepView, scale: float) -> dict[int, tuple[float, float, float]]:
    found = {}
    for microbatch, (_, _, sizes) in _sent_rows(view).items():
        if all(math.isfinite(size) for size in sizes):
            found[microbatch] = (sizes[0] / scale, sizes[1] / scale, sizes[2] / scale)
    return found


def _sent_as_reference(view: StepView) -> frozenset[int]:
    return frozenset(at for at, record in _first_sent(view) if record in view.holding_reference)


def _first_sent(view: StepView) -> list[tuple[int, int]]:
    """Microbatch and record of the gradient of the first output with rows."""
    found = []
    for microbatch, (call, slot, _) in _sent_rows(view, MOST_SAMPLED).items():
        record = view.record(call, "backward", slot)
        if record is not None:
            found.append((microbatch, record))
    return found


def _sent_rows(view: StepView, most: float = math.inf) -> dict[int, tuple[int, str, tuple[float, ...]]]:
    """Microbatch -> call, slot and sizes of the gradient of the first output with rows, of at most so many
    elements. What the outermost module returns as a module inside returned it is one tensor, whose gradient
    comes to the one inside first: a replay puts the reference's there."""
    found: dict[int, tuple[int, str, tuple[float, ...]]] = {}
    sent = view.frame_of("backward").filter(
        pl.col("slot").cast(pl.String).str.starts_with("output"),
        pl.col("shape").list.len() > 1,
        pl.col("numel") <= most,
    )
    for row in sent.iter_rows(named=True):
        call = int(row["call"])
        around = view.parent[call]
        if view.kind[call] == "module" and (around < 0 or view.parent[around] < 0):
            sizes = tuple(math.nan if row[name] is None else float(row[name]) for name in _SIZES)
            found.setdefault(int(row["microbatch"]), (call, str(row["slot"]), sizes))
    return found


def _weighed(view: StepView) -> dict[tuple[int, str], float]:
    """Derivatives of the loss by single numbers that the outermost module returns; 0 where none came back to
    one that the others' graph holds."""
    found: dict[tuple[int, str], float] = {}
    made = view.frame_of("forward").filter(
        pl.col("slot").cast(pl.String).str.starts_with("output"), pl.col("numel") == 1
    )
    for row in made.iter_rows(named=True):
        call = int(row["call"])
        if view.parent[call] >= 0 or view.kind[call] != "module" or view.mode[call] != "train":
            continue
        values = view.value(view.record(call, "backward", row["slot"]))
        if values is not None:
            found[int(row["microbatch"]), str(row["slot"])] = float(values.ravel()[0])
    return found


def _form(view: StepView, microbatch: int, labels: Ints, counts: Bools, scale: float) -> LossForm | None:
    """From the first logits whose gradient was kept as well: as many rows as labels, or one more a sequence,
    whose last token has no label."""
    sent = view.frame_of("backward").filter(
        pl.col("microbatch") == microbatch,
        pl.col("slot").cast(pl.String).str.starts_with("output"),
        pl.col("shape").list.len() > 1,
        pl.col("shape").list.last() > int(labels.max(initial=0)),
    )
    for row in sent.iter_rows(named=True):
        shape = tuple(row["shape"])
        given = _as_rows(labels, shape[:-1], 0), _as_rows(counts, shape[:-1], False)
        at = [view.record(row["call"], phase, row["slot"]) for phase in ("forward", "backward")]
        if given[0] is None or given[1] is None or at[0] is None or at[1] is None:
            continue
        logits, gradient = view.value(at[0]), view.value(at[1])
        if logits is None or gradient is None or logits.shape != gradient.shape:
            continue
        found = loss_form(
            logits.reshape(-1, shape[-1]),
            given[0].astype(np.int64),
            gradient.reshape(-1, shape[-1]) / scale,
            given[1].astype(bool),
            roundoff=unit_roundoff(row["dtype"]),
        )
        if found is not None:
            return found
    return None


def _as_rows(values: Array, shape: tuple[int, ...], fill: int | bool) -> Array | None:
    """Values of tokens, one for each row of logits of this shape; None where they do not fit."""
    rows = math.prod(shape)
    if values.size == rows:
        return values.reshape(-1)
    if len(shape) > 1 and values.size == rows - rows // shape[-1]:
        each = values.reshape(-1, shape[-1] - 1)
        return np.concatenate([each, np.full((len(each), 1), fill, each.dtype)], axis=1).reshape(-1)
    return None


def _steepest(view: StepView, microbatch: int, labels: Ints, scale: float) -> float | None:
    """From the gradient of the logits: the first that is sent back to a module and has as many rows as there
    are labels, and as many columns as words."""
    sent = view.frame_of("backward").filter(pl.col("microbatch") == microbatch, pl.col("minimum") < 0)
    of_rows = (pl.col("shape").list.len() > 1) & (
        pl.col("numel") == labels.size * pl.col("shape").list.last()
    )
    words = pl.col("shape").list.last() > int(labels.max(initial=0))
    least = sent.filter(pl.col("slot").cast(pl.String).str.starts_with("output"), of_rows, words)["minimum"]
    return -float(least[0]) / scale if len(least) and math.isfinite(least[0]) else None


def _line(lines: list[ScalarLine], step: int) -> ScalarLine:
    return next((line for line in lines if line.get("step") == step), ScalarLine())


def _by_step(lines: list[ScalarLine]) -> Iterable[tuple[int, ScalarLine]]:
    return ((line["step"], line) for line in lines if isinstance(line.get("step"), int))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _numbers(value: object) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(float(v) for v in values if isinstance(v, (int, float)))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
