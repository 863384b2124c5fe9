"""Constants that decide what is concluded of two RL runs."""

from __future__ import annotations

from trueup.types.threshold import chosen, derived, measured

FORMULA = derived(
    "rl.formula",
    16.0,
    "float32's unit roundoffs of the sum of magnitudes",
    "a formula of a dozen operations on stored numbers, summed pairwise: each operation, and each of log2 of "
    "the tokens' additions, rounds once, at random",
)
RESULT = derived(
    "rl.result",
    4.0,
    "unit roundoffs of what is added last",
    "in the dtype of the result: the sum, the division by a count, a coefficient and the addition round "
    "once each",
)
MODEL = derived(
    "rl.model",
    8.0,
    "unit roundoffs of the root mean square log-prob",
    "two kernels, packings or batch cuts of one model: a layer adds a few roundoffs (mismatch.roundings has "
    "4), and a log-prob has up to twice the relative error of the last",
)
DOUBT = derived(
    "rl.doubt",
    16.0,
    "times what rounding explains",
    "errors grow along depth as random walks do: 16 times those of one layer after 256",
)
MOVED = derived(
    "rl.moved",
    0.1,
    "of the root mean square difference",
    "as mismatch.moved: what is brought back to its place agrees up to rounding",
)
STRETCHED = measured(
    "rl.stretched",
    0.98,
    "correlation of log-probs",
    "one temperature for the other keeps it above 0.98 (benchmarks/mismatch.py); other weights do not",
)
DRIFT = chosen(
    "rl.drift",
    0.01,
    "of what updates have changed",
    "optimizers divide gradients by their size, so that rounding decides the sign of some: 3e-5 of the "
    "change was seen (rl/faults.py)",
)
DRIFTED = chosen(
    "rl.drifted",
    5.0,
    "times the drift",
    "between, it cannot be told whether rounding grew or an update is slightly wrong",
)
ENGINES = chosen(
    "rl.engines",
    4.0,
    "times the reference's root mean square difference of rollout and trainer",
    "the same two engines on other tokens of the same model: it varies by less than half (two runs of verl)",
)
ENOUGH = chosen(
    "rl.enough",
    16,
    "tokens",
    "a root mean square over them is known to 18 %: below it no difference is judged",
)
LEVEL = derived(
    "rl.level",
    1e-3,
    "of the group's deviation",
    "a mean solved for from advantages in float32 is off by roundoffs of its rewards over their deviation; "
    "a mean of other sequences is off by a tenth of it and more",
)
LONG = derived(
    "rl.long",
    3,
    "sequences",
    "of a random share of a batch the longest ones alone are seldom chosen: three among eight by one in 56",
)
REPEATED = derived(
    "rl.repeated",
    21.0,
    "negative logarithm of the probability of so many equal answers",
    "one in a thousand million: of the batches of a long run none has it by chance",
)
