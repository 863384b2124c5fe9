"""Which step and rank of one trace is compared with which of the other, and what is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trueup.comparing.options import CompareOptions
from trueup.errors import NothingCompared
from trueup.store import StepView, TraceSource, step_view
from trueup.store.part import TracePart
from trueup.types.codes import NoteCode
from trueup.types.reason import Reason, reason

NUMBERS_PROCESSES = "ptdbg_ascend"
"""source of dumps whose rank is the number of the process where nothing is distributed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPair:
    """One step of one rank on either side."""

    step: int
    rank: int
    reference_step: int
    reference_rank: int


def step_views(target: TraceSource, reference: TraceSource, pair: StepPair) -> tuple[StepView, StepView]:
    """Both sides' views of a pair."""
    return (
        step_view(target, pair.step, pair.rank),
        step_view(reference, pair.reference_step, pair.reference_rank),
    )


def step_pairs(
    target: TraceSource, reference: TraceSource, options: CompareOptions
) -> tuple[list[StepPair], list[Reason]]:
    """Pairs in execution order, and notes about steps and ranks that one side alone has.

    Raises:
        NothingCompared: the two have no step and rank in common; the message says what each holds.
    """
    have_t, have_r = target.steps(), reference.steps()
    notes: list[Reason] = []
    have = set(have_t), set(have_r)
    is_free = options.steps is None and options.target_step is None
    steps = (_named_apart(target, reference, "step", *have, notes) if is_free else []) or _numbers(
        *have, options.steps, options.target_step, options.reference_step, "step", notes
    )
    is_free = options.ranks is None and options.target_rank is None
    pairs = []
    for step, reference_step in steps:
        there = set(have_t.get(step, [])), set(have_r.get(reference_step, []))
        free_ranks = (
            _named_apart(target, reference, "rank", *there, notes)
            or _numbered_by_process(target, reference, *there, notes)
            if is_free
            else []
        )
        ranks = free_ranks or _numbers(
            *there,
            options.ranks,
            options.target_rank,
            options.reference_rank,
            "rank",
            notes,
        )
        pairs += [
            StepPair(step=step, rank=rank, reference_step=reference_step, reference_rank=reference_rank)
            for rank, reference_rank in ranks
        ]
    if not pairs:
        raise NothingCompared(
            f"no step and rank in common. Target {target.path} holds {_describe(have_t)}; reference "
            f"{reference.path} holds {_describe(have_r)}. Capture the same steps on both sides, or "
            "name one of each with --target-step and --reference-step, or --target-rank and --reference-rank."
        )
    return pairs, list(dict.fromkeys(notes))


def _named_apart(
    target: TraceSource,
    reference: TraceSource,
    what: str,
    have_target: set[int],
    have_reference: set[int],
    notes: list[Reason],
) -> list[tuple[int, int]]:
    """The one step, or rank, of either side where both paths are that of one and the numbers differ: a person
    who names ``run/step0`` and ``run/step1`` means these two, as msprobe's compare does."""
    named = have_target, have_reference, *(_numbers_named(side, what) for side in (target, reference))
    if any(len(numbers) != 1 for numbers in named) or have_target == have_reference:
        return []
    (one,), (other,) = have_target, have_reference
    notes.append(reason(NoteCode.PAIRED_BY_PATH, what=what, target=one, reference=other))
    return [(one, other)]


def _numbered_by_process(
    target: TraceSource,
    reference: TraceSource,
    have_target: set[int],
    have_reference: set[int],
    notes: list[Reason],
) -> list[tuple[int, int]]:
    """The only rank of either side, where one side's number may be that of a process: ptdbg_ascend calls the
    folder of a run on the CPU ``rank24117``."""
    one_rank_each = all(
        len({rank for held in side.steps().values() for rank in held}) == 1 for side in (target, reference)
    )
    by_process = NUMBERS_PROCESSES in (target.manifest.get("source"), reference.manifest.get("source"))
    if not (one_rank_each and by_process and have_target and have_reference) or have_target == have_reference:
        return []
    (one,), (other,) = have_target, have_reference
    notes.append(reason(NoteCode.ONE_RANK_EACH, target=one, reference=other))
    return [(one, other)]


def _numbers_named(side: TraceSource, what: str) -> set[int]:
    """The part of a trace that was asked for, else numbers of folders such as ``step3`` and ``rank_1`` in a
    path."""
    if isinstance(side, TracePart) and (chosen := side.chosen[what]) is not None:
        return {chosen}
    found = (re.fullmatch(rf"{what}_?(\d+)", part) for part in side.path.parts)
    return {int(one[1]) for one in found if one is not None}


def _numbers(
    target: set[int],
    reference: set[int],
    chosen: frozenset[int] | None,
    one: int | None,
    other: int | None,
    what: str,
    notes: list[Reason],
) -> list[tuple[int, int]]:
    if one is not None and other is not None:
        return [(one, other)] if one in target and other in reference else []
    if chosen is not None:
        absent = sorted(chosen - (target & reference))
        if absent:
            notes.append(reason(NoteCode.NOT_IN_BOTH, what=what, numbers=list(map(str, absent))))
        target, reference = target & chosen, reference & chosen
    for side, extra in (("target", target - reference), ("reference", reference - target)):
        if extra:
            numbers = list(map(str, sorted(extra)))
            notes.append(reason(NoteCode.IN_ONE_ONLY, what=what, numbers=numbers, side=side))
    return [(n, n) for n in sorted(target & reference)]


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"


def _describe(steps: dict[int, list[int]]) -> str:
    if not steps:
        return "no whole step"
    ranks = sorted({rank for held in steps.values() for rank in held})
    return f"steps {_listed(sorted(steps))} of ranks {_listed(ranks)}"
