"""What one run computes in another dtype, where that is what makes the runs differ.

A run in bfloat16 and one in float32 differ everywhere by bfloat16's rounding: no place of first divergence,
and no agreement either. The dtypes of the two are compared as numbers are:

- The first record that differs by more than the *finer* of the two precisions explains is looked for. Where
  both runs round to bfloat16 anyway, and one of them keeps an intermediate result in float32, there is none:
  nothing is said.
- What one call makes of bit-equal tensors rounds nothing that came before: where one of its outputs has
  another dtype, the others are held to the finer one, and integers among them to equality (a router in
  bfloat16 that chooses other experts).
- It is laid on the dtype where it, or its module, computes in another one on either side, and the *coarser*
  precision explains it. A fault elsewhere, or a larger one, stays what it is; so does a tensor of another
  dtype that nothing was made of.
- What differs by more than the coarser precision explains is a difference of its own.
- Sums over ranks of the same operands in two dtypes: one run rounds each sum once more. In a coarse program
  no tolerance sees it, and an optimizer hides what it does to a step; it is off in every step.

TF32 is no dtype of a tensor: where one run's settings let its GPU multiply float32 matrices in it and the
other's do not, the products are what computes in another dtype.

A call computes in another dtype where its output has another. Where one run casts and the other does not, no
pair shows it: then the coarsest dtype that either side has inside one module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from trueup.comparing.first import First, JudgedStep, first_of_rows
from trueup.comparing.gradient_work import after_backward
from trueup.comparing.judgement import EQUAL, ORIGIN, WITHIN, Judgement
from trueup.comparing.metrics import SKETCH, Metrics
from trueup.comparing.precision import is_cast, role_of
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.rule import StepContext
from trueup.comparing.sites import charged_column
from trueup.comparing.thresholds import FINER
from trueup.comparing.tolerance import Precision, rounding_bound
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools, Floats
from trueup.types.reason import Reason
from trueup.types.trace import Manifest

TF32 = "tf32"
_TF32_ROUNDOFF = 2.0**-11
"""ten bits of mantissa beside the leading one"""
_OPERATORS = ("linear", "head", "norm", "softmax", "embedding", "rotary", "loss")
"""roles that a person names an operator by"""
_REDUCTIONS = frozenset({"mean", "sum", "var", "var_mean", "std", "std_mean", "norm", "vector_norm"})
"""functions that make one number of many"""
_WEIGHTED = ("linear", "head")
"""roles whose inputs and weight tell autocast: nothing else gives a coarser output from them"""


class GapOf(Enum):
    """What is in another dtype."""

    COMPUTING = auto()
    """what functions or modules compute in"""
    WEIGHTS = auto()
    """weights, not all of them"""
    RESULT = auto()
    """what a module gives, or is given"""
    LOSS = auto()
    """the loss, or the logits it is made of"""
    SUMS = auto()
    """the gradients of a step, while they are added up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionGap:
    """What one run computes in another dtype than the other, in one step of one rank."""

    at: First
    """the first record that shows it"""
    target: str
    """dtype"""
    reference: str
    weights: bool
    """weights have these dtypes too"""
    whole: bool
    """all of them"""
    functions: tuple[str, ...]
    """that compute in them, linear layers first, then the most frequent"""
    modules: tuple[str, ...]
    """classes of the modules that do, with the number of modules: ``Linear (12)``"""
    autocast: str | None
    """the side whose linear layers are given finer tensors than they compute in"""
    beyond: First | None
    """the first origin that the coarser dtype does not explain"""
    scored: int
    """order of the record that the coarser dtype explains and the finer one does not"""
    of: GapOf = GapOf.COMPUTING
    parameters: tuple[str, ...] = ()
    """weights that have these dtypes, or whose gradients do"""
    grounds: tuple[Reason, ...] = ()
    """how it is known, beside what computes in the dtypes"""

    @property
    def named(self) -> tuple[str, ...]:
        """What computes in them: functions that a person calls an operator, else classes of modules."""
        operators = tuple(name for name in self.functions if role_of("api", name, None) in _OPERATORS)
        classes = tuple(name.partition(" ")[0] for name in self.modules)
        return self.functions if operators else classes or self.functions

    @property
    def cast_by(self) -> str | None:
        """The side that casts where the other does not, if no call shows more of it."""
        if self.functions or not self.at.row.is_of_one_side:
            return None
        return "reference" if self.at.row.target_record is None else "target"

    @property
    def coarser(self) -> str:
        """The dtype with the larger roundings."""
        if TF32 in (self.target, self.reference):
            return TF32
        target, reference = unit_roundoffs([self.target, self.reference])[:2]
        return self.target if target >= reference else self.reference


