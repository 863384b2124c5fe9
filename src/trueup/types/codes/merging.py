"""Why parts of a tensor do not make a whole, and how the ranks of a run were put together."""

from trueup.types.codes.base import Code


class MergingCode(Code):
    """Parts are those that ranks recorded of one tensor."""

    # parts that do not fit
    RANK_WITHOUT_SUMMARY = "merging.rank_without_summary"
    STAGE_WITHOUT_RANK = "merging.stage_without_rank"
    NOT_DIVISIBLE = "merging.not_divisible"
    PARTS_MISSING = "merging.parts_missing"
    PLACEMENT_UNKNOWN = "merging.placement_unknown"
    NO_SUCH_DIM = "merging.no_such_dim"
    PIECES_INCOMPLETE = "merging.pieces_incomplete"
    SHAPES_DIFFER = "merging.shapes_differ"
    LENGTHS_DIFFER = "merging.lengths_differ"
    TERMS_DIFFER = "merging.terms_differ"
    SIZE_DIFFERS = "merging.size_differs"
    SUM_NOT_ROUNDED = "merging.sum_not_rounded"
    # how ranks were put together
    SIDE = "merging.side"
    MICROBATCH_ORDER = "merging.microbatch_order"
    WHOLE_TENSORS = "merging.whole_tensors"
    RANKS_MISSING = "merging.ranks_missing"
    LAYOUT_INFERRED = "merging.layout_inferred"
    REPLICAS = "merging.replicas"
    NO_PLACEMENT_FITS = "merging.no_placement_fits"
    GRADIENTS_LEFT_OUT = "merging.gradients_left_out"
    FUNCTIONS_LEFT_OUT = "merging.functions_left_out"
    RECORDS_NOT_MERGED = "merging.records_not_merged"
    RECORD_NOT_MERGED = "merging.record_not_merged"
    COPIES_OF_TENSOR_DIFFER = "merging.copies_of_tensor_differ"
    COPIES_DIFFER = "merging.copies_differ"
