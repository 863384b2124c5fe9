"""What a comparison concludes, and what to do next."""

from trueup.types.codes.base import Code


class VerdictCode(Code):
    """The headline over two runs."""

    # the runs differ
    DATA_DIFFERS = "verdict.data_differs"
    ARGUMENT_DIFFERS = "verdict.argument_differs"
    INPUT_OF_ONE_SIDE = "verdict.input_of_one_side"
    BUFFER_DIFFERS = "verdict.buffer_differs"
    BUFFERS_WRITTEN = "verdict.buffers_written"
    ACTIVATION_DIFFERS = "verdict.activation_differs"
    """``target``, ``reference``: functions that ``module`` applies"""
    CLIPPED_OTHERWISE = "verdict.clipped_otherwise"
    MODULE_CLASS_DIFFERS = "verdict.module_class_differs"
    NOT_FINITE = "verdict.not_finite"
    HELD_GRADIENT_CHANGED = "verdict.held_gradient_changed"
    FIRST_DIVERGENCE = "verdict.first_divergence"
    OTHER_CODE = "verdict.other_code"
    """its part is the headline of a place whose ``function`` has other statements"""
    OTHER_VALUE_IN_CODE = "verdict.other_value_in_code"
    PARAMETER_ABSENT = "verdict.parameter_absent"
    LOSS_DIFFERS_LATER = "verdict.loss_differs_later"
    GRADIENT_NORM_DIFFERS = "verdict.gradient_norm_differs"
    SETTINGS_DIFFER = "verdict.settings_differ"
    OPTIMIZER_SETTING_DIFFERS = "verdict.optimizer_setting_differs"
    LEARNING_RATE_DIFFERS = "verdict.learning_rate_differs"
    """``target``, ``reference``: the rates of ``step``; ``parameter``: the first whose update differs"""
    UPDATE_SETTING_DIFFERS = "verdict.update_setting_differs"
    """``name``, ``target``, ``reference`` of the setting; ``parameter``: the first whose update differs"""
    UPDATES_COPIES = "verdict.updates_copies"
    """``side`` updates copies of the weights; ``target``, ``reference``: dtypes of what is updated"""
    COMPUTES_IN = "verdict.computes_in"
    """``target``, ``reference``: dtypes; ``functions``: what computes in them; ``weights``: whether they are
    stored in them too; ``autocast``: the side that uses it, empty where neither is seen to"""
    CASTS_TO = "verdict.casts_to"
    """``side`` casts in ``module``; ``target``, ``reference``: dtypes there"""
    MICROBATCHES_DIFFER = "verdict.microbatches_differ"
    # undecided
    NOISE_GREW = "verdict.noise_grew"
    NOT_BRACKETED = "verdict.not_bracketed"
    NOTHING_COMPARED_OF = "verdict.nothing_compared_of"
    # the runs agree
    AGREE_BUT_INSIDE = "verdict.agree_but_inside"
    BIT_IDENTICAL = "verdict.bit_identical"
    COMPARED_IS_BIT_IDENTICAL = "verdict.compared_is_bit_identical"
    AGREE = "verdict.agree"
    AGREE_IN_PART = "verdict.agree_in_part"


class NextCode(Code):
    """What to do after a comparison; its phrase has the command where there is one."""

    DIAGNOSE_DATA = "next.diagnose_data"
    CAPTURE_CALLS = "next.capture_calls"
    CAPTURE_VALUES = "next.capture_values"
    CAPTURE_STEPS = "next.capture_steps"
    READ_REPORT = "next.read_report"
    READ_UNDECIDED = "next.read_undecided"
    READ_WRITTEN_REPORT = "next.read_written_report"
    READ_WRITTEN_UNDECIDED = "next.read_written_undecided"
    MEASURE_NOISE = "next.measure_noise"
    CHECK_GRADIENT_NORM = "next.check_gradient_norm"
    ALIGN_SETTINGS = "next.align_settings"
    ALIGN_PRECISION = "next.align_precision"
    MERGE_MICROBATCHES = "next.merge_microbatches"
    ALIGN_MICROBATCHES = "next.align_microbatches"
    CAPTURE_SAME_PHASES = "next.capture_same_phases"
    CAPTURE_SAME_OPTIONS = "next.capture_same_options"
    CHECK_TRAINING = "next.check_training"
    NOTHING = "next.nothing"
