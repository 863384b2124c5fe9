"""Why a record has no counterpart or no verdict, and what else is known of it."""

from trueup.types.codes.base import Code


class RecordCode(Code):
    """Place ``side`` is the run that lacks something, ``target`` or ``reference``."""

    # no counterpart
    PHASE_NOT_CAPTURED = "record.phase_not_captured"
    KIND_NOT_CAPTURED = "record.kind_not_captured"
    NO_SUCH_TENSOR = "record.no_such_tensor"
    FEWER_MICROBATCHES = "record.fewer_microbatches"
    WRAPPER = "record.wrapper"
    MODULE_UNMATCHED = "record.module_unmatched"
    NO_PARAMETER = "record.no_parameter"
    OTHER_CALLS = "record.other_calls"
    NOT_CALLED = "record.not_called"
    NO_SUCH_CALL = "record.no_such_call"
    GRADIENT_ABSENT = "record.gradient_absent"
    # no counterpart in another implementation
    MAPPED_TO_NONE = "record.mapped_to_none"
    PART_OF_FUSED = "record.part_of_fused"
    NO_WEIGHTS = "record.no_weights"
    FUSED = "record.fused"
    SAME_WEIGHTS = "record.same_weights"
    NO_SUCH_MODULE = "record.no_such_module"
    NO_SUCH_WEIGHT = "record.no_such_weight"
    TENSOR_UNKNOWN = "record.tensor_unknown"
    OTHER_USE = "record.gradient_of_other_use"
    # not kept by the source of a trace
    ROOT_NOT_DUMPED = "record.root_not_dumped"
    ONE_GRADIENT_DUMPED = "record.one_gradient_dumped"
    KEYWORD_GRADIENTS_NOT_DUMPED = "record.keyword_gradients_not_dumped"
    # paired, but not comparable
    NO_SUMMARY = "record.no_summary"
    SIDE_WITHOUT_SUMMARY = "record.side_without_summary"
    SHAPE_DIFFERS = "record.shape_differs"
    REGROUPED = "record.regrouped"
    UNCOUNTED_LABELS = "record.uncounted_labels"
    REDUCED_LATER = "record.reduced_later"
    NO_COMMON_EVIDENCE = "record.no_common_evidence"
    NOTHING_FINITE = "record.nothing_finite"
    NO_NORM = "record.no_norm"
    MAY_FOLLOW_ROUNDING = "record.may_follow_rounding"
    AUTOGRAD_ORDER = "record.autograd_order"
    AUTOGRAD_ORDER_ON_ONE_SIDE = "record.autograd_order_on_one_side"
    # compared
    LOWER_BOUND = "record.lower_bound"
    NOT_FINITE = "record.not_finite"
    DTYPE_DIFFERS = "record.dtype_differs"
    DTYPE_DIFFERS_WITH_EFFECT = "record.dtype_differs_with_effect"
    COPIES_DIFFER = "record.copies_differ"
    COPY_DIFFERS = "record.copy_differs"
    PARTS_NOT_MERGED = "record.parts_not_merged"
    MEAN_OF_TOKENS = "record.mean_of_tokens"
    NOT_READ = "record.not_read"
    ONE_ROUNDING = "record.one_rounding"
    COMMON_FACTOR = "record.common_factor"
