"""Why a record has no counterpart or no verdict."""

from trueup.types.codes.given import GivenCode
from trueup.types.codes.record import RecordCode as Is
from trueup.types.reason import given, reason
from trueup.wording.phrase import Phrase, ReasonFacts, listed, one_plus

_SIDE = {"side": "reference"}
_LACKS = "no counterpart: "
_NUMBERS = (("nan", "NaN"), ("posinf", "+Inf"), ("neginf", "-Inf"))


def _not_finite(facts: ReasonFacts) -> str:
    parts = []
    if facts.get("places"):
        parts.append(f"NaN or infinity on one side only at {facts.fill('{places:count place}')}")
    if facts.get("what"):
        parts.append(f"the {facts['side']}'s statistics show {facts['what']}, the other's none")
    for name, what in _NUMBERS:
        target, reference = facts.get(f"target_{name}"), facts.get(f"reference_{name}")
        if target is not None:
            parts.append(f"{what} count: {target:,} (target) vs {reference:,} (reference)")
    return "; ".join([*facts.parts, *parts])


def _dtypes(facts: ReasonFacts) -> str:
    sentence = facts.fill("dtype: {target} (target) vs {reference} (reference)")
    return (
        f"{sentence}; {facts.parts[0]}" if facts.parts else f"{sentence}; the coarser one sets the tolerance"
    )


def _other_calls(facts: ReasonFacts) -> str:
    return f"{_LACKS}the {facts['side']} calls {listed(facts['calls'], 3)} here"


def _fused(facts: ReasonFacts) -> str:
    return f"{_LACKS}fused; the {facts['side']} has {listed(facts['modules'])}"


def _copy(facts: ReasonFacts) -> str:
    ranks = facts["ranks"]
    distance = "" if facts.get("rel_l2") is None else facts.fill(" by {rel_l2:.2g}")
    return (
        f"rank {listed(ranks)} differs{distance} along {facts['axis']}"
        if len(ranks) == 1
        else (f"ranks {listed(ranks)} differ{distance} along {facts['axis']}")
    )


def _copies(facts: ReasonFacts) -> str:
    whose = f"{facts['side']}: " if facts.get("side") else ""
    return f"{whose}copies on several ranks must be equal, but {'; '.join(facts.parts)}"


def _common_factor(facts: ReasonFacts) -> str:
    return (
        f"within noise by size, but the target is the reference times {one_plus(facts['factor'])}; reruns of "
        f"the reference show {facts['noise']:.1g}"
    )


def _one_rounding(facts: ReasonFacts) -> str:
    others = "another module" if facts["num_alike"] == 1 else f"{facts['num_alike']} other modules"
    return (
        f"as large as one rounding, but all preceding records are bit-identical, {others} of {facts['like']} "
        "among them"
    )


