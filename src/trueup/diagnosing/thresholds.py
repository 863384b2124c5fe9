"""Every constant that decides what stages and replays conclude; `kinds.thresholds` has those of kinds."""

from __future__ import annotations

from trueup.types.threshold import chosen, derived

FEW_INDICES = chosen(
    "diagnosing.few_indices",
    0.25,
    "of a dimension",
    "what most of a dimension shows is no matter of places in it",
)

NORMALISED = chosen(
    "diagnosing.normalised",
    1e-3,
    "of a deviation of 1",
    "programs add up to 1e-4 to a deviation before they divide by it, and the rest is rounding; the means of "
    "unrelated parts of n numbers are 1/sqrt(n) apart",
)

# -- what an optimizer did ------------------------------------------

_ERRORS = "estimated errors"
_RELATIVE = "relative difference"
PARALLEL = derived(
    "diagnosing.parallel",
    1e-6,
    "sine squared of an angle",
    "a thousandth of a right angle: two coefficients then share the errors of float32 a thousandfold",
)
APART_ERRORS = chosen("diagnosing.apart_errors", 4, _ERRORS, "errors of the fit are estimates themselves")
APART_AT_LEAST = chosen(
    "diagnosing.apart_at_least", 1e-3, _RELATIVE, "a thousandth counts as no difference in a fitted constant"
)
COUPLED_REST = chosen(
    "diagnosing.coupled_rest",
    1e-4,
    "of the moment",
    "a moment in float32 is explained to 1e-7; a coarser one as far as its own roundoff goes",
)
COUPLED_SHARE = chosen(
    "diagnosing.coupled_share", 1e-4, "of the moment", "decay that is less than what may be left over is none"
)
COUPLED_ROUNDINGS = chosen(
    "diagnosing.coupled_roundings",
    4.0,
    "roundoffs of the moment",
    "gradient, sum and moment are rounded once each: a pull of the weights of four times that is no rounding",
)
BETA_KNOWN = chosen(
    "diagnosing.beta_known",
    0.1,
    "of the distance from 1",
    "the correction divides by 1 - beta**t, or by its root: a tenth moves the rate by a tenth at most, and "
    "rates of corrected and uncorrected moments are a factor of 1.4 and more apart in the first steps",
)
MOMENT_REST = chosen(
    "diagnosing.moment_rest",
    1e-4,
    "of the moment",
    "what gradient and earlier moment may leave before the weights are tried as well",
)
FIT_ROUNDOFF = derived(
    "diagnosing.fit_roundoff",
    2e-7,
    "relative",
    "three roundings of float32 (6e-8 each): of a moment, its root and their quotient",
)
UNKNOWN_ROUNDOFF = derived(
    "diagnosing.unknown_roundoff", 6e-8, "relative", "2^-24: numbers without a dtype are taken for float32"
)
LOSS_FORM_RESIDUAL = chosen(
    "diagnosing.loss_form_residual",
    0.02,
    "of the gradient",
    "five roundings to bfloat16, in which logits and gradient may be kept; another function leaves more",
)
SOLVED_Z = chosen(
    "diagnosing.solved_z",
    6.0,
    "standard errors",
    "one more than for chance: errors of the solution are estimates themselves",
)
LOSS_FORM_BETTER = chosen(
    "diagnosing.loss_form_better",
    0.25,
    "of what another form leaves",
    "what is left is at most a quarter: of roundings alone both leave the same",
)
EPS_FEWEST = chosen(
    "diagnosing.eps_fewest", 8, "elements", "eps is a median over them: three of eight may be off"
)
EPS_SHARE = chosen(
    "diagnosing.eps_share", 0.02, "of the elements", "a fiftieth, in which eps matters most against rounding"
)
EPS_APART = chosen(
    "diagnosing.eps_apart", 0.3, _RELATIVE, "a third: other settings of eps are powers of ten apart"
)
GAP_ERRORS = chosen(
    "diagnosing.gap_errors", 10, _ERRORS, "of settings that rounding hides most: eps and decay"
)
DECAY_APART = chosen(
    "diagnosing.decay_apart", 5e-3, _RELATIVE, "half a percent of a decay changes no training"
)
DECAY_ORDER_NEAR = chosen(
    "diagnosing.decay_order_near",
    0.25,
    "of rate times decay",
    "a quarter on either side: what is fitted is 0 or 1 of it, and eps in another place leaves a tenth",
)
DECAY_LEAST = chosen(
    "diagnosing.decay_least", 1e-4, "weight decay", "a hundredth of the smallest that is in use, 0.01"
)
DECAY_ZERO = chosen(
    "diagnosing.decay_zero", 1e-3, "weight decay", "a tenth of the smallest that is in use, 0.01, is none"
)
IMPRECISE_FIT = chosen(
    "diagnosing.imprecise_fit",
    0.05,
    "of the update",
    "a fit that leaves a twentieth says nothing of constants",
)
UPDATE_REST = chosen(
    "diagnosing.update_rest", 1e-3, "of the update", "the declared eps explains it: no other one is tried"
)
CORRECTION_APART = chosen(
    "diagnosing.correction_apart",
    0.02,
    "of the learning rate",
    "corrected and uncorrected moments give one rate after some hundred steps: then neither is told",
)
PRECISION_FEWEST = derived(
    "diagnosing.precision_fewest",
    8,
    "numbers",
    "16 low bits are 0 by chance once in 65,536 for each; constants such as 1 and 0.5 always",
)
START_ERRORS = chosen(
    "diagnosing.start_errors",
    4,
    _ERRORS,
    "of the share of a rounding in an update, as of other fitted constants",
)
START_NEAR = chosen(
    "diagnosing.start_near",
    0.1,
    "of a rounding",
    "1 less the decay of one step, rate times weight decay, seldom above 0.01; kept masters have 0",
)
START_APART = derived(
    "diagnosing.start_apart",
    2,
    "roundoffs of the working copy",
    "a master is half a spacing from its copy, at most one roundoff; twice that for what the direction of an "
    "update with eps leaves",
)
START_ABOVE_EPS = chosen(
    "diagnosing.start_above_eps",
    1000,
    "times eps",
    "an update is a hundredth of a weight at most in most trainings: a thousandth of it is below a roundoff "
    "of 16 bits",
)
START_COPIED = chosen(
    "diagnosing.start_copied",
    0.05,
    "roundoffs of the working copy",
    "what eps and a float32 update leave of a master that was the copy: 2e-8 to 3e-3 seen",
)
START_ROUNDED = derived(
    "diagnosing.start_rounded",
    0.2,
    "roundoffs of the working copy",
    "rounding takes the root of a third of a roundoff over the mantissa, 0.29 to 0.58 of one",
)
UPDATE_ROUNDINGS = derived(
    "diagnosing.update_roundings", 4, "unit roundoffs", "of a weight, its decay, its update and their sum"
)
UPDATE_APART = chosen(
    "diagnosing.update_apart", 1e-4, "of the update", "the moments' own roundings: 1,600 of float32"
)
MOVE_TAKEN_BACK = derived(
    "diagnosing.move_taken_back", 0.5, "of a move", "half way between where it began and where it ended"
)
MOVE_WHOLE = chosen("diagnosing.move_whole", 0.1, _RELATIVE, "a tenth more or less of a move is the whole")
UPDATE_SHARE = chosen(
    "diagnosing.update_share", 0.999, "of the elements", "one in a thousand may have a moment near 0"
)

