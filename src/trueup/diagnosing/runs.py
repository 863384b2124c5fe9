"""The runs of the target's program that a diagnosis makes on its way: with the reference's values, with its
gradients, with a supposed cause changed."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from trueup.adapters.trial import Trial
from trueup.comparing.result import Comparison
from trueup.diagnosing.gradients import run_gradient_replay
from trueup.diagnosing.replay.trials import Trials, loss_with, try_causes
from trueup.diagnosing.stages import Context
from trueup.diagnosing.stages.tried import to_try
from trueup.errors import ConfigError, TraceError
from trueup.importers import open_trace
from trueup.store import TraceSource
from trueup.store.rollouts import is_trace
from trueup.store.same_rows import MASK
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Finding
from trueup.types.reason import Reason, reason


@dataclass(slots=True)
class Clock:
    """Seconds each part took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


@dataclass(slots=True, kw_only=True)
class AuxiliaryRuns:
    """The runs a diagnosis makes on its way."""

    target: Path
    reference: Path
    sources: tuple[TraceSource, TraceSource]
    output: Path
    clock: Clock
    say: Callable[[str], None]
    notes: list[Reason] = field(default_factory=list)

    def replayed(self, command: Sequence[str]) -> Path | None:
        """A replay with the reference's values put in at every matched module."""
        from trueup.diagnosing.replay import run_replay

        self.say("replaying the target with the reference's values put in")
        folder = self.output / "replay"
        with self.clock.part("replay"):
            try:
                status = run_replay(
                    command,
                    target=self.target,
                    reference=self.reference,
                    output=folder,
                    overwrite=True,
                    say=lambda _: None,
                )
            except TraceError as error:
                self.notes.append(reason(Stages.REPLAY_FAILED, error=str(error)))
                return None
        return self._made(folder, status, "replay")

    def given(self, command: Sequence[str]) -> Path | None:
        """A run that clips and steps with the reference's gradients."""
        folder = self.output / "gradients"
        self.say("running the target with the reference's gradients put in before clipping")
        with self.clock.part("gradients"):
            try:
                status = run_gradient_replay(
                    command,
                    reference=self.sources[1],
                    target=self.sources[0],
                    output=folder,
                    overwrite=True,
                )
            except (TraceError, ConfigError) as error:
                self.notes.append(reason(Stages.GRADIENTS_FAILED, error=str(error)))
                return None
        return self._made(folder, status, "gradient replay")

    def tried(self, context: Context, replay: Path, command: Sequence[str], budget: float) -> Trials:
        """What the supposed causes of the first errors of the forward pass explain."""

        def run(trial: Trial, name: str) -> Path | None:
            folder = self.output / "trials" / name.replace(" ", "_")
            return folder if self._trial_made(folder, trial, command, budget) else None

        settings, coarse = to_try(context)
        return try_causes(replay, run, settings=settings, coarse=coarse)

    def _trial_made(self, folder: Path, trial: Trial, command: Sequence[str], budget: float) -> bool:
        from trueup.diagnosing.replay import run_replay

        if not self._has_time(budget):
            return False
        self.say(f"replaying the target with what is supposed to be the cause changed ({folder.name})")
        with self.clock.part("trials"), _errors_to(self.output / "trials.log"):
            try:
                run_replay(
                    command,
                    target=self.target,
                    reference=self.reference,
                    output=folder,
                    trial=trial,
                    refine=False,
                    overwrite=True,
                )
            except (TraceError, ConfigError) as error:
                self.notes.append(reason(Stages.REPLAY_FAILED, error=str(error)))
                return False
        return is_trace(folder) and bool(open_trace(folder).steps())

    def _has_time(self, budget: float) -> bool:
        """Whether what is left of the budget is as long as the replay has taken."""
        spent = self.clock.seconds.get("trials", 0.0)
        return self.clock.seconds.get("replay", math.inf) <= budget - spent

    def confirmed(
        self,
        findings: tuple[Finding, ...],
        places: tuple[Finding, ...],
        command: Sequence[str],
        budget: float,
    ) -> tuple[Finding, ...]:
        """With what becomes of the loss where the outputs of the found modules alone are the reference's;
        ``places`` are the findings before those of one cause were put together."""
        first = places[0] if places else None
        found = [o for o in places if o.phase == "forward" and o.module and o.basis is Basis.REPLAY]
        if first not in found or not command or not self._has_time(budget):
            return findings
        modules = dict.fromkeys(str(one.module) for one in found if one.step == found[0].step)
        self.say("running the target with the reference's values put in at what was found alone")
        with self.clock.part("confirmation"):
            try:
                seen = loss_with(
                    command,
                    modules,
                    target=self.target,
                    reference=self.reference,
                    output=self.output / "closing",
                )
            except (TraceError, ConfigError) as error:
                self.notes.append(reason(Stages.REPLAY_FAILED, error=str(error)))
                return findings
        if seen is None:
            return findings
        evidence = (*findings[0].evidence[:1], seen, *findings[0].evidence[1:])
        return (replace(findings[0], evidence=evidence), *findings[1:])

    def made_or_given(
        self, replay: Path | None, command: Sequence[str], comparison: Comparison
    ) -> Path | None:
        """The replay that is given, else one made now where the runs differ; none where nothing fits."""
        if (command or replay) and is_given_other_shapes(comparison):
            self.notes.append(reason(Stages.SHAPES_DIFFER))
            return None
        return replay if replay or not command or is_equal(comparison) else self.replayed(command)

    def _made(self, folder: Path, status: int, what: str) -> Path | None:
        if (folder / "manifest.json").exists() and open_trace(folder).steps():
            if status:
                self.notes.append(reason(Stages.EXIT_STATUS, status=status, run=what))
            return folder
        self.notes.append(reason(Stages.NO_STEP_LEFT, status=status, run=what))
        return None


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """What a program prints as an error goes to ``log``: a setting alone of several may not fit the others,
    and the program ends by an exception that is none of its own."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        if not log.stat().st_size:
            log.unlink()


def is_given_other_shapes(comparison: Comparison) -> bool:
    """Whether the model is given inputs of other shapes in the first step: nothing of the reference fits
    then, and what has one shape whatever the batch, a loss or a weight's gradient, was made of other values.
    Masks have many forms, and a size of 1 stands for any."""
    words = ("name", "kind", "phase", "slot", "mode")
    rows = comparison.frame().with_columns(pl.col(words).cast(pl.String))
    given = rows.filter(
        pl.col("step") == pl.col("step").min(),
        pl.col("name") == "",
        pl.col("kind") == "module",
        pl.col("phase") == "forward",
        pl.col("mode") == "train",
        pl.col("slot").str.starts_with("input") & ~pl.col("slot").str.contains(MASK),
    )
    shapes = given.select("target_shape", "reference_shape").drop_nulls().iter_rows()
    return any(len(a) == len(b) and a != b and 1 not in (*a, *b) for a, b in shapes)


def is_equal(comparison: Comparison) -> bool:
    """Whether every record is bit-identical: nothing is left to replay."""
    counts = comparison.summary["counts"]
    names = ("different", "origin", "amplified", "propagated", "within_noise")
    others = sum(number for name in names if isinstance(number := counts.get(name), int))
    return others == 0 and comparison.exit_code == 0
