"""Every trainable parameter has a gradient, and none is frozen where its neighbours are not."""

from __future__ import annotations

import re
from collections import defaultdict

import polars as pl

from trueup.diagnosing.checks.outcome import CheckOutcome, FunctionCheck, Judge, Place
from trueup.diagnosing.checks.run import CheckedRun

_MAX_PLACES = 8
_ROUTED = re.compile(r"(^|\.)experts?(\.|_|$)", re.IGNORECASE)
"""a parameter that only some batches reach, by design"""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    rank = next(iter(run.ranks), None)
    if rank is None:
        return judge.undecided("no whole step was captured")
    table = run.parameters(rank)
    if not table:
        return judge.undecided("the trace lists no parameters")
    trainable = [p["fqn"] for p in table if p["requires_grad"]]
    state = _gradients(run, rank)
    if not state:
        if not trainable:
            return judge.failed("no parameter requires a gradient: nothing can be trained")
        return judge.undecided("no gradient of a parameter was captured (--no-gradients, or no backward)")
    missing = [name for name in trainable if name not in state]
    zero = [name for name in trainable if state.get(name) is True]
    holes = frozen_by_mistake([(p["fqn"], bool(p["requires_grad"])) for p in table])
    unreached = [name for name in (*missing, *zero) if _ROUTED.search(name)]
    missing = [name for name in missing if name not in unreached]
    zero = [name for name in zero if name not in unreached]
    notes = _notes(table, unreached)
    numbers = {
        "parameters": len(table),
        "trainable": len(trainable),
        "missing": len(missing),
        "zero": len(zero),
        "frozen_by_mistake": len(holes),
    }
    if not (missing or zero or holes):
        num_steps = sum(rank in ranks for ranks in run.steps.values())
        sentence = (
            f"all {len(trainable):,} trainable parameters got a gradient that is not zero "
            f"in {num_steps} step{'s' * (num_steps > 1)}"
        )
        return judge.passed(sentence, numbers=numbers, notes=notes)
    parts = [
        (missing, "got no gradient at all: not used in the forward, or detached on the way to the loss"),
        (zero, "got only zeros: the way back to them is cut or multiplied by zero"),
        (holes, "is frozen while the same parameter of its neighbours is trained"),
    ]
    places = [Place(site=name, rank=rank, detail=why) for names, why in parts for name in names]
    said = [
        f"{len(names)} {words}"
        for names, words in ((missing, "without a gradient"), (zero, "with zeros only"), (holes, "frozen"))
        if names
    ]
    sentence = f"of {len(table):,} parameters, {', '.join(said)}: first {places[0].site}"
    return judge.failed(sentence, places=tuple(places[:_MAX_PLACES]), numbers=numbers, notes=notes)


def _gradients(run: CheckedRun, rank: int) -> dict[str, bool]:
    """Parameter -> whether its gradient was all zeros in every step; absent where it never had one."""
    zero: dict[str, bool] = {}
    for step, ranks in run.steps.items():
        if rank not in ranks:
            continue
        frame = run.view(step, rank).of("param_grad", "local", "accumulated", "clipped")
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


def _notes(table: list[dict[str, object]], unreached: list[str]) -> tuple[str, ...]:
    notes = []
    frozen = [p for p in table if not p["requires_grad"]]
    if frozen:
        notes.append(f"{len(frozen):,} of {len(table):,} parameters are frozen: {frozen[0]['fqn']}, ...")
    if unreached:
        notes.append(f"{len(unreached):,} parameters of experts that no token was sent to got no gradient")
    return tuple(notes)


CHECK = FunctionCheck("gradients", "Every trainable parameter has a gradient", _judge)
