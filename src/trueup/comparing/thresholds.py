"""Every constant that decides what a comparison concludes."""

from __future__ import annotations

from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import SKETCH_SIZE
from trueup.types.threshold import chosen, derived, measured

FLOAT32 = DTYPES["float32"].eps
_NOISE_PAIRS = (
    "30 pairs that differ by rounding stay below 0.71 of the bound, faults score 12 and more (0002)"
)

# -- rounding bound ------------------------------------------

_ROUNDINGS = "unit roundoffs"
FACTORS = {
    "param": measured("comparing.factor_param", 2.0, _ROUNDINGS, _NOISE_PAIRS),
    "forward": measured("comparing.factor_forward", 4.0, _ROUNDINGS, _NOISE_PAIRS),
    "loss": measured("comparing.factor_loss", 4.0, _ROUNDINGS, _NOISE_PAIRS),
    "backward": measured("comparing.factor_backward", 8.0, _ROUNDINGS, _NOISE_PAIRS),
    "param_grad": measured("comparing.factor_param_grad", 10.0, _ROUNDINGS, _NOISE_PAIRS),
    "collective": measured("comparing.factor_collective", 10.0, _ROUNDINGS, _NOISE_PAIRS),
    "optimizer": measured("comparing.factor_optimizer", 4.0, _ROUNDINGS, _NOISE_PAIRS),
}
"""k by phase"""
ACROSS = chosen(
    "comparing.across",
    2.0,
    "times the tolerance",
    "two implementations round in other places, not only in another order: twice as many roundings; and "
    "their exp and log err otherwise (MindSpore 2.10 in float32 on a CPU: 10 and 3 roundoffs low), which "
    "puts a cross-entropy at 1.2 times the tolerance of one program",
)
MEAN_ROUNDINGS = derived(
    "comparing.mean_roundings",
    8.0,
    "unit roundoffs over sqrt(tokens)",
    "parts of tokens, each off by u / sqrt(3) of up to twice their mean, make 1.2: seven times that",
)
ALIKE_ROWS = measured(
    "comparing.alike_rows",
    2.0,
    "times the tolerance",
    "labels smoothed by other calls, in float32: 1.04 to 1.36 times what reruns allow for the gradients of "
    "norms and biases (0078)",
)
UNCOUNTED = derived(
    "comparing.uncounted",
    0.1,
    "of a row's share of the gradient's norm",
    "a label that counts changes the gradient of n rows by at least 1 / sqrt(n) of its norm: a tenth of that",
)
MASKED_BELOW = derived(
    "comparing.masked_below",
    -1e4,
    "score",
    "its exponential is 0 in every dtype, and float16, which ends at -65504, holds it",
)
UNFELT = derived(
    "comparing.unfelt",
    100.0,
    "times the tolerance of weight gradients",
    "what goes into a product with a weight is a factor of its gradient, so a use of it leaves all of the "
    "difference there, and one path of a hundred alike a hundredth",
)
BUFFER_APART = chosen(
    "comparing.buffer_apart",
    0.01,
    "of the norm",
    "running statistics average activations that agree: to 1e-3 in bfloat16, to 1e-6 in float32",
)
SAME_NORM = derived(
    "comparing.same_norm",
    1e-5,
    "relative difference",
    "one tensor's norm, summed in float32 in another order: 6e-8 a rounding, fewer than 100 of them",
)
BUFFER_APART_OF_EQUAL = chosen(
    "comparing.buffer_apart_of_equal",
    3e-5,
    "of the norm, float32, where all records are bit-identical",
    "a variance from squares loses u mean^2 / var: 3e-5 where that is 250; Bessel's factor of a half of 512 "
    "values for all moves a running variance by 2e-4",
)
AVERAGE_ROUNDINGS = derived(
    "comparing.average_roundings",
    4.0,
    "unit roundoffs of the averaged weights",
    "d a, (1 - d) w and their sum round once each, or the difference of a lerp, its product and the sum, and "
    "the factor itself: at most 3 to 4, each half a step; two runs differ by less, as no two round all apart",
)
MASTER_UPDATE = measured(
    "comparing.master_update",
    1e-3,
    "of the update of master weights",
    "an update written in two ways (fused, divided or summed in another order) differs beyond the rounding "
    "of the sum by 1e-6 of itself at most; sums in bfloat16 or another decay by 0.03 and more (0066)",
)
MASTER_FIT_REST = chosen(
    "comparing.master_fit_rest",
    0.02,
    "of what updates of master weights differ by",
    "one factor, or one share of the weights, explains the difference of all tensors; roundings of the sums "
    "leave 4 unit roundoffs of the weights, a hundredth of an update by a thousandth of them",
)
AVERAGE_SHARE = derived(
    "comparing.average_share",
    2.0,
    "times the share by which an average moves to the weights after an update",
    "where it averages before the update it moves to weights that are nearer: over two steps of one length "
    "half as far",
)
AVERAGE_CLEAR = chosen(
    "comparing.average_told",
    2.0,
    "times the error of a fit, the largest that its rounding allows",
    "that error is a bound and not a deviation: roundings of single elements, which have no common "
    "direction, make a small part of it",
)
API_CALLS_PER_LEAF = chosen(
    "comparing.api_calls_per_leaf",
    8,
    "API calls",
    "set by hand, where a trace holds no module calls: a leaf module makes a few calls, attention more",
)
ROWS_PER_ROUNDING = measured(
    "comparing.rows_per_rounding",
    64.0,
    "rows",
    "gradients of biases were measured at 0.36 u sqrt(rows); with factor 10 the bound is 1.25 u sqrt(rows)",
)
LENGTH_PER_ROUNDING = chosen(
    "comparing.length_per_rounding",
    256.0,
    "terms of a dot product",
    "set by hand: kernels add in blocks, and the blocks' sums one after another",
)
MULTIPLE_APART = derived(
    "comparing.multiple_apart",
    2.0**-7,
    "relative difference",
    "a multiplication rounds once in bfloat16, 2^-8; a quotient of two such numbers is off by two roundings",
)
TF32 = derived(
    "comparing.tf32",
    2.0**-11,
    "unit roundoff",
    "TF32 keeps 10 bits of a float32 operand's mantissa: half of 2^-10; not measured on a device",
)
CHANNEL_PER_ROUNDING = measured(
    "comparing.channel_per_rounding",
    16.0,
    "terms of a channel's statistics, or of a convolution's gradient",
    "tests/comparing/test_channel_sums.py: batch norms of channels-last tensors add one after another and "
    "are off by at most the root of n roundoffs, from 256 to 200,704 terms; k = 4 times the root of n / 16; "
    "gradients of convolutions by at most 0.43 of that root",
)
DTYPES_APART = chosen(
    "comparing.dtypes_apart",
    0.2,
    "of the records",
    "one in five: from there on two precisions are compared on purpose",
)
SUM_ROUNDINGS = measured(
    "comparing.sum_roundings",
    8.0,
    _ROUNDINGS,
    "a float32 norm, element after element, is off by a few up to 1e5 elements (test_metrics)",
)
SUM_LENGTH = measured(
    "comparing.sum_length",
    2e4,
    "elements",
    "from where a float32 norm loses more than a few roundings (test_metrics, to 1e7 elements)",
)
SUM_POWER = measured(
    "comparing.sum_power",
    1.5,
    "exponent",
    "a random walk grows with 0.5, a sum that no longer takes its terms up with 1 more (test_metrics)",
)
STATISTICS_ROUNDING = measured(
    "comparing.statistics_rounding",
    16 * 2.0**-53,
    "of the norm",
    "norm and mean are sums in float64 by blocks: each side's are off by 4 roundings at most, of 64 to 4e6 "
    "numbers of any sign (test_metrics); twice that, where parts of ranks are put together",
)
RESOLUTION = derived(
    "comparing.resolution",
    8 * FLOAT32,
    "of the norm",
    "a sketch is stored in float32: eight roundings of it on the way from float64",
)

