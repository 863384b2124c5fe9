"""``trueup capture``: run a training command and keep its numbers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from trueup.capture.options import CaptureOptions, Level, StepSet, Task
from trueup.capture.presets import PRESETS
from trueup.cli.capture_watched import launch_watched, refuse_unwatched, watched
from trueup.cli.printing import note_line, warning_line
from trueup.errors import ConfigError

_Choice = TypeVar("_Choice", bound=Enum)
_WHAT = "What to capture"
_HOW = "How much of it"
_RUN = "The run"
_CHANGE = "Change the run, on purpose"
_WATCH = "Watch it while it trains"


def command(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The training command, as always.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder the trace goes to.")] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="L0|L1|mix", help="Modules, API calls or both. Default: L0.", rich_help_panel=_WHAT
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="<task>",
            help="statistics; tensor: values too; overflow_check: only what makes NaN and infinity. "
            "Default: statistics.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            help="Such as 0,1,5-8, or all. Scalars are kept for every step. Default: 0,1.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Such as 0,8-15, or all. Default: all.", rich_help_panel=_WHAT)
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(metavar="FIRST LAST", help="Only from one call to another.", rich_help_panel=_WHAT),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--list", metavar="NAMES", help="Only calls whose name has this in it.", rich_help_panel=_WHAT
        ),
    ] = None,
    data_mode: Annotated[
        str | None,
        typer.Option(
            help="Of forward, backward, input, output, joined by commas. Default: all.", rich_help_panel=_WHAT
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="diagnose: level L0, steps 0-1, and the values a diagnosis needs. batches: every step, "
            "token ids and labels with their values, no gradients.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="msprobe's config.json; options given here win.", rich_help_panel=_WHAT),
    ] = None,
    backward: Annotated[bool | None, typer.Option(help="Gradients at calls.", rich_help_panel=_WHAT)] = None,
    gradients: Annotated[
        bool | None, typer.Option(help="Gradients of parameters.", rich_help_panel=_WHAT)
    ] = None,
    optimizer: Annotated[bool | None, typer.Option(help="Optimizer steps.", rich_help_panel=_WHAT)] = None,
    collectives: Annotated[bool | None, typer.Option(help="Collectives.", rich_help_panel=_WHAT)] = None,
    evaluation: Annotated[
        bool | None, typer.Option(help="Forwards without gradients.", rich_help_panel=_WHAT)
    ] = None,
    digest: Annotated[
        bool | None, typer.Option(help="64-bit hash of every tensor.", rich_help_panel=_HOW)
    ] = None,
    sketch: Annotated[
        bool | None, typer.Option(help="64 numbers that give the norm of a difference.", rich_help_panel=_HOW)
    ] = None,
    crc32: Annotated[
        bool | None, typer.Option("--crc32/--no-crc32", help="What msprobe calls md5.", rich_help_panel=_HOW)
    ] = None,
    stacks: Annotated[bool | None, typer.Option(help="Source lines.", rich_help_panel=_HOW)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed random, numpy and torch from outside.", rich_help_panel=_RUN)
    ] = None,
    deterministic: Annotated[
        bool | None, typer.Option(help="Deterministic algorithms, from outside.", rich_help_panel=_RUN)
    ] = None,
    overflow_nums: Annotated[
        int | None,
        typer.Option(
            "--overflow-nums",
            help="With --task overflow_check: how many to keep, -1 for all. Default: 1.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Every update has this rate, 0 for none at all.", rich_help_panel=_CHANGE),
    ] = None,
    only_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Feed batch N at every step, counted from 0.", rich_help_panel=_CHANGE
        ),
    ] = None,
    skip_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Leave batch N out.", rich_help_panel=_CHANGE)
    ] = None,
    monitor: Annotated[
        bool,
        typer.Option(
            "--monitor",
            help="Norms of weights and gradients at every step, and alarms; in full only the step after an "
            "alarm, unless --steps says which. Show it: trueup monitor RUN.",
            rich_help_panel=_WATCH,
        ),
    ] = False,
    monitor_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only at every n-th step.", rich_help_panel=_WATCH),
    ] = None,
    monitor_modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Outputs of these modules too: parts of names, classes, or patterns with *.",
            rich_help_panel=_WATCH,
        ),
    ] = None,
    monitor_config: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="All settings and thresholds.", rich_help_panel=_WATCH),
    ] = None,
    on_alarm: Annotated[
        str | None,
        typer.Option(
            metavar='"COMMAND"',
            help="Run at every alarm; TRUEUP_EVENT is the path of its file.",
            rich_help_panel=_WATCH,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Run a training command and keep its numbers; the script needs no edit.

    Ends with the command's own exit status, or 2 if nothing was captured.
    """
    from trueup.capture.launch import launch

    given: dict[str, Any] = {
        "level": None if level is None else one_of(Level, level, what="--level"),
        "task": None if task is None else one_of(Task, task, what="--task"),
        "steps": None if steps is None else StepSet.parse(steps, what="--steps"),
        "ranks": None if ranks is None else StepSet.parse(ranks, what="--ranks"),
        "scope": None if scope is None else _scope(scope),
        "names": None if not names else _words(names, what="--list"),
        "data_mode": None if data_mode is None else _data_mode(data_mode),
        "backward": backward,
        "gradients": gradients,
        "optimizer": optimizer,
        "collectives": collectives,
        "evaluation": evaluation,
        "digest": digest,
        "sketch": sketch,
        "crc32": crc32,
        "stacks": stacks,
        "seed": _checked_seed(seed),
        "deterministic": deterministic,
        "learning_rate": _checked_rate(learning_rate),
        "only_batch": _checked_batch(only_batch, what="--only-batch"),
        "skip_batch": _checked_batch(skip_batch, what="--skip-batch"),
    }
    options = _options(output, config=config, preset=preset, overwrite=overwrite, quiet=quiet)
    options = replace(options, **{name: value for name, value in given.items() if value is not None})
    if options.task is Task.OVERFLOW_CHECK:
        free = config is None and preset is None
        options = _overflow_options(options, given, overflow_nums, free=free)
    elif overflow_nums is not None:
        raise ConfigError("--overflow-nums goes with --task overflow_check")
    if options.only_batch is not None and options.skip_batch is not None:
        raise ConfigError("--only-batch and --skip-batch exclude each other")
    say = _say_nothing if quiet else note_line
    chosen = {
        "every": monitor_every,
        "modules": _words(monitor_modules, what="--monitor-modules") if monitor_modules else None,
        "command": on_alarm,
    }
    if not (monitor or monitor_config):
        refuse_unwatched(chosen)
        raise typer.Exit(launch(options, command or [], say=say))
    free = steps is None and preset is None and config is None
    options = watched(options, monitor_config, {**chosen, "program": tuple(command or ())}, alone=free)
    raise typer.Exit(launch_watched(options, command or [], say=say))


