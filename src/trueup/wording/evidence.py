"""What a verdict, or the origin of a difference, rests on."""

from collections.abc import Callable

from trueup.types.codes.evidence import NUM_CALLS
from trueup.types.codes.evidence import EvidenceCode as Is
from trueup.types.codes.record import RecordCode
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts, count, listed, one_plus, times

SETTINGS = {"microbatches": "number of microbatches"}
"""names of settings that need a word more"""
PHASES = {
    "param": "initial weights",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "param_grad": "weight gradients",
    "collective": "collectives",
    "optimizer": "optimizer update",
}
"""what records of a phase are, in a list"""
_NEAR = 0.1
"""of its tolerance; below it the largest difference tells nothing"""
_BOTH = "{target} (target) vs {reference} (reference)"
_VALUES = {"target": "0.1", "reference": "0.01"}


def optimizer_setting(facts: ReasonFacts) -> str:
    """What of an optimizer differs: a setting, or the optimizer itself."""
    return "optimizer" if facts["name"] == "class" else f"optimizer setting {facts['name']}"


def phases(facts: ReasonFacts) -> str:
    """The phases of a reason, listed."""
    return listed([PHASES.get(phase, phase) for phase in facts["phases"]])


def ranks(facts: ReasonFacts) -> str:
    """`` on rank 1``, `` on ranks 1 and 2``; nothing where it is the first rank alone."""
    at = facts["ranks"]
    if at == ("0",):
        return ""
    return f" on rank {at[0]}" if len(at) == 1 else f" on ranks {listed(at)}"


def _setting(facts: ReasonFacts) -> str:
    name = SETTINGS.get(facts["name"], facts["name"])
    return f"{name} differs in step {facts['step']}{ranks(facts)}: {facts.fill(_BOTH)}"


def _scalar(facts: ReasonFacts) -> str:
    return f"{facts['name']} of step {facts['step']}{ranks(facts)}: {facts.fill(_BOTH)}"


def _buffer(facts: ReasonFacts) -> str:
    name = f"buffer {facts['name']} of {facts['module'] or 'the root module'} differs from the start: "
    if facts["target"] != facts["reference"]:
        return name + facts.fill("{target} (target), {reference} (reference)")
    numbers = [", ".join(facts.get(f"{side}_numbers") or ()) for side in ("target", "reference")]
    if not all(numbers) or numbers[0] == numbers[1]:
        return f"{name}other values"
    return f"{name}{numbers[0]} (target); {numbers[1]} (reference)"


def _buffers_written(facts: ReasonFacts) -> str:
    what = "norms" if facts["by_norm"] else "values of the same norm"
    of = "" if facts["by_norm"] else "weighted sum "
    has = "has" if facts["num"] == 1 else "have"
    return (
        f"{count(facts['num'], 'buffer')} {has} different {what} after step {facts['step']}"
        f"{ranks(facts) if facts.get('ranks') else ''}: {facts['name']} "
        f"{of}{facts['target']:.6g} (target), {facts['reference']:.6g} (reference)"
    )


def _averaged_as(facts: ReasonFacts) -> str:
    parts = [("new", "the weights after the update"), ("old", "the weights before it")]
    shares = [f"{facts[key]:.4g} of {words}" for key, words in parts if facts[key]]
    return (
        facts.fill("the {side}'s averaged weights fit {decay:.6g} of themselves")
        + "".join(f" + {share}" for share in shares)
        + facts.fill(" in step {step} (each share within {error:.1g})")
    )


def _absent(facts: ReasonFacts) -> str:
    names = facts["parameters"]
    noun = "parameter" if len(names) == 1 else "parameters"
    return f"the {facts['side']} has no {noun} {listed(names, 3)}"


