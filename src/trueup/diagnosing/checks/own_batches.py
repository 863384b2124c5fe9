"""Each data-parallel rank reads its own part of the data."""

from __future__ import annotations

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge
from trueup.diagnosing.checks.run import CheckedRun


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    if run.world_size < 2:
        return judge.nothing("the run has one rank")
    lines = {rank: run.scalars(rank) for rank in run.ranks}
    steps = sorted(set.intersection(*(set(there) for there in lines.values()))) if lines else []
    same, compared = [], 0
    for step in steps:
        digests = [lines[rank][step].get("batch_digest") for rank in run.ranks]
        if None in digests or len(digests) < 2:
            continue
        compared += 1
        if len(set(digests)) < len(digests):
            same.append(step)
    numbers = {"steps": compared, "same": len(same)}
    if not compared:
        return judge.undecided("the batches have no digest (not on the CPU), or one rank only was captured")
    if not same:
        return judge.passed(f"the batches of all ranks differ in {compared} steps", numbers=numbers)
    sentence = f"ranks read the same batch in {len(same)} of {compared} steps, first in step {same[0]}"
    if not run.replicated:
        return judge.undecided(
            f"{sentence}; nothing says that these ranks are data-parallel (tensor-parallel ones must)",
            numbers=numbers,
        )
    return judge.failed(
        sentence, numbers=numbers, next="give the loader a DistributedSampler, or an offset by rank"
    )


CHECK = FunctionCheck("own_batches", "Every data-parallel rank reads its own batch", _judge)
