"""Every constant that decides which kind of fault is named."""

from __future__ import annotations

from trueup.types.threshold import chosen, derived

# -- what a share of the difference amounts to ------------------------------------------

_SHARE = "of the difference explained"
FULL_SHARE = chosen(
    "kinds.full_share",
    0.95,
    _SHARE,
    "nineteen twentieths: what is left is of another order than what is explained",
)
MOST_SHARE = chosen(
    "kinds.most_share", 0.8, _SHARE, "four fifths: what is left is smaller than what is explained"
)
SOME_SHARE = chosen(
    "kinds.some_share",
    0.675,
    _SHARE,
    "two thirds: in residual streams, which resemble each other, false fits explain a good half",
)
NEGATED_SHARE = derived(
    "kinds.negated_share",
    0.75,
    _SHARE,
    "an unrelated target of the same norm, a zero and half of the signs turned explain less than 0.3",
)
ROUNDED_SHARE = derived(
    "kinds.rounded_share",
    0.25,
    "of the difference",
    "sqrt(1 - 0.25^2) > 0.96: what rounding may leave never makes up for a wrong hypothesis",
)
HIDDEN_SHARE = chosen(
    "kinds.hidden_share",
    0.75,
    _SHARE,
    "an effect below a coarse rounding begins at this share and grows with z",
)
FEW_NUMBERS = derived(
    "kinds.few_numbers",
    8,
    "numbers",
    "a fit of one factor to n numbers has a relative error of 1/sqrt(n): a third at 8",
)
FACTOR_ROWS = chosen(
    "kinds.factor_rows",
    64,
    "rows",
    "of a batch: one of more than 64 that is weighed otherwise leaves 1/8 of its own change in the whole",
)
MIN_NUMBERS = derived("kinds.min_numbers", 4, "numbers", "signs of three agree by chance once in 8")
MANY_NUMBERS = derived("kinds.many_numbers", 16, "numbers", "the shape of a distribution shows from here on")

# -- chance ------------------------------------------

_Z = "standard errors"
SIGNIFICANT_Z = derived(
    "kinds.significant_z",
    8.0,
    _Z,
    "of 64 candidates at 1,000 sites the largest is 4.5 standard errors by chance; rounding is not normal",
)
CERTAIN_Z = chosen("kinds.certain_z", 28.0, _Z, "3.5 times the significant effect")
CHANCE_Z = derived("kinds.chance_z", 5.0, _Z, "once in 1.7 million for one draw, which is what rates are")
ROW_EPS_Z = chosen(
    "kinds.row_eps_z",
    12.0,
    _Z,
    "errors of single rows are rough; another factor of the whole is tens of errors off in most rows",
)

SENT_LEAST = chosen(
    "kinds.sent_least",
    1e-4,
    "of the largest number that the loss sends back",
    "a position that counts gets 1 - p; only where p is 1 up to the dtype's smallest numbers does nothing "
    "arrive, and then the other run sends hardly more",
)
SMOOTHING_APART = chosen(
    "kinds.smoothing_apart",
    1e-3,
    "share of the label's weight",
    "a tenth of the least that labels are smoothed by; what the fit leaves is well below it",
)
Z_LOSS_APART = chosen(
    "kinds.z_loss_apart",
    1e-6,
    "coefficient",
    "a tenth of the least coefficient in use, 1e-5; what the fit leaves in float32 is well below it",
)
TEMPERATURE_APART = chosen(
    "kinds.temperature_apart",
    1e-2,
    "temperature",
    "a tenth of the least that samplers are set by; below it the gradient fits one without a temperature",
)

# -- roundings ------------------------------------------

