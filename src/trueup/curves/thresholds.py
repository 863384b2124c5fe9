"""Every constant that decides what two curves are found to be."""

from __future__ import annotations

from trueup.types.threshold import chosen, derived, measured

_STANDARD = "the accuracy standard for migrated large models; its test standards are named in standard.py"

# -- the accuracy standard ------------------------------------------

FIRST_ABS = chosen("curves.first_abs", 0.005, "loss", _STANDARD)
FIRST_REL = chosen("curves.first_rel", 0.005, "of the loss", _STANDARD)
MEAN_ABS = chosen("curves.mean_abs", 0.01, "loss", _STANDARD)
MEAN_REL = chosen("curves.mean_rel", 0.01, "of the loss", _STANDARD)
NORM_REL = chosen("curves.norm_rel", 0.10, "of the gradient norm", _STANDARD)
FEWEST_STEPS = chosen("curves.fewest_steps", 1000, "steps", _STANDARD)
DEFAULT_STEPS = chosen("curves.default_steps", 5000, "steps", _STANDARD)
DEFAULT_HOURS = chosen("curves.default_hours", 12, "hours", _STANDARD)
FEWEST_REPEATS = chosen("curves.fewest_repeats", 2, "runs of the reference", _STANDARD)
ALLOWANCE = chosen(
    "curves.allowance",
    1.25,
    "times the repeats' spread",
    "what few repeats may underestimate their own spread by, where a threshold is relaxed to it",
)
WIDEST = chosen(
    "curves.widest", 0.05, "of the loss", "repeats further apart are no fluctuation to relax a threshold to"
)
ROUGH = chosen(
    "curves.rough", 0.05, "of the loss", "a reference that jumps by more from step to step hides differences"
)
NORMS_WEIGHTY = chosen(
    "curves.norms_weighty",
    1e-3,
    "of the global norm",
    "smaller differences, as those of biases whose gradient is zero but for rounding, are no finding",
)
NORMS_ALIKE = chosen(
    "curves.norms_alike",
    0.02,
    "relative difference",
    "of two norms without names that are taken for one weight's",
)
NORMS_APART = chosen(
    "curves.norms_apart",
    0.1,
    "relative difference",
    "a weight's gradient is named from there on: as the global one",
)

# -- noise ------------------------------------------

_SIGMAS = "standard deviations"
SPIKE_SIGMAS = derived(
    "curves.spike_sigmas", 6.0, _SIGMAS, "once in 500 million steps by chance, were they normal"
)
SPIKE_WINDOW = chosen(
    "curves.spike_window", 128, "steps", "short beside a change of the loss, long enough for its deviation"
)
SPIKE_BEHIND = derived(
    "curves.spike_behind", 16, "steps", "a deviation of 16 numbers is known to 1/sqrt(32), 18 %, of itself"
)
SPIKE_BACK = chosen(
    "curves.spike_back", 0.5, "of its height", "nearer to what was before a spike than to its top"
)
SPIKE_BESIDE = chosen(
    "curves.spike_beside", 2, "steps apart", "loss and gradient norm of one batch are logged a step apart"
)
NORMAL_MAD = derived(
    "curves.normal_mad",
    1.4826,
    "times the median distance",
    "1 / 0.6745, the third quartile of a normal number",
)
TAIL_SIGMAS = chosen(
    "curves.tail_sigmas",
    2.0,
    _SIGMAS,
    "steps right after an outlier that still stand out so far belong to it",
)
TAIL_STEPS = chosen("curves.tail_steps", 5, "steps", "for so many steps after it at most")
ALIKE = chosen(
    "curves.alike",
    0.3,
    "correlation",
    "of neighbours, from which on the memory is told from lags 2 and 3 too: less leaves nothing there",
)
MEMORY_FEWEST = derived(
    "curves.memory_fewest", 8, "steps", "a correlation of 8 is known to 1/sqrt(8), a third"
)

