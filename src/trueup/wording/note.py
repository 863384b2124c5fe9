"""What a reader of a comparison should know beside its verdict, and where its tolerances come from."""

from trueup.types.codes.evidence import EvidenceCode
from trueup.types.codes.note import NoteCode as Is
from trueup.types.codes.note import ToleranceCode as Tolerance
from trueup.types.reason import given, reason
from trueup.wording.phrase import Phrase, ReasonFacts, count, listed

_MOST_NUMBERS = 8
_DTYPES = {"target": "bfloat16", "reference": "float32"}
_OF_CODE = (
    {
        "parts": (
            reason(
                EvidenceCode.CODE_VALUE_DIFFERS,
                function="Norm.forward",
                at="a.py:3",
                name="eps",
                target="1e-06",
                reference="1e-05",
            ),
        )
    },
)
_DTYPE_FORMULA = (
    "||t - r|| <= factor * k * sqrt((u^2 + v^2 length / 256) (1 + depth) + w^2 rows / 64) "
    "* max(||r||, operand scale) + inherited; "
    "u: unit roundoff of the coarsest dtype both runs have used so far; v = min(u, 2^-24); "
    "depth: preceding leaf module calls whose tensors are not bit-identical; "
    "length: largest of the last two dimensions of the call's tensors; "
    "rows: number of rows that a parameter's gradient is summed over, w = v for a matrix, u for a vector; "
    "operand scale: the root mean square of the call's largest floating input times sqrt(numel) "
    "(weight gradient: ||g|| ||x|| / sqrt(rows), bias gradient: ||g||); "
    "inherited: differences accepted in earlier optimizer updates"
)
_NOISE_FORMULA = (
    "||t - r|| <= factor * K * max(noise * ||r|| * (1 + 4 / sqrt(numel)), u * max(||r||, operand scale)) + "
    "inherited; noise: largest relative difference of this site between reruns of the reference, unchanged "
    "and perturbed by rounding; where all preceding records are bit-identical, no more than the dtype bound; "
    "where noise exceeds 0.3 and where nothing was measured, the dtype bound: "
)


def _numbers(facts: ReasonFacts) -> str:
    """``step 3``, ``ranks 1, 2 and 3``."""
    numbers = facts["numbers"]
    return f"{facts['what']}{'' if len(numbers) == 1 else 's'} {listed(numbers, _MOST_NUMBERS)}"


def _weights_differ(facts: ReasonFacts) -> str:
    cause = "from differences in an earlier step" if facts["exceeded"] else "no more than rounding explains"
    return facts.fill(
        f"step {{step}} starts with weights that differ by up to {{rel_diff:.1e}} (relative), {cause}; "
        "its tolerances are wider by {gain:g} times that"
    )


def _steps_missing(facts: ReasonFacts) -> str:
    first, last = facts["first"], facts["last"]
    steps = f"step {first} was" if first == last else f"steps {first} to {last} were"
    return (
        f"{steps} not captured: parameters of step {facts['step']} may differ by two further updates for each"
    )


def _spread(facts: ReasonFacts) -> str:
    return f"by {facts['median']:.1e} (median, relative), at most {facts['most']:.1e}"


def _repeats(facts: ReasonFacts) -> str:
    equal = f"plain reruns: {facts['equal']} of {count(facts['total'], 'record')} bit-identical"
    return equal if facts.get("most") is None else f"{equal}; the others differ {_spread(facts)}"


def _less_accurate(facts: ReasonFacts) -> str:
    parts = [f"neither run is clearly less accurate at {count(facts['neither'], 'site')}"]
    parts += [
        f"the {side} is at {facts[side]:,}, first at {facts[f'first_{side}']}"
        for side in ("target", "reference")
        if facts[side]
    ]
    return f"compared with {facts['path']}: {'; '.join(parts)}"


def _dtypes(facts: ReasonFacts) -> str:
    number = facts["calls"]
    many = "1 call computes in another dtype" if number == 1 else f"{number:,} calls compute in other dtypes"
    return f"{many}: at {facts['site']} {facts.parts[0]}"


def _dtypes_of(facts: ReasonFacts) -> str:
    sides = (f"{facts[side] or 'not recorded'} ({side})" for side in ("target", "reference"))
    return " vs ".join(sides)


def _from_side(noun: str) -> Phrase:
    return Phrase(
        sentence=f"{{side}}: {noun}{{parts[0]}}",
        samples=({"side": "target", "parts": (given("no optimizer"),)},),
    )


_SPREAD = {"median": 2e-07, "most": 9.8e-07}

