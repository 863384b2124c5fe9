"""What a reader of a comparison should know beside its verdict."""

from trueup.types.codes.base import Code


class NoteCode(Code):
    """Place ``side`` is the run it is about, ``target`` or ``reference``."""

    # what was compared
    NOT_IN_BOTH = "note.not_in_both"
    IN_ONE_ONLY = "note.in_one_only"
    PAIRED_BY_PATH = "note.paired_by_path"
    ONE_RANK_EACH = "note.one_rank_each"
    ONE_RUN = "note.one_run"
    """both traces are of one execution, which agrees with itself"""
    CODE_DIFFERS = "note.code_differs"
    PROGRAMS_DIFFER = "note.programs_differ"
    NOT_COMPARED = "note.not_compared"
    AVERAGES_OF_ONE_SIDE = "note.averages_of_one_side"
    """``kinds``: what holds the averaged weights"""
    AVERAGES_NOT_PAIRED = "note.averages_not_paired"
    """``target``, ``reference``: averaged copies that each keeps"""
    AVERAGES_AGREE = "note.averages_agree"
    """``equal`` averaged weights of all steps are bit-identical, ``within`` differ within rounding"""
    AVERAGES_OF_RANKS = "note.averages_of_ranks"
    """``ranks`` of ``side`` write no averaged weights, though its others do, and the other run on all"""
    AVERAGED_IN_ONE = "note.averaged_alone"
    """``num`` tensors, ``name`` first, that the averaged weights of ``side`` alone hold"""
    LOSS_SCALES_DIFFER = "note.loss_scales_differ"
    LOSS_SCALE_UNDONE = "note.loss_scale_undone"
    ROWS_LAID_OTHERWISE = "note.rows_laid_otherwise"
    HIDDEN_TOKENS_LEFT_OUT = "note.hidden_tokens_left_out"
    ACROSS_IMPLEMENTATIONS = "note.across_implementations"
    ACROSS_FRAMEWORKS = "note.across_frameworks"
    MANIFESTS_DIFFER = "note.manifests_differ"
    CAPTURE_FAILED = "note.capture_failed"
    CAPTURE_DISABLED = "note.capture_disabled"
    CAPTURE_LIMIT = "note.capture_limit"
    MISSING = "note.missing"
    MORE_MISSING = "note.more_missing"
    # what was found
    REQUIRES_GRAD_DIFFERS = "note.requires_grad_differs"
    DTYPES_DIFFER = "note.dtypes_differ"
    NOT_IN_NOISE_PROFILE = "note.not_in_noise_profile"
    STEPS_NOT_CAPTURED = "note.steps_not_captured"
    WEIGHTS_DIFFER = "note.weights_differ"
    LESS_ACCURATE = "note.less_accurate"
    # a noise profile
    NOISE_REPEATS = "note.noise_repeats"
    NOISE_PERTURBED = "note.noise_perturbed"
    NOISE_PROFILE = "note.noise_profile"
    # dtypes side by side
    WEIGHT_NOT_CAST = "note.weight_not_cast"
    WEIGHT_DTYPE = "note.weight_dtype"
    INPUT_DTYPE = "note.input_dtype"
    OUTPUT_DTYPE = "note.output_dtype"


class ToleranceCode(Code):
    """Where tolerances come from, and their formulas."""

    DTYPE_BOUND = "tolerance.dtype_bound"
    MEASURED_NOISE = "tolerance.measured_noise"
    DTYPE_FORMULA = "tolerance.dtype_formula"
    NOISE_FORMULA = "tolerance.noise_formula"
