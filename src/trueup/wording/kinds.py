"""English of kinds of faults: what each is called, and what it says of one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trueup.types.codes.kinds import (
    CauseCode,
    DivisorCode,
    FactorCode,
    KindReason,
    NormForm,
    OrderCode,
    PlacesCode,
    SettingReason,
)
from trueup.types.finding import EvidenceRank, Kind, KindCode
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts, Template, count, percent

NAMES = {
    KindCode.BIT_FLIP: "flipped bit",
    KindCode.CONSTANT_ARGUMENT: "constant differs",
    KindCode.DROPPED_UPDATE: "dropped update",
    KindCode.DTYPE_OR_ROUNDING: "different dtype or rounding",
    KindCode.FROZEN_OR_MISSING_GRADIENT: "missing gradient",
    KindCode.MISSING_ALL_REDUCE: "missing all-reduce",
    KindCode.MISSING_OR_EXTRA_TERM: "missing or extra term",
    KindCode.MISSING_ZERO_GRAD: "gradients not cleared",
    KindCode.NON_DETERMINISM: "non-deterministic order of operations",
    KindCode.OTHER_FUNCTIONS: "other functions called",
    KindCode.OVERFLOW_UNDERFLOW: "overflow or underflow",
    KindCode.RANDOMNESS: "different random numbers",
    KindCode.SHIFTED_BY_ONE: "values or positions shifted",
    KindCode.STALE_VALUE: "stale value",
    KindCode.TRANSPOSED_OR_PERMUTED: "values in another order or place",
    KindCode.WRONG_DATA: "different data",
    KindCode.WRONG_MASK: "different mask",
    KindCode.WRONG_OPTIMIZER_SETTING: "different optimizer setting",
    KindCode.WRONG_SCALE: "wrong scale",
    KindCode.WRONG_SIGN: "wrong sign",
}


def kind_name(kind: KindCode | str) -> str:
    """What a kind is called; of a document of another version as it is written there."""
    try:
        return NAMES[KindCode(kind)]
    except ValueError:
        return str(kind).replace("_", " ")


def kind_word(kind: Kind) -> str:
    """What a finding's kind is called; where no kind was recognised, that."""
    return "not recognised" if kind.rank is EvidenceRank.BY_ELIMINATION else kind_name(kind.name)


_GRADIENTS = {
    "local": "the gradient",
    "accumulated": "the accumulated gradient",
    "clipped": "the clipped gradient",
}


def subject(phase: str, slot: str) -> str:
    """What a tensor is, as the subject of a sentence.

    Example:
        >>> subject("backward", "input.0"), subject("optimizer", "state.exp_avg")
        ('the gradient of the input', "the optimizer's exp_avg")
    """
    part = slot.partition(".")[0]
    if phase == "param_grad":
        return _GRADIENTS.get(slot, "the gradient")
    if phase == "optimizer":
        return "the updated parameter" if slot == "param" else f"the optimizer's {slot.rpartition('.')[2]}"
    known = {"param": "the parameter", "loss": "the loss", "backward": f"the gradient of the {part}"}
    return known.get(phase, f"the {part}")


_AT: dict[str, object] = {"origin_phase": "forward", "origin_slot": "output.0"}


def _say(template: Template, *samples: Mapping[str, object], part: bool = False) -> Phrase:
    """A sentence about the origin's tensor: ``{subject}`` is what it is. How much it explains is said where
    it is not all; where only a part of the tensor was looked at, that is said at the end."""

    def sentence(facts: ReasonFacts) -> str:
        what = subject(str(facts["origin_phase"]), str(facts["origin_slot"]))
        seen = facts.get("part_seen")
        text = facts.fill(template, subject=what) if isinstance(template, str) else template(facts)
        text = text.replace("{subject}", what)
        if facts.get("explains") is not None:
            text += facts.fill(", which explains {explains:percent} of the difference")
        return f"{text} (seen in the part [{seen}])" if seen else text

    given = [{**_AT, **one} for one in samples or ({},)]
    return Phrase(
        sentence=sentence, samples=[*given, {**given[0], "part_seen": "0:4, 0:16"}] if part else given
    )


def _both(what: str, *, unit: str = "") -> str:
    return f"{what}: {{target}}{unit} (target), {{reference}}{unit} (reference)"


def fitted(value: float, digits: int = 3) -> str:
    """A fitted number, which is known to about three digits.

    Example:
        >>> fitted(9999.87), fitted(1.0003e-6)
        ('10000', '1e-06')
    """
    return f"{float(f'{float(value):.{digits}g}'):.{max(digits, 6)}g}"


def fitted_sides(facts: ReasonFacts, digits: int = 3) -> str:
    """The fitted numbers of both sides, with as many digits as it takes to tell them apart."""
    values = float(facts["target"]), float(facts["reference"])
    shown = next(
        (n for n in range(digits, 18) if fitted(values[0], n) != fitted(values[1], n)),
        digits,
    )
    return f"{fitted(values[0], shown)} (target), {fitted(values[1], shown)} (reference)"


def places_of_rows(facts: ReasonFacts, head: str = "") -> str:
    """Which place of each row is taken on one side."""
    first, last = int(facts[f"{head}first"]), int(facts[f"{head}last"])
    if first != last:
        return f"{first} to {last}"
    return "the last" if last == int(facts["size"]) - 1 else f"{last}"


def _other_places(facts: ReasonFacts) -> str:
    sides = f"{places_of_rows(facts)} (target), {places_of_rows(facts, 'other_')} (reference)"
    return facts.fill(
        "{subject} takes one place of each row of {source}: {sides}", subject="{subject}", sides=sides
    )


def in_range(text: str, digits: int) -> Callable[[ReasonFacts], str]:
    """A text with ``{range}``: from the lowest number to the highest, with as many digits as tell them
    apart."""

    def sentence(facts: ReasonFacts) -> str:
        low, high = float(facts["low"]), float(facts["high"])
        shown = next((n for n in range(digits, 17) if f"{low:.{n}g}" != f"{high:.{n}g}"), digits)
        numbers = f"{low:.{shown}g} to {high:.{shown}g}"
        return facts.fill(text, range=numbers, subject="{subject}", place="{place}")

    return sentence


def power_of_input(facts: ReasonFacts) -> str:
    """A multiple of a power of what the model is given for each row.

    Example:
        ``0.5 times input.sigma``, ``input.1 to the power -2``
    """
    power, times = float(facts["power"]), float(facts["times"])
    raised = str(facts["name"]) if power == 1 else f"{facts['name']} to the power {power:g}"
    return raised if f"{times:.3g}" == "1" else f"{times:.3g} times {raised}"


def _sent_back_per_row(facts: ReasonFacts) -> str:
    sentence = in_range(
        "each row of the gradient that the loss sends back to the model is the reference's times a "
        "factor of its own, {range} over {num:count row}",
        4,
    )(facts)
    if facts.get("name") is None:
        return f"{sentence}; nothing else differs"
    return f"{sentence}: {power_of_input(facts)}, which the model is given for each row"


_LAWS = {"tokens": "all tokens have one weight", "rows": "each row has one weight, divided by its tokens"}
_WEIGHTS = {
    "unit": "row",
    "per_row": 1,
    "num": 8,
    "names": ("0", "1"),
    "target": ("0.12", "-0.3"),
    "reference": ("0.1", "-0.31"),
}


def shift_of(shift: float) -> str:
    """How far a number is moved, and which way."""
    return f"{abs(shift):.4g} {'lower' if shift < 0 else 'higher'}"


def _weights_of_tokens(facts: ReasonFacts) -> str:
    numbers = " and ".join(f"{', '.join(facts[side])} ({side})" for side in ("target", "reference"))
    text = (
        "the loss multiplies log-probabilities by other numbers: of {unit}s {shown} by {numbers}; they differ"
    )
    text += " by one number for each of {num:count row}" if facts["per_row"] else " at {num:count token}"
    laws = "".join(f"; {part}" for part in facts.parts)
    return facts.fill(text, shown=", ".join(facts["names"]), numbers=numbers) + laws