def tf32_side(target: Manifest, reference: Manifest) -> str | None:
    """The side that alone lets a GPU multiply float32 matrices in TF32; None of two alike, and of CPUs."""
    allowed = [_allows_tf32(one) for one in (target, reference)]
    if None in allowed or allowed[0] == allowed[1]:
        return None
    return "target" if allowed[0] else "reference"


def _allows_tf32(manifest: Manifest) -> bool | None:
    """None where nothing tells of it, or no GPU computed."""
    allowed = manifest.get("allow_tf32")
    if not manifest.get("devices") or allowed is None:
        return None
    override = manifest.get("environment", {}).get("NVIDIA_TF32_OVERRIDE")
    return override == "1" if override in ("0", "1") else allowed


def gap_of_step(judged: JudgedStep, context: StepContext, tf32: str | None = None) -> PrecisionGap | None:
    """The gap that explains where a step begins to differ; None where there is none.

    ``tf32``: the side that alone multiplies in TF32.
    """
    rows, metrics, judgement = judged.rows, judged.metrics, judged.judgement
    roundoff = [unit_roundoffs(rows.match.words.dtype)[half.dtype] for half in (rows.target, rows.reference)]
    shown = _apart(rows, roundoff) | _casts_of_one_side(rows, roundoff)
    least = 0.0
    if tf32 is not None and not shown.any():
        shown, least = _products(rows) & (metrics.difference > 0), _TF32_ROUNDOFF
    if not shown.any():
        return None
    finer = _exceeds(context, metrics, judgement, Precision.FINER)
    finer |= _made_otherwise(context, metrics, judgement, roundoff, shown)
    finer |= _reduced_otherwise(rows, metrics, shown)
    coarser = _exceeds(context, metrics, judgement, Precision.COARSER, least)
    shared = _of_casts_returned(rows, shown)
    finer, coarser = finer & ~shared, coarser & ~shared
    beyond = np.flatnonzero(finer)
    if not (finer & ~shown).any() or coarser[beyond[0]] or not _is_of_module(rows, shown, int(beyond[0])):
        return None
    first = int(np.flatnonzero(shown)[0])
    own = np.flatnonzero(coarser & (judgement.attribution.status == ORIGIN) & (np.arange(len(rows)) > first))
    target, reference = _dtypes(rows, shown, roundoff)
    if least:
        target, reference = (TF32 if tf32 == "target" else target, TF32 if tf32 == "reference" else reference)
    functions, modules = computing(rows, shown)
    weights = rows.phase_is("param") & rows.paired & ~np.isnan(roundoff[0]) & ~np.isnan(roundoff[1])
    parameters, whole = names_of(rows, shown & weights), bool(weights.any() and shown[weights].all())
    return PrecisionGap(
        at=first_of_rows(judged, first),
        target=target,
        reference=reference,
        of=GapOf.COMPUTING if functions or _hold_no_others(rows, shown & weights) else GapOf.WEIGHTS,
        parameters=parameters,
        weights=bool(parameters),
        whole=whole,
        functions=functions,
        modules=modules,
        autocast=_autocast(rows, shown, roundoff),
        beyond=first_of_rows(judged, int(own[0])) if len(own) else None,
        scored=int(beyond[0]),
    )


