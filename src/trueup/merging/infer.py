"""The layout of a program that does not say it, told from what its ranks recorded beside one process's run.

Of one axis, ``world``: equal on all ranks is replicated; parts that make the whole's shape along one dim are
shards of it (of gradients also with each part's mean for a mean over all); of the whole's own shape, terms
that sum to it, or whose mean it is. What Megatron's layers say of their parameters comes first, and a
distributed tensor says its place itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from trueup.merging.assembling import alike
from trueup.merging.ranks import RankStep, num_microbatches
from trueup.merging.sequence_cut import sequence_cut
from trueup.merging.step import RecordKey
from trueup.merging.summary import Summary, joined
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource, step_view
from trueup.types.arrays import Array
from trueup.types.codes import MergingCode
from trueup.types.layout import Layout, LayoutRow
from trueup.types.placement import At, Invariant, Partial, Placement, Scattered, Shard, Unknown
from trueup.types.reason import Reason, reason
from trueup.types.trace import RankFacts

AXIS = "world"
PIPELINE = "pp"
DATA = "dp"
NEAR = 0.3
"""relative distance below which a sum or mean of terms is taken for the whole; sketches are good to 0.1"""
_MOST_NAMED = 4
_SCALED = {"backward": "*", "loss": "value"}
"""phase -> slots that count 1/n of the whole where a rank's loss is the mean over its own rows"""


class Slot(NamedTuple):
    """Records that share a placement, of any microbatch."""

    kind: str
    """of the call"""
    name: str
    """of the call"""
    phase: str
    slot: str


@dataclass(slots=True)
class InferredLayout:
    """A layout, and what it rests on."""

    layout: Layout
    counts: Counter[str] = field(default_factory=Counter)
    """placement -> tensors"""
    unknown: list[str] = field(default_factory=list)
    """tensors no placement explains"""
    code: MergingCode = MergingCode.LAYOUT_INFERRED

    def notes(self) -> list[Reason]:
        """For a reader."""
        notes = [reason(self.code, **dict(self.counts.most_common()))]
        if self.unknown:
            examples, number = self.unknown[:_MOST_NAMED], len(self.unknown)
            notes.append(reason(MergingCode.NO_PLACEMENT_FITS, tensors=number, examples=examples))
        return notes


