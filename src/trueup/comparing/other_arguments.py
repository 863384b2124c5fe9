"""Functions that both programs call, in one order and of tensors of one shape, with another plain argument,
where what comes of it has other bits: a cause that no number tells from rounding.

``softmax`` without the ``dtype=float32`` of the other run rounds as much as kernels of one formula do. Where
all agrees, such a pair of programs is open. Left out is what can have no effect: values that are one number
in float32, defaults that are written out, dims counted from the other end, masks that both hide, what lays
numbers out, and factors that take each other out again.

So is a pair of which one program alone bends numbers that are small so far (softcapping of logits): what is
the identity near 0 agrees there, and no longer once the numbers have grown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from trueup.comparing.program_code import SHOWN, CodeBook
from trueup.comparing.thresholds import FLOAT32, MASKED_BELOW
from trueup.matching.arguments import (
    CASTS,
    LAYOUT_FUNCTIONS,
    WITHOUT_EFFECT,
    ArgumentPair,
    Arguments,
    NotGiven,
    arguments_apart,
    function_of,
)
from trueup.matching.names import family, like
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView
from trueup.store.code import CalledFunction, GivenTensor, ProgramCode
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.codes.evidence import NUM_CALLS
from trueup.types.reason import Reason, reason
from trueup.types.status import Status

Body = Sequence[CalledFunction]
"""functions that one module's own code calls, in order"""

ROW_COLUMNS = ["kind", "name", "phase", "slot", "status", "target_dtype", "reference_dtype"]
"""what is asked of the rows of a step"""
_NEUTRAL = LAYOUT_FUNCTIONS | CASTS | {"clone", "unsqueeze", "squeeze", "detach", "pad", "tile", "repeat"}
"""families that hand on the same numbers: one program may have more of them than the other"""
_NO_NUMBERS = WITHOUT_EFFECT | {"keepdim", "keep_dims", "requires_grad", "layout", "pin_memory", "equation"}
"""arguments that change no number of a result of the same shape"""
_TAKES_DTYPE = frozenset(
    ("softmax", "log_softmax", "softmin", "sum", "nansum", "mean", "nanmean", "prod")
) | {
    "cumsum",
    "cumprod",
    "norm",
    "vector_norm",
}
"""families with a ``dtype`` that they compute in: a cast of what they are given says the same"""
_FACTORS = {"mul": 1, "div": -1}
_BENDS = frozenset(("tanh", "atan", "arctan", "sin", "asinh", "arcsinh", "softsign"))
"""families with f(x) = x + O(x^2) near 0"""
_DROPS = ("dropout", "alpha_dropout", "feature_alpha_dropout")


@dataclass(frozen=True, slots=True)
class _Both:
    """One function as both programs call it."""

    target: CalledFunction
    reference: CalledFunction
    laid_alike: bool
    """all that lays numbers out around it is the same too"""

    @property
    def family(self) -> str:
        return family(self.target.name)

    @property
    def given(self) -> tuple[list[GivenTensor], list[GivenTensor]]:
        return list(self.target.tensors.values()), list(self.reference.tensors.values())


def other_arguments(
    book: CodeBook, views: tuple[StepView, StepView], rows: pl.DataFrame
) -> tuple[Reason, ...]:
    """Arguments that may have made other bits in the first step, one reason for each call of modules that are
    alike.

    ``rows``: of that step, with ``ROW_COLUMNS``; ``views``: the same step of both runs.
    """
    if len({max((one or 0 for one in view.microbatch), default=0) for view in views}) > 1:
        return ()
    found: dict[tuple[str | None, str, Reason], list[str | None]] = {}
    given_otherwise = _given_otherwise(rows)
    for module in _places(rows, views[0]):
        target = _body(book.target, views[0], module)
        reference = _body(book.reference, views[1], None if module is None else book.counterpart(module))
        with_dtypes = module not in given_otherwise
        for both, pairs in _apart(target, reference, with_dtypes=with_dtypes):
            apart = reason(EvidenceCode.ARGUMENTS_DIFFER, *map(_values_of, pairs))
            call = both.target.name.rpartition(".")[2]
            found.setdefault((None if module is None else like(module), call, apart), []).append(module)
        if bent := _bent_on_one_side(target, reference):
            call, counts = bent
            apart = reason(
                EvidenceCode.ARGUMENTS_DIFFER, reason(EvidenceCode.ARGUMENT_DIFFERS, name=NUM_CALLS, **counts)
            )
            found.setdefault((None if module is None else like(module), call, apart), []).append(module)
    return tuple(
        reason(one.code, *one.parts, site=_site(modules, call), call=call, module=modules[0])
        for (_, call, one), modules in list(found.items())[:SHOWN]
    )


