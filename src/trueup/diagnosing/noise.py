"""Measures how far a reference run is from itself: runs its program again, as it was and changed by rounding.

Each rerun is captured as the reference was, compared with it record by record, folded into the profile and
removed; no more than one of them is on disk at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from trueup.capture.launch import launch
from trueup.capture.options import CaptureOptions, StepSet
from trueup.capture.presets import PRESETS
from trueup.capture.tracer import Tracer
from trueup.comparing.noise import NoiseProfile
from trueup.diagnosing.noise_fold import NoiseFold
from trueup.diagnosing.noise_options import NoiseOptions
from trueup.errors import ConfigError
from trueup.store import Trace
from trueup.store.layout import MANIFEST


def measure_noise(
    reference: Path, command: Sequence[str], options: NoiseOptions, *, say: Callable[[str], None]
) -> NoiseProfile:
    """Rerun ``command``, the program of the trace at ``reference``, and leave the profile beside the trace.

    Raises:
        TraceError: the reference is not a trace of trueup.
        ConfigError: a rerun ended with an error, or left no trace.
        NothingCompared: the reruns have no step or record in common with the reference.
    """
    trace = Trace(reference)
    fold = NoiseFold(trace, options.steps)
    with _folder(options.keep) as folder:
        for number, seed in enumerate(options.seeds):
            how = "plain" if seed is None else f"changed by rounding, seed {seed}"
            say(f"rerun {number + 1} of {len(options.seeds)}: {how}")
            path = folder / f"{'repeat' if seed is None else 'perturbed'}-{number}"
            rerun_program(trace, command, path, steps=options.steps, seed=seed)
            fold.add(Trace(path), perturbed=seed is not None)
            if options.keep is None:
                shutil.rmtree(path)
    profile = fold.profile(command=list(command))
    profile.write(reference)
    return profile


def noise_reruns(
    reference: str | Path, *, perturbed: int = 3, repeats: int = 1, seed: int = 0
) -> Iterator[Tracer]:
    """Tracers to train again under, in the process that trained; after the last the profile of their noise
    lies beside the trace at ``reference``, as ``trueup noise`` leaves it.

    What is run under each must be the whole training: it seeds itself and builds its model anew.

    Args:
        reference: the trace of the run that is trusted.
        perturbed: reruns with weights and inputs changed by rounding.
        repeats: plain reruns.
        seed: seed of the first perturbed rerun.

    Raises:
        TraceError: the reference is not a trace of trueup.
        ConfigError: a number below 0, no rerun at all, or a rerun that left no trace.
        NothingCompared: the reruns have no step or record in common with the reference.

    Example:
        >>> with trueup.Tracer("runs/reference"):                        # doctest: +SKIP
        ...     train()
        >>> for tracer in trueup.noise_reruns("runs/reference"):         # doctest: +SKIP
        ...     with tracer:
        ...         train()
    """
    options = NoiseOptions(num_perturbed=perturbed, num_repeats=repeats, first_seed=seed)
    trace = Trace(Path(reference))
    fold = NoiseFold(trace)
    with _folder(None) as folder:
        for number, changed in enumerate(options.seeds):
            rerun = rerun_options(trace, folder / str(number), steps=None, seed=changed)
            tracer = Tracer.from_options(rerun)
            yield tracer
            tracer.close()
            if not (rerun.output / MANIFEST).exists():
                raise ConfigError(
                    f"rerun {number + 1} left no trace: train inside it, for tracer in "
                    "trueup.noise_reruns(...): with tracer: train()"
                )
            fold.add(Trace(rerun.output), perturbed=changed is not None)
            shutil.rmtree(rerun.output)
    fold.profile(command=list(trace.manifest.get("command") or [])).write(trace.path)


def capture_reference(command: Sequence[str], output: Path) -> None:
    """Capture the program that is trusted, with all that a diagnosis asks for.

    Raises:
        ConfigError: the folder holds something, or the program ended with an error.
    """
    if output.exists() and any(output.iterdir()):
        raise ConfigError(
            f"{output} is there already: if it is the run that is trusted, say --reference {output}; "
            "if not, move it away, and the program is captured there first"
        )
    options = PRESETS["diagnose"](CaptureOptions(output=output))
    _launched(options, command, "the reference's program failed")


def rerun_program(
    trace: Trace, command: Sequence[str], output: Path, *, steps: StepSet | None, seed: int | None
) -> None:
    """Capture the program as ``trace`` was captured.

    Raises:
        ConfigError: it ended with an error, or nothing of it was captured.
    """
    options = rerun_options(trace, output, steps=steps, seed=seed)
    _launched(options, command, "a rerun of the reference's program failed")


def _launched(options: CaptureOptions, command: Sequence[str], failure: str) -> None:
    last: list[str] = []
    status = launch(options, command, say=last.append)
    if status:
        why = last[-1] if last else f"exit status {status}"
        raise ConfigError(f"{failure}: {why}. Does the command run by itself?")


def rerun_options(trace: Trace, output: Path, *, steps: StepSet | None, seed: int | None) -> CaptureOptions:
    """How a rerun is captured: as ``trace`` was, changed by rounding where there is a seed."""
    was = CaptureOptions.from_json({**trace.manifest.get("options", {}), "output": str(output)})
    plain = replace(was, perturb=seed, overwrite=True, append=False, stacks=False, first_step=0)
    if seed is None:
        plain = replace(plain, deterministic=None)
    return plain if steps is None else replace(plain, steps=steps)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="trueup-noise-") as folder:
        yield Path(folder)