# -- replays ------------------------------------------

NOISE_FACTOR = chosen(
    "diagnosing.noise_factor", 3.0, "times the noise", "the largest difference of a benign variant, threefold"
)
BOUND_SHARE = chosen(
    "diagnosing.bound_share",
    0.25,
    "of the dtype bound",
    "allowed even where a benign variant shows less: another kernel rounds elsewhere",
)
BIAS_Z = chosen(
    "diagnosing.bias_z",
    8.0,
    "standard errors",
    "as the significant effect of kinds: the largest of thousands of records is 4.5 by chance",
)
BIAS_NOISE_FACTOR = chosen(
    "diagnosing.bias_noise_factor", 4.0, "times the noise", "one more than of sizes: a bias is one number"
)
BIAS_ROUNDOFFS = chosen(
    "diagnosing.bias_roundoffs", 1 / 64, "unit roundoffs", "a nearer scale is nothing to act on"
)
BIAS_FLOAT32 = derived(
    "diagnosing.bias_float32",
    8,
    "unit roundoffs",
    "of the finest dtypes, for which a constant rounded to float32 is too wide",
)
LONE_SCORE = chosen(
    "diagnosing.lone_score", 10.0, "times what is allowed", "however many agree: no more than a clear error"
)
TRACE_BIAS_Z = chosen(
    "diagnosing.trace_bias_z", 6.0, "standard errors", "a bias of that size counts as once the tolerance"
)
FAR_BEYOND = chosen(
    "diagnosing.far_beyond",
    10.0,
    "times what is allowed",
    "from there on equal inputs leave no doubt of the place: a tenth of it may be rounding",
)
FAR_LATER = chosen(
    "diagnosing.far_later",
    3.0,
    "times what is allowed",
    "of a later step alone: what earlier steps left may be off by that much",
)
SENT_BACK_APART = chosen(
    "diagnosing.sent_back_apart",
    1e-3,
    "of what a factor changes",
    "a gradient of float32 that is a multiple of another leaves a millionth; terms of a loss share no factor",
)
AGAINST_AGREEMENT = chosen(
    "diagnosing.against_agreement",
    2.0,
    "times what one call is allowed",
    "another kernel rounds in other places, twice as often (comparing.across); only where reruns of the "
    "reference explain all that the free runs show",
)
_ORDER = "orders origins of one stage; only that replay > equal inputs > noise > bound matters"
MOST_BY_REPLAY = chosen("diagnosing.most_by_replay", 0.99, "rank", _ORDER)
MOST_BY_INPUTS = chosen("diagnosing.most_by_inputs", 0.85, "rank", _ORDER)
MOST_BY_NOISE = chosen("diagnosing.most_by_noise", 0.75, "rank", _ORDER)
MOST_BY_BOUND = chosen("diagnosing.most_by_bound", 0.6, "rank", _ORDER)
OTHER_WEIGHTS = chosen(
    "diagnosing.other_weights",
    0.1,
    _RELATIVE,
    "initial weights of another seed are sqrt(2) apart, perturbed ones a rounding",
)

