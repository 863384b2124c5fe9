"""``trueup check-run --compile-parity``: does a compiled run compute what the program computes uncompiled?"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trueup.capture.launch import launch
from trueup.capture.options import CaptureOptions, StepSet
from trueup.capture.presets import PRESETS
from trueup.comparing.run import compare
from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, Judge, Measured
from trueup.diagnosing.noise_fold import NoiseFold
from trueup.errors import ConfigError, NothingCompared
from trueup.store import Trace
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome, Status

COMPILED, EAGER, RESULT = "compiled", "eager", "compiled-vs-eager"
_NOISE_SEEDS = (0, 1)
_MAX_PLACES = 5
_ROOT = "(root)"


def capture_pair(
    command: Sequence[str],
    folder: Path,
    steps: StepSet,
    *,
    seed: int | None,
    overwrite: bool,
    to_the_end: bool,
    say: Callable[[str], None],
) -> tuple[Trace, Trace]:
    """Capture the program compiled and eager, and what rounding does to the eager one.

    Raises:
        ConfigError: a run ended with an error, or nothing of it was captured.
    """
    plain = PRESETS["diagnose"](CaptureOptions(output=folder, seed=seed, overwrite=overwrite))
    plain = replace(plain, steps=steps)

    def captured(name: str, **more: Any) -> Trace:
        options = replace(plain, output=folder / name, **more)
        last: list[str] = []
        status = launch(options, command, say=last.append, stop_when_captured=not to_the_end, advise=False)
        if status or not Trace(options.output).steps():
            raise ConfigError(f"the {name} run failed: {last[-1] if last else f'exit status {status}'}")
        return Trace(options.output)

    say("1 of 4: as it is, every compiled region measured")
    compiled = captured(COMPILED, compiled="measured")
    if not any(_facts(compiled, rank).get("regions") for rank in _ranks(compiled)):
        return compiled, compiled
    say("2 of 4: uncompiled")
    eager = captured(EAGER, compiled="eager")
    fold = NoiseFold(eager)
    for number, noise_seed in enumerate(_NOISE_SEEDS):
        say(f"{number + 3} of 4: uncompiled, changed by rounding")
        rerun = captured(f"{EAGER}-{number}", compiled="eager", perturb=noise_seed, overwrite=True)
        fold.add(rerun, perturbed=True)
        shutil.rmtree(rerun.path)
    fold.profile(command=list(command)).write(eager.path)
    return compiled, eager


def parity(compiled: Trace, eager: Trace) -> list[CheckOutcome]:
    """What the two runs say; one trace twice where nothing was compiled.

    Raises:
        TraceError: a trace cannot be read.
    """
    regions = [
        (rank, one) for rank in _ranks(compiled) for one in _facts(compiled, rank).get("regions") or []
    ]
    judges = (
        Judge("regions", "Every compiled region computes what its operations compute one by one"),
        Judge("compiled_run", "The compiled run agrees with the eager run: boundaries, gradients, weights"),
        Judge("compilation", "Graph breaks and recompiles"),
    )
    if not regions:
        return [judge.nothing(reason(Code.NOTHING_COMPILED)) for judge in judges]
    return [
        _judge_regions(judges[0], regions),
        _judge_runs(judges[1], compiled, eager, regions),
        _counted(judges[2], compiled, regions),
    ]


_Region = Mapping[str, Any]


def _judge_regions(judge: Judge, regions: Sequence[tuple[int, _Region]]) -> CheckOutcome:
    measured = [(rank, one) for rank, one in regions if any(map(_is_known, _rows(one)))]
    rows = [row for _, one in measured for row in _rows(one) if _is_known(row)]
    most, known = _most(regions), _most(measured)
    largest = max((_excess(row) for row in rows), default=0.0)
    numbers: Measured = {
        "regions": len(regions),
        "measured": len(measured),
        "tensors": len(rows),
        "times_allowed": largest,
    }
    skipped = tuple(
        reason(Code.REGION_SKIPPED, region=one["region"], site=one["module"] or _ROOT, why=one["skipped"])
        for _, one in regions
        if one["skipped"]
    )
    beyond = [(rank, place) for rank, one in regions for place in _places(rank, one)]
    if beyond:
        found = [place for _, place in beyond]
        sentence = reason(Code.REGION_DIFFERS, num=_most(beyond), site=found[0].site)
        return judge.failed(
            sentence,
            places=tuple(found[:_MAX_PLACES]),
            numbers=numbers,
            notes=skipped,
            next=reason(Code.COMPILE_OTHERWISE),
        )
    unknown = [(rank, one) for rank, one in regions if (rank, one) not in measured or one["skipped"]]
    if unknown:
        return judge.undecided(
            reason(Code.REGIONS_UNKNOWN, num=_most(unknown), total=most), numbers=numbers, notes=skipped
        )
    return judge.passed(_agreeing(rows, known, largest), numbers=numbers)


def _agreeing(rows: Sequence[_Region], num_regions: int, largest: float) -> Reason:
    backward = any(str(row["name"]).startswith("gradient") for row in rows)
    return reason(
        Code.REGIONS_AGREE, num=len(rows), regions=num_regions, times=largest, has_gradients=backward
    )


def _rows(region: _Region) -> list[_Region]:
    return [row for call in region["calls"] for row in call["tensors"]]


def _is_known(row: _Region) -> bool:
    """Whether rounding explains a finite difference: eager numbers that are not finite allow any."""
    return math.isfinite(row["allowed"])


def _most(held: Sequence[tuple[int, object]]) -> int:
    """How many a rank has, of the rank that has most."""
    return max(Counter(rank for rank, _ in held).values(), default=0)


def _places(rank: int, region: _Region) -> Iterator[CheckedSite]:
    """The first call of a region that is beyond rounding, and its generated sources."""
    for call in region["calls"]:
        beyond = [row for row in call["tensors"] if _excess(row) > 1]
        if not beyond:
            continue
        worst = max(beyond, key=_excess)
        operation = call.get("operation") or {}
        inner = ".".join(part for part in (call["module"], operation.get("module", "")) if part)
        facts = {
            "region": region["region"],
            "operation": operation.get("operation"),
            "phase": operation.get("phase") or _phase(beyond),
            "tensor": worst["name"],
            "rel_l2": worst["difference"] / worst["norm"] if worst["norm"] else float("inf"),
            "times": _excess(worst),
            "num": len(beyond),
            "total": len(call["tensors"]),
            "function": region["function"],
            "files": list(region["code"]),
        }
        yield CheckedSite(
            site=inner or _ROOT,
            step=call["step"],
            rank=rank,
            source=operation.get("source") or None,
            detail=reason(Code.REGION_TENSOR, **facts),
        )
        return


def _phase(beyond: Sequence[_Region]) -> str:
    gradients = all(str(row["name"]).startswith("gradient") for row in beyond)
    return "backward" if gradients else "forward"


def _excess(row: _Region) -> float:
    """Times the difference that rounding explains; 0 where that is not known."""
    if not _is_known(row):
        return 0.0
    if row["allowed"]:
        return float(row["difference"] / row["allowed"])
    return float("inf") if row["difference"] else 0.0


def _judge_runs(
    judge: Judge, compiled: Trace, eager: Trace, regions: Sequence[tuple[int, _Region]]
) -> CheckOutcome:
    try:
        compared = compare(compiled.path, eager.path, output=compiled.path.parent / RESULT)
    except NothingCompared as error:
        return judge.undecided(reason(Code.RUNS_NOT_COMPARED, why=str(error)))
    verdict = compared.verdict
    statuses = compared.frame()["status"].cast(str)
    numbers: Measured = {str(name): int(number) for name, number in statuses.value_counts().iter_rows()}
    if verdict.outcome is Outcome.AGREE:
        num = statuses.is_in([Status.EQUAL.value, Status.WITHIN_NOISE.value]).sum()
        return judge.passed(reason(Code.RUNS_AGREE, num=num), numbers=numbers)
    place = CheckedSite(
        site=verdict.where or verdict.owner or _ROOT,
        step=verdict.step,
        rank=verdict.rank,
        detail=_region_around(verdict.owner or "", regions),
    )
    sentence = reason(Code.RUNS_DIFFER, verdict.headline)
    decide = judge.failed if verdict.outcome is Outcome.DIFFER else judge.undecided
    return decide(sentence, places=(place,) if verdict.where else (), numbers=numbers)


def _region_around(module: str, regions: Sequence[tuple[int, _Region]]) -> Reason | None:
    """The innermost region that the module is computed in."""
    around = [
        one
        for _, one in regions
        if one["calls"] and one.get("in_module", True)
        if not one["module"] or module == one["module"] or module.startswith(f"{one['module']}.")
    ]
    if not around:
        return None
    region = max(around, key=lambda one: len(one["module"]))
    return reason(
        Code.IN_REGION, region=region["region"], function=region["function"], files=list(region["code"])
    )


def _counted(judge: Judge, compiled: Trace, regions: Sequence[tuple[int, _Region]]) -> CheckOutcome:
    facts = [_facts(compiled, rank) for rank in _ranks(compiled)]
    breaks: dict[str, int] = {}
    for one in facts:
        for why, number in (one.get("graph_breaks") or {}).items():
            breaks[why] = max(breaks.get(why, 0), int(number))
    recompiles = max((int(one.get("recompiles") or 0) for one in facts), default=0)
    most = _most(regions)
    numbers: Measured = {"regions": most, "graph_breaks": sum(breaks.values()), "recompiles": recompiles}
    notes = tuple(reason(Code.GRAPH_BREAK, why=why, num=number) for why, number in breaks.items())
    return judge.passed(
        reason(Code.COMPILATIONS, regions=most, breaks=sum(breaks.values()), recompiles=recompiles),
        numbers=numbers,
        notes=(*notes[:_MAX_PLACES], reason(Code.EAGER_RANDOM_NUMBERS)),
    )


def _ranks(trace: Trace) -> list[int]:
    return sorted({rank for ranks in trace.steps().values() for rank in ranks})


def _facts(trace: Trace, rank: int) -> dict[str, Any]:
    facts: Mapping[str, Any] = trace.rank_facts(rank)
    return dict(facts.get("compiled") or {})