# -- measured noise ------------------------------------------

NOISE_TIMES = measured(
    "comparing.noise_times",
    4.0,
    "times the noise",
    "other kernels, a fused optimizer and two threads stay below 0.8 of the bound (test_passive, 0007)",
)
NOISE_SMALL = chosen(
    "comparing.noise_small",
    4.0,
    "standard errors",
    "a size seen over n numbers is known to about 1/sqrt(n) of itself",
)
LOTTERY = chosen(
    "comparing.lottery",
    0.3,
    "relative difference",
    "a third: what differs from itself by as much holds no more than noise",
)
FACTOR_TIMES = chosen(
    "comparing.factor_times",
    5.0,
    "times the noise",
    "one more than for sizes: a factor is one number, not a mean over elements",
)
FACTOR_ROUNDED = derived(
    "comparing.factor_rounded",
    8 * FLOAT32,
    "relative",
    "a nearer factor is that of a constant rounded to float32, or of a sum kept in it, such as a norm",
)
FACTOR_SITE = chosen(
    "comparing.factor_site",
    0.75,
    "of the largest measured factor",
    "three quarters: the largest of few reruns is above the usual one",
)
FACTOR_SMALLEST = chosen(
    "comparing.factor_smallest",
    256,
    "elements",
    "independent roundings share a factor of 1/sqrt(n) of their size: a sixteenth",
)
FACTOR_OF_SKETCH = derived(
    "comparing.factor_of_sketch",
    SKETCH_SIZE**-0.5,
    "of the relative difference",
    "what a factor fitted to a sketch's numbers is off by: 1/sqrt(64)",
)
FACTOR_TELLING = chosen(
    "comparing.factor_telling",
    0.4,
    "of its bound",
    "twice a standard error, where the bound is five: a smaller factor is chance",
)