# In one piece: each answer narrows what the next question may be about.
def infer(parts: TraceSource, whole: TraceSource, step: int, whole_step: int) -> InferredLayout:
    """The layout of ``parts``, of many ranks, beside ``whole``, of one process.

    Args:
        parts: of a program that does not say its layout.
        whole: of the same program in one process.
        step: of ``parts`` to look at.
        whole_step: that of ``whole`` which it is compared with.
    """
    held = parts.steps()[step]
    stages = _stages(parts, held)
    size = len(held) // stages
    mesh = Layout(mesh={AXIS: size}, source="inferred")
    if stages > 1:
        order = tuple((number,) for number in range(stages))
        mesh = Layout(
            mesh={PIPELINE: stages, **({AXIS: size} if size > 1 else {})}, stages=order, source="inferred"
        )
    one = RankStep(step_view(whole, whole_step, 0), Layout(mesh={AXIS: 1}), 1)
    views = [step_view(parts, step, rank) for rank in held]
    if stages == 1 and (found_batches := _of_microbatches(views, one)) is not None:
        return found_batches
    ranks = [RankStep(view, mesh, 1) for view in views]
    megatron = _megatron(parts.rank_facts(held[0]))
    there = {key: summary for key, _, summary in summaries_of(one)}
    by_key = summaries_by_key(ranks)
    decided: dict[Slot, Placement | None] = {}
    # what one microbatch gives is not what other parts of the batch give together
    counts = {num_microbatches(side.view.tables, mesh) for side in (ranks[0], one)}
    cut_otherwise = len(counts) > 1
    for key, (found, summaries) in by_key.items():
        if found.kind == "api":  # functions of one name are called in many places
            continue
        if stages > 1 and len(summaries) == len(ranks) and found.kind != "parameter":
            continue  # each stage makes of it what it hands to the next
        if len(summaries) in (size, len(ranks)) and decided.get(found) is None:
            declared = megatron.get(found.name) if found.kind == "parameter" else None
            declared = (
                declared if declared is not None and _is_cut(summaries, there.get(key), declared) else None
            )
            if cut_otherwise and found.kind != "parameter":
                same = all(alike(summaries[0], summary) for summary in summaries[1:])
                decided[found] = Invariant() if same else None
                continue
            terms = found.kind != "parameter" or found.slot in ("local", "accumulated")
            decided[found] = declared or placement_of(summaries, there.get(key), terms=terms)
    held_in = Blocks(parts, ranks, whole, one)
    for weight, placement in [*decided.items()]:
        if weight[2:] == ("param", "value") and isinstance(placement, Shard):
            _in_blocks(decided, weight.name, placement, held_in.of(weight.name, placement.dim), by_key)
    out = InferredLayout(mesh)
    rows: dict[bool, list[LayoutRow]] = {
        True: [],
        False: _ends(by_key.values(), len(ranks)) if stages > 1 else [],
    }
    cut = None if stages > 1 or cut_otherwise else sequence_cut(ranks, one)
    example = {slot: there.get(key) for key, (slot, _) in by_key.items()}
    for of, placement in decided.items():
        row = LayoutRow(of.name, {AXIS: placement or Unknown()}, of.slot, of.phase)
        if cut is not None and of.kind != "parameter":
            row = cut.row(row, AXIS, example[of])
        if placement is None:
            out.unknown.append(f"{of.name or '(root)'} {of.phase} {of.slot}")
        else:
            out.counts[str(row.placements[AXIS])] += 1
        if AXIS in mesh.mesh:
            rows[of.kind == "parameter"].append(row)
    out.layout = replace(mesh, parameters=tuple(rows[True]), tensors=tuple(rows[False]))
    return out


def _of_microbatches(views: Sequence[StepView], one: RankStep) -> InferredLayout | None:
    """Where ranks read microbatches that one process reads in turn, rank by rank: its inputs say so."""
    number = len(views)
    mesh = Layout(mesh={DATA: number}, batch=(DATA,), source="inferred")
    counts = [num_microbatches(view.tables, mesh) for view in (*views, one.view)]
    if number == 1 or sum(counts[:-1]) != counts[-1]:
        return None
    ranks = [RankStep(view, mesh, 1) for view in views]
    there = {key: summary for key, _, summary in summaries_of(one)}
    by_key = summaries_by_key(ranks)
    if not _read_in_turn(by_key, there, counts[-1]):
        return None
    last = {key: summary for key, _, summary in summaries_of(ranks[-1])}
    gradients, losses = (
        [(there.get(key), last[key]) for key in last if key[1:] == kind]
        for kind in (("param_grad", "local"), ("loss", "value"))
    )
    divided = {"backward": _is_times(gradients, number), "loss": _is_times(losses, number)}
    tensors = [
        LayoutRow("*", {DATA: Shard(0, divided=True)}, _SCALED[phase], phase)
        for phase in divided
        if divided[phase]
    ]
    decided = _weights_of(by_key, there, number, Partial(mean=divided["backward"]))
    rows = [
        LayoutRow(name, {DATA: one or Unknown()}, slot, phase)
        for (_, name, phase, slot), one in decided.items()
    ]
    return InferredLayout(
        layout=replace(mesh, parameters=tuple(rows), tensors=tuple(tensors)),
        counts=Counter(str(one) for one in decided.values() if one is not None),
        unknown=[f"{slot.name} {slot.phase} {slot.slot}" for slot, one in decided.items() if one is None],
    )


