"""Codes of the migration accuracy standard: what was measured, thresholds and their origin, notes."""

from trueup.types.codes.base import Code


class CriterionCode(Code):
    """Lines of the standard, its preconditions and its default configuration."""

    ADVISORY = "criterion.advisory"
    TITLE = "criterion.title"

    # measured
    ABS_AND_REL = "criterion.absolute_and_relative"
    RELATIVE = "criterion.relative"
    COUNT = "criterion.count"
    STEPS = "criterion.steps"
    NOT_LOGGED = "criterion.not_logged"

    # expected
    BELOW_EITHER = "criterion.below_either"
    AT_MOST = "criterion.at_most"
    AT_LEAST = "criterion.at_least"
    ENOUGH_STEPS = "criterion.enough_steps"
    THE_SAME = "criterion.the_same"
    OFF = "criterion.off"

    # where a threshold comes from
    STANDARD = "criterion.origin.standard"
    RELAXED = "criterion.origin.relaxed"
    OF_TRUEUP = "criterion.origin.trueup"

    # notes
    FEWER_THAN_DEFAULT = "criterion.note.fewer_than_default"
    TOO_FEW = "criterion.note.too_few_steps"
    EACH_STEP = "criterion.note.each_step_judged"
    NO_REPEATS = "criterion.note.no_repeats"
    SAME_REPEATS = "criterion.note.same_repeats"
    ROUGH = "criterion.note.rough_reference"
    NO_LOSS = "criterion.note.no_loss"
    BOTH_LOSSES = "criterion.note.both_losses"
    LOST_LOSSES = "criterion.note.lost_losses"
    WIDE_REPEATS = "criterion.note.wide_repeats"
    INDICATOR = "criterion.note.indicator"

    # preconditions
    STATED = "criterion.proof.stated"
    STATED_ONLY = "criterion.proof.stated_only"
    UNPROVED = "criterion.proof.missing"
    GIVE_TRACES = "criterion.proof.give_traces"
    TENSORS_EQUAL = "criterion.proof.tensors_equal"
    EQUAL_IN_SUM = "criterion.proof.equal_in_sum"
    SOME_TENSORS = "criterion.proof.some_tensors_equal"
    BY_CONTENT = "criterion.proof.by_content"
    CUT_DIFFERENTLY = "criterion.proof.by_sum_of_content"
    COMPARE_WEIGHTS = "criterion.proof.compare_weights"
    SETTINGS_EQUAL = "criterion.proof.settings_equal"
    SETTINGS_DIFFER = "criterion.proof.settings_differ"
    COMPARED_SETTINGS = "criterion.proof.compared_settings"
    CHECK_CONFIGS = "criterion.proof.check_configs"
    NOT_DETERMINISTIC = "criterion.proof.not_deterministic"
    CAPTURE_DETERMINISTIC = "criterion.proof.capture_deterministic"
    DROPOUT_ON = "criterion.proof.dropout_on"
    DROPOUT_OFF = "criterion.proof.set_dropout_0"
    DETERMINISTIC = "criterion.proof.deterministic"
    FROM_TRACES = "criterion.proof.from_traces"
    BATCHES_EQUAL = "criterion.proof.batches_equal"
    BY_DIGEST = "criterion.proof.by_digest"
    BATCHES_DIFFER = "criterion.proof.batches_differ"
    DIAGNOSE = "criterion.proof.diagnose"

    # the standard's default configuration
    CONDITION = "criterion.condition"
    DEFAULT = "criterion.condition.default"
    UNKNOWN = "criterion.condition.unknown"
    AS_STATED = "criterion.condition.stated"
    PROCESSES = "criterion.condition.processes"
    DETERMINISM = "criterion.condition.determinism"
    DTYPE = "criterion.condition.dtype"
    AXES = "criterion.condition.axes"
