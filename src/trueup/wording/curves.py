"""English of loss curves."""

from __future__ import annotations

import math

from trueup.types.codes import CriterionCode as Criteria
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import reason
from trueup.wording.criterion import FIRST_LOSS, TITLES
from trueup.wording.phrase import Phrase, ReasonFacts, absolute, count, listed, percent

MINUS_ONE = 0.0005
"""how far from -1 a factor is printed as -1.000"""
_DIVERGENCE = {"step": 400, "earliest": 397, "before": 0.0001, "after": 0.2, "shape": "jump"}
_BATCH_STEPS = {"num": 7, "steps": ["12", "40", "41", "90", "95", "99", "120"]}


def signed(value: float) -> str:
    """A difference with its sign: ``+0.0031``."""
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{absolute(abs(value))}"


def _jump(facts: ReasonFacts) -> str:
    end = " at the end" if facts["shape"] == "slope" else ""
    return (
        f"The loss diverges at step {facts['step']}: difference {signed(facts['before'])} before, "
        f"{signed(facts['after'])}{end or ' after'}"
    )


def _onset(facts: ReasonFacts) -> str:
    jump = facts["shape"] == "jump"
    where = "a jump" if jump else "start of a slope"
    if (latest := facts.get("latest")) is not None:
        where += f", 90 % interval {facts['earliest']} to {latest}"
    return (
        f"the difference changes at step {facts['step']} ({where}): "
        f"{signed(facts['before'])} before, {signed(facts['after'])} {'after' if jump else 'at the end'}"
    )


def _mean(facts: ReasonFacts) -> str:
    zero = facts["low"] <= 0 <= facts["high"]
    where = (
        "not centred on zero"
        if not facts["is_centred"]
        else "within its noise"
        if zero
        else "no clear offset"
    )
    return f"signed mean difference {_interval(facts)}: {where}"


def _interval(facts: ReasonFacts) -> str:
    return (
        f"{signed(facts['mean'])} ± {absolute(facts['standard_error'])} "
        f"(95 % interval {signed(facts['low'])} to {signed(facts['high'])})"
    )


def _frozen_differs(facts: ReasonFacts) -> str:
    cause = "".join(f"; {part}" for part in facts.parts)
    return f"With learning rate 0, the loss of {facts['num']:,} of {facts['total']:,} steps differs{cause}"


def _finite(facts: ReasonFacts) -> str:
    """The steps at which both losses are finite, where that is not all."""
    return "" if facts.get("finite") is None else f" at the {count(facts['finite'], 'step')} that are finite"


def _frozen(facts: ReasonFacts) -> str:
    """What agrees: of the backward pass a log tells by gradient norms alone."""
    return "forward and backward agree" if facts["norms"] else "the losses agree"


def _passes(facts: ReasonFacts) -> str:
    agree = "agree after" if facts["from_the_start"] else "agree before and after"
    place = f"from step {facts['first']} to {facts['last']}"
    return f"The loss differs by up to {signed(facts['largest'])} {place}; the runs {agree}"


def _spike(facts: ReasonFacts, *, one: str = "The target", other: str = "the reference") -> str:
    num, first, last = facts["num"], facts["first"], facts["last"]
    more = f"; {num} such spikes in all" if num > 1 else ""
    place = f"at step {first} alone" if first == last else f"at step {first} and recovers by step {last}"
    return f"{one}'s loss spikes by {signed(facts['height'])} {place}; {other}'s does not{more}"


def _factor(facts: ReasonFacts) -> str:
    number = facts["factor"]
    if abs(number + 1) < MINUS_ONE:
        return "The target's loss is the reference's with the opposite sign at every step"
    sign = "−" if number < 0 else ""
    return f"The target's loss is {sign}{abs(number):.4g} times the reference's at every step"


