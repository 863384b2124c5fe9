"""Codes of two reinforcement learning runs, along the pipeline from prompts to update."""

from trueup.types.codes.base import Code


class RLCode(Code):
    """What is concluded of recorded batches and losses. ``quantity`` is an array's or a loss's name."""

    AGREES = "rl.agrees"
    """every quantity of every step"""

    # any quantity
    EQUAL = "rl.bit_identical"
    WITHIN = "rl.within_rounding"
    IN_DOUBT = "rl.more_than_rounding"
    APART = "rl.differs_alone"
    """what it is made from agrees"""
    FOLLOWS = "rl.follows_from_earlier"
    FORMULA_HOLDS = "rl.formula_holds"
    FORMULA_FAILS = "rl.formula_fails"
    """not what the run's own numbers and settings give; no known variant does"""
    BOTH_FAIL = "rl.formula_fails_in_both"
    GIVEN_OTHER = "rl.loss_given_other"
    """a loss was given other numbers than the batch holds"""
    SETTING = "rl.setting_differs"
    NOT_RECORDED = "rl.not_recorded"
    NO_SHARED = "rl.no_shared_sequence"
    NOT_FINITE = "rl.not_finite"

    # prompts, rollout, rewards
    PROMPTS = "rl.prompts_differ"
    TRUNCATED = "rl.prompts_truncated"
    ROLLOUTS = "rl.rollouts_differ"
    """no fault by itself: what both runs give the same tokens is compared"""
    ROLLOUT_ALONE = "rl.rollout_alone_differs"
    """log-probs of the rollout differ where those of the trainer agree"""
    ENGINES = "rl.engines_apart"
    """rollout and trainer are further apart than in the reference"""
    REWARD_PLACE = "rl.reward_on_another_token"
    REWARD_ROWS = "rl.rewards_of_other_sequences"
    REWARD_LINE = "rl.reward_scaled"

    # what a model gave
    SHIFTED = "rl.shifted_by_one"
    STRETCHED = "rl.stretched"
    COPIED = "rl.copy_of"
    COARSE = "rl.coarser_dtype"
    STALE = "rl.not_of_this_policy"
    """old log-probs are not what the policy gives before its first update"""
    MASK_SHIFTED = "rl.mask_shifted"
    MASK = "rl.mask_differs"

    # advantages
    OVER_BATCH = "rl.normalised_over_batch"
    OVER_NEIGHBOURS = "rl.normalised_over_neighbours"
    WITHOUT_STD = "rl.not_divided_by_std"
    WITH_STD = "rl.divided_by_std"
    POPULATION_STD = "rl.population_std"
    NOT_WHITENED = "rl.not_whitened"
    OVER_PADDING = "rl.whitened_over_padding"
    GAMMA_LAM = "rl.gamma_lam"
    WITHOUT_KL = "rl.reward_without_kl"
    VALUES_SHIFTED = "rl.values_shifted"

    # losses
    AGGREGATED = "rl.aggregated_otherwise"
    LOCAL_COUNT = "rl.divided_by_microbatch_count"
    NOT_CLIPPED = "rl.not_clipped"
    SYMMETRIC_CLIP = "rl.clip_symmetric"
    NO_DUAL_CLIP = "rl.no_dual_clip"
    SIGN = "rl.sign"
    MASK_IGNORED = "rl.mask_ignored"
    MASK_MOVED = "rl.mask_moved"
    KL_KIND = "rl.kl_estimator"
    KL_SWAPPED = "rl.kl_swapped"
    TERM_SIGN = "rl.term_sign"
    TERM_MISSING = "rl.term_missing"
    TERM_FACTOR = "rl.term_coefficient"
    NOT_HALVED = "rl.value_loss_not_halved"
    OTHER_ROWS = "rl.other_mini_batches"
    """mini-batches hold other sequences: updates cannot be compared one by one"""
    UPDATE = "rl.update_differs"
    """the losses agree, what the policy gives after them does not"""
