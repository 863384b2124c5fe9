"""A captured command with a monitor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trueup.capture import launch as capturing
from trueup.capture.launch.outcome import shown_path
from trueup.capture.options import CaptureOptions, StepSet, Task
from trueup.errors import ConfigError
from trueup.monitoring.settings import MonitorSettings
from trueup.types.option import GivenOptions, option_fields


def with_monitor(
    options: CaptureOptions,
    given: GivenOptions[MonitorSettings],
    *,
    file: Path | None,
    active: bool,
    program: Sequence[str],
    capture_all: bool,
) -> CaptureOptions:
    """The options with a monitor where it is ``active``; the settings given win over those of ``file``.

    Without ``capture_all`` no step is captured in full except those after an alarm.

    Raises:
        ConfigError: the file or a setting is wrong, or settings are given and no monitor is active.
    """
    if not active:
        for field in option_fields(MonitorSettings):
            if field.name in given:
                raise ConfigError(f"{field.flag} has no effect without --monitor")
        return options
    from trueup.monitoring.monitor import describe_monitor
    from trueup.monitoring.settings_file import read_settings, settings_from_plain

    chosen = {**given.values, "program": tuple(program)}
    if file is None:
        settings = settings_from_plain({}, source="--monitor", **chosen)
    else:
        settings = read_settings(file, **chosen)
    steps = options.steps if capture_all or options.task is Task.OVERFLOW_CHECK else StepSet(())
    return replace(options, observer=describe_monitor(settings), steps=steps)


def launch_with_monitor(
    options: CaptureOptions, command: Sequence[str], *, say: Callable[[str], None], active: bool
) -> int:
    """Run the command captured; then report the alarms of its monitor, and return the command's exit
    status."""
    from trueup.monitoring.reader import alarm_sentences
    from trueup.store.layout import monitor_dir

    status = capturing.launch(options, command, say=say)
    if active and monitor_dir(options.output).exists():
        for sentence in alarm_sentences(options.output):
            say(sentence)
        say(f"next: trueup monitor {shown_path(options.output.absolute())}")
    return status
