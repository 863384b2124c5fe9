"""What a verdict rests on, what tells the cause first: a terminal shows only the beginning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trueup.comparing.first import First, Preceding
from trueup.comparing.ledger import Ledger
from trueup.comparing.precision_gap import PrecisionGap
from trueup.comparing.record_row import JudgedRow
from trueup.comparing.scalars import ScalarPair
from trueup.comparing.thresholds import FACTOR_OF_DIFFERENCE, REST_OF_DIFFERENCE
from trueup.types.codes import EvidenceCode, RecordCode
from trueup.types.reason import Number, Place, Reason, reason

_READ_BY = {
    "microbatches": ("forward", "loss", "backward", "param_grad", "collective", "optimizer"),
    "batch_size": ("forward", "loss", "backward", "param_grad", "collective", "optimizer"),
    "learning_rate": ("optimizer",),
    "loss_scale": ("backward", "param_grad", "collective", "optimizer"),
    "batch_digest": ("forward", "loss", "backward", "param_grad", "collective", "optimizer"),
}
"""Settings of a step, most telling first, and the phases that read them."""

_NUM_AHEAD = 2
"""causes that stand before the size of the difference"""


def grounds(first: First, ledger: Ledger, scalars: Sequence[ScalarPair]) -> tuple[Reason, ...]:
    """Causes, the size of the difference, why it is an origin, what else differs; norms last."""
    settings, other_settings = _settings(scalars, first.step, first.row.phase)
    causes = [*first.ids, *first.unpaired_inputs, *settings, *_absent(ledger), *reversed(first.arguments)]
    why = [
        one
        for one in first.why
        if not first.unpaired_inputs or one.code is not EvidenceCode.INPUTS_BIT_IDENTICAL
    ]
    found = [
        *causes[:_NUM_AHEAD],
        *_size(first.row),
        *causes[_NUM_AHEAD:],
        *why,
        *first.dtypes,
        *other_settings,
        _later(first, ledger),
        *_norms(first.row),
    ]
    return tuple(dict.fromkeys(found))


def precision_grounds(gap: PrecisionGap, ledger: Ledger, scalars: Sequence[ScalarPair]) -> tuple[Reason, ...]:
    """What computes in other dtypes, what goes beyond that, and settings that differ as well."""
    found = []
    if gap.functions or gap.modules:
        found.append(reason(EvidenceCode.COMPUTED_BY, functions=gap.functions, modules=gap.modules))
    found += gap.grounds
    if any(one.code is EvidenceCode.WHOLE_ROUNDED for one in gap.grounds):
        pass  # what is made of another place is no rounding
    elif gap.beyond is None:
        found.append(reason(EvidenceCode.NONE_BEYOND, dtype=gap.coarser))
    else:
        row = gap.beyond.row
        sizes = {"rel_l2": row.rel_l2, "tolerance": row.tolerance}
        found.append(reason(EvidenceCode.FIRST_BEYOND, dtype=gap.coarser, site=row.site, **sizes))
    read, unread = _settings(scalars, gap.at.step, gap.at.row.phase)
    return tuple(dict.fromkeys([*found, *read, *unread, *_absent(ledger), *gap.at.arguments]))


def _settings(scalars: Sequence[ScalarPair], step: int, phase: str) -> tuple[list[Reason], list[Reason]]:
    """What the step was run with and differs: what this phase reads, and the rest."""
    read: list[Reason] = []
    unread: list[Reason] = []
    for name, phases in _READ_BY.items():
        (read if phase in phases else unread).extend(_setting(scalars, step, name))
    return read, unread


def _setting(scalars: Sequence[ScalarPair], step: int, name: str) -> list[Reason]:
    apart: dict[str, list[ScalarPair]] = {}
    for pair in scalars:
        if pair.step == step and pair.beyond and pair.base == name:
            apart.setdefault(pair.name, []).append(pair)
    return [scalar_reason(EvidenceCode.SETTING_DIFFERS, pairs) for pairs in apart.values()]


def scalar_reason(code: EvidenceCode, pairs: Sequence[ScalarPair]) -> Reason:
    """One scalar of one step that differs, and the ranks where it does."""
    first = pairs[0]
    return reason(
        code,
        name=first.name,
        step=first.step,
        ranks=[str(pair.rank) for pair in pairs],
        target=_fact(first.target),
        reference=_fact(first.reference),
    )


def _fact(value: object) -> Number | Place:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    return value if isinstance(value, (int, float, str)) or value is None else str(value)


def absent_parameters(ledger: Ledger) -> dict[str, list[str]]:
    """Side -> parameters that it lacks in every step, of the sides that lack any."""
    names = {
        side: sorted(
            {
                name
                for _, _, name, why in ledger.groups
                if why.code is RecordCode.NO_PARAMETER and why.place("side") == side
            }
            - ledger.parameters[side]
        )
        for side in ("reference", "target")
    }
    return {side: some for side, some in names.items() if some}


def _absent(ledger: Ledger) -> list[Reason]:
    """Parameters that one run lacks."""
    return [
        reason(EvidenceCode.PARAMETERS_ABSENT, side=side, parameters=names)
        for side, names in absent_parameters(ledger).items()
    ]


def _size(row: JudgedRow) -> list[Reason]:
    """How large the difference is; of NaN and infinities how many there are, which have no size."""
    counted = row.not_finite_apart
    if counted is not None:
        numbers = {"target": counted.target, "reference": counted.reference}
        return [reason(EvidenceCode.NOT_FINITE, what=counted.what, **numbers)]
    found = []
    if row.rel_l2 is not None and row.tolerance is not None:
        found.append(
            reason(
                EvidenceCode.SIZE,
                rel_l2=row.rel_l2,
                tolerance=row.tolerance,
                score=row.score,
                evidence=row.evidence,
            )
        )
    if row.reason is not None:
        found.append(row.reason)
    return found


def _shrunk(row: JudgedRow) -> float:
    """The target's norm over the reference's where it is smaller; infinite where not, or not known."""
    target, reference = row.target_l2_norm, row.reference_l2_norm
    return target / reference if target and reference and target < reference else math.inf


def _norms(row: JudgedRow) -> list[Reason]:
    if row.not_finite_apart is not None:
        return []
    found = []
    # A single number is a multiple of every other.
    if row.numel != 1 and row.scale is not None and row.residual is not None and row.rel_l2:
        factor, size = row.scale - 1, row.rel_l2
        # That a target is nearly zero explains the difference, and says nothing of what it is.
        left = row.residual / min(size, _shrunk(row))
        if abs(factor) > FACTOR_OF_DIFFERENCE * size and left < REST_OF_DIFFERENCE:
            found.append(reason(EvidenceCode.COMMON_FACTOR, factor=factor, residual=row.residual))
    if row.target_l2_norm is not None and row.reference_l2_norm is not None:
        found.append(reason(EvidenceCode.NORMS, target=row.target_l2_norm, reference=row.reference_l2_norm))
    else:
        found += _extremes(row)
    return found


def _extremes(row: JudgedRow) -> Iterator[Reason]:
    """Of a tensor without a norm: its maximum and minimum, where they differ."""
    for what in ("maximum", "minimum"):
        target, reference = (row.columns.get(f"{side}_{what}") for side in ("target", "reference"))
        if isinstance(target, float) and isinstance(reference, float) and target != reference:
            yield reason(EvidenceCode.EXTREMES, what=what, target=target, reference=reference)


def _later(first: First, ledger: Ledger) -> Reason:
    if ledger.exceeding <= 1:
        return Reason(EvidenceCode.NO_OTHER)
    return reason(
        EvidenceCode.OTHERS,
        differing=ledger.exceeding,
        compared=ledger.compared,
        phases=sorted(name for name in ledger.firsts if name != first.row.phase),
        origins=ledger.num_origins,
        followed=ledger.followed,
    )


def preceding(before: Preceding) -> Reason:
    """How the records that were compared before a site agree; none of them is left out."""
    total = before.equal + before.within + before.exceeding
    if total == 0:
        return Reason(EvidenceCode.PRECEDING_NONE)
    if before.equal == total:
        return reason(EvidenceCode.PRECEDING_BIT_IDENTICAL, records=total)
    worst = (
        {}
        if before.worst_site is None
        else {
            "worst_score": before.worst_score,
            "worst_site": before.worst_site,
        }
    )
    numbers = {"equal": before.equal, "within": before.within, "exceeding": before.exceeding}
    return reason(EvidenceCode.PRECEDING, **numbers, **worst)
