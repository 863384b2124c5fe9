"""Codes of batches: how token ids, labels and loss masks of two runs differ."""

from trueup.types.codes.base import Code


class BatchCode(Code):
    """Relations between two batches, and labels against inputs."""

    SAME = "batch.same_ids"
    ORDER = "batch.rows_reordered"
    SHIFT = "batch.rows_shifted"
    PADDING = "batch.padding_differs"
    ROW_LENGTH = "batch.row_length_differs"
    STREAM_OFFSET = "batch.stream_offset"
    SHAPE = "batch.shape_differs"
    MAPPED_IDS = "batch.ids_mapped"
    SOME_ROWS = "batch.some_rows_differ"
    OTHER = "batch.unrelated"
    OFFSET = "batch.offset"
    MOVED = "batch.values_moved"
    LAID_OUT = "batch.values_laid_out"
    SAME_NUMBERS = "batch.same_numbers"
    SCALED = "batch.values_scaled"

    LABELS_AGREE = "labels.agree"
    SAME_INPUTS = "labels.models_got_same_batch"
    OUTSIDE = "labels.outside_vocabulary"
    NUM_OUTSIDE = "labels.num_outside_vocabulary"
    SHIFTS = "labels.shifts"
    SHIFTED_TWICE = "labels.shifted_twice"
    NOT_SHIFTED = "labels.not_shifted"
    SHIFT_DIFFERS = "labels.shift_differs"
    MASK_DIFFERS = "labels.counted_positions_differ"
    NUM_COUNTED = "labels.num_counted"
    MASK_WEIGHTS = "labels.mask_weights_differ"
    NUM_WEIGHTS = "labels.num_mask_weights"
    LABELS_DIFFER = "labels.differ"
    NUM_LABELS = "labels.num_different"
    CHECK_LABELS = "labels.check_between_loader_and_loss"
