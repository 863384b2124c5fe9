"""What one run alone holds: phases of a step that the other's trace has nothing of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.types.codes import EvidenceCode
from trueup.types.reason import Reason, reason
from trueup.types.status import Status

PASSES = ("backward", "param_grad", "optimizer")
"""phases every training step has after its loss"""
_MADE_OF_CALLS = ("forward", "backward")
"""phases that nothing later in the step tells the agreement of, call by call"""
_COMPARED = tuple(status for status in Status if status not in (Status.UNMATCHED, Status.UNDECIDED))
_CHOICES = ("level", "task", "data_mode", "scope", "list")
_PARTS = ("names", "backward", "gradients", "optimizer", "collectives")
"""what else decides which records there are"""

Counted = Mapping[tuple[str, Status], int]
"""numbers of records by phase and status"""


def unseen(counts: Counted) -> list[str]:
    """Phases that have records, none of them paired."""
    paired = (*_COMPARED, Status.UNDECIDED)
    return [
        phase
        for phase in PASSES
        if counts.get((phase, Status.UNMATCHED), 0) and not any(counts.get((phase, s), 0) for s in paired)
    ]


def not_paired(counts: Counted, one_sided: Mapping[tuple[str, str], int]) -> list[str]:
    """Phases recorded in both traces, without a single pair; ``one_sided`` are
    unmatched records by side and phase."""
    matched = {phase for (phase, status), count in counts.items() if count and status != Status.UNMATCHED}
    return [
        phase
        for phase in _MADE_OF_CALLS
        if phase not in matched and all(one_sided.get((side, phase), 0) for side in ("target", "reference"))
    ]


def unpaired_by_side(
    phases: Sequence[str], counts: Counted, one_sided: Mapping[tuple[str, str], int]
) -> tuple[list[str], list[str]]:
    """Those of ``phases`` (``unseen``) that both traces hold and nothing else tells the agreement of, and
    those that one trace alone holds."""
    held = in_both(phases, one_sided)
    open_ = [] if only_passes_on(held, counts) else held
    return open_, [phase for phase in phases if phase not in held]


def in_both(phases: Sequence[str], one_sided: Mapping[tuple[str, str], int]) -> list[str]:
    """Those of ``phases`` that both traces hold: of these no run can be told to have none."""
    sides = ("target", "reference")
    return [phase for phase in phases if all(one_sided.get((side, phase), 0) for side in sides)]


def only_passes_on(phases: Sequence[str], counts: Counted) -> bool:
    """Whether what was not compared of ``phases`` shows in what was: what backward hands from call to call
    ends in the gradients of weights, or in their updates."""
    ends = any(counts.get((phase, s), 0) for phase in ("param_grad", "optimizer") for s in _COMPARED)
    return set(phases) <= {"backward"} and ends


def captured_alike(target: Mapping[str, object], reference: Mapping[str, object]) -> bool:
    """Whether both manifests tell that the same parts of a step were asked for, so that what one trace lacks
    did not happen there; False where one does not tell."""
    one, other = target.get("options"), reference.get("options")
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    return all(one.get(name) == other.get(name) for name in (*_CHOICES, *_PARTS))


def captures_apart(target: Mapping[str, object], reference: Mapping[str, object]) -> tuple[Reason, ...]:
    """What was asked for of the one run and not of the other, level and task first; empty where both were
    asked for the same, or one does not tell."""
    one, other = _choices(target), _choices(reference)
    return tuple(
        reason(EvidenceCode.CAPTURE_DIFFERS, name=name, target=one[name], reference=other[name])
        for name in _CHOICES
        if name in one and name in other and one[name] != other[name]
    )


def _choices(manifest: Mapping[str, object]) -> dict[str, str]:
    """Choices as a person reads them; of a trace that keeps no options its level and task."""
    options = manifest.get("options")
    kept = options if isinstance(options, Mapping) else {}
    found = {name: kept.get(name, manifest.get(name)) for name in _CHOICES}
    return {
        name: " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in found.items()
        if value is not None
    }
