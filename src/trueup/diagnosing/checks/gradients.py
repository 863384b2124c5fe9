"""Every trainable parameter has a gradient, and none is frozen where its neighbours are not."""

from __future__ import annotations

import re
from collections import defaultdict

import polars as pl

from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason
from trueup.types.trace import ParameterFacts

_MAX_PLACES = 8
_ROUTED = re.compile(r"(^|\.)experts?(\.|_|$)", re.IGNORECASE)
"""a parameter that only some batches reach, by design"""
_NEAR = 3
"""parts of a name that may differ: ``q_proj`` of ``q_proj.lora_A.default.weight`` and of lora_B's"""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


# In one piece: one branch an answer of the check.
def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    rank = next(iter(run.ranks), None)
    if rank is None:
        return judge.undecided(reason(Code.NO_STEP))
    table = run.parameters(rank)
    if not table:
        return judge.undecided(reason(Code.NO_PARAMETERS))
    evaluated = _only_evaluated(run, rank, table)
    table = [p for p in table if p["fqn"] not in evaluated]
    trainable = [p["fqn"] for p in table if p["requires_grad"]]
    state = _gradients(run, rank)
    if not state:
        if not trainable:
            return judge.failed(reason(Code.NONE_TRAINABLE))
        return judge.undecided(reason(Code.NONE_CAPTURED))
    missing = [name for name in trainable if name not in state]
    zero = [name for name in trainable if state.get(name) is True]
    holes = frozen_by_mistake([(p["fqn"], bool(p["requires_grad"])) for p in table])
    blocked = _behind_zero_weights(run, rank, zero, state)
    zero = [name for name in zero if name not in blocked]
    unreached = [name for name in (*missing, *zero) if _ROUTED.search(name)]
    missing = [name for name in missing if name not in unreached]
    zero = [name for name in zero if name not in unreached]
    notes = _notes(table, unreached)
    if evaluated:
        notes += (reason(Code.NUM_EVALUATED, num=len(evaluated), parameter=min(evaluated)),)
    if blocked:
        notes += (reason(Code.BEHIND_ZEROS, num=len(blocked), parameter=min(blocked)),)
    numbers: Measured = {
        "parameters": len(table),
        "trainable": len(trainable),
        "missing": len(missing),
        "zero": len(zero),
        "frozen_by_mistake": len(holes),
    }
    if not (missing or zero or holes):
        num_steps = sum(
            rank in ranks and _has_gradients(run, step, rank) for step, ranks in run.steps.items()
        )
        num = len(trainable) - len(unreached) - len(blocked)
        every = reason(Code.EVERY_GRADIENT, num=num, steps=num_steps)
        return judge.passed(every, numbers=numbers, notes=notes)
    parts = [
        (missing, reason(Code.MISSING)),
        (zero, reason(Code.ONLY_ZEROS)),
        (holes, reason(Code.FROZEN_HERE)),
    ]
    places = [CheckedSite(site=name, rank=rank, detail=detail) for names, detail in parts for name in names]
    sentence = reason(
        Code.SOME_GRADIENTS,
        total=len(table),
        missing=len(missing),
        zero=len(zero),
        frozen=len(holes),
        parameter=places[0].site,
    )
    return judge.failed(sentence, places=tuple(places[:_MAX_PLACES]), numbers=numbers, notes=notes)


def _only_evaluated(run: CheckedRun, rank: int, table: list[ParameterFacts]) -> frozenset[str]:
    """Parameters of models that no forward with gradients begins in: reference models, teachers, averages.

    What a training forward reaches is recorded with its values, whether used or not.
    """
    views = [run.view(step, rank) for step, ranks in run.steps.items() if rank in ranks]
    trained = {name for view in views for name in view.parameters_with("param", "value")}
    given = _gradients(run, rank).keys()
    return frozenset(p["fqn"] for p in table if trained and p["fqn"] not in trained | given)


def _behind_zero_weights(
    run: CheckedRun, rank: int, zero: list[str], state: dict[str, bool]
) -> frozenset[str]:
    """Parameters whose gradients are zeros because they go through weights that are: LoRA's second factor,
    the last norm of a residual branch, a gate, that start at zero and have gradients themselves.

    A bias adds, and lets gradients pass. Weights of the same layer, at most two modules apart, count alone.
    """
    views = [run.view(step, rank) for step, ranks in run.steps.items() if rank in ranks]
    frames = [view.frame_of("param", "value").select("name", "num_zero", "numel") for view in views]
    if not zero or not frames:
        return frozenset()
    values = (
        pl.concat(frames).group_by("name").agg((pl.col("num_zero") == pl.col("numel")).all().alias("zero"))
    )
    gates = [
        name.split(".")
        for name in values.filter(pl.col("zero"))["name"]
        if state.get(name) is False and "bias" not in name.rpartition(".")[2]
    ]
    return frozenset(
        name
        for name in zero
        if any(
            gate[:near] == name.split(".")[:near] for gate in gates for near in (max(1, len(gate) - _NEAR),)
        )
    )


_SLOTS = ("local", "accumulated", "clipped")


def _has_gradients(run: CheckedRun, step: int, rank: int) -> bool:
    return bool(run.view(step, rank).frame_of("param_grad", *_SLOTS).height)


def _gradients(run: CheckedRun, rank: int) -> dict[str, bool]:
    """Parameter -> whether its gradient was all zeros in every step; absent where it never had one."""
    zero: dict[str, bool] = {}
    for step, ranks in run.steps.items():
        if rank not in ranks:
            continue
        frame = run.view(step, rank).frame_of("param_grad", *_SLOTS)
        flags = frame.group_by("name", maintain_order=True).agg(
            (pl.col("num_zero") == pl.col("numel")).all().alias("zero")
        )
        for name, is_zero in flags.iter_rows():
            zero[name] = zero.get(name, True) and bool(is_zero)
    return zero


def frozen_by_mistake(parameters: list[tuple[str, bool]]) -> list[str]:
    """Frozen parameters of a layer among layers where the same one is trained.

    Freezing whole groups, or the first or last layers, is a choice; a hole in the middle or one odd layer is
    not.

    Example:
        >>> frozen_by_mistake([("h.0.w", True), ("h.1.w", False), ("h.2.w", True)])
        ['h.1.w']
        >>> frozen_by_mistake([("h.0.w", False), ("h.1.w", False), ("h.2.w", True)])
        []
    """
    groups: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for name, trained in parameters:
        groups[_NUMBER.sub("N", name)].append((name, trained))
    holes = []
    for members in groups.values():
        trained_at = [at for at, (_, trained) in enumerate(members) if trained]
        if trained_at:
            first, last = trained_at[0], trained_at[-1]
            holes += [name for name, trained in members[first:last] if not trained]
            rest = members[last + 1 :]
            holes += [rest[0][0]] if len(rest) == 1 and len(members) > 2 else []
    return holes


def _notes(table: list[ParameterFacts], unreached: list[str]) -> tuple[Reason, ...]:
    notes = []
    frozen = [p for p in table if not p["requires_grad"]]
    if frozen:
        first = str(frozen[0]["fqn"])
        notes.append(reason(Code.NUM_FROZEN, num=len(frozen), total=len(table), parameter=first))
    if unreached:
        notes.append(reason(Code.EXPERTS, num=len(unreached)))
    return tuple(notes)


CHECK = FunctionCheck("gradients", "Every trainable parameter has a gradient", _judge)
