"""Evidence put together from real tensors at hand: one origin, two sides, what stands around it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueup.diagnosing.evidence import Evidence, Known, SlotPair, Surroundings
from trueup.diagnosing.evidence.facts import NUMBERS
from trueup.numerics.digest import digest
from trueup.numerics.dtypes import dtype_of
from trueup.numerics.sketch import sketch
from trueup.numerics.statistics import statistics
from trueup.types.codes import Code
from trueup.types.finding import Basis, EvidenceRank, Kind, Origin, Stage
from trueup.types.reason import Reason

_STAGES = {
    "forward": Stage.FORWARD,
    "backward": Stage.BACKWARD,
    "param_grad": Stage.BACKWARD,
    "optimizer": Stage.OPTIMIZER,
    "param": Stage.WEIGHTS,
    "loss": Stage.LOSS,
}


def origin(
    *, phase: str = "forward", slot: str = "output.0", module: str = "layers.0", **given: Any
) -> Origin:
    """An origin with everything that a test does not care about filled in."""
    plain: dict[str, Any] = {
        "stage": _STAGES[phase],
        "module": module,
        "site": f"{module}, {slot}",
        "phase": phase,
        "slot": slot,
        "step": 1,
        "rank": 0,
        "microbatch": 0,
        "order": 0,
        "score": 100.0,
        "rel_l2": None,
        "tolerance": None,
        "basis": Basis.REPLAY,
        "target_record": None,
        "reference_record": None,
    }
    return Origin(**{**plain, **given})


def from_array(array: Any, *, name: str, dtype: str | None = None) -> Known:
    """A tensor at hand, summarised by the definitions of ``numerics``; bfloat16 as uint16 with its name."""
    array = np.asarray(array)
    entry = dtype_of(array, dtype)
    summary = statistics(array, entry.name)
    return Known(
        name,
        dtype=entry.name,
        shape=tuple(array.shape),
        statistics={number: float(summary[number]) for number in NUMBERS},
        sketch=np.asarray(sketch(array, dtype=entry.name), np.float64),
        raw=lambda: array,
    )


def summary_only(one: Known, *, sketches: bool = True) -> Known:
    """The same tensor as a run without stored values would have left it."""
    bits = one.digest
    if bits is None and one.raw is not None:
        bits = digest(one.raw, dtype=one.dtype)
    return Known(
        one.name,
        dtype=one.dtype,
        shape=one.shape,
        statistics=one.statistics,
        digest=bits,
        sketch=one.sketch if sketches else None,
    )


def known(tensor: Tensor | np.ndarray[Any, Any], name: str = "output.0") -> Known:
    """A torch or numpy tensor as evidence holds it."""
    if isinstance(tensor, np.ndarray):
        return from_array(tensor, name=name)
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().contiguous()
    if dtype == "bfloat16":
        return from_array(plain.view(torch.int16).numpy().view(np.uint16), name=name, dtype=dtype)
    return from_array(plain.numpy(), name=name, dtype=dtype)


def pair(slot: str, target: Any = None, reference: Any = None) -> SlotPair:
    """One slot on both sides; the reference's is the target's where only one is given."""
    reference = target if reference is None else reference
    return SlotPair(
        slot=slot,
        target=None if target is None else known(target, slot),
        reference=None if reference is None else known(reference, slot),
    )


def case(
    target: Any,
    reference: Any,
    *,
    kept: str = "values",
    surroundings: Surroundings | None = None,
    **given: Any,
) -> Evidence:
    """Evidence about two tensors; ``kept``: what the runs kept of them, values, sketch or statistics."""
    parts = {
        n: given.pop(n)
        for n in ("elsewhere", "parameter", "target_run", "reference_run", "repeat", "dtypes_in_code")
        if n in given
    }
    extra = {n: given.pop(n) for n in ("requires_grad",) if n in given}
    sides = [None if t is None else known(t, "output.0") for t in (target, reference)]
    if kept != "values":
        sides = [None if k is None else summary_only(k, sketches=kept == "sketch") for k in sides]
    loaders = {name: (lambda value=value: value) for name, value in parts.items()}
    if surroundings is not None:
        loaders["surroundings"] = lambda: surroundings
    return Evidence(
        origin(**given), SlotPair(slot="output.0", target=sides[0], reference=sides[1]), **loaders, **extra
    )


def best(kinds: tuple[Kind, ...]) -> str | None:
    """Name of the first."""
    return kinds[0].name.value if kinds else None


def rank(kinds: tuple[Kind, ...], name: str) -> int:
    """Of the evidence for a kind, 0 the strongest; beyond the weakest where it is not named."""
    return next((k.rank.place for k in kinds if k.name == name), len(EvidenceRank))


def tells(one: Reason, *codes: Code, **facts: float | str | tuple[str, ...]) -> bool:
    """Whether a conclusion, or one that it is made of, has one of these codes (none: any) and these facts;
    numbers to two per cent."""

    def alike(value: object, known: float | str | tuple[str, ...]) -> bool:
        if isinstance(known, (str, tuple)) or not isinstance(value, (int, float)):
            return value == known
        return math.isclose(value, known, rel_tol=0.02)

    here = (not codes or one.code in codes) and all(
        alike(one.facts.get(name), known) for name, known in facts.items()
    )
    return here or any(tells(part, *codes, **facts) for part in one.parts)


def told(kinds: tuple[Kind, ...]) -> list[object]:
    """What a failing test shows: kinds, ranks and codes."""
    return [(k.name.value, k.rank.value, k.measure, k.sentence) for k in kinds]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
