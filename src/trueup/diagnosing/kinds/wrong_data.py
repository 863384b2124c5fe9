"""Another batch, or the same samples in another order."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.naming import named, percent
from trueup.diagnosing.kinds.permutations import along, described
from trueup.types.finding import Kind, Stage

_IDENTIFIERS = ("int", "uint")


def rule(evidence: Evidence) -> Kind | None:
    """Named where the batch itself differs: rows in another order, of another step, of another rank, or
    unlike any."""
    if not _is_batch(evidence):
        return None
    return _known_batch(evidence) or _rows(evidence) or _unlike(evidence)


def _is_batch(evidence: Evidence) -> bool:
    """What the data loader gave: integers entering the root, or whatever the data stage found."""
    t, around, origin = evidence.target, evidence.surroundings, evidence.origin
    if t is None:
        return False
    if origin.stage is Stage.DATA or origin.phase == "batch":
        return True
    enters = origin.phase == "forward" and origin.slot.startswith("input") and origin.module == ""
    return enters and around.kind == "module" and t.dtype.startswith(_IDENTIFIERS)


def _known_batch(evidence: Evidence) -> Kind | None:
    """Bit for bit a batch of another step or rank."""
    t, elsewhere = evidence.target, evidence.elsewhere
    if t is None:
        return None
    for words, held in (
        ("step {} of the reference", (*elsewhere.reference_earlier, *elsewhere.reference_later)),
        ("rank {} of the reference", elsewhere.reference_ranks),
        ("microbatch {} of the reference", elsewhere.reference_microbatches),
        ("step {} of the target itself", elsewhere.target_earlier),
    ):
        for number, known in held:
            if t.same_bits(known) and (evidence.reference is None or not evidence.reference.same_bits(known)):
                return named("wrong_data", 0.96, f"the batch is that of {words.format(number)}", evidence)
    return _known_digest(evidence)


def _known_digest(evidence: Evidence) -> Kind | None:
    mine, run = evidence.target_run.batch_digest, evidence.reference_run
    if not mine or mine == run.batch_digest:
        return None
    for step, digest in run.batch_digests.items():
        if digest == mine:
            return named("wrong_data", 0.95, f"the batch is that of step {step} of the reference", evidence)
    for rank, digest in run.rank_batch_digests.items():
        if digest == mine:
            return named("wrong_data", 0.95, f"the batch is that of rank {rank} of the reference", evidence)
    return None


def _rows(evidence: Evidence) -> Kind | None:
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.ndim < 2 or t.shape[0] < 2:
        return None
    order = along(t, r, 0, evidence.roundoff)
    if order is not None:
        said = f"the batch holds the reference's samples {described(order)}"
        return named("wrong_data", 0.97, said, evidence)
    shared = _shared_rows(t, r)
    if shared == 0:
        return None
    return named(
        "wrong_data", 0.85, f"{shared} of {len(t)} samples of the batch are the reference's", evidence
    )


def _shared_rows(t: Floats, r: Floats) -> int:
    mine = {row.tobytes() for row in np.ascontiguousarray(t.reshape(len(t), -1))}
    theirs = {row.tobytes() for row in np.ascontiguousarray(r.reshape(len(r), -1))}
    return len(mine & theirs)


def _unlike(evidence: Evidence) -> Kind | None:
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or not t.size:
        return named("wrong_data", 0.5, "the batch is not the reference's", evidence)
    same = float(close(t, r, evidence.roundoff).mean())
    said = (
        f"the batch is not the reference's: {percent(1 - same)} of its elements differ, no sample is shared"
    )
    return named("wrong_data", 0.75 if same < 0.5 else 0.55, said, evidence)
