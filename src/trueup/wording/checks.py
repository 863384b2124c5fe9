"""English of the checks of one run that read numbers: finite, range, gradients, updates, master weights."""

from __future__ import annotations

import math

from trueup.types.codes import CheckCode as C
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts, clause, count, listed


def _values(facts: ReasonFacts) -> str:
    kinds = (("num_nan", "NaN"), ("num_posinf", "+inf"), ("num_neginf", "-inf"))
    shown = " and ".join(f"{facts[key]:,} {word}" for key, word in kinds if facts[key])
    origin = "the inputs are finite" if facts["is_made"] else "from earlier, or from code outside capture"
    return f"{shown} of {count(facts['numel'], 'value')} ({facts['dtype']}); {origin}"


def _finite(facts: ReasonFacts) -> str:
    aside = ", gradients of skipped steps aside" if facts.get("skips") else ""
    return f"every {listed(facts['kinds'])} is finite{aside} ({count(facts['num'], 'record')})"


def _not_finite_loss(facts: ReasonFacts) -> str:
    is_captured = facts.get("is_captured")
    rest = (
        "no weight of it that was captured is not finite"
        if is_captured
        else "no tensors of that step were captured"
    )
    return facts.fill("the loss is {value} in step {step} (rank {rank})") + f"; {rest}"


def _skipped(facts: ReasonFacts) -> str:
    more = f" and {facts['more']} more" if facts["more"] else ""
    return (
        f"the gradient scaler skipped step {facts['step']}{more}: gradients overflowed under the loss scale"
    )


def _in_range(facts: ReasonFacts) -> str:
    gradient = "" if facts["is_scaled"] else " and no gradient of one"
    large = (
        f"no call makes and no weight{gradient} holds a value above half of its dtype's largest, masks aside"
    )
    total, below = facts["num_gradients"], facts["num_small"]
    if not total:
        return large
    above = f"{total - below:,} of {count(total, 'gradient')}" if below else count(total, "gradient")
    return f"{large}; {above} in half precision {'lies' if total == 1 else 'lie'} above the smallest normal"


def _every_gradient(facts: ReasonFacts) -> str:
    steps = "1 step" if facts["steps"] == 1 else f"at least one of {count(facts['steps'], 'step')}"
    return f"non-zero gradients in {steps}: {count(facts['num'], 'trainable parameter')}"


def _some_gradients(facts: ReasonFacts) -> str:
    frozen = "frozen among trained layers"
    parts = (("missing", "without a gradient"), ("zero", "with zeros only"), ("frozen", frozen))
    shown = ", ".join(f"{facts[key]:,} {words}" for key, words in parts if facts[key])
    return f"of {count(facts['total'], 'parameter')}: {shown}; first {facts['parameter']}"


def _steps(facts: ReasonFacts) -> str:
    first, last = facts["first"], facts["last"]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _all_changed(facts: ReasonFacts) -> str:
    of = "" if facts["num"] == facts["total"] else f"{facts['num']:,} of "
    return f"{of}{count(facts['total'], 'parameter')} with a gradient changed in {_steps(facts)}"


def _unchanged(facts: ReasonFacts) -> str:
    return (
        f"unchanged in {_steps(facts)}: {facts['num']:,} of {count(facts['total'], 'parameter')} with a "
        f"gradient; {facts['parameter']}: {facts.parts[0]}"
    )


_LOST: dict[str, object] = {"rate": 1e-6, "dtype": "bfloat16", "spacing": 0.002, "size": 0.5}
_NORM: dict[str, object] = {"reported": 2.0, "recomputed": 1.0}