def replicas(source: TraceSource, step: int, whole: TraceSource | None = None) -> InferredLayout | None:
    """The layout of a run whose ranks hold the same weights and read other rows: data parallel. None where
    it is not plainly that.

    Each rank's loss is the mean over its own rows: its gradients are terms of a mean over ranks, unless those
    of ``whole``, a run of the same rows in one process, are of the same size. What is the same on all ranks
    after backward was reduced within it.
    """
    ranks = source.steps().get(step, [])
    mesh = Layout(mesh={DATA: len(ranks)}, batch=(DATA,), source="inferred")
    if len(ranks) < 2 or ranks != list(range(len(ranks))):
        return None
    views = [RankStep(step_view(source, step, rank), mesh, 1) for rank in ranks]
    by_key, placed = summaries_by_key(views), say_their_place(views[0])
    is_mean = whole is None or _is_times_in_all(views, RankStep(step_view(whole, step, 0), mesh, 1))
    rows: list[LayoutRow] = [LayoutRow("*", {DATA: Partial(mean=is_mean)}, "local", "param_grad")]
    counts: Counter[str] = Counter()
    for key, (slot, summaries) in by_key.items():
        if slot.kind != "parameter" or slot.slot == "local" or slot.name in placed:
            continue
        same = len(summaries) == len(ranks) and all(alike(summaries[0], one) for one in summaries[1:])
        if not same and (key.phase, key.slot) == ("param", "value"):
            return None
        if slot.slot == "accumulated":
            placed_so = Invariant() if same else Partial(mean=is_mean)
            rows.append(LayoutRow(slot.name, {DATA: placed_so}, slot.slot, slot.phase))
        counts["same" if same else "apart"] += 1
    divided = [
        LayoutRow("*", {DATA: Shard(0, divided=is_mean)}, slot, phase) for phase, slot in _SCALED.items()
    ]
    layout = replace(mesh, parameters=tuple(rows), tensors=tuple(divided))
    return InferredLayout(layout=layout, counts=counts, code=MergingCode.REPLICAS)


def say_their_place(rank: RankStep) -> set[str]:
    """Parameters that are distributed tensors, or parts of flat ones."""
    rows = zip(rank.view.record_call, rank.view.content, strict=True)
    return {
        rank.view.name[call]
        for call, row in rows
        if row is not None and rank.view.kind[call] == "parameter" and rank.own(call, row) is not None
    }


def _weights_of(
    parts: Mapping[RecordKey, tuple[Slot, list[Summary]]],
    whole: Mapping[RecordKey, Summary],
    ranks: int,
    local: Placement,
) -> dict[Slot, Placement | None]:
    """Placements of weights and what belongs to them; ``local``: of what one backward gives."""
    decided: dict[Slot, Placement | None] = {}
    for key, (slot, summaries) in parts.items():
        if slot.kind != "parameter" or len(summaries) != ranks or decided.get(slot) is not None:
            continue
        terms = slot.slot == "accumulated"
        decided[slot] = (
            local if slot.slot == "local" else placement_of(summaries, whole.get(key), terms=terms)
        )
    return decided


def summaries_by_key(ranks: Sequence[RankStep]) -> dict[RecordKey, tuple[Slot, list[Summary]]]:
    found: dict[RecordKey, tuple[Slot, list[Summary]]] = {}
    for rank in ranks:
        for key, slot, summary in summaries_of(rank):
            found.setdefault(key, (slot, []))[1].append(summary)
    return found


def _read_in_turn(
    parts: Mapping[RecordKey, tuple[Slot, list[Summary]]], whole: Mapping[RecordKey, Summary], count: int
) -> bool:
    """Whether every microbatch of the ranks is the whole's of that number, and no two are the same."""
    read = [
        (whole.get(key), summaries[0])
        for key, (slot, summaries) in parts.items()
        if isinstance(key.call.above, int) and (slot.kind, slot.phase) == ("module", "forward")
        if slot.slot.startswith("input")
    ]
    same = all(other is not None and alike(other, part) for other, part in read)
    return same and len({part.digest for _, part in read}) >= count


def _is_times(pairs: Sequence[tuple[Summary | None, Summary]], number: int) -> bool:
    """Whether parts are ``number`` times the whole: a rank divides its loss by its own microbatches alone."""
    ratios = [
        part.l2_norm / whole.l2_norm for whole, part in pairs if whole and whole.l2_norm and part.l2_norm
    ]
    return bool(ratios) and abs(float(np.median(ratios)) / number - 1.0) < NEAR / number


