"""What ``trueup capture`` does where the run is monitored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trueup.capture.options import CaptureOptions, StepSet, Task
from trueup.errors import ConfigError

_OPTIONS = {"every": "--monitor-every", "modules": "--monitor-modules", "command": "--on-alarm"}


def refuse_unwatched(chosen: Mapping[str, Any]) -> None:
    """Options of a monitor mean nothing without one.

    Raises:
        ConfigError: one is given.
    """
    for name, option in _OPTIONS.items():
        if chosen[name] is not None:
            raise ConfigError(f"{option} goes with --monitor")


def watched(
    options: CaptureOptions, file: Path | None, chosen: Mapping[str, Any], *, alone: bool
) -> CaptureOptions:
    """The options with a monitor; ``alone``: no step is captured in full but those that follow an alarm.

    Raises:
        ConfigError: the file or a choice is wrong.
    """
    from trueup.monitoring.monitor import describe_monitor
    from trueup.monitoring.settings_file import read_settings, settings_from_plain

    if file is None:
        settings = settings_from_plain({}, source="--monitor", **chosen)
    else:
        settings = read_settings(file, **chosen)
    nothing = alone and options.task is not Task.OVERFLOW_CHECK
    return replace(
        options, observer=describe_monitor(settings), steps=StepSet(()) if nothing else options.steps
    )


def launch_watched(options: CaptureOptions, command: list[str], *, say: Callable[[str], None]) -> int:
    """Run the command; then say what the monitor said."""
    from trueup.capture.launch import launch
    from trueup.capture.launch.outcome import shown_path
    from trueup.monitoring.reader import alarm_sentences
    from trueup.store.layout import monitor_dir

    status = launch(options, command, say=say)
    if monitor_dir(options.output).exists():
        for sentence in alarm_sentences(options.output):
            say(sentence)
        say(f"next: trueup monitor {shown_path(options.output.absolute())}")
    return status