def _fitted(what: str, digits: int = 3) -> Callable[[ReasonFacts], str]:
    return lambda facts: f"{what}: {fitted_sides(facts, digits)}; fitted"


def _labels_shifted(facts: ReasonFacts) -> str:
    shift = int(facts["shift"])
    text = (
        "the label of each position in the target's loss is that of {num} {where} in the reference's; of "
        "{total} positions {target} (target) and {reference} (reference) count"
    )
    num = "one position" if abs(shift) == 1 else f"{abs(shift)} positions"
    return facts.fill(text, num=num, where="before" if shift > 0 else "after")


def _raised(facts: ReasonFacts) -> str:
    less = f" less {facts['less']}" if facts["less"] else ""
    over = f" divided by {facts['over']}" if facts["over"] else ""
    both = ("," if less and over else "") + over
    return f"{{subject}}{less}{both} is the reference's to the power {facts['power']:.4g}"


def _scaled(facts: ReasonFacts) -> str:
    scale = float(facts["factor"])
    is_ = "norm, mean and extremes of {subject} are" if facts.get("of_statistics") else "{subject} is"
    text = f"{is_} {scale:.6g} times the reference's"
    if abs(scale - 1) < 0.05:
        size = "large" if scale > 1 else "small"
        text = f"{is_} {100 * abs(scale - 1):.3g} % too {size} (factor {scale:.9g})"
    known = [part for part in facts.parts if part != f"{scale:.6g}"]
    return text + (f" ({', or '.join(known)})" if known else "")


def _shifted(facts: ReasonFacts) -> str:
    shift = int(facts["shift"])
    where = f"{count(abs(shift), 'place')} {'later' if shift > 0 else 'earlier'}"
    return facts.fill(
        f"{{{{subject}}}} holds the reference's numbers {where} along dimension {{dim}} "
        "({agree:percent} agree when shifted, {in_place:percent} in place)"
    )


def _offset_by_table(facts: ReasonFacts) -> str:
    text = facts.fill("{{subject}} differs by numbers that depend on dimension ")
    shape = f"of shape ({', '.join(facts['shape'])})"
    of_gradient = facts["origin_phase"] in ("backward", "param_grad")
    what = f"a term {shape} in what the loss sends back" if of_gradient else f"a bias or table {shape}"
    return f"{text}{', '.join(facts['dims'])} alone: {what}"


def _nothing_else(facts: ReasonFacts) -> str:
    if facts.get("single"):
        return facts.fill("{{subject}} differs by {rel_l2} (relative), and one number does not say how")
    if facts.get("of_sketches"):
        return facts.fill(
            "{{subject}} differs by about {rel_l2} (relative l2), and not by a scale or sign; values were "
            "not kept"
        )
    return facts.fill(
        "{{subject}} differs by {rel_l2} (relative l2), and no scale, sign, shift or order maps one "
        "side to the other: another computation, perhaps with a term more or less"
    )


def _dropped_otherwise(facts: ReasonFacts) -> str:
    order = facts.get("order")
    how = f"in memory with dimensions ({', '.join(order)})" if order else "with the channels last"
    text = "the same random numbers drop {rate:percent} of the elements on both sides, in the {side} counted "
    return facts.fill(text) + how


def _not_cleared(facts: ReasonFacts) -> str:
    text = facts.fill("{{subject}} is the reference's plus the gradient of step {earlier_step}")
    clipping = facts.get("clipping")
    return text if clipping is None else f"{text}, both times {clipping:.6g} (clipping)"


def _over_ranks(how: str) -> Callable[[ReasonFacts], str]:
    def sentence(facts: ReasonFacts) -> str:
        fewer = f" ({', '.join(facts.parts)})" if facts.parts else ""
        ranks = ", ".join(facts["ranks"])
        return f"{{subject}} is this rank's part: the {how} over ranks {ranks} is the reference's{fewer}"

    return sentence


def _flipped(facts: ReasonFacts) -> str:
    elements = facts["elements"]
    how = "element differs by one bit" if elements == 1 else "elements differ, each by one bit"
    return facts.fill(
        f"{{elements}} of {{numel}} {how}: {{{{subject}}}}[{', '.join(facts['index'])}] is {{target}} "
        f"(target), "
        "{reference} (reference), bit {bit} of {dtype}"
    )


def _not_finite(facts: ReasonFacts) -> str:
    names = {"num_nan": "NaN", "num_posinf": "+inf", "num_neginf": "-inf"}
    shown = [
        f"{facts[f'{name}_target']} (target) vs {facts[f'{name}_reference']} (reference) {word}"
        for name, word in names.items()
        if facts[f"{name}_target"] != facts[f"{name}_reference"]
    ]
    return f"{{subject}} has {', '.join(shown)} of {facts['numel']} values"


def _underflow(facts: ReasonFacts) -> str:
    smallest = "smallest normal" if facts.get("normal") else "smallest"
    return facts.fill(
        "{lost} of {numel} values are zero where the reference's magnitudes are up to {largest}: below "
        "{limit}, the {smallest} {dtype}",
        smallest=smallest,
    )


def _gradient(what: str) -> Callable[[ReasonFacts], str]:
    def sentence(facts: ReasonFacts) -> str:
        parameter = facts.get("parameter")
        return f"{{subject}}{f' of {parameter}' if parameter else ''} {what}"

    return sentence


def _not_updated(facts: ReasonFacts) -> str:
    whose = facts["parameter"]
    if facts.reason.code is KindReason.NEVER_UPDATED:
        text = f"no optimizer of the target updates {whose}; the reference's does"
    else:
        text = f"{whose} is bit-identical before and after the update; the reference's changes"
        text += ", although its gradient is not zero" if facts["has_gradient"] else ""
    why = {
        CauseCode.STEP_SKIPPED.value: " (the target's optimizer step was skipped)",
        CauseCode.NOT_IN_A_GROUP.value: " (it is in no optimizer group)",
    }
    return text + why.get(str(facts.get("why")), "")


def _dtypes(facts: ReasonFacts) -> str:
    text = facts.fill("{{subject}} is {target} (target), {reference} (reference)")
    if facts.get("rel_l2") is None:
        return text
    return text + facts.fill("; they differ by {rel_l2} (relative l2), one rounding is {roundoff}")


def _grid(facts: ReasonFacts) -> str:
    which = "minimum, maximum and smallest magnitude" if facts.get("of_extremes") else "all values"
    text = which + facts.fill(" of the {side} are {dtype} numbers, those of the other side are not")
    if facts.get("rel_l2") is None:
        return text
    return text + facts.fill("; they differ by {rel_l2} (relative l2), a rounding to {dtype} is {roundoff}")


def _module(what: str) -> Callable[[ReasonFacts], str]:
    return lambda facts: f"{facts.get('module') or 'the root module'} {what}: {facts.parts[0]}"


def _other_functions(facts: ReasonFacts) -> str:
    own, other = facts["target"], facts["reference"]
    clauses = list(facts.parts)
    if own and other:
        clauses.insert(0, f"the code calls {own} in the target, {other} in the reference")
    elif own or other:
        clauses.insert(0, f"the {'target' if own else 'reference'} alone calls {own or other}")
    return "; ".join(clauses)


def _more_calls(facts: ReasonFacts) -> str:
    text = facts.fill("{call} is called {target} times (target), {reference} times (reference)")
    for side in ("target", "reference"):
        if only := facts.get(f"{side}_only"):
            text += f"; the {side} alone calls {only}"
    return text


def _other_batch(facts: ReasonFacts) -> str:
    differ = facts.get("differ")
    shown = "" if differ is None else f": {percent(differ)} of its elements differ, no sample is shared"
    return f"the batch is not the reference's{shown}"