def _is_times_in_all(parts: Sequence[RankStep], whole: RankStep) -> bool:
    """Whether the gradients that backward passes back, of all rows of the step, are as many times those of
    one process as there are ranks, and not of their size: a rank divides its loss by its own rows alone."""
    own = [passed_back(rank) for rank in parts]
    other = passed_back(whole)
    ratios = [
        math.sqrt(sum(held[name] for held in own) / other[name])
        for name in other
        if other[name] > 0 and all(name in held for held in own)
    ]
    return not ratios or float(np.median(ratios)) > math.sqrt(len(parts))


def passed_back(rank: RankStep) -> dict[tuple[str, str], float]:
    """Call and slot -> sum of squares over all microbatches of what backward gives there."""
    found: dict[tuple[str, str], float] = {}
    view = rank.view
    columns = (view.record_call, view.phase, view.slot, view.content)
    for number, phase, slot, row in zip(*columns, strict=True):
        call = rank.calls[number]
        if call is not None and row is not None and phase == "backward":
            norm = rank.summary(row)[0].l2_norm
            place = call.name, slot
            found[place] = found.get(place, 0.0) + (math.nan if norm is None else norm * norm)
    return found


def _stages(parts: TraceSource, ranks: Sequence[int]) -> int:
    """Stages of a pipeline: groups of as many ranks, in order, that share hardly a weight with other groups.

    Tied embeddings are on the first and the last.
    """
    held = [{row["fqn"] for row in parts.rank_facts(rank).get("parameters") or []} for rank in ranks]
    size = next((at for at in range(1, len(held)) if held[at] != held[0]), len(held))
    groups = [held[at : at + size] for at in range(0, len(held), size)]
    if (
        len(groups) < 2
        or len(held) % size
        or not all(held)
        or any(one != group[0] for group in groups for one in group)
    ):
        return 1
    shared = Counter(name for group in groups for name in group[0])
    several = {name for name, number in shared.items() if number > 1}
    return len(groups) if all(len(group[0] - several) > len(several) for group in groups) else 1


def _ends(found: Iterable[tuple[Slot, list[Summary]]], ranks: int) -> list[LayoutRow]:
    """Of calls that every stage makes, the first has what the whole takes, the last what it gives."""
    names = {slot.name for slot, summaries in found if slot.kind == "module" and len(summaries) == ranks}
    return [
        LayoutRow(name, {PIPELINE: At(0 if head == "input" else -1)}, f"{head}*")
        for name in sorted(names)
        for head in ("input", "output")
    ]


def _in_blocks(
    decided: dict[Slot, Placement | None],
    weight: str,
    as_whole: Shard,
    found: Placement | None,
    by_key: Mapping[RecordKey, tuple[Slot, list[Summary]]],
) -> None:
    """What is found of one weight holds of its gradients and states too, and of what its module gives."""
    if found is None:
        return
    owner = weight.rpartition(".")[0]
    ndim = {slot: len(summaries[0].shape) for slot, summaries in by_key.values()}
    for slot, placement in decided.items():
        if not isinstance(placement, Shard):
            continue
        is_own = slot.kind == "parameter" and slot.name == weight and placement.dim == as_whole.dim
        is_output = slot.kind == "module" and slot.name == owner and slot.slot.startswith("output")
        if is_own or (is_output and as_whole.dim == 0 and placement.dim == ndim[slot] - 1):
            decided[slot] = replace(found, dim=placement.dim) if isinstance(found, Shard) else found


