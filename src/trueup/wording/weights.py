"""English of weights at the start of a run, and from one step to the next."""

from __future__ import annotations

from trueup.types.codes import WeightsCode as W
from trueup.types.codes.kinds import OrderCode
from trueup.types.reason import reason
from trueup.wording.phrase import ReasonFacts, clause, count, heading, ranks_named

_WAYS = {
    "transposed": "transposed",
    "permuted": "different order",
    "halves_exchanged": "halves exchanged",
    "shifted": "one number added",
    "exchanged": "exchanged with each other",
    "of_another": "another weight's values",
    "negated": "opposite sign",
    "rounded": "rounded to coarser dtype",
    "zero": "zero",
    "part": "some rows differ",
    "other_draw": "different random draw",
    "constant": "another number everywhere",
    "part_of_another_rank": "another rank's part",
    "own_of_ranks": "drawn by each rank",
    "other_init": "unrelated values",
    "related": "correlated values",
    "near": "small difference",
    "shape": "different shape",
    "whole_in_target": "whole on every rank",
    "whole_in_reference": "split over ranks",
}
"""how values differ, in a headline; ``scaled`` has its factor, of ``unknown`` nothing is known"""


def _differ(facts: ReasonFacts) -> str:
    way = facts["way"]
    if facts.parts:  # a single number
        (number,) = facts.parts
        return f"Initial value of {facts['parameters']} differs: {number}"
    how = f"scaled by {facts['factor']:.6g}" if way == "scaled" else _WAYS.get(way)
    return f"Initial weights differ in {facts['parameters']}" + (f": {how}" if how else "")


def _part(facts: ReasonFacts) -> str:
    num, first, last = facts["num"], facts["first"], facts["last"]
    rows = f"row {first}" if num == 1 else f"rows {first} to {last}"
    rows = rows if last - first < num else f"between row {first} and row {last}"
    return f"different rows: {facts['num']} of {count(facts['total'], 'row')} ({rows})"


def _only_in(facts: ReasonFacts) -> str:
    names = facts["parameter"] if facts["num"] == 1 else f"{facts['parameter']}, …"
    text = f"{count(facts['num'], 'parameter')} only in the {facts['side']} ({names})"
    return f"{text}; initial weights differ" if facts["drawn_otherwise"] else text


def _tie(facts: ReasonFacts) -> str:
    sides = (
        f"{f'tied to {facts[side]}' if facts[side] else 'not tied'} ({side})"
        for side in ("target", "reference")
    )
    return f"Weight tying differs for {facts['parameter']}: {', '.join(sides)}"


def _exchanged(facts: ReasonFacts) -> str:
    first, second = facts["modules"][:2]
    if facts["num"] == 2:
        return f"Weights of {first} and {second} are exchanged"
    return f"Weights of {count(facts['num'], 'module')} are exchanged: {first}, {second} …"


def _stale_copies(facts: ReasonFacts) -> str:
    return (
        f"unchanged since the start of step {facts['before']}: {count(facts['num'], 'working copy')} at the "
        f"start of step {facts['step']}"
    )


_NAMED: dict[str, object] = {"parameters": "2 of 12 parameters (a, b, …)"}
_STD: dict[str, object] = {"target": 0.02, "reference": 0.05}