_ROUNDINGS = "unit roundoffs"
CLOSE_ROUNDINGS = derived(
    "kinds.close_roundings", 8, _ROUNDINGS, "a product, a sum and a cast on either side, and two to spare"
)
LAW_ROWS = derived(
    "kinds.law_rows", 4, "rows", "a factor and a power take two; two more tell that they hold of all"
)
LAW_POWER = chosen("kinds.law_power", 4, "power", "programs weigh by squares, and by quotients of squares")
LAW_ROUNDINGS = derived(
    "kinds.law_roundings",
    2,
    _ROUNDINGS,
    "a row's factor is a mean over its numbers: one rounding of either side",
)
ROUNDINGS_APART = derived(
    "kinds.roundings_apart", 4, _ROUNDINGS, "norms of two values that were rounded twice"
)
SUMMED_ROUNDINGS = derived(
    "kinds.summed_roundings", 16, _ROUNDINGS, "a sum of many, in float32 in blocks of 16"
)
FAR_ROUNDINGS = derived("kinds.far_roundings", 64, _ROUNDINGS, "four such sums, one after the other")
FINEST_ROUNDOFF = derived(
    "kinds.finest_roundoff",
    1e-9,
    "relative",
    "where values are exact: well above the 1e-16 of our own float64",
)
FLOAT32_ROUNDOFF = derived("kinds.float32_roundoff", 1e-7, "relative", "2^-24 = 6e-8 and the statistics' own")
COARSE_ROUNDOFF = derived(
    "kinds.coarse_roundoff",
    1e-4,
    "relative",
    "between float16 (4.9e-4) and float32 (6e-8): the coarse ones hide faults",
)
LEAST_OF_ROUNDOFF = derived(
    "kinds.least_of_roundoff", 0.05, _ROUNDINGS, "one cast of one in 400 terms of equal size: 1/sqrt(400)"
)
MOST_OF_ROUNDOFF = derived(
    "kinds.most_of_roundoff", 4.0, _ROUNDINGS, "16 roundings of equal size, one after the other: sqrt(16)"
)
MOST_OF_ROUNDOFF_FLOAT32 = derived(
    "kinds.most_of_roundoff_float32", 64.0, _ROUNDINGS, "sums of 4,096 terms in another order: sqrt(4096)"
)
BIAS_OF_ERROR = derived(
    "kinds.bias_of_error",
    0.25,
    "of the error",
    "a rounded mean or sum of squares moves what it divides a little the same way; a scale is all of "
    "the error",
)
TOUCHED_SHARE = chosen(
    "kinds.touched_share",
    0.2,
    "of the elements",
    "one element in five: rounding to a coarser dtype touches nearly all",
)
WITHIN_SHARE = chosen(
    "kinds.within_share",
    0.57,
    "of the elements",
    "more than half: products of few terms stay within two roundings of their size in most elements",
)
GRID_SHARE = derived(
    "kinds.grid_share", 0.5, "of the elements", "float32 values lie on the grid of float16 once in 2^13"
)

# -- factors ------------------------------------------

NEAR_ONE = chosen("kinds.near_one", 0.01, "relative", "one per cent is no difference in a fitted constant")
FACTOR_NEAR_ONE = chosen(
    "kinds.factor_near_one", 0.02, "relative", "two per cent in a factor fitted to a difference"
)
SINGLE_NEAR_ONE = chosen(
    "kinds.single_near_one",
    1e-4,
    "relative",
    "one number fits every term with some factor: only an exact one or minus one says something",
)
FACTOR_ERRORS = derived("kinds.factor_errors", 4, _Z, "a known factor lies so near but once in 16,000")
FACTOR_AT_LEAST = derived(
    "kinds.factor_at_least", 2e-6, "relative", "32 roundings of float32: a factor applied to sums"
)
FACTOR_AT_MOST = derived("kinds.factor_at_most", 2e-2, "relative", "beyond two per cent 50 and 51 are one")
LEAST_SURPRISE = chosen(
    "kinds.least_surprise",
    0.5,
    "probability",
    "of all tokens of a batch one at least is not expected by half; a model that knows each of them is done",
)
MOST_SURPRISE = derived(
    "kinds.most_surprise", 1.02, "probability", "1 - p is 1 at most; gradients in bfloat16 are off by 2^-8"
)
USUAL_FACTORS = chosen("kinds.usual_factors", 10, "whole number", "factors that code holds as literals")
ALIKE_COSINE = chosen(
    "kinds.alike_cosine",
    0.995,
    "cosine",
    "tensors that share 0.995^2 = 0.99; successive residual streams differ more",
)
REPEATED_ROWS = derived("kinds.repeated_rows", 3, "rows", "the mean of two explains half of any difference")
UNRELATED = derived(
    "kinds.unrelated", 0.9, "relative l2", "unrelated tensors are sqrt(2) apart, zero is 1 apart"
)

# -- functions computed again ------------------------------------------

