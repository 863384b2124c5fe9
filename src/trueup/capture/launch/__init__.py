"""The zero-edit way in: runs a command so that every Python process below it captures itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from trueup.capture.launch import folder
from trueup.capture.launch.command import check_command
from trueup.capture.launch.outcome import has_all_steps, outcome_from_folder, sentences
from trueup.capture.launch.process import run_command
from trueup.capture.long_run import change_sentences, unkept
from trueup.capture.options import CaptureOptions, Task

_RANKS = (
    "RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
)
"""set by schedulers and by the launchers above this one; 0 is the first"""
_FLAGS = ("--node-rank", "--node_rank", "--machine-rank", "--machine_rank")


CAPTURE = "TRUEUP_CAPTURE"
"""options and import folders, as JSON; the start-up file does nothing without it"""
LAUNCH_ID = "TRUEUP_LAUNCH_ID"
COMMAND = "TRUEUP_COMMAND"
"""what was launched: torchrun with its processes, where the program sees itself alone"""
"""the same in all processes of a run, on all nodes, so that a rank knows a folder that another rank has made;
drawn from the folder's path, because a launcher has already made sure that no other run is in it"""
_STARTUP = Path(__file__).parent / "startup"
_NEEDED = ("trueup", "numpy", "polars", "pyarrow", "safetensors")


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
    environment = environment_from_options(options, base=os.environ) | {COMMAND: json.dumps(list(command))}
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
    changes = change_sentences(options) if outcome.seen else []
    closing = sentences(outcome, options, command=shlex.join(command), advise=advise)
    for sentence in [*closing, *changes, *missed]:
        say(sentence)
    if status:
        say(f"the program ended with exit status {status}")
    if not outcome.seen and not existed:
        with contextlib.suppress(OSError):  # the program keeps its own files there
            options.output.rmdir()
    looking = options.task is Task.OVERFLOW_CHECK or options.observer is not None
    looked = looking and outcome.num_steps_run > 0
    kept = (outcome.steps or looked) and not missed and not outcome.outside_scope
    return status or (0 if kept else NOTHING_CAPTURED)


def environment_from_options(options: CaptureOptions, *, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with the start-up file first on PYTHONPATH and everything it must know; ``base`` is unchanged.

    A seed also sets PYTHONHASHSEED and determinism CUBLAS_WORKSPACE_CONFIG, which are read before any Python
    code of the program runs; a value the person has set is kept.
    """
    environment = dict(base)
    path = [p for p in base.get("PYTHONPATH", "").split(os.pathsep) if p != str(_STARTUP)]
    environment["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *path]) if path != [""] else str(_STARTUP)
    plan = {"options": options.to_json(), "folders": _import_folders()}
    environment[CAPTURE] = json.dumps(plan, separators=(",", ":"))
    environment[LAUNCH_ID] = hashlib.sha256(str(options.output).encode()).hexdigest()[:32]
    if options.seed is not None:
        environment["PYTHONHASHSEED"] = str(options.seed)
    if options.deterministic:
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return environment


def _import_folders() -> list[str]:
    """Where trueup and what capture needs live, for a child whose own environment lacks them."""
    folders = []
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))


def is_first(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this launcher is the one that looks after the folder and speaks for the run.

    The others of a job find the folder in use by their own run, and must neither refuse it nor clear it.

    Example:
        >>> is_first(["torchrun", "--nnodes=2", "--node-rank=1", "train.py"], {})
        False
    """
    return not any(_is_later(number) for number in [*map(environment.get, _RANKS), *_flag_values(command)])


def _flag_values(command: Sequence[str]) -> list[str]:
    """Values of node-rank flags, written ``--flag N`` or ``--flag=N``."""
    values = []
    for word, after in zip(command, [*command[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag in _FLAGS:
            values.append(value if equals else after)
    return values


def _is_later(number: str | None) -> bool:
    return number is not None and number.isdigit() and int(number) > 0
