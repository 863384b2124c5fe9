"""Tries what is supposed to be the cause: the target is replayed once more with it changed, and what is left
of the error says whether it was.

Every module is given the reference's inputs, so that one run tries something in each module that was found.
One more run, with the reference's outputs put in at the found modules alone, says whether they explain the
loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import polars as pl

from trueup.adapters.trial import Trial
from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.replay.run import run_replay
from trueup.importers import open_trace
from trueup.store import Trace
from trueup.types.codes import ReplayCode
from trueup.types.reason import Reason, reason
from trueup.types.trace import Replayed

Settings = Mapping[str, Mapping[str, object]]
"""module -> attribute -> the reference's value"""
Run = Callable[[Trial, str], Path | None]
"""makes a replay with a trial, under a name of its own; None where there is no time for it, or it failed"""
MOST_SINGLE = 3
"""settings of one module that are tried each for itself"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one change left of a module's error."""

    module: str
    change: tuple[Reason, ...]
    left: float
    """of ``||t - r||`` over its outputs; 0: bit-identical"""
    is_unchanged: bool
    """its outputs are what they were"""

    @property
    def evidence(self) -> Reason:
        """For the evidence."""
        where = {"module": self.module}
        if self.is_unchanged:
            return reason(ReplayCode.TRIED_WITHOUT_EFFECT, *self.change, **where)
        if self.left == 0:
            return reason(ReplayCode.TRIED_AND_EQUAL, *self.change, **where)
        return reason(ReplayCode.TRIED, *self.change, left=self.left, **where)


@dataclass(slots=True, kw_only=True)
class Trials:
    """What was tried, by module; empty where nothing was."""

    of_settings: dict[str, list[Tried]] = field(default_factory=dict)
    """all that differ first; then, where that explains the error and there are several, each alone"""
    in_float32: dict[str, Tried] = field(default_factory=dict)


def try_causes(replay: Path, run: Run, *, settings: Settings, coarse: Collection[str]) -> Trials:
    """Replays with the reference's settings, and with the coarse modules' own code in float32.

    Args:
        replay: the replay that shows the errors.
        run: makes a replay with a trial.
        settings: attributes of the found modules that differ, with the reference's values.
        coarse: found modules that may round where the reference does not.
    """
    trials = Trials()
    before = _outputs(replay)
    if settings:
        made = run(Trial(settings=settings), "settings")
        for module, tried in _all_tried(before, made, settings).items():
            trials.of_settings[module] = [tried]
        several = {m: of for m, of in settings.items() if len(of) > 1 and _explains(trials, m)}
        for number, single in enumerate(_one_by_one(several)):
            made = run(Trial(settings=single), f"setting {number + 1}")
            for module, tried in _all_tried(before, made, single).items():
                trials.of_settings[module].append(tried)
    if coarse:
        made = run(Trial(in_float32=tuple(coarse)), "float32")
        for module in coarse:
            raised = _tried(before, made, module, (Reason(ReplayCode.IN_FLOAT32),))
            if raised is not None:
                trials.in_float32[module] = raised
    return trials


def _explains(trials: Trials, module: str) -> bool:
    tried = trials.of_settings.get(module, [])
    return any(not one.is_unchanged for one in tried)


def _one_by_one(settings: Settings) -> Iterator[Settings]:
    """The first setting of each module, then the second of each."""
    columns = zip_longest(*([(m, {n: v}) for n, v in of.items()] for m, of in settings.items()))
    for number, column in enumerate(columns):
        if number == MOST_SINGLE:
            return
        yield dict(one for one in column if one is not None)


def _all_tried(before: pl.DataFrame, made: Path | None, settings: Settings) -> dict[str, Tried]:
    changes = {
        module: tuple(
            reason(ReplayCode.WITH_SETTING, name=name, value=str(value)) for name, value in of.items()
        )
        for module, of in settings.items()
    }
    found = {module: _tried(before, made, module, change) for module, change in changes.items()}
    return {module: tried for module, tried in found.items() if tried is not None}


