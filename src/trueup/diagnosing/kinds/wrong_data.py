"""Another batch, or the same samples in another order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.fitting import close
from trueup.diagnosing.kinds.loss_divisor import numbers_given
from trueup.diagnosing.kinds.permutations import along, described
from trueup.diagnosing.kinds.rule import BEFORE_UPDATE, EvidenceNeeds, Found, KindRule, origin_reason
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode, Stage

_IDENTIFIERS = ("int", "uint")


def _is_batch(evidence: Evidence) -> bool:
    """What the data loader gave: integers entering the root, or what the data stage found; not one number,
    and not what the root's own code gives to a module inside (positions)."""
    t, around, origin = evidence.target, evidence.surroundings, evidence.origin
    if t is None or numbers_given(evidence) is not None:
        return False
    if origin.stage is Stage.DATA or origin.phase == "batch":
        return around.kind != "api" or t.dtype.startswith(_IDENTIFIERS)  # a function may take any tensor
    enters = origin.phase == "forward" and origin.slot.startswith("input") and origin.module == ""
    return enters and around.kind == "module" and not around.name and t.dtype.startswith(_IDENTIFIERS)


def _known_batch(evidence: Evidence) -> Found | None:
    """Bit for bit a batch of another step or rank."""
    t, r = evidence.target, evidence.reference
    if t is None or not _is_batch(evidence) or _is_mask(evidence, t):
        return None
    for code, number, known in _held(evidence):
        if t.same_bits(known) and (r is None or not r.same_bits(known)):
            return Found(
                rank=EvidenceRank.EVERY_ELEMENT, sentence=origin_reason(evidence, code, number=number)
            )
    return None


def _held(evidence: Evidence) -> Iterator[tuple[KindReason, int, Known]]:
    elsewhere = evidence.elsewhere
    for code, held in (
        (KindReason.BATCH_OF_REFERENCE_STEP, (*elsewhere.reference_earlier, *elsewhere.reference_later)),
        (KindReason.BATCH_OF_RANK, elsewhere.reference_ranks),
        (KindReason.BATCH_OF_MICROBATCH, elsewhere.reference_microbatches),
        (KindReason.BATCH_OF_TARGET_STEP, () if _is_constant(evidence) else elsewhere.target_earlier),
    ):
        yield from ((code, number, known) for number, known in held)


def _is_mask(evidence: Evidence, known: Known) -> bool:
    """What hides is often the same at every step, and is no sample."""
    return known.dtype == "bool" or "mask" in evidence.origin.slot


def _is_constant(evidence: Evidence) -> bool:
    """Whether the reference is given the same at every step, a mask say: then so may the target be."""
    r = evidence.reference
    return r is not None and any(r.same_bits(known) for _, known in evidence.elsewhere.reference_earlier)


def _known_digest(evidence: Evidence) -> Found | None:
    """The whole batch has the digest of another step's or rank's."""
    target, run = evidence.target_run.batch_digest, evidence.reference_run
    if not _is_batch(evidence) or not target or target == run.batch_digest:
        return None
    for code, digests in (
        (KindReason.BATCH_OF_REFERENCE_STEP, run.batch_digests),
        (KindReason.BATCH_OF_RANK, run.rank_batch_digests),
    ):
        for number, digest in digests.items():
            if digest == target:
                return Found(
                    rank=EvidenceRank.EVERY_ELEMENT, sentence=origin_reason(evidence, code, number=number)
                )
    return None


def _rows(evidence: Evidence) -> Found | None:
    """The reference's samples, or some of them."""
    t, r = evidence.target_values, evidence.reference_values
    if not _is_batch(evidence) or t is None or r is None or t.shape != r.shape or t.ndim < 2 or len(t) < 2:
        return None
    order = along(t, r, 0, evidence.roundoff)
    if order is not None:
        sentence = origin_reason(evidence, KindReason.SAMPLES_REORDERED, described(order))
        return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    shared = _shared_rows(t, r)
    if shared == 0:
        return None
    sentence = origin_reason(evidence, KindReason.SAMPLES_SHARED, shared=shared, samples=len(t))
    return Found(rank=EvidenceRank.FITTED, measure=shared / len(t), sentence=sentence)


def _shared_rows(t: Floats, r: Floats) -> int:
    target = {row.tobytes() for row in np.ascontiguousarray(t.reshape(len(t), -1))}
    reference = {row.tobytes() for row in np.ascontiguousarray(r.reshape(len(r), -1))}
    return len(target & reference)


def _unlike(evidence: Evidence) -> Found | None:
    if not _is_batch(evidence):
        return None
    t, r = evidence.target_values, evidence.reference_values
    differ = None
    if t is not None and r is not None and t.shape == r.shape and t.size:
        differ = 1 - float(close(t, r, evidence.roundoff).mean())
    return Found(
        rank=EvidenceRank.CONSISTENT, sentence=origin_reason(evidence, KindReason.OTHER_BATCH, differ=differ)
    )


RULE = KindRule(
    code=KindCode.WRONG_DATA,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.NOTHING,
    looks=(_known_batch, _known_digest, _rows, _unlike),
    causes=(CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME),
    in_phases=dict.fromkeys(
        (CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME), BEFORE_UPDATE
    ),
    advice=AdviceCode.COMPARE_SAMPLERS,
    place="samples in another order are a permutation too, and a batch again is a stale value",
)
