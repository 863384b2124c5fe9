"""What a comparison concludes, and what to do next."""

from collections.abc import Mapping, Sequence

from trueup.types.codes.evidence import NUM_CALLS
from trueup.types.codes.verdict import NextCode as Next
from trueup.types.codes.verdict import VerdictCode as Is
from trueup.types.reason import reason
from trueup.wording.evidence import SETTINGS, optimizer_setting, phases, ranks
from trueup.wording.phrase import Phrase, ReasonFacts, Template, listed, one_plus

_DIFFERING = {
    "param": "weight",
    "forward": "forward output",
    "loss": "loss",
    "backward": "backward gradient",
    "param_grad": "parameter gradient",
    "collective": "collective",
    "optimizer": "optimizer update",
}
_LONGEST = 40
"""characters of a value in a headline"""


def _place(facts: ReasonFacts) -> str:
    """`` in layers.2.attn, step 0``; where no module is known only the step."""
    module = facts.get("module")
    where = "" if module is None else f" in {module or 'the root module'},"
    return f"{where} step {facts['step']}" if where else f" in step {facts['step']}"


def _what(facts: ReasonFacts) -> str:
    """What differs: ``forward output``."""
    if facts["phase"] == "forward" and facts["slot"].startswith("input"):
        return "forward input"
    return _DIFFERING.get(facts["phase"], str(facts["phase"]))


def _decayed(facts: ReasonFacts) -> str:
    """A share of each weight that one side takes off; the difference of both where each takes some."""
    side = "target" if facts["share"] > 0 else "reference"
    what = facts.fill("{num:count master weight} ") + ("shrinks" if facts["num"] == 1 else "shrink")
    return f"{what} by {abs(facts['share']):.3g} more in the {side}, step {facts['step']}: weight decay"


def _first(facts: ReasonFacts) -> str:
    if facts.get("weight") is not None:
        return (
            f"First divergence: {_what(facts)} with the gradient of {facts['weight']} in step {facts['step']}"
        )
    return f"First divergence: {_what(facts)}{_place(facts)}"


def _in_code_of(facts: ReasonFacts) -> str:
    module = facts.get("module")
    return "outside the model" if module is None else f"in {module or 'the root module'}"


def _made_by_one(facts: ReasonFacts) -> str:
    here = " here" if facts["here"] else ""
    if facts["is_module"]:
        return f"Only the {facts['side']} runs {facts['call']}{here}"
    call = facts["call"].removeprefix("torch.")
    in_step = "" if facts.get("step") is None else f" in step {facts['step']}"
    return f"Only the {facts['side']} calls {call}{here and ' here,'} {_in_code_of(facts)}{in_step}"


def _given_outside(facts: ReasonFacts) -> str:
    name = f"Argument {facts['name']} of {facts['call'].removeprefix('torch.')}"
    return f"{name} outside the model differs: made by no recorded call"


def _function_in_place(facts: ReasonFacts) -> str:
    target, reference = (facts[side].removeprefix("torch.") for side in ("target", "reference"))
    return f"Other function {_in_code_of(facts)}: {target} (target), {reference} (reference)"


def _given_another(facts: ReasonFacts) -> str:
    call, target, reference = (facts[name].removeprefix("torch.") for name in ("call", "target", "reference"))
    return f"{call} is given the result of {target} (target), of {reference} (reference)"


def _not_finite(facts: ReasonFacts) -> str:
    return f"{facts['what']} appears first in the {facts['side']}: {_what(facts)}{_place(facts)}"


def _other_argument(facts: ReasonFacts) -> str:
    target, reference = (_shortened(facts[side].strip("'\"")) for side in ("target", "reference"))
    module = facts.get("module")
    where = "before the loss" if module is None else f"in {module or 'the root module'}"
    both = f"{target} (target), {reference} (reference)"
    if facts["name"] == NUM_CALLS:
        return f"The runs agree, but calls of {facts['call']} {where}: {both}"
    return f"The runs agree, but {facts['call']} {where} has {facts['name']} {both}"