def _setting_of(facts: ReasonFacts) -> str:
    small = " (a bias or norm weight: one dimension)" if facts.get("one_dimensional") else ""
    return f"{facts['parameter']}{small}"


def _settings(facts: ReasonFacts) -> str:
    state = facts.get("state")
    solved = facts.reason.code is KindReason.SETTINGS_SOLVED
    origin = f" (solved for from {state or 'the update'})" if solved else ""
    return f"{_setting_of(facts)}: {', '.join(facts.parts)}{origin}"


def _learning_rate(facts: ReasonFacts) -> str:
    text = facts.fill(f"learning rate at step {{step}}: {_both('')[2:]}")
    of_step = facts.get("of_step")
    if of_step is None:
        return text
    return f"{text}; the target's is the reference's of step {of_step}, so the schedule is off by one step"


def _counted(facts: ReasonFacts) -> str:
    sides = f"{facts['target']:g} updates (target), {facts['reference']:g} (reference)"
    text = f"{facts['parameter']} has seen {sides}"
    if facts.reason.code is KindReason.UPDATES_PER_MICROBATCH:
        text += ": one per microbatch instead of one per step"
    return text


def _lost(facts: ReasonFacts) -> str:
    share = f"{percent(facts['target'])} of {facts['parameter']}"
    text = f"{share} keeps its bits through the update: it is lost to "
    other = facts.get("reference")
    return f"{text}rounding in {facts['dtype']}" + (
        "" if other is None else f" (reference: {percent(other)})"
    )


def _along(what: str) -> Callable[[ReasonFacts], str]:
    return lambda facts: f"{_setting_of(facts)} differs along {facts.fill(what)}"


def _term(facts: ReasonFacts) -> str:
    factor = float(facts["factor"])
    sign = "plus" if factor > 0 else "minus"
    return facts.fill(f"{{{{subject}}}} is the reference's {sign} {abs(factor):.6g} times {{term}}")


def _computed_again(what: Template) -> Callable[[ReasonFacts], str]:
    def sentence(facts: ReasonFacts) -> str:
        change = facts.fill(what) if isinstance(what, str) else what(facts)
        return f"attention recomputed from queries, keys and values gives the target's numbers with {change}"

    return sentence


def _routed_again(what: Template) -> Callable[[ReasonFacts], str]:
    def sentence(facts: ReasonFacts) -> str:
        found = facts.fill(what) if isinstance(what, str) else what(facts)
        return f"router recomputed from its input and weight: {found}"

    return sentence


_OPERANDS = {"dtype": "bfloat16", "target_powers": False, "reference_powers": False, "target_cut": 1.0}
_OPERANDS |= {"reference_cut": 1.0, "target_scales": "tensor", "reference_scales": ""}
_OPERANDS |= {f"{side}_{of}": "" for side in ("target", "reference") for of in ("given", "weight")}
_SHARED = {"tensor": "tensor", "row": "row", "block": "block of 128", "group": "group of 32"}


def operands(facts: ReasonFacts, side: str) -> str:
    """What one run rounds the operands of a product to."""
    shared = scale_of(facts, side)
    return f"{operand_formats(facts, side)} ({shared})" if shared else operand_formats(facts, side)


def operand_formats(facts: ReasonFacts, side: str) -> str:
    """Of the input and the weight."""
    given, weight = (facts[f"{side}_{of}"] or facts["dtype"] for of in ("given", "weight"))
    return str(given) if given == weight else f"{given} by {weight}"


def scale_of(facts: ReasonFacts, side: str) -> str:
    """What shares a scale; empty where nothing is scaled."""
    if not facts[f"{side}_given"] and not facts[f"{side}_weight"]:
        return ""
    cut = float(facts[f"{side}_cut"])
    cuts = f", cut off above 1/{cut:.0f} of the largest" if cut != 1 else ""
    power = "a power of two" if facts[f"{side}_powers"] else "one scale"
    return f"{power} a {_SHARED[facts[f'{side}_scales']]}{cuts}"


NORMALISED = {
    "none": "not normalised",
    "chosen": "normalised over the chosen experts",
    "all": "normalised over all experts",
}


BALANCED = {"all": "all experts", "chosen": "the chosen experts alone"}


def chosen(facts: ReasonFacts, side: str) -> str:
    """How a side chooses experts."""
    groups, kept = (int(facts[f"{side}_{key}"]) for key in ("groups", "kept"))
    of = "with the bias" if facts[f"{side}_biased"] else "by scores alone"
    if groups == 1:
        return f"{of}, without groups"
    best = "their best expert" if facts[f"{side}_by"] == "max" else "the sum of their two best"
    return f"{of}, in {kept} of {groups} groups by {best}"


def _choice(
    target: tuple[str, int, int, bool], reference: tuple[str, int, int, bool]
) -> dict[str, str | int]:
    """Facts of two ways of choosing."""
    facts: dict[str, str | int] = {}
    for side, (by, groups, kept, biased) in (("target", target), ("reference", reference)):
        facts |= {f"{side}_by": by, f"{side}_groups": groups, f"{side}_kept": kept, f"{side}_biased": biased}
    return facts


def _divisors(facts: ReasonFacts) -> str:
    pairs = facts.get("pairs") or 1
    one_of = "" if pairs == 1 else f", one of {pairs} pairs of numbers of the step with this quotient"
    return (
        facts.fill(
            "the sum over tokens is divided by {parts[0]} (target), by {parts[1]} (reference); true of "
            "{microbatches:count loss}"
        )
        + one_of
    )


_DIVISORS = {
    "microbatches": 3,
    "parts": (reason(DivisorCode.COUNTED_OF_STEP, number=124), reason(DivisorCode.COUNTED, number=40)),
}
PAIRING = {"halves": "the first half with the second", "pairs": "neighboring elements"}
_WEIGHT = {"parameter": "layers.0.mlp.up.weight", "one_dimensional": False}
_FLOATS = {"target": 0.2, "reference": 0.1}
_DTYPE = {"dtype": "bfloat16"}
_ROLLED = reason(OrderCode.ROLLED, shift=2)
_ARGUMENT = reason(KindReason.ARGUMENT, call="layer_norm", argument="eps", target="1e-06", reference="1e-05")
_CALLS = reason(KindReason.MORE_CALLS, call="batch_norm", target=2, reference=4)
_SETTING = reason(SettingReason.VALUE, setting="lr", target="0.02", reference="0.01")