def headline_of(arguments: Sequence[Reason]) -> Reason:
    """What is said first where all else agrees."""
    first = arguments[0]
    facts = {"call": first.place("call"), "module": first.place("module"), **dict(first.parts[0].places)}
    return reason(VerdictCode.OTHER_ARGUMENT, **facts)


def _values_of(pair: ArgumentPair) -> Reason:
    name = pair.name.partition(".")[2] or pair.name
    name = f"argument {name}" if name.replace(".", "").isdigit() else name
    values = {"target": repr(pair.target), "reference": repr(pair.reference)}
    return reason(EvidenceCode.ARGUMENT_DIFFERS, name=name, **values)


def _site(modules: Sequence[str | None], call: str) -> str:
    first = "the loss" if modules[0] is None else modules[0] or "the model"
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return f"{first}{more} · {call}"


def _places(rows: pl.DataFrame, view: StepView) -> list[str | None]:
    """Modules of which a result, or a gradient that they send back, has other bits, as they are called; None:
    the code between the model and its loss."""
    status, kind, phase, slot = (pl.col(name).cast(pl.String) for name in ("status", "kind", "phase", "slot"))
    apart = rows.filter(~status.is_in([Status.EQUAL.value, Status.UNMATCHED.value]))
    given = slot.str.starts_with("input")
    made = ((phase == "forward") & slot.str.starts_with("output")) | ((phase == "backward") & given)
    names = set(apart.filter((kind == "module") & made)["name"].cast(pl.String).fill_null("").to_list())
    called = dict.fromkeys(view.name[one] for one in view.calls_of_kind("module"))
    outside: list[None] = [None] if apart.filter(phase.is_in(["loss", "backward"])).height else []
    return [*(one for one in called if one in names), *outside]


def _given_otherwise(rows: pl.DataFrame) -> set[str | None]:
    """Modules that are given other dtypes: what they compute in follows; None where anything has."""
    kind, phase, slot = (pl.col(name).cast(pl.String) for name in ("kind", "phase", "slot"))
    dtypes = pl.col("target_dtype").cast(pl.String) != pl.col("reference_dtype").cast(pl.String)
    other = rows.filter((kind == "module") & (phase == "forward") & dtypes)
    given = other.filter(slot.str.starts_with("input"))["name"].cast(pl.String).fill_null("")
    return {*given.to_list(), *([None] if other.height else [])}


def _body(code: ProgramCode, view: StepView, module: str | None) -> Body:
    """What the module's own code calls in its first pass; outside, directly before the loss."""
    if "api" in view.kind:
        return _of_calls(view, module)
    found = code.called.get(module, ())
    if module is not None:
        return found
    place = _place_of_loss(view)
    return [one for one in found if one.after == place]


def _place_of_loss(view: StepView) -> int:
    """How many calls at top level stand before the first loss; -1 without one."""
    return next((at for at, one in enumerate(view.children(-1)) if view.kind[one] == "loss"), -1)


def _of_calls(view: StepView, module: str | None) -> Body:
    """The same of a trace that holds these calls."""
    if module is None:
        before = view.children(-1)[: max(_place_of_loss(view), 0)]
        last = max((at for at, one in enumerate(before) if view.kind[one] == "module"), default=-1)
        calls = before[last + 1 :]
    else:
        passes = (one for one in view.named("module", module) if view.mode[one] == "train")
        calls = view.children(next(passes, -2))
    return [_called(view, one) for one in calls if view.kind[one] == "api"]


def _called(view: StepView, call: int) -> CalledFunction:
    given = [one for one in view.records(call, "forward") if view.slot[one].startswith("input")]
    tensors = {
        view.slot[one]: GivenTensor(dtype=view.dtype(one) or "", shape=tuple(view.shape(one) or ()))
        for one in given
    }
    return CalledFunction(name=view.name[call], arguments=view.arguments(call), after=0, tensors=tensors)


# -- what differs ------------------------------------------