_RESIDUAL = "relative residual"
REPRODUCED = chosen(
    "kinds.reproduced",
    0.02,
    _RESIDUAL,
    "five roundings to bfloat16; another function is off by several times as much",
)
SOLVED_RESIDUAL = chosen(
    "kinds.solved_residual",
    0.05,
    _RESIDUAL,
    "a dozen roundings to bfloat16; another rule is off by several times as much",
)
CHANGE_LEAVES = chosen(
    "kinds.change_leaves",
    0.25,
    "of the difference",
    "what is left is at most a quarter: 0.94 of the squared difference is explained",
)
CHANGE_EXPLAINS = chosen(
    "kinds.change_explains",
    0.1,
    "of the difference",
    "what is left is at most a tenth: 0.99 of the squared difference is explained",
)
ANGLES_LEAVE = chosen(
    "kinds.angles_leave",
    0.6,
    "of the difference",
    "rounding is not reproduced bit by bit: a third of the direction is enough where no other change has any",
)
UNIT_CIRCLE = derived(
    "kinds.unit_circle",
    0.01,
    "of a cosine's square and a sine's",
    "both rounded to bfloat16 are off by 2^-8 of 1 together; other pairs of tables are no unit circle at all",
)
SOFTMAX_LEAVES = chosen(
    "kinds.softmax_leaves",
    0.75,
    "of the difference",
    "as for the angles, through one more rounding of the weights",
)
ROTATED_LENGTH = chosen(
    "kinds.rotated_length",
    0.1,
    "of the mean length",
    "shorter pairs have little direction besides their rounding",
)
SMALLEST_ANGLE = derived(
    "kinds.smallest_angle", 1e-6, "radians", "a few roundings of a float32 cosine's argument"
)
THETA_CURVE = chosen(
    "kinds.theta_curve",
    0.05,
    "in log angle",
    "five per cent of an angle: a table in bfloat16 bends by 0.4 per cent a rounding, a scaled one by more",
)
TABLE_ERROR = derived(
    "kinds.table_error",
    1e-3,
    "absolute",
    "cos 0 = 1 and sin 0 = 0 are exact; half of bfloat16's 2^-8 is allowed to cast tables: 2^-10",
)
ACTIVATION_RESIDUAL = derived(
    "kinds.activation_residual", 2e-6, _RESIDUAL, "float32 at work: 32 unit roundoffs"
)
SMALLEST_PROBABILITY = derived(
    "kinds.smallest_probability",
    1e-12,
    "probability",
    "2^-40: float32 sums of probabilities have lost such a term long before",
)
DROPOUT_SCALE = derived(
    "kinds.dropout_scale",
    0.2,
    "relative",
    "1 / (1 - p) against a rate counted in 32 elements, whose standard error at p = 0.1 is 0.05, four times",
)
APPLIED_ROUNDINGS = derived(
    "kinds.applied_roundings",
    8.0,
    "roundings of the larger of argument and result",
    "an activation function is made of up to eight operations",
)
DRAWN_VALUES = derived("kinds.drawn_values", 32, "elements", "a rate of 0.1 is seen at all in 32 elements")
LEAST_OF_SPREAD = derived(
    "kinds.least_of_spread",
    2.0**-6,
    "standard deviations",
    "less is float32's rounding of a loss in bfloat16",
)
MOST_OF_SPREAD = derived(
    "kinds.most_of_spread", 4.0, "standard deviations", "rounding gives more once in 16,000"
)

# -- updates ------------------------------------------

SETTINGS_EQUAL = derived(
    "kinds.settings_equal", 1e-9, "relative", "a setting written and read as decimal text"
)
SOLVED_APART = chosen(
    "kinds.solved_apart",
    1e-3,
    "relative",
    "a thousandth: settings that differ by less are written with four digits",
)
BETA_APART = chosen(
    "kinds.beta_apart", 2e-3, "of 1 - beta", "two thousandths of what a moment forgets a step"
)
UNCHANGED_SHARE = chosen(
    "kinds.unchanged_share",
    0.1,
    "of the elements",
    "one in ten: float32 keeps the bits of an element through an update of usual size in a few of a thousand",
)

# -- places, order, range ------------------------------------------