class Blocks:
    """Weights of several blocks, such as gate and up projections in one: each rank has a part of every block.

    Told by values, which must agree in every bit; without them only that the elements are the whole's, in an
    order that is not known.
    """

    def __init__(
        self, parts: TraceSource, ranks: Sequence[RankStep], whole: TraceSource, one: RankStep
    ) -> None:
        self._sources = [*((parts, rank) for rank in ranks), (whole, one)]
        self._rows = [self._values_at(rank) for _, rank in self._sources]

    @staticmethod
    def _values_at(rank: RankStep) -> dict[str, int]:
        view = rank.view
        columns = (view.record_call, view.phase, view.slot, view.content)
        return {
            call.name: row
            for number, phase, slot, row in zip(*columns, strict=True)
            if (phase, slot) == ("param", "value") and row is not None and (call := rank.calls[number])
        }

    # In one piece: one branch a way in which parts of a tensor come to differ.
    def of(self, weight: str, dim: int) -> Placement | None:
        """The placement of a weight whose parts, end to end, are not the whole; None where they may be."""
        if not all(weight in rows for rows in self._rows):
            return None
        held = [
            (source, rank, rows[weight])
            for (source, rank), rows in zip(self._sources, self._rows, strict=True)
        ]
        *parts, whole = [rank.summary(row)[0] for _, rank, row in held]
        starts = np.cumsum([0, *(part.shape[dim] for part in parts)])[:-1].tolist()
        made = joined(parts, whole.shape, starts, dim)
        if made.digest is None or made.digest == whole.digest or not _same_elements(made, whole):
            return None
        *pieces, expected = [_stored(source, rank, row) for source, rank, row in held]
        if expected is None or any(piece is None for piece in pieces):
            return Scattered()
        length = parts[0].shape[dim]
        for blocks in (count for count in range(2, length + 1) if length % count == 0):
            cut_up = [np.split(piece, blocks, axis=dim) for piece in pieces if piece is not None]
            ordered = [part[at] for at in range(blocks) for part in cut_up]
            if np.array_equal(np.concatenate(ordered, axis=dim), expected):
                return Shard(dim, blocks=blocks)
        return None


def _same_elements(made: Summary, whole: Summary) -> bool:
    """Whether statistics that no order changes agree."""
    if not made.l2_norm or not whole.l2_norm:
        return False
    extremes = (made.minimum, made.maximum) == (whole.minimum, whole.maximum)
    return extremes and abs(made.l2_norm / whole.l2_norm - 1.0) < 1e-6


def _stored(source: TraceSource, rank: RankStep, row: int) -> Array | None:
    """Values of a record, as bits."""
    if not rank.stored(row):
        return None
    found = source.tensor(rank.view.step, rank.rank, rank.summary_row(row))
    if found is None or found.dtype not in DTYPES:
        return None
    storage = np.dtype(DTYPES[found.dtype].storage)
    return np.asarray(found.data).view(storage).reshape(found.shape)


def summaries_of(rank: RankStep) -> Iterator[tuple[RecordKey, Slot, Summary]]:
    """One summary for each call, phase and slot: the last, as of gradients that accumulate."""
    last: dict[RecordKey, tuple[Slot, int]] = {}
    view = rank.view
    columns = (view.record_call, view.phase, view.slot, view.content)
    for number, phase, slot, row in zip(*columns, strict=True):
        call = rank.calls[number]
        if call is not None and row is not None:
            found = Slot(view.kind[number], call.name, phase, slot)
            last[RecordKey(call.key, phase, slot)] = found, row
    for key, (found, row) in last.items():
        yield key, found, rank.summary(row)[0]


def _megatron(facts: RankFacts) -> dict[str, Shard]:
    """Parameters whose layers say along which dim they are cut; fused ones, of several strides, do not."""
    found: dict[str, Shard] = {}
    for entry in facts.get("parameters") or []:
        declared = entry.get("parallel")
        if declared and declared.get("partition_stride", 1) == 1 and declared.get("partition_dim", -1) >= 0:
            found[entry["fqn"]] = Shard(declared["partition_dim"])
    return found


def _is_cut(parts: Sequence[Summary], whole: Summary | None, declared: Shard) -> bool:
    """Whether the parts are cut as their layer says: Megatron's say so where one rank has all of it too."""
    if whole is None:
        return not all(alike(parts[0], part) for part in parts[1:])
    return parts[0].shape != whole.shape