def gap_from(
    judged: JudgedStep,
    row: int,
    target: str,
    reference: str,
    *,
    functions: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    of: GapOf = GapOf.COMPUTING,
    parameters: tuple[str, ...] = (),
    grounds: tuple[Reason, ...] = (),
) -> PrecisionGap:
    """The gap that begins at a row, of calls that compute in two dtypes by themselves."""
    at = np.arange(len(judged.rows))
    own = np.flatnonzero((judged.judgement.attribution.status == ORIGIN) & (at > row))
    return PrecisionGap(
        at=first_of_rows(judged, row),
        target=target,
        reference=reference,
        of=of,
        parameters=parameters,
        grounds=grounds,
        weights=of is GapOf.WEIGHTS,
        whole=False,
        functions=functions,
        modules=modules,
        autocast=None,
        beyond=first_of_rows(judged, int(own[0])) if len(own) else None,
        scored=row,
    )


def _hold_no_others(rows: StepRows, shown: Bools) -> bool:
    """Whether the modules that hold some weights hold no others, nor do modules in them."""
    others = names_of(rows, rows.phase_is("param") & ~shown)
    owners = {name.rpartition(".")[0] for name in names_of(rows, shown)}
    return not any(name.startswith(f"{owner}.") or not owner for owner in owners for name in others)


def names_of(rows: StepRows, chosen: Bools) -> tuple[str, ...]:
    """Names of the calls of some rows, each once."""
    words = rows.match.words.name
    return tuple(dict.fromkeys(words[code] for code in rows.of_call("name")[chosen].tolist()))


def gap_of_reductions(judged: JudgedStep) -> PrecisionGap | None:
    """The collectives that sum in two dtypes; None where there are none. A single number is none:
    programs log some."""
    rows, metrics, judgement = judged.rows, judged.metrics, judged.judgement
    words, call = rows.match.words, rows.target.call
    roundoff = unit_roundoffs(words.dtype)
    target, reference = roundoff[rows.target.dtype], roundoff[rows.reference.dtype]
    reduces = np.array(["reduce" in name.rpartition(".")[2] for name in words.name] + [False])
    reduced = rows.phase_is("collective") & reduces[rows.of_call("name")]
    at = rows.paired & (call >= 0) & reduced
    at &= ~np.isnan(target) & ~np.isnan(reference) & (target != reference) & (rows.target.numel > 1)
    at &= (metrics.evidence <= SKETCH) & ((judgement.status == EQUAL) | (judgement.status == WITHIN))
    inputs, outputs = at & rows.slot_starts("input"), at & rows.slot_starts("output")
    same = np.zeros(rows.match.target.num_calls + 1, bool)
    same[call[inputs & (metrics.rel_l2 <= np.fmax(target, reference))]] = True
    found = np.flatnonzero(outputs & same[call] & (metrics.rel_l2 > np.fmin(target, reference)))
    if not len(found):
        return _gap_of_other_reductions(judged, reduced)
    first = int(found[0])
    target_dtype, reference_dtype = (words.dtype[half.dtype[first]] for half in (rows.target, rows.reference))
    names = Counter(
        words.name[code].rpartition(".")[2].strip("_") for code in rows.of_call("name")[found].tolist()
    )
    return gap_from(judged, first, target_dtype, reference_dtype, functions=tuple(names))


def _gap_of_other_reductions(judged: JudgedStep, reduced: Bools) -> PrecisionGap | None:
    """Collectives of each run alone that sum as many numbers of one length, each run in one dtype, and these
    differ."""
    rows = judged.rows
    if (reduced & rows.paired & (rows.reference.numel > 1)).any():
        return None
    given = reduced & rows.slot_starts("input")
    sides = rows.target, rows.reference
    sent = [np.flatnonzero(given & ~rows.paired & (half.record >= 0) & (half.numel > 1)) for half in sides]
    dtypes = [{int(code) for code in half.dtype[at]} for half, at in zip(sides, sent, strict=True)]
    if any(len(of) != 1 for of in dtypes) or dtypes[0] == dtypes[1]:
        return None
    names = [rows.match.words.dtype[of.pop()] for of in dtypes]
    numbers = [float(half.numel[at].sum()) for half, at in zip(sides, sent, strict=True)]
    lengths = [
        float(np.linalg.norm(half.statistics["l2_norm"][at])) for half, at in zip(sides, sent, strict=True)
    ]
    apart = abs(lengths[0] - lengths[1]) > unit_roundoffs(names)[:-1].max() * lengths[1]
    if numbers[0] != numbers[1] or apart or np.isnan(unit_roundoffs(names)[:-1]).any():
        return None
    words, codes = rows.match.words.name, rows.of_call("name")
    functions = Counter(
        words[code].rpartition(".")[2].strip("_") for at in sent for code in codes[at].tolist()
    )
    return gap_from(judged, int(min(sent[0][0], sent[1][0])), *names, functions=tuple(functions))


