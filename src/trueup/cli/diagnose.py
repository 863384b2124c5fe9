"""``trueup diagnose``: two runs, one verdict, with evidence."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trueup.cli.printing import note_line
from trueup.cli.several import check_pair
from trueup.errors import ConfigError

_LOG = "program.log"


def command(
    target: Annotated[Path | None, typer.Argument(help="The run under question.")] = None,
    reference: Annotated[Path | None, typer.Argument(help="The run that is trusted.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the diagnosis.")] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar='"COMMAND"',
            help="The target's training command: it is run again with the reference's values, and then with "
            "the reference's gradients, put in. Without it no verdict is certain.",
        ),
    ] = None,
    replayed: Annotated[
        Path | None, typer.Option("--replayed", metavar="DIR", help="A replay made before.")
    ] = None,
    gradients: Annotated[
        Path | None, typer.Option("--gradients", metavar="DIR", help="A gradient replay made before.")
    ] = None,
    noise: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The reference's noise profile. Default: REFERENCE/noise."),
    ] = None,
    no_noise: Annotated[
        bool, typer.Option("--no-noise", help="Judge by the dtype bound, whatever was measured.")
    ] = False,
    noise_replay: Annotated[
        list[Path] | None,
        typer.Option("--noise-replay", metavar="DIR", help="A replay of a benign variant of the reference."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A tokenizer's folder: rows of the batch are shown as text."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option("--map", help="Pairs that are given, as trueup match -o writes them.")
    ] = None,
    config: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--config",
            metavar="TARGET REFERENCE",
            help="Configurations of both, as trueup check takes them. Default: what the traces stored.",
        ),
    ] = None,
    curves: Annotated[
        list[str] | None,
        typer.Option(
            "--curves",
            metavar="TARGET_LOG REFERENCE_LOG [REPEAT ...]",
            help="Logs of the long run, the reference's and those of its repeats: judged as the last stage.",
        ),
    ] = None,
    html: Annotated[bool, typer.Option(help="Write diagnosis.html.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.")
    ] = False,
) -> None:
    """Find out why two runs do not agree: what, where, which kind of fault, how sure, and what to do next.

    Walks the stages of a training step: configuration, data, initial weights, forward and loss, backward,
    reduction and clipping, optimizer, the next loss; then the long run. Ends with 0 if the
    runs agree, 1 if they differ, 2 if that cannot be decided.
    """
    check_pair("--config", config)
    if target is None or reference is None:
        missing = "TARGET and REFERENCE are" if target is None else "REFERENCE is"
        raise ConfigError(f"{missing} missing: trueup diagnose TARGET REFERENCE -o OUT")
    if output is None:
        raise ConfigError(f"say where the diagnosis is to go: trueup diagnose {target} {reference} -o OUT")
    if no_noise and noise is not None:
        raise ConfigError(f"--noise {noise} and --no-noise contradict each other")
    words = None if replay is None else words_of(replay)
    from trueup.capture.launch.folder import make_writable
    from trueup.diagnosing.pipeline import diagnose

    make_writable(output)
    with program_output_apart(output / _LOG):
        diagnosis = diagnose(
            target,
            reference,
            output=output,
            command=words,
            replay=replayed,
            gradients=gradients,
            noise=False if no_noise else noise if noise is not None else True,
            replay_noise=noise_replay or [],
            tokenizer=tokenizer,
            mapping=mapping,
            configs=config,
            curves=curves or [],
            say=(lambda _: None) if quiet or as_json else note_line,
        )
    document = diagnosis.to_json()
    reports = {}
    if html:
        from trueup.reporting.diagnosis import write_html

        reports["html"] = write_html(document, output / "diagnosis.html")
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=2))
    elif not quiet:
        from rich.console import Console

        from trueup.reporting.diagnosis_terminal import print_diagnosis

        print_diagnosis(document, Console(), reports=reports)
    raise typer.Exit(diagnosis.exit_code)


def words_of(text: str) -> list[str]:
    """The words of a command given as one option."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--replay {text!r} is no command: {error}") from error
    if not words:
        raise ConfigError('--replay is empty; a command is wanted, such as --replay "python train.py"')
    return words


@contextmanager
def program_output_apart(log: Path) -> Iterator[None]:
    """What the replayed programs print goes to a file, so that the screen holds the verdict alone; their
    errors still show."""
    sys.stdout.flush()
    kept = os.dup(1)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)
    if log.stat().st_size == 0:
        log.unlink()