# -- what a difference is ------------------------------------------

_CHANCE = "probability"
CENTRED_LEVEL = derived(
    "curves.centred_level", 0.0027, _CHANCE, "three standard errors of a normal number, both sides together"
)
CENTRED_FEWEST = derived(
    "curves.centred_fewest", 8, "steps", "a mean of 8 is known to a third of a standard deviation"
)
RUNS_MEMORY = chosen(
    "curves.runs_memory", 0.05, "correlation", "below it neighbours are as good as independent"
)
RUNS_FEWEST = derived(
    "curves.runs_fewest", 10, "blocks", "fewer signs have no shape that chance does not have"
)
INTERVAL_LEVEL = chosen(
    "curves.interval_level", 0.05, _CHANCE, "the interval that reports print is one of 95 %"
)
_COVERAGE = "tests/curves/test_coverage.py::test_an_entry_that_moves_loses_coverage"
TREND_SURE = measured(
    "curves.trend_sure",
    0.998,
    _CHANCE,
    "180 simulated benign pairs reach 0.98 at most; the ramps and jumps of the test have more",
    test="tests/curves/test_coverage.py::test_a_trend_is_sure_where_it_is_seen",
)
TREND_PRICE = measured(
    "curves.trend_price",
    1.0,
    "times the logarithm of the number of shapes",
    "of several shapes: 0.65 covers a random walk 80 times in 100, 1.0 does 92 times",
    test=_COVERAGE,
)
TREND_ODDS = measured(
    "curves.trend_odds",
    2.0,
    "logarithm of odds",
    "of a trend against none, where only the mean is asked for; 0 covers lines under a walk 2 in 100 less",
    test=_COVERAGE,
)
TREND_WALK = measured(
    "curves.trend_walk",
    4.0,
    "times another memory's prior",
    "6 makes intervals of AR(1) 0.99 over 1,000 steps 2.3 times as wide as need be, 4 does 1.8 times",
    test=_COVERAGE,
)
TREND_WHITE = measured(
    "curves.trend_white",
    30.0,
    "times another memory's prior",
    "4 covers white noise 98 times in 100 with intervals 1.13 times as wide as need be, 30 95 times",
    test=_COVERAGE,
)
TREND_UNDER_WALK = measured(
    "curves.trend_under_walk",
    1.6,
    "times the interval",
    "of a trend under a walk; 1 covers ramps and bends there 78 to 92 times in 100, 1.6 92 to 96",
    test=_COVERAGE,
)
TREND_WALK_OPEN = measured(
    "curves.trend_walk_open",
    0.3,
    "of the weight",
    "of trends under a walk; in AR(1) noise of 0.9 they have 0.001, under a walk 0.4 to 0.8",
    test=_COVERAGE,
)
LATE_SHARE = chosen("curves.late_share", 0.2, "of the steps", "the last fifth: late")
LATE_LEVEL = chosen(
    "curves.late_level", 0.01, _CHANCE, "one late part in a hundred may be called so by chance"
)
LATE_MOVES = chosen(
    "curves.late_moves", 0.1, "of the late gap", "a gap that moves by less over its part is steady"
)
LATE_FEWEST = derived("curves.late_fewest", 8, "steps", "a slope of fewer is that of one or two steps")
ONSET_LEVEL = derived(
    "curves.onset_level", 0.0025, _CHANCE, "as for the mean, less what looking at two shapes costs"
)
ONSET_EDGE = chosen("curves.onset_edge", 0.01, "of the steps", "at either end, where no change is looked for")
ONSET_FEWEST = chosen("curves.onset_fewest", 40, "steps", "two parts of 20 at the least")
ONSET_TAKEN = chosen(
    "curves.onset_taken",
    30.0,
    "independent steps",
    "the best of all fits takes noise along; simulated: 2,000 steps with a coefficient of 0.97 are 30",
)
ONSET_NOTHING = derived(
    "curves.onset_nothing",
    0.2,
    "of a Brownian bridge",
    "below it the probability of more is 1 to twelve digits",
)
SYSTEMATIC = chosen(
    "curves.systematic",
    0.5,
    "of the mean difference",
    "more to one side than to both is no scatter around zero",
)
EXCURSION_HEIGHT = chosen(
    "curves.excursion_height", 0.2, "of the loss", "twenty times what the standard allows the mean"
)
PASSING_LEFT = chosen(
    "curves.passing_left",
    0.25,
    "of the difference while it lasts",
    "what is left before and after, and of other stretches: more is a difference that stays, or that wanders",
)
EXCURSION_AGAIN = chosen(
    "curves.excursion_again",
    3.0,
    "times the reference's own",
    "of as few spikes the tallest is twice the other's by chance",
)
FACTOR_BETTER = chosen(
    "curves.factor_better",
    0.1,
    "of what an offset leaves",
    "a loss that falls to a third tells a factor from an offset; one that hardly falls tells neither",
)
FACTOR_FEWEST = chosen("curves.factor_fewest", 16, "steps", "one number fitted to fewer says little of all")
QUIET_NOISE = chosen(
    "curves.quiet_noise",
    0.5,
    "of the noise after them",
    "runs of two devices move apart from rounding to the data's noise: the first steps do not tell its size",
)
QUIET_SHARE = chosen(
    "curves.quiet_share",
    0.6,
    "of the steps before a change",
    "noise that rises nearer to the change may rise with it, and what was before it is all that is known",
)
RISE = chosen(
    "curves.rise",
    0.1,
    "of the loss at the onset",
    "a loss that diverges rises by more than a late offset, which is some percent",
)
DEPARTED_SIGMAS = derived(
    "curves.departed_sigmas", 5.0, _SIGMAS, "once in 3 million by chance: over all steps and lengths not once"
)
DEPARTED_WINDOWS = derived(
    "curves.departed_windows", 8, "means", "the deviation of 8 numbers is known to a quarter of itself"
)
DEPARTED_FEWEST = derived(
    "curves.departed_fewest", 16, "steps", "a deviation of 16 numbers is known to 18 % of itself"
)
BEND_MISFIT = derived(
    "curves.bend_misfit",
    4.0,
    "standard deviations of chi square",
    "once in 30,000 by chance; shapes miss by more",
)
BEND_SEEN = chosen(
    "curves.bend_seen",
    0.5,
    _SIGMAS,
    "of single steps: what is smaller when it has grown by e is not seen before it has grown twice more",
)
BEND_SIGMAS = chosen(
    "curves.bend_sigmas",
    300.0,
    _SIGMAS,
    "far beyond what is needed to see a bend, near enough to be still one",
)
GROWTH_LENGTH = chosen(
    "curves.growth_length",
    0.06,
    "of the steps",
    "twenty-four of the blocks that laws are fitted by; what grows up in less is a bend, seen step by step",
)
ONSET_INTERVAL = chosen(
    "curves.onset_told",
    0.01,
    "of the steps",
    "what an onset is expected to be named within; where its 90 % interval is wider, the interval is said",
)
ONSET_SETTLED = chosen(
    "curves.onset_settled",
    0.005,
    "of the steps",
    "half of what an onset is to be named within: told by its first steps, and by no law of the whole run",
)
ONSET_AWAY = chosen(
    "curves.onset_away",
    0.2,
    "of the change",
    "a change that is made by a fifth before a step began before it",
)
JUMP_SHARE = chosen(
    "curves.jump_share", 0.7, "of the final difference", "a change most of which is made at once is a jump"
)
ONSET_GROWTH = chosen(
    "curves.onset_growth",
    0.5,
    "of the difference after it",
    "what was half as large before has not begun there: it fluctuates, or was there from the start",
)
EARLY = chosen("curves.early", 0.1, "of the steps", "a difference that begins there was there from the start")
SPIKE_AT_ONSET = chosen(
    "curves.spike_at_onset", 5, "steps", "the onset of a divergence is known to about that"
)
BAND_SIGMAS = derived(
    "curves.band_sigmas", 4.0, _SIGMAS, "once in 16,000 by chance; a curve has some thousand steps"
)
BAND_STEPS = chosen("curves.band_steps", 20, "steps", "a departure from the band counts that lasts as long")
BAND_SHARE = chosen("curves.band_share", 0.01, "of the steps", "or as long as a hundredth of the training")
OUTLYING = chosen(
    "curves.outlying", 10.0, "times the usual difference", "of a run without updates: steps to look at alone"
)
OUTLYING_LEAST = derived(
    "curves.outlying_least", 1e-12, "loss", "printed losses differ by their last digit or not at all"
)