def _apart(rows: StepRows, roundoff: list[Floats]) -> Bools:
    """Weights, outputs and losses with other floating dtypes on the two sides."""
    target, reference = roundoff
    made = rows.phase_is("param", "loss") | (rows.phase_is("forward") & rows.slot_starts("output"))
    floating = rows.paired & ~np.isnan(target) & ~np.isnan(reference)
    return np.asarray(made & floating & (rows.target.dtype != rows.reference.dtype))


def _casts_of_one_side(rows: StepRows, roundoff: list[Floats]) -> Bools:
    """Outputs of casts that one run alone has, to a dtype coarser than any the other has in that module."""
    codes, names = charged_column(rows)
    forward = rows.phase_is("forward")
    most = []
    for half, own in zip((rows.target, rows.reference), roundoff, strict=True):
        coarsest = np.zeros(len(names) + 1)
        there = forward & (half.record >= 0) & ~np.isnan(own)
        np.maximum.at(coarsest, codes[there], own[there])
        most.append(coarsest[codes])
    out = np.zeros(len(rows), bool)
    lone = forward & rows.slot_starts("output") & ~rows.paired & casts_of(rows)
    for own, other_coarsest in ((roundoff[0], most[1]), (roundoff[1], most[0])):
        out |= lone & (np.nan_to_num(own) > other_coarsest) & (other_coarsest > 0)
    return out


def casts_of(rows: StepRows) -> Bools:
    """Whether the call of a row gives its tensor another dtype, and nothing else."""
    casts = np.array([is_cast(word) for word in rows.match.words.name] + [False])
    return np.asarray(casts[rows.of_call("name")])


def _products(rows: StepRows) -> Bools:
    """Outputs of calls that multiply matrices, float32 on both sides: by name, or by the module's class."""
    words, outputs = rows.match.words, rows.phase_is("forward") & rows.slot_starts("output") & rows.paired
    single = np.array([word == "float32" for word in words.dtype] + [False])
    named = np.array([role_of("api", word, None) in _WEIGHTED for word in words.name] + [False])
    classes = np.array([role_of("module", "", word) in _WEIGHTED for word in words.type] + [False])
    multiplies = (rows.kind_is("api") & named[rows.of_call("name")]) | classes[rows.of_call("type")]
    return np.asarray(outputs & multiplies & single[rows.target.dtype] & single[rows.reference.dtype])


def _exceeds(
    context: StepContext, metrics: Metrics, judgement: Judgement, precision: Precision, least: float = 0.0
) -> Bools:
    """Pairs that differ by more than one of the two precisions explains; never more than were found to
    differ, of the coarser."""
    rows, inherited = context.rows, judgement.bounds.inherited
    allowed = rounding_bound(rows, metrics, context.factor, precision, least=least).absolute + inherited
    if precision is Precision.COARSER:
        allowed = np.fmax(allowed, judgement.bounds.total)
    difference = np.nan_to_num(judgement.difference, posinf=np.inf)
    return np.asarray(rows.paired & (difference > np.nan_to_num(allowed, nan=np.inf)))