def _argument(facts: ReasonFacts) -> str:
    target, reference = (_shortened(facts[side].strip("'\"")) for side in ("target", "reference"))
    name, of = facts["name"], facts["what"]
    subject = f"Attribute {name}" if of == "attribute" else f"{name} of {of}"
    if name.startswith("input."):
        subject = f"Argument {name.removeprefix('input.')} of {of}"
    return f"{subject} differs {_in_code_of(facts)}: {target} (target), {reference} (reference)"


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"


def _settings(facts: ReasonFacts) -> str:
    return f"Tensors agree, but settings differ: {listed([SETTINGS.get(n, n) for n in facts['names']])}"


def _computes_in(facts: ReasonFacts) -> str:
    sides = [
        f"{facts[side]} (autocast)" if facts["autocast"] == side else str(facts[side])
        for side in ("target", "reference")
    ]
    what = f" {listed(facts['functions'], 2)}" if facts["functions"] else ""
    if facts["weights"] and not facts["whole"]:
        what += ", weights included,"
    does = "holds its weights and computes" if facts["whole"] else f"computes{what}"
    return f"The target {does} in {sides[0]}, the reference in {sides[1]}"


def _weights_in(facts: ReasonFacts) -> str:
    names = facts["parameters"]
    subject = f"{names[0]} is" if len(names) == 1 else f"{len(names)} weights are"
    listed_names = "" if len(names) == 1 else f": {listed(names, 1)}"
    return facts.fill(f"{subject} {{target}} (target), {{reference}} (reference)") + listed_names


def _casts_to(facts: ReasonFacts) -> str:
    side, module = facts["side"], facts.get("module")
    other = "reference" if side == "target" else "target"
    where = "outside the model" if module is None else f"in {module or 'the root module'}"
    return f"The {side} casts to {facts[side]} {where}; the {other} keeps {facts[other]}"


def _nothing_of(facts: ReasonFacts) -> str:
    return f"No record of {phases(facts)} could be compared, though both runs have some"


def _headline(template: Template, *samples: Mapping[str, object]) -> Phrase:
    """What heads a verdict is its sentence too."""
    return Phrase(sentence=template, headline=template, samples=samples or ({},))


def _times(factor: float) -> str:
    """A factor; one that four digits would show as 1 with its distance from it."""
    return f"{factor:.4g}" if abs(factor - 1.0) >= 1e-3 else f"({one_plus(factor - 1.0)})"


def _to_do(sentence: str, command: str | None = None, samples: Sequence[Mapping[str, object]] = ()) -> Phrase:
    return Phrase(sentence=sentence, command=command, samples=samples or (_RUNS,))


_RUNS = {"target": "runs/a", "reference": "runs/b", "step": 0, "command": "python train.py"}


def _inputs(names: Sequence[object]) -> str:
    return f"input{'s' if len(names) > 1 else ''} {listed(names)}"


_AT = {"phase": "forward", "slot": "output.0", "module": "layers.2.attn", "step": 0}

_OF_THE_LOSS = {
    "labels": "other labels",
    "mask": "another mask",
    "factors": "other factors of its positions (advantages, weights)",
    "targets": "other targets (soft labels, values to predict)",
    "weight": "other weights (weight)",
    "pos_weight": "other weights (pos_weight)",
}
"""first word of a record's slot -> what it is"""