# -- what a step leaves to the next ------------------------------------------

HISTORY_GAIN = chosen(
    "comparing.history_gain",
    4.0,
    "times the weights' difference",
    "set by hand: an error of all weights together reaches an output by more ways than one",
)
UPDATE_SPREAD = derived(
    "comparing.update_spread",
    4.0,
    "times sqrt(noise)",
    "a share e of flipped signs changes the norm by 2 sqrt(e); twice that, since noise is estimated",
)
FLIP_ERRORS = derived(
    "comparing.flip_errors",
    4.0,
    "standard errors",
    "a Poisson number exceeds its mean by four of its roots once in 30,000",
)
FLIPS_AT_LEAST = derived(
    "comparing.flips_at_least", 2.0, "flips", "of small means four roots are less than the next whole numbers"
)
FLIP_CHANCE = chosen(
    "comparing.flip_chance", 1e-6, "flips", "once in a million weights: below it none is allowed for"
)
CANCELLED_PART = derived(
    "comparing.cancelled_part",
    1.0,
    "times the update",
    "of a fused key-value bias half has no gradient in exact arithmetic: flips of half change sqrt(2 / 2)",
)
CANCELLED_EPS = chosen(
    "comparing.cancelled_eps",
    1e-8,
    "gradient",
    "eps of Adam in every framework: smaller gradients than it move a weight by a share of a full step",
)
KNOWN_NORM = derived(
    "comparing.known_norm",
    1.25,
    "times",
    "a sketch of 64 numbers knows a norm to 1/sqrt(128), 9 %: 25 % are nearly three standard errors",
)

# -- where an error starts ------------------------------------------