def placement_of(parts: Sequence[Summary], whole: Summary | None, *, terms: bool = True) -> Placement | None:
    """The placement that explains how parts make the whole; None where none does.

    Args:
        parts: of all ranks, in order.
        whole: of one process; None: it has no such tensor.
        terms: whether ranks may have terms of a sum. Of weights and what updates them they never do: there
            parts of one shape that differ are copies that should not.
    """
    if all(alike(parts[0], part) for part in parts[1:]):
        if (
            whole is not None
            and parts[0].shape != whole.shape
            and (shards := _shards(parts, whole)) is not None
        ):
            return shards  # parts of a constant
        return Partial() if terms and _equal_terms(parts, whole) else Invariant()
    if whole is None:
        return None
    if parts[0].shape == whole.shape:
        return _terms(parts, whole) if terms else Invariant()
    return _shards(parts, whole)


def _equal_terms(parts: Sequence[Summary], whole: Summary | None) -> bool:
    """Whether every rank has the same n-th part of the whole: the gradient of a loss that counts 1/n."""
    if whole is None or parts[0].shape != whole.shape or not parts[0].l2_norm or not whole.l2_norm:
        return False
    return abs(whole.l2_norm / parts[0].l2_norm / len(parts) - 1.0) < 1e-6


def _shards(parts: Sequence[Summary], whole: Summary) -> Placement | None:
    dims = [
        dim
        for dim in range(len(whole.shape))
        if all(
            len(part.shape) == len(whole.shape)
            and part.shape[:dim] == whole.shape[:dim]
            and part.shape[dim + 1 :] == whole.shape[dim + 1 :]
            for part in parts
        )
        and sum(part.shape[dim] for part in parts) == whole.shape[dim]
    ]
    if not dims:
        return _of_transposed(parts, whole)
    dim = dims[0]
    starts = np.cumsum([0, *(part.shape[dim] for part in parts)])[:-1].tolist()
    made = joined(parts, whole.shape, starts, dim)
    if made.digest is None or made.digest != whole.digest:
        ratio = made.l2_norm / whole.l2_norm if made.l2_norm and whole.l2_norm else 1.0
        if abs(ratio / len(parts) - 1.0) < NEAR / len(parts):
            return Shard(dim, divided=True)
    return Shard(dim)


def _of_transposed(parts: Sequence[Summary], whole: Summary) -> Placement | None:
    """Shards of the whole with its dims in another order: one program scatters and transposes at once."""
    fitting: list[Placement] = []
    for dim in range(len(parts[0].shape)):
        sizes = list(parts[0].shape)
        if any(
            (*part.shape[:dim], *part.shape[dim + 1 :]) != (*sizes[:dim], *sizes[dim + 1 :]) for part in parts
        ):
            continue
        sizes[dim] = sum(part.shape[dim] for part in parts)
        if sorted(sizes) == sorted(whole.shape):
            fitting.append(Shard(dim))
    return fitting[0] if len(fitting) == 1 else None


def _terms(parts: Sequence[Summary], whole: Summary) -> Placement | None:
    """By the sketches, which add; of single numbers and where there is none by the means."""
    sketches = [part.sketch for part in parts if part.sketch is not None]
    if len(sketches) == len(parts) and whole.sketch is not None and whole.numel > 1:
        total, target = np.sum(sketches, axis=0), whole.sketch
    else:
        means = [part.mean for part in parts]
        if None in means or whole.mean is None:
            return None
        total, target = np.array([sum(mean or 0.0 for mean in means)]), np.array([whole.mean])
    norm = float(np.linalg.norm(target))
    if norm == 0.0:
        return None
    options: tuple[tuple[Placement, float], ...] = ((Partial(), 1.0), (Partial(mean=True), 1.0 / len(parts)))
    distance, best = min(
        ((float(np.linalg.norm(total * factor - target)) / norm, one) for one, factor in options),
        key=lambda pair: pair[0],
    )
    return best if distance < NEAR else None