# -- one curve ------------------------------------------

SCALE_DROP = chosen(
    "curves.scale_drop", 0.75, "of the loss scale", "between a half, to which overflow lowers it, and none"
)
PROGRESS = chosen(
    "curves.progress",
    0.01,
    "of the loss",
    "what another run loses over a part in which this one loses nothing",
)
PLATEAU_HIGH = chosen(
    "curves.plateau_high",
    0.1,
    "of the reference's loss",
    "a plateau so far above is a failure to learn; a late offset is some percent",
)
PLATEAU_SHARE = chosen(
    "curves.plateau_share",
    0.25,
    "of what the other loses",
    "a run that still learns as the other does, with less data noise than a quarter of that, loses more",
)
CONVERGED = chosen(
    "curves.converged",
    0.1,
    "of what the reference learned",
    "a run that learned less than a tenth of it does not converge at all",
)
PLATEAU_FEWEST = chosen("curves.plateau_fewest", 200, "steps", "eighths of them are 25 steps")
RATES_APART = chosen(
    "curves.rates_apart", 2e-3, "relative difference", "logs print learning rates with four digits and more"
)
RATES_SMALL = chosen(
    "curves.rates_small",
    1e-3,
    "of the largest rate",
    "rates below, as in warm-up, are printed with fewer digits",
)