PHRASES = {
    Is.PHASE_NOT_CAPTURED: Phrase(
        sentence="the {side} has no {phase} records: captured on one side only",
        samples=({**_SIDE, "phase": "backward"},),
    ),
    Is.KIND_NOT_CAPTURED: Phrase(
        sentence="the {side} has no {kind} calls: captured on one side only",
        samples=({**_SIDE, "kind": "api"},),
    ),
    Is.NO_SUCH_TENSOR: Phrase(sentence="the {side} has no such tensor at this call", samples=(_SIDE,)),
    Is.FEWER_MICROBATCHES: Phrase(
        sentence="the {side} has only {microbatches:count microbatch} in this step",
        samples=({**_SIDE, "microbatches": 1}, {**_SIDE, "microbatches": 4}),
    ),
    Is.WRAPPER: Phrase(
        sentence="a wrapper module; the {side} calls the wrapped module directly", samples=(_SIDE,)
    ),
    Is.MODULE_UNMATCHED: Phrase(
        sentence=f"{_LACKS}its module {{module}} has none", samples=({"module": "layers.1.mlp"},)
    ),
    Is.NO_PARAMETER: Phrase(
        sentence=f"{_LACKS}the {{side}} has no parameter {{parameter}} in this step",
        samples=({**_SIDE, "parameter": "layers.1.bias"},),
    ),
    Is.OTHER_CALLS: Phrase(
        sentence=_other_calls,
        samples=({**_SIDE, "calls": ("torch.topk",)}, {**_SIDE, "calls": ("a", "b", "c", "d", "e")}),
    ),
    Is.NOT_CALLED: Phrase(
        sentence=f"{_LACKS}the {{side}} does not call {{call}} here",
        samples=({**_SIDE, "call": "torch.topk"},),
    ),
    Is.NO_SUCH_CALL: Phrase(sentence="the {side} has no such call", samples=(_SIDE,)),
    Is.GRADIENT_ABSENT: Phrase(
        sentence="missing gradient: the {side} has none here", samples=(_SIDE, {"side": "target"})
    ),
    Is.MAPPED_TO_NONE: Phrase(sentence=f"{_LACKS}the map says so"),
    Is.PART_OF_FUSED: Phrase(
        sentence=f"{_LACKS}the {{side}} computes it as one part of a fused module", samples=(_SIDE,)
    ),
    Is.NO_WEIGHTS: Phrase(
        sentence=f"{_LACKS}the module has no weights, and no module of the {{side}} returns the same tensors",
        samples=(_SIDE,),
    ),
    Is.FUSED: Phrase(sentence=_fused, samples=({**_SIDE, "modules": ("q", "k", "v")},)),
    Is.SAME_WEIGHTS: Phrase(
        sentence="no counterpart of its own: in the {side}, {module} holds the same weights",
        samples=({**_SIDE, "module": "wte"},),
    ),
    Is.NO_SUCH_MODULE: Phrase(
        sentence=f"{_LACKS}no module of the {{side}} holds exactly these weights", samples=(_SIDE,)
    ),
    Is.NO_SUCH_WEIGHT: Phrase(
        sentence=f"{_LACKS}no weight of the {{side}} is known to hold these values", samples=(_SIDE,)
    ),
    Is.TENSOR_UNKNOWN: Phrase(
        sentence=f"{_LACKS}no tensor of the {{side}} is known to be this one", samples=(_SIDE,)
    ),
    Is.SUMMED_IN_ANOTHER_ORDER: Phrase(
        sentence="the runs add up the gradients of the microbatches in another order; their sum is compared"
    ),
    Is.OTHER_USE: Phrase(
        sentence=f"{_LACKS}the gradient of another use of this tensor; this call only passes it on"
    ),
    Is.ROOT_NOT_DUMPED: Phrase(sentence="msprobe does not dump the outermost module"),
    Is.ONE_GRADIENT_DUMPED: Phrase(
        sentence="msprobe dumps one gradient of each weight: .grad, after backward"
    ),
    Is.KEYWORD_GRADIENTS_NOT_DUMPED: Phrase(
        sentence="msprobe does not dump gradients of a module's keyword arguments"
    ),
    Is.NO_SUMMARY: Phrase(
        sentence="no summary of the tensor: {parts:join ; }",
        samples=({"parts": (reason(Is.SIDE_WITHOUT_SUMMARY, side="target"),)},),
    ),
    Is.SIDE_WITHOUT_SUMMARY: Phrase(
        sentence=lambda facts: f"{(facts.parts or ('no tensor here',))[0]} ({facts['side']})",
        samples=(_SIDE, {**_SIDE, "parts": (given("uninitialised memory"),)}),
    ),
    Is.SHAPE_DIFFERS: Phrase(
        sentence="shape: {target} (target) vs {reference} (reference)",
        samples=({"target": "[8, 4]", "reference": "[4, 8]"},),
    ),
    Is.REGROUPED: Phrase(
        sentence="made from inputs of another size; what leaves the model in this step agrees"
    ),
    Is.UNCOUNTED_LABELS: Phrase(
        sentence="labels differ where none counts: the loss and the gradients it sends into the model agree"
    ),
    Is.ANOTHER_ORDER: Phrase(
        sentence="the same numbers in another order; what is made of them is compared", samples=({},)
    ),
    Is.CALLED_MORE_OFTEN: Phrase(
        sentence="the same call of the same tensors is made {target:count time} (target) and "
        "{reference:count time} (reference): each gets its part of the gradient",
        samples=({"target": 2, "reference": 1},),
    ),
    Is.WITHOUT_EFFECT: Phrase(sentence="comes out nowhere: the loss and the gradients of all weights agree"),
    Is.REDUCED_LATER: Phrase(
        sentence="one run reduces this gradient after backward; what the optimizer is given agrees"
    ),
    Is.REDUCED_IN_PARTS: Phrase(
        sentence="one run reduces gradients in more calls; the gradients of all weights agree"
    ),
    Is.SUMMED_OVER_STEPS: Phrase(
        sentence="one run reduces a sum of several steps that the other reduces one by one; the sums agree"
    ),
    Is.GATHERED_ELSEWHERE: Phrase(
        sentence="the optimizer has masters of the weights, and is given gradients of them that agree"
    ),
    Is.NORM_IN_PARTS: Phrase(
        sentence="ranks add up the norm of the gradients from other parts; clipping to it gives the same "
        "gradients"
    ),
    Is.OTHER_GROUPS: Phrase(
        sentence="the runs clip gradients in other groups, by dtype or device; each is compared as that of "
        "its weight"
    ),
    Is.REDUCED_BY_OPTIMIZER: Phrase(
        sentence="ranks hold gradients of their own; the optimizer updates the weight alike on all ranks, as "
        "the other run does"
    ),
    Is.NO_COMMON_EVIDENCE: Phrase(sentence="both sides have no digest, statistics or sketch in common"),
    Is.DIGESTS_DIFFER: Phrase(
        sentence="the digests differ, and no statistics or values on both sides say by how much"
    ),
    Is.ROWS_DEALT_OTHERWISE: Phrase(
        sentence="the call is given other rows in the two runs, which deal out the rows of the step otherwise"
    ),
    Is.TOKENS_CHOSEN_OTHERWISE: Phrase(
        sentence="the tokens chosen for this call differ, so that its rows are those of other tokens; what "
        "comes of all tokens together is compared"
    ),
    Is.BOUNDARIES_REORDERED: Phrase(
        sentence="boundaries of packed sequences, which are the same sequences in another order"
    ),
    Is.NOTHING_FINITE: Phrase(sentence="the summaries hold no finite number"),
    Is.NO_NORM: Phrase(
        sentence="the values differ, and the summaries hold neither a norm nor both minimum and maximum, so "
        "no tolerance can be given"
    ),
    Is.MAY_FOLLOW_ROUNDING: Phrase(
        sentence="integers that may follow from rounding differences in preceding records"
    ),
    Is.AUTOGRAD_ORDER: Phrase(
        sentence="gradients are in the order of the call's last autograd node, not of its arguments"
    ),
    Is.AUTOGRAD_ORDER_ON_ONE_SIDE: Phrase(
        sentence="one side lists gradients in the order of the call's last autograd node: "
        "which argument it belongs to is unknown"
    ),
    Is.LOWER_BOUND: Phrase(sentence="bits differ; statistics give only a lower bound of the difference"),
    Is.NOT_FINITE: Phrase(
        sentence=_not_finite,
        samples=(
            {"places": 1},
            {"target_nan": 3, "reference_nan": 0, "target_posinf": 0, "reference_posinf": 1},
            {"places": 2, "target_neginf": 2, "reference_neginf": 0},
            {"what": "NaN", "side": "target"},
        ),
    ),
    Is.DTYPE_DIFFERS: Phrase(
        sentence=_dtypes,
        samples=(
            {"target": "bfloat16", "reference": "float32"},
            {"target": "bfloat16", "reference": "float32", "parts": (reason(Is.LOWER_BOUND),)},
        ),
    ),
    Is.DTYPE_DIFFERS_WITH_EFFECT: Phrase(
        sentence="dtype: {target} (target) vs {reference} (reference); the finer one sets the tolerance, "
        "because later records differ by more than their tolerance",
        samples=({"target": "bfloat16", "reference": "float32"},),
    ),
    Is.COPIES_DIFFER: Phrase(
        sentence=_copies,
        samples=(
            {"rel_l2": 0.01, "parts": (reason(Is.COPY_DIFFERS, axis="tp", ranks=("3",), rel_l2=0.01),)},
            {"side": "target", "parts": (reason(Is.COPY_DIFFERS, axis="tp", ranks=("2", "3")),)},
        ),
    ),
    Is.COPY_DIFFERS: Phrase(
        sentence=_copy,
        samples=({"axis": "tp", "ranks": ("3",), "rel_l2": 0.01}, {"axis": "tp", "ranks": ("2", "3")}),
    ),
    Is.PARTS_NOT_MERGED: Phrase(
        sentence="the parts of {num_ranks:count rank} were not merged: {parts[0]}",
        samples=({"num_ranks": 4, "parts": (reason(GivenCode.TEXT, text="1 of 2 parts along tp"),)},),
    ),
    Is.MEAN_OF_TOKENS: Phrase(
        sentence="all preceding records are bit-identical: rounding each of {tokens:count token} to {dtype} "
        "explains less of a mean",
        samples=({"tokens": 256, "dtype": "bfloat16"},),
    ),
    Is.NOT_READ: Phrase(sentence="a view of memory that no recorded call of one run reads in this step"),
    Is.ONE_ROUNDING: Phrase(
        sentence=_one_rounding,
        samples=({"like": "layers.*.ln", "num_alike": 1}, {"like": "layers.*.ln", "num_alike": 2}),
    ),
    Is.AFTER_EQUAL_STEPS: Phrase(
        sentence="all steps before step {step} and all records before this one are bit-identical: other bits "
        "come of other code or state",
        samples=({"step": 1},),
    ),
    Is.COMMON_FACTOR: Phrase(
        sentence=_common_factor,
        samples=({"factor": 0.002, "noise": 0.0001},),
    ),
}
