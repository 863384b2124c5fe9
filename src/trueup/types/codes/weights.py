"""Codes of weights: at the start of a run, and from one step to the next."""

from trueup.types.codes.base import Code


class WeightsCode(Code):
    """How weights differ at the start, and how an update is lost before the next step."""

    # the stage
    ALL_EQUAL = "weights.all_bit_identical"
    WITHIN_ROUNDING = "weights.within_rounding"
    """``num`` are of other dtypes (``target``, ``reference``), ``equal`` bit-identical"""
    SOME_EQUAL = "weights.some_bit_identical"
    NUM_EQUAL = "weights.num_bit_identical"
    UNMATCHED = "weights.without_counterpart"
    NO_DIGEST = "weights.no_digest"

    # how one weight differs
    OF_PARAMETER = "weights.of_parameter"
    NOT_STORED = "weights.values_not_stored"
    TRANSPOSED = "weights.transposed"
    SHAPE = "weights.shape_differs"
    ZERO = "weights.zero"
    NEGATED = "weights.negated"
    SCALED = "weights.scaled"
    NUMBER = "weights.number"
    SHIFTED = "weights.shifted"
    REORDERED = "weights.rows_reordered"
    REARRANGED = "weights.rearranged"
    OF_ANOTHER = "weights.of_another"
    PART = "weights.some_rows_differ"
    ROUNDED = "weights.rounded"
    NEAR = "weights.near"
    OTHER_DRAW = "weights.other_random_draw"
    OTHER_INIT = "weights.other_initialization"
    RELATED = "weights.made_of_the_same_numbers"
    RELATED_CAUSE = "weights.cause_same_numbers"

    # findings
    DIFFER = "weights.initial_differ"
    NUM_DIFFERENT = "weights.num_different"
    SAME_WEIGHTS = "weights.load_same"
    ONE_SIDED = "weights.parameter_on_one_side"
    ONLY_IN = "weights.parameters_of_one_side"
    NAMES = "weights.names_of_one_side"
    DRAWN_AFTER = "weights.drawn_after"
    BUILT_WITHOUT = "weights.cause.built_without"
    BUILD_BOTH = "weights.build_both"
    TIE = "weights.tie_differs"
    TIED_GRADIENT = "weights.tied_gradient"
    TIE_CAUSE = "weights.cause.tied_on_one_side"
    TIE_BOTH = "weights.tie_both"
    SEED_CAUSE = "weights.cause.seed"
    BUILD_ORDER_CAUSE = "weights.cause.build_order"
    INIT_CAUSE = "weights.cause.initialization"
    CONVERTED_CAUSE = "weights.cause.converted"
    ROW_ORDER_CAUSE = "weights.cause.row_order"
    NOT_STRICT_CAUSE = "weights.cause.checkpoint_not_strict"
    CHANGED_CAUSE = "weights.cause.changed_before_first_step"

    # from the update to the next step
    UNDONE = "weights.update_undone"
    OVERWRITTEN = "weights.overwritten_after_update"
    NOT_THE_MASTERS = "weights.not_the_master_weights"
    RESTARTED = "weights.masters_made_anew"
    STALE = "weights.stale_working_copies"
    STALE_COPIES = "weights.num_stale_copies"
    REFERENCE_KEEPS = "weights.reference_keeps_updates"
    CHECK_AFTER_STEP = "weights.check_after_step"