PHRASES = {
    W.ALL_EQUAL: clause("Initial weights are bit-identical ({num:count weight})", {"num": 1}, {"num": 12}),
    W.WITHIN_ROUNDING: clause(
        lambda facts: (
            f"Initial weights agree within rounding: {facts['target']} (target), {facts['reference']} "
            f"(reference) in {count(facts['num'], 'weight')}"
            + (f", {facts['equal']} bit-identical" if facts["equal"] else "")
        ),
        {"num": 12, "equal": 0, "target": "bfloat16", "reference": "float32"},
        {"num": 1, "equal": 3, "target": "bfloat16", "reference": "float32"},
    ),
    W.SOME_EQUAL: clause(
        "Initial weights: {num:count weight} bit-identical, {open} undecided", {"num": 10, "open": 2}
    ),
    W.NUM_EQUAL: clause("bit-identical: {num} of {total:count weight}", {"num": 1, "total": 12}),
    W.UNMATCHED: clause(
        "without a counterpart in the reference: {num:count parameter} ({names:list})",
        {"num": 2, "names": ("a", "b")},
    ),
    W.NO_DIGEST: clause("{parameter}: no digest in one of the runs", {"parameter": "a"}),
    W.CUT_IN_ONE: clause(
        "{parameter}: each rank of one run alone holds a part of it, and the values were not stored",
        {"parameter": "a"},
    ),
    W.OF_PARAMETER: clause("{parameter}: {parts[0]}", {"parameter": "a", "parts": (reason(W.TRANSPOSED),)}),
    W.NOT_STORED: clause("the digests differ; the values were not stored"),
    W.TRANSPOSED: clause("the reference's values, transposed"),
    W.SHAPE: clause(
        "shape {target} (target), {reference} (reference)", {"target": "[4, 2]", "reference": "[4, 3]"}
    ),
    W.SHIFTED: clause("the reference's values plus {offset:.6g}", {"offset": -1.0}),
    W.WHOLE_ON_EACH: clause(
        "each of the {num} ranks of the {side} holds the whole, bit for bit what the other run's hold parts "
        "of along dimension {dim}: a sum over them counts it {num} times",
        {"side": "target", "num": 2, "dim": 0},
    ),
    W.OF_ANOTHER: clause("the reference's {parameter}, bit for bit", {"parameter": "layers.0.up.weight"}),
    W.ZERO: clause("zero everywhere, as if never loaded or initialized"),
    W.NEGATED: clause("the reference's values with the opposite sign"),
    W.SCALED: clause("{factor:.6g} times the reference's values", {"factor": 1.5}),
    W.NUMBER: clause(
        "{target:.6g} (target), {reference:.6g} (reference)", {"target": 1.0, "reference": 2.659}
    ),
    W.REORDERED: clause(
        lambda facts: (
            facts.fill("the reference's {what} in a different order ({moved} of {total} moved)")
            + (f": {facts.parts[0]}" if facts.parts else "")
        ),
        {"what": "rows", "moved": 2, "total": 8},
        {"what": "dim 1", "moved": 8, "total": 8, "parts": (reason(OrderCode.HALVES_SWAPPED),)},
    ),
    W.REARRANGED: clause("the same numbers in a different order"),
    W.PART: clause(
        _part,
        {"num": 1, "total": 8, "first": 3, "last": 3},
        {"num": 2, "total": 8, "first": 3, "last": 6},
        {"num": 4, "total": 8, "first": 3, "last": 6},
    ),
    W.ROUNDED: clause(
        lambda facts: facts.fill(
            "the reference's values, rounded to {dtype}"
            if facts.get("side") != "reference"
            else "what the reference holds rounded to {dtype}"
        ),
        {"dtype": "bfloat16", "side": "target"},
        {"dtype": "bfloat16", "side": "reference"},
    ),
    W.NEAR: clause(
        "relative difference {rel_diff:.3g}: the same initialization, changed later in one of the runs",
        {"rel_diff": 0.1},
    ),
    W.ONE_NUMBER: clause(
        "{target:.6g} everywhere (target), {reference:.6g} everywhere (reference)",
        {"target": 1.0, "reference": 0.2},
    ),
    W.PART_OF_ANOTHER_RANK: clause(
        lambda facts: "; ".join(
            f"the part of rank {rank} is that of the reference's rank {other}, bit for bit"
            for rank, other in zip(facts["ranks"], facts["others"], strict=True)
        ),
        {"ranks": ("1",), "others": ("0",)},
    ),
    W.PARTS_CAUSE: clause("whole weights cut into parts without regard to the rank"),
    W.OWN_OF_RANKS: clause(
        lambda facts: (
            f"{ranks_named(facts['ranks'])} of the target {'holds' if len(facts['ranks']) == 1 else 'hold'} "
            "other values than the other ranks; all ranks of the reference hold the same, bit for bit"
        ),
        {"ranks": ("1",)},
    ),
    W.NOT_BROADCAST_CAUSE: clause("weights drawn on each rank by itself and not sent to it from the first"),
    W.OTHER_DRAW: clause(
        "unrelated values of similar standard deviation, {target:.4g} (target), {reference:.4g} (reference): "
        "a different seed or order of random draws",
        _STD,
    ),
    W.PART_UNRELATED: clause(
        "all {num:count weight} below {part} that are no constant are unrelated; outside, {outside:count "
        "such weight} {outside:verb agree} bit for bit",
        {"part": "model.encoder", "num": 21, "outside": 1},
    ),
    W.OTHER_INIT: clause(
        "unrelated values, standard deviation {target:.4g} (target), {reference:.4g} (reference)",
        _STD,
    ),
    W.RELATED: clause(
        "values that correlate with the reference's ({correlation:.2f}), standard deviation "
        "{target:.4g} (target), {reference:.4g} (reference): made of the same numbers in another way",
        {**_STD, "correlation": 0.58},
    ),
    W.PARAMETRIZED: heading(
        "The {side} alone parametrizes {num:count weight}: {parameter}",
        {"side": "target", "num": 2, "parameter": "layers.0.conv.weight"},
    ),
    W.PARAMETRIZED_CAUSE: clause(
        "a parametrization (weight norm, spectral norm) registered or removed in one run"
    ),
    W.RELATED_CAUSE: clause("the same numbers combined otherwise: a mean, a sum or a part of them"),
    W.DIFFER: heading(
        _differ,
        *({**_NAMED, "way": way, "factor": None} for way in (*_WAYS, "unknown")),
        {**_NAMED, "way": "scaled", "factor": 1.5},
        {**_NAMED, "way": "number", "parts": (reason(W.NUMBER, target=1.0, reference=2.659),)},
    ),
    W.NUM_DIFFERENT: clause("different: {num} of {total:count weight}", {"num": 1, "total": 12}),
    W.SAME_WEIGHTS: clause("load the same initial weights into both runs and capture again"),
    W.ONE_SIDED: heading(
        "Parameter {parameter} exists only in the {side}; later initial weights differ",
        {"parameter": "layers.0.bias", "side": "target"},
    ),
    W.ONLY_IN: heading(
        _only_in,
        {"num": 6, "side": "reference", "parameter": "layers.0.q_proj.bias", "drawn_otherwise": True},
        {"num": 1, "side": "target", "parameter": "layers.0.q_proj.bias", "drawn_otherwise": False},
    ),
    W.NAMES: clause(
        "only in the {side}: {names:list}", {"side": "reference", "names": ("layers.0.q_proj.bias",)}
    ),
    W.DRAWN_AFTER: clause(
        "{first} is the first weight after {parameter} that differs",
        {"parameter": "layers.0.bias", "first": "layers.1.weight"},
    ),
    W.BUILT_WITHOUT: clause(
        "the {side}'s model was built without {parameter}", {"parameter": "layers.0.bias", "side": "target"}
    ),
    W.BUILD_BOTH: clause(
        "build both models with {parameter}, or both without it", {"parameter": "layers.0.bias"}
    ),
    W.ROWS_UNLIKE: heading(
        "Rows of {parameter} are in another order than those of {beside}",
        {"parameter": "layers.0.attn.qkv.bias", "beside": "layers.0.attn.qkv.weight"},
    ),
    W.ROW_SOURCES: clause(
        "the rows of {parameter} are those of {sources:list}",
        {"parameter": "layers.0.attn.qkv.bias", "sources": ("q_proj.bias", "v_proj.bias", "k_proj.bias")},
    ),
    W.EXCHANGED: heading(
        _exchanged,
        {"num": 2, "modules": ("layers.1.experts.0", "layers.1.experts.1")},
        {"num": 3, "modules": ("layers.1.experts.0", "layers.1.experts.1", "layers.1.experts.3")},
    ),
    W.OTHER_NUMBERS: clause(
        "the reference has these weights under another number: {numbers:list}",
        {"numbers": ("layers.1.experts.0: 1", "layers.1.experts.1: 0")},
    ),
    W.TIE: heading(
        _tie,
        {"parameter": "lm_head.weight", "target": "embedding.weight", "reference": ""},
        {"parameter": "lm_head.weight", "target": "", "reference": "embedding.weight"},
    ),
    W.TIED_GRADIENT: clause("a tied weight receives the gradients of all its uses"),
    W.TIE_CAUSE: clause("weights tied in one run only"),
    W.TIE_BOTH: clause("tie the same weights in both runs"),
    W.SEED_CAUSE: clause("a different seed"),
    W.BUILD_ORDER_CAUSE: clause("modules created or initialized in a different order"),
    W.PART_LOADED_CAUSE: clause(
        "a checkpoint loaded in one run alone, or under other names (a prefix, strict=False)"
    ),
    W.INIT_CAUSE: clause("a different initialization (distribution or scale)"),
    W.CONVERTED_CAUSE: clause("weights converted for a different layout"),
    W.CUT_CAUSE: clause("a layer split over the ranks in one run only"),
    W.ROW_ORDER_CAUSE: clause("rows or heads in a different order"),
    W.NOT_STRICT_CAUSE: clause("a checkpoint without this weight, loaded with strict=False"),
    W.CHANGED_CAUSE: clause("weights changed between loading and the first step"),
    W.ROWS_SET_CAUSE: clause("rows added or set after loading, such as those of a resized vocabulary"),
    W.SAVED_ROUNDED_CAUSE: clause("weights saved, converted or loaded in the coarser dtype"),
    W.UNDONE: heading("Update is undone before the next step: {parameters}", _NAMED),
    W.OVERWRITTEN: heading("Weights change between update and next step: {parameters}", _NAMED),
    W.WRITTEN_IN_REFERENCE: heading(
        "Only the reference changes weights after its update: {parameters}", _NAMED
    ),
    W.LIMITED_AFTER: clause(
        "{parameter} ({side}): {num:count number} that the update leaves {way} {bound:.6g} "
        "{num:verb begin} the next step as {bound:.6g}",
        {"parameter": "logit_scale", "side": "reference", "num": 1, "way": "above", "bound": 4.60517},
        {"parameter": "fc.weight", "side": "target", "num": 12, "way": "below", "bound": -0.01},
    ),
    W.RANGE_AFTER: clause(
        "{parameter} ({side}): the update leaves {left:.6g} to {most_left:.6g}, the next step begins with "
        "{begins:.6g} to {most_begins:.6g}",
        {
            "parameter": "w",
            "side": "reference",
            "left": -0.5,
            "most_left": 0.7,
            "begins": -0.25,
            "most_begins": 0.35,
        },
    ),
    W.WRITTEN_CAUSE: clause(
        "a limit, norm, decay, copy or average that one program alone writes to the weights after its update"
    ),
    W.NOT_THE_MASTERS: heading("Weights of the model are not the rounded master weights"),
    W.RESTARTED: heading("Master weights are overwritten with their rounded copies after each update"),
    W.STALE: heading("Weights of the model are not updated from their master weights"),
    W.STALE_COPIES: clause(
        _stale_copies, {"num": 1, "step": 1, "before": 0}, {"num": 3, "step": 1, "before": 0}
    ),
    W.NOT_FROM_THE_MODEL: heading("Master weights are not the model's weights when the first update begins"),
    W.OTHER_START: clause(
        "{num} of {total} master weights differ from the model's weights before their first update, at most "
        "by {apart:.3g} (relative l2): {parameter}",
        {"num": 36, "total": 36, "apart": 0.71, "parameter": "embed_tokens.weight"},
    ),
    W.ROUNDED_START: heading(
        "Master weights of the {side} begin as the weights rounded to {dtype}",
        {"side": "target", "dtype": "bfloat16"},
    ),
    W.HOLDS_NO_MORE: clause(
        "{num} of {total} master weights begin with the {dtype} numbers of the model in the {side}; in the "
        "other run they hold what rounding takes from these",
        {"num": 21, "total": 21, "dtype": "bfloat16", "side": "target"},
    ),
    W.REFERENCE_FROM_THE_MODEL: clause("in the reference, the first update starts from the model's weights"),
    W.RELOAD_MASTERS: clause(
        "copy the model's weights into the master weights after every load, or build the optimizer after it"
    ),
    W.REFERENCE_KEEPS: clause("in the reference, the next step starts with the updated weights"),
    W.CHECK_AFTER_STEP: clause(
        "check what happens to the weights after optimizer.step(): copies, broadcasts, averages"
    ),
}