def _made_otherwise(
    context: StepContext, metrics: Metrics, judgement: Judgement, roundoff: list[Floats], shown: Bools
) -> Bools:
    """Outputs in one dtype that differ by more than it rounds, of calls given bit-equal tensors that make
    another output in two dtypes."""
    rows, call = context.rows, context.rows.target.call
    forward, outputs = rows.phase_is("forward"), rows.slot_starts("output")
    apart = ~rows.paired | ~metrics.bits_equal
    given = np.zeros(rows.match.target.num_calls + 1, bool)
    given[call[forward & rows.slot_starts("input") & ~apart]] = True
    given[call[forward & rows.slot_starts("input") & apart]] = False
    made_in_two = np.zeros_like(given)
    made_in_two[call[shown & outputs]] = True
    differing_weight = np.maximum.accumulate(rows.phase_is("param") & apart)
    own = np.fmin(*roundoff)
    error = np.nan_to_num(judgement.attribution.error)
    beyond = np.where(np.isnan(own), apart, error > FINER * np.nan_to_num(own))
    here = (call >= 0) & forward & outputs & rows.paired & ~shown & ~differing_weight
    return np.asarray(here & beyond & (given & made_in_two)[call])


def _reduced_otherwise(rows: StepRows, metrics: Metrics, shown: Bools) -> Bools:
    """Outputs of other bits, of modules given bit-equal tensors, in whose own code a reduction gives its
    result in two dtypes. What is rounded then is one number of a whole row, so that its elements are off
    together, and do not average out as their own roundings do."""
    call, parents = rows.target.call, rows.match.target.parent
    forward, outputs = rows.phase_is("forward") & (call >= 0), rows.slot_starts("output")
    apart = ~rows.paired | ~metrics.bits_equal
    given, inputs = np.zeros(rows.match.target.num_calls + 1, bool), forward & rows.slot_starts("input")
    given[call[inputs & ~apart]] = True
    given[call[inputs & apart]] = False
    reductions = np.array(
        [w.rpartition(".")[2].strip("_") in _REDUCTIONS for w in rows.match.words.name] + [False]
    )
    reduces = forward & outputs & shown & rows.kind_is("api") & reductions[rows.of_call("name")]
    around = np.zeros_like(given)
    around[parents[call[reduces]]] = True
    around[-1] = False  # outside every module
    differing_weight = np.maximum.accumulate(rows.phase_is("param") & apart)
    made = forward & outputs & rows.kind_is("module") & rows.paired & apart & ~shown & ~differing_weight
    return np.asarray(made & (given & around)[call])


def _of_casts_returned(rows: StepRows, shown: Bools) -> Bools:
    """Gradients of what a module returns as it was given it (an identity, a dropout of nothing), in another
    dtype on the two sides: one run has cast it. A cast makes a tensor of its own, with the gradient of this
    use; without it the tensor is that of the other uses too, whose gradients it holds as well."""
    call = rows.target.call
    returned = shown & rows.phase_is("forward") & rows.kind_is("module") & _passed_through(rows) & (call >= 0)
    calls = np.zeros(rows.match.target.num_calls + 1, bool)
    calls[call[returned]] = True
    calls[-1] = False  # of no call
    return np.asarray(rows.phase_is("backward") & rows.slot_starts("output") & calls[call])


def _is_of_module(rows: StepRows, shown: Bools, row: int) -> bool:
    """Whether a row has another dtype, or the module charged with it computes in one before it.

    An input of another dtype was cast on its way: between modules, where no call is recorded.
    """
    if rows.target.dtype[row] != rows.reference.dtype[row]:
        return True
    codes, _ = charged_column(rows)
    before = shown & (np.arange(len(rows)) <= row)
    call = int(rows.target.call[row])
    return bool(before[row] or (before & ((codes == codes[row]) | (rows.target.call == call))).any())


def _dtypes(rows: StepRows, shown: Bools, roundoff: list[Floats]) -> tuple[str, str]:
    """The dtypes of most of the rows; of casts that one side alone has the coarsest on the other."""
    words = rows.match.words.dtype
    pairs = [half.dtype[shown & rows.paired].tolist() for half in (rows.target, rows.reference)]
    if pairs[0]:
        target, reference = Counter(zip(*pairs, strict=True)).most_common(1)[0][0]
        return words[target], words[reference]
    row = int(np.flatnonzero(shown)[0])
    codes, _ = charged_column(rows)
    near = rows.phase_is("forward") & (codes == codes[row])
    sides = []
    for half, own in zip((rows.target, rows.reference), roundoff, strict=True):
        at = np.flatnonzero(near & (half.record >= 0) & ~np.isnan(own))
        sides.append(
            words[half.dtype[row]] if half.record[row] >= 0 else words[half.dtype[at[np.argmax(own[at])]]]
        )
    return sides[0], sides[1]


