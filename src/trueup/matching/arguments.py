"""Which plain arguments two calls of one function do not share.

What is not given has the function's default: ``gelu(x)`` and ``gelu(x, approximate="none")`` are one call,
and ``gelu(x, approximate="tanh")`` differs from both. Parameters and defaults of PyTorch's functions are in
``defaults.json`` (``scripts/make_defaults.py``). Of other functions the default is not known; an argument
that one side alone gives is then said to be not given on the other.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from trueup.matching.names import family
from trueup.types.reason import Json
from trueup.types.trace import reduction_word

Arguments = Mapping[str, Json]
"""slot -> value: ``input.3``, ``input.dim``"""


class NotGiven:
    """In place of a value that a call was not given, where the default is not known."""

    def __repr__(self) -> str:
        return "not given"


class ATensor(NotGiven):
    """In place of a value that a call was given as a tensor, which is a record of its own."""

    def __repr__(self) -> str:
        return "a tensor"


NOT_GIVEN = NotGiven()
A_TENSOR = ATensor()
LAYOUT_FUNCTIONS = frozenset(
    [
        "view",
        "transpose",
        "cat",
        "split",
        "getitem",
        "permute",
        "reshape",
        "stack",
        "roll",
        "flip",
        "repeat_interleave",
        "expand",
        "rearrange",
        "unbind",
    ]
)
"""families that only lay the same numbers out anew"""
CASTS = frozenset({"to"})
"""families that change the dtype alone"""
WITHOUT_EFFECT = frozenset(
    ["inplace", "sparse", "foreach", "fused", "non_blocking", "copy", "memory_format", "device", "enable_gqa"]
)
"""arguments that change how a function runs, and no number"""
_EXCHANGES = re.compile(r"all_?to_?all.*", re.IGNORECASE)
"""collectives that are told how many rows go to each rank"""
_NOTHING = (None, False, 0, "", "RedOpType.SUM", "<RedOpType>")
"""usual values of what is not given; collectives sum, and older traces hold no more than the type"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentPair:
    """One argument that two calls do not share."""

    name: str
    """its slot, under the parameter's name where that is known"""
    target: Json | NotGiven
    reference: Json | NotGiven

    @property
    def is_known(self) -> bool:
        """Whether both values are."""
        return not isinstance(self.target, NotGiven) and not isinstance(self.reference, NotGiven)

    @property
    def has_tensor(self) -> bool:
        """Whether a number stands in a tensor's place."""
        return A_TENSOR in (self.target, self.reference)


def arguments_apart(
    call: str, target: Arguments, reference: Arguments, reference_call: str | None = None
) -> Iterator[ArgumentPair]:
    """What differs between the arguments of two calls, in the order they were given; private ones
    (``_stacklevel``) left out.

    Of two functions that do the same (``square`` and ``pow``, MindSpore's ``transpose`` and PyTorch's) only
    what both are known to be given counts, and nothing where they lay numbers out: there the same place in
    the call means something else. How many rows an exchange sends to each rank follows from where its tokens
    go: that is compared as the shapes and values of what is sent.
    """
    others = call if reference_call is None else reference_call
    is_one = function_of(call) == function_of(others)
    if not is_one and family(call) in LAYOUT_FUNCTIONS:
        return
    one, other = _completed(call, target), _completed(others, reference)
    one, other = _under_one_name(one, other)
    inverse = _INVERSES.get((function_of(call)[1], function_of(others)[1]))
    exchanges = is_one and _EXCHANGES.fullmatch(call.rpartition(".")[2]) is not None
    for name in dict.fromkeys([*one, *other]):
        if name.rpartition(".")[2].startswith("_"):
            continue
        if exchanges and all(type(side.get(name)) is int for side in (one, other)):
            continue
        pair = ArgumentPair(name=name, target=one.get(name, NOT_GIVEN), reference=other.get(name, NOT_GIVEN))
        if inverse is not None and name in _OPERAND:
            pair = replace(pair, reference=_inverted(pair.reference, inverse))
            if _is_one_number(pair):
                continue
        if pair.target != pair.reference and (pair.is_known or (is_one and not _is_nothing(pair))):
            yield pair