PHRASES = {
    C.NO_STEP: clause("no complete step was captured"),
    C.NO_STATISTICS: clause("the trace holds no statistics"),
    C.ONE_RANK: clause("the run has one rank"),
    C.ONE_DATA_RANK: clause("the run has one data-parallel rank"),
    C.ONE_REPLICA: clause("each rank holds a part of the model of its own: no weight is replicated"),
    C.ALSO: clause(
        "{parts:join ; }",
        {"parts": (reason(C.NORM_DIFFERS, step=0, rank=0, **_NORM, factor=2.0), reason(C.MAYBE_SHARDS))},  # type: ignore[arg-type]
    ),
    C.FINITE: clause(
        _finite,
        {"num": 12, "kinds": ["loss", "gradient of a weight", "weight"], "skips": False},
        {"num": 12, "kinds": ["loss", "gradient of a weight"], "skips": True},
    ),
    C.NOT_FINITE: clause(
        lambda facts: (
            f"{'NaN' if facts['is_nan'] else 'infinity'} "
            f"{'originates' if facts['is_made'] else 'first seen'} in step {facts['step']} at {facts['site']}"
        ),
        {"is_nan": True, "is_made": True, "step": 0, "site": "layers.1 · torch.log · output.0"},
        {"is_nan": False, "is_made": False, "step": 0, "site": "layers.1 · torch.log · output.0"},
    ),
    C.NOT_FINITE_VALUES: clause(
        _values,
        {"num_nan": 2, "num_posinf": 1, "num_neginf": 0, "numel": 64, "dtype": "float16", "is_made": True},
        {"num_nan": 0, "num_posinf": 0, "num_neginf": 1, "numel": 1, "dtype": "float16", "is_made": False},
    ),
    C.NOT_FINITE_LOSS: clause(
        _not_finite_loss,
        {"value": "NaN", "step": 7, "rank": 0, "is_captured": False},
        {"value": "inf", "step": 0, "rank": 0, "is_captured": True},
    ),
    C.MASKED_AWAY: clause(
        "values that are not finite, at {num:count site}, reach no loss and no weight or its gradient; first "
        "{site}",
        {"num": 1, "site": "layers.1 · torch.log · output.0"},
    ),
    C.STEPS_SKIPPED: clause(_skipped, {"step": 0, "more": 0}, {"step": 0, "more": 2}),
    C.KEEP_INPUTS: Phrase(
        sentence="to keep the input values of that call",
        command="trueup capture --task overflow_check -o RUN -- COMMAND",
    ),
    C.FIND_CALL: Phrase(
        sentence="to find the call that produces it",
        command="trueup capture --task overflow_check -o RUN -- COMMAND",
    ),
    C.IN_RANGE: clause(
        _in_range,
        {"num_gradients": 0, "num_small": 0, "is_scaled": False},
        {"num_gradients": 12, "num_small": 1, "is_scaled": True},
    ),
    C.NEAR_OVERFLOW: clause(
        "values are close to overflow: {site} in step {step}; {parts[0]}",
        {
            "site": "layers.1 · output.0",
            "step": 0,
            "parts": (reason(C.LARGE_VALUE, value=6e4, limit=65504.0, dtype="float16"),),
        },
    ),
    C.LARGE_VALUE: clause(
        "{value:.4g} of at most {limit:.4g} in {dtype}", {"value": 6e4, "limit": 65504.0, "dtype": "float16"}
    ),
    C.BELOW_NORMAL: clause(
        "below the smallest normal number on average: {num} of {total:count gradient} in half precision, "
        "first {site}",
        {"num": 1, "total": 12, "site": "a.weight · gradient local"},
    ),
    C.SMALL_VALUES: clause(
        "root mean square {rms:.2g} of non-zero values, smallest normal {normal:.2g} ({dtype}); {zero:share} "
        "zero",
        {"rms": 1e-6, "normal": 6e-5, "dtype": "float16", "zero": 0.4},
    ),
    C.SCALE_LOSS: clause(
        lambda facts: (
            ("raise the loss scale" if facts.get("is_scaled") else "scale the loss (torch.amp.GradScaler)")
            + ("" if facts.get("dtype") == "bfloat16" else ", or compute in bfloat16")
        ),
        {"is_scaled": False, "dtype": "float16"},
        {"is_scaled": True, "dtype": "bfloat16"},
    ),
    C.NO_PARAMETERS: clause("the trace lists no parameters"),
    C.NONE_TRAINABLE: clause("no parameter requires a gradient: nothing can be trained"),
    C.NONE_CAPTURED: clause("no gradient of a parameter was captured (--no-gradients, or no backward)"),
    C.EVERY_GRADIENT: clause(_every_gradient, {"num": 12, "steps": 1}, {"num": 12, "steps": 3}),
    C.SOME_GRADIENTS: clause(
        _some_gradients, {"total": 12, "missing": 1, "zero": 0, "frozen": 2, "parameter": "a.weight"}
    ),
    C.MISSING: clause("no gradient at all: not used in the forward, or detached on the way to the loss"),
    C.ONLY_ZEROS: clause("only zeros: the backward path is cut or multiplied by zero"),
    C.FROZEN_HERE: clause("frozen, while the same parameter of other layers is trained"),
    C.NUM_FROZEN: clause(
        "frozen: {num} of {total:count parameter}, first {parameter}",
        {"num": 1, "total": 12, "parameter": "a.weight"},
    ),
    C.EXPERTS: clause(
        "no gradient other than zeros, as experts that received no token: {num:count parameter}",
        {"num": 1},
        {"num": 4},
    ),
    C.BEHIND_ZEROS: clause(
        "gradient of zeros, behind weights that start at zero: {num:count parameter}, first {parameter}",
        {"num": 1, "parameter": "a.weight"},
        {"num": 4, "parameter": "a.weight"},
    ),
    C.NUM_EVALUATED: clause(
        "of models that are only evaluated, such as a reference model: {num:count parameter}, first "
        "{parameter}",
        {"num": 1, "parameter": "a.weight"},
        {"num": 21, "parameter": "a.weight"},
    ),
    C.NORM_OF_MASTERS: clause(
        "the optimizer clips gradients of tensors outside the model, such as master weights, and reports "
        "the norm of those"
    ),
    C.NO_NORM: clause("no gradient norm was reported: no call of clip_grad_norm_ was captured"),
    C.NORM_NOT_CAPTURED: clause("the gradients of the reported norm were not captured, or are shards"),
    C.NORM_NOT_FINITE: clause(
        "no reported norm can be compared: it, or a gradient of its step, is not finite"
    ),
    C.NORM_AGREES: clause(
        "{reported:.6g} reported, {recomputed:.6g} recomputed: largest difference among {num:count norm}",
        {**_NORM, "num": 3},
    ),
    C.NORM_DIFFERS: clause(
        lambda facts: (
            facts.fill(
                "step {step}, rank {rank}: norm {reported:.6g} reported, {recomputed:.6g} recomputed from "
                "the gradients"
            )
            + (facts.fill(", a factor of {factor:.4g}") if math.isfinite(facts["factor"]) else "")
        ),
        {"step": 0, "rank": 0, **_NORM, "factor": 2.0},
        {"step": 0, "rank": 0, "reported": 2.0, "recomputed": 0.0, "factor": math.inf},
    ),
    C.SEVERAL_OPTIMIZERS: clause("there are several optimizers, and the norm may belong to one of them"),
    C.MAYBE_SHARDS: clause("ranks may hold shards, whose norms add up"),
    C.NOT_UNSCALED: clause("the factor is the loss scale: clipped before scaler.unscale_()"),
    C.REPLICAS_COUNTED: clause(
        "the factor is the square root of the number of replicas ({num}): each is counted",
        {"num": 4},
    ),
    C.MICROBATCHES: clause(
        "the factor is the number of microbatches ({num}): either the norm or the gradients are not divided",
        {"num": 4},
    ),
    C.ONE_OVER_MICROBATCHES: clause("the factor is one over the number of microbatches ({num})", {"num": 4}),
    C.NO_UPDATE: clause("no update can be judged: {parts:join ; }", {"parts": (reason(C.NONE_IN_STEPS),)}),
    C.NONE_IN_STEPS: clause("no update is among the captured steps"),
    C.NONE_DUE: clause(
        "no parameter has a gradient, its weight before and after, and an update that its dtype can hold"
    ),
    C.STEP_SKIPPED: clause("step {step} was skipped by the gradient scaler", {"step": 0}),
    C.RATE_ZERO: clause("the learning rate is 0 in step {step}", {"step": 0}),
    C.CAPTURE_MORE: clause("capture more steps: --steps 0-4"),
    C.ALL_CHANGED: clause(
        _all_changed,
        {"num": 1, "total": 1, "first": 0, "last": 0},
        {"num": 8, "total": 12, "first": 0, "last": 2},
    ),
    C.UNCHANGED: clause(
        _unchanged,
        {
            "num": 1,
            "total": 12,
            "first": 0,
            "last": 1,
            "parameter": "a.weight",
            "parts": (reason(C.NOT_HELD),),
        },
    ),
    C.AWAITING: clause(
        "updates too small for their dtype, kept by master weights: {num:count working copy}", {"num": 2}
    ),
    C.LOST_IN_ROUNDING: clause(
        "the update is lost in rounding: about {rate:.2g} is less than half the spacing of {dtype} "
        "({spacing:.2g} at {size:.2g})",
        _LOST,
    ),
    C.SAME_BITS: clause("the value has the same bits after the optimizer's step: update dropped or undone"),
    C.STALE_PARAMETERS: clause(
        "no optimizer holds it, but one updates {other}, of the same shape and outside the model: stale "
        "parameters",
        {"other": "AdamW.group0.3"},
    ),
    C.NOT_HELD: clause("no optimizer holds it"),
    C.KEEP_MASTERS: clause("keep master weights in float32"),
    C.OPTIMIZER_LAST: clause("create the optimizer after the model is moved, wrapped or converted"),
    C.ALL_PARAMETERS: clause("pass all of model.parameters() to the optimizer"),
    C.FIND_RESTORE: clause(
        "look for code that restores weights after optimizer.step(), or an update scaled to zero"
    ),
    C.NO_HALF: clause("no weight is kept in half precision"),
    C.MASTERS_EQUAL: clause(
        lambda facts: (
            f"{count(facts['num'], 'working copy')} equal to the rounded master weights "
            f"({'bit for bit' if facts['is_exact'] else 'by largest, smallest and sketch'})"
        ),
        {"num": 1, "is_exact": True},
        {"num": 12, "is_exact": False},
    ),
    C.NOT_ROUNDED: clause(
        "not the rounded master weights: {num} of {total:count working copy}; first {site}, {parts[0]}",
        {
            "num": 1,
            "total": 12,
            "site": "a.weight · value",
            "parts": (reason(C.VALUES_DIFFER, num=2, total=64),),
        },
    ),
    C.OF_MASTER: clause(
        "{parts[0]}; master {master} {slot}",
        {
            "master": "AdamW.group0.0",
            "slot": "param",
            "parts": (reason(C.VALUES_DIFFER, num=2, total=64),),
        },
    ),
    C.VALUES_DIFFER: clause(
        "different from the rounded master: {num:,} of {total:count value}", {"num": 2, "total": 64}
    ),
    C.EXTREME_DIFFERS: clause(
        "its {which} value is {copy:.6g}, the master's {master:.6g}, rounded {rounded:.6g}",
        {"which": "largest", "copy": 1.0, "master": 1.1, "rounded": 1.1016},
    ),
    C.FAR_FROM_MASTER: clause(
        "relative distance to the master {distance:.2g}; rounding explains {allowed:.2g}",
        {"distance": 0.1, "allowed": 0.005},
    ),
    C.TWO_STEPS: clause("two consecutive steps are needed: the update of one, the weights of the next"),
    C.NO_MASTERS: clause(
        "no master weights seen for {num:count weight} in {dtype}: updates below {below:.2g} of a weight are "
        "lost",
        {"num": 1, "dtype": "bfloat16", "below": 0.004},
    ),
    C.COPY_MASTERS: clause("copy the master weights to the model after every optimizer.step()"),
    C.MASTERS_RESTARTED: clause(
        "updated from the rounded working copy instead of the master weight: {num} of {total:count weight}; "
        "first {site}, {parts[0]}",
        {
            "num": 1,
            "total": 12,
            "site": "a.weight · value",
            "parts": (reason(C.START_SHARE, share=0.999, error=2e-6),),
        },
    ),
    C.START_SHARE: clause(
        "{share:.3f} of the rounding error is in the update (standard error {error:.1g})",
        {"share": 0.999, "error": 2e-6},
    ),
    C.KEEP_APART: clause(
        "copy master weights to the model only, never back: updates below rounding are lost"
    ),
}