def computing(rows: StepRows, shown: Bools) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Functions that do more than hand on or cast a tensor, and classes of modules whose code calls them."""
    words, api, module = rows.match.words, rows.kind_is("api"), rows.kind_is("module")
    names, types = rows.of_call("name"), rows.of_call("type")
    own, modules = charged_column(rows)
    at = shown & rows.phase_is("forward", "loss") & ~_passed_through(rows) & ~after_backward(rows)
    called = [words.name[code] for code in names[at & api & ~casts_of(rows)].tolist()]
    functions = Counter(word.rpartition(".")[2].strip("_") for word in called)
    known = dict(
        zip((words.name[code] for code in names[module].tolist()), types[module].tolist(), strict=True)
    )
    if not (at & (own >= 0)).any():  # casts within modules, of which no call is recorded: by their weights
        at = shown & rows.phase_is("param")
    charged = _innermost(dict.fromkeys(modules[code] for code in own[at & (own >= 0)].tolist()))
    classes = Counter(words.type[known[name]] for name in charged if known.get(name, -1) >= 0)
    roles = {name: role_of("api", name, None) for name in functions}
    likely = sorted(functions, key=lambda name: (roles[name] not in _WEIGHTED, -functions[name]))
    return tuple(likely), tuple(f"{name} ({num})" for name, num in classes.most_common())


def _innermost(modules: Iterable[str]) -> list[str]:
    """Those that hold no other: what is around one hands its output on."""
    names = list(modules)
    return [one for one in names if not any(o != one and (not one or o.startswith(f"{one}.")) for o in names)]


def _passed_through(rows: StepRows) -> Bools:
    """Outputs of a call that hold what its input holds, and of a function a part of it: views, transposes,
    splits."""
    half, held = rows.target, rows.target.statistics
    inputs = rows.phase_is("forward") & rows.slot_starts("input") & (half.call >= 0) & ~np.isnan(half.numel)
    at = np.flatnonzero(inputs)
    at = at[np.argsort(half.numel[at], kind="stable")]
    largest = np.full(half.side.num_calls + 1, -1)
    largest[half.call[at]] = at
    of = largest[half.call]
    same = (half.numel == half.numel[of]) & (held["minimum"] == held["minimum"][of])
    same &= (held["maximum"] == held["maximum"][of]) & (held["mean"] == held["mean"][of])
    inside = (held["minimum"] >= held["minimum"][of]) & (held["maximum"] <= held["maximum"][of])
    inside &= rows.kind_is("api") & (half.numel < half.numel[of])
    return np.asarray((of >= 0) & (same | inside))


def _autocast(rows: StepRows, shown: Bools, roundoff: list[Floats]) -> str | None:
    """The side one of whose linear layers is given tensors finer than what it puts out."""
    words, api = rows.match.words.name, rows.kind_is("api") & rows.phase_is("forward")
    linear = np.array([role_of("api", word, None) in _WEIGHTED for word in words] + [False])
    outputs = api & shown & rows.paired & linear[rows.of_call("name")]
    halves: list[tuple[str, Half, Floats]] = [
        ("target", rows.target, roundoff[0]),
        ("reference", rows.reference, roundoff[1]),
    ]
    for side, half, own in halves:
        coarsest = np.zeros(half.side.num_calls + 1)
        at = api & rows.slot_starts("input") & (half.call >= 0) & ~np.isnan(own)
        np.maximum.at(coarsest, half.call[at], own[at])
        given: Codes = half.call[outputs]
        if ((coarsest[given] > 0) & (coarsest[given] < own[outputs])).any():
            return side
    return None