def _apart(
    target: Body, reference: Body, *, with_dtypes: bool
) -> Iterator[tuple[_Both, tuple[ArgumentPair, ...]]]:
    """Functions with arguments that may act; none where one program calls others, or has other sizes."""
    every = _both_call(target, reference)
    if any(map(_has_other_sizes, every)):
        return
    found = [(both, [*_acting(both), *(_dtypes(both) if with_dtypes else ())]) for both in every]
    for both, pairs in _not_taken_out(found):
        if pairs:
            yield both, tuple(pairs)


def _both_call(target: Body, reference: Body) -> list[_Both]:
    """The functions of both, one by one; none where they are not the same in one order."""
    bodies = (target, reference)
    calls = [[one for one in body if family(one.name) not in _NEUTRAL] for body in bodies]
    if _names(calls[0]) != _names(calls[1]):
        return []
    laid = [_names([one for one in body if family(one.name) not in CASTS]) for body in bodies]
    return [_Both(one, other, laid[0] == laid[1]) for one, other in zip(*calls, strict=True)]


def _bent_on_one_side(target: Body, reference: Body) -> tuple[str, dict[str, str]] | None:
    """A function that one program alone calls in the midst of what both do, and how often either calls it.

    It is the identity near 0, and nothing but factors stands around it.
    """
    calls = [[one for one in body if family(one.name) not in _NEUTRAL] for body in (target, reference)]
    fewer, more = sorted(calls, key=len)
    num = len(more) - len(fewer)
    for at in range(len(fewer) + 1) if num else ():
        within = [*more[:at], *more[at + num :]]
        block = more[at : at + num]
        bends = [one for one in block if family(one.name) in _BENDS]
        around = {family(one.name) for one in block} - _BENDS
        if bends and around <= _FACTORS.keys() and _names(within) == _names(fewer):
            name = family(bends[0].name)
            counts = (sum(family(one.name) == name for one in body) for body in calls)
            return name, dict(zip(("target", "reference"), map(str, counts), strict=True))
    return None


def _names(body: Body) -> list[tuple[str, str]]:
    return [function_of(one.name) for one in body]


def _has_other_sizes(both: _Both) -> bool:
    one, other = ([tensor.shape for tensor in side] for side in both.given)
    return len(one) == len(other) and one != other


def _acting(both: _Both) -> Iterator[ArgumentPair]:
    """Arguments of a call that may change its numbers, but for dtypes."""
    target, reference = both.given
    if len(target) != len(reference):  # a mask in place of a flag
        return
    names = both.target.name, both.reference.name
    for pair in arguments_apart(names[0], _plain(both.target), _plain(both.reference), names[1]):
        known = _with_own_default(pair, both)
        if known is not None and _may_act(known, both):
            yield known


def _plain(call: CalledFunction) -> Arguments:
    """Arguments, a list of one number as that number: ``dim=(1,)`` is ``dim=1``."""
    lone = {slot.removesuffix(".0") for slot in call.arguments if slot.count(".") > 1 and slot.endswith(".0")}
    lone -= {slot.removesuffix(".1") for slot in call.arguments if slot.endswith(".1")}
    return {
        slot.removesuffix(".0") if slot.removesuffix(".0") in lone else slot: v
        for slot, v in call.arguments.items()
    }


def _with_own_default(pair: ArgumentPair, both: _Both) -> ArgumentPair | None:
    """The pair with what a function takes by itself where it is not given; None where that is not known."""
    if pair.is_known:
        return pair
    name, tensor = pair.name.rpartition(".")[2], next(iter(both.given[0]), None)
    own = None if tensor is None else _own_default(both.family, name, tensor)
    if own is None:
        return None
    target, reference = (own if isinstance(one, NotGiven) else one for one in (pair.target, pair.reference))
    return ArgumentPair(name=pair.name, target=target, reference=reference)


def _own_default(function: str, name: str, tensor: GivenTensor) -> float | None:
    """What a function makes of its first tensor where it is not told."""
    if (function, name) == ("scaled_dot_product_attention", "scale") and tensor.shape:
        return float(tensor.shape[-1] ** -0.5)
    if (function, name) == ("rms_norm", "eps") and tensor.dtype in DTYPES:
        return 2 * DTYPES[tensor.dtype].eps
    return None