def _tried(before: pl.DataFrame, made: Path | None, module: str, change: tuple[Reason, ...]) -> Tried | None:
    """What one run left of a module's error; None where its outputs cannot be told."""
    if made is None or module not in _changed(made):
        return None
    own, other = (rows.filter(pl.col("name") == module) for rows in (before, _outputs(made)))
    if not own.height or own["place"].to_list() != other["place"].to_list():
        return None
    sizes = [_norm(rows["difference"]) for rows in (own, other)]
    if not all(map(math.isfinite, sizes)) or not sizes[0]:
        return None
    same = own["difference"].to_list() == other["difference"].to_list()
    return Tried(module=module, change=change, left=sizes[1] / sizes[0], is_unchanged=same)


def _changed(replay: Path) -> frozenset[str]:
    """The modules in which every rank changed something: of compiled code, or another framework's, none."""
    trace = Trace(replay)
    ranks = next(iter(trace.steps().values()), [])
    tried = [
        frozenset((trace.rank_facts(rank).get("replay") or Replayed()).get("tried", ())) for rank in ranks
    ]
    return frozenset.intersection(*tried) if tried else frozenset()


def _norm(differences: pl.Series) -> float:
    return math.sqrt(sum(d * d for d in differences.to_list()))


def _outputs(replay: Path) -> pl.DataFrame:
    """What modules' own code gave in the replayed step, on to the modules inside or out: ``name`` of the
    module, ``place``, and ``difference``, 0 where bit-identical; without what was left free."""
    trace, parts = Trace(replay), []
    for step, ranks in trace.steps().items():
        for rank in ranks:
            calls = trace.read(step, rank).calls.select(
                "call", "parent", "ordinal", pl.col("kind", "name").cast(pl.String)
            )
            above = calls.select(pl.col("call").alias("parent"), pl.col("name").alias("caller"))
            rows = trace.forced(step, rank).with_columns(pl.col("phase", "slot", "state").cast(pl.String))
            given, made = pl.col("slot").str.starts_with("input"), pl.col("slot").str.starts_with("output")
            parts.append(
                rows.join(calls, on="call")
                .join(above, on="parent", how="left")
                .filter(
                    pl.col("kind") == "module",
                    pl.col("phase") == "forward",
                    made | (given & pl.col("caller").is_not_null()),
                    pl.col("state") != "free",
                )
                .select(
                    name=pl.when(made).then("name").otherwise("caller"),
                    place=pl.format("{} {} {} {} {}", pl.lit(step), pl.lit(rank), "name", "ordinal", "slot"),
                    difference=pl.when(pl.col("state") == "equal").then(0.0).otherwise("difference"),
                )
            )
    kept = pl.concat(parts) if parts else pl.DataFrame(schema={"name": pl.String, "difference": pl.Float64})
    return kept.with_columns(pl.col("difference").fill_null(math.nan)).sort("name", "place")


# -- does what was found explain the loss? ------------------------------------------


def loss_with(
    command: Sequence[str], modules: Collection[str], *, target: Path, reference: Path, output: Path
) -> Reason | None:
    """What becomes of the first step's loss; None where the runs' own losses are equal, or one is not known.

    Raises:
        ConfigError, TraceError: as ``run_replay``.
    """
    own, there = _loss(target), _loss(reference)
    if own is None or there is None or own == there:
        return None
    run_replay(
        command,
        target=target,
        reference=reference,
        output=output,
        outputs_of=modules,
        refine=False,
        overwrite=True,
    )
    given = _loss(output)
    return None if given is None else closing(modules, target=own, reference=there, given=given)


def closing(modules: Collection[str], *, target: float, reference: float, given: float) -> Reason:
    """How much of the gap between two losses is closed where some modules' outputs are the reference's."""
    losses = {"target": target, "reference": reference}
    if given == reference:
        return reason(ReplayCode.LOSS_EXPLAINED, modules=tuple(modules), **losses)
    closed = 1 - abs(given - reference) / abs(target - reference)
    return reason(ReplayCode.LOSS_WITH, modules=tuple(modules), closed=closed, **losses, given=given)


def _loss(path: Path) -> float | None:
    """Of the first captured step, on the first rank."""
    trace = open_trace(path)
    step, ranks = next(iter(trace.steps().items()), (0, []))
    return scalar_line(trace, ranks[0], step).get("loss") if ranks else None
