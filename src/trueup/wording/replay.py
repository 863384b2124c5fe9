"""What a replay says."""

from __future__ import annotations

from trueup.types.codes import LeftFree, ReplayCode
from trueup.types.reason import Reason
from trueup.wording.phrase import UNKNOWN, Phrase, ReasonFacts, percent, times

_SHAPES = ({"target": "[2, 3]", "reference": "[3, 2]"},)
_LAYOUT = ({"layout": "sparse_coo"},)
_BASIS = {
    "benign_variant": "the difference of a benign variant",
    "dtype_bound": "the rounding bound of one call",
    "exact_loss": "the bound from the reference's distance to the exact loss",
}


def _place(facts: ReasonFacts) -> str:
    """``forward output.0 of layers.0``; an API call with the module that makes it."""
    site = facts["site"]
    if facts.get("module") is not None:
        site = f"{site} in {facts['module'] or 'the program'}"
    return f"{facts['phase']} {facts['slot']} of {site}"


def _differs(facts: ReasonFacts) -> str:
    size, allowed = facts["rel_l2"], facts["tolerance"] if facts.get("tolerance") is not None else UNKNOWN
    text = f"{_place(facts)}: relative difference {size:.2g}"
    if size > allowed:
        ratio = times(size / allowed) if allowed else "infinitely many times"
        text += f", {ratio} {_BASIS[facts['basis']]}"
    return "".join((text, *(f", {part}" for part in facts.parts)))


def _exact_values_differ(facts: ReasonFacts) -> str:
    return ", ".join((f"{_place(facts)}: values differ, although they are not rounded", *facts.parts))


def _unlike_one(scale: float) -> str:
    """A factor, with as many digits as tell it from 1."""
    shown = (f"{float(scale):.{digits}g}" for digits in range(6, 18))
    return next((text for text in shown if text != "1"), "1")


def _not_finite(facts: ReasonFacts) -> str:
    return f"{_place(facts)}: NaN or infinite on one side, or not zero where the reference is zero"


def _missing_gradient(facts: ReasonFacts) -> str:
    other = "reference" if facts["side"] == "target" else "target"
    return (
        f"backward {facts['slot']} of {facts['site']}: missing gradient in the {facts['side']} "
        f"(the {other} has one): {facts.parts[0]}"
    )


_HERE = {"phase": "forward", "slot": "output.0", "site": "layers.0.attn"}
_API = {"phase": "backward", "slot": "input.1", "site": "torch.matmul[1]", "module": "layers.0.attn"}
_SETTING = Reason(ReplayCode.WITH_SETTING, places=(("name", "eps"), ("value", "1e-05")))
_FLOAT32 = Reason(ReplayCode.IN_FLOAT32)
_PEERS = Reason(ReplayCode.PEERS_AGREE, (("num_peers", 3),))
_ONE_PEER = Reason(ReplayCode.PEERS_AGREE, (("num_peers", 1),))
_BIAS = Reason(ReplayCode.BIASED, (("scale", 0.98421), ("bias_z", -31.0)))

