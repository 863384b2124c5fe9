"""The layout of a program that does not say it, told from what its ranks recorded beside one process's run.

Of one axis, ``world``: equal on all ranks is replicated; parts that make the whole's shape along one dim are
shards of it (of gradients also with each part's mean for a mean over all); of the whole's own shape, terms
that sum to it, or whose mean it is. What Megatron's layers say of their parameters comes first, and a
distributed tensor says its place itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from trueup.merging.assembling import alike
from trueup.merging.ranks import RankStep
from trueup.merging.step import RecordKey
from trueup.merging.summary import Summary, joined
from trueup.store import TraceSource, step_view
from trueup.types.codes import MergingCode
from trueup.types.layout import Layout, Row
from trueup.types.placement import Invariant, Partial, Placement, Shard, Unknown
from trueup.types.reason import Reason, reason
from trueup.types.trace import RankFacts

AXIS = "world"
NEAR = 0.3
"""relative distance below which a sum or mean of terms is taken for the whole; sketches are good to 0.1"""
_MOST_NAMED = 4


class Slot(NamedTuple):
    """Records that share a placement, of any microbatch."""

    kind: str
    """of the call"""
    name: str
    """of the call"""
    phase: str
    slot: str


@dataclass(slots=True)
class Inferred:
    """A layout, and what it rests on."""

    layout: Layout
    counts: Counter[str] = field(default_factory=Counter)
    """placement -> tensors"""
    unknown: list[str] = field(default_factory=list)
    """tensors no placement explains"""

    def notes(self) -> list[Reason]:
        """For a reader."""
        notes = [reason(MergingCode.LAYOUT_INFERRED, **dict(self.counts.most_common()))]
        if self.unknown:
            examples, number = self.unknown[:_MOST_NAMED], len(self.unknown)
            notes.append(reason(MergingCode.NO_PLACEMENT_FITS, tensors=number, examples=examples))
        return notes


def infer(parts: TraceSource, whole: TraceSource, step: int, whole_step: int) -> Inferred:
    """The layout of ``parts``, of many ranks, beside ``whole``, of one process.

    Args:
        parts: of a program that does not say its layout.
        whole: of the same program in one process.
        step: of ``parts`` to look at.
        whole_step: that of ``whole`` which it is compared with.
    """
    held = parts.steps()[step]
    mesh = Layout(mesh={AXIS: len(held)}, source="inferred")
    ranks = [RankStep(step_view(parts, step, rank), mesh, 1) for rank in held]
    one = RankStep(step_view(whole, whole_step, 0), Layout(mesh={AXIS: 1}), 1)
    megatron = _megatron(parts.rank_facts(held[0]))
    there = {key: summary for key, _, summary in _summaries(one)}
    by_key: dict[RecordKey, tuple[Slot, list[Summary]]] = {}
    for rank in ranks:
        for key, found, summary in _summaries(rank):
            by_key.setdefault(key, (found, []))[1].append(summary)
    decided: dict[Slot, Placement | None] = {}
    for key, (found, summaries) in by_key.items():
        if found.kind == "api":  # functions of one name are called in many places
            continue
        if len(summaries) == len(ranks) and decided.get(found) is None:
            told = megatron.get(found.name) if found.kind == "parameter" else None
            told = told if told is not None and _is_cut(summaries, there.get(key), told) else None
            terms = found.kind != "parameter" or found.slot in ("local", "accumulated")
            decided[found] = told or placement_of(summaries, there.get(key), terms=terms)
    out = Inferred(mesh)
    rows: dict[bool, list[Row]] = {True: [], False: []}
    for (kind, name, phase, slot), placement in decided.items():
        if placement is None:
            out.unknown.append(f"{name or '(root)'} {phase} {slot}")
        else:
            out.counts[str(placement)] += 1
        rows[kind == "parameter"].append(Row(name, {AXIS: placement or Unknown()}, slot, phase))
    out.layout = Layout(
        mesh=mesh.mesh, parameters=tuple(rows[True]), tensors=tuple(rows[False]), source="inferred"
    )
    return out


def _summaries(rank: RankStep) -> Iterator[tuple[RecordKey, Slot, Summary]]:
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
        told = entry.get("parallel")
        if told and told.get("partition_stride", 1) == 1 and told.get("partition_dim", -1) >= 0:
            found[entry["fqn"]] = Shard(told["partition_dim"])
    return found


def _is_cut(parts: Sequence[Summary], whole: Summary | None, told: Shard) -> bool:
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
        return None
    dim = dims[0]
    starts = np.cumsum([0, *(part.shape[dim] for part in parts)])[:-1].tolist()
    made = joined(parts, whole.shape, starts, dim)
    if made.digest is None or made.digest != whole.digest:
        ratio = made.l2_norm / whole.l2_norm if made.l2_norm and whole.l2_norm else 1.0
        if abs(ratio / len(parts) - 1.0) < NEAR / len(parts):
            return Shard(dim, divided=True)
    return Shard(dim)


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