# -- sums and clipping of gradients ------------------------------------------

_LEFT = "of the gradient left over"
SUM_HOLDS = derived(
    "diagnosing.sum_holds",
    1e-3,
    _LEFT,
    "sums and sketches in float32 leave 1e-6 or less, one rounding of a sum to bfloat16 2e-3",
)
SUM_UNLIKE = chosen("diagnosing.sum_unlike", 10, "times what a sum may leave over", "no factor at all")
SUM_EXPLAINED = chosen(
    "diagnosing.sum_explained", 0.02, _LEFT, "a sum that went through bfloat16 a few times leaves less"
)
SUM_CHANGED = chosen("diagnosing.sum_changed", 0.01, _LEFT, "a hundredth, where the reference leaves little")
SUM_WORSE = chosen(
    "diagnosing.sum_worse", 10, "times what the reference leaves over", "an order of magnitude"
)
ROUNDED_TIMES = chosen(
    "diagnosing.rounded_times",
    30,
    "times what the reference leaves over",
    "between float32 and bfloat16 lie 65,536, between two reductions in bfloat16 a few",
)
ROUNDED_LEAST = derived(
    "diagnosing.rounded_least",
    2e-4,
    _LEFT,
    "one rounding to float16 leaves 2^-11 / sqrt(3) = 2.8e-4, one to bfloat16 eight times that",
)
SAME_FACTOR = chosen(
    "diagnosing.same_factor",
    2e-3,
    _RELATIVE,
    "half a rounding of bfloat16; numbers of processes differ by 1/64 and more up to 64",
)
FACTOR_KNOWN = derived(
    "diagnosing.factor_known",
    4.0,
    "times what both sums leave unexplained",
    "of a gradient that a few large elements make, the error along it is as large as the one across it, "
    "which is what is left: of two directions alike it is more than 4 times that in one of six, of three in "
    "one of thirty",
)
CLIP_EXACT = derived(
    "diagnosing.clip_exact",
    1e-5,
    _RELATIVE,
    "factors of sketches, which hold float32: 168 roundings",
)
CLIP_NEAR = chosen(
    "diagnosing.clip_near", 1e-3, _RELATIVE, "two norms were clipped to one limit, or two factors"
)
SAME_NORM = chosen("diagnosing.same_norm", 1e-4, _RELATIVE, "one norm, summed over parts in another order")
AT_TOP = derived(
    "diagnosing.at_top", 1e-6, _RELATIVE, "elements cut at one value hold that value; 17 roundings of float32"
)

