"""Calls as msprobe names them: ``Functional.linear.3.forward``, ``Module.head.Linear.backward.0``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

HOMES = {
    "torch": {
        "Functional": "torch.nn.functional",
        "Tensor": "torch.Tensor",
        "Torch": "torch",
        "Distributed": "torch.distributed",
    },
    "mindspore": {
        "Functional": "mindspore.ops",
        "Tensor": "mindspore.Tensor",
        "Mint": "mindspore.mint",
        "MintFunctional": "mindspore.mint.nn.functional",
        "MintDistributed": "mindspore.mint.distributed",
        "Distributed": "mindspore.communication.comm_func",
        "Primitive": "mindspore.ops.Primitive",
        "Jit": "mindspore.jit",
    },
}
"""msprobe's prefix of a function's name -> where the function lives; some prefixes both frameworks have"""
_MODULES = ("Module", "Cell")
_PREFIX = "|".join(dict.fromkeys(prefix for homes in HOMES.values() for prefix in homes))
_FULL = re.compile(
    rf"(?:{_PREFIX})\..+\.\d+\.(forward|backward)|(?:Module|Cell)\..+\.(forward|backward)\.\d+"
)
_OPERATOR = re.compile(r"\.__(i?)(\w+?)__(?=\.|$)")


def name_from_msprobe(name: str, framework: str = "torch") -> str:
    """A call's name in a trace, from msprobe's name for it; a part of a name is left as it is.

    A prefix that only the other framework has is taken for that one's.

    Example:
        >>> name_from_msprobe("Module.layers.0.ln1.LayerNorm.forward.0")
        'layers.0.ln1'
        >>> name_from_msprobe("Functional.linear.3.forward")
        'torch.nn.functional.linear'
        >>> name_from_msprobe("Functional.gather.0.forward", "mindspore")
        'mindspore.ops.gather'
    """
    kind, dot, rest = name.partition(".")
    if not dot:
        return name
    if kind in _MODULES:
        path = re.sub(r"\.(forward|backward)(\.\d+)?$", "", rest)
        return path.rpartition(".")[0] if path != rest else path
    homes = {**HOMES["mindspore"], **HOMES["torch"], **HOMES[framework]}
    if kind in homes:
        return f"{homes[kind]}.{re.sub(r'([.][0-9]+)?([.](forward|backward))?$', '', rest)}"
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CallName:
    """One call of a step, as a trace and as msprobe name it."""

    name: str
    """in the trace"""
    base: str
    """msprobe's, without number and phase"""
    number: int
    """how many calls of the name came before in the step"""
    is_module: bool

    def full(self, phase: str) -> str:
        """With number and phase, in msprobe's order of the two."""
        if self.is_module:
            return f"{self.base}.{phase}.{self.number}"
        return f"{self.base}.{self.number}.{phase}"


def call_name(kind: str, name: str, type_name: str | None, number: int, framework: str) -> CallName:
    """The name of one row of calls."""
    if kind == "module":
        base = f"{'Cell' if framework == 'mindspore' else 'Module'}.{name}.{type_name}"
        return CallName(name=name, base=base, number=number, is_module=True)
    return CallName(name=name, base=_function_base(name, framework), number=number, is_module=False)


@lru_cache(maxsize=10_000)
def _function_base(name: str, framework: str) -> str:
    """``Functional.linear`` for ``torch.nn.functional.linear``; the longest home that fits."""
    homes = sorted(HOMES[framework].items(), key=lambda pair: -len(pair[1]))
    for prefix, home in homes:
        if name.startswith(f"{home}."):
            return f"{prefix}.{name.removeprefix(f'{home}.')}"
    return name


def is_function(given: str) -> bool:
    """Whether a name that a person gave is that of a function, in msprobe's spelling or a trace's.

    Example:
        >>> is_function("Functional.linear.3.forward"), is_function("torch.Tensor.add"), is_function("head")
        (True, True, False)
    """
    prefix, _, rest = given.partition(".")
    is_home = any(given.startswith(f"{home}.") for homes in HOMES.values() for home in homes.values())
    return is_home or bool(rest and any(prefix in homes for homes in HOMES.values()))


def phase_of(wanted: str) -> str | None:
    """``forward`` or ``backward`` of a full name of msprobe's; None of anything shorter."""
    found = _FULL.fullmatch(wanted)
    return None if found is None else found[1] or found[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCall:
    """A name that a person gave, in any spelling that a trace or msprobe has for it.

    msprobe writes ``a + b`` as ``Tensor.__add__``, a trace as ``torch.Tensor.add``.
    """

    given: str
    phase: str | None
    framework: str

    @classmethod
    def of(cls, given: str, framework: str) -> WantedCall:
        """``given``, taken apart."""
        return cls(given=given, phase=phase_of(given), framework=framework)

    def is_in(self, call: CallName, phase: str) -> bool:
        """Whether this is a part of the call's name, as msprobe's ``list`` takes it."""
        if self.phase is not None and self.phase != phase:
            return False
        full = call.full(phase)
        return any(one in full or one in call.name for one in _spellings(self.given))

    def names(self, call: CallName, phase: str) -> bool:
        """Whether this is the call's name, as msprobe's ``scope`` takes it; what is left out counts as
        any."""
        if self.phase is not None:
            return self.phase == phase and call.full(phase) in _spellings(self.given)
        known = (call.name, call.base, f"{call.base}.{call.number}")
        return bool({*_spellings(self.given), name_from_msprobe(self.given, self.framework)} & {*known})


@lru_cache(maxsize=1_000)
def _spellings(given: str) -> tuple[str, ...]:
    plain = _OPERATOR.sub(lambda found: f".{found[2]}{'_' if found[1] else ''}", given)
    if plain == given:
        return (given,)
    return given, plain if plain[-1].isdigit() or phase_of(given) else f"{plain}."
