"""What a replay compared and found to be the reference's, but for what rounding of one call allows."""

from __future__ import annotations

from pathlib import Path

from trueup.diagnosing.replay.charge import replayed_steps
from trueup.diagnosing.replay.judge import differences
from trueup.diagnosing.replay.noise import ReplayNoise

AgreedRecord = tuple[int, int, int]
"""step and rank of the target, record of the reference"""


def agreed_records(
    replay: Path, reference: Path, *, noise: ReplayNoise | None = None
) -> frozenset[AgreedRecord]:
    """Records of the reference that the target gave again where each call had the reference's inputs.

    Raises:
        TraceError: one of them cannot be read, or ``replay`` is no replay.
    """
    found = set()
    for step in replayed_steps(replay, reference):
        known = step.forced["reference_record"].drop_nulls().to_list()
        apart = {one.reference_record for one in differences(step, noise) if one.score > 1}
        found |= {(step.step, step.rank, record) for record in known if record not in apart}
    return frozenset(found)
