"""Capture options from a command line: defaults, then ``config.json``, then a preset, then what was given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from trueup.capture.options import CaptureOptions, Level, StepSet, Task
from trueup.capture.presets import PRESETS
from trueup.errors import ConfigError
from trueup.types.option import GivenOptions, expected


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What a person gave."""

    given: GivenOptions[CaptureOptions]
    preset: str | None = None
    config: Path | None = None
    overflow_nums: int | None = None

    @property
    def free_steps(self) -> bool:
        """Whether nothing says which steps to capture."""
        return self.config is None and self.preset is None and "steps" not in self.given


def capture_options(request: CaptureRequest) -> tuple[CaptureOptions, list[str]]:
    """The options, and warnings about what has no effect.

    Raises:
        ConfigError: an option or a file is wrong, or no folder is named.
    """
    if request.preset is not None and request.preset not in PRESETS:
        raise expected("--preset", f"one of: {', '.join(PRESETS)}", request.preset)
    notes: list[str] = []
    output = request.given.get("output", Path)
    if request.config is not None:
        options = _from_config(request.config, output, notes)
    elif output is not None:
        options = CaptureOptions(output=output)
    else:
        raise ConfigError("-o is missing: trueup capture -o RUN -- python train.py")
    if request.preset is not None:
        options = PRESETS[request.preset](options)
    options = request.given.over(options)
    _check_passes(options, request)
    if options.task is Task.OVERFLOW_CHECK:
        return _overflow_options(options, request), notes
    if request.overflow_nums is not None:
        raise ConfigError("--overflow-nums has no effect without --task overflow_check")
    return options, notes


def _check_passes(options: CaptureOptions, request: CaptureRequest) -> None:
    """Raise where only the pass that is off was asked for.

    Raises:
        ConfigError: naming both.
    """
    if "forward" in options.data_mode:
        return
    if not options.backward:
        off = "--no-backward" if "backward" in request.given else f"--preset {request.preset}"
        raise ConfigError(f"{off} leaves out gradients at calls, and data mode backward takes nothing else")


def _from_config(path: Path, output: Path | None, notes: list[str]) -> CaptureOptions:
    from trueup.capture.config import read_config

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = read_config(path, dump_path=output)
    if config.saved_only:
        raise ConfigError(
            f"{path}: level debug records only what PrecisionDebugger.save is given; expected L0, L1 or mix"
        )
    notes += [str(warning.message) for warning in caught]
    if config.dump_enable is not None:
        notes.append(f"{path}: dump_enable has no effect on trueup capture, only on PrecisionDebugger")
    return config.options


def _overflow_options(options: CaptureOptions, request: CaptureRequest) -> CaptureOptions:
    """Every call of every step is observed by default: steps without an overflow leave nothing."""
    from trueup.capture.config import for_overflow_check

    known = -1 if options.overflow_nums is None else options.overflow_nums
    options = for_overflow_check(options, known if request.overflow_nums is None else request.overflow_nums)
    free = request.config is None and request.preset is None
    if request.free_steps:
        options = replace(options, steps=StepSet())
    if free and "level" not in request.given:
        options = replace(options, level=Level.MIX)
    return options
