"""Headlines of causes: what differs, where, and both values, at most 15 words."""

from __future__ import annotations

from collections.abc import Callable

from trueup.types.codes.kinds import KindReason
from trueup.types.reason import Reason
from trueup.wording.kinds import (
    BALANCED,
    NORMALISED,
    PAIRING,
    fitted_sides,
    in_range,
    operand_formats,
    places_of_rows,
    power_of_input,
    scale_of,
    shift_of,
)
from trueup.wording.phrase import ReasonFacts, Template


def cause_headline(cause: Reason, parts: tuple[str, ...], place: str) -> str | None:
    """The headline of what a kind says of its case, None where it has none; ``parts`` are texts."""
    template = _HEADLINES.get(KindReason(cause.code.value)) if isinstance(cause.code, KindReason) else None
    if template is None:
        return None
    facts = ReasonFacts(cause, parts)
    text = template(facts) if callable(template) else facts.fill(template, place=place)
    text = text.replace("{place}", place)
    return text if text.startswith(place) else text[:1].upper() + text[1:]


def _both(what: str) -> str:
    return f"{what} differs in {{place}}: {{target}} (target), {{reference}} (reference)"


def _fitted(what: str) -> Template:
    return lambda facts: f"{what} differs in {{place}}: {fitted_sides(facts)}"


def _arguments(facts: ReasonFacts) -> str:
    return f"argument mismatch in {{place}}: {facts.parts[0]}"


def _functions(facts: ReasonFacts) -> str:
    own, other = (_first_names(facts[side]) for side in ("target", "reference"))
    if own and other:
        return f"other functions in {{place}}: {own} (target), {other} (reference)"
    if not (own or other):
        first = facts.reason.parts[0]
        only = [(side, first.place(f"{side}_only")) for side in ("target", "reference")]
        shown = [f"the {side} alone calls {calls}" for side, calls in only if calls]
        return f"{shown[0]} in {{place}}" if len(shown) == 1 else f"in {{place}} {facts.parts[0]}"
    return f"the {'target' if own else 'reference'} alone calls {own or other} in {{place}}"


def _first_names(functions: object, most: int = 3) -> str:
    names = [one.split()[0] for one in str(functions).split(", ") if one]
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


_SCALED = {
    "backward": "gradient",
    "param_grad": "gradient",
    "optimizer": "update",
    "param": "weight",
    "collective": "tensor",
}
"""phase -> what is scaled; else the result: a loss may be equal where the gradient it sends back is not"""


def _scaled(facts: ReasonFacts) -> str:
    what = f"{_SCALED.get(facts['origin_phase'], 'result')} of"
    if facts["origin_phase"] == "forward" and str(facts.get("origin_slot") or "").startswith("input"):
        what = "an input made in"  # for a module inside of it
    times = f"{float(facts['factor']):.6g}"
    factor = f"{what} {{place}} is {times} times the reference's"
    is_one = len(facts.parts) == 1  # of several that fit, the evidence lists all
    return f"{factor} ({facts.parts[0]})" if is_one and facts.parts[0] != times else factor


def _of_a_term(rest: str) -> Callable[[ReasonFacts], str]:
    """Of what a term is too few or too many: results, or what a module makes for another one inside of it."""

    def headline(facts: ReasonFacts) -> str:
        phase, slot = facts["origin_phase"], str(facts.get("origin_slot") or "")
        what = f"{_SCALED.get(phase, 'result')} of"
        if phase == "forward" and slot.startswith("input"):
            what = "an input made in"
        elif phase == "backward" and slot.startswith("output"):
            what = "a gradient made in"
        return f"{what} {{place}} {facts.fill(rest)}"

    return headline


def _operands(facts: ReasonFacts) -> str:
    sides = [operand_formats(facts, side) for side in ("target", "reference")]
    if sides[0] != sides[1]:
        return f"{{place}} multiplies {sides[0]}; the reference's multiplies {sides[1]}"
    cut = [float(facts[f"{side}_cut"]) for side in ("target", "reference")]
    if cut[0] != cut[1]:
        side = "target" if cut[0] > cut[1] else "reference"
        return f"large operands of {{place}} are cut off to fit {sides[0]} only in the {side}"
    scales = [scale_of(facts, side) for side in ("target", "reference")]
    return f"scales of {{place}}'s operands: {scales[0]} (target), {scales[1]} (reference)"