PHRASES: dict[KindReason, Phrase] = {
    # arguments and calls
    KindReason.ARGUMENT: Phrase(
        sentence=_both("{call} {argument}"),
        samples=({"call": "layer_norm", "argument": "eps", "target": "1e-06", "reference": "1e-05"},),
    ),
    KindReason.EXTRA_CALL: Phrase(
        sentence="{call} is called by the target alone", samples=({"call": "view"},)
    ),
    KindReason.MISSING_CALL: Phrase(
        sentence="{call} is called by the reference alone", samples=({"call": "view"},)
    ),
    KindReason.WORKS_ON: Phrase(
        sentence=_both("dtype in {call}"),
        samples=({"call": "matmul", "target": "bfloat16", "reference": "float32"},),
    ),
    KindReason.OTHER_FUNCTIONS: _say(
        _other_functions,
        {"target": "mul 0.2, clamp", "reference": "relu6, div 6"},
        {"target": "softmax", "reference": ""},
        {"target": "", "reference": "log_softmax"},
        {"target": "", "reference": "", "parts": (_CALLS,)},
    ),
    KindReason.MORE_CALLS: Phrase(
        sentence=_more_calls,
        samples=(
            {"call": "batch_norm", "target": 2, "reference": 4},
            {"call": "mul", "target": 3, "reference": 4, "reference_only": "mul 4"},
        ),
    ),
    KindReason.OTHER_ARGUMENTS: _say("argument mismatch: {parts:join ; }", {"parts": (_ARGUMENT,)}),
    KindReason.MASK_ARGUMENTS: _say("mask arguments differ: {parts:join ; }", {"parts": (_ARGUMENT,)}),
    KindReason.CAST_OTHERWISE: _say(
        _module("computes in a different dtype"), {"module": "layers.0.norm", "parts": (_ARGUMENT,)}
    ),
    KindReason.OTHER_RANGE: _say(
        lambda facts: (
            f"{facts.get('module') or 'the root module'} takes the indices {facts['target']} (target), "
            f"{facts['reference']} (reference) of a tensor"
        ),
        {"module": "", "target": ":", "reference": "1:"},
    ),
    KindReason.OTHER_LAYOUT_CALLS: _say(
        _module("uses a different layout"), {"module": "", "parts": (_ARGUMENT,)}
    ),
    # constants that were fitted
    KindReason.NORM_EPS: _say(_fitted("eps of the norm", 2), {"target": 1.02e-6, "reference": 1.001e-5}),
    KindReason.NORM_FORM: _say(
        "the norm {parts[0]} (target), {parts[1]} (reference)",
        {"parts": (reason(NormForm.EPS_OUTSIDE), reason(NormForm.EPS_INSIDE))},
    ),
    KindReason.SOFTMAX_FACTOR: _say(
        _fitted("factor before the softmax", 6), {"target": 1.1, "reference": 1.0}
    ),
    KindReason.DROPOUT_RATE: _say(
        "dropout rate: {target:percent} (target), {reference:percent} (reference); counted", _FLOATS
    ),
    KindReason.ACTIVATION: _say(f"{_both('activation')}; fitted", {"target": "gelu", "reference": "silu"}),
    KindReason.ROTARY_THETA: _say(_fitted("rotary theta"), {"target": 5e5, "reference": 9999.9}),
    KindReason.ROTATED_PAIRS: _say(
        lambda facts: (
            f"rotary embedding rotates {PAIRING[facts['target']]} (target), "
            f"{PAIRING[facts['reference']]} (reference)"
        ),
        {"target": "pairs", "reference": "halves"},
    ),
    KindReason.ROTATED_BACKWARD: _say("rotary embedding rotates in the opposite direction"),
    KindReason.POSITIONS_SHIFTED: _say("rotary positions are {shift:+d} from the reference's", {"shift": 1}),
    KindReason.POSITIONS_COUNTED_FROM: _say(
        "wherever {{subject}} counts up by one on both sides, the number is {offset:+d} from the reference's",
        {"offset": -2},
    ),
    KindReason.FREQUENCIES_ROUNDED: _say("rotary frequencies (inv_freq) are rounded to {dtype}", _DTYPE),
    KindReason.ANGLES_ROUNDED: _say("rotary angles are rounded to {dtype} before cos and sin", _DTYPE),
    KindReason.OPERANDS_ROUNDED: _say(
        lambda facts: (
            "multiplied again from the input and weight: the operands are "
            f"{operands(facts, 'target')} (target), {operands(facts, 'reference')} (reference)"
        ),
        {**_OPERANDS, "target_given": "float8_e4m3fn", "target_weight": "float8_e4m3fn"},
        {**_OPERANDS, "target_given": "float8_e5m2", "target_weight": "float8_e4m3fn", "target_cut": 2.0},
        {**_OPERANDS, "target_weight": "int8", "target_scales": "row", "target_powers": True},
    ),
    # attention, computed again
    KindReason.SEES_SUCCESSOR: _say(_computed_again("each token attending to its successor as well")),
    KindReason.NO_MASK: _say(_computed_again("no causal mask")),
    KindReason.ZERO_FOR_GIVEN: _say(
        lambda facts: facts.fill(
            "{subject} is zero in the {side} at {num} of {size} elements, where the {other} returns what the "
            "call was given",
            subject="{subject}",
            other="reference" if facts["side"] == "target" else "target",
        ),
        {"side": "target", "num": 672, "size": 3840},
        {"side": "reference", "num": 48, "size": 3840},
    ),
    KindReason.MASK_INVERTED: _say(
        "what the reference's mask hides is seen, and what it shows is hidden", {}
    ),
    KindReason.MASK_UNUSED: _say(
        _computed_again(
            lambda facts: (
                "the causal mask alone, without the rest of the mask"
                if facts["left"] == "causal"
                else "no mask, where the reference's hides some keys"
            )
        ),
        {"left": "causal", "hidden": "padding"},
        {"left": "none", "hidden": "more"},
    ),
    KindReason.CAUSAL_MASK_ADDED: _say(_computed_again("a causal mask")),
    KindReason.KEY_HEADS_ALTERNATE: _say(_computed_again("query heads assigned to key heads alternately")),
    KindReason.KEYS_FOR_VALUES: _say(_computed_again("keys and values exchanged")),
    KindReason.FREQUENCIES_INCLUSIVE: _say(
        _computed_again(
            lambda facts: (
                f"rotary exponents i/{facts['number'] - 1:g} instead of i/{facts['number']:g}, "
                f"which is a theta of {fitted(facts['same'])} instead of {fitted(facts['theta'])}"
            )
        ),
        {"number": 4, "theta": 1e4, "same": 215443.0},
    ),
    KindReason.MASK_BEGINS: _say(
        _computed_again(
            lambda facts: (
                "a window that is one token "
                f"{'longer' if facts['side'] == 'target' else 'shorter'} than the mask's"
            )
        ),
        {"side": "target"},
        {"side": "reference"},
    ),
    KindReason.GATE_FOR_UP: _say(
        "{subject} is {activation} of the reference's factor, times what the reference gives to "
        "{activation}: gate and factor are exchanged",
        {"activation": "silu"},
    ),
    KindReason.FUSED_ROWS_BY_GROUP: _say(
        _computed_again(
            "a fused projection whose rows are grouped by head group, read as grouped by q, k and v"
        )
    ),
    KindReason.FUSED_ROWS_BY_KIND: _say(
        _computed_again(
            "a fused projection whose rows are grouped by q, k and v, read as grouped by head group"
        )
    ),
    KindReason.ROTARY_PAIRING: _say(
        _computed_again(
            lambda facts: (
                f"a rotary embedding on {PAIRING[facts['target']]} instead of {PAIRING[facts['reference']]}"
            )
        ),
        {"target": "pairs", "reference": "halves"},
    ),
    KindReason.NO_ROTARY: _say(_computed_again("no rotary embedding")),
    KindReason.KEYS_ROTATED_BACKWARD: _say(_computed_again("keys rotated in the opposite direction")),
    # a router, computed again
    KindReason.ROUTER_SCORES: _say(
        _routed_again("the weights are {target} of the logits (target), {reference} (reference)"),
        {"target": "softmax", "reference": "sigmoid"},
    ),
    KindReason.ROUTER_NORMALISED: _say(
        _routed_again(
            lambda facts: (
                f"the weights of the chosen experts are {NORMALISED[facts['target']]} (target), "
                f"{NORMALISED[facts['reference']]} (reference)"
            )
        ),
        {"target": "none", "reference": "chosen"},
        {"target": "all", "reference": "chosen"},
    ),
    KindReason.ROUTER_BIAS_WEIGHS: _say(
        _routed_again("the bias for the choice of experts is in their weights too in the {side} alone"),
        {"side": "target"},
    ),
    KindReason.ROUTER_FACTOR: _say(
        _routed_again(lambda facts: f"{_fitted('factor on the weights')(facts)}"),
        {"target": 1.0, "reference": 2.5},
    ),
    KindReason.ROUTER_CHOICE: _say(
        _routed_again(
            lambda facts: (
                f"experts are chosen {chosen(facts, 'target')} (target), "
                f"{chosen(facts, 'reference')} (reference)"
            )
        ),
        _choice(("sum", 4, 2, True), ("max", 4, 2, True)),
        _choice(("max", 1, 1, False), ("max", 1, 1, True)),
        _choice(("max", 1, 1, True), ("sum", 4, 2, True)),
    ),
    KindReason.TERM_OF_SCORES: _say(
        "{subject} differs by p (v - p.v) for every token, with p the softmax of the output and one number v "
        "for each of {experts:count expert}: a term of the loss that weighs the experts' mean scores",
        {"experts": 8},
    ),
    KindReason.ROUTER_BALANCE: _say(
        _routed_again(
            lambda facts: (
                f"the balance loss takes the scores of {BALANCED[facts['target']]} (target), of "
                f"{BALANCED[facts['reference']]} (reference)"
            )
        ),
        {"target": "chosen", "reference": "all"},
    ),
    KindReason.ROUTER_Z_LOSS: _say(
        _routed_again("a z-loss with the coefficient {coefficient:g} is in the result of the {side} alone"),
        {"side": "reference", "coefficient": 0.1},
    ),
    KindReason.ROUTER_ROUNDED: _say(_routed_again("the target's logits are made in {dtype}"), _DTYPE),
    KindReason.BOTH_ROTATED_BACKWARD: _say(
        _computed_again("queries and keys rotated in the opposite direction")
    ),
    KindReason.ROTATED_PART: _say(
        _computed_again(
            lambda facts: (
                f"the first {facts['target']:g} elements of each head rotated instead of "
                f"{facts['reference']:g}"
            )
        ),
        {"target": 8, "reference": 16},
    ),
    KindReason.ROTATED_LAST: _say(
        _computed_again("the last {number:g} elements of each head rotated instead of the first"),
        {"number": 8},
    ),
    KindReason.FREQUENCIES_OF_HEAD: _say(
        _computed_again(
            lambda facts: (
                f"rotary exponents divided by {facts['target']:g} (the head's size) instead of "
                f"{facts['reference']:g} (the rotated elements)"
            )
        ),
        {"target": 16, "reference": 8},
    ),
    KindReason.CAP_OF_ONE_SIDE: _say(
        _computed_again(
            lambda facts: (
                f"scores capped by tanh at {fitted(facts['cap'])}"
                if facts["side"] == "target"
                else f"scores not capped by tanh (at {fitted(facts['cap'])} in the reference)"
            )
        ),
        {"side": "target", "cap": 20.0},
        {"side": "reference", "cap": 50.0},
    ),
    KindReason.SCORES_CAPPED: _say(
        _computed_again(lambda facts: f"a {_fitted('cap of the scores')(facts)}"),
        {"target": 50.0, "reference": 20.0},
    ),
    KindReason.ALIBI_OF_ONE_SIDE: _say(_computed_again("no ALiBi bias"), {"side": "reference"}),
    KindReason.ALIBI_SLOPES: _say(
        _computed_again(lambda facts: f"a {_fitted('slope of the first head (ALiBi)', 4)(facts)}"),
        {"target": 0.5, "reference": 0.25},
    ),
    KindReason.HEADS_NOT_MERGED: _say(
        _computed_again("heads not transposed back before they are put side by side")
    ),
    KindReason.COSINES_ROUNDED: _say(_computed_again("cosines and sines in {dtype}"), _DTYPE),
    KindReason.SOFTMAX_ROUNDED: _say(_computed_again("a softmax in {dtype}"), _DTYPE),
    KindReason.SOFTMAX_OVER_QUERIES: _say(
        _computed_again("a softmax over the queries (dim -2), not over the keys (dim -1)")
    ),
    KindReason.MASKED_AFTER_SOFTMAX: _say(
        _computed_again("the mask applied to the result of the softmax, whose rows then sum to less than 1")
    ),
    KindReason.LOSS_NOT_NORMALISED: _say(
        lambda facts: (
            "the gradient that the loss sends back sums to 0 at each position, as of a log-softmax, "
            f"in the {'reference' if facts['side'] == 'target' else 'target'} alone"
        ),
        {"side": "target"},
    ),
    KindReason.LABEL_IGNORED: _say(
        "of {total} positions those with label {label}, {num:count position}, count in one loss alone: "
        "the {side}'s ignores this label",
        {"label": 0, "num": 27, "total": 192, "side": "target"},
    ),
    KindReason.ATTENTION_THETA: _say(
        _computed_again(lambda facts: f"a {_fitted('rotary theta')(facts)}"),
        {"target": 5e5, "reference": 9999.9},
    ),
    KindReason.SCORES_SCALED: _say(
        _computed_again(lambda facts: f"a {_fitted('scale of the scores', 4)(facts)}"),
        {"target": 0.3, "reference": 0.25},
    ),
    KindReason.SCALED_PER_ROW: _say(
        in_range(
            "each row of {subject} is the reference's times a factor of its own, {range} over "
            "{num:count row}; nothing else differs",
            4,
        ),
        {"low": 0.5, "high": 3.2, "num": 4},
        {"low": 0.99999, "high": 1.00001, "num": 4},
    ),
    KindReason.SENT_TO_OTHER_POSITIONS: _say(
        "of {total} positions the loss sends a gradient back to {target} (target), to {reference} "
        "(reference)",
        {"total": 96, "target": 96, "reference": 80},
    ),
    KindReason.LABELS_SHIFTED: _say(
        _labels_shifted,
        {"shift": 1, "total": 84, "target": 58, "reference": 58},
        {"shift": -2, "total": 84, "target": 56, "reference": 58},
    ),
    KindReason.SENT_BACK_PER_ROW: _say(
        _sent_back_per_row,
        {"low": 0.5, "high": 3.2, "num": 4},
        {"low": 0.5, "high": 3.2, "num": 4, "name": "input.sigma", "power": 1.0, "times": 0.5},
        {"low": 0.5, "high": 3.2, "num": 4, "name": "input.1", "power": -2.0, "times": 1.0},
    ),
    KindReason.WEIGHTS_OF_TOKENS: _say(
        _weights_of_tokens,
        _WEIGHTS,
        {**_WEIGHTS, "unit": "token", "names": ("0:5", "0:6"), "per_row": 1},
        {**_WEIGHTS, "unit": "token", "names": ("0:5", "0:6"), "per_row": 0, "num": 44},
        {**_WEIGHTS, "parts": (reason(KindReason.WEIGHTS_PAIRED, step=4, num=4),)},
    ),
    KindReason.WEIGHTS_LAW: Phrase(
        sentence=lambda facts: "; ".join(
            f"{_LAWS[facts[side]]} ({side})" for side in ("target", "reference")
        ),
        samples=({"target": "tokens", "reference": "rows"},),
    ),
    KindReason.WEIGHTS_MARGIN: Phrase(
        sentence=lambda facts: (
            f"these are weights of one logistic loss, whose argument is {shift_of(facts['shift'])} in the "
            "target for every row"
        ),
        samples=({"shift": -0.8}, {"shift": 0.25}),
    ),
    KindReason.WEIGHTS_PAIRED: Phrase(
        sentence="the rows are {num:count pair} of opposite weights, {step:count row} apart, in both runs: "
        "their margins differ",
        samples=({"step": 4, "num": 4}, {"step": 1, "num": 8}),
    ),
    KindReason.WEIGHTS_BY_ROWS: Phrase(
        sentence=lambda facts: facts.fill(
            "the differences sum to 0 over each {size:count row}, as where numbers that are centred over "
            "these are divided by another one"
            if facts["law"] == "scale"
            else "the difference is one number for each {size:count row}, as where another mean is subtracted"
        ),
        samples=({"size": 4, "law": "scale"}, {"size": 4, "law": "mean"}),
    ),
    KindReason.SCALED_PER_TOKEN: _say(
        in_range(
            "each vector of {subject} is the reference's times a factor of its own, {range} over "
            "{num:count vector}; nothing else differs",
            4,
        ),
        {"low": 0.5, "high": 0.8, "num": 96},
    ),
    KindReason.SUMS_TO_ONE: _say(
        "vectors of {subject} sum to 1 in the {side} alone; in the other run to {low:.4g} to {high:.4g}",
        {"side": "reference", "low": 0.5, "high": 0.8},
    ),
    KindReason.LENGTH_OF_ONE: _say(
        "vectors of {subject} have a length of 1 in the {side} alone; in the other run of {low:.4g} to "
        "{high:.4g}",
        {"side": "target", "low": 0.5, "high": 8.1},
    ),
    KindReason.WEIGHT_OFFSET: _say(
        "features of {subject} are multiplied by {target:g} + {weight} (target), {reference:g} + {weight} "
        "(reference)",
        {"target": 2.0, "reference": 1.0, "weight": "weight"},
    ),
    KindReason.WEIGHT_OF_ONE_SIDE: _say(
        lambda facts: (
            f"the {facts['side']} alone multiplies features of {{subject}} by "
            + (f"{facts['offset']:g} + " if facts["offset"] else "")
            + f"{facts['weight']}"
        ),
        {"side": "reference", "offset": 0.0, "weight": "weight"},
        {"side": "target", "offset": 1.0, "weight": "weight"},
    ),
    # scale, sign, sum
    KindReason.SCALED: _say(
        _scaled,
        {"factor": 2.0, "parts": (reason(FactorCode.NUMBER, number=2),)},
        {"factor": 1.002},
        {"factor": 3.0, "of_statistics": 1},
        {"factor": 3.0, "explains": 0.85},
        part=True,
    ),
    KindReason.SCALED_AT_EVEN_SCORES: _say(
        lambda facts: (
            f"{{subject}} is {facts['factor']:.6g} times the reference's, and the loss is ln 2 in both runs: "
            "two equal scores show neither the scale of their difference nor label smoothing (this factor is "
            f"one of {abs(float(facts['smoothing'])):.3g} in the "
            f"{'target' if float(facts['smoothing']) > 0 else 'reference'} alone)"
        ),
        {"factor": 1.11111, "smoothing": -0.05},
        {"factor": 0.9, "smoothing": 0.05},
    ),
    KindReason.LOGIT_TEMPERATURE: _say(
        _fitted("temperature that divides the logits (from their gradient)"),
        {"target": 0.9, "reference": 1.0},
    ),
    KindReason.SMOOTHED_IGNORED: _say(
        "in the {side} positions whose labels are ignored send back what label smoothing of {ignored:.4g} "
        "does; labels that count are smoothed by {target:.4g} (target), {reference:.4g} (reference)",
        {"side": "target", "ignored": 0.1, "target": 0.1, "reference": 0.0},
    ),
    KindReason.LABEL_SMOOTHING: _say(
        _fitted("label smoothing (from the gradient of the logits)"), {"target": 0.1, "reference": 0.0}
    ),
    KindReason.Z_LOSS: _say(
        _fitted("coefficient of the squared log of the softmax's sum (z-loss)"),
        {"target": 1e-4, "reference": 0.0},
    ),
    KindReason.LOSS_DIVISORS: _say(
        _divisors, _DIVISORS, {**_DIVISORS, "pairs": 1}, {**_DIVISORS, "pairs": 3}
    ),
    KindReason.DIVISORS_GIVEN: _say(
        "{name} is {parts[0]} (target), {parts[1]} (reference)",
        {
            "name": "denominator",
            "parts": (
                reason(DivisorCode.COUNTED_TIMES, number=120),
                reason(DivisorCode.COUNTED_OF_STEP, number=124),
            ),
        },
    ),
    KindReason.NUMBER_GIVEN: _say(
        lambda facts: (
            facts.fill("{name} is {target} (target), {reference} (reference)")
            + (f": {', or '.join(facts.parts)}" if facts.parts else "")
        ),
        {"name": "denominator", "target": 0.7, "reference": 1.1},
        {
            "name": "denominator",
            "target": 32.0,
            "reference": 64.0,
            "parts": (reason(FactorCode.WORLD_SIZE, number=2, inverse=True),),
        },
    ),
    KindReason.NEGATED: _say("{subject} is minus the reference's", part=True),
    KindReason.SIGNS_DIFFER: _say(
        "magnitudes agree, but {share:percent} of the signs differ", {"share": 0.5}
    ),
    KindReason.SLICES_NEGATED: _say(
        "magnitudes agree, but {share:percent} of the signs differ: {indices} of {size} indices of dimension "
        "{dim} (first {first}, last {last})",
        {"share": 0.5, "dim": 2, "indices": 16, "size": 32, "first": 0, "last": 15},
    ),
    KindReason.STATISTICS_NEGATED: _say("minimum, maximum and mean of {subject} are minus the reference's"),
    KindReason.OTHER_USE: _say(
        "the calls of {module} make the same part of {subject} on both sides; the {side} alone has another "
        "part ({share:percent} of its size): a second use of the weight, or a hook",
        {"module": "embed", "side": "reference", "share": 0.54},
    ),
    KindReason.OTHER_USES_DIFFER: _say(
        "the calls of {module} make the same part of {subject} on both sides; the other part differs, "
        "{target:percent} of its size (target), {reference:percent} (reference): a second use of the weight, "
        "or a hook",
        {"module": "embed", "target": 0.2, "reference": 0.54},
    ),
    KindReason.ALL_ZERO: _say("{subject} is zero everywhere in the {side} alone", {"side": "target"}),
    KindReason.TERM_MISSING: _say(
        "{subject} lacks a term: it is the reference's minus {term}", {"term": "bias"}
    ),
    KindReason.TERM_EXTRA: _say(
        "{subject} has an extra term: it is the reference's plus {term}", {"term": "bias"}
    ),
    KindReason.GROUPED_OTHERWISE: _say(
        "the rows come in groups of other sizes ({sizes} of the same call): {num} of {total} rows or more "
        "belong to another group",
        {"sizes": "input.1", "num": 17, "total": 192},
    ),
    KindReason.RAISED: _say(
        _raised,
        {"power": 2.0, "less": "mu, output", "over": "input.noise"},
        {"power": 0.5, "less": "", "over": ""},
    ),
    KindReason.TERM_IN_PLACE: _say(
        "{subject} has {term} in place of {other}, as a term", {"term": "norm, output.0", "other": "input.0"}
    ),
    KindReason.TERM: _say(_term, {"term": "bias", "factor": -0.5}),
    KindReason.OFFSET: _say("{subject} differs from the reference's by {offset} everywhere", {"offset": 1.0}),
    KindReason.OFFSET_BY_TABLE: _say(
        _offset_by_table,
        {"dims": ["1", "2"], "shape": ["16", "32"]},
        {"dims": ["1"], "shape": ["4"], "origin_phase": "backward"},
    ),
    KindReason.OFFSET_BY_ROW: _say(
        "{subject} differs by one number in each row of its last dimension: something is added to, or "
        "subtracted from, whole rows (a mean, say)"
    ),
    KindReason.STEP_LEFT_OUT: _say(
        "{subject} is what the reference has as {place}: the following computation is skipped",
        {"place": "layers.0.norm, output.0"},
    ),
    KindReason.MODULE_LEFT_OUT: _say(
        "{subject} is in the {side}, bit for bit, what {skipped} is given, and in the other run what "
        "{skipped} returns",
        {"skipped": "model.norm", "side": "target"},
    ),
    KindReason.ACTIVATION_OF_ONE_SIDE: _say(
        "every element of {subject} is {function} of the other side's: the {side} alone applies it",
        {"side": "reference", "function": "silu"},
    ),
    KindReason.OUTPUT_WEIGHED: _say(
        "the loss changes by {target:.6g} (target), {reference:.6g} (reference) per unit of the model's "
        "{output}",
        {"output": "output.1", "target": 0.1, "reference": 0.01},
    ),
    KindReason.ABSOLUTE_ERROR: _say(
        "the gradients that the loss sends back have the other side's signs and one size in the {side}: an "
        "absolute error (L1)",
        {"side": "target"},
    ),
    KindReason.LIMITED_ERROR: _say(
        "the gradients that the loss sends back are the other side's up to a factor, cut at one size in the "
        "{side}: an error that is limited (Huber, smooth L1)",
        {"side": "target"},
    ),
    KindReason.NOTHING_ELSE: _say(
        _nothing_else, {"rel_l2": 0.1}, {"rel_l2": 0.1, "single": 1}, {"rel_l2": 0.1, "of_sketches": 1}
    ),
    KindReason.SUM_OVER_RANKS: _say(_over_ranks("sum"), {"ranks": ["0", "1"]}),
    KindReason.MEAN_OVER_RANKS: _say(
        _over_ranks("mean"),
        {
            "ranks": ["0", "1"],
            "parts": (reason(KindReason.FEWER_COLLECTIVES, collective="all_reduce", target=1, reference=2),),
        },
    ),
    KindReason.FEWER_COLLECTIVES: Phrase(
        sentence="{target} (target) vs {reference} (reference) calls of {collective}",
        samples=({"target": 1, "reference": 2, "collective": "all_reduce"},),
    ),
    KindReason.GRADIENT_NOT_CLEARED: _say(
        _not_cleared, {"earlier_step": 3}, {"earlier_step": 3, "clipping": 0.7}
    ),
    # order
    KindReason.SHIFTED: _say(_shifted, {"shift": -1, "dim": 1, "agree": 0.98, "in_place": 0.03}),
    KindReason.OF_ANOTHER_CALL: _say(
        "{subject} is bit for bit the output of {target} (target), of {reference} (reference)",
        {"target": "layers.0.mlp.up", "reference": "layers.0.mlp.gate"},
    ),
    KindReason.SENT_TO_ANOTHER_CALL: _say(
        "{subject} is bit for bit the one that the reference sends to another call of {module}",
        {"module": "layers.0", "origin_phase": "backward"},
    ),
    KindReason.OF_ANOTHER_MICROBATCH: _say(
        "{subject} is bit for bit the one that the reference sends to microbatch {other}; here microbatch "
        "{own} gets it",
        {"other": 3, "own": 0, "origin_phase": "backward"},
    ),
    KindReason.SLOTS_SWAPPED: _say(
        "{subject} is the reference's {slot}: {origin_slot} and {slot} are swapped", {"slot": "output.1"}
    ),
    KindReason.OF_ANOTHER_SLOT: _say("{subject} is the reference's {slot}", {"slot": "output.1"}),
    KindReason.REORDERED_ALONG: _say(
        "{subject} holds the reference's numbers, dimension {dim} {parts[0]}", {"dim": 1, "parts": (_ROLLED,)}
    ),
    KindReason.LAID_OUT_ANEW: _say(
        "{subject} is the reference's with {parts[0]}",
        {"parts": (reason(OrderCode.HEADS_NOT_TRANSPOSED, heads=4),)},
    ),
    KindReason.SAME_NUMBERS: _say("{subject} holds the reference's numbers in a different order"),
    KindReason.SAME_STATISTICS: _say(
        "{subject} has every statistic of the reference's and other bits, as where the order differs"
    ),
    KindReason.OTHER_PLACES: _say(
        _other_places,
        {
            "source": "backbone, output.0",
            "first": 17,
            "last": 17,
            "other_first": 9,
            "other_last": 16,
            "size": 18,
        },
        {
            "source": "backbone, output.0",
            "first": 8,
            "last": 15,
            "other_first": 9,
            "other_last": 16,
            "size": 18,
        },
    ),
    KindReason.OTHER_ELEMENTS: _say(
        "{subject} takes different elements of {source} than the reference", {"source": "qkv, output.0"}
    ),
    KindReason.GATE_AND_UP_SWAPPED: _say(
        "the activation is applied to up instead of gate: the two are swapped"
    ),
    # dtype and range
    KindReason.DTYPES_DIFFER: _say(
        _dtypes,
        {"target": "bfloat16", "reference": "float32", "rel_l2": 0.002, "roundoff": 0.0039},
        {"target": "bfloat16", "reference": "float32", "rel_l2": None, "roundoff": 0.0039},
    ),
    KindReason.ON_A_GRID: _say(
        _grid,
        {"side": "target", **_DTYPE, "rel_l2": 0.002, "roundoff": 0.0039},
        {"side": "target", **_DTYPE, "rel_l2": None, "roundoff": 0.0039},
        {"side": "target", **_DTYPE, "rel_l2": 0.002, "roundoff": 0.0039, "of_extremes": True},
    ),
    KindReason.SIZE_OF_ROUNDING: _say(
        "the difference, {rel_l2} (relative l2), has the size of rounding in {dtype} ({roundoff}) "
        "and no clear "
        "direction",
        {"rel_l2": 0.002, **_DTYPE, "roundoff": 0.0039},
    ),
    KindReason.ROUNDED_LOSS: _say(
        "the reference's loss {reference} is that of its logits in full precision; the target's differs by "
        "{apart}, as expected of log-probabilities rounded to {dtype} (standard deviation {spread})",
        {"reference": 4.2, "apart": 0.01, "spread": 0.008, **_DTYPE},
    ),
    KindReason.NOT_FINITE: _say(
        _not_finite,
        {
            "num_nan_target": 3,
            "num_nan_reference": 0,
            "num_posinf_target": 0,
            "num_posinf_reference": 0,
            "num_neginf_target": 0,
            "num_neginf_reference": 0,
            "numel": 512,
        },
    ),
    KindReason.SATURATED: _say(
        "{subject} ends at {target}, the largest {dtype}; the reference reaches {reference}",
        {"dtype": "float16", "target": 65504.0, "reference": 2e5},
    ),
    KindReason.UNDERFLOW: _say(
        _underflow,
        {"lost": 40, "numel": 512, "largest": 5e-8, "limit": 6e-8, "normal": 0, "dtype": "float16"},
        {"lost": 40, "numel": 512, "largest": 5e-5, "limit": 6.1e-5, "normal": 1, "dtype": "float16"},
    ),
    KindReason.BIT_FLIPPED: _say(
        _flipped,
        {
            "elements": 1,
            "numel": 512,
            "index": ["0", "3"],
            "target": 8.1,
            "reference": 0.2,
            "bit": 28,
            "dtype": "float32",
        },
        {
            "elements": 2,
            "numel": 512,
            "index": ["0", "3"],
            "target": 8.1,
            "reference": 0.2,
            "bit": 28,
            "dtype": "float32",
        },
    ),
    KindReason.AS_ITS_REPEAT: _say(
        "the reference differs from its own repeat by {repeat}, the target by {rel_l2} (relative "
        "l2): within chance",
        {"repeat": 0.001, "rel_l2": 0.0011},
    ),
    # masks and random numbers
    KindReason.HIDES_OTHER_ELEMENTS: _say(
        "{subject} masks different elements: {more} more and {fewer} fewer than the reference, "
        "{share:percent} of "
        "all, {parts[0]}",
        {"more": 15, "fewer": 0, "share": 0.06, "parts": (reason(PlacesCode.DIAGONALS, first=1, last=1),)},
    ),
    KindReason.HIDES_ALL_BY_INFINITY: _say(
        "{rows} of {size} rows of {subject} hide everything, by -inf in the {side} alone ({number:.4g} in "
        "the other run): softmax of them is NaN",
        {"rows": 24, "size": 80, "side": "target", "number": -65504.0},
    ),
    KindReason.ROWS_EMPTY: _say(
        "{rows} of {size} rows are NaN in the target alone, as where a mask hides everything they attend to",
        {"rows": 4, "size": 64},
    ),
    KindReason.LAST_POSITION_AGREES: _say(
        "the last position agrees, and {differ:percent} of those before it differ: positions attend to later "
        "ones",
        {"differ": 1.0},
    ),
    KindReason.POSITIONS_AGREE_UP_TO: _say(
        lambda facts: (
            f"positions before {', '.join(facts['positions'])} agree and those from there on differ, as with "
            "another window or document boundary"
        ),
        {"positions": ["8", "12"]},
    ),
    KindReason.OTHER_ELEMENTS_DROPPED: _say(
        "about {rate:percent} of the elements are dropped on both sides, but different ones "
        "({target} only in the "
        "target, {reference} only in the reference); the others agree",
        {"rate": 0.1, "target": 40, "reference": 43},
    ),
    KindReason.DROPPED_ALONG: _say(
        "the {side} drops the same elements all along dimension {dims:list}; the other run draws for each "
        "element",
        {"side": "target", "dims": ("1",)},
        {"side": "reference", "dims": ("2", "3")},
    ),
    KindReason.DROPPED_IN_OTHER_LAYOUT: _say(
        _dropped_otherwise,
        {"side": "target", "rate": 0.1},
        {"side": "target", "rate": 0.1, "order": ("0", "2", "1")},
    ),
    KindReason.KEPT_TIMES: _say(
        lambda facts: facts.fill(
            "{subject} is its input times {target:.6g} (target), {reference:.6g} (reference)"
            if facts["share"] == 1
            else "{share:.0%} of {subject} are its input times {target:.6g} (target), {reference:.6g} "
            "(reference), the others 0 in both runs",
            subject="{subject}",
        ),
        {"target": 1.0, "reference": 1.25, "share": 0.8},
        {"target": 1.0, "reference": 1.25, "share": 1.0},
    ),
    KindReason.DROPPED_ON_ONE_SIDE: _say(
        "{num:count element} of {subject} are 0 in the {side} alone, the others are multiplied by 1 / (1 - "
        "{rate:.4g}): dropout with p = {rate:.4g}",
        {"side": "target", "rate": 0.1, "num": 410},
    ),
    KindReason.RATES_AGREE: _say(
        "{call} draws random numbers; its rates of zeros agree: {target:percent} (target), "
        "{reference:percent} "
        "(reference)",
        {"call": "dropout", **_FLOATS},
    ),
    KindReason.RECOMPUTED_OTHERWISE: _say(
        "recomputed in backward, {place} differs from the forward pass", {"place": "layers.0.mlp, output.0"}
    ),
    KindReason.RANKS_DROP_THE_SAME: _say(
        "two ranks of the target drop the same elements; those of the reference drop different ones"
    ),
    KindReason.GENERATOR_ELSEWHERE: _say(
        lambda facts: facts.fill(
            "the module draws random numbers, from generators that do not stand alike as it begins; "
            + (
                "nor did they at the first that draws"
                if facts.get("after") is None
                else "they did as {module} began"
            ),
            module=facts.get("after") or "the model",
        ),
        {"after": "layers.0.mlp.drop"},
        {"after": ""},
        {},
    ),
    KindReason.DRAWS_IN_ONE_RUN: _say(
        "the module draws random numbers in the {side} alone", {"side": "target"}
    ),
    KindReason.ANOTHER_DRAW: _say(
        "{subject} has the reference's mean and standard deviation ({target:.3g} and {reference:.3g}) and no "
        "correlation with it (cosine {cosine:.2g}): a different draw from the same distribution",
        {**_FLOATS, "cosine": 0.01},
    ),
    # data and time
    KindReason.BATCH_OF_REFERENCE_STEP: _say(
        "the batch is that of step {number} of the reference", {"number": 2}
    ),
    KindReason.BATCH_OF_TARGET_STEP: _say(
        "the batch is that of step {number} of the target itself", {"number": 2}
    ),
    KindReason.BATCH_OF_RANK: _say("the batch is that of rank {number} of the reference", {"number": 2}),
    KindReason.BATCH_OF_MICROBATCH: _say(
        "the batch is that of microbatch {number} of the reference", {"number": 2}
    ),
    KindReason.SAMPLES_REORDERED: _say(
        "the batch holds the reference's samples {parts[0]}", {"parts": (reason(OrderCode.REVERSED),)}
    ),
    KindReason.SAMPLES_SHARED: _say(
        "{shared} of {samples} samples of the batch are the reference's", {"shared": 3, "samples": 8}
    ),
    KindReason.OTHER_BATCH: _say(_other_batch, {"differ": 0.99}, {"differ": None}),
    KindReason.OF_TARGET_STEP: _say("{subject} is that of step {earlier} of the target", {"earlier": 2}),
    KindReason.OF_REFERENCE_STEP: _say(
        "{subject} is that of step {earlier} of the reference", {"earlier": 2}
    ),
    KindReason.OF_MICROBATCH: _say("{subject} is that of microbatch {earlier} of the target", {"earlier": 0}),
    # gradients
    KindReason.NOT_TRAINABLE: _say(
        "{parameter} is not trainable in the target (requires_grad is False)", _WEIGHT
    ),
    KindReason.NO_GRADIENT_NOT_TRAINABLE: _say(
        _gradient("is missing: the parameter does not require one (requires_grad is False)"), _WEIGHT
    ),
    KindReason.NO_GRADIENT: _say(
        _gradient("is missing: nothing arrives in backward"), _WEIGHT, {"parameter": None}
    ),
    KindReason.NO_GRADIENT_IN_REFERENCE: _say(_gradient("is present, and the reference has none"), _WEIGHT),
    KindReason.ZERO_GRADIENT: _say(_gradient("is zero everywhere"), _WEIGHT),
    KindReason.ZERO_GRADIENT_IN_REFERENCE: _say(_gradient("is not zero, the reference's is"), _WEIGHT),
    KindReason.PART_DETACHED: _say(
        "the loss has the same value in both runs, and in the {side} alone sends nothing to {num} of "
        "{size:count element} that it is made of: they are detached there",
        {"side": "target", "num": 4, "size": 8},
    ),
    # updates
    KindReason.NOT_UPDATED: _say(
        _not_updated, {**_WEIGHT, "has_gradient": True, "why": CauseCode.STEP_SKIPPED.value}
    ),
    KindReason.NEVER_UPDATED: _say(
        _not_updated, {**_WEIGHT, "has_gradient": True, "why": CauseCode.NOT_IN_A_GROUP.value}
    ),
    KindReason.SETTINGS_DIFFER: _say(_settings, {**_WEIGHT, "parts": (_SETTING,)}),
    KindReason.SETTINGS_SOLVED: _say(
        _settings,
        {**_WEIGHT, "parts": (reason(SettingReason.SOLVED, setting="lr", target=0.02, reference=0.01),)},
    ),
    KindReason.LEARNING_RATE: _say(
        _learning_rate,
        {**_WEIGHT, "step": 4, "target": "0.02", "reference": "0.01", "of_step": 5},
        {**_WEIGHT, "step": 4, "target": "0.02", "reference": "0.01", "of_step": None},
    ),
    KindReason.UPDATES_COUNTED: _say(_counted, {**_WEIGHT, "target": 4.0, "reference": 2.0}),
    KindReason.UPDATES_PER_MICROBATCH: _say(_counted, {**_WEIGHT, "target": 4.0, "reference": 2.0}),
    KindReason.ALONG_WEIGHTS: _say(
        _along("the weights ({factor} times them): different weight decay"), {**_WEIGHT, "factor": -0.001}
    ),
    KindReason.ALONG_UPDATE: _say(
        _along("the update: its step is {factor} times the reference's"), {**_WEIGHT, "factor": 0.5}
    ),
    KindReason.MOMENT_STARTS_ANEW: _say(
        "{parameter}: {state} holds nothing of the earlier steps, as after a resume without optimizer state",
        {**_WEIGHT, "state": "state.exp_avg"},
    ),
    KindReason.UPDATE_LOST: _say(_lost, {**_WEIGHT, "dtype": "bfloat16", "target": 0.4, "reference": 0.02}),
}
