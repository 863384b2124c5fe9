"""English of the parts of kinds: orders of numbers, places in a matrix, factors, settings."""

from __future__ import annotations

from trueup.types.codes.kinds import DivisorCode, FactorCode, NormForm, OrderCode, PlacesCode, SettingReason
from trueup.types.reason import reason
from trueup.wording.phrase import Phrase, ReasonFacts

SETTINGS = {
    "lr": "learning rate",
    "betas": "betas",
    "eps": "eps",
    "weight_decay": "weight decay",
    "nesterov": "Nesterov momentum",
    "amsgrad": "AMSGrad",
    "decoupled_weight_decay": "decoupled weight decay",
    "correct_bias": "bias correction",
    "bias_correction": "bias correction",
}
"""what settings are called; the others as they are written"""


def _factor(what: str, *, number: bool = False, shown: bool = True) -> Phrase:
    def sentence(facts: ReasonFacts) -> str:
        value = f"{facts['number']:g}" if number else ""
        words = f"{what}{value}" if shown and value else what
        return f"1 over {words}" if facts.get("inverse") else words

    facts: dict[str, object] = {"number": 4} if number else {}
    return Phrase(sentence=sentence, samples=(facts, {**facts, "inverse": True}))


def _number(facts: ReasonFacts) -> str:
    return f"1/{facts['number']}" if facts.get("inverse") else f"{facts['number']}"


def _diagonals(facts: ReasonFacts) -> str:
    first, last = facts["first"], facts["last"]
    if first != last:
        return f"on diagonals {first} to {last}"
    names = {0: "on the diagonal", 1: "on the first diagonal above the main one"}
    return names.get(first, f"on diagonal {first}")


def _block(facts: ReasonFacts) -> str:
    apart = "," in f"{facts['rows']}{facts['columns']}"
    where = (
        "where rows {rows} meet columns {columns}"
        if apart
        else "in the block of rows {rows} and columns {columns}"
    )
    return facts.fill(where)


def _dims(facts: ReasonFacts) -> str:
    text = f"dimensions in the order ({', '.join(facts['order'])})"
    shape = facts.get("shape")
    return text if shape is None else f"{text}, then viewed as ({', '.join(shape)})"


def _solved(facts: ReasonFacts) -> str:
    sides = (f"{facts[side]:.4g}" if facts[side] else "none" for side in ("target", "reference"))
    target, reference = sides
    return f"{setting_name(str(facts['setting']))}: {target} (target), {reference} (reference)"


def _value(facts: ReasonFacts) -> str:
    return (
        f"{setting_name(str(facts['setting']))}: {facts['target']} (target), {facts['reference']} (reference)"
    )


def setting_name(setting: str) -> str:
    """What an optimizer setting is called."""
    return SETTINGS.get(setting, setting)


_DIMS = {"order": ["0", "2", "1"]}
_BETWEEN = "between blocks on the diagonal, as documents of a packed sequence are"


def _divisor(what: str) -> Phrase:
    return Phrase(sentence=f"{what}, {{number:g}}", headline=what, samples=({"number": 124},))


