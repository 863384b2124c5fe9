"""English of batches, labels and loss masks that differ."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.types.codes import BatchCode as B
from trueup.types.codes.kinds import OrderCode
from trueup.types.reason import reason
from trueup.wording.phrase import ReasonFacts, clause, count, heading, listed


def _row(names: Sequence[str], total: int) -> str:
    """Numbers in a row; ``names`` are the first of ``total``."""
    return ", ".join(names) + (", …" if len(names) < total else "")


_SIDES = ("target", "reference")


def numbers(facts: ReasonFacts, side: str) -> str:
    """The one number of a side, or from where to where its numbers are."""
    least, most = facts[f"{side}_least"], facts[f"{side}_most"]
    return f"{least:.6g}" if least == most else f"between {least:.6g} and {most:.6g}"


def _some_samples(facts: ReasonFacts) -> str:
    noun, more = ("row", "") if facts["num"] == 1 else ("rows", "")
    if len(facts["rows"]) < facts["num"]:
        more = " …"
    text = f"{facts['num']} of {facts['total']} rows differ ({noun} {listed(facts['rows'])}{more})"
    zeros = f"; those of the {facts['zeros']} are all zeros" if facts["zeros"] else ""
    return f"{text}; the others are bit-identical{zeros}"


def _order(facts: ReasonFacts) -> str:
    rows = _row(facts["rows"], facts["num"])
    return f"the same rows in a different order: the reference's rows {rows}"


def _shift(facts: ReasonFacts) -> str:
    ahead = "ahead of" if facts["shift"] > 0 else "behind"
    return f"every row is {count(abs(facts['shift']), 'position')} {ahead} the reference's"


def _front(facts: ReasonFacts) -> str:
    tokens, side = facts["tokens"], facts["side"]
    noun = "token" if len(tokens) == 1 else "tokens"
    if facts["again"]:
        other = "reference" if side == "target" else "target"
        return f"Every row begins with {noun} {listed(tokens)} twice in the {side}, once in the {other}"
    return f"Every row begins with {noun} {listed(tokens)} only in the {side}"


def _flags(facts: ReasonFacts) -> str:
    if facts["inverted"]:
        return "each 1 is a 0 in the reference, and each 0 a 1"
    number, side = (facts["fewer"], "reference") if facts["fewer"] else (facts["more"], "target")
    other = "target" if side == "reference" else "reference"
    text = f"{count(number, 'position')} that {'is' if number == 1 else 'are'} 1 in the {side} alone"
    if facts["end"] == "none":
        return f"{text}; the input is 0 everywhere in the {other}"
    if not facts["end"]:
        return f"{text}, 0 in the {other}"
    which = facts["end"] if facts["length"] == 1 else f"{facts['end']} {facts['length']}"
    return f"{text}: the {which} of the ones of a row"


_PADDED = {"left": "on the left", "right": "on the right", "none": "at no end"}


def _padding(facts: ReasonFacts) -> str:
    sides = (
        f"id {facts[f'{side}_id']} {_PADDED[facts[f'{side}_at']]}, length {facts[f'{side}_length']} ({side})"
        for side in ("target", "reference")
    )
    return f"the same tokens, padded differently: {'; '.join(sides)}"


def _row_length(facts: ReasonFacts) -> str:
    sides = (
        f"{count(facts[f'{side}_rows'], 'row')} of {facts[f'{side}_length']} ({side})"
        for side in ("target", "reference")
    )
    return f"the same tokens in rows of different length: {', '.join(sides)}"


def _cut(facts: ReasonFacts) -> str:
    rows, by = _row(facts["rows"], facts["num"]), _row(facts["by"], facts["num"])
    which = f"{facts['num']} of {facts['total']} rows ({rows})"
    return f"{which} begin {by} tokens {facts['side']} in the same text, and end {facts['side']}"


def _shape(facts: ReasonFacts) -> str:
    shared = f"; rows in common: {facts['shared']}" if facts["shared"] else ""
    return f"shape {facts['target']} (target), {facts['reference']} (reference){shared}"


def _mapped(facts: ReasonFacts) -> str:
    pairs = zip(facts["target"], facts["reference"], facts["counts"], strict=True)
    shown = "; ".join(f"{a} (target), {b} (reference), {count(int(n), 'place')}" for a, b, n in pairs)
    return f"some ids are replaced wherever they occur: {shown}"


def _scaled(facts: ReasonFacts) -> str:
    scale, offset = facts["scale"], facts["offset"]
    times = "" if abs(scale - 1) < 1e-6 else f"{scale:.6g} times "
    more = f" {'plus' if offset > 0 else 'minus'} {abs(offset):.6g}" if offset else ""
    return f"every number is {times}the reference's{more}"


def _some_rows(facts: ReasonFacts) -> str:
    rows, positions = _row(facts["rows"], facts["num"]), _row(facts["positions"], facts["num_positions"])
    sides = facts.get("target_ids") or (), facts.get("reference_ids") or ()
    ids = "" if not any(len(one) == 1 for one in sides) else f"; there {_ids_there(*sides)}"
    row = "row" if facts["num"] == 1 else "rows"
    position = "position" if facts["num_positions"] == 1 else "positions"
    counted = f"{facts['num']} of {facts['total']}"
    return f"different rows: {counted} ({row} {rows}; {position} {positions}{ids})"


def _ids_there(target: Sequence[str], reference: Sequence[str]) -> str:
    """``4 (target), 12, 7, ... (reference)``"""
    shown = (
        ", ".join(one[:_MOST_IDS]) + (", ..." if len(one) > _MOST_IDS else "") for one in (target, reference)
    )
    return "{} (target), {} (reference)".format(*shown)


_MOST_IDS = 3


def _labels(facts: ReasonFacts) -> str:
    found = facts.fill(
        "different labels: {num} of {total}, the first at {first}: {target} (target), {reference} (reference)"
    )
    offset = facts.get("offset")
    return (
        found
        if not offset
        else f"{found}; each is {abs(offset)} {'more' if offset > 0 else 'less'} in the target"
    )


def _where(facts: ReasonFacts) -> str:
    rank = "" if facts.get("rank") is None else f", rank {facts['rank']}"
    return f"step {facts['step']}{rank}"


def _agree(facts: ReasonFacts) -> str:
    return (
        f"{_where(facts)}, microbatch {facts['microbatch']}: labels are {_shifted(facts['shift'])}; "
        f"{_whole_percent(facts['counted'])} of them count in the loss"
    )


def _whole_percent(share: float) -> str:
    """A share in per cent, with decimals where it would read as none or all and is not."""
    if not 0 < share < 1:
        return f"{share:.0%}"
    shown = (f"{share:.{digits}%}" for digits in range(12))
    return next((one for one in shown if 0 < float(one[:-1]) < 100), f"{share:.0%}")


def _shifted(shift: int | None) -> str:
    return "in no fixed relation to the inputs" if shift is None else f"the inputs shifted by {shift}"


def _mask(facts: ReasonFacts) -> str:
    how = "; the mask is the reference's shifted by one" if facts["is_shifted"] else ""
    return f"different loss weights: {count(facts['num'], 'position')}, the first {facts['first']}{how}"


_AT: dict[str, object] = {"step": 0, "rank": None}
_SHIFTS: dict[str, object] = {"target": 2, "reference": 1}

_VELOCITY, _OF_A_FLOW = "velocity (v-prediction)", "the velocity of a flow"
_NOISE, _SAMPLE = "noise", "the clean sample"
_PREDICTED = {
    "velocity_noise": (_VELOCITY, _NOISE),
    "velocity_sample": (_VELOCITY, _SAMPLE),
    "of_velocity_noise": (_NOISE, _VELOCITY),
    "of_velocity_sample": (_SAMPLE, _VELOCITY),
    "flow_velocity_noise": (_OF_A_FLOW, _NOISE),
    "flow_velocity_sample": (_OF_A_FLOW, _SAMPLE),
    "of_flow_velocity_noise": (_NOISE, _OF_A_FLOW),
    "of_flow_velocity_sample": (_SAMPLE, _OF_A_FLOW),
    "noise_or_sample": None,
    "flow_noise_or_sample": None,
}
"""law -> what target and reference predict by it; None where it is noise in one run and the sample in the
other"""


def _loss_weights(facts: ReasonFacts, side: str) -> str:
    return f"{' '.join(facts[side]) or 'none'} ({side})"


def _combined(facts: ReasonFacts) -> str:
    text = facts.fill(
        "in all {num} samples the loss targets are the reference's times one number plus input {name} times "
        "another ({of_reference:.4g} and {of_input:.4g} in sample {row})"
    )
    law = str(facts["law"])
    if not law:
        return text
    both = _PREDICTED[law]
    if both is None:
        return f"{text}: as if one run predicts noise, the other the clean sample"
    return f"{text}: as if the target predicts {both[0]}, the reference {both[1]}"


PHRASES = {
    B.SAME: clause("the same ids"),
    B.ORDER: clause(
        _order, {"rows": ("1", "0"), "num": 2}, {"rows": ("1", "2", "3", "4", "5", "0"), "num": 9}
    ),
    B.SHIFT: clause(_shift, {"shift": 1}, {"shift": -2}),
    B.FRONT: heading(
        _front,
        {"tokens": ("1",), "side": "target", "again": True},
        {"tokens": ("1",), "side": "reference", "again": False},
        {"tokens": ("1", "7"), "side": "target", "again": False},
    ),
    B.FLAGS: clause(
        _flags,
        {"more": 0, "fewer": 4, "length": 1, "end": "last", "inverted": False},
        {"more": 9, "fewer": 0, "length": 0, "end": "", "inverted": False},
        {"more": 9, "fewer": 0, "length": 0, "end": "none", "inverted": False},
        {"more": 9, "fewer": 7, "length": 0, "end": "", "inverted": True},
    ),
    B.PADDING: clause(
        _padding,
        {
            "target_id": 0,
            "target_at": "left",
            "target_length": 8,
            "reference_id": 2,
            "reference_at": "none",
            "reference_length": 7,
        },
    ),
    B.ROW_LENGTH: clause(
        _row_length, {"target_rows": 1, "target_length": 8, "reference_rows": 2, "reference_length": 4}
    ),
    B.STREAM_OFFSET: clause(
        "the same stream of tokens, started {shift:count token} {side}",
        {"shift": 1, "side": "later"},
        {"shift": 3, "side": "earlier"},
    ),
    B.CUT: clause(
        _cut,
        {"num": 2, "total": 2, "rows": ("0", "1"), "by": ("4", "5"), "side": "later"},
        {"num": 1, "total": 4, "rows": ("3",), "by": ("7",), "side": "earlier"},
    ),
    B.SHAPE: clause(
        _shape,
        {"target": "[4, 8]", "reference": "[2, 8]", "shared": 2},
        {"target": "[4, 8]", "reference": "[4, 9]", "shared": 0},
    ),
    B.MAPPED_IDS: clause(_mapped, {"target": ("0", "5"), "reference": ("1", "6"), "counts": ("1", "9")}),
    B.ONE_POSITION: clause(
        "position {position} of each of {rows:count row} holds {target} (target), {reference} (reference); "
        "all other positions agree",
        {"position": 0, "rows": 6, "target": 1, "reference": 0},
    ),
    B.SOME_ROWS: clause(
        _some_rows,
        {"num": 1, "total": 8, "rows": ("3",), "num_positions": 9, "positions": ("0", "1", "2")},
        {
            "num": 1,
            "total": 8,
            "rows": ("3",),
            "num_positions": 2,
            "positions": ("0", "1"),
            "target_ids": ("4",),
            "reference_ids": ("12", "7"),
        },
    ),
    B.OTHER: clause(
        "ids differ at {share:.0%} of the positions, and the rows are not the reference's in a different "
        "order",
        {"share": 0.97},
    ),
    B.MORE_ROWS: clause(
        lambda facts: (
            f"{facts['target']} rows (target), {facts['reference']} (reference); the larger batch holds all "
            "rows of the smaller one"
            + (f", {count(facts['repeated'], 'row')} more than once" if facts["repeated"] else "")
        ),
        {"target": 10, "reference": 8, "repeated": 2},
        {"target": 8, "reference": 10, "repeated": 0},
    ),
    B.COUNTING: clause(
        "every row counts on from {target} (target), {reference} (reference)", {"target": 0, "reference": 8}
    ),
    B.OFFSET: clause(
        lambda facts: (
            f"every number is the reference's {'plus' if facts['offset'] > 0 else 'minus'} "
            f"{abs(facts['offset'])}"
        ),
        {"offset": 1},
        {"offset": -3},
    ),
    B.BEGIN_ANEW: clause(
        "positions begin anew at 0 inside rows {target:count time} (target), {reference:count time} "
        "(reference)",
        {"target": 0, "reference": 7},
    ),
    B.OFFSET_BY_ROW: clause(
        lambda facts: (
            "each row counts on from a number of its own; the target's are the reference's plus "
            f"{listed(facts['offsets'])}{' …' if len(facts['offsets']) < facts['num'] else ''}"
        ),
        {"offsets": ("0", "5", "3"), "num": 3},
        {"offsets": ("0", "5", "3"), "num": 8},
    ),
    B.SAME_SAMPLES: clause(
        "the same {num} samples in their order, made otherwise: each is most like the reference's of "
        "its number (correlation {correlation:.2f})",
        {"num": 8, "correlation": 0.94},
    ),
    B.ROUNDED: clause(
        "the same numbers but for rounding: {share:percent} of them differ, by {rel_l2} (relative l2); one "
        "rounding is {rounding}",
        {"share": 0.73, "rel_l2": 0.0057, "rounding": 0.0039},
    ),
    B.ONE_FOR_EACH_SAMPLE: clause(
        lambda facts: (
            f"one number for each of {facts['num']} samples, "
            + ", ".join(
                f"{facts[f'{side}_least']:.4g} to {facts[f'{side}_most']:.4g}, "
                f"mean {facts[f'{side}_mean']:.4g} ({side})"
                for side in _SIDES
            )
        ),
        {
            "num": 6,
            "target_least": 0.04,
            "target_most": 0.96,
            "target_mean": 0.5,
            "reference_least": 0.25,
            "reference_most": 0.8,
            "reference_mean": 0.51,
        },
    ),
    B.CONSTANT: clause(
        lambda facts: f"all numbers are {', '.join(f'{numbers(facts, side)} ({side})' for side in _SIDES)}",
        {"target_least": 3.5, "target_most": 3.5, "reference_least": 1.0, "reference_most": 1.0},
        {"target_least": 3.5, "target_most": 3.5, "reference_least": 0.25, "reference_most": 7.0},
    ),
    B.SOME_SAMPLES: clause(
        _some_samples,
        {"num": 2, "total": 8, "rows": ("1", "5"), "zeros": "target"},
        {"num": 1, "total": 8, "rows": ("0",), "zeros": ""},
        {"num": 7, "total": 16, "rows": ("1", "2", "5", "7", "8", "9"), "zeros": ""},
    ),
    B.MONOTONE: clause(
        "all {num} numbers differ but are in the reference's order of size: a function of the same numbers",
        {"num": 8},
    ),
    B.LIMITED: clause(
        lambda facts: (
            f"{facts['num']} of {facts['total']} numbers differ, each the {facts['way']} of its sample in "
            f"the run that cuts it off: "
            + ", ".join(f"{listed(facts[side], 4)} ({side})" for side in _SIDES)
            + " in the first samples; all others have the same bits"
        ),
        {
            "num": 212,
            "total": 4096,
            "way": "smallest",
            "target": ("-0.61", "-0.61", "-0.61"),
            "reference": ("-0.61", "-0.92", "-1.5"),
        },
    ),
    B.SCALED_BY_CHANNEL: clause(
        lambda facts: (
            f"each channel along dimension {facts['dim']} is the reference's times "
            f"{listed(facts['scales'])}, plus {listed(facts['offsets'])}"
        ),
        {"dim": 1, "scales": ("0.458", "0.448"), "offsets": ("-0.03", "0")},
    ),
    B.MOVED: clause(
        "the same numbers, dimension {dim} {parts[0]}", {"dim": 1, "parts": (reason(OrderCode.REVERSED),)}
    ),
    B.MOVED_AND_SCALED: clause(
        lambda facts: (
            f"dimension {facts['dim']} {facts.parts[0]}, each channel then times "
            f"{listed(facts['scales'])}, plus {listed(facts['offsets'])}"
        ),
        {
            "dim": 1,
            "parts": (reason(OrderCode.REVERSED),),
            "scales": ("1.02", "0.98"),
            "offsets": ("-0.03", "0.03"),
        },
    ),
    B.LAID_OUT: clause("the same numbers, {parts[0]}", {"parts": (reason(OrderCode.REVERSED),)}),
    B.SAME_NUMBERS: clause("the same numbers in a different order"),
    B.SCALED: clause(_scaled, {"scale": 2.0, "offset": -1.0}, {"scale": 255.0, "offset": 0.0}),
    B.LABELS_AGREE: clause(
        _agree,
        {**_AT, "microbatch": 0, "shift": 1, "counted": 0.9},
        {**_AT, "rank": 1, "microbatch": 0, "shift": None, "counted": 1.0},
    ),
    B.SAME_INPUTS: clause(
        lambda facts: f"{_where(facts)}: both models received the same batch; {facts.parts[0]}",
        {**_AT, "parts": (reason(B.SHIFTS, target=2, reference=1),)},
    ),
    B.OUTSIDE: heading("Labels lie outside the vocabulary"),
    B.NUM_OUTSIDE: clause("neither ignored nor in the vocabulary: {num:count label}", {"num": 1}, {"num": 3}),
    B.SHIFTS: clause(
        lambda facts: (
            f"labels are {_shifted(facts['target'])} (target), {_shifted(facts['reference'])} (reference)"
        ),
        _SHIFTS,
        {"target": None, "reference": 1},
    ),
    B.SHIFTED_TWICE: heading("Labels are shifted twice"),
    B.NOT_SHIFTED: heading("Labels are not shifted: each token is its own target"),
    B.SHIFT_DIFFERS: heading("Labels are shifted differently relative to the inputs"),
    B.SHIFTED_IN_LOSS: heading(
        lambda facts: (
            f"The loss pairs each position with the label {count(abs(facts['shift']), 'position')} "
            f"{'before' if facts['shift'] > 0 else 'after'} the reference's"
        ),
        {"shift": -1},
        {"shift": 2},
    ),
    B.MASK_DIFFERS: heading("Loss mask differs: different positions count in the loss"),
    B.ENDS_COUNTED: heading(
        "Only the {side}'s loss counts labels {label} at the ends of rows", {"side": "target", "label": 0}
    ),
    B.STARTS_COUNTED: heading(
        "Only the {side}'s loss counts labels at the start of rows", {"side": "target"}
    ),
    B.IDS_COUNTED: heading(
        lambda facts: f"Only the {facts['side']}'s loss counts labels with id {listed(facts['ids'])}",
        {"side": "reference", "ids": ("2",)},
        {"side": "target", "ids": ("101", "102")},
    ),
    B.NUM_COUNTED: clause(
        "labels that count in the loss: {target} ({target_share:.1%}) (target), {reference} "
        "({reference_share:.1%}) (reference)",
        {"target": 90, "target_share": 0.9, "reference": 100, "reference_share": 1.0},
    ),
    B.BOUNDARIES_DIFFER: heading("Boundaries of the packed sequences differ; the tokens are the same"),
    B.BOUNDARIES: clause(
        "boundaries of packed sequences: {num} of {total} are at other tokens; number {at}: {target} "
        "(target), {reference} (reference)",
        {"num": 6, "total": 8, "at": 1, "target": 18, "reference": 17},
    ),
    B.CHECK_BOUNDARIES: clause("Compare how both sides make the boundaries of the packed sequences"),
    B.FACTORS_DIFFER: heading("Numbers that multiply the loss at each position differ"),
    B.FACTORS: clause(
        "numbers that multiply the loss at each position (advantages, ratios, weights): {num} of {total} "
        "differ, the largest difference at {at}: {target:.4g} (target), {reference:.4g} (reference)",
        {"num": 84, "total": 84, "at": 7, "target": -0.31, "reference": 0.12},
    ),
    B.NORMALISED_BY_RANK: heading(
        "Factors of the loss are normalised on each rank by itself in the {side} alone", {"side": "target"}
    ),
    B.MOMENTS_OF_RANKS: clause(
        lambda facts: (
            "mean and deviation of the factors on each rank: "
            + ", ".join(f"{'; '.join(facts[side])} ({side})" for side in _SIDES)
            + f"; of all ranks together {facts['together']} ({facts['other']})"
        ),
        {
            "target": ("0, 1", "0, 1"),
            "reference": ("-0.57, 0.41", "0.57, 1.1"),
            "together": "0, 1",
            "other": "reference",
        },
    ),
    B.NORMALISED_CAUSE: clause(
        "a mean and a deviation of one rank's numbers, in place of those over all ranks"
    ),
    B.MASK_WEIGHTS: heading("Loss mask differs"),
    B.NUM_WEIGHTS: clause(
        _mask, {"num": 1, "first": 7, "is_shifted": False}, {"num": 3, "first": 0, "is_shifted": True}
    ),
    B.TARGETS_DIFFER: heading("Loss targets differ (soft labels, values to predict)"),
    B.TARGETS_SMOOTHED: clause(
        "the {side}'s soft labels are the other run's, smoothed by {amount:.4g}: that share is spread evenly "
        "over all classes",
        {"side": "target", "amount": 0.1},
    ),
    B.TARGETS_OF_TEMPERATURE: clause(
        "logarithms of the target's soft labels are {factor:.4g} times the reference's in every row, but for "
        "a number a row: a softmax of another temperature ({factor:.4g} times the target's in the reference)",
        {"factor": 2.0},
    ),
    B.TARGETS_MIXED: clause(
        lambda facts: facts.fill(
            "soft labels are mixed in the {side} alone: {num} of its {total:count row} {num:verb are} of "
            "several classes, and none in the {other}",
            other="reference" if facts["side"] == "target" else "target",
        ),
        {"side": "reference", "num": 14, "total": 16},
    ),
    B.TARGETS_WEIGHTED: clause(
        lambda facts: (
            f"soft labels of all {facts['total']} rows are of the same classes with other weights: "
            f"{listed(facts['target_weights'])} (target), {listed(facts['reference_weights'])} (reference) "
            f"in row {facts['row']}"
        ),
        {"total": 16, "row": 3, "target_weights": ("0.7", "0.3"), "reference_weights": ("0.3", "0.7")},
    ),
    B.TARGETS_PARTNERS: clause(
        "soft labels of {num} of {total} rows are mixed with another class, with the same weights: with "
        "other rows",
        {"num": 14, "total": 16},
    ),
    B.TARGETS_COMBINED: clause(
        _combined,
        *(
            {"name": "0", "num": 8, "row": 3, "of_reference": 1.25, "of_input": -0.75, "law": law}
            for law in ("", *_PREDICTED)
        ),
    ),
    B.SQUARES: clause(
        "both losses are squares of differences, as their values and the gradients of the {num:count "
        "prediction} show together; these gradients give the targets",
        {"num": 1536},
    ),
    B.TARGETS_AVERAGED: clause(
        "the {side}'s loss holds each prediction against the targets of all {rows} rows, as [n] against "
        "[n, 1] does: gradients are those of their mean, and their variance is added to the loss",
        {"side": "target", "rows": 16},
    ),
    B.LOSS_WEIGHTED: heading(
        lambda facts: (
            f"Weights of the loss differ ({facts['name']})"
            if facts.get("side") is None
            else f"The {facts['side']} alone weights the loss ({facts['name']})"
        ),
        {"name": "weight", "side": None},
        {"name": "pos_weight", "side": "reference"},
    ),
    B.LOSS_WEIGHTS: clause(
        lambda facts: (
            f"{facts['name']} of the loss: {', '.join(_loss_weights(facts, side) for side in _SIDES)}"
        ),
        {"name": "pos_weight", "target": (), "reference": ("4", "4", "4")},
        {"name": "weight", "target": ("1", "2", "3", "4", "5", "6", "7", "8", "…"), "reference": ("1", "1")},
    ),
    B.CHECK_WEIGHTS: clause("give both losses the same {name}", {"name": "pos_weight"}),
    B.TARGETS_BROADCAST: heading(
        "Loss targets are broadcast in the {side}: their shape is not that of the predictions",
        {"side": "target"},
    ),
    B.TARGETS_SPREAD: clause(
        "the {side}'s loss targets are of shape {shape}: a broadcast of the other run's, of shape {other}; "
        "each prediction is held against the targets of other rows too",
        {"side": "target", "shape": "[16, 16]", "other": "[16, 1]"},
    ),
    B.LABELS_DIFFER: heading("Labels differ"),
    B.NUM_LABELS: clause(
        _labels,
        {"num": 1, "total": 100, "first": 7, "target": 3, "reference": 4, "offset": 0},
        {"num": 4, "total": 4, "first": 0, "target": 0, "reference": 4, "offset": -4},
    ),
    B.TARGETS_OF_MODULES: heading(
        "Loss targets are the output of {target} (target), of {reference} (reference)",
        {"target": "teacher.layers.0", "reference": "teacher.layers.1"},
    ),
    B.CHECK_TARGETS: clause("Compare the lines of both programs that make what the loss comes near to"),
    B.CHECK_LABELS: clause(
        "check the code between data loader and loss: labels must lie as far from the inputs in both runs; "
        "those of the next token are shifted exactly once"
    ),
}
