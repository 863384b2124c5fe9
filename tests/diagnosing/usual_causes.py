"""Of what each likely cause is one: the kinds of fault, the phases, and what must be known of the case.

Read off what the causes say, not off the rules. A cause that needs what a case shows to be otherwise must not
stand beside it, and where a sentence says the cause itself, no other does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trueup.diagnosing.evidence import Evidence
from trueup.types.codes import Code
from trueup.types.codes.kinds import AdviceCode, PlacesCode
from trueup.types.codes.kinds import CauseCode as Cause
from trueup.types.codes.kinds import KindReason as Kind
from trueup.types.finding import Finding, KindCode
from trueup.types.finding import Kind as Named
from trueup.types.reason import Reason

Holds = Callable[[Reason, Evidence], bool]
BATCH = ("batch", "forward", "loss", "backward", "param_grad")
"""phases of what is made of a batch"""
SENT = ("loss", "backward", "param_grad")
WEIGHTS = ("param_grad", "collective", "optimizer", "param")


class Of(NamedTuple):
    """What a cause is one of."""

    kinds: tuple[KindCode, ...]
    phases: tuple[str, ...] | None = None
    """None: any"""
    needs_ranks: bool = False
    holds: Holds = lambda said, evidence: True
    """of the case"""


def is_not(*codes: Code) -> Holds:
    return lambda said, evidence: said.code not in codes


def only_of(*codes: Code) -> Holds:
    return lambda said, evidence: said.code in codes


def of_learning_rate(said: Reason, evidence: Evidence) -> bool:
    """Whether a schedule may make it: the rate differs, and where the steps beside are known, is theirs."""
    if said.code is Kind.LEARNING_RATE:
        step, known = int(said.facts["step"]), evidence.reference_run.learning_rates  # type: ignore[arg-type]
        rate = evidence.target_run.learning_rate
        beside = [known.get(step - 1), known.get(step + 1)]
        return None in beside or rate in beside
    settings = [part.facts.get("setting") for part in said.parts]
    return said.code is Kind.ALONG_UPDATE or "lr" in settings


def is_nan_of_rows(said: Reason, evidence: Evidence) -> bool:
    facts = said.facts
    more = facts.get("num_nan_target", 0) > facts.get("num_nan_reference", 0)  # type: ignore[operator]
    return said.code is Kind.NOT_FINITE and more


def in_no_group(said: Reason, evidence: Evidence) -> bool:
    return evidence.parameter is None or evidence.parameter.target_grouped is not True


def is_trained(evidence: Evidence) -> bool:
    return evidence.parameter is not None and evidence.parameter.target_trainable is True


def both_in(said: Reason, evidence: Evidence) -> bool:
    """Whether both runs hold tensors of the dtype that the error is as large as."""
    runs = evidence.target_run, evidence.reference_run
    return said.code is Kind.SIZE_OF_ROUNDING and all(said.facts["dtype"] in run.dtypes for run in runs)


IN_REFERENCE = (Kind.NO_GRADIENT_IN_REFERENCE, Kind.ZERO_GRADIENT_IN_REFERENCE)
FROZEN = (Kind.NOT_TRAINABLE, Kind.NO_GRADIENT_NOT_TRAINABLE)
EXCHANGED = (
    Kind.SLOTS_SWAPPED,
    Kind.OF_ANOTHER_SLOT,
    Kind.OF_ANOTHER_CALL,
    Kind.OF_ANOTHER_MICROBATCH,
    Kind.SENT_TO_ANOTHER_CALL,
)
GATES = (Kind.GATE_FOR_UP, Kind.GATE_AND_UP_SWAPPED)
KNOWN_DRAWS = (
    Kind.DROPPED_IN_OTHER_LAYOUT,
    Kind.DROPPED_ON_ONE_SIDE,
    Kind.RECOMPUTED_OTHERWISE,
    Kind.RANKS_DROP_THE_SAME,
    Kind.DROPPED_ALONG,
)


def may_be_of_another_seed(said: Reason, evidence: Evidence) -> bool:
    """Where generators stood alike before, no seed differs."""
    parted_later = said.code is Kind.DRAWS_IN_ONE_RUN or "after" in said.facts
    return said.code not in KNOWN_DRAWS and not parted_later


def fine(said: Reason, evidence: Evidence) -> bool:
    """Whether the error is as small as float32 rounds: no coarser dtype is its cause."""
    return said.code is Kind.SIZE_OF_ROUNDING and said.facts["dtype"] == "float32"


def coarse(said: Reason, evidence: Evidence) -> bool:
    return not fine(said, evidence)


def of_moment(said: Reason, evidence: Evidence) -> bool:
    return said.code not in (Kind.UPDATES_COUNTED, Kind.UPDATES_PER_MICROBATCH, Kind.MOMENT_STARTS_ANEW)


KC = KindCode
OF: dict[Code, Of] = {
    Cause.FAULTY_MEMORY: Of((KC.BIT_FLIP,)),
    Cause.CORRUPTED_TRANSFER: Of((KC.BIT_FLIP,)),
    Cause.OTHER_DEFAULT: Of((KC.CONSTANT_ARGUMENT,)),
    Cause.OTHER_FORMULA: Of((KC.OTHER_FUNCTIONS,)),
    Cause.NOT_PASSED_ON: Of((KC.CONSTANT_ARGUMENT, KC.WRONG_DATA, KC.WRONG_SCALE)),
    Cause.MEMORY_FORMAT: Of((KC.RANDOMNESS,), holds=only_of(Kind.DROPPED_IN_OTHER_LAYOUT)),
    Cause.DROPOUT_ON_ONE_SIDE: Of((KC.RANDOMNESS,), holds=only_of(Kind.DROPPED_ON_ONE_SIDE)),
    Cause.NOISE_ON_ONE_SIDE: Of((KC.RANDOMNESS,), holds=only_of(Kind.DRAWS_IN_ONE_RUN)),
    Cause.DRAWN_BEFORE: Of((KC.RANDOMNESS,), holds=only_of(Kind.GENERATOR_ELSEWHERE)),
    Cause.OTHER_SEED: Of((KC.RANDOMNESS,), holds=may_be_of_another_seed),
    Cause.STATE_NOT_RESTORED: Of(
        (KC.RANDOMNESS,), BATCH, holds=is_not(*(one for one in KNOWN_DRAWS if one is not KNOWN_DRAWS[2]))
    ),
    Cause.SHARED_STREAM: Of((KC.RANDOMNESS,), needs_ranks=True, holds=is_not(*KNOWN_DRAWS[:3])),
    Cause.PREPROCESSING: Of((KC.WRONG_DATA,), BATCH),
    Cause.TARGETS_MADE: Of((KC.WRONG_DATA,), BATCH),
    Cause.SAMPLER_OF_RANK: Of((KC.WRONG_DATA,), BATCH, needs_ranks=True),
    Cause.BOUND_OF_OTHER_NUMBERS: Of((KC.WRONG_DATA,), BATCH),
    Cause.LEVELS_DRAWN_OTHERWISE: Of((KC.WRONG_DATA,), BATCH),
    Cause.SAMPLE_ORDER: Of((KC.WRONG_DATA,), BATCH),
    Cause.NOT_SHARED_OUT: Of((KC.WRONG_DATA,), BATCH),
    Cause.SHARD_OR_SEED: Of((KC.WRONG_DATA,), BATCH),
    Cause.REPLAYED_AFTER_RESUME: Of((KC.WRONG_DATA,), BATCH),
    Cause.OTHER_TENSORS: Of((KC.DROPPED_UPDATE,)),
    Cause.IN_NO_GROUP: Of((KC.DROPPED_UPDATE,), holds=in_no_group),
    Cause.NOT_IN_A_GROUP: Of((KC.DROPPED_UPDATE,), holds=in_no_group),
    Cause.NO_STEP: Of((KC.DROPPED_UPDATE,), holds=lambda said, e: e.target_run.skipped is None),
    Cause.STEP_SKIPPED: Of((KC.DROPPED_UPDATE,), holds=lambda said, e: e.target_run.skipped is True),
    Cause.COARSER_ON_ONE_SIDE: Of((KC.DTYPE_OR_ROUNDING,), holds=coarse),
    Cause.UPCAST_LEFT_OUT: Of((KC.DTYPE_OR_ROUNDING,), holds=coarse),
    Cause.OTHER_ORDER_OR_KERNEL: Of((KC.DTYPE_OR_ROUNDING,), holds=both_in),
    Cause.ORDER_OF_SUMS: Of((KC.DTYPE_OR_ROUNDING,), holds=fine),
    Cause.TF32_ON_ONE_SIDE: Of((KC.DTYPE_OR_ROUNDING,), holds=lambda said, e: said.facts["dtype"] == "tf32"),
    Cause.NOT_TRAINABLE: Of(
        (KC.FROZEN_OR_MISSING_GRADIENT,),
        holds=lambda said, e: not is_trained(e) and said.code not in (*IN_REFERENCE, Kind.PART_DETACHED),
    ),
    Cause.GRAPH_CUT: Of((KC.FROZEN_OR_MISSING_GRADIENT,), holds=is_not(*IN_REFERENCE, *FROZEN)),
    Cause.RESULT_UNUSED: Of(
        (KC.FROZEN_OR_MISSING_GRADIENT,), holds=is_not(*IN_REFERENCE, *FROZEN, Kind.PART_DETACHED)
    ),
    Cause.CUT_IN_REFERENCE: Of(
        (KC.FROZEN_OR_MISSING_GRADIENT,), holds=only_of(*IN_REFERENCE, Kind.PART_DETACHED)
    ),
    Cause.OUTSIDE_THE_GROUP: Of((KC.MISSING_ALL_REDUCE,), WEIGHTS, needs_ranks=True),
    Cause.WRAPPER_BYPASSED: Of((KC.MISSING_ALL_REDUCE,), WEIGHTS, needs_ranks=True),
    Cause.PARTIAL_SUM: Of((KC.MISSING_ALL_REDUCE,), ("forward", *SENT), needs_ranks=True),
    Cause.TERM_LEFT_OUT: Of((KC.MISSING_OR_EXTRA_TERM,)),
    Cause.STEP_OF_COMPUTATION: Of((KC.MISSING_OR_EXTRA_TERM, KC.OTHER_FUNCTIONS)),
    Cause.OTHER_USE: Of((KC.MISSING_OR_EXTRA_TERM,), holds=only_of(Kind.OTHER_USE, Kind.OTHER_USES_DIFFER)),
    Cause.NOT_CLEARED: Of((KC.MISSING_ZERO_GRAD,)),
    Cause.CLEARED_UNDER_A_CONDITION: Of((KC.MISSING_ZERO_GRAD,)),
    Cause.SECOND_OPTIMIZER_NOT_CLEARED: Of((KC.MISSING_ZERO_GRAD,)),
    Cause.ATOMIC_ADDITIONS: Of((KC.NON_DETERMINISM,)),
    Cause.KERNEL_CHOICE: Of((KC.NON_DETERMINISM,)),
    Cause.REDUCTION_ORDER: Of((KC.NON_DETERMINISM,)),
    Cause.BEYOND_RANGE: Of((KC.OVERFLOW_UNDERFLOW,)),
    Cause.LOSS_SCALE: Of(
        (KC.OVERFLOW_UNDERFLOW,),
        ("backward", "param_grad"),
        holds=lambda said, e: said.code is not Kind.NOT_FINITE or e.target_run.loss_scale is None,
    ),
    Cause.LOSS_SCALE_TOO_LARGE: Of(
        (KC.OVERFLOW_UNDERFLOW,),
        ("backward", "param_grad"),
        holds=lambda said, e: (e.target_run.loss_scale or 0) > 1,
    ),
    Cause.EMPTY_ROW: Of((KC.OVERFLOW_UNDERFLOW,), holds=is_nan_of_rows),
    Cause.SHIFTED_TWICE_OR_NEVER: Of((KC.SHIFTED_BY_ONE,), BATCH),
    Cause.INDEX_OFF_BY_ONE: Of(
        (KC.SHIFTED_BY_ONE,),
        holds=lambda said, e: abs(said.facts.get("shift", 1)) == 1,  # type: ignore[arg-type]
    ),
    Cause.OTHER_FIRST_POSITION: Of((KC.SHIFTED_BY_ONE,), holds=only_of(Kind.POSITIONS_COUNTED_FROM)),
    Cause.CACHE_NOT_REFRESHED: Of((KC.STALE_VALUE,)),
    Cause.COPY_NOT_UPDATED: Of(
        (KC.STALE_VALUE,), ("forward", *SENT, "param"), holds=is_not(Kind.OF_MICROBATCH)
    ),
    Cause.MASTERS_NOT_RELOADED: Of((KC.STALE_VALUE,), ("param",)),
    Cause.MASTERS_OF_ROUNDED: Of((KC.DTYPE_OR_ROUNDING,), ("param",)),
    Cause.BATCH_AGAIN: Of((KC.STALE_VALUE,), BATCH),
    Cause.OTHER_LAYOUT: Of(
        (KC.TRANSPOSED_OR_PERMUTED,), holds=is_not(*EXCHANGED, Kind.OTHER_PLACES, Kind.OTHER_RANGE)
    ),
    Cause.VIEW_FOR_TRANSPOSE: Of(
        (KC.TRANSPOSED_OR_PERMUTED,), holds=is_not(*EXCHANGED, *GATES, Kind.OTHER_PLACES, Kind.OTHER_RANGE)
    ),
    Cause.CONVERTED_FOR_ANOTHER_LAYOUT: Of(
        (KC.TRANSPOSED_OR_PERMUTED,), holds=is_not(*EXCHANGED, Kind.OTHER_PLACES, Kind.OTHER_RANGE)
    ),
    Cause.LOWEST_OF_OTHER_DTYPE: Of((KC.WRONG_MASK,), holds=only_of(Kind.HIDES_ALL_BY_INFINITY)),
    Cause.RANGE_OF_TOKENS: Of((KC.TRANSPOSED_OR_PERMUTED,), holds=only_of(Kind.OTHER_RANGE)),
    Cause.COUNTED_WITH_PADDING: Of((KC.TRANSPOSED_OR_PERMUTED,), holds=only_of(Kind.OTHER_PLACES)),
    Cause.EXCHANGED: Of((KC.TRANSPOSED_OR_PERMUTED,), holds=only_of(*EXCHANGED[:3])),
    Cause.ORDER_OF_BACKWARDS: Of((KC.TRANSPOSED_OR_PERMUTED,), ("backward",), holds=only_of(*EXCHANGED[3:])),
    Cause.CAUSAL_MASK: Of(
        (KC.WRONG_MASK,),
        ("forward", "backward", "param_grad"),
        holds=lambda said, e: (
            not places_of(said)
            & {
                PlacesCode.BELOW_DIAGONAL,
                PlacesCode.WHOLE_COLUMNS,
                PlacesCode.BETWEEN_DOCUMENTS,
                PlacesCode.COLUMNS_OF_EACH,
            }
        ),
    ),
    Cause.GROUPS_CHOSEN_OTHERWISE: Of((KC.TRANSPOSED_OR_PERMUTED,), holds=only_of(Kind.GROUPED_OTHERWISE)),
    Cause.DRAWN_ONCE: Of((KC.RANDOMNESS,), holds=only_of(Kind.DROPPED_ALONG)),
    Cause.LEFT_OUT_IS_LOST: Of((KC.WRONG_MASK,), holds=only_of(Kind.ZERO_FOR_GIVEN)),
    Cause.TRUE_HIDES: Of((KC.WRONG_MASK,), holds=only_of(Kind.MASK_INVERTED)),
    Cause.BORDERS_NOT_MASKED: Of(
        (KC.WRONG_MASK,),
        holds=lambda said, e: (
            not places_of(said)
            & {PlacesCode.BELOW_DIAGONAL, PlacesCode.ABOVE_DIAGONAL, PlacesCode.COLUMNS_OF_EACH}
            and said.code not in (Kind.NO_MASK, Kind.SEES_SUCCESSOR, Kind.CAUSAL_MASK_ADDED, Kind.MASK_BEGINS)
        ),
    ),
    Cause.OTHER_WINDOW: Of(
        (KC.WRONG_MASK,),
        holds=lambda said, e: said.code is Kind.MASK_BEGINS or PlacesCode.BELOW_DIAGONAL in places_of(said),
    ),
    Cause.HIDDEN_AT_RANDOM: Of(
        (KC.WRONG_MASK,), holds=lambda said, e: PlacesCode.COLUMNS_OF_EACH in places_of(said)
    ),
    Cause.LABELS_COUNTED: Of((KC.WRONG_MASK,), SENT),
    Cause.BALANCE_TERM: Of((KC.MISSING_OR_EXTRA_TERM,), ("backward",), holds=only_of(Kind.TERM_OF_SCORES)),
    Cause.WEIGHTS_OF_ROWS: Of(
        (KC.WRONG_SCALE,), SENT, holds=only_of(Kind.WEIGHTS_OF_TOKENS, Kind.SENT_BACK_PER_ROW)
    ),
    Cause.MARGIN_OF_PAIRS: Of((KC.WRONG_SCALE,), SENT, holds=only_of(Kind.WEIGHTS_OF_TOKENS)),
    Cause.OTHER_OPTIMIZER_DEFAULT: Of((KC.WRONG_OPTIMIZER_SETTING,), holds=of_moment),
    Cause.PARAMETER_GROUPS: Of((KC.WRONG_OPTIMIZER_SETTING,), holds=of_moment),
    Cause.SCHEDULE_OFF: Of((KC.WRONG_OPTIMIZER_SETTING,), holds=of_learning_rate),
    Cause.STATE_ON_RESUME: Of((KC.WRONG_OPTIMIZER_SETTING,), holds=only_of(Kind.UPDATES_COUNTED)),
    Cause.NO_MASTER_WEIGHTS: Of((KC.WRONG_OPTIMIZER_SETTING,), holds=only_of(Kind.UPDATE_LOST)),
    Cause.STATE_NOT_RESTORED_ON_RESUME: Of(
        (KC.WRONG_OPTIMIZER_SETTING,), holds=only_of(Kind.MOMENT_STARTS_ANEW)
    ),
    Cause.LOGISTIC_SCALE: Of((KC.WRONG_SCALE,), ("backward",)),
    Cause.LOSS_DIVIDED: Of((KC.WRONG_SCALE,), ("forward", *SENT)),
    Cause.SUMMED_FOR_AVERAGED: Of((KC.WRONG_SCALE,), ("param_grad", "collective"), needs_ranks=True),
    Cause.UNSCALED_OR_CLIPPED: Of((KC.WRONG_SCALE,), ("param_grad",)),
    Cause.KEPT_SHARE: Of((KC.WRONG_SCALE,), ("forward",), holds=only_of(Kind.KEPT_TIMES)),
    Cause.FACTOR_LEFT_OUT: Of((KC.WRONG_SCALE,), ("forward", "param", "optimizer")),
    Cause.MINUS_LEFT_OUT: Of((KC.WRONG_SIGN,)),
    Cause.OTHER_WAY_ROUND: Of((KC.WRONG_SIGN,)),
}
ADVICE = {
    AdviceCode.RUN_ELSEWHERE: KC.BIT_FLIP,
    AdviceCode.COMPARE_FORMULAS: KC.OTHER_FUNCTIONS,
    AdviceCode.SET_ARGUMENT: KC.CONSTANT_ARGUMENT,
    AdviceCode.CHECK_GROUPS: KC.DROPPED_UPDATE,
    AdviceCode.CAST_TO_FLOAT32: KC.DTYPE_OR_ROUNDING,
    AdviceCode.FOLLOW_THE_GRAPH: KC.FROZEN_OR_MISSING_GRADIENT,
    AdviceCode.ADD_REDUCTION: KC.MISSING_ALL_REDUCE,
    AdviceCode.COMPARE_TERMS: KC.MISSING_OR_EXTRA_TERM,
    AdviceCode.CLEAR_GRADIENTS: KC.MISSING_ZERO_GRAD,
    AdviceCode.DETERMINISTIC_KERNELS: KC.NON_DETERMINISM,
    AdviceCode.WIDER_RANGE: KC.OVERFLOW_UNDERFLOW,
    AdviceCode.SEED_ALIKE: KC.RANDOMNESS,
    AdviceCode.COUNT_SHIFTS: KC.SHIFTED_BY_ONE,
    AdviceCode.REFRESH: KC.STALE_VALUE,
    AdviceCode.COMPARE_LAYOUTS: KC.TRANSPOSED_OR_PERMUTED,
    AdviceCode.COMPARE_SAMPLERS: KC.WRONG_DATA,
    AdviceCode.PRINT_MASKS: KC.WRONG_MASK,
    AdviceCode.PRINT_GROUPS: KC.WRONG_OPTIMIZER_SETTING,
    AdviceCode.LOOK_FOR_FACTOR: KC.WRONG_SCALE,
    AdviceCode.CHECK_SIGNS: KC.WRONG_SIGN,
}
OF_A_FINDING = {
    AdviceCode.RESTORE_STATE: KC.RANDOMNESS,
    AdviceCode.COMPARE_FIRST_POSITIONS: KC.SHIFTED_BY_ONE,
}
"""advice of one finding of a kind, where the kind's own would lead elsewhere"""
SURE: dict[Code, Sequence[Code]] = {
    Kind.RECOMPUTED_OTHERWISE: (Cause.STATE_NOT_RESTORED,),
    Kind.RANKS_DROP_THE_SAME: (Cause.SHARED_STREAM,),
    Kind.DROPPED_IN_OTHER_LAYOUT: (Cause.MEMORY_FORMAT,),
    Kind.DROPPED_ON_ONE_SIDE: (Cause.DROPOUT_ON_ONE_SIDE,),
    Kind.DRAWS_IN_ONE_RUN: (Cause.NOISE_ON_ONE_SIDE,),
    Kind.NOT_TRAINABLE: (Cause.NOT_TRAINABLE,),
    Kind.NO_GRADIENT_NOT_TRAINABLE: (Cause.NOT_TRAINABLE,),
    Kind.MOMENT_STARTS_ANEW: (Cause.STATE_NOT_RESTORED_ON_RESUME,),
    Kind.UPDATE_LOST: (Cause.NO_MASTER_WEIGHTS,),
    Kind.UPDATES_COUNTED: (Cause.STATE_ON_RESUME,),
    Kind.UPDATES_PER_MICROBATCH: (),
    Kind.POSITIONS_COUNTED_FROM: (Cause.OTHER_FIRST_POSITION,),
    Kind.OTHER_USE: (Cause.OTHER_USE,),
    Kind.OTHER_USES_DIFFER: (Cause.OTHER_USE,),
    Kind.LOSS_DIVISORS: (Cause.LOSS_DIVIDED,),
    Kind.SCALED_AT_EVEN_SCORES: (Cause.LOGISTIC_SCALE,),
    Kind.DIVISORS_GIVEN: (Cause.LOSS_DIVIDED,),
    Kind.OF_ANOTHER_MICROBATCH: (Cause.ORDER_OF_BACKWARDS,),
    Kind.OF_ANOTHER_SLOT: (Cause.EXCHANGED,),
    Kind.SLOTS_SWAPPED: (Cause.EXCHANGED,),
}
"""sentences that say their own cause -> that alone"""


