"""What is concluded of loss curves: the verdict's headline, why, remarks, advice, criteria and notes."""

from trueup.types.codes.base import Code


class CurvesCode(Code):
    """Conclusions over a target's curve and those of the reference and its repeats."""

    # headlines, one a case of the accuracy guide
    NOT_FINITE = "curves.not_finite"
    FROZEN_DIFFERS = "curves.frozen_differs"
    FROZEN_AGREES = "curves.frozen_agrees"
    FROZEN_OUTLIERS = "curves.frozen_outliers"
    FIRST_LOSS = "curves.first_loss_differs"
    LEARNING_RATES = "curves.learning_rates_differ"
    JUMP = "curves.diverges_at_step"
    GROWS = "curves.difference_grows"
    LATE = "curves.late_difference"
    OFFSET = "curves.steady_offset"
    FLUCTUATES = "curves.fluctuates"
    SCATTERS = "curves.scatters"
    NO_CONVERGENCE = "curves.does_not_converge"
    PLATEAU_HIGH = "curves.plateau_too_high"
    SPIKE = "curves.spike_recovers"
    LOCAL_NORM = "curves.local_norm_differs"
    FROZEN_CAUSE = "curves.frozen_not_deterministic"
    """its part is what was not fixed"""
    CONDITIONS = "curves.conditions_differ"
    IDENTICAL = "curves.identical"
    CENTRED = "curves.agree_centred"
    WITHIN_REPEATS = "curves.agree_within_repeats"
    WITHIN_STANDARD = "curves.agree_within_standard"
    NOT_PROVED = "curves.not_proved"
    """its part is the headline that holds but for what is not proved"""

    # reasons
    FAILED = "curves.criterion_failed"
    MEAN = "curves.signed_mean"
    FINITE_MEAN = "curves.signed_mean_of_finite_steps"
    REPEATS_DIFFER = "curves.repeats_differ_without_updates"
    ONSET = "curves.onset"
    LATE_GAP = "curves.late_gap"
    LEAVES_BAND = "curves.leaves_band"

    # remarks
    WARNED = "curves.criterion_warning"
    SYSTEMATIC = "curves.small_systematic_difference"
    SPIKES_TARGET = "curves.spikes_in_target"
    SPIKES_BOTH = "curves.spikes_in_both"
    OVERFLOWS = "curves.overflow_steps"
    NOT_FINITE_STEPS = "curves.not_finite_steps"
    PLATEAU = "curves.plateau"
    LOGGED_RATES = "curves.logged_learning_rates_differ"
    LATE_BELOW_1_PERCENT = "curves.late_gap_below_1_percent"

    # advice
    OVERFLOW_CHECK = "curves.advice.overflow_check"
    LOOK_AT_BATCHES = "curves.advice.look_at_batches"
    LEAVE_BATCH_OUT = "curves.advice.leave_batch_out"
    LOOK_FOR_OVERFLOW = "curves.advice.look_for_overflow"
    CHECK_OPTIMIZER = "curves.advice.check_optimizer"
    CHECK_PRECISION = "curves.advice.check_precision"
    COMPARE_FIRST_FORWARD = "curves.advice.compare_first_forward"
    DIAGNOSE_FIRST_STEP = "curves.advice.diagnose_first_step"
    FORWARD_ALONE = "curves.advice.forward_alone"
    RUN_ONE_BATCH = "curves.advice.run_one_batch"
    ANALYSE_OUTLIER = "curves.advice.analyse_outlier"
    LONG_TEST = "curves.advice.long_test"
    COMPARE_LOCAL_NORMS = "curves.advice.compare_local_norms"
    REPEAT_REFERENCE = "curves.advice.repeat_reference"
    FREEZE_WEIGHTS = "curves.advice.freeze_weights"
    TURN_DETERMINISM_ON = "curves.advice.turn_determinism_on"
    DOWNSTREAM = "curves.advice.downstream_tasks"

    # how steps were paired
    STEPS_ALIKE = "curves.alignment.same_numbers"
    STEPS_SHIFTED = "curves.alignment.shifted"

    # notes on the logs
    ALIGNED = "curves.note.alignment"
    COARSE = "curves.note.logged_coarsely"
    OF_CURVE = "curves.note.of_curve"
    OTHER_LOGS = "curves.note.other_logs"
    RESTARTED = "curves.note.restarted"
    FEW_DECIMALS = "curves.note.few_decimals"
    NORMS_ONE_SIDE = "curves.note.local_norms_on_one_side"
    NORMS_UNREAD = "curves.note.local_norms_not_read"
    NORMS_UNPAIRED = "curves.note.local_norms_not_paired"
    COUNTED_LINES = "curves.note.steps_counted"

    # what a command is for
    NAME_FIRST_OVERFLOW = "curves.purpose.name_first_overflow"
    CAPTURE_FIRST_STEPS = "curves.purpose.capture_first_steps"
    DIAGNOSE_STEPS = "curves.purpose.diagnose_steps"
    ONE_BATCH = "curves.purpose.one_batch"
    FROZEN_RUN = "curves.purpose.frozen_run"
    CAPTURE_AROUND = "curves.purpose.capture_around"
    WITHOUT_BATCH = "curves.purpose.without_batch"
    PROVE_CONDITIONS = "curves.purpose.prove_conditions"
