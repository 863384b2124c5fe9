"""Codes of a mismatch between training and inference."""

from trueup.types.codes.base import Code


class MismatchCode(Code):
    """What is concluded of the log-probs of rollout and trainer, and of their layers."""

    # verdicts
    IDENTICAL = "mismatch.bit_identical"
    NOT_IDENTICAL = "mismatch.not_bit_identical"
    """certificate of zero refused: the first layer, or the log-probs (``name``), that is not bit-identical"""
    WITHIN_BOUNDS = "mismatch.within_bounds"
    BEYOND_BOUND = "mismatch.beyond_bound"
    """``metric`` is beyond the ``bound`` that a person gave"""
    WITHIN_NOISE = "mismatch.within_noise"
    NOISE_IN_DOUBT = "mismatch.near_noise"
    """more than the noise explains, less than what is called a fault"""
    BEYOND_NOISE = "mismatch.beyond_noise"
    ROUNDING = "mismatch.explained_by_rounding"
    """every layer's error is explained by ``dtype``, and the log-probs by the layers"""
    LAYER = "mismatch.layer_beyond_rounding"
    LAYER_NOISE = "mismatch.layer_beyond_noise"
    LAYER_IN_DOUBT = "mismatch.layer_in_doubt"
    """more than is explained, less than what is called a fault"""
    LAYER_SHAPE = "mismatch.layer_shape_differs"
    HEAD = "mismatch.after_last_layer"
    NOT_FINITE = "mismatch.not_finite"
    SHIFTED = "mismatch.shifted_by_one"
    REORDERED = "mismatch.rows_reordered"
    NOT_SAMPLED = "mismatch.not_the_sampling_distribution"
    SPREAD = "mismatch.spread_differs"
    UNEXPLAINED = "mismatch.unexplained"
    """a difference, and nothing that says whether rounding explains it"""

    # remarks
    NO_NOISE = "mismatch.no_noise_measured"
    """the benign variant is bit-identical to the trainer's own forward"""
    ROUNDED = "mismatch.log_probs_rounded"
    """log-probs of a ``side`` are stored in ``dtype``, which alone gives the RMS difference ``rms_diff``"""
    FEW_SEQUENCES = "mismatch.in_few_sequences"
    GROWS_POSITION = "mismatch.grows_with_position"
    GROWS_STEPS = "mismatch.grows_over_steps"
    EQUAL_UNTIL = "mismatch.bit_identical_until"
    LAYERS_EQUAL = "mismatch.layers_bit_identical_until"
    LAYERS_OF = "mismatch.layers_of_some_tokens"

    # advice
    GIVE_LAYERS = "mismatch.give_layers"
    GIVE_NOISE = "mismatch.give_noise"
    COMPARE_LAYER = "mismatch.compare_layer"