def _size(facts: ReasonFacts) -> str:
    lower = "at least " if facts["evidence"] == "statistics" else ""
    sentence = facts.fill(f"relative difference {lower}{{rel_l2:.3g}} (from {{evidence}})")
    if facts.get("score") is None or facts["score"] == float("inf"):
        return f"{sentence}, expected none"
    return facts.fill(f"{sentence}, tolerance {{tolerance:.3g}}: {times(facts['score'])} the tolerance")


def _inputs(state: str) -> Callable[[ReasonFacts], str]:
    def sentence(facts: ReasonFacts) -> str:
        difference = facts.get("rel_l2")
        return f"its inputs {state}" + ("" if difference is None else f", but it differs by {difference:.3g}")

    return sentence


def _argument_lacks(facts: ReasonFacts) -> str:
    other = "reference" if facts["side"] == "target" else "target"
    given = f", where the {other} gives {facts['value']}" if facts["value"] else ""
    takes = f": it takes its default, {facts['default']}" if facts["default"] else ""
    return f"{facts['name']} is not given to {facts['called']} in the {facts['side']}{given}{takes}"


def _code_differs(facts: ReasonFacts) -> str:
    sides = [
        f'"{facts[side]}" ({side}, {facts[f"{side}_at"]})' if facts[side] else f"no such statement ({side})"
        for side in ("target", "reference")
    ]
    return facts.fill("the code of {function} differs: ") + ", ".join(sides)


def _code_casts(facts: ReasonFacts) -> str:
    sides = [f'"{facts[side]}" ({side}, {facts[f"{side}_at"]})' for side in _SIDES if facts[side]]
    return facts.fill("the casts in {function} differ: ") + ", ".join(sides)


def _code_nested_otherwise(facts: ReasonFacts) -> str:
    blocks = [f'inside "{facts[side]}"' if facts[side] else "outside all blocks" for side in _SIDES]
    return (
        f'in {facts["function"]}, "{facts["text"]}" stands {blocks[0]} (target, {facts["target_at"]}), '
        f"{blocks[1]} (reference, {facts['reference_at']})"
    )


_SIDES = ("target", "reference")


def _code_in_other_order(facts: ReasonFacts) -> str:
    sides = [
        (f'after "{facts[side]}"' if facts[side] else "first") + f" ({side}, {facts[f'{side}_at']})"
        for side in ("target", "reference")
    ]
    return facts.fill('in {function}, "{text}" stands ') + ", ".join(sides)


def _code_of_one_side(facts: ReasonFacts) -> str:
    other = facts.fill(" in place of {other}") if facts["other"] else ""
    return facts.fill(f'only the {{side}} runs {{function}} ({{at}}){other}: "{{text}}"')


def _on_grid(facts: ReasonFacts) -> str:
    what = "all numbers of" if facts["values"] else "the extremes of"
    return what + facts.fill(" {site} are {dtype} numbers in the {side}, those of the other run are not")


def _sums(facts: ReasonFacts) -> str:
    ways = [
        f"their sum in float32, rounded to {facts[side]} once ({side})"
        if facts[f"{side}_once"]
        else f"their sum in {facts[side]} ({side})"
        for side in ("target", "reference")
    ]
    held = facts.fill(
        "{num:count weight} {has} bit-identical gradients", has="has" if facts["num"] == 1 else "have"
    )
    return f"{held} in every microbatch; the optimizer gets {ways[0]}, {ways[1]}, times a factor"


def _computed_by(facts: ReasonFacts) -> str:
    named = [("functions", facts["functions"]), ("modules", facts["modules"])]
    return "; ".join(f"{kind} in other dtypes: {listed(names)}" for kind, names in named if names)


def _others(facts: ReasonFacts) -> str:
    sentence = facts.fill(
        "{differing:,} of {compared:count compared record} {differing:verb differ} by more than their "
        "tolerance"
    )
    if facts["phases"]:
        sentence += f", also in {phases(facts)}"
    if facts["origins"] > 1:
        sentence += facts.fill("; {origins:,} of them are not explained by their inputs")
    if facts["followed"]:
        sentence += facts.fill(
            "; {followed:,} more are within a tolerance that was widened for differing weights"
        )
    return sentence


