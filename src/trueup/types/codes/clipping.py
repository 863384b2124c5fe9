"""Codes of what happens to gradients between backward and the optimizer: loss scale, clipping, copies."""

from trueup.types.codes.base import Code


class ClippingCode(Code):
    """Loss scale, clipping and copies of gradients."""

    LOSS_SCALE = "clipping.loss_scale_differs"
    LOSS_SCALE_CAUSE = "clipping.cause.loss_scale_rule"
    SAME_LOSS_SCALE = "clipping.use_same_loss_scale"

    # what one run does
    NOT_CLIPPED = "clipping.not_clipped"
    NORM_OF_OWN_PART = "clipping.norm_of_rank_alone"
    CLIPPED_BETWEEN = "clipping.between_microbatches"
    """the first microbatch to norm ``limit``, before the next is added"""
    CLIPPED_EACH = "clipping.after_every_microbatch"
    """the sum so far to norm ``limit`` after every microbatch, and at the end"""
    FIRST_COUNTS = "clipping.first_microbatch_counts"
    """``factors`` of the first microbatch by rank, and ``norms`` of its gradients"""
    MULTIPLIED = "clipping.multiplied"
    MULTIPLIED_DIFFERS = "clipping.factors_of_all_differ"
    VALUES_DIFFER = "clipping.values_differ"
    VALUE_CAUSE = "clipping.cause.value"
    TO_NORM = "clipping.to_norm"
    NORM_BEFORE_REDUCTION = "clipping.norm_before_reduction"
    SCALED_UNCUT = "clipping.scaled_not_clipped"
    AT_VALUE = "clipping.at_value"
    BY_PARAMETER = "clipping.factor_by_parameter"

    # both runs
    BOTH = "clipping.both_runs"
    NORM_DIFFERS = "clipping.norm_differs"
    METHOD_DIFFERS = "clipping.method_differs"
    TARGET_ONLY = "clipping.target_only"
    REFERENCE_ONLY = "clipping.reference_only"
    SCALED_BY_RANKS = "clipping.scaled_by_number_of_ranks"
    FACTOR_DIFFERS = "clipping.factor_differs"
    REPORTED_NORM = "clipping.reported_norm_differs"
    SCALED_BEFORE = "clipping.scaled_before"
    SCALED_IN_REFERENCE = "clipping.scaled_in_reference"
    """``factor`` of the reference's gradients between backward and clipping; none of the target's"""
    CLIPPED_SCALED = "clipping.clipped_before_unscaling"
    UNSCALED_TWICE = "clipping.unscaled_twice"
    LEFT_OUT = "clipping.some_left_out"
    """some gradients are not clipped on one ``side``; whether they count in the norm"""
    OTHERS_CUT = "clipping.others_cut"
    NORM_TYPE = "clipping.norm_type_differs"
    NOT_CALLED_CAUSE = "clipping.cause.not_called"
    LIMIT_CAUSE = "clipping.cause.limit"
    NORM_TYPE_CAUSE = "clipping.cause.norm_type"
    UNSCALED_CAUSE = "clipping.cause.unscaled_otherwise"
    SCALED_BEFORE_NORM = "clipping.scaled_before_norm"
    NORM_CAUSE = "clipping.cause.norm"
    CLIP_ONCE = "clipping.cause.once"
    CLIP_AFTER_LAST = "clipping.clip_after_last"
    SUM_CAUSE = "clipping.cause.sum_over_ranks"
    SOME_SCALED_CAUSE = "clipping.cause.some_scaled"
    COMPARE_CODE = "clipping.compare_code"

    # rank by rank
    SOME_RANKS = "clipping.some_ranks_differ"
    RANK_FACTOR = "clipping.factor_of_rank"
    RANKS_DIFFER = "clipping.ranks_differ_along_axis"
    SUMS_SCALED = "clipping.sums_scaled"
    COMPARE_NORMS = "clipping.compare_norms"

    # copies of one gradient
    COPY_DIFFERS = "clipping.copy_differs"
    ON_RANKS = "clipping.gradients_differ_on_ranks"
    AMONG_RANKS = "clipping.measured_among_ranks"
