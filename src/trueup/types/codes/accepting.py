"""Codes of a sign-off: its decision, its items, and how what is not shown can be shown."""

from trueup.types.codes.base import Code


class AcceptCode(Code):
    """Lines of a sign-off."""

    # the decision
    ACCEPTED = "accept.accepted"
    REFUSED = "accept.refused"
    FAILED_UNPROVED = "accept.failed_without_proof"
    UNFOLLOWED = "accept.recommendations_not_followed"
    OPEN = "accept.not_shown"

    # what was given, parts and titles of items
    INPUT = "accept.input"
    PART = "accept.part"
    TITLE = "accept.item"
    SECTION = "accept.section"
    SCORE = "accept.score"
    ALL_SCORES = "accept.all_scores"

    # measured
    NO_TRACES = "accept.no_traces"
    NO_LOGS = "accept.no_logs"
    NO_EVALUATION = "accept.no_evaluation"
    NOT_IN_LOGS = "accept.not_in_logs"
    NOT_CAPTURED = "accept.not_captured"
    NO_SETTINGS = "accept.no_settings"
    NO_CONFIGS = "accept.no_configurations"
    RATE_ZERO = "accept.learning_rate_zero"
    RATE_NOT_ZERO = "accept.learning_rate_not_zero"
    RATE_NOT_LOGGED = "accept.learning_rate_not_logged"
    NO_NORM = "accept.no_gradient_norm"
    NO_FINITE = "accept.no_finite_loss"
    FROZEN_LOSS = "accept.frozen_loss"
    FROZEN_NORM = "accept.frozen_norm"
    SCORES = "accept.scores"
    SETTINGS = "accept.settings"
    SCHEDULES_DIFFER = "accept.schedules_differ"
    SCHEDULES_EQUAL = "accept.schedules_equal"
    NO_SCHEDULE = "accept.no_schedule"
    BY_FILES = "accept.proved_by_files"

    # expected, and where that comes from
    WITHIN_NOISE = "accept.within_noise"
    WITHIN_SPREAD = "accept.within_spread"
    NO_SETTING = "accept.no_setting_differs"
    EVERY_STEP = "accept.same_at_every_step"
    FROZEN_STEPS = "accept.every_step_below"
    ON_MEAN = "accept.on_the_mean"
    SCORE_LIMIT = "accept.score_limit"
    GUIDE = "accept.origin.guide"
    OF_STAGE = "accept.origin.stage"
    CHECKLIST = "accept.origin.checklist"
    FIRST_LOSS_RULE = "accept.origin.first_loss"
    NORM_RULE = "accept.origin.global_norm"
    REPEATS_RULE = "accept.origin.repeats"
    DOWNSTREAM_RULE = "accept.origin.downstream"

    # evidence
    FINDING = "accept.finding"
    LOSSES = "accept.losses"
    LARGEST = "accept.largest_at_step"
    OUTLYING = "accept.outlying_steps"
    LATE_GAP = "accept.late_gap_left"
    SUSPECT = "accept.suspect_setting"
    RECOMMENDATION = "accept.recommendation"
    NOT_FOLLOWED = "accept.not_followed"
    ALL_FOLLOWED = "accept.all_followed"
    WHY = "accept.why"
    WAIVED_BECAUSE = "accept.waived_because"
    WAIVE = "accept.waive"
    UNJUDGED = "accept.setting_without_a_rule"
    VALUES_DIFFER = "accept.values_differ"
    SAME_VALUE = "accept.same_value"
    WAIVE_SETTING = "accept.waive_setting"
    NEEDLESS_WAIVER = "accept.needless_waiver"
    NO_WAIVER = "accept.waiver_of_a_difference"
    ONE_FILE = "accept.one_configuration_file"
    NOT_COMPARED = "accept.setting_not_compared"
    AND_MORE = "accept.and_more"

    # scores
    BELOW_1_PERCENT = "accept.score.below_1_percent"
    NO_ERROR = "accept.score.no_standard_error"
    BEYOND = "accept.score.beyond_standard_errors"
    TOO_FEW_SAMPLES = "accept.score.too_few_samples"
    WITHIN = "accept.score.within_standard_error"
    OTHER_SETTINGS = "accept.score.other_settings"
    ONE_SIDED = "accept.score.one_sided"
    SCORE_NOT_FINITE = "accept.score.not_finite"

    # how to show it
    GIVE_TRACES = "accept.how.traces"
    GIVE_LOGS = "accept.how.logs"
    GIVE_FROZEN = "accept.how.learning_rate_0"
    GIVE_CONFIGS = "accept.how.configurations"
    GIVE_EVALUATIONS = "accept.how.evaluations"
    CAPTURE_TWO = "accept.how.two_steps"
    REPLAY = "accept.how.replay"
    OR_ASSUME = "accept.how.or_assume"
    WITH_NOTE = "accept.how.with_note"

    # by hand
    BY_HAND = "accept.by_hand"
    EXPANSION = "accept.scenario_expansion"