# -- weights ------------------------------------------

WEIGHT_EXACT = derived(
    "diagnosing.weight_exact", 1e-6, _RELATIVE, "one value in two float32 files; 17 roundings"
)
WEIGHT_FACTOR_REST = derived(
    "diagnosing.weight_factor_rest", 1e-5, "of the weight", "a product in float32 leaves 6e-8 of it"
)
CAST_ROUNDINGS = derived(
    "diagnosing.cast_roundings",
    1.01,
    "unit roundoffs",
    "a cast is off by one at most, and ours is in float64",
)
WEIGHT_ALIKE = chosen(
    "diagnosing.weight_alike",
    0.9,
    "correlation",
    "two draws of n numbers correlate by 1/sqrt(n); weights of another training step by nearly 1",
)
CONSTANT_START = chosen(
    "diagnosing.constant_start",
    0.1,
    "of the mean",
    "norm weights begin at one number and keep within some per cent of it; draws are spread around 0",
)
DRAW_SPREAD = chosen(
    "diagnosing.draw_spread", 0.1, _RELATIVE, "other rules of initialising differ by sqrt(2) and more"
)
DRAW_ERRORS = derived(
    "diagnosing.draw_errors", 4, "standard errors", "a spread of n numbers is known to 1/sqrt(2n) of itself"
)
SAMPLES_FEWEST = chosen(
    "diagnosing.samples_fewest",
    4,
    "samples",
    "that B are each most like their own has the chance 1/B^B: a quarter for 2, less than 1/200 for 4",
)
STALE_FEWEST = chosen(
    "diagnosing.stale_fewest",
    8,
    "elements",
    "parts that are not passed on are rows and shards; single updates of exactly zero come by chance",
)
STALE_SHARE = chosen(
    "diagnosing.stale_share", 0.9, "of the elements that differ", "nine in ten are those of the step before"
)
STALE_CHANGE = chosen(
    "diagnosing.stale_change", 1e-3, "of the largest change", "elements nearer than that do not differ"
)

# -- batches ------------------------------------------

BATCH_SHARE = chosen(
    "diagnosing.batch_share", 0.98, "of the tokens", "packed sequences break a shift at their seams"
)
SCALED_ROUNDINGS = derived(
    "diagnosing.scaled_roundings",
    4.0,
    "roundings of the largest value",
    "a product and a sum round once each, on either side",
)
STREAM_FEWEST = chosen(
    "diagnosing.stream_fewest", 16, "tokens", "short streams agree by chance where padding repeats"
)
ROW_CHANCE = chosen(
    "diagnosing.row_chance",
    0.01,
    "rows that chance would find",
    "short rows of few different ids, such as labels of classes, are everywhere",
)
MAPPED_MOST = chosen("diagnosing.mapped_most", 4, "pairs of ids", "special tokens: pad, bos, eos and unk")
MAPPED_SHARE = chosen(
    "diagnosing.mapped_share", 0.5, "of the tokens", "of more than half no id stands for another: other text"
)