PHRASES = {
    Is.DATA_DIFFERS: _headline(
        lambda facts: (
            f"Input data differs: {_inputs([facts['name'], *(facts.get('others') or [])])} of the model "
            f"in step {facts['step']}"
        ),
        {"name": "labels", "step": 3},
        {"name": "input_ids", "others": ["labels"], "step": 0},
        {"name": "input_ids", "others": ["labels", "attention_mask", "position_ids"], "step": 0},
    ),
    Is.LOSS_INPUT_DIFFERS: _headline(
        lambda facts: f"The loss is made with {_OF_THE_LOSS[str(facts['name'])]} in step {facts['step']}",
        *({"name": name, "step": 0} for name in _OF_THE_LOSS),
    ),
    Is.INPUT_OF_ONE_SIDE: _headline(
        lambda facts: (
            f"Only the {facts['side']} gives {facts.get('module') or 'the model'} the input {facts['name']}"
        ),
        {"side": "target", "name": "position_ids", "module": ""},
        {"side": "target", "name": "mask", "module": "decoder.0.attn"},
    ),
    Is.BUFFER_DIFFERS: _headline(
        lambda facts: (
            f"Buffer {facts['name']} differs in {facts['module'] or 'the root module'}"
            + (
                " from the start"
                if facts["target"] == facts["reference"]
                else facts.fill(": {target} (target), {reference} (reference)")
            )
        ),
        {"name": "inv_freq", "module": "rotary", "target": "bfloat16", "reference": "float32"},
        {"name": "inv_freq", "module": "", "target": "float32", "reference": "float32"},
    ),
    Is.BUFFER_BEGINS: _headline(
        lambda facts: (
            f"Buffer {facts['name']} of {facts['module'] or 'the root module'} differs at the start of step "
            f"{facts['step']}"
        ),
        {"name": "bias", "module": "layers.0.moe.router", "step": 1},
    ),
    Is.AVERAGES_DIFFER: _headline(
        lambda facts: facts.fill(
            "{num:count averaged weight} "
            + ("differs" if facts["num"] == 1 else "differ")
            + " after step {step}, {name} first"
        ),
        {"num": 1, "step": 0, "name": "head.weight"},
        {"num": 8, "step": 0, "name": "layers.0.mlp.weight"},
    ),
    Is.AVERAGE_DECAY_DIFFERS: _headline(
        "Decay of averaged weights in step {step}: {target:.6g} (target), {reference:.6g} (reference)",
        {"step": 0, "target": 0.99, "reference": 0.999},
    ),
    Is.AVERAGES_BEFORE_UPDATE: _headline(
        "The {side} averages weights before the optimizer's update, not after it",
        {"side": "target"},
    ),
    Is.AVERAGES_TWICE: _headline(
        "The {side} averages weights from before and after the update in one step", {"side": "reference"}
    ),
    Is.AVERAGES_LOSE_CHANGES: _headline(
        "The {side} averages weights in {dtype}, which loses {share:.0%} of step {step}'s changes",
        {"side": "target", "dtype": "bfloat16", "step": 0, "share": 0.97},
    ),
    Is.AVERAGE_LEAVES_OUT: _headline(
        "The {side} does not average {num:count tensor}, {name} first",
        {"side": "target", "num": 6, "name": "bn1.running_mean"},
    ),
    Is.MASTERS_DIFFER: _headline(
        lambda facts: facts.fill(
            "{num:count master weight} "
            + ("differs" if facts["num"] == 1 else "differ")
            + " after step {step}, {name} first"
        ),
        {"num": 1, "step": 0, "name": "head.weight"},
        {"num": 8, "step": 1, "name": "layers.0.mlp.weight"},
    ),
    Is.MASTERS_ROUNDED: _headline(
        "The {side}'s master weights hold only {dtype} values after step {step}",
        {"side": "target", "dtype": "bfloat16", "step": 0},
    ),
    Is.MASTERS_DECAY: _headline(
        _decayed,
        {"num": 18, "share": 1e-4, "step": 0, "name": "blocks.0.norm1.weight"},
        {"num": 1, "share": -1e-4, "step": 0, "name": "norm.weight"},
    ),
    Is.MASTERS_SCALED: _headline(
        "Updates of {num:count master weight} are {factor:.6g} times the reference's in step {step}",
        {"num": 28, "factor": 0.736562, "step": 0, "name": "embed.weight"},
    ),
    Is.ACTIVATION_DIFFERS: _headline(
        "Activation differs in {module}: {target} (target), {reference} (reference)",
        {"module": "layers.1.mlp", "target": "gelu", "reference": "silu"},
    ),
    Is.OTHER_SHAPE: _headline(
        lambda facts: facts.fill(
            "{module} {is_given} another shape: {target} (target), {reference} (reference)",
            module=facts["module"] or "the model",
            is_given="is given" if facts["given"] else "returns",
            **{side: str(facts[side]).replace(" ", "") for side in ("target", "reference")},
        ),
        {"module": "heads.0", "given": 1, "target": "[4, 19, 48]", "reference": "[4, 18, 48]"},
        {"module": "pool", "given": 0, "target": "[4, 48]", "reference": "[4, 1, 48]"},
        {"module": "", "given": 0, "target": "[4, 48]", "reference": "[4, 1, 48]"},
    ),
    Is.BUFFERS_WRITTEN: _headline(
        lambda facts: facts.fill(
            "{num:count buffer} "
            + ("differs" if facts["num"] == 1 else "differ")
            + " after step {step}"
            + (ranks(facts) if facts.get("ranks") else "")
            + ", {name} first; all other records agree"
        ),
        {"num": 4, "step": 1, "name": "bn1.running_mean", "ranks": ("1",)},
        {"num": 1, "step": 0, "name": "router.bias"},
        {"num": 8, "step": 0, "name": "bn1.running_mean"},
    ),
    Is.CLIPPED_OTHERWISE: _headline(
        lambda facts: (
            "Gradients that agree after backward reach the optimizer scaled: "
            f"{_times(facts['factor'])} times the reference's"
        ),
        {"factor": 0.5},
        {"factor": 1.0012},
    ),
    Is.MODULE_CLASS_DIFFERS: _headline(
        "Class of {module} differs: {target} (target), {reference} (reference)",
        {"module": "layers.0.mlp.act_fn", "target": "GELU", "reference": "SiLU"},
    ),
    Is.ARGUMENT_DIFFERS: _headline(
        _argument,
        {
            "what": "RMSNorm",
            "name": "eps",
            "module": "layers.1.norm",
            "target": "3e-05",
            "reference": "1e-06",
        },
        {"what": "softmax", "name": "dim", "module": "", "target": "1", "reference": "-" + "2" * 60},
        {"what": "Tensor.div", "name": "input.1", "module": None, "target": "4", "reference": "2"},
    ),
    Is.NOT_FINITE: _headline(_not_finite, {"what": "NaN", "side": "target", **_AT}),
    Is.HELD_GRADIENT_CHANGED: _headline(
        "The gradient of {weight} differs in step {step}, changed after backward",
        {"weight": "layers.2.weight", "step": 0},
    ),
    Is.FIRST_DIVERGENCE: _headline(
        _first,
        _AT,
        {**_AT, "slot": "input.0", "module": ""},
        {"phase": "collective", "slot": "output.0", "module": None, "weight": "b.weight", "step": 0},
        {"phase": "optimizer", "slot": "param", "module": None, "step": 1},
    ),
    Is.MADE_BY_ONE: _headline(
        _made_by_one,
        {"side": "reference", "call": "blocks.0.attn.norm", "module": None, "is_module": True, "here": False},
        {"side": "target", "call": "torch.Tensor.clamp", "module": None, "is_module": False, "here": True},
        {"side": "target", "call": "torch.relu", "module": "", "is_module": False, "here": False},
        {"side": "target", "call": "torch.relu", "module": None, "is_module": False, "here": True, "step": 1},
    ),
    Is.GIVEN_OUTSIDE: _headline(_given_outside, {"call": "torch.Tensor.mul", "name": "1"}),
    Is.FUNCTION_IN_PLACE: _headline(
        _function_in_place,
        {"target": "torch.Tensor.cos", "reference": "torch.Tensor.sin", "module": "rotary"},
    ),
    Is.GIVEN_ANOTHER: _headline(
        _given_another,
        {"call": "torch.Tensor.mul[5]", "target": "torch.Tensor.neg", "reference": "torch.Tensor.div[2]"},
        {"call": "blocks.0.mlp", "target": "blocks.0.norm", "reference": "blocks.0.attn"},
    ),
    Is.OTHER_CODE: _headline(
        "{parts:join }: other code in {function}",
        {
            "parts": (reason(Is.FIRST_DIVERGENCE, phase="forward", slot="output.0", module="norm", step=0),),
            "function": "Norm.forward",
        },
    ),
    Is.OTHER_CASTS: _headline(
        "{parts:join }: other casts in {function}",
        {
            "parts": (reason(Is.FIRST_DIVERGENCE, phase="forward", slot="output.0", module="norm", step=0),),
            "function": "Norm.forward",
        },
    ),
    Is.ARGUMENT_LACKS: _headline(
        "{parts:join }: {name} is not given to {called} ({side})",
        {
            "parts": (reason(Is.FIRST_DIVERGENCE, phase="forward", slot="output.0", module="norm", step=0),),
            "name": "causal",
            "called": "attend",
            "side": "target",
        },
    ),
    Is.OTHER_VALUE_IN_CODE: _headline(
        "{parts:join }: {name} is {target} (target), {reference} (reference)",
        {
            "parts": (reason(Is.FIRST_DIVERGENCE, phase="forward", slot="output.0", module="norm", step=0),),
            "name": "IGNORED",
            "target": "0",
            "reference": "-100",
        },
    ),
    Is.TRAINED_BY_ONE: _headline(
        "requires_grad of {num:count parameter} differs (first {weight}): {target} (target), "
        "{reference} (reference)",
        {"num": 10, "weight": "norm.weight", "target": "True", "reference": "False"},
    ),
    Is.PARAMETER_ABSENT: _headline(
        "The {side} has no parameter {parameter}; weights initialised after it differ, first {weight}",
        {"side": "target", "parameter": "layers.1.bias", "weight": "layers.1.weight"},
    ),
    Is.PARAMETERS_OF_ONE: _headline(
        lambda facts: facts.fill(
            "Only the {side} has {parameter}"
            if facts["num"] == 1
            else "Only the {side} has {num:count parameter} (first {parameter})"
        ),
        {"side": "target", "num": 1, "parameter": "head.bias"},
        {"side": "reference", "num": 3, "parameter": "layers.0.norm.bias"},
    ),
    Is.LOSS_DIFFERS_LATER: _headline(
        "The captured steps agree; the loss differs from step {step}", {"step": 4}
    ),
    Is.LATER_BATCH_DIFFERS: _headline(
        "The captured steps agree; step {step}, which was not captured, has another batch", {"step": 4}
    ),
    Is.GRADIENT_NORM_DIFFERS: _headline(
        "Gradient norm differs in step {step}, but the recorded tensors agree", {"step": 0}
    ),
    Is.SETTINGS_DIFFER: _headline(_settings, {"names": ("learning_rate",)}),
    Is.OPTIMIZER_SETTING_DIFFERS: _headline(
        lambda facts: facts.fill(
            "Tensors agree, but {what} differs: {target} (target), {reference} (reference)",
            what=optimizer_setting(facts),
        ),
        {"name": "eps", "target": "1e-05", "reference": "1e-08"},
        {"name": "class", "target": "NAdam", "reference": "AdamW"},
    ),
    Is.LEARNING_RATE_DIFFERS: _headline(
        lambda facts: facts.fill(
            "Learning rate differs in step {step}: {a} (target), {b} (reference); first seen in {parameter}",
            **{
                name: value if isinstance(value := facts[side], str) else f"{value:g}"
                for name, side in (("a", "target"), ("b", "reference"))
            },
        ),
        {"step": 0, "target": 2e-3, "reference": 1e-3, "parameter": "emb.weight"},
        {"step": 0, "target": "0.001, 0.002", "reference": "0.001", "parameter": "emb.weight"},
    ),
    Is.UPDATE_SETTING_DIFFERS: _headline(
        lambda facts: facts.fill(
            "{what} differs: {target} (target), {reference} (reference); first seen in {parameter}",
            what=optimizer_setting(facts).capitalize(),
        ),
        {"name": "eps", "target": "1e-05", "reference": "1e-08", "parameter": "emb.weight"},
        {"name": "class", "target": "Adafactor", "reference": "AdamW", "parameter": "emb.weight"},
    ),
    Is.STEP_IS_OF: _headline(
        "Step {step} is of {target:count microbatch} (target), {reference:count microbatch} (reference)",
        {"step": 0, "target": 1, "reference": 2},
    ),
    Is.STEPPED_WITHOUT: _headline(
        lambda facts: facts.fill(
            "The {side}'s optimizer steps before the backward pass"
            if facts["before"]
            else "The {side}'s optimizer takes no gradients: they are gone when it steps"
        ),
        {"side": "target", "num": 28, "before": True},
        {"side": "reference", "num": 28, "before": False},
    ),
    Is.UPDATES_COPIES: _headline(
        "Only the {side}'s optimizer updates copies of the weights: {target} (target), "
        "{reference} (reference)",
        {"side": "reference", "target": "bfloat16", "reference": "float32"},
    ),
    Is.COMPUTES_IN: _headline(
        _computes_in,
        {
            "target": "bfloat16",
            "reference": "float32",
            "functions": ("linear", "matmul", "gelu"),
            "autocast": "target",
            "weights": False,
            "whole": False,
        },
        {
            "target": "float16",
            "reference": "bfloat16",
            "functions": (),
            "autocast": "",
            "weights": True,
            "whole": True,
        },
        {
            "target": "bfloat16",
            "reference": "float32",
            "functions": ("layer_norm",),
            "autocast": "",
            "weights": True,
            "whole": False,
        },
    ),
    Is.POSITIONS_COUNT: _headline(
        lambda facts: facts.fill(
            ("The loss sends gradients to" if facts["same_loss"] else "The loss counts")
            + " {target} of {total} positions (target), {reference} (reference)"
        ),
        {"target": 96, "reference": 88, "total": 96, "same_loss": False},
        {"target": 96, "reference": 88, "total": 96, "same_loss": True},
    ),
    Is.ROWS_TRAIN: _headline(
        "Rows of {weight} with a gradient: {target} (target), {reference} (reference) of {total}",
        {"weight": "emb.weight", "target": 14, "reference": 13, "total": 192},
    ),
    Is.WEIGHTS_IN: _headline(
        _weights_in,
        {"parameters": ("layers.0.mixer.D",), "target": "bfloat16", "reference": "float32"},
        {"parameters": ("a.weight", "b.weight", "c.weight"), "target": "bfloat16", "reference": "float32"},
    ),
    Is.RESULT_IN: _headline(
        lambda facts: facts.fill(
            f"{'Input' if facts['given'] else 'Output'} of "
            + (f"{facts['function']} in " if facts["function"] else "")
            + f"{facts['module'] or 'the root module'} is {{target}} (target), {{reference}} (reference)"
        ),
        {"module": "layers.0", "function": "", "given": False, "target": "bfloat16", "reference": "float32"},
        {"module": "", "function": "", "given": False, "target": "float32", "reference": "bfloat16"},
        {"module": "layers.1", "function": "", "given": True, "target": "float32", "reference": "bfloat16"},
        {"module": "a", "function": "softmax", "given": False, "target": "float32", "reference": "float16"},
    ),
    Is.LOSS_IN: _headline(
        lambda facts: facts.fill(
            "The loss is made of {target} logits (target), {reference} logits (reference)"
            if facts["of_logits"]
            else "The loss is computed in {target} (target), {reference} (reference)"
        ),
        {"of_logits": False, "target": "bfloat16", "reference": "float32"},
        {"of_logits": True, "target": "bfloat16", "reference": "float32"},
    ),
    Is.SUMS_IN: _headline(
        lambda facts: facts.fill(
            "Gradients of {num:count weight} are added up in {target} (target), {reference} (reference)",
            num=len(facts["parameters"]),
        ),
        {"parameters": ("a.weight", "b.weight"), "target": "bfloat16", "reference": "float32"},
    ),
    Is.CASTS_DIFFER: _headline(
        "{function} rounds to {dtype} elsewhere: its casts differ",
        {"function": "RMSNorm.forward", "dtype": "bfloat16"},
    ),
    Is.CASTS_TO: _headline(
        _casts_to,
        {"side": "target", "module": "emb", "target": "bfloat16", "reference": "float32"},
        {"side": "reference", "module": "", "target": "float32", "reference": "float16"},
        {"side": "target", "module": None, "target": "bfloat16", "reference": "float32"},
    ),
    Is.REDUCED_BY_ONE: _headline(
        "Only the {side} calls {call} in {function}",
        {"side": "reference", "call": "all_reduce", "function": "Zero2.step"},
    ),
    Is.MICROBATCHES_DIFFER: _headline(
        "Microbatches per step: {target} (target), {reference} (reference); most records cannot be compared",
        {"target": 4, "reference": 2},
    ),
    Is.CALLS_WITH_GRADIENTS: _headline(
        lambda facts: facts.fill(
            "{num:count call} of the model {have} gradients only in the {side}: no_grad differs",
            have="has" if facts["num"] == 1 else "have",
        ),
        {"side": "target", "num": 1},
        {"side": "reference", "num": 2},
    ),
    Is.LOSS_CODE_DIFFERS: _headline(
        "Loss differs by more than float32 rounding, less than {dtype}'s: other code in {function}",
        {"function": "<module>", "dtype": "bfloat16"},
    ),
    Is.UPDATE_CODE_DIFFERS: _headline(
        "Update differs by more than float32 rounding, less than {dtype}'s: other code in {function}",
        {"function": "Zero2.step", "dtype": "bfloat16"},
    ),
    Is.OTHER_ARGUMENT: _headline(
        _other_argument,
        {
            "module": "layers.0.attn",
            "call": "softmax",
            "name": "dtype",
            "target": "'bfloat16'",
            "reference": "'float32'",
        },
        {"module": None, "call": "full_like", "name": "argument 1", "target": "0.1", "reference": "0.2"},
        {"module": "", "call": "tanh", "name": NUM_CALLS, "target": "0", "reference": "1"},
    ),
    Is.PARAMETER_OF_ONE_SIDE: _headline(
        "Only the {side} has the parameter {parameter}; later differences may be noise",
        {"side": "reference", "parameter": "embed_tokens.delta"},
    ),
    Is.NOISE_GREW: _headline(
        lambda facts: f"No origin found, but noise exceeds its measured size: {_what(facts)}{_place(facts)}",
        _AT,
    ),
    Is.NOT_BRACKETED: _headline(
        lambda facts: facts.fill(
            "Bits differ in {digests:count record}; digests do not say by how much"
            if facts.get("digests")
            else "No difference exceeds tolerance, but {records:count record} could not be compared"
        ),
        {"records": 1, "digests": 0},
        {"records": 3, "digests": 0},
        {"records": 3, "digests": 2},
    ),
    Is.NOTHING_COMPARED_OF: Phrase(
        sentence=lambda facts: _nothing_of(facts) + (f": {', '.join(facts.parts)}" if facts.parts else ""),
        headline=_nothing_of,
        samples=({"phases": ("forward", "backward")},),
    ),
    Is.AGREE_BUT_INSIDE: _headline("The runs agree, with {num:count record} in another form", {"num": 60}),
    Is.AGREE_BUT_INPUT: _headline(
        "The runs agree; {names:list} given to them differs without effect here", {"names": ("position_ids",)}
    ),
    Is.EQUAL_UP_TO_LOSS: _headline(
        "The loss of step {step} differs after bit-identical steps; {function} is written differently",
        {"step": 2, "function": "Average.step"},
    ),
    Is.CAPTURED_IS_EQUAL: _headline(
        lambda facts: facts.fill(
            "All that was captured is bit-identical; {function} uses another value of {name}"
            if facts["name"]
            else "All that was captured is bit-identical; {function} is written differently"
        ),
        {"function": "Average.update", "name": ""},
        {"function": "Loss.forward", "name": "IGNORE_INDEX"},
    ),
    Is.BEFORE_UPDATE: _headline(
        "{function} differs in code, and no updated weights were captured in {steps:count step}",
        {"function": "Sharded.update", "steps": 2},
    ),
    Is.BIT_IDENTICAL: _headline("The runs are bit-identical"),
    Is.COMPARED_IS_BIT_IDENTICAL: _headline("All compared records are bit-identical"),
    Is.AGREE: _headline("The runs agree within rounding"),
    Is.AGREE_IN_PART: Phrase(
        sentence=lambda facts: (
            f"Compared records agree, but only one run has {phases(facts)}"
            + (", though both were captured with the same options" if facts["same_options"] else "")
        ),
        headline=lambda facts: f"Compared records agree, but only one run has {phases(facts)}",
        samples=(
            {"phases": ("backward", "param_grad", "optimizer"), "same_options": 1},
            {"phases": ("optimizer",), "same_options": 0},
        ),
    ),
    Next.DIAGNOSE_DATA: _to_do(
        "to see how the batches differ: shifted, reordered or from another shard",
        "trueup diagnose {target} {reference} -o OUT",
    ),
    Next.CAPTURE_CALLS: _to_do(
        "for both runs, to see the call inside the module",
        "trueup capture --level mix --steps {step} -o RUN -- {command}",
    ),
    Next.CAPTURE_CALLS_TOO: _to_do(
        "for both runs, to see the call inside the module",
        "trueup capture --preset diagnose --level mix --steps {step} -o RUN -- {command}",
    ),
    Next.CAPTURE_STATISTICS: _to_do(
        'capture both again with statistics (msprobe: "summary_mode": "statistics"): they say by how much'
    ),
    Next.CAPTURE_VALUES: _to_do(
        "for both runs, to see which elements differ",
        "trueup capture --task tensor --steps {step} -o RUN -- {command}",
    ),
    Next.CAPTURE_STEPS: _to_do(
        "for both runs, to see the step before and that one",
        "trueup capture --preset diagnose --steps {before}-{step} -o RUN -- {command}",
        samples=({"before": 3, "step": 4, "command": "python train.py"},),
    ),
    Next.CAPTURE_UPDATE: _to_do(
        "for both runs, until the weights have changed",
        "trueup capture --preset diagnose --steps 0-{last} -o RUN -- {command}",
        samples=({"last": 7, "command": "python train.py"},),
    ),
    Next.READ_REPORT: _to_do(
        "then read report.html at this site", "trueup compare {target} {reference} --steps {step} -o OUT"
    ),
    Next.READ_UNDECIDED: _to_do(
        "then read report.html: the unmatched and undecided records",
        "trueup compare {target} {reference} -o OUT",
    ),
    Next.READ_WRITTEN_REPORT: _to_do("read {page} at this site", samples=({"page": "out/report.html"},)),
    Next.READ_WRITTEN_UNDECIDED: _to_do(
        "read {page}: the unmatched and undecided records", samples=({"page": "out/report.html"},)
    ),
    Next.MEASURE_NOISE: _to_do(
        "to measure the noise better; or use trueup replay, which excludes it",
        "trueup noise -k 8 --reference {reference} -- COMMAND",
    ),
    Next.CHECK_GRADIENT_NORM: _to_do(
        "compare what happens between backward and clipping: reduction, scaling, the norm itself"
    ),
    Next.ALIGN_SETTINGS: _to_do("set the named settings to the same values and capture again"),
    Next.ALIGN_PRECISION: _to_do(
        "train both in the same dtypes (model dtype, autocast, casts), capture again, then compare"
    ),
    Next.ALIGN_ARGUMENT: _to_do(
        "rounding hides what this does: give both the same value, or capture more steps of both in float32"
    ),
    Next.MERGE_MICROBATCHES: _to_do(
        "combines the microbatches of a step; or capture both runs with the same number of microbatches",
        "trueup compare {target} {reference} --merge -o OUT",
    ),
    Next.ALIGN_NO_GRAD: _to_do("compare where both programs use no_grad, detach and requires_grad"),
    Next.ALIGN_MICROBATCHES: _to_do("capture both runs with the same number of microbatches"),
    Next.CAPTURE_SAME_PHASES: _to_do("capture the same parts of a step in both runs"),
    Next.CAPTURE_SAME_OPTIONS: _to_do(
        "capture both runs with the same --level and --task to compare all records"
    ),
    Next.CHECK_TRAINING: _to_do("check whether the run without them trains at all"),
    Next.NOTHING: _to_do("nothing to do for these steps; for longer runs compare more of them"),
}