def _all_zero(facts: ReasonFacts) -> str:
    is_input = str(facts.get("origin_slot") or "").startswith("input")
    what = "an input made in" if is_input else "result of"
    return f"{what} {{place}} is zero everywhere in the {facts['side']} alone"


def _dropped_in_order(facts: ReasonFacts) -> str:
    how = "in another memory order" if facts.get("order") else "in channels_last order"
    return f"the {facts['side']} alone drops in {{place}} {how}"


def _pairing(facts: ReasonFacts) -> str:
    words = PAIRING
    target, reference = (words[facts[side]] for side in ("target", "reference"))
    return f"rotary embedding of {{place}} pairs {target}; the reference {reference}"


def _weights(facts: ReasonFacts) -> str:
    shifts = [one.number("shift") for one in facts.reason.parts if one.code is KindReason.WEIGHTS_MARGIN]
    if shifts and shifts[0] is not None:
        return f"Argument of the loss's sigmoid is {shift_of(shifts[0])} in the target for every row"
    sides = ", ".join(f"{facts[side][0]} ({side})" for side in ("target", "reference"))
    what = "row" if facts["per_row"] else "token"
    return f"The loss weights {what}s differently: {facts['unit']} {facts['names'][0]} by {sides}"


_NOT_HIDDEN = {
    "padding": "padding is not masked",
    "documents": "earlier documents are not masked",
    "window": "tokens before the window are not masked",
    "more": "some earlier tokens are not masked",
}