def places_of(said: Reason) -> set[Any]:
    return {part.code for part in said.parts}


def check_finding(finding: Finding) -> None:
    """The causes that a stage names: of the kind and the phase, and the usual ones only where it knows none
    of its own."""
    for kind in finding.kinds:
        usual = [one.code for one in kind.causes if one.code in OF]
        for cause in usual:
            of = OF[cause]
            assert kind.name in of.kinds, (finding.headline, cause)
            assert of.phases is None or finding.phase in of.phases, (finding.phase, finding.headline, cause)
        own = [one.code for one in kind.causes if one.code not in OF]
        assert not own or set(usual) <= {Cause.SCHEDULE_OFF}, (finding.headline, own, usual)


def check(named: Named, evidence: Evidence) -> set[Code]:
    """Each cause and the advice of a kind that was named are of this case; gives the causes."""
    causes = [one.code for one in named.causes]
    alone = evidence.target_run.world_size == evidence.reference_run.world_size == 1
    for cause in causes:
        of = OF[cause]
        assert named.name in of.kinds, (named.name, cause)
        assert of.phases is None or evidence.origin.phase in of.phases, (evidence.origin.phase, cause)
        assert not (of.needs_ranks and alone), cause
        assert of.holds(named.sentence, evidence), (cause, named.sentence)
    assert len(set(causes)) == len(causes)
    if named.sentence.code in SURE:
        assert tuple(causes) == tuple(SURE[named.sentence.code]), (named.sentence.code, causes)
    assert named.next is not None
    assert (ADVICE | OF_A_FINDING)[named.next.code] == named.name  # type: ignore[index]
    return set(causes)
