"""The zero-edit way in: runs a command so that every Python process below it captures itself."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from trueup.capture.launch import folder
from trueup.capture.launch.command import check_command
from trueup.capture.launch.environment import environment_from_options
from trueup.capture.launch.outcome import has_all_steps, outcome_from_folder, sentences
from trueup.capture.launch.place import is_first
from trueup.capture.launch.process import run_command
from trueup.capture.long_run import change_sentences, unkept
from trueup.capture.options import CaptureOptions, Task

NOTHING_CAPTURED = 2


def launch(
    options: CaptureOptions,
    command: Sequence[str],
    *,
    say: Callable[[str], None],
    stop_when_captured: bool = False,
    advise: bool = True,
) -> int:
    """Run ``command`` captured and return its exit status; ``say`` gets a few closing sentences, with
    ``advise`` also what to do next.

    ``stop_when_captured`` ends the command as soon as every rank has written the last step asked for.

    A command that succeeds but leaves no captured step, or was not changed as was asked for, returns 2,
    because a person who asked for a trace has none.

    Where a job starts a launcher a node or a rank, the first looks after the folder and says what came of it.

    Raises:
        ConfigError: the command cannot be run or captured, or the output folder is not usable; nothing was
            run.
    """
    program = check_command(command)
    first = is_first(command, os.environ)
    output = options.output.absolute()
    existed = output.exists()
    if first:
        folder.prepare(output, overwrite=options.overwrite)
    else:
        folder.make_writable(output)
    options = replace(options, output=output)
    environment = environment_from_options(options, base=os.environ)
    enough = partial(has_all_steps, options) if first and stop_when_captured else None
    status = run_command(command, program=program, environment=environment, enough=enough)
    if not first:
        return status
    return _conclude(options, command, status=status, existed=existed, say=say, advise=advise)


def _conclude(
    options: CaptureOptions,
    command: Sequence[str],
    *,
    status: int,
    existed: bool,
    say: Callable[[str], None],
    advise: bool,
) -> int:
    outcome = outcome_from_folder(options.output)
    missed = unkept(options.output) if outcome.seen else []
    said = change_sentences(options) if outcome.seen else []
    closing = sentences(outcome, options, command=shlex.join(command), advise=advise)
    for sentence in [*closing, *said, *missed]:
        say(sentence)
    if status:
        say(f"the program ended with exit status {status}")
    if not outcome.seen and not existed:
        with contextlib.suppress(OSError):  # the program keeps its own files there
            options.output.rmdir()
    looking = options.task is Task.OVERFLOW_CHECK or options.observer is not None
    looked = looking and outcome.num_steps_run > 0
    return status or (0 if (outcome.steps or looked) and not missed else NOTHING_CAPTURED)
