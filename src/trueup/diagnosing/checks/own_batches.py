"""Each data-parallel rank reads its own part of the data."""

from __future__ import annotations

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import reason


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if run.world_size < 2:
        return judge.nothing(reason(Code.ONE_RANK))
    groups = run.groups("batches")
    if groups and all(len(group) < 2 for group in groups):
        return judge.nothing(reason(Code.ONE_DATA_RANK))
    lines = {rank: run.scalars(rank) for rank in run.ranks}
    steps = sorted(set.intersection(*(set(there) for there in lines.values()))) if lines else []
    same, compared = [], 0
    for step in steps:
        digests = {rank: lines[rank][step].get("batch_digest") for rank in run.ranks}
        if None in digests.values() or len(digests) < 2:
            continue
        compared += 1
        if any(len({digests[rank] for rank in group}) < len(group) for group in groups or [run.ranks]):
            same.append(step)
    numbers: Measured = {"steps": compared, "same": len(same)}
    if not compared:
        return judge.undecided(reason(Code.NO_BATCH_DIGEST))
    if not same:
        return judge.passed(
            reason(Code.BATCHES_DIFFER, num=compared, is_grouped=bool(groups)), numbers=numbers
        )
    sentence = reason(Code.SAME_BATCH, num=len(same), total=compared, step=same[0])
    if not (groups or run.replicated):
        limit = reason(Code.MAYBE_TENSOR_PARALLEL)
        return judge.undecided(reason(Code.ALSO, sentence, limit), numbers=numbers)
    return judge.failed(sentence, numbers=numbers, next=reason(Code.USE_SAMPLER))


CHECK = FunctionCheck("own_batches", "Every data-parallel rank reads its own batch", _judge)
