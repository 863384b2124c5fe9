"""Names of a dump's entries taken apart and put together, and the two spellings of functions and dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

FORWARD, BACKWARD, PARAMETERS_GRAD = "forward", "backward", "parameters_grad"
_MODULE_PREFIXES = ("Module", "Cell")

_PYTORCH = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Distributed": "torch.distributed",
    "VF": "torch._VF",
    "Aten": "torch.ops.aten",
    "NPU": "torch_npu",
    "MindSpeed": "mindspeed.ops",
    "Torch": "torch",
}
_MINDSPORE = {
    "Functional": "mindspore.ops",
    "Tensor": "mindspore.Tensor",
    "Distributed": "mindspore.communication.comm_func",
    "MintDistributed": "mindspore.mint.distributed",
    "MintFunctional": "mindspore.mint.nn.functional",
    "Primitive": "mindspore.ops.Primitive",
    "Jit": "mindspore.jit",
    "Mint": "mindspore.mint",
}
_COLLECTIVE_PREFIXES = frozenset({"Distributed", "MintDistributed"})
_OTHER_HOMES = {
    "torch._C._nn": "Functional",
    "torch._C._VariableFunctions": "Torch",
    "torch.functional": "Torch",
}

_SHORT_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryName:
    """What the key of one entry says.

    ``call`` names the call the entry belongs to, in any phase: the key the forward entry has.
    """

    call: str
    kind: str
    """``module``, ``api`` or ``collective``"""
    name: str
    """module: its fqn; function: its qualified name"""
    type: str | None
    ordinal: int
    """how many calls of this name came before in the step; for ``parameters_grad`` how many accumulations"""
    phase: str
    """``forward``, ``backward`` or ``parameters_grad``"""


def entry_name(key: str, framework: str) -> EntryName:
    """Take a key of ``dump.json`` apart. A key of no known form is a function of that name, called forward.

    Example:
        >>> entry_name("Module.layers.0.ln1.LayerNorm.backward.0", "pytorch").name
        'layers.0.ln1'
        >>> entry_name("Tensor.__add__.3.forward", "pytorch").name
        'torch.Tensor.__add__'
    """
    prefix, _, rest = key.partition(".")
    if prefix in _MODULE_PREFIXES:
        module = _module_entry(key, prefix, rest)
        if module is not None:
            return module
    head, _, phase = key.rpartition(".")
    base, _, number = head.rpartition(".")
    if phase not in (FORWARD, BACKWARD) or not number.isdecimal() or "." not in base:
        return EntryName(call=key, kind="api", name=key, type=None, ordinal=0, phase=FORWARD)
    prefix, _, function = base.partition(".")
    home = _homes(framework).get(prefix, prefix)
    return EntryName(
        call=f"{head}.{FORWARD}",
        kind="collective" if prefix in _COLLECTIVE_PREFIXES else "api",
        name=f"{home}.{function}",
        type=None,
        ordinal=int(number),
        phase=phase,
    )


def _module_entry(key: str, prefix: str, rest: str) -> EntryName | None:
    parts = rest.split(".")
    if parts[-1] == PARAMETERS_GRAD:  # older dumps do not number them
        parts.append("0")
    if len(parts) < 4 or not parts[-1].isdecimal() or parts[-2] not in (FORWARD, BACKWARD, PARAMETERS_GRAD):
        return None
    fqn, kind, phase, number = ".".join(parts[:-3]), parts[-3], parts[-2], parts[-1]
    call = key if phase == FORWARD else f"{prefix}.{fqn}.{kind}.{FORWARD}.{number}"
    return EntryName(call=call, kind="module", name=fqn, type=kind, ordinal=int(number), phase=phase)


def module_base(name: str, type_name: str, framework: str) -> str:
    """``Module.<fqn>.<Class>``, the part of a module's keys before the phase."""
    return f"{'Cell' if framework == 'mindspore' else 'Module'}.{name}.{type_name}"


@lru_cache(maxsize=100_000)
def function_base(name: str, framework: str) -> str:
    """``<Prefix>.<function>`` for a qualified name; ``Torch`` or ``Mint`` where its home is unknown.

    Example:
        >>> function_base("torch.nn.functional.linear", "pytorch")
        'Functional.linear'
    """
    home, _, function = name.rpartition(".")
    prefixes = {there: prefix for prefix, there in _homes(framework).items()} | _OTHER_HOMES
    inner = ""
    while home:
        if home in prefixes:
            return f"{prefixes[home]}.{inner}{function}"
        home, _, last = home.rpartition(".")
        inner = f"{last}.{inner}" if name.startswith(("torch.ops.aten.", "mindspore.ops.Primitive.")) else ""
    if name.partition(".")[0] in _homes(framework):  # a prefix we did not know was kept as it came
        return name
    return f"{'Mint' if framework == 'mindspore' else 'Torch'}.{function or name}"


def _homes(framework: str) -> dict[str, str]:
    return _MINDSPORE if framework == "mindspore" else _PYTORCH


@lru_cache(maxsize=1_000)
def dtype_from_dump(spelled: str) -> str:
    """Our name of a dtype.

    Example:
        >>> dtype_from_dump("torch.bfloat16"), dtype_from_dump("BFloat16"), dtype_from_dump("Float32")
        ('bfloat16', 'bfloat16', 'float32')
    """
    word = spelled.rpartition(".")[2].lower().removesuffix("_")
    return _SHORT_DTYPES.get(word, word)


@lru_cache(maxsize=1_000)
def dtype_for_dump(dtype: str, framework: str) -> str:
    """msprobe's name of a dtype.

    Example:
        >>> dtype_for_dump("bfloat16", "pytorch"), dtype_for_dump("bfloat16", "mindspore")
        ('torch.bfloat16', 'BFloat16')
    """
    if framework != "mindspore":
        return f"torch.{dtype}"
    if dtype.startswith("bfloat"):
        return "BF" + dtype[2:]
    if dtype.startswith("uint"):
        return "UI" + dtype[2:]
    return dtype[:1].upper() + dtype[1:]