def _norm(facts: ReasonFacts) -> str:
    where, rest = f"at step {facts['step']}", f"beyond 10 %: {facts['num']} of {facts['total']}"
    if not math.isfinite(facts["rel"]):  # of a reference of zero, or of NaN
        return f"The local norm of {facts['name']} differs {where}; {rest}"
    return (
        f"The local norm of {facts['name']} differs by {percent(facts['rel'])} {where} "
        f"({percent(facts['rel_square'])} in its square); {rest}"
    )


_PART = {"column": "load_balancing_loss", "step": 1, "target": 2.02, "reference": 1.01, "relative": 1.0}
_PARTS = {
    "load_balancing_loss": "load balancing loss",
    "z_loss": "z-loss",
    "mtp_loss": "loss of multi-token prediction",
}


def _part(facts: ReasonFacts) -> str:
    """A part of the loss at the first step, or on average."""
    what = f"The {_PARTS[facts['column']]} differs"
    values = f"{absolute(facts['target'])} (target), {absolute(facts['reference'])} (reference)"
    where = "on average" if facts["step"] is None else f"at step {facts['step']}"
    apart = f", {percent(abs(facts['relative']))}" if math.isfinite(facts["relative"]) else ""
    return f"{what} {where}: {values}{apart}"


_INTERVAL = {"mean": 0.01, "standard_error": 0.002, "low": 0.006, "high": 0.014}
_STUCK = {"step": 700, "level": 4.2, "gap": 1.7, "reference": 2.5}


def _late_gap(facts: ReasonFacts) -> str:
    return (
        f"last fifth of the steps: {signed(facts['gap'])} ± {absolute(facts['standard_error'])} "
        f"({percent(abs(facts['relative']))}), {facts['trend']}"
    )


def _warned(facts: ReasonFacts) -> str:
    title, value, threshold, *note = facts.parts
    return f"{title}: {value}, {note[0] if note else f'expected {threshold}'}"


def _not_proved(facts: ReasonFacts) -> str:
    names = _criteria(facts)
    return (
        f"{facts.parts[0]}; not accepted yet: {_all(names)} {'is' if len(names) == 1 else 'are'} not proved"
    )


def _criteria(facts: ReasonFacts) -> list[str]:
    titles = [TITLES.get(key, key) for key in facts["criteria"]]
    return [title[:1].lower() + title[1:] for title in titles]


def _all(names: list[str]) -> str:
    """Every name, none counted."""
    return listed(names, shown=len(names))


def _steps(facts: ReasonFacts) -> str:
    return listed(facts["steps"])


def _restarted(facts: ReasonFacts) -> str:
    apart = facts.get("max_loss_diff")
    apart_by = "" if apart is None else f", losses differ by up to {apart:.3g}"
    return facts.fill(
        f"{{curve}}: restarted at step {{step}}, {{num:count step}} logged twice{apart_by}; the later "
        "lines are used"
    )


def _alignment(facts: ReasonFacts) -> str:
    offset = facts["offset"]
    more = "larger" if offset > 0 else "smaller"
    numbers = (
        f"the target's step numbers are {abs(offset)} {more} than the reference's"
        if offset
        else "steps have the same numbers on both sides"
    )
    basis, correlation, runner_up = facts["basis"], facts.get("correlation"), facts.get("runner_up")
    if basis == "given":
        return f"{numbers}, as given"
    if basis == "assumed":
        return f"{numbers} (assumed: the curves do not tell)"
    if basis == "unrelated":
        return (
            f"{numbers} (assumed: the step-to-step changes correlate at no offset; do both runs read the "
            "same data?)"
        )
    known = "" if correlation is None else f" of {correlation:.2f}"
    other = "" if runner_up is None else f", {runner_up:.2f} at the next best offset tried"
    return f"{numbers}: the step-to-step changes have a correlation{known}{other}"


_LOCAL: dict[str, object] = {
    "name": "model.tok_embeddings.embedding_weight",
    "step": 1,
    "rel": 0.4,
    "rel_square": 0.96,
    "num": 1,
    "total": 291,
}
_ALIGNED = {"offset": 1, "basis": "found", "correlation": 0.93, "runner_up": 0.11}