_ELEMENTS = "of the elements"
HARDLY = chosen("kinds.hardly", 0.1, "of the rows", "one row in ten")
MOSTLY = chosen("kinds.mostly", 0.9, _ELEMENTS, "nine elements in ten")
NEARLY = chosen("kinds.nearly", 0.99, _ELEMENTS, "99 in a hundred: some rounding at borders")
NEARLY_ALL = chosen("kinds.nearly_all", 0.999, _ELEMENTS, "999 in a thousand")
UNEVEN_PLACES = chosen(
    "kinds.uneven_places", 0.02, "of a pattern's places", "a mask is the same in 98 of 100 samples"
)
MORE_THAN_IN_PLACE = chosen(
    "kinds.more_than_in_place",
    0.3,
    _ELEMENTS,
    "three in ten more than agree in place, where repeating labels agree as well",
)
EQUAL_STATISTICS = derived(
    "kinds.equal_statistics",
    1e-10,
    "of the norm",
    "float64 sums of a million numbers in another order: sqrt(1e6) * 1e-16 * 1,000 to spare",
)
DISTINCT_NUMBERS = chosen(
    "kinds.distinct_numbers",
    64,
    "numbers",
    "fewer distinct numbers are a small vocabulary, whose samples agree by chance",
)
RECIPE_FITS = derived(
    "kinds.recipe_fits",
    1.0,
    "unit roundoffs",
    "a result that is rounded once leaves 0.6 of one at most, 0.3 on average; tensor cores' sums a fraction",
)
RECIPE_OTHERS = derived(
    "kinds.recipe_others",
    1.5,
    "times what the best recipe leaves",
    "of 8,000 results what is left is known to a hundredth; int8 doubles it at least, float8 is ten times it",
)
FORM_LEAVES = chosen(
    "kinds.form_leaves",
    1.5,
    "times what the best form leaves",
    "another direction adds its own square: 1.5 is an error as large as rounding's own beside it",
)
EXACT_SHARE = derived(
    "kinds.exact_share",
    0.98,
    _ELEMENTS,
    "float32 and float64 round an element to two numbers of float16 once in 1,000, of bfloat16 in 10,000",
)
EXACT_TIE = chosen(
    "kinds.exact_tie",
    0.002,
    _ELEMENTS,
    "of 32 rows of 128 numbers 8: an eps off by a hundredth of a rounding moves more, chance fewer",
)
CHANCE_NUMBER = chosen(
    "kinds.chance_number",
    0.25,
    "chance",
    "that a number made elsewhere is among a tensor's: with more than 99 in 100 found, never 1 in 4 for each",
)
FLIPPED_ELEMENTS = chosen(
    "kinds.flipped_elements",
    4,
    "elements",
    "a few: flips that follow from one another are near each other and few",
)
ROUNDING_BITS = derived("kinds.rounding_bits", 3, "bits", "what roundings change: 8 steps of the last place")
LOST_WIDELY = chosen(
    "kinds.lost_widely", 0.02, _ELEMENTS, "one in fifty: fewer zeros are there by chance in sparse tensors"
)
NEAR_SMALLEST = derived(
    "kinds.near_smallest",
    8,
    "times",
    "of four lost values spread evenly the largest is below an eighth of the limit once in 4,096",
)
AS_ITS_REPEAT = chosen(
    "kinds.as_its_repeat",
    1.5,
    "of the repeat's difference",
    "half as much again as between two plain repeats",
)
REPEATS_AT_MOST = chosen(
    "kinds.repeats_at_most",
    3.0,
    "of the repeat's difference",
    "three times what two plain repeats differ by: the largest of many repeats",
)

# -- limits of work: they decide how much is looked at, not what it means ------------------------------------

PROBED_INDICES = 64
"""of every other dimension, looked at first"""
PROBED_VALUES = 1 << 12
"""of a vector, looked at first"""
PROBED_LARGE = 1 << 14
"""values above which a first look is taken"""
PROBED_LAYOUT = 512
SAMPLED_VALUES = 1 << 16
FITTED_ROWS = 4096
SOURCE_SAMPLE = DISTINCT_SAMPLE = 4096
RUN_LENGTH = 8
"""neighbors taken together: of a dtype with 128 numbers between 1 and 2, none of a million runs by chance"""
MAX_SOURCE = 1 << 20
REPRODUCED_EXACTLY = 1e-4
"""relative residual from which no better way is searched for"""