_HEADLINES: dict[KindReason, Template] = {
    KindReason.RECOMPUTED_OTHERWISE: "recomputation in backward differs from the forward pass in {place}",
    KindReason.OTHER_ARGUMENTS: _arguments,
    KindReason.OTHER_FUNCTIONS: _functions,
    KindReason.MASK_ARGUMENTS: _arguments,
    KindReason.NORM_EPS: _fitted("norm eps"),
    KindReason.NORM_FORM: "norm {place} {parts[0]}; the reference's {parts[1]}",
    KindReason.SOFTMAX_FACTOR: _fitted("scale before the softmax"),
    KindReason.DROPOUT_RATE: "dropout rate differs in {place}: {target:percent} (target), "
    "{reference:percent} (reference)",
    KindReason.SMOOTHED_IGNORED: "Label smoothing applies to ignored positions only in the {side}: "
    "{ignored:.4g}",
    KindReason.LABEL_SMOOTHING: _fitted("label smoothing"),
    KindReason.LOGIT_TEMPERATURE: _fitted("temperature of the logits"),
    KindReason.Z_LOSS: _fitted("z-loss coefficient"),
    KindReason.ACTIVATION: _both("activation"),
    KindReason.ROTARY_THETA: _fitted("rotary theta"),
    KindReason.ATTENTION_THETA: _fitted("rotary theta"),
    KindReason.KEYS_FOR_VALUES: "keys and values are exchanged in {place}",
    KindReason.FREQUENCIES_INCLUSIVE: lambda facts: (
        f"rotary exponents in {{place}} are i/{facts['number'] - 1:g}; the reference's i/{facts['number']:g}"
    ),
    KindReason.MASK_BEGINS: "the window of {place} is one token longer in the {side}",
    KindReason.GATE_FOR_UP: "the halves that are gate and factor are exchanged in {place}",
    KindReason.SCALED_PER_ROW: in_range("Rows are weighted differently in {place}: factors {range}", 3),
    KindReason.SENT_TO_OTHER_POSITIONS: "The loss counts other positions: {target} of {total} (target), "
    "{reference} (reference)",
    KindReason.LABELS_SHIFTED: "Labels of the loss are shifted by {shift} against the reference's",
    KindReason.SENT_BACK_PER_ROW: lambda facts: (
        in_range("The loss weights rows differently: factors {range}", 3)(facts)
        if facts.get("name") is None
        else f"The loss weights each row differently: by {power_of_input(facts)}"
    ),
    KindReason.WEIGHTS_OF_TOKENS: _weights,
    KindReason.TERM_OF_SCORES: "The loss term of experts' mean scores (balance loss) differs in {place}",
    KindReason.SCALED_PER_TOKEN: in_range("Each vector in {place} is scaled differently: {range}", 3),
    KindReason.SUMS_TO_ONE: "Vectors in {place} sum to 1 in the {side} alone",
    KindReason.LENGTH_OF_ONE: "Vectors in {place} have a length of 1 in the {side} alone",
    KindReason.WEIGHT_OFFSET: _both("Constant added to {weight}"),
    KindReason.WEIGHT_OF_ONE_SIDE: "The {side} alone multiplies by {weight} in {place}",
    KindReason.SCORES_SCALED: _fitted("scale of attention scores"),
    KindReason.ROTATED_PAIRS: _pairing,
    KindReason.ROTARY_PAIRING: _pairing,
    KindReason.ROTATED_BACKWARD: "rotary embedding of {place} rotates in the opposite direction",
    KindReason.POSITIONS_SHIFTED: "rotary positions in {place} are {shift:+d} from the reference's",
    KindReason.POSITIONS_COUNTED_FROM: "positions in {place} are {offset:+d} from the reference's",
    KindReason.NO_ROTARY: "no rotary embedding in {place}",
    KindReason.OPERANDS_ROUNDED: _operands,
    KindReason.ROUTER_SCORES: _both("scores of router"),
    KindReason.ROUTER_NORMALISED: lambda facts: (
        f"weights of {{place}} are {NORMALISED[facts['target']]}; the reference's "
        f"{NORMALISED[facts['reference']]}"
    ),
    KindReason.ROUTER_BIAS_WEIGHS: "bias of {place} is in the experts' weights only in the {side}",
    KindReason.ROUTER_FACTOR: _fitted("factor on experts' weights"),
    KindReason.ROUTER_CHOICE: "experts are chosen in another way in {place}",
    KindReason.ROUTER_BALANCE: lambda facts: (
        f"balance loss of {{place}} takes scores of {BALANCED[facts['target']]}; the reference of "
        f"{BALANCED[facts['reference']]}"
    ),
    KindReason.ROUTER_Z_LOSS: "z-loss of router {place} only in the {side}: {coefficient:g}",
    KindReason.ROUTER_ROUNDED: "logits of router {place} made in {dtype}",
    KindReason.BOTH_ROTATED_BACKWARD: "queries and keys are rotated in the opposite direction in {place}",
    KindReason.ROTATED_PART: "rotary embedding of {place} rotates {target:g} elements of each head; "
    "the reference's {reference:g}",
    KindReason.ROTATED_LAST: "rotary embedding of {place} rotates the last elements of each head",
    KindReason.FREQUENCIES_OF_HEAD: "rotary exponents in {place} are divided by {target:g}; the reference's "
    "by {reference:g}",
    KindReason.CAP_OF_ONE_SIDE: "attention scores in {place} are capped only in the {side}",
    KindReason.SCORES_CAPPED: _fitted("cap of attention scores"),
    KindReason.ALIBI_OF_ONE_SIDE: "ALiBi bias only in the {side} in {place}",
    KindReason.ALIBI_SLOPES: _fitted("slope of ALiBi's first head"),
    KindReason.HEADS_NOT_MERGED: "heads are not transposed back before the output projection in {place}",
    KindReason.SEES_SUCCESSOR: "attention {place} sees one token ahead",
    KindReason.NO_MASK: "no causal mask in {place}",
    KindReason.ZERO_FOR_GIVEN: lambda facts: (
        "result of {place} is zero in the target where the reference returns its input"
        if facts["side"] == "target"
        else "result of {place} is its input in the target where the reference returns zero"
    ),
    KindReason.MASK_INVERTED: "mask of {place} is inverted",
    KindReason.MASK_UNUSED: lambda facts: (
        f"{_NOT_HIDDEN[facts['hidden']]} in {{place}}, only later tokens"
        if facts["left"] == "causal"
        else "the mask is not applied in {place}"
    ),
    KindReason.CAUSAL_MASK_ADDED: "causal mask in {place}; the reference has none",
    KindReason.OFFSET_BY_TABLE: lambda facts: (
        f"{'a gradient term' if facts['origin_phase'] in _SCALED else 'a bias or table'} of shape "
        f"({', '.join(facts['shape'])}) differs in {{place}}"
    ),
    KindReason.KEY_HEADS_ALTERNATE: "query heads assigned to key heads alternately in {place}",
    KindReason.FREQUENCIES_ROUNDED: "rotary frequencies of {place} rounded to {dtype}",
    KindReason.SOFTMAX_OVER_QUERIES: "softmax of {place} runs over queries (dim -2), not keys (dim -1)",
    KindReason.MASKED_AFTER_SOFTMAX: "mask of {place} is applied after the softmax, not before",
    KindReason.LOSS_NOT_NORMALISED: "The loss of the {side} alone is not made of a log-softmax",
    KindReason.LABEL_IGNORED: "The loss of the {side} alone ignores label {label}",
    KindReason.SOFTMAX_ROUNDED: "softmax of {place} computed in {dtype}",
    KindReason.COSINES_ROUNDED: "cosines and sines of {place} computed in {dtype}",
    KindReason.OTHER_USE: "the weight of {module} has a second use, or a hook, only in the {side}",
    KindReason.OTHER_USES_DIFFER: "a second use of the weight of {module}, or a hook on it, differs",
    KindReason.ALL_ZERO: _all_zero,
    KindReason.TERM_MISSING: _of_a_term("lacks the term {term}"),
    KindReason.TERM_EXTRA: _of_a_term("has the extra term {term}"),
    KindReason.GROUPED_OTHERWISE: "rows of {place} belong to other groups: {num} of {total} or more",
    KindReason.RAISED: lambda facts: (
        f"what multiplies {facts['over']} in {{place}} is raised to the power {facts['power']:.4g}"
        if facts["over"]
        else f"a term of {{place}} is raised to the power {facts['power']:.4g}"
    ),
    KindReason.TERM_IN_PLACE: _of_a_term("has the term {term} in place of {other}"),
    KindReason.SCALED: _scaled,
    KindReason.SCALED_AT_EVEN_SCORES: "gradient of {place} is {factor:.6g} times, at a loss of ln 2 in both",
    KindReason.OUTPUT_WEIGHED: "weight of the model's {output} in the loss differs: {target:.4g} (target), "
    "{reference:.4g} (reference)",
    KindReason.ABSOLUTE_ERROR: "{place} is an absolute error (L1) in the {side} alone",
    KindReason.LIMITED_ERROR: "{place} limits each error (Huber, smooth L1) in the {side} alone",
    KindReason.OF_ANOTHER_CALL: "exchanged outputs in {place}: {target} for {reference}",
    KindReason.SENT_TO_ANOTHER_CALL: "gradients are sent to other calls of {place} than in the reference",
    KindReason.OF_ANOTHER_MICROBATCH: "microbatch {own} gets the gradient of microbatch {other} in {place}",
    KindReason.OTHER_PLACES: lambda facts: (
        f"place taken in {{place}}: {places_of_rows(facts)} (target), "
        f"{places_of_rows(facts, 'other_')} (reference)"
    ),
    KindReason.HIDES_ALL_BY_INFINITY: "mask made in {place} is -inf for whole rows in the {side} alone: NaN",
    KindReason.OTHER_RANGE: "indices taken in {place}: {target} (target), {reference} (reference)",
    KindReason.STEP_LEFT_OUT: "a step of the computation is skipped in {place}",
    KindReason.MODULE_LEFT_OUT: "the {side} alone passes on what {skipped} is given, not its result",
    KindReason.ACTIVATION_OF_ONE_SIDE: "the {side} alone applies {function} in {place}",
    KindReason.NO_GRADIENT_IN_REFERENCE: "gradient in the target alone, at {place}",
    KindReason.ZERO_GRADIENT_IN_REFERENCE: "gradient that is zero in the reference alone, at {place}",
    KindReason.PART_DETACHED: "The loss of the {side} detaches {num} of {size:count element} it is made of",
    KindReason.DROPPED_ALONG: "dropout in {place} has one mask along dimension {dims:list} only in the "
    "{side}",
    KindReason.DROPPED_IN_OTHER_LAYOUT: _dropped_in_order,
    KindReason.KEPT_TIMES: lambda facts: facts.fill(
        "{place} multiplies {what} by {target:.4g} (target), {reference:.4g} (reference)",
        place="{place}",
        what="its input" if facts["share"] == 1 else "the values it keeps",
    ),
    KindReason.DRAWS_IN_ONE_RUN: "the {side} alone draws random numbers in {place}",
    KindReason.GENERATOR_ELSEWHERE: "other random numbers in {place}: generators do not stand alike as it "
    "begins",
    KindReason.RANKS_DROP_THE_SAME: "two ranks of the target drop the same elements in {place}",
    KindReason.DROPPED_ON_ONE_SIDE: "the {side} alone applies dropout in {place} (p = {rate:.4g})",
}