def _may_act(pair: ArgumentPair, both: _Both) -> bool:
    name, values = pair.name.rpartition(".")[2], (pair.target, pair.reference)
    if name in _NO_NUMBERS or both.family == "einsum" or any(_dtype(one) for one in values):
        return False
    if both.family in _DROPS and _rate(both.target) == _rate(both.reference):
        return False
    if not all(map(_is_number, values)):
        return None not in values
    one, other = (value for value in values if isinstance(value, (int, float)))
    if type(one) is type(other) is int:  # without a tensor it is a size
        return one != other and both.given != ([], []) and not _is_one_dim(name, one, other, both)
    return not is_one_number(one, other)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_one_number(one: float, other: float) -> bool:
    """Whether two arguments are one number in float32, or both hide what they are written over."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    near = math.isclose(one, other, rel_tol=2 * FLOAT32, abs_tol=0.0)
    return one == other or near or max(one, other) <= MASKED_BELOW


def _is_one_dim(name: str, one: float, other: float, both: _Both) -> bool:
    """Of dims, or what stands at a place without a name."""
    if not (name.isdecimal() or name.startswith(("dim", "axis")) or name.endswith(("dim", "dims"))):
        return False
    num = max((len(tensor.shape) for tensor in both.given[0]), default=0)
    return not both.laid_alike or (num > 0 and one % num == other % num)


def _rate(call: CalledFunction) -> float | None:
    """Of what a dropout drops; None where it is not said."""
    words = {slot.rpartition(".")[2]: value for slot, value in call.arguments.items()}
    rate, training = words.get("p", words.get("1", 0.5)), words.get("training", words.get("2", True))
    return (float(rate) if training else 0.0) if isinstance(rate, (int, float)) else None


def _dtypes(both: _Both) -> Iterator[ArgumentPair]:
    """What a function computes in: its ``dtype``, else that of the tensor it is given."""
    named = [_named_dtype(call) for call in (both.target, both.reference)]
    if both.family not in _TAKES_DTYPE and not any(named):
        return
    target, reference = (
        dtype or next((tensor.dtype for tensor in given), None)
        for dtype, given in zip(named, both.given, strict=True)
    )
    floating = [one in DTYPES and DTYPES[one].kind == "float" for one in (target, reference) if one]
    if target != reference and len(floating) == 2 and all(floating):
        yield ArgumentPair(name="input.dtype", target=target, reference=reference)


def _named_dtype(call: CalledFunction) -> str | None:
    return next((found for one in call.arguments.values() if (found := _dtype(one)) is not None), None)


def _dtype(value: object) -> str | None:
    """The dtype that a text names: ``torch.float32``, ``Float32``."""
    name = value.rpartition(".")[2].lower() if isinstance(value, str) else None
    return name if name in DTYPES else None


def _not_taken_out(
    found: Sequence[tuple[_Both, list[ArgumentPair]]],
) -> Iterator[tuple[_Both, list[ArgumentPair]]]:
    """Without what another argument of the same code takes out again, as agreeing numbers show: a sum in
    place of a mean, which is divided, factors of one product, and a loss scale: a power of two rounds
    nothing, so that its effect is twofold or none."""
    reduced = any(pair.name.endswith(".reduction") for _, pairs in found for pair in pairs)
    factors = [
        (_FACTORS[both.family], pair) for both, pairs in found if both.family in _FACTORS for pair in pairs
    ]
    whole = sum(sign * _log_ratio(pair) for sign, pair in factors)
    one_product = len(factors) > 1 and abs(whole) <= 2 * FLOAT32 * len(factors)
    for both, pairs in found:
        left = [pair for pair in pairs if not (pair.name.endswith(".reduction") or _is_scale(pair, both))]
        yield both, [] if both.family in _FACTORS and (reduced or one_product) else left


def _is_scale(pair: ArgumentPair, both: _Both) -> bool:
    """Whether both runs multiply by a power of two, or make a tensor of nothing else."""
    numbers = [value for value in (pair.target, pair.reference) if isinstance(value, float) and value]
    whole = all(abs(math.frexp(number)[0]) == 0.5 for number in numbers)
    return (both.given == ([], []) or both.family in _FACTORS) and len(numbers) == 2 and whole


def _log_ratio(pair: ArgumentPair) -> float:
    values = [one for one in (pair.target, pair.reference) if isinstance(one, (int, float)) and one > 0]
    return math.log(values[0] / values[1]) if len(values) == 2 else math.inf