def _compared(facts: ReasonFacts) -> str:
    within = facts.fill(", {within:,} within rounding") if facts["within"] else ""
    return facts.fill("{equal:count record} bit-identical") + within


def _preceding(facts: ReasonFacts) -> str:
    total = facts["equal"] + facts["within"] + facts["exceeding"]
    parts = [f"{facts['equal']:,} bit-identical"]
    if facts["within"]:
        parts.append(f"{facts['within']:,} within rounding")
    if facts["exceeding"]:
        parts.append(f"{facts['exceeding']:,} exceed their tolerance, explained by their inputs")
    text = f"preceding records of this step: {total:,} in total, {', '.join(parts)}"
    if not facts["within"]:
        return text
    if facts["worst_score"] < _NEAR:
        return text if facts["exceeding"] else f"{text}, far from their tolerances"
    return facts.fill(f"{text}; the nearest reaches {{worst_score:.2f}} of its tolerance, at {{worst_site}}")


def _not_finite(facts: ReasonFacts) -> str:
    counts = (facts.get(side) for side in ("target", "reference"))
    target, reference = ("some, not counted" if one is None else f"{one:,}" for one in counts)
    return f"{facts['what']}: {target} (target) vs {reference} (reference)"


_FIRST_APART = {"site": "layers.0.norm · output.0", "equal": 12, "rel_l2": 1.6e-3, "tolerance": 8e-3}