PHRASES = {
    Curves.NOT_FINITE: Phrase(
        sentence=lambda facts: facts.fill(
            "The target's {column} is {what} from step {step}"
            if facts.get("again") is None
            else "The target's {column} is {what} at step {step} and finite again at step {again}"
        ),
        samples=(
            {"column": "loss", "what": "NaN", "step": 12},
            {"column": "loss", "what": "NaN", "step": 12, "again": 13},
        ),
    ),
    Curves.FROZEN_DIFFERS: Phrase(
        sentence=_frozen_differs,
        samples=(
            {"num": 3, "total": 1000},
            {"num": 3, "total": 1000, "parts": (reason(Criteria.NOT_DETERMINISTIC, sides=["target"]),)},
        ),
    ),
    Curves.FROZEN_CAUSE: Phrase(
        sentence="The learning-rate-0 test proves nothing: {parts:join ; }",
        samples=({"parts": (reason(Criteria.NOT_DETERMINISTIC, sides=["target"]),)},),
    ),
    Curves.REPEATS_DIFFER: Phrase(
        sentence=lambda facts: (
            f"determinism is off: the reference's own repeats differ at {facts['num']:,} of "
            f"{facts['total']:,} steps"
        ),
        samples=({"num": 3, "total": 1000},),
    ),
    Curves.NO_CONVERGENCE: Phrase(
        sentence=lambda facts: (
            f"The target's loss does not converge: it stays at {absolute(facts['level'])}, the reference "
            f"reaches {absolute(facts['reference'])}"
        ),
        samples=(_STUCK,),
    ),
    Curves.PLATEAU_HIGH: Phrase(
        sentence=lambda facts: (
            f"The target's loss stops falling at step {facts['step']}, at {absolute(facts['level'])}; the "
            f"reference reaches {absolute(facts['reference'])}"
        ),
        samples=(_STUCK,),
    ),
    Curves.PASSES: Phrase(
        sentence=_passes,
        samples=(
            {"first": 520, "last": 980, "largest": 0.3, "from_the_start": False},
            {"first": 3, "last": 400, "largest": -0.1, "from_the_start": True},
        ),
    ),
    Curves.SPIKE: Phrase(
        sentence=_spike,
        samples=(
            {"height": 2.5, "first": 886, "last": 930, "num": 1},
            {"height": 2.5, "first": 886, "last": 930, "num": 3},
        ),
    ),
    Curves.LOCAL_NORM: Phrase(
        sentence=_norm,
        samples=(
            _LOCAL,
            {**_LOCAL, "rel": math.inf, "rel_square": math.inf},
        ),
    ),
    Curves.PART_LOSS: Phrase(
        sentence=_part,
        samples=(
            _PART,
            {**_PART, "column": "mtp_loss", "step": None, "relative": -0.0323},
            {**_PART, "column": "z_loss", "relative": math.inf},
        ),
    ),
    Curves.SCATTERS: Phrase(
        sentence="The loss difference scatters by more than the standard allows, with a small offset"
    ),
    Curves.FROZEN_AGREES: Phrase(
        sentence=lambda facts: f"With learning rate 0, {_frozen(facts)} at every step",
        samples=({"norms": True}, {"norms": False}),
    ),
    Curves.FROZEN_OUTLIERS: Phrase(
        sentence=lambda facts: f"With learning rate 0, {_frozen(facts)} except at a few outlying steps",
        samples=({"norms": True}, {"norms": False}),
    ),
    Curves.FIRST_LOSS: Phrase(sentence="The first loss differs: the forward pass is not the same"),
    Curves.FIRST_COMMON: Phrase(
        sentence="The loss differs at step {step}, the first in common: the {side}'s log begins at {begins}",
        samples=({"side": "reference", "step": 2001, "begins": 1},),
    ),
    Curves.FACTOR: Phrase(
        sentence=_factor,
        samples=(
            {"factor": -1.0, "residual": 0.001},
            {"factor": 8.0, "residual": 0.001},
            {"factor": -2.0, "residual": 0.0},
        ),
    ),
    Curves.LEARNING_RATES: Phrase(
        sentence="The learning rates differ from step {step} and the losses diverge", samples=({"step": 12},)
    ),
    Curves.JUMP: Phrase(
        sentence=_jump,
        samples=(
            _DIVERGENCE,
            {**_DIVERGENCE, "shape": "slope"},
        ),
    ),
    Curves.GROWS: Phrase(
        sentence=lambda facts: (
            f"The loss difference grows from step {facts['step']}, to {signed(facts['after'])} at the end"
        ),
        samples=({**_DIVERGENCE, "shape": "slope"},),
    ),
    Curves.LATE: Phrase(
        sentence=lambda facts: (
            f"Late-stage offset: the runs agree until step {facts['step']}, then the loss differs by "
            f"{signed(facts['gap'])} ({percent(abs(facts['relative']))})"
        ),
        samples=({"gap": -0.02, "relative": -0.01, "step": 3000},),
    ),
    Curves.SECOND_LOSS: Phrase(
        sentence=lambda facts: facts.fill(
            "The first loss agrees, from step {step} on the loss differs: the update is not the same"
            if facts["first_agrees"]
            else "From step {step} on the loss differs"
        ),
        samples=({"step": 2, "first_agrees": True}, {"step": 2, "first_agrees": False}),
    ),
    Curves.EARLY_GAP: Phrase(
        sentence=lambda facts: (
            f"The loss differs from step {facts['step']} on, by {signed(facts['gap'])} "
            f"({percent(abs(facts['relative']))}) at the end"
        ),
        samples=({"gap": 5.4, "relative": 1.65, "step": 43},),
    ),
    Curves.OFFSET: Phrase(
        sentence=lambda facts: (
            f"The target's loss is {'higher' if facts['mean'] > 0 else 'lower'} by "
            + ("a steady {}" if facts["steady"] else "{} on average, and wanders").format(
                absolute(abs(facts["mean"]))
            )
        ),
        samples=(
            {"mean": 0.1, "steady": True},
            {"mean": -0.1, "steady": True},
            {"mean": -0.1, "steady": False},
        ),
    ),
    Curves.FLUCTUATES: Phrase(
        sentence="The loss difference fluctuates around zero by more than the standard allows"
    ),
    Curves.CONDITIONS: Phrase(
        sentence=lambda facts: f"Preconditions of the standard are not met: {_all(_criteria(facts))}",
        samples=({"criteria": ["settings"]}, {"criteria": ["weights", "randomness"]}),
    ),
    Curves.LOSSES_MISSING: Phrase(
        sentence="The {side}'s log has no finite loss at steps where the other run's has one",
        samples=({"side": "target"},),
    ),
    Curves.IDENTICAL: Phrase(sentence="The curves are identical at every step"),
    Curves.CENTRED: Phrase(
        sentence=lambda facts: (
            f"The curves agree{_finite(facts)}: their difference fluctuates around zero within the tolerance"
        ),
        samples=({}, {"finite": 800}),
    ),
    Curves.WITHIN_REPEATS: Phrase(
        sentence=lambda facts: (
            f"The curves agree{_finite(facts)}: their steady difference is within the reference's own repeats"
        ),
        samples=({}, {"finite": 800}),
    ),
    Curves.WITHIN_STANDARD: Phrase(
        sentence=lambda facts: f"The curves agree within the standard{_finite(facts)}",
        samples=({}, {"finite": 800}),
    ),
    Curves.NOT_PROVED: Phrase(
        sentence=_not_proved,
        samples=(
            {"criteria": ["weights", "randomness"], "parts": (reason(Curves.CENTRED),)},
            {"criteria": ["randomness"], "parts": (reason(Curves.CENTRED),)},
        ),
    ),
    Curves.FAILED: Phrase(
        sentence="{parts[0]}: {parts[1]}, expected {parts[2]}",
        samples=({"criterion": "first_loss", "parts": FIRST_LOSS},),
    ),
    Curves.FAILED_BY_LOST: Phrase(
        sentence=lambda facts: facts.fill(
            "{parts[0]}: {parts[2]}" + ("; over the finite part {parts[1]}" if facts["known"] else "")
        ),
        samples=tuple(
            {
                "criterion": "mean_loss",
                "parts": (*FIRST_LOSS[:2], reason(Criteria.LOST_LOSSES, num=12)),
                "known": known,
            }
            for known in (True, False)
        ),
    ),
    Curves.MEAN: Phrase(
        sentence=_mean,
        samples=(
            {**_INTERVAL, "is_centred": False},
            {**_INTERVAL, "is_centred": True},
            {**_INTERVAL, "low": -0.001, "is_centred": True},
        ),
    ),
    Curves.FINITE_MEAN: Phrase(
        sentence=lambda facts: facts.fill(
            f"signed mean difference over the {{num:count step}} with finite losses: {_interval(facts)}"
        ),
        samples=({**_INTERVAL, "num": 2000},),
    ),
    Curves.ONSET: Phrase(
        sentence=_onset,
        samples=(
            _DIVERGENCE,
            {**_DIVERGENCE, "shape": "slope"},
            {**_DIVERGENCE, "shape": "slope", "latest": 480},
        ),
    ),
    Curves.LATE_GAP: Phrase(
        sentence=_late_gap,
        samples=({"gap": 0.02, "standard_error": 0.001, "relative": 0.01, "trend": "growing"},),
    ),
    Curves.LEAVES_BAND: Phrase(
        sentence=lambda facts: (
            "leaves "
            + ("the band of the repeats" if facts["band"] == "repeats" else "the standard thresholds")
            + f" for good at step {facts['step']}"
        ),
        samples=({"band": "repeats", "step": 31}, {"band": "standard", "step": 31}),
    ),
    Curves.WARNED: Phrase(
        sentence=_warned,
        samples=(
            {"criterion": "first_loss", "parts": FIRST_LOSS},
            {"criterion": "repeats", "parts": (*FIRST_LOSS, reason(Criteria.NO_REPEATS))},
        ),
    ),
    Curves.SYSTEMATIC: Phrase(
        sentence=lambda facts: (
            f"small but systematic: the difference is not centred on zero ({signed(facts['mean'])} ± "
            f"{absolute(facts['standard_error'])}), which rounding alone rarely causes"
        ),
        samples=({"mean": 0.001, "standard_error": 0.0001},),
    ),
    Curves.SPIKE_REFERENCE: Phrase(
        sentence=lambda facts: _spike(facts, one="The reference", other="the target"),
        samples=(
            {"height": 2.5, "first": 886, "last": 930, "num": 1},
            {"height": 2.5, "first": 8, "last": 8, "num": 3},
        ),
    ),
    Curves.SPIKES_TARGET: Phrase(
        sentence=lambda facts: facts.fill(
            f"{{num:count spike}} of the {{column}} in the target only, at step {_steps(facts)}"
        ),
        samples=({"column": "loss", **_BATCH_STEPS}, {"column": "loss", "num": 1, "steps": ["12"]}),
    ),
    Curves.SPIKES_BOTH: Phrase(
        sentence=lambda facts: facts.fill(
            f"{{num:count spike}} of the {{column}} in both runs, at step {_steps(facts)}: the same data may "
            "cause them"
        ),
        samples=({"column": "gradient norm", **_BATCH_STEPS},),
    ),
    Curves.OVERFLOWS: Phrase(
        sentence=lambda facts: facts.fill(f"the {{side}} overflowed at {{num:count step}}: {_steps(facts)}"),
        samples=({"side": "target", **_BATCH_STEPS},),
    ),
    Curves.NOT_FINITE_STEPS: Phrase(
        sentence=lambda facts: facts.fill(
            f"the {{side}} is not finite at {{num:count step}}: {_steps(facts)}"
        ),
        samples=({"side": "target", "num": 1, "steps": ["12"]},),
    ),
    Curves.PLATEAU: Phrase(
        sentence="the {side}'s loss stops falling at step {step}, the other run's does not",
        samples=({"side": "target", "step": 700},),
    ),
    Curves.LOGGED_RATES: Phrase(
        sentence=lambda facts: (
            f"the logged learning rates differ from step {facts['step']}, by up to "
            f"{percent(facts['relative'])}"
        ),
        samples=({"step": 3, "relative": 0.02},),
    ),
    Curves.LATE_BELOW_1_PERCENT: Phrase(
        sentence=lambda facts: (
            f"the late gap is {percent(facts['relative'])}, below 1 %: acceptance can continue with the "
            "evaluation of downstream tasks"
        ),
        samples=({"relative": 0.004},),
    ),
    Curves.OVERFLOW_CHECK: Phrase(
        sentence="run it again with --task overflow_check, which names the first call that produces NaN or "
        "infinity"
    ),
    Curves.LOOK_AT_BATCHES: Phrase(sentence="decode the batches around the step and look for abnormal data"),
    Curves.LEAVE_BATCH_OUT: Phrase(
        sentence="skip that batch and train again: if the loss is then normal, the data is the cause"
    ),
    Curves.LOOK_FOR_OVERFLOW: Phrase(
        sentence="look for overflow around the step, and for a weight with an abnormal local norm"
    ),
    Curves.CHECK_OPTIMIZER: Phrase(
        sentence="check the optimizer: type, learning rate schedule, weight decay and the weights it applies "
        "to (some frameworks exclude biases and one-dimensional weights by default)"
    ),
    Curves.CHECK_PRECISION: Phrase(
        sentence="check mixed precision operation by operation against the reference"
    ),
    Curves.CHECK_REDUCTION: Phrase(
        sentence="compare how the loss is reduced and logged: its sign, sum or mean, over which tokens, "
        "times or divided by which number of microbatches or ranks"
    ),
    Curves.COMPARE_FIRST_FORWARD: Phrase(
        sentence="no weight was updated yet: compare structure, weights, data and precision of the first "
        "forward pass"
    ),
    Curves.COMPARE_CHECKPOINT: Phrase(
        sentence="the weights may differ already at this step: compare the two checkpoints "
        "(trueup compare-weights), or start both runs from the same one"
    ),
    Curves.DIAGNOSE_FIRST_STEP: Phrase(
        sentence="capture step 1 on both sides and run trueup diagnose to find the module"
    ),
    Curves.FORWARD_ONLY: Phrase(
        sentence="no weight was updated: each of these batches shows a difference of the forward pass"
    ),
    Curves.RUN_ONE_BATCH: Phrase(sentence="run one of them alone and compare forward and backward"),
    Curves.ANALYSE_OUTLIER: Phrase(
        sentence="use the data of such a step alone to analyse forward and backward"
    ),
    Curves.LONG_TEST: Phrase(sentence="now set the learning rate above 0 and run the long test"),
    Curves.COMPARE_LOCAL_NORMS: Phrase(
        sentence="compare the local norms of step 1 weight by weight: an embedding computed in another "
        "precision shows there"
    ),
    Curves.CHECK_ROUTER: Phrase(
        sentence="compare what this part is made of: the router's scores and dtype, the loss's formula and "
        "coefficient, over which tokens, layers and ranks it is averaged, and how it is logged"
    ),
    Curves.REPEAT_REFERENCE: Phrase(
        sentence="repeat the reference at least twice with determinism off: if it fluctuates as much, that "
        "is its own spread"
    ),
    Curves.FREEZE_WEIGHTS: Phrase(
        sentence="set the learning rate to 0 and compare step by step: what still differs is forward or "
        "backward"
    ),
    Curves.TURN_DETERMINISM_ON: Phrase(
        sentence="turn determinism on on both sides (and dropout off), then repeat the test"
    ),
    Curves.DOWNSTREAM: Phrase(
        sentence="the late gap is below 1 %: acceptance can continue with the evaluation of downstream tasks"
    ),
    Curves.STEPS_ALIKE: Phrase(
        sentence=_alignment,
        samples=(
            {"offset": 0, "basis": "given", "correlation": None, "runner_up": None},
            {"offset": 0, "basis": "unrelated", "correlation": 0.01, "runner_up": None},
            {"offset": 0, "basis": "assumed", "correlation": math.pi / 10, "runner_up": 0.2},
        ),
    ),
    Curves.STEPS_SHIFTED: Phrase(sentence=_alignment, samples=(_ALIGNED, {**_ALIGNED, "offset": -2})),
    Curves.ALIGNED: Phrase(
        sentence="{target} (target) and {reference} (reference): {parts:join ; }",
        samples=({"target": "a.log", "reference": "b.log", "parts": (reason(Curves.CENTRED),)},),
    ),
    Curves.COARSE: Phrase(
        sentence="{curve} logs every {interval} steps, as a mean since its last line: it is compared with "
        "the others' means over the same steps",
        samples=({"curve": "a.log", "interval": 10},),
    ),
    Curves.OF_CURVE: Phrase(
        sentence="{curve}: {parts:join ; }",
        samples=({"curve": "a.log", "parts": (reason(Curves.COUNTED_LINES, unit="row"),)},),
    ),
    Curves.OTHER_LOGS: Phrase(
        sentence="the one with the most steps of {num:count set} of logs is read; not read: {left_out}",
        samples=({"num": 3, "left_out": ["a (Megatron)", "b (verl)"]},),
    ),
    Curves.RESTARTED: Phrase(
        sentence=_restarted,
        samples=(
            {"curve": "a.log", "step": 100, "num": 1, "max_loss_diff": None},
            {"curve": "a.log", "step": 100, "num": 12, "max_loss_diff": 0.01},
        ),
    ),
    Curves.FEW_DECIMALS: Phrase(
        sentence="{curve} prints its loss with {places:count decimal}: each is rounded by up to {unseen:g}",
        samples=({"curve": "a.log", "places": 1, "unseen": 0.05},),
    ),
    Curves.NORMS_ONE_SIDE: Phrase(
        sentence="{curve} prints local norms, no local norm was read from {other}: they are not compared",
        samples=({"curve": "a.log", "other": "b.log"},),
    ),
    Curves.NORMS_UNREAD: Phrase(
        sentence="it mentions local norms, none could be read: expected a whole list before its step's line"
    ),
    Curves.NORMS_UNPAIRED: Phrase(
        sentence=lambda facts: facts.fill(
            "local norms are not compared: {target:count weight} (target) vs {reference:count weight} "
            "(reference), without names or steps in common"
        ),
        samples=({"target": 3, "reference": 4},),
    ),
    Curves.COUNTED_LINES: Phrase(
        sentence="it has no step numbers: each {unit} counts as one step, from 1", samples=({"unit": "row"},)
    ),
    Curves.NAME_FIRST_OVERFLOW: Phrase(sentence="names the first call that produces NaN or infinity"),
    Curves.CAPTURE_FIRST_STEPS: Phrase(
        sentence="captures the target's first two steps; do the same for the reference"
    ),
    Curves.DIAGNOSE_STEPS: Phrase(sentence="where these steps differ, and why"),
    Curves.ONE_BATCH: Phrase(
        sentence="runs the batch of step {step} alone, without updates", samples=({"step": 12},)
    ),
    Curves.FROZEN_RUN: Phrase(sentence="forward and backward step by step, without updates"),
    Curves.CAPTURE_AROUND: Phrase(
        sentence="captures the steps around step {step} of the log (trueup counts from 0); do the same for "
        "the reference",
        samples=({"step": 500},),
    ),
    Curves.WITHOUT_BATCH: Phrase(
        sentence="the same training without that batch, to see if the data is the cause"
    ),
    Curves.PROVE_CONDITIONS: Phrase(
        sentence="captures its first two steps; do the same for the reference. With --target-trace target "
        "--reference-trace reference they prove weights, hyperparameters and batches"
    ),
}