_GAIN = "times the error that came in"
_PRODUCT = "a product of two factors, both of them off"
ORIGIN_MARGIN = chosen(
    "comparing.origin_margin",
    3.0,
    "times what is explained",
    "set by hand: gains are of the usual case, coherent errors grow more",
)
GAIN = {
    "forward": chosen("comparing.gain_forward", 2.0, _GAIN, _PRODUCT),
    "loss": chosen("comparing.gain_loss", 2.0, _GAIN, "from logits to a mean of logarithms, both sides off"),
    "backward": chosen("comparing.gain_backward", 3.0, _GAIN, f"{_PRODUCT}, and the activation it needs"),
    "param_grad": chosen(
        "comparing.gain_param_grad", 4.0, _GAIN, "as backward, and one for the sum over rows, which cancels"
    ),
    "collective": derived("comparing.gain_collective", 1.0, _GAIN, "a sum over ranks adds errors as values"),
}
"""by phase, where it was not measured"""
EXTREME = chosen(
    "comparing.extreme",
    10.0,
    _GAIN,
    "an order of magnitude: from there on an explained error is called amplified",
)
INPUTS_GAIN = chosen(
    "comparing.inputs_gain", 2.0, _GAIN, f"of a function, where nothing else is known: {_PRODUCT}"
)
FINER = chosen(
    "comparing.finer",
    8.0,
    _ROUNDINGS,
    "of the finer dtype; float16 stands 8,192 of float32's above it, so anything near does",
)
COARSER = derived(
    "comparing.coarser",
    4.0,
    _ROUNDINGS,
    "of the coarser dtype: a tensor rounded once is off by less than one, one that a module makes in it by a "
    "few; a difference of another cause has no such limit",
)
ON_GRID_BY_CHANCE = derived(
    "comparing.on_grid_by_chance",
    0.5,
    "of the elements",
    "of float32 values one in 2^13 is a number of float16, one in 2^16 of bfloat16; half, where half the "
    "rows pass a module by",
)
COUNTED_TIMES = chosen(
    "comparing.counted_times",
    1024.0,
    "smallest normal numbers",
    "what underflows in one order of factors and not in the other: a number of tokens, part of a loss scale",
)
COUNTED_SHARE = chosen(
    "comparing.counted_share",
    0.1,
    "of the usual row",
    "rows of an embedding that cancel to rounding have a hundredth at most, in bfloat16",
)
SUM_EXACT = derived(
    "comparing.sum_exact",
    16.0,
    _ROUNDINGS,
    "of float32: an addition a microbatch, a mean, clipping and a loss scale round a few times; a sum in "
    "float16 is off by a thousand, in bfloat16 by ten thousand",
)
SUM_LINKED = derived(
    "comparing.sum_linked",
    0.05,
    "of the norm",
    "a sum in bfloat16 is off by less than a hundredth of it, one of other gradients by about all of it",
)
LONE_LEAST = derived(
    "comparing.lone_least",
    DTYPES["float16"].eps / 2,
    "relative difference",
    "half a rounding of float16: finer dtypes are judged by their bound",
)
LONE_ROUNDOFFS = measured(
    "comparing.lone_roundoffs",
    0.125,
    _ROUNDINGS,
    "another order of additions in float32, as tensors lie in memory, stays ten times below (0009)",
)
CLIPPED_FEWEST = derived(
    "comparing.clipped_fewest", 2, "gradients", "one gradient shares its factor with no other"
)
CLEAR_ORIGIN = chosen(
    "comparing.clear_origin",
    2.0,
    "times what explains it",
    "twice: origins beyond it precede all that are less, where other kernels add noise of their own (0007)",
)

# -- a more exact run: torch._dynamo.utils.same ------------------------------------------