PHRASES = {
    OrderCode.REVERSED: Phrase(sentence="in reverse order"),
    OrderCode.ROLLED: Phrase(sentence="rolled by {shift}", samples=({"shift": 2},)),
    OrderCode.HALVES_SWAPPED: Phrase(sentence="the two halves are exchanged"),
    OrderCode.HALVES_INTERLEAVED: Phrase(sentence="with halves interleaved into pairs"),
    OrderCode.PAIRS_TAKEN_APART: Phrase(sentence="with interleaved pairs separated into halves"),
    OrderCode.READ_AS_MATRIX: Phrase(
        sentence="read as a ({rows}, {columns}) matrix and transposed",
        samples=({"rows": 4, "columns": 8},),
    ),
    OrderCode.BLOCKS: Phrase(
        sentence="in blocks of {size} in the order {order:list}",
        samples=({"size": 4, "order": list("021345678")},),
    ),
    OrderCode.WITHIN_BLOCKS: Phrase(
        sentence="within every block of {size} {parts[0]}",
        samples=({"size": 8, "parts": (reason(OrderCode.REVERSED),)},),
    ),
    OrderCode.REORDERED: Phrase(
        sentence="with {moved} of its {indices} indices in a different order",
        samples=({"moved": 3, "indices": 9},),
    ),
    OrderCode.DIMENSIONS: Phrase(sentence=_dims, samples=(_DIMS,)),
    OrderCode.DIMENSIONS_VIEWED: Phrase(sentence=_dims, samples=({**_DIMS, "shape": ["4", "16", "8"]},)),
    OrderCode.HEADS_NOT_TRANSPOSED: Phrase(
        sentence="{heads} heads viewed without transposing them back", samples=({"heads": 4},)
    ),
    OrderCode.HEADS_TRANSPOSED_TWICE: Phrase(
        sentence="{heads} heads transposed once too often", samples=({"heads": 4},)
    ),
    PlacesCode.WHOLE_COLUMNS: Phrase(
        sentence="in whole columns (up to {number} of {size}), as padding is",
        samples=({"number": 4, "size": 16},),
    ),
    PlacesCode.COLUMNS_OF_EACH: Phrase(
        sentence="in whole columns, up to {number} of {size}, others in each sample; the rest is the same",
        samples=({"number": 4, "size": 16},),
    ),
    PlacesCode.WHOLE_ROWS: Phrase(
        sentence="in whole rows ({number} of {size})", samples=({"number": 4, "size": 16},)
    ),
    PlacesCode.COLUMNS: Phrase(sentence="in columns {columns}", samples=({"columns": "3 to 5"},)),
    PlacesCode.ROWS: Phrase(sentence="in rows {rows}", samples=({"rows": "3 to 5"},)),
    PlacesCode.BLOCK: Phrase(
        sentence=_block,
        samples=({"rows": "0 to 3", "columns": "4 to 7"}, {"rows": "0 to 3, 7", "columns": "4"}),
    ),
    PlacesCode.DIAGONALS: Phrase(
        sentence=_diagonals,
        samples=({"first": 0, "last": 0}, {"first": 3, "last": 3}, {"first": -1, "last": 1}),
    ),
    PlacesCode.ABOVE_DIAGONAL: Phrase(sentence="above the diagonal (later positions)"),
    PlacesCode.BELOW_DIAGONAL: Phrase(
        sentence="{distance} or more places below the diagonal (a window)", samples=({"distance": 4},)
    ),
    PlacesCode.BETWEEN_DOCUMENTS: Phrase(sentence=_BETWEEN),
    PlacesCode.PART_OF_TRIANGLE: Phrase(
        sentence=lambda facts: (
            f"in part of the triangle {'above' if facts['above'] else 'below'} the diagonal"
        ),
        samples=({"above": True},),
    ),
    PlacesCode.INDICES: Phrase(sentence="at indices {first} to {last}", samples=({"first": 3, "last": 5},)),
    PlacesCode.SOME_INDICES: Phrase(
        sentence="at {number} of {size} indices", samples=({"number": 4, "size": 16},)
    ),
    PlacesCode.SOME_ELEMENTS: Phrase(
        sentence="at {number} of {size} elements", samples=({"number": 40, "size": 1600},)
    ),
    DivisorCode.COUNTED: _divisor("tokens of the microbatch"),
    DivisorCode.COUNTED_TIMES: _divisor("tokens of the microbatch times microbatches"),
    DivisorCode.COUNTED_OF_STEP: _divisor("tokens of the step"),
    DivisorCode.COUNTED_OF_RANKS: _divisor("tokens of the step on all ranks"),
    DivisorCode.COUNTED_BY_RANK: _divisor("tokens of the step on all ranks over their number"),
    DivisorCode.POSITIONS: _divisor("all positions of the microbatch"),
    DivisorCode.POSITIONS_OF_STEP: _divisor("all positions of the step"),
    DivisorCode.ROWS: _divisor("sequences of the microbatch"),
    DivisorCode.ROWS_OF_STEP: _divisor("sequences of the step"),
    DivisorCode.NOTHING: Phrase(sentence="nothing", samples=({"number": 1},)),
    DivisorCode.MICROBATCHES: _divisor("microbatches"),
    NormForm.CENTRED: Phrase(sentence="subtracts the mean"),
    NormForm.NOT_CENTRED: Phrase(sentence="does not subtract the mean"),
    NormForm.WEIGHT: Phrase(sentence="multiplies with the weight"),
    NormForm.ONE_PLUS_WEIGHT: Phrase(sentence="multiplies with 1 + weight"),
    NormForm.EPS_INSIDE: Phrase(sentence="adds eps inside the square root"),
    NormForm.EPS_OUTSIDE: Phrase(sentence="adds eps outside the square root"),
    NormForm.BIASED: Phrase(sentence="divides the variance by n"),
    NormForm.UNBIASED: Phrase(sentence="divides the variance by n - 1"),
    FactorCode.NUMBER: Phrase(sentence=_number, samples=({"number": 2}, {"number": 2, "inverse": True})),
    FactorCode.SQUARE_ROOT: _factor("the square root of ", number=True),
    FactorCode.LOGARITHM: _factor("ln ", number=True),
    FactorCode.WORLD_SIZE: _factor("the number of ranks, ", number=True),
    FactorCode.DATA_PARALLEL_SIZE: _factor("the data-parallel size, ", number=True),
    FactorCode.MICROBATCHES: _factor("the number of microbatches, ", number=True),
    FactorCode.OTHER_STEPS: Phrase(
        sentence=lambda facts: facts.fill(
            "the {here:count microbatch} of this step over the {elsewhere} of other steps"
            if not facts.get("inverse")
            else "the {elsewhere:count microbatch} of other steps over the {here} of this one"
        ),
        samples=({"here": 1, "elsewhere": 2}, {"here": 3, "elsewhere": 4, "inverse": True}),
    ),
    FactorCode.LOSS_SCALE: _factor("the loss scale, ", number=True),
    FactorCode.CLASSES: _factor("the number of classes, ", number=True),
    FactorCode.SIZE: _factor("the size ", number=True),
    FactorCode.ROOT_OF_SIZE: _factor("the square root of the size ", number=True),
    FactorCode.LESS_ONE: _factor("n / (n - 1) of the size n = ", number=True),
    FactorCode.ROOT_OF_LESS_ONE: _factor("the square root of n / (n - 1), n = ", number=True),
    FactorCode.TOKENS: _factor("the ratio of the tokens of both runs"),
    FactorCode.TOKENS_OF_RANK: _factor("the tokens of all ranks over those of this rank"),
    FactorCode.GRADIENT_NORMS: _factor("the ratio of the gradient norms used for clipping"),
    FactorCode.LEARNING_RATES: _factor("the ratio of the learning rates"),
    FactorCode.CLIPPING: Phrase(
        sentence="its norm times {target} (target), {reference} (reference) after backward",
        samples=({"target": 0.5, "reference": 0.25},),
    ),
    SettingReason.CLASS: Phrase(
        sentence="optimizer: {target} (target), {reference} (reference)",
        samples=({"target": "Adam", "reference": "AdamW"},),
    ),
    SettingReason.VALUE: Phrase(
        sentence=_value, samples=({"setting": "lr", "target": "0.02", "reference": "0.01"},)
    ),
    SettingReason.SOLVED: Phrase(
        sentence=_solved, samples=({"setting": "weight_decay", "target": 0.0, "reference": 0.01},)
    ),
    SettingReason.BIAS_CORRECTION: Phrase(
        sentence=lambda facts: (
            f"bias correction in the {'target' if facts['corrected'] else 'reference'} only"
        ),
        samples=({"corrected": True}, {"corrected": False}),
    ),
}
