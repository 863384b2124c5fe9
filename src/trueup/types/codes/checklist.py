"""Codes of the checklist of configurations; the texts of its rules are in checklist/rules/*.yaml."""

from trueup.types.codes.base import Code


class ChecklistCode(Code):
    """Why a row has its status, and what versions belong together."""

    # headlines
    TWO_PARTS = "checklist.two_parts"
    ALL_MET = "checklist.recommendations_met"
    LIMITED_MET = "checklist.recommendations_met_as_far_as_checked"
    UNMET = "checklist.recommendations_unmet"
    NOTES_UNMET = "checklist.suggestions_unmet"
    NOT_ASKED = "checklist.recommendations_off"
    OTHER_TRAINING = "checklist.other_training"
    OTHER_NUMBERS = "checklist.other_numbers"
    RATES_DIFFER = "checklist.learning_rates_differ"
    OPEN = "checklist.not_compared"
    NOT_JUDGED = "checklist.not_judged"
    LIMITED_SAME = "checklist.same_as_far_as_checked"
    SAME_TRAINING = "checklist.same_training"
    SAME_ENVIRONMENT = "checklist.same_environment"
    NOTHING_READ = "checklist.nothing_read"

    # rows
    BY_HAND = "checklist.by_hand"
    BROKEN = "checklist.condition_broken"
    UNREADABLE = "checklist.unreadable"
    NOT_CONFIGURABLE = "checklist.not_configurable"
    DEFAULT = "checklist.default_of"
    SIDES = "checklist.both_sides"
    SAME_EFFECT = "checklist.same_effect"
    OTHER_EFFECT = "checklist.other_effect"
    NOT_SET = "checklist.not_set"
    FOLLOWS = "checklist.follows"
    SUSPECTS = "checklist.suspects"

    # recommendations
    WANTED = "checklist.recommended.value"
    WANTED_ON = "checklist.recommended.on"
    WANTED_OFF = "checklist.recommended.off"
    WANTED_WORDS = "checklist.recommended.words"
    SAME_ON_BOTH = "checklist.recommended.same_on_both"
    PUBLISHED_TOGETHER = "checklist.recommended.published_together"

    # ids of the data, templates
    IDS_BEYOND = "checklist.data.ids_beyond"
    WITHIN_VOCABULARY = "checklist.data.within_vocabulary"
    DATA_ID = "checklist.data.special_id"
    UNKNOWN_IDS = "checklist.data.unknown_ids"
    NO_SUCH_LABEL = "checklist.data.no_such_label"
    IGNORED_LABELS = "checklist.data.ignored_labels"
    NONE_IN_SAMPLE = "checklist.data.none_in_sample"
    ANOTHER_TOKENIZER = "checklist.data.another_tokenizer"
    INFERENCE_TEMPLATE = "checklist.inference_template"

    ONE_SET = "checklist.versions.one_set"
    UNKNOWN_VERSIONS = "checklist.versions.unknown"
    NO_SET = "checklist.versions.no_set"