_SAME = "torch._dynamo.utils.same, torch 2.13, which judges PyTorch's compiler by it"
_TIMES = "times the other run's error"
ARBITER_TIMES = chosen("comparing.arbiter_times", 2.0, _TIMES, _SAME)
ARBITER_TIMES_HALF = chosen("comparing.arbiter_times_half", 3.0, _TIMES, f"{_SAME}; half precision")
ARBITER_TIMES_SMALL = chosen("comparing.arbiter_times_small", 8.0, _TIMES, f"{_SAME}; small tensors")
ARBITER_TIMES_SMALLEST = chosen("comparing.arbiter_times_smallest", 10.0, _TIMES, f"{_SAME}; a few numbers")
ARBITER_LARGE = chosen("comparing.arbiter_large", 1000, "elements", _SAME)
ARBITER_SMALL = chosen("comparing.arbiter_small", 500, "elements", _SAME)
ARBITER_SMALLEST = chosen("comparing.arbiter_smallest", 10, "elements", _SAME)
ARBITER_SLACK = chosen("comparing.arbiter_slack", 10.0, "slacks in a tolerance", _SAME)

# -- layouts of stored values ------------------------------------------

LAYOUT_CLOSE = derived(
    "comparing.layout_close",
    0.5,
    "relative difference",
    "unrelated values of one norm are sqrt(2) apart, of any norm 1 and more",
)
LAYOUT_CERTAIN = chosen(
    "comparing.layout_certain",
    1e-3,
    "relative difference",
    "a rounding of float16 or a few of bfloat16: below it no other way is tried",
)
LAYOUT_CLEAR = chosen(
    "comparing.layout_clear", 0.5, "of the next way's difference", "the best way is twice as near as the next"
)

# -- one form of two ------------------------------------------

WHOLE_COUNT = chosen(
    "comparing.whole_count",
    0.01,
    "elements",
    "a count worked out of a mean is whole: of anything else a hundredth is hit once in 50",
)
WHOLE_SHARE = derived(
    "comparing.whole_share",
    1e-6,
    "of the elements",
    "a mean in float32 is off by a few 2^-24; a count worked out of it by as much of all elements",
)
IN_PLACE = derived(
    "comparing.in_place",
    0.01,
    "relative difference",
    "rows in another order differ by the root of 2 times what tells rows apart: below a hundredth a tensor "
    "is compared as it stands, a weight that is not one of the step's among them",
)
SUM_OF_FLOAT64 = derived(
    "comparing.sum_of_float64",
    1e-12,
    "relative difference",
    "sums over other numbers of elements in float64: 2^-53 times the root of 8e7 terms",
)

# -- settings and scalars ------------------------------------------

ROUNDED_SETTING = derived(
    "comparing.rounded_setting",
    2 * FLOAT32,
    "relative difference",
    "one setting may be the other in float32; a rounding on either side",
)
SET_EXACTLY = chosen(
    "comparing.set_exactly",
    1e-9,
    "relative difference",
    "what is set, not measured: a formula in another order of float64 operations is off by 1e-15",
)

# -- conclusion ------------------------------------------

_DOUBT = "doubt"
NO_DOUBT = chosen(
    "comparing.no_doubt", 0.02, _DOUBT, "a score of 7, or of 4 where all that precedes is bit-identical"
)
SOME_DOUBT = chosen("comparing.some_doubt", 0.25, _DOUBT, "a score of 1.7")
DOUBT_AFTER_EQUAL = chosen(
    "comparing.doubt_after_equal",
    3.0,
    "times less doubt",
    "rounding cannot have come in where all preceding records are bit-identical",
)
FACTOR_OF_DIFFERENCE = derived(
    "comparing.factor_of_difference",
    0.7,
    "of the difference",
    "sqrt(1/2): the factor makes more of the difference than all the rest",
)
NOISE_GROWS = chosen(
    "comparing.noise_grows",
    100.0,
    "times the tolerance",
    "tolerances are 4 times what reruns showed; noise that grows to 400 times its measure has not been seen",
)
REST_OF_DIFFERENCE = chosen(
    "comparing.rest_of_difference",
    0.5,
    "of the difference",
    "what a factor does not explain is less than half",
)
MODEL_SHARE = chosen(
    "comparing.model_share",
    0.2,
    "of the modules and parameters",
    "a fifth: two models of one library share names such as embed and norm",
)
MODEL_SHAPES = chosen(
    "comparing.model_shapes",
    0.5,
    "of the weights",
    "half of them of another shape: another size of the model",
)
MODEL_FEWEST = chosen("comparing.model_fewest", 4, "modules and parameters", "a share of three says nothing")

