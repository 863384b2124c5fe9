"""Runs made by hand, one call a parameter, and what a stage of a diagnosis is given of two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.comparing.traces import Recorder
from tests.diagnosing.usual_causes import check_finding
from trueup.comparing.run import compare_sources
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.store import RunWriter, Trace
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, WEIGHT
from trueup.types.codes import Code, GivenCode
from trueup.types.finding import Finding, Stage
from trueup.types.reason import Reason, reason

Array = NDArray[Any]
Slots = Mapping[tuple[str, str], Array | Sequence[Array]]
"""phase and slot -> what stands there; one a microbatch where there are several"""


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape or (8, 8)).astype(np.float32)


def gradients(seed: int, factor: float = 1.0, *, before: float = 1.0) -> Slots:
    """Of one backward, multiplied by a factor between it and the optimizer."""
    made = drawn(seed) * np.float32(before)
    return {WEIGHT: drawn(seed + 100), LOCAL: made, ACCUMULATED: made, CLIPPED: made * np.float32(factor)}


def step(
    parameters: Mapping[str, Slots], *, inputs: Sequence[Array] = (), loss: float | None = None
) -> Recorder:
    """A step of these parameters; ``inputs``: what the model is given, one a microbatch."""
    out = Recorder()
    calls = {name: out.call("parameter", name) for name in parameters}
    _held(out, calls, parameters, "param")
    for microbatch, given in enumerate(inputs):
        root = out.call("module", "", type_="Net", microbatch=microbatch)
        out.record(root, "forward", "input.0", given, microbatch=microbatch)
    if loss is not None:
        out.record(out.call("loss", "loss"), "loss", "value", np.array(loss, np.float32))
    _held(out, calls, parameters, "param_grad")
    _held(out, calls, parameters, "optimizer")
    return out


def _held(out: Recorder, calls: Mapping[str, int], parameters: Mapping[str, Slots], phase: str) -> None:
    for name, slots in parameters.items():
        for (at, slot), held in slots.items():
            if at == phase:
                for microbatch, one in enumerate(held if isinstance(held, (list, tuple)) else [held]):
                    out.record(calls[name], at, slot, one, microbatch=microbatch)


def run(
    path: Path,
    *steps: Recorder | Sequence[Recorder],
    lines: Iterable[Mapping[str, Any]] = (),
    facts: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Trace:
    """The trace of these steps, of several ranks where a step is a sequence; ``lines`` of scalars are every
    rank's, but for those that name one."""
    ranks = 1
    for number, made in enumerate(steps):
        held = [made] if isinstance(made, Recorder) else made
        ranks = len(held)
        for rank, one in enumerate(held):
            one.write(path, step=number, rank=rank, values=True, world_size=ranks, **manifest)
    for rank in range(ranks):
        writer = RunWriter(path, rank=rank)
        writer.write_rank({"rank": rank, **(facts or {})})
        for number, line in enumerate(lines):
            if line.get("rank", rank) == rank:
                writer.append_scalars({"step": number, **line})
    return Trace(path)


def context_of(target: Trace, reference: Trace, **more: Any) -> Context:
    """What a stage is given."""
    return Context(target=target, reference=reference, comparison=compare_sources(target, reference), **more)


def passed(stage: Stage, status: StageStatus = StageStatus.PASSED) -> StageOutcome:
    """A stage that came before."""
    said = reason(GivenCode.TEXT, text="")
    return StageOutcome(stage=stage, title=said, status=status, conclusion=said)


def said_by(findings: Iterable[Finding]) -> list[Reason]:
    """All that findings say, and what they are made of; their causes are of their kinds."""
    found: list[Reason] = []
    for one in findings:
        check_finding(one)
        said = (one.headline, *one.evidence, *one.counter_evidence, *one.causes, one.next_note)
        found += [*(each for each in said if each is not None), *(kind.sentence for kind in one.kinds)]
    return found


def facts_of(said: Iterable[Reason], code: Code) -> dict[str, Any] | None:
    """The facts of the first conclusion with a code, wherever it stands; None where there is none."""
    for one in said:
        if one.code is code:
            return dict(one.facts)
        inside = facts_of(one.parts, code)
        if inside is not None:
            return inside
    return None


def codes_of(said: Iterable[Reason]) -> set[Code]:
    """All codes, of parts too."""
    return {code for one in said for code in (one.code, *codes_of(one.parts))}