# -- how steps are numbered ------------------------------------------

_CORRELATION = "correlation"
ALIGN_FEWEST = derived(
    "curves.align_fewest", 24, "changes", "five errors of a correlation, 5/sqrt(n), are 1 at 25 of them"
)
ALIGN_ERRORS = derived(
    "curves.align_errors",
    5,
    "standard errors",
    "of 40 offsets the largest is 2.7 by chance; losses are not normal",
)
ALIGN_APART = chosen(
    "curves.align_apart", 0.1, _CORRELATION, "by which the best offset must exceed the next one"
)
ALIGN_APART_ERRORS = chosen(
    "curves.align_apart_errors", 3, "standard errors", "by which it must as well, of few steps"
)
ALIGN_ONLY_PEAK = chosen(
    "curves.align_alone", 0.9, _CORRELATION, "no other offset can be as good: looking on costs time only"
)
ALIGN_OTHERS = chosen("curves.align_others", 0.5, _CORRELATION, "of the others, for one to stand alone")
UNRELATED = chosen("curves.unrelated", 0.2, _CORRELATION, "runs over other data show less")
CHANGES_LEAST = derived(
    "curves.changes_least",
    1e-9,
    "of the largest loss",
    "changes that printing and float64 make by themselves",
)
DECIMALS_FEWEST = chosen(
    "curves.decimals_fewest", 20, "losses", "all of 20 end in a 0 by chance once in 10^20"
)
DECIMALS_EXACT = derived(
    "curves.decimals_exact", 1e-7, "of the last digit", "a printed number read as float64, times 10^5"
)
DECIMALS_EXACT_REL = derived(
    "curves.decimals_exact_rel", 1e-12, "of the number", "2^-53 some thousandfold: of large numbers"
)