# -- losses ------------------------------------------

REPRODUCED = chosen(
    "comparing.reproduced",
    64 * FLOAT32,
    "relative difference",
    "64 roundings of float32, a 512th of one of bfloat16: by chance once in 130,000 ways of dividing",
)
FAR_FROM_FLOAT32 = chosen(
    "comparing.far_from_float32",
    181 * FLOAT32,
    "relative difference",
    "halfway, in factors, between the roundings of float32 and of bfloat16: 1.1e-5, each 181 times away",
)
LOSS_TIMES = chosen(
    "comparing.loss_times", 4.0, "times the reference's own error", "the target may be less lucky by as much"
)
NORM_ROWS = chosen(
    "comparing.norm_rows", 32, "rows", "the mean of as many squares of independent roundings is 1 +- 0.25"
)
NORM_SAME = derived(
    "comparing.norm_same",
    0.98,
    "of the elements",
    "float32 and float64 round an element to two numbers of bfloat16 once in 10,000, to two of float16 once "
    "in 1,000",
)
NORM_OTHERS = derived(
    "comparing.norm_others",
    0.9,
    "of the elements",
    "a number of the row that is rounded by a quarter of a rounding moves an eighth of the elements or more",
)
NORM_COHERENT = derived(
    "comparing.norm_coherent",
    4.0,
    "mean of squares",
    "twelve standard errors above 1; a number of the row that is rounded gives about half the row's width",
)
NORM_FITS = derived(
    "comparing.norm_fits",
    4.0,
    "unit roundoffs",
    "of the norm, its product with the weight, and two numbers of the row; another formula is off by more",
)
ACTIVATION_NUMBERS = chosen(
    "comparing.activation_numbers",
    32,
    "elements",
    "that two functions give different: nearly all of as many are no chance; gelu and its approximation have "
    "hundreds of 4,096",
)
CLASS_ROUNDINGS = derived(
    "comparing.class_roundings",
    4.0,
    "unit roundoffs a class",
    "a product and a sum round once each, on either side",
)
LOSS_ROUNDINGS = derived(
    "comparing.loss_roundings",
    8,
    "unit roundoffs",
    "beside sqrt(tokens) of the sum: exp, log and a division",
)
LATER_LOSS_AFTER_EQUAL = chosen(
    "comparing.later_loss_after_equal",
    10.0,
    "times the tolerance of a captured loss",
    "where all captured records are bit-identical the first other loss holds one step's rounding: its "
    "forward's, which the tolerance bounds, and what an update that is rounded otherwise moves it by, a "
    "fraction of that",
)
LATER_LOSS = chosen(
    "comparing.later_loss",
    100.0,
    "times the tolerance of a captured loss",
    "one update after equal losses: rounding of gradients moves the next loss to first order by a rounding "
    "of its change, and what backward and the optimizer add stays below tens of roundings",
)
MULTIPLES_APART = chosen(
    "comparing.handed_apart",
    0.1,
    "relative",
    "clipping to a norm hands on one multiple, and the norms of runs that agree differ by roundings; a sum "
    "of two microbatches or more is longer than its last by far more, unless they cancel",
)
UNDONE = chosen(
    "comparing.undone",
    0.1,
    "of what the factor would change",
    "where a factor of the loss is taken out, rounding is left: a tenth is far more than that but for "
    "factors of a hundredth in bfloat16, which are then told",
)