_OPERAND = ("input.1", "input.other")
_INVERSES: dict[tuple[str, str], str] = {
    **dict.fromkeys(itertools.permutations(("mul", "div"), 2), "quotient"),
    **dict.fromkeys(itertools.permutations(("mul", "truediv"), 2), "quotient"),
    **dict.fromkeys(itertools.permutations(("add", "sub"), 2), "negative"),
}
"""functions that do the same with the inverse of their second operand"""


def _inverted(value: Json | NotGiven, inverse: str) -> Json | NotGiven:
    """The number that the other function takes for the same."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if inverse == "negative":
        return -value
    return 1.0 / value if value else value


def _is_one_number(pair: ArgumentPair) -> bool:
    """Whether both are one number, but for the rounding of an inverse."""
    numbers = [one for one in (pair.target, pair.reference) if isinstance(one, (int, float))]
    return len(numbers) == 2 and math.isclose(*numbers, rel_tol=_ROUNDED)


_ROUNDED = 4 * sys.float_info.epsilon


def function_of(call: str) -> tuple[str, str]:
    """Library and short name: what has one signature; functions of ``mindspore.mint`` have PyTorch's."""
    call = call.replace("mindspore.mint.", "torch.", 1)
    return call.partition(".")[0], call.rpartition(".")[2].strip("_")


def _is_nothing(pair: ArgumentPair) -> bool:
    """Whether the side that gives it gives what most functions do without it."""
    value = pair.reference if pair.target is NOT_GIVEN else pair.target
    return any(value is nothing or value == nothing for nothing in _NOTHING)


def _completed(call: str, arguments: Arguments) -> dict[str, Json]:
    """Arguments by the parameters' names, with the defaults of those that are not given."""
    if call == "loss":
        return {slot: reduction_word(v) if slot == "reduction" else v for slot, v in arguments.items()}
    names, defaults = _parameters().get(_key(call), ([], {}))
    out: dict[str, Json] = {}
    for slot, value in arguments.items():
        head, _, rest = slot.partition(".")
        number = int(rest) if rest.isdecimal() else -1
        out[f"{head}.{names[number]}" if 0 <= number < len(names) else slot] = value
    return out | {slot: value for name, value in defaults.items() if (slot := f"input.{name}") not in out}


def has_default(call: str, name: str, written: str) -> bool:
    """Whether an argument, as code writes it, is what a library's function takes without it."""
    defaults = _parameters().get(_key(call), ([], {}))[1]
    try:
        value = ast.literal_eval(written)
    except (SyntaxError, ValueError):
        return False
    return name in defaults and type(value) is type(defaults[name]) and bool(value == defaults[name])


def _key(call: str) -> str:
    """``torch.nn.functional.gelu`` is ``functional.gelu``, ``torch.Tensor.clamp`` is ``clamp``, those of
    ``mindspore.mint`` are what PyTorch's of the name are; a function of another library is none of them."""
    call = call.replace("mindspore.mint.", "torch.", 1)
    if not call.startswith("torch."):
        return ""
    short = call.rpartition(".")[2]
    functional = f"functional.{short}"
    return functional if call.startswith("torch.nn.functional.") and functional in _parameters() else short


@cache
def _parameters() -> Mapping[str, tuple[list[str], dict[str, Json]]]:
    """By function the names of its parameters in order, and plain defaults."""
    found: dict[str, tuple[list[str], dict[str, Json]]] = json.loads(
        Path(__file__).with_name("defaults.json").read_text(encoding="utf-8")
    )
    return found


def _under_one_name(target: dict[str, Json], reference: dict[str, Json]) -> tuple[dict[str, Json], ...]:
    """Arguments that one side gives by position and the other by name, in their order, under the name."""
    only = [key for key in target if key not in reference], [key for key in reference if key not in target]
    placed = [[key.rpartition(".")[2].isdecimal() for key in keys] for keys in only]
    if len(only[0]) != len(only[1]) or not (
        (all(placed[0]) and not any(placed[1])) or (all(placed[1]) and not any(placed[0]))
    ):
        return target, reference
    names = dict(zip(*(only if placed[0][:1] == [True] else only[::-1]), strict=True))
    return tuple({names.get(key, key): value for key, value in side.items()} for side in (target, reference))
