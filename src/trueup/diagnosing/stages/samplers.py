"""What batches that differ say of the samplers: whose rows they are, and which ranks read the same ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from trueup.diagnosing.batches import rows_found, would_be_found
from trueup.diagnosing.stages.batch import StepBatch
from trueup.diagnosing.stages.context import Context
from trueup.types.arrays import Ints
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Finding
from trueup.types.reason import Reason, reason

MOST_STEPS = 4
"""steps that are searched for rows"""
_SIDES = ("target", "reference")


def elsewhere(name: str, target: StepBatch, reference: StepBatch, context: Context) -> list[Reason]:
    """Where else in the reference the target's rows of an input are: another step, rank or microbatch; where
    none is there, where else in the target the reference's are."""
    own, other = target.ids[name], reference.ids[name]
    for code, ids, at_its_place, side in (
        (Stages.ELSEWHERE, own, other, 1),
        (Stages.ELSEWHERE_IN_TARGET, other, own, 0),
    ):
        found = rows_found(ids, at_its_place, dict(_batches(name, side, context)))
        if found:
            return [reason(code, num=num, rows=len(ids), place=there) for there, num in found.items()]
    return []


def named_by_place(relation: str, places: list[Reason]) -> str:
    """The relation of two batches, where rows of one are elsewhere in the other run: of the reference's, most
    of them."""
    if places[0].code is Stages.ELSEWHERE:
        return "elsewhere"
    num = sum(int(one.number("num") or 0) for one in places)
    return "elsewhere_in_target" if 2 * num > (places[0].number("rows") or 0) else relation


def _batches(name: str, side: int, context: Context) -> Iterator[tuple[str, Ints]]:
    """Place and ids of every microbatch that holds an input of that name."""
    slot = name.split(", ")[1]
    for at, steps in enumerate(context.steps[:MOST_STEPS]):
        for rank in context.ranks:
            for other, ids in StepBatch.of(context.pair(at, rank)[side]).ids.items():
                if other.split(", ")[1] == slot:
                    yield f"step {steps[side]}, rank {rank}, {other.split(', ')[0]}", ids


def of_samplers(findings: list[Finding], context: Context) -> list[Finding]:
    """The findings about other samples, with what the ranks say: some read others and the rest do not, so no
    order, resumption or preparation that all ranks share is the cause; or ranks read the same rows in the
    target alone."""
    everyone = range(context.layout.size) if context.layout.wide_axes else context.ranks
    apart = {rank for one in findings for rank in one.ranks or everyone}
    on_some = not apart >= set(everyone)
    return [_of_samplers(one, context, on_some=on_some) for one in findings]


def _of_samplers(finding: Finding, context: Context, *, on_some: bool) -> Finding:
    if on_some and finding.causes == (Reason(Stages.MADE_BEFORE_CAUSE),):
        return _caused(finding, Reason(Stages.MADE_BY_RANK_CAUSE))
    if Reason(CauseCode.SHARD_OR_SEED) not in finding.causes:
        return finding
    shared = _shared_rows(finding, context)
    if shared is not None:
        finding = replace(finding, evidence=(*finding.evidence, shared))
    return _caused(finding, Reason(CauseCode.SAMPLER_OF_RANK)) if on_some or shared else finding


def _caused(finding: Finding, cause: Reason) -> Finding:
    kinds = tuple(
        replace(kind, causes=(cause,)) if kind.causes == finding.causes else kind for kind in finding.kinds
    )
    return replace(finding, causes=(cause,), kinds=kinds)


def _shared_rows(finding: Finding, context: Context) -> Reason | None:
    """How many rows several ranks of the target read in the captured steps, where no two of the reference do
    and rows are so long, or of so many ids, that two alike are one sample."""
    name = (finding.site or "").partition(", ")[2]
    if len(context.ranks) < 2 or ", " not in name:
        return None
    shared = list[int]()
    for side in range(len(_SIDES)):
        ranks: dict[bytes, set[str]] = {}
        for place, ids in _batches(name, side, context):
            for row in ids:
                ranks.setdefault(row.tobytes(), set()).add(place.split(", ")[1])
            if would_be_found(ids, len(ranks)):
                return None
        shared.append(Counter(len(one) > 1 for one in ranks.values())[True])
    return reason(Stages.ROWS_OF_RANKS, num=shared[0]) if shared[0] and not shared[1] else None
