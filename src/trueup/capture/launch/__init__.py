"""The zero-edit way in: runs a command so that every Python process below it captures itself."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from trueup.capture.launch import folder
from trueup.capture.launch.command import check_command
from trueup.capture.launch.environment import environment_from_options
from trueup.capture.launch.outcome import outcome_from_folder, sentences
from trueup.capture.launch.process import run_command
from trueup.capture.options import CaptureOptions

NOTHING_CAPTURED = 2


def launch(options: CaptureOptions, command: Sequence[str], *, say: Callable[[str], None]) -> int:
    """Run ``command`` captured and return its exit status; ``say`` gets a few closing sentences.

    A command that succeeds but leaves no captured step returns 2, because a person who asked for a trace has
    none.

    Raises:
        ConfigError: the command cannot be run or captured, or the output folder is not usable; nothing was
            run.
    """
    program = check_command(command)
    output = options.output.absolute()
    existed = output.exists()
    folder.prepare(output, overwrite=options.overwrite)
    options = replace(options, output=output)
    status = run_command(
        command, program=program, environment=environment_from_options(options, base=os.environ)
    )
    outcome = outcome_from_folder(output)
    for sentence in sentences(outcome, options, command=shlex.join(command)):
        say(sentence)
    if status:
        say(f"the program ended with exit status {status}")
    if not outcome.seen and not existed:
        with contextlib.suppress(OSError):  # the program keeps its own files there
            output.rmdir()
    return status or (0 if outcome.steps else NOTHING_CAPTURED)