PHRASES = {
    Is.NOISE_REPEATS: Phrase(
        sentence=_repeats,
        samples=(
            {"equal": 12, "total": 12, "most": None},
            {"equal": 10, "total": 12, **_SPREAD},
        ),
    ),
    Is.NOISE_PERTURBED: Phrase(
        sentence=lambda facts: (
            f"reruns perturbed by rounding: {facts['moved']:,} of {count(facts['total'], 'record')} differ, "
            f"{_spread(facts)}"
        ),
        samples=({"moved": 10, "total": 12, **_SPREAD},),
    ),
    Is.NOISE_PROFILE: Phrase(
        sentence="noise of {num:count record} written to {path}; trueup compare uses it",
        samples=({"num": 12, "path": "runs/reference/noise"},),
    ),
    Is.NOT_IN_BOTH: Phrase(
        sentence=lambda facts: f"requested {_numbers(facts)}: not in both traces",
        samples=({"what": "step", "numbers": ("3",)}, {"what": "rank", "numbers": ("3", "4")}),
    ),
    Is.IN_ONE_ONLY: Phrase(
        sentence=lambda facts: f"{_numbers(facts)} only in the {facts['side']}: not compared",
        samples=({"what": "step", "numbers": ("2",), "side": "target"},),
    ),
    Is.PAIRED_BY_PATH: Phrase(
        sentence="{what} {target} of the target is compared with {what} {reference} of the reference, as the "
        "paths say",
        samples=({"what": "step", "target": 0, "reference": 1},),
    ),
    Is.ONE_RANK_EACH: Phrase(
        sentence="rank {target} of the target is compared with rank {reference} of the reference, the only "
        "one of either: without a process group ptdbg_ascend takes the number of the process",
        samples=({"target": 0, "reference": 24117},),
    ),
    Is.ONE_RUN: Phrase(
        sentence="target and reference are traces of the same run: this says nothing about two runs",
        samples=({},),
    ),
    Is.AVERAGES_OF_ONE_SIDE: Phrase(
        sentence=lambda facts: (
            facts.fill("only the {side} updates a copy of the weights beside the model (")
            + listed(facts["kinds"], 3)
            + "): averaged weights are not compared"
        ),
        samples=({"side": "target", "kinds": ("AveragedModel",)},),
    ),
    Is.AVERAGES_NOT_PAIRED: Phrase(
        sentence="copies of the weights that are averaged are not compared: {target} (target), {reference} "
        "(reference)",
        samples=({"target": 2, "reference": 1},),
    ),
    Is.AVERAGES_AGREE: Phrase(
        sentence="averaged weights agree: {equal} bit-identical, {within} within rounding and what the "
        "weights differ by",
        samples=({"equal": 31, "within": 0},),
    ),
    Is.AVERAGES_OF_RANKS: Phrase(
        sentence=lambda facts: (
            facts.fill("the {side} updates no averaged weights on rank")
            + ("s " if len(facts["ranks"]) > 1 else " ")
            + listed(facts["ranks"], 8)
            + "; it does on others, and the other run on all"
        ),
        samples=({"side": "target", "ranks": ("1",)}, {"side": "reference", "ranks": ("1", "2", "3")}),
    ),
    Is.AVERAGED_IN_ONE: Phrase(
        sentence="only the {side}'s averaged weights hold {num:count tensor}, {name} first",
        samples=({"side": "reference", "num": 2, "name": "bn1.running_mean"},),
    ),
    Is.LOSS_SCALES_DIFFER: Phrase(
        sentence="loss scale {target:g} (target) vs {reference:g} (reference); gradients are compared in one"
        " scale",
        samples=({"target": 2048.0, "reference": 4096.0},),
    ),
    Is.LOSS_SCALE_UNDONE: Phrase(
        sentence="the loss that backward starts from is {factor:.6g} times the reference's, and the "
        "gradients that the optimizer gets agree: the factor is taken out in between",
        samples=({"factor": 0.5},),
    ),
    Is.CODE_DIFFERS: Phrase(
        sentence="the runs agree, though the programs differ: {parts:join ; }", samples=_OF_CODE
    ),
    Is.NOT_COMPARED: Phrase(sentence="not compared: {parts:join ; }", samples=_OF_CODE),
    Is.PROGRAMS_DIFFER: Phrase(sentence="the programs differ: {parts:join ; }", samples=_OF_CODE),
    Is.ROWS_LAID_OTHERWISE: Phrase(
        sentence="batches hold the same rows in another order, or padded otherwise; what was made of them is"
        " compared row by row",
    ),
    Is.HIDDEN_TOKENS_LEFT_OUT: Phrase(
        sentence="where records differ, what was made of tokens that the model's mask hides is left out",
    ),
    Is.ACROSS_IMPLEMENTATIONS: Phrase(
        sentence="two implementations: matched by weights and by the tensors between them (docs/matching.md);"
        " tolerances are {factor:g} times those of two runs of one program",
        samples=({"factor": 2.0},),
    ),
    Is.ACROSS_FRAMEWORKS: Phrase(
        sentence="two frameworks: tolerances are {factor:g} times those of two runs of one program",
        samples=({"factor": 2.0},),
    ),
    Is.MANIFESTS_DIFFER: Phrase(
        sentence="{name}: {target} (target) vs {reference} (reference)",
        samples=({"name": "framework_version", "target": "2.12", "reference": "2.13"},),
    ),
    Is.CAPTURE_FAILED: Phrase(
        sentence="{side}: {failures:count failure} of capture, see its ranks/ folder",
        samples=({"side": "target", "failures": 1},),
    ),
    Is.CAPTURE_DISABLED: _from_side("capture disabled before the end: "),
    Is.CAPTURE_LIMIT: _from_side(""),
    Is.MISSING: _from_side(""),
    Is.MORE_MISSING: Phrase(
        sentence="{side}: {number} more such; trueup inspect {path} lists all",
        samples=({"side": "target", "number": 4, "path": "runs/a"},),
    ),
    Is.REQUIRES_GRAD_DIFFERS: Phrase(
        sentence="step {step}, rank {rank}: requires_grad differs at {records:count record}",
        samples=({"step": 0, "rank": 0, "records": 1},),
    ),
    Is.DTYPES_DIFFER: Phrase(
        sentence=_dtypes,
        samples=(
            {"calls": 1, "site": "layers.0", "parts": (reason(Is.INPUT_DTYPE, **_DTYPES),)},
            {"calls": 3, "site": "layers.0", "parts": (reason(Is.OUTPUT_DTYPE, **_DTYPES),)},
        ),
    ),
    Is.NOT_IN_NOISE_PROFILE: Phrase(
        sentence="step {step}, rank {rank}: not in the noise profile; tolerances are the dtype bound",
        samples=({"step": 0, "rank": 0},),
    ),
    Is.STEPS_NOT_CAPTURED: Phrase(
        sentence=_steps_missing,
        samples=({"first": 1, "last": 1, "step": 2}, {"first": 1, "last": 3, "step": 4}),
    ),
    Is.WEIGHTS_DIFFER: Phrase(
        sentence=_weights_differ,
        samples=(
            {"step": 3, "rel_diff": 1e-7, "exceeded": 0, "gain": 4.0},
            {"step": 3, "rel_diff": 1e-2, "exceeded": 1, "gain": 4.0},
        ),
    ),
    Is.LESS_ACCURATE: Phrase(
        sentence=_less_accurate,
        samples=(
            {"path": "runs/c", "neither": 2, "target": 1, "reference": 0, "first_target": "a · output.0"},
        ),
    ),
    Is.WEIGHT_NOT_CAST: Phrase(
        sentence=lambda facts: (
            f"the {facts['side']} does not cast the weight before use; the "
            f"{'target' if facts['side'] == 'reference' else 'reference'} casts it to {facts['dtypes']}"
        ),
        samples=({"side": "target", "dtypes": "bfloat16"},),
    ),
    Is.WEIGHT_DTYPE: Phrase(
        sentence=lambda facts: f"the weight is used as {_dtypes_of(facts)}",
        samples=(_DTYPES, {**_DTYPES, "target": ""}),
    ),
    Is.INPUT_DTYPE: Phrase(
        sentence=lambda facts: f"the inputs are {_dtypes_of(facts)}",
        samples=(_DTYPES, {**_DTYPES, "target": ""}),
    ),
    Is.OUTPUT_DTYPE: Phrase(
        sentence=lambda facts: f"the outputs are {_dtypes_of(facts)}",
        samples=(_DTYPES, {**_DTYPES, "reference": ""}),
    ),
    Tolerance.DTYPE_BOUND: Phrase(
        sentence="dtype bound; trueup noise --reference {reference} -- COMMAND gives a better one",
        command="trueup noise --reference {reference} -- COMMAND",
        samples=({"reference": "runs/b"},),
    ),
    Tolerance.MEASURED_NOISE: Phrase(
        sentence="measured noise, {reruns:count rerun}", samples=({"reruns": 1}, {"reruns": 4})
    ),
    Tolerance.DTYPE_FORMULA: Phrase(sentence=_DTYPE_FORMULA),
    Tolerance.NOISE_FORMULA: Phrase(sentence=_NOISE_FORMULA + _DTYPE_FORMULA),
}
