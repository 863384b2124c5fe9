"""Runs a command as a replay: a free run to pair, the plan, the run with the reference's values put in, and
once more at API level inside the modules it found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from trueup.adapters.trial import Trial
from trueup.capture.launch import launch
from trueup.capture.options import CaptureOptions, Level, StepSet
from trueup.diagnosing.replay.charge import REFINED, origins
from trueup.diagnosing.replay.noise import ReplayNoise
from trueup.diagnosing.replay.pairs import of_two_implementations
from trueup.diagnosing.replay.plan import build_plan, has_api_values, require_values
from trueup.errors import ConfigError, TraceError
from trueup.store import Trace
from trueup.types.trace import OfTheProgram

FREE = "free"
Say = Callable[[str], None]

_OF_THE_PROGRAM = ("seed", "deterministic", "manual_steps", "first_step", "tracer", "functions")
"""options that shape the run itself, or tell of its code, taken over from the run that is repeated"""


def run_replay(
    command: Sequence[str],
    *,
    reference: Path,
    output: Path,
    target: Path | None = None,
    level: str = "L0",
    inside: Collection[str] = (),
    outputs_of: Collection[str] = (),
    steps: Collection[int] | None = None,
    refine: bool = True,
    noise: ReplayNoise | None = None,
    trial: Trial | None = None,
    overwrite: bool = False,
    say: Say = lambda _: None,
) -> int:
    """Run ``command`` with the reference's values in place of its own; the trace goes to ``output``.

    Args:
        command: the target's training command.
        reference: a trace that holds values.
        output: folder of the replay's trace, with ``plan`` and perhaps ``free`` and ``refined`` inside.
        target: a free run of the same command; captured into ``output/free`` when none is given.
        level: ``L0`` forces modules, ``L1`` API calls, ``mix`` both.
        inside: with API calls, only those in the own code of these modules.
        outputs_of: only what these modules give: their outputs, and the gradients of their inputs.
        steps: steps to force; by default the first of the reference that the target has too.
        refine: after a replay at L0, run again at API level inside the owners it found, where the reference
            has the values of API calls.
        noise: what a benign variant's replay shows, to tell the owners.
        trial: what is changed in the target's program meanwhile.
        overwrite: replace a trace that is there.
        say: gets what was captured, in sentences.

    Returns:
        The command's exit status, 2 where it left no replayed step.

    Raises:
        ConfigError: the command cannot be run, or the folder is in use.
        TraceError: the reference holds no values, or nothing of the two can be paired.
    """
    trusted = Trace(reference)
    require_values(trusted, level)
    chosen = _steps(trusted, steps)
    options = _options(trusted, None if target is None else Trace(target), chosen, overwrite=overwrite)
    run = _Run(command=command, reference=trusted, options=options, trial=trial, say=say)
    status = run.replay(
        output, target=target, level=Level(level), inside=inside, outputs_of=outputs_of, steps=steps
    )
    if not (refine and level == "L0" and has_api_values(trusted) and Trace(output).steps()):
        return status
    owners = {o.module for o in origins(output, reference, noise=noise)}
    called = _modules_called(Trace(output))
    owners &= called
    if owners:
        say(f"once more, at API level inside {', '.join(sorted(owners)[:4]) or '(root)'}")
        run.replay(output / REFINED, target=_with_apis(target), level=Level.MIX, inside=owners, steps=steps)
    return status


LAYOUTS_FROM = frozenset({"module", "parameter"})
"""values that are kept of a free run where the reference is another implementation: they tell how its tensors
lie"""


LABELS = frozenset({"labels", "integers"})
"""values that are kept of a replay beside those that differ: they tell what a loss was made of"""


class _Run:
    """One command, run as often as it takes."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        reference: Trace,
        options: CaptureOptions,
        trial: Trial | None,
        say: Say,
    ) -> None:
        self._command, self._reference, self._options, self._say = command, reference, options, say
        self._trial = trial

    def replay(
        self,
        output: Path,
        *,
        target: Path | None,
        level: Level,
        inside: Collection[str],
        outputs_of: Collection[str] = (),
        steps: Collection[int] | None,
    ) -> int:
        """Free run if need be, plan, replay."""
        _refuse_used(output, overwrite=self._options.overwrite)
        options = replace(self._options, output=output, level=level)
        if target is None:
            target = output / FREE
            self._run_free(replace(options, output=target))
            if of_two_implementations(Trace(target), self._reference):
                kept = replace(options, output=target, overwrite=True, store_values_of=LAYOUTS_FROM)
                self._run_free(kept)
        plan = build_plan(
            Trace(target),
            self._reference,
            output / "plan",
            level=level.value,
            inside=inside,
            outputs_of=outputs_of,
            steps=steps,
        )
        if self._trial is not None:
            self._trial.write(plan.folder)
        taken = StepSet(tuple((p.step, p.step) for p in plan.steps))
        replayed = replace(
            options,
            steps=taken,
            replay=plan.folder.absolute(),
            store_values_of=options.store_values_of | LABELS,
        )
        return launch(replayed, self._command, say=self._say, advise=False)

    def _run_free(self, options: CaptureOptions) -> None:
        """The program by itself, to learn what it calls."""
        status = launch(options, self._command, say=lambda _: None)
        if not _has_steps(options.output):
            raise ConfigError(
                f"the free run left no step (exit status {status}); does the command train, and reach "
                f"the step that is to be replayed?"
            )


def _steps(reference: Trace, wanted: Collection[int] | None) -> StepSet:
    have = list(reference.steps())
    if not have:
        raise TraceError(f"{reference.path} holds no whole step")
    missing = sorted(set(wanted or ()) - set(have))
    if missing:
        raise TraceError(
            f"{reference.path} holds no step {missing[0]}; it has {', '.join(map(str, have[:8]))}"
        )
    return StepSet(tuple((s, s) for s in (have[:1] if wanted is None else sorted(wanted))))


def _options(reference: Trace, target: Trace | None, steps: StepSet, *, overwrite: bool) -> CaptureOptions:
    """Seeds and step counting as in the run that is repeated, else as in the reference."""
    known: Mapping[str, object] = (reference if target is None else target).manifest.get("options") or {}
    same = cast("OfTheProgram", {n: known[n] for n in _OF_THE_PROGRAM if known.get(n) is not None})
    return CaptureOptions(output=Path(), steps=steps, overwrite=overwrite, **same)


def _refuse_used(output: Path, *, overwrite: bool) -> None:
    if (output / "manifest.json").exists() and not overwrite:
        raise ConfigError(
            f"{output} already holds a trace. Choose another folder with -o, or add --overwrite."
        )


def _has_steps(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and bool(Trace(folder).steps())


def _modules_called(trace: Trace) -> set[str]:
    step, ranks = next(iter(trace.steps().items()))
    calls = trace.read(step, ranks[0]).calls
    rows = zip(calls["kind"].to_list(), calls["name"].to_list(), strict=True)
    return {name for kind, name in rows if kind == "module"}


def _with_apis(target: Path | None) -> Path | None:
    """The given free run, where it saw API calls too."""
    if target is None:
        return None
    return target if Trace(target).manifest.get("level") == Level.MIX.value else None