PHRASES = {
    Is.SETTING_DIFFERS: Phrase(
        sentence=_setting,
        samples=(
            {"name": "learning_rate", "step": 0, "ranks": ("0",), "target": 0.1, "reference": 0.01},
            {"name": "microbatches", "step": 0, "ranks": ("1", "2"), "target": 4, "reference": 2},
        ),
    ),
    Is.BATCH_AGAIN: Phrase(
        sentence="the {side} alone is given the batch of step {of} again in step {step}",
        samples=({"side": "target", "of": 0, "step": 4},),
    ),
    Is.OPTIMIZER_SETTING_DIFFERS: Phrase(
        sentence=lambda facts: facts.fill(
            "{what}: {target} (target), {reference} (reference), of {num:count parameter}",
            what=optimizer_setting(facts),
        ),
        samples=(
            {"name": "eps", "target": "1e-05", "reference": "1e-08", "parameters": ("a", "b"), "num": 2},
            {"name": "class", "target": "SGD", "reference": "AdamW", "parameters": ("a", "b"), "num": 2},
        ),
    ),
    Is.UPDATES_COPIES: Phrase(
        sentence="the {side}'s optimizer updates copies of {num:count weight}, the other run's the weights "
        "themselves, in {target} (target) and {reference} (reference); neither's has a counterpart",
        samples=(
            {
                "side": "reference",
                "target": "bfloat16",
                "reference": "float32",
                "parameters": ("a", "b"),
                "num": 2,
            },
        ),
    ),
    Is.PARAMETERS_ABSENT: Phrase(
        sentence=_absent,
        samples=(
            {"side": "target", "parameters": ("layers.1.bias",)},
            {"side": "target", "parameters": ("a", "b")},
        ),
    ),
    Is.INPUT_OF_ONE_SIDE: Phrase(
        sentence="input {name}: only the {side} has it",
        samples=({"name": "num_items_in_batch", "side": "reference"},),
    ),
    Is.BUFFER_DIFFERS: Phrase(
        sentence=_buffer,
        samples=(
            {"name": "inv_freq", "module": "rotary", "target": "bfloat16", "reference": "float32"},
            {"name": "inv_freq", "module": "", "target": "float32", "reference": "float32"},
            {
                "name": "slopes",
                "module": "attention",
                "target": "float32",
                "reference": "float32",
                "target_numbers": ("0.397", "0.1575", "0.0625", "0.0248", "…"),
                "reference_numbers": ("0.25", "0.0625", "0.01563", "0.003906", "…"),
            },
        ),
    ),
    Is.BUFFER_BEGINS: Phrase(
        sentence=lambda facts: facts.fill(
            f"buffer {{name}} of {facts['module'] or 'the root module'} at the start of step {{step}}: "
            + ("norm" if facts["by_norm"] else "sum weighted by place")
            + " {target:.6g} (target), {reference:.6g} (reference)"
        ),
        samples=(
            {
                "name": "bias",
                "module": "layers.0.moe.router",
                "step": 1,
                "target": 0.1,
                "reference": 0.2,
                "by_norm": True,
            },
            {
                "name": "bias",
                "module": "layers.0.moe.router",
                "step": 1,
                "target": -0.1,
                "reference": 0.1,
                "by_norm": False,
            },
        ),
    ),
    Is.ACTIVATIONS: Phrase(
        sentence="computed in float64 and rounded once, {target} gives the target's numbers and {reference} "
        "the reference's, also the {num} for which the two differ",
        samples=({"target": "gelu", "reference": "silu", "num": 212},),
    ),
    Is.AVERAGES_APART: Phrase(
        sentence="{num:count averaged weight} {num:verb differ} beyond rounding after step {step}; {name}: "
        "relative difference {rel_l2:.3g}, tolerance {tolerance:.3g}",
        samples=({"num": 8, "step": 0, "name": "head.weight", "rel_l2": 0.0031, "tolerance": 2.4e-7},),
    ),
    Is.AVERAGES_STAY: Phrase(
        sentence="of {total:,} numbers that step {step} moves in the other run's averages, {num:,} stay as "
        "they were in the {side}: they move by less than half the spacing of {dtype}",
        samples=(
            {"side": "target", "dtype": "bfloat16", "step": 0, "share": 0.97, "num": 970, "total": 1000},
        ),
    ),
    Is.AVERAGE_CONSTANT: Phrase(
        sentence=lambda facts: (
            facts.fill("the {side}'s averaged model keeps {num:count tensor} as they were when it was made: ")
            + listed(facts["names"], 3)
        ),
        samples=({"side": "target", "num": 2, "names": ("bn.running_mean", "bn.running_var")},),
    ),
    Is.AVERAGED_AS: Phrase(
        sentence=_averaged_as,
        samples=(
            {"side": "target", "step": 1, "decay": 0.99, "new": 0.01, "old": 0.0, "error": 1e-5},
            {"side": "reference", "step": 1, "decay": 0.81, "new": 0.1, "old": 0.09, "error": 1e-4},
        ),
    ),
    Is.MASTERS_APART: Phrase(
        sentence="{num:count master weight} {num:verb differ} after step {step}; {name}: by {share:.3g} of "
        "its update, tolerance {tolerance:.3g}",
        samples=({"num": 8, "step": 0, "name": "head.weight", "share": 0.03, "tolerance": 0.001},),
    ),
    Is.GRADIENTS_THE_SAME: Phrase(
        sentence="the gradients that backward left up to step {step} are bit-identical: what sums, clips or "
        "applies them differs",
        samples=({"step": 0},),
    ),
    Is.BUFFERS_WRITTEN: Phrase(
        sentence=_buffers_written,
        samples=(
            {
                "num": 8,
                "step": 0,
                "name": "bn1.running_var",
                "target": 3.1,
                "reference": 3.9,
                "by_norm": True,
            },
            {"num": 1, "step": 0, "name": "router.bias", "target": -0.2, "reference": 0.2, "by_norm": False},
        ),
    ),
    Is.BUFFERS_FOLLOW: Phrase(
        sentence=lambda facts: (
            f"buffers{ranks(facts)} begin step {facts['step']} as the first rank's in the {facts['side']}, "
            "as this rank left them in the other run: one run alone broadcasts them"
        ),
        samples=({"side": "reference", "ranks": ("1",), "step": 1},),
    ),
    Is.ID_BEYOND: Phrase(
        sentence="id {value} of the {side} is outside the vocabulary: {module} has {size:count row}",
        samples=({"side": "target", "value": 97, "module": "tok", "size": 97},),
    ),
    Is.ARGUMENTS_DIFFER: Phrase(
        sentence="arguments differ at {site}: {parts:join , }",
        samples=(
            {
                "site": "layers.2.attn · softmax",
                "parts": (reason(Is.ARGUMENT_DIFFERS, name="dim", target="1", reference="2"),),
            },
        ),
    ),
    Is.ARGUMENT_DIFFERS: Phrase(
        sentence=lambda facts: facts.fill(
            f"number of calls {_BOTH}" if facts["name"] == NUM_CALLS else f"{{name}} {_BOTH}"
        ),
        samples=({"name": "dim", **_VALUES}, {"name": NUM_CALLS, "target": "0", "reference": "1"}),
    ),
    Is.DTYPES_DIFFER: Phrase(
        sentence=f"dtypes differ at {{site}}: {_BOTH}",
        samples=({"site": "layers.2 · output.0", "target": "bfloat16", "reference": "float32"},),
    ),
    Is.SIZE: Phrase(
        sentence=_size,
        samples=(
            {"rel_l2": 0.01, "tolerance": 1e-6, "score": 1e4, "evidence": "values"},
            {"rel_l2": 0.01, "tolerance": 0.0, "score": float("inf"), "evidence": "statistics"},
        ),
    ),
    Is.SIZE_OF: Phrase(
        sentence="{name}: {parts[0]}",
        samples=({"name": "layers.0.weight", "parts": (reason(Is.NORMS, target=1.0, reference=2.0),)},),
    ),
    Is.NOT_FINITE: Phrase(
        sentence=_not_finite,
        samples=(
            {"what": "NaN", "target": 7, "reference": 0},
            {"what": "NaN", "target": None, "reference": 0},
        ),
    ),
    Is.COMMON_FACTOR: Phrase(
        sentence=lambda facts: (
            f"a common factor of {one_plus(facts['factor'])} explains most of it (residual "
            f"{facts['residual']:.2g})"
        ),
        samples=({"factor": 0.01, "residual": 0.001},),
    ),
    Is.EXTREMES: Phrase(
        sentence="{what} {target:.6g} (target) vs {reference:.6g} (reference)",
        samples=({"what": "maximum", "target": 1.5, "reference": 1.25},),
    ),
    Is.NORMS: Phrase(
        sentence="norm {target:.6g} (target) vs {reference:.6g} (reference)",
        samples=({"target": 1.5, "reference": 1.25},),
    ),
    Is.SCALAR_DIFFERS: Phrase(
        sentence=_scalar,
        samples=(
            {"name": "grad_norm", "step": 0, "ranks": ("0",), "target": 6.0, "reference": 3.0},
            {"name": "grad_norm", "step": 0, "ranks": ("3",), "target": 6.0, "reference": 3.0},
        ),
    ),
    Is.INPUTS_BIT_IDENTICAL: Phrase(sentence=_inputs("are bit-identical"), samples=({}, {"rel_l2": 0.1})),
    Is.INPUTS_AGREE: Phrase(sentence=_inputs("agree as far as compared"), samples=({}, {"rel_l2": 0.1})),
    Is.INPUTS_EXPLAIN: Phrase(
        sentence="its inputs differ by {error_in:.3g} at most; with a gain of {gain:.3g} that explains "
        "{explained:.3g} of {rel_l2:.3g}",
        samples=({"error_in": 1e-7, "gain": 2.0, "explained": 2e-7, "rel_l2": 1e-3},),
    ),
    Is.INPUTS_DIFFER_ALREADY: Phrase(
        sentence=lambda facts: (
            "its inputs differ already"
            + ("" if facts.get("error_in") is None else facts.fill(" (by {error_in:.2g} at most)"))
            + ", within their tolerances"
        ),
        samples=({}, {"error_in": 1e-7}),
    ),
    Is.CODE_DIFFERS: Phrase(
        sentence=_code_differs,
        samples=(
            {
                "function": "Towers.scale",
                "target": "return self.logit_scale",
                "reference": "return self.logit_scale.exp()",
                "target_at": "model.py:31",
                "reference_at": "model.py:29",
            },
            {
                "function": "Loss.forward",
                "target": "loss = loss * 2",
                "reference": "",
                "target_at": "loss.py:31",
                "reference_at": "loss.py:29",
            },
        ),
    ),
    Is.CODE_CASTS: Phrase(
        sentence=_code_casts,
        samples=(
            {
                "function": "RMSNorm.forward",
                "target": "return self.weight * x.type_as(given)",
                "reference": "return (self.weight * x).type_as(given)",
                "target_at": "model.py:31",
                "reference_at": "model.py:31",
            },
            {
                "function": "Head.forward",
                "target": "",
                "reference": "x = x.float()",
                "target_at": "model.py:8",
                "reference_at": "model.py:8",
            },
        ),
    ),
    Is.CODE_NESTED_OTHERWISE: Phrase(
        sentence=_code_nested_otherwise,
        samples=(
            {
                "function": "train",
                "text": "clip_grad_norm_(parameters, 1.0)",
                "target": "for batch in microbatches:",
                "reference": "",
                "target_at": "train.py:31",
                "reference_at": "train.py:29",
            },
            {
                "function": "train",
                "text": "loss.backward()",
                "target": "for step in steps:",
                "reference": "for batch in microbatches:",
                "target_at": "train.py:31",
                "reference_at": "train.py:29",
            },
        ),
    ),
    Is.CODE_IN_OTHER_ORDER: Phrase(
        sentence=_code_in_other_order,
        samples=(
            {
                "function": "<module>",
                "text": "optimizer.step()",
                "target": "update_ema()",
                "reference": "loss.backward()",
                "target_at": "train.py:31",
                "reference_at": "train.py:29",
            },
            {
                "function": "update",
                "text": "clip()",
                "target": "",
                "reference": "unscale()",
                "target_at": "train.py:31",
                "reference_at": "train.py:29",
            },
        ),
    ),
    Is.CODE_ARGUMENT_LACKS: Phrase(
        sentence=_argument_lacks,
        samples=(
            {"name": "causal", "called": "attend", "side": "target", "default": "True", "value": "False"},
            {"name": "mask", "called": "attend", "side": "reference", "default": "0", "value": ""},
            {"name": "mask", "called": "attend", "side": "target", "default": "", "value": "mask"},
        ),
    ),
    Is.CODE_WRAPPED: Phrase(
        sentence="in the {side}, a function that the other run does not have calls {function} ({at}): "
        '"{text}"',
        samples=(
            {"function": "Run.loss", "side": "target", "text": "return original(batch) * 2", "at": "a.py:3"},
        ),
    ),
    Is.CODE_OF_ONE_SIDE: Phrase(
        sentence=_code_of_one_side,
        samples=(
            {
                "name": "cross_entropy",
                "function": "smoothed",
                "side": "target",
                "text": "return loss * 0.9",
                "at": "a.py:3",
                "other": "torch.nn.functional.cross_entropy",
            },
            {
                "name": "Run.step",
                "function": "Run.step",
                "side": "reference",
                "text": "self.clip()",
                "at": "a.py:3",
                "other": "",
            },
        ),
    ),
    Is.CODE_CALLS_ANOTHER: Phrase(
        sentence="{name} is {target} (target), {reference} (reference)",
        samples=({"name": "act", "target": "torch.relu", "reference": "torch.nn.functional.gelu"},),
    ),
    Is.CODE_VALUE_DIFFERS: Phrase(
        sentence="{function} ({at}) uses {name}: {target} (target), {reference} (reference)",
        samples=(
            {
                "function": "Loss.forward",
                "at": "a.py:3",
                "name": "IGNORE_INDEX",
                "target": "0",
                "reference": "-100",
            },
        ),
    ),
    Is.COMPUTED_BY: Phrase(
        sentence=_computed_by,
        samples=(
            {"functions": ("linear", "gelu"), "modules": ("Linear (12)", "GELU (3)")},
            {"functions": (), "modules": ("Linear (12)",)},
        ),
    ),
    Is.FINER_EXCEEDED: Phrase(
        sentence="all before is the same number by number; this differs by {rel_l2:.3g}, where the finer "
        "dtype rounds {least:.1g} at most, and with it {site}",
        samples=({"rel_l2": 1.5e-3, "least": 4.8e-7, "site": "layers.1.norm · output.0"},),
    ),
    Is.WHOLE_ROUNDED: Phrase(
        sentence="whole numbers, such as positions or timesteps, that {dtype} does not hold are rounded: "
        "{num} of {total} are others, {number:.10g} becomes {becomes:.10g}",
        samples=({"dtype": "bfloat16", "num": 3, "total": 24, "number": 257.0, "becomes": 256.0},),
    ),
    Is.ON_GRID: Phrase(
        sentence=_on_grid,
        samples=(
            {"side": "target", "site": "blocks.0.norm · output.0", "dtype": "bfloat16", "values": True},
            {"side": "reference", "site": "blocks.0.norm · output.0", "dtype": "float16", "values": False},
        ),
    ),
    Is.SUM_DTYPES: Phrase(
        sentence=_sums,
        samples=(
            {
                "num": 3,
                "target": "bfloat16",
                "reference": "float32",
                "target_once": False,
                "reference_once": False,
            },
            {
                "num": 1,
                "target": "float32",
                "reference": "bfloat16",
                "target_once": False,
                "reference_once": True,
            },
        ),
    ),
    Is.ROWS_OF_ONE_SIDE: Phrase(
        sentence="of {total} rows of the gradient, {target} (target) and {reference} (reference) are not "
        "exactly zero; rounding makes no such zeros",
        samples=({"target": 96, "reference": 88, "total": 96},),
    ),
    Is.FIRST_BEYOND: Phrase(
        sentence="first difference that {dtype} does not explain: {site} ({rel_l2:.3g}; tolerance "
        "{tolerance:.3g})",
        samples=({"dtype": "bfloat16", "site": "head · output.0", "rel_l2": 0.5, "tolerance": 0.01},),
    ),
    Is.NONE_BEYOND: Phrase(
        sentence="no other difference is larger than {dtype} rounding explains",
        samples=({"dtype": "bfloat16"},),
    ),
    Is.NO_OTHER: Phrase(sentence="no other record differs by more than its tolerance"),
    Is.OTHERS: Phrase(
        sentence=_others,
        samples=(
            {"differing": 5, "compared": 900, "phases": (), "origins": 1, "followed": 0},
            {"differing": 5, "compared": 900, "phases": ("loss",), "origins": 2, "followed": 3},
        ),
    ),
    Is.COMPARED: Phrase(sentence=_compared, samples=({"equal": 5, "within": 0}, {"equal": 1, "within": 2})),
    Is.COMPARED_AND_AGREE: Phrase(
        sentence=lambda facts: facts.fill(
            "{compared:count other record} compared; all agree"
            if facts.get("others")
            else "{compared:count record} compared; all agree"
        ),
        samples=({"compared": 5}, {"compared": 1, "others": 1}),
    ),
    Is.NOT_COMPARED: Phrase(
        sentence="{records:count record} not compared; the captures differ: {parts:join , }",
        samples=(
            {"records": 3, "parts": (reason(Is.CAPTURE_DIFFERS, name="level", target="L0", reference="L1"),)},
        ),
    ),
    Is.PHASES_NOT_COMPARED: Phrase(
        sentence=lambda facts: f"not compared: {phases(facts)}", samples=({"phases": ("backward",)},)
    ),
    Is.CAPTURE_DIFFERS: Phrase(
        sentence=f"{{name}} {_BOTH}", samples=({"name": "level", "target": "L0", "reference": "L1"},)
    ),
    Is.SAME_MATHEMATICS: Phrase(
        sentence="{records:count record} without a counterpart or summary, between matched records that "
        "agree: what different calls make is the same within rounding",
        samples=({"records": 1}, {"records": 12}),
    ),
    Is.WITHOUT_EFFECT: Phrase(
        sentence="{num:count record} {num:verb exceed} tolerance, {site} first; the loss and the "
        "gradients of all weights agree: the same mathematics in another form",
        samples=({"num": 60, "site": "layers.0.mlp · input.0"},),
    ),
    Is.WITHOUT_COUNTERPART: Phrase(
        sentence="{records:,} of {total:count record} {records:verb are} not compared",
        samples=({"records": 900, "total": 1000},),
    ),
    Is.FIRST_OF_COMPARED: Phrase(
        sentence="first difference among the compared records: {site} ({phase})",
        samples=({"site": "loss · value", "phase": "loss"},),
    ),
    Is.GIVEN_WITHOUT_GRADIENTS: Phrase(
        sentence=lambda facts: facts.fill(
            "the {side} makes {total:count more call} of the model with gradients{in_steps}; "
            "{num:count call} of them {verb} the inputs of a call that the {other} makes without gradients",
            verb="has" if facts["num"] == 1 else "have",
            other="reference" if facts["side"] == "target" else "target",
            in_steps=f" in {facts['steps']} steps" if facts["steps"] > 1 else "",
        ),
        samples=(
            {"side": "target", "num": 1, "total": 2, "steps": 2},
            {"side": "reference", "num": 3, "total": 3, "steps": 1},
        ),
    ),
    Is.FIRST_APART: Phrase(
        sentence=lambda facts: facts.fill(
            "the first to differ is {site}, after {equal:count bit-identical record}: relative difference "
            + ("of at least " if facts.get("at_least") else "")
            + "{rel_l2:.2g}, tolerance {tolerance:.2g}"
        ),
        samples=(_FIRST_APART, {**_FIRST_APART, "at_least": 1}),
    ),
    Is.REDUCED_BY_ONE: Phrase(
        sentence="{call} of the {side} returns {made} of {given} (norms); all preceding records are "
        "bit-identical, {site} is the first with other bits",
        samples=(
            {
                "call": "all_reduce",
                "side": "reference",
                "given": 0.049,
                "made": 0.287,
                "site": "torch.distributed.all_gather · input.1",
            },
        ),
    ),
    Is.NOT_BRACKETED: Phrase(
        sentence="{site}: {parts[0]}",
        samples=({"site": "layers.0 · output.0", "parts": (reason(RecordCode.NO_COMMON_EVIDENCE),)},),
    ),
    Is.PRECEDING_NONE: Phrase(sentence="no preceding record of this step was compared"),
    Is.PRECEDING_BIT_IDENTICAL: Phrase(
        sentence=lambda facts: (
            "the one preceding record of this step is bit-identical"
            if facts["records"] == 1
            else facts.fill("all {records:,} preceding records of this step are bit-identical")
        ),
        samples=({"records": 1}, {"records": 1200}),
    ),
    Is.PRECEDING: Phrase(
        sentence=_preceding,
        samples=(
            {"equal": 5, "within": 0, "exceeding": 2},
            {"equal": 5, "within": 3, "exceeding": 0, "worst_score": 0.01, "worst_site": "a"},
            {"equal": 0, "within": 3, "exceeding": 1, "worst_score": 0.5, "worst_site": "a · output.0"},
        ),
    ),
    Is.ALL_AGREE: Phrase(
        sentence="{compared:count record} compared; all agree within rounding", samples=({"compared": 900},)
    ),
}