def with_scope_joined(argv: list[str]) -> list[str]:
    """``--scope A B`` as ``--scope A,B``, before the captured command begins.

    Example:
        >>> with_scope_joined(["capture", "--scope", "a", "b", "--", "x", "--scope", "c", "d"])
        ['capture', '--scope', 'a,b', '--', 'x', '--scope', 'c', 'd']
    """
    end = argv.index("--") if "--" in argv else len(argv)
    if "--scope" not in argv[:end]:
        return argv
    at = argv.index("--scope")
    pair = argv[at + 1 : at + 3]
    if at + 3 > end or "," in pair[0] or pair[1].startswith("-"):
        return argv
    return [*argv[: at + 1], ",".join(pair), *argv[at + 3 :]]


def _options(
    output: Path | None, *, config: Path | None, preset: str | None, overwrite: bool, quiet: bool
) -> CaptureOptions:
    """Defaults, below the config file, below the preset."""
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"--preset {preset!r}: there is {', '.join(PRESETS)}")
    if config is not None:
        options = _options_from_config(config, output, quiet=quiet)
    elif output is not None:
        options = CaptureOptions(output=output)
    else:
        raise ConfigError("say where the trace is to go: trueup capture -o RUN -- python train.py")
    return replace(options, overwrite=overwrite, **(PRESETS[preset] if preset else {}))


def _options_from_config(path: Path, output: Path | None, *, quiet: bool) -> CaptureOptions:
    from trueup.capture.config import read_config

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = read_config(path, dump_path=output)
        if read.dump_enable is not None:
            warnings.warn(
                f"{path}: dump_enable has no effect on trueup capture, only on PrecisionDebugger",
                stacklevel=2,
            )
    if read.saved_only:
        raise ConfigError(
            f"{path}: level debug records what PrecisionDebugger.save is given; take L0, L1 or mix here"
        )
    for warning in caught:
        if not quiet:
            warning_line(str(warning.message))
    return read.options


def one_of(kind: type[_Choice], word: str, *, what: str) -> _Choice:
    """The member of ``kind`` that ``word`` names, in upper or lower case.

    Raises:
        ConfigError: none does.
    """
    for choice in kind:
        if choice.value.lower() == word.lower():
            return choice
    raise ConfigError(f"{what} {word!r}: one of {', '.join(c.value for c in kind)} is wanted")


def _scope(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise ConfigError(
            f"--scope {text!r}: the names of the first and the last call are wanted, --scope FIRST LAST"
        )
    return parts[0], parts[1]


def _words(given: list[str], *, what: str) -> tuple[str, ...]:
    words = tuple(word.strip() for text in given for word in text.split(",") if word.strip())
    if not words:
        raise ConfigError(f"{what} is empty; names or parts of names are wanted, separated by commas")
    return words


def _data_mode(text: str) -> frozenset[str]:
    from trueup.capture.config import data_mode_from_words

    return data_mode_from_words([word.strip() for word in text.split(",")], what="--data-mode")


def _checked_seed(seed: int | None) -> int | None:
    if seed is not None and not 0 <= seed < 2**32:
        raise ConfigError(f"--seed {seed}: a whole number between 0 and {2**32 - 1} is wanted")
    return seed


def _checked_rate(rate: float | None) -> float | None:
    if rate is not None and not 0 <= rate < float("inf"):
        raise ConfigError(f"--learning-rate {rate}: a number from 0 is wanted")
    return rate


def _checked_batch(number: int | None, *, what: str) -> int | None:
    if number is not None and number < 0:
        raise ConfigError(f"{what} {number}: the number of a batch is wanted, counted from 0")
    return number


def _overflow_options(
    options: CaptureOptions, given: dict[str, Any], overflow_nums: int | None, *, free: bool
) -> CaptureOptions:
    """Every call of every step is watched unless a person says otherwise: finite steps leave nothing."""
    from trueup.capture.config import for_overflow_check

    known = -1 if options.overflow_nums is None else options.overflow_nums
    options = for_overflow_check(options, known if overflow_nums is None else overflow_nums)
    if free and given["steps"] is None:
        options = replace(options, steps=StepSet())
    if free and given["level"] is None:
        options = replace(options, level=Level.MIX)
    return options


def _say_nothing(sentence: str) -> None:
    """With --quiet."""
