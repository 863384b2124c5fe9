"""Constants that decide what is concluded of a mismatch between training and inference."""

from __future__ import annotations

from trueup.types.threshold import chosen, derived, measured

ENOUGH = chosen(
    "mismatch.enough",
    64,
    "tokens",
    "a root mean square over them is known to 9 %: below it no rule concludes",
)
STANDARD_ERRORS = derived(
    "mismatch.standard_errors",
    6.0,
    "standard errors",
    "exp(r) - 1 has mean 0 given all earlier tokens, a martingale: its sum over its root of squares is near "
    "normal, and 6 are exceeded once in 5e8 runs",
)
NOT_SAMPLED_SHARE = derived(
    "mismatch.not_sampled_share",
    0.1,
    "of its root mean square",
    "log-probs rounded to bfloat16 bias the mean ratio by half their variance, 0.01 of its root mean "
    "square at a "
    "log-prob of -10; ten times that",
)
MOVED = derived(
    "mismatch.moved",
    0.1,
    "of the root mean square difference",
    "arrays that are shifted or reordered differ by the spread of log-probs, and agree up to rounding "
    "once they "
    "are moved back: rounding is below a tenth of the spread wherever training works",
)
MOVED_ROWS = chosen("mismatch.moved_rows", 0.5, "of the sequences", "one order explains most of them")
SPREAD = measured(
    "mismatch.spread",
    0.07,
    "of the standard deviation",
    "rounding in bfloat16 leaves the spread of log-probs within 0.2 %, of models with logits of +-40 "
    "within 3.6 % "
    "(benchmarks/mismatch.py); a temperature of 0.9 on one side changes it by 11 %",
)
SPREAD_CORRELATION = measured(
    "mismatch.spread_correlation",
    0.9,
    "correlation of log-probs",
    "one temperature for the other keeps it above 0.98; below 0.9 the two are not one policy seen twice",
)
NOISE = measured(
    "mismatch.noise",
    2.0,
    "times the noise",
    "a bfloat16 decode with a cache gave 0.9 to 1.05 times the trainer's own bfloat16 forward "
    "(benchmarks/mismatch.py); another engine's kernels may round at other places and twice as often",
)
ROUNDINGS = measured(
    "mismatch.roundings",
    4.0,
    "unit roundoffs",
    "bfloat16 decoding gave at most 3.9 of them where a layer's inputs had 0.4 (benchmarks/mismatch.py)",
)
AMPLIFICATION = measured(
    "mismatch.amplification",
    2.0,
    "times the error of preceding layers",
    "bfloat16 decoding gave at most 1.4 times, 2.3 times in models with logits of +-40 "
    "(benchmarks/mismatch.py)",
)
DOUBT = chosen(
    "mismatch.doubt",
    2.0,
    "times what is explained",
    "up to it neither explained nor a fault: models with logits of +-40 are there by rounding alone",
)
HEAD = derived(
    "mismatch.head",
    4.0,
    "times the hidden state's relative error, of the size of log-probs",
    "logits are linear in the hidden state, and a log-prob is a difference of two: up to twice its "
    "relative error, "
    "1.2 times at most as measured (benchmarks/mismatch.py), and twice that",
)
MOST_IN_FEW = chosen(
    "mismatch.most_in_few", 0.9, "of the squared difference", "what is left could not be told from the rest"
)
FEW = chosen("mismatch.few", 0.1, "of the sequences", "a tenth of them holds a tenth where all are alike")
GROWS = derived(
    "mismatch.grows",
    2.0,
    "times, last part to first",
    "parts of at least ENOUGH tokens: a ratio of two root mean squares is known to 13 %, and heavy "
    "tails double it",
)