PHRASES = {
    LeftFree.PARAMETER: Phrase(sentence="parameter or buffer: compared, not replaced"),
    LeftFree.COMPARED_ONLY: Phrase(sentence="parameter, its gradient or the loss: compared, not replaced"),
    LeftFree.EXPANDED: Phrase(sentence="expanded tensor: several elements share one place in memory"),
    LeftFree.LOOKED_FOR: Phrase(
        sentence="largest or smallest element: its backward looks for the elements that equal it"
    ),
    LeftFree.SHARED_GRADIENT: Phrase(
        sentence="same tensor as an output of another module, where its gradient was compared"
    ),
    LeftFree.LAST_USE_WITHOUT_GRADIENT: Phrase(sentence="the last use of the tensor sent no gradient"),
    LeftFree.BEFORE_MODEL: Phrase(
        sentence="created before the model was called: its memory may be read-only"
    ),
    LeftFree.NOT_IN_REFERENCE: Phrase(sentence="the reference has no such tensor at this call"),
    LeftFree.NO_VALUES: Phrase(sentence="the reference trace holds no values of this tensor"),
    LeftFree.SHAPE_DIFFERS: Phrase(
        sentence="shape differs: {target} (target), {reference} (reference)", samples=_SHAPES
    ),
    LeftFree.LAYOUT: Phrase(sentence="{layout} tensors are not replaced", samples=_LAYOUT),
    LeftFree.FUNCTION_TRANSFORM: Phrase(
        sentence="inside a function transform such as vmap: the tensor has no values of its own"
    ),
    LeftFree.DTYPE: Phrase(sentence="dtype {dtype} is not replaced", samples=({"dtype": "int4"},)),
    LeftFree.ROUNDING: Phrase(
        sentence="{reference} values cannot be converted to {target} in this framework",
        samples=({"target": "bfloat16", "reference": "float32"},),
    ),
    LeftFree.OUTSIDE_TABLE: Phrase(
        sentence="indices of the reference up to {largest}: the target's table has {size} rows",
        samples=({"size": 8, "largest": 31},),
    ),
    LeftFree.NUM_CALLS_DIFFERS: Phrase(sentence="number of calls differs from the reference"),
    LeftFree.LAYOUT_NOT_INVERTIBLE: Phrase(
        sentence="different layout in the reference, which cannot be converted"
    ),
    LeftFree.CALL_ORDER_DIFFERS: Phrase(
        sentence="call order differs: the reference calls another module at this position"
    ),
    LeftFree.PLACE_NOT_UNIQUE: Phrase(sentence="several calls of the step have the same place"),
    LeftFree.GRADIENT_NOT_IN_REFERENCE: Phrase(sentence="the reference has no gradient of this parameter"),
    LeftFree.GRADIENT_ALWAYS_THERE: Phrase(
        sentence="the reference has no gradient of it, and the gradient function always returns one"
    ),
    LeftFree.GRADIENT_NOT_IN_TARGET: Phrase(sentence="the target has no gradient of this parameter"),
    LeftFree.GRADIENT_LAYOUT: Phrase(sentence="{layout} gradients are not replaced", samples=_LAYOUT),
    LeftFree.GRADIENT_SHAPE_DIFFERS: Phrase(
        sentence="gradient shape differs: {target} (target), {reference} (reference)", samples=_SHAPES
    ),
    ReplayCode.DIFFERS: Phrase(
        sentence=_differs,
        samples=(
            {**_HERE, "basis": "dtype_bound", "rel_l2": 0.012, "tolerance": 1e-7},
            {**_API, "basis": "benign_variant", "rel_l2": 3e-7, "tolerance": 1e-6, "parts": (_BIAS,)},
            {**_API, "module": "", "basis": "exact_loss", "rel_l2": 1e-3, "tolerance": 0.0},
            {**_HERE, "basis": "dtype_bound", "rel_l2": 4e-3, "tolerance": 8e-3, "parts": (_PEERS, _BIAS)},
            {**_HERE, "rel_l2": 4e-3},
        ),
    ),
    ReplayCode.EXACT_VALUES_DIFFER: Phrase(
        sentence=_exact_values_differ,
        samples=({**_HERE, "rel_l2": 0.5}, {**_HERE, "rel_l2": 0.5, "parts": (_ONE_PEER,)}),
    ),
    ReplayCode.NOT_FINITE: Phrase(sentence=_not_finite, samples=(_HERE, _API)),
    ReplayCode.PEERS_AGREE: Phrase(
        sentence="rounding size, but {num_peers:count module} of the same kind bit-identical",
        samples=({"num_peers": 1}, {"num_peers": 3}),
    ),
    ReplayCode.BIASED: Phrase(
        sentence=lambda facts: (
            f"biased (scale {_unlike_one(facts['scale'])}, {abs(facts['bias_z']):.3g} standard errors)"
        ),
        samples=(
            {"scale": 0.98421, "bias_z": -31.0},
            {"scale": 2.0, "bias_z": float("inf")},
            {"scale": 1 + 3e-7, "bias_z": 31.0},
        ),
    ),
    ReplayCode.MISSING_GRADIENT: Phrase(
        sentence=_missing_gradient,
        samples=tuple(
            {"slot": "input.0", "site": "layers.1", "side": side, "parts": (Reason(why),)}
            for side, why in (
                ("target", ReplayCode.NOT_IN_GRAPH),
                ("reference", ReplayCode.NO_GRADIENT_FROM_CALL),
                ("target", ReplayCode.NO_GRADIENT_FROM_USES),
            )
        ),
    ),
    ReplayCode.NOT_IN_GRAPH: Phrase(sentence="the tensor is not part of the autograd graph"),
    ReplayCode.NO_GRADIENT_FROM_CALL: Phrase(sentence="the call returned no gradient for it"),
    ReplayCode.NO_GRADIENT_FROM_USES: Phrase(sentence="no use of the tensor returned a gradient"),
    ReplayCode.MORE_TENSORS: Phrase(
        sentence="and {num_tensors:count more tensor} of this module",
        samples=({"num_tensors": 1}, {"num_tensors": 5}),
    ),
    ReplayCode.TRIED: Phrase(
        sentence=lambda facts: (
            f"tried: with {' and '.join(facts.parts)}, {percent(facts['left'])} of the error of "
            f"{facts['module'] or 'the model'} is left"
        ),
        samples=(
            {"module": "norm", "left": 0.002, "parts": (_SETTING,)},
            {"module": "", "left": 0.7, "parts": (_FLOAT32,)},
        ),
    ),
    ReplayCode.TRIED_AND_EQUAL: Phrase(
        sentence=lambda facts: (
            f"tried: with {' and '.join(facts.parts)}, {facts['module'] or 'the model'} gives the "
            "reference's outputs, bit for bit"
        ),
        samples=(
            {"module": "norm", "parts": (_SETTING, _SETTING)},
            {"module": "layers.0.norm", "parts": (_FLOAT32,)},
        ),
    ),
    ReplayCode.TRIED_WITHOUT_EFFECT: Phrase(
        sentence=lambda facts: (
            f"tried: with {' and '.join(facts.parts)} in the running program, the outputs of "
            f"{facts['module'] or 'the model'} stay as they are: it acts when the model is made, or not "
            "at all"
        ),
        samples=({"module": "rotary", "parts": (_SETTING,)}, {"module": "", "parts": (_SETTING,)}),
    ),
    ReplayCode.WITH_SETTING: Phrase(
        sentence="{name} {value} (the reference's)", samples=({"name": "eps", "value": "1e-05"},)
    ),
    ReplayCode.IN_FLOAT32: Phrase(sentence="its own code in float32, rounded once at its end"),
    ReplayCode.LOSS_EXPLAINED: Phrase(
        sentence="with the reference's outputs of {modules:list} put in, and nothing else, the loss is the "
        "reference's, bit for bit: {reference:.9g} ({target:.9g} without)",
        samples=({"modules": ("layers.1.mlp",), "target": 5.77771568, "reference": 5.78431892},),
    ),
    ReplayCode.LOSS_WITH: Phrase(
        sentence=lambda facts: facts.fill(
            "with the reference's outputs of {modules:list} put in, and nothing else, "
            + (
                "{closed:percent} of the gap between the losses is closed"
                if facts["closed"] > 0
                else "the loss comes no nearer"
            )
            + ": {given:.9g} ({target:.9g} without, {reference:.9g} in the reference)"
        ),
        samples=(
            {
                "modules": ("layers.1.mlp", "layers.2.mlp"),
                "target": 5.77771568,
                "reference": 5.78431892,
                "given": 5.78,
                "closed": 0.35,
            },
            {"modules": ("norm",), "target": 5.7, "reference": 5.8, "given": 5.6, "closed": -1.0},
        ),
    ),
    ReplayCode.BIT_IDENTICAL: Phrase(
        sentence="with the reference's values as inputs, {num_equal:,} of {num_tensors:count tensor} are "
        "bit-identical",
        samples=({"num_equal": 1180, "num_tensors": 1204}, {"num_equal": 0, "num_tensors": 1}),
    ),
}
