"""``trueup accept``: the guide's whole procedure for a pair of runs, and its sign-off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.cli.diagnose import program_output_apart, words_of
from trueup.cli.printing import note_line
from trueup.cli.several import check_pair
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.accepting.procedure import Given

_GIVEN, _OUT = "What is given", "Reports"
_LOG = "program.log"


def command(
    target: Annotated[
        Path | None,
        typer.Argument(help="Trace of the first steps of the run under question.", show_default=False),
    ] = None,
    reference: Annotated[
        Path | None, typer.Argument(help="The same of the run that is trusted.", show_default=False)
    ] = None,
    config: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--config",
            metavar="TARGET REFERENCE",
            help="Configurations of both, as trueup check takes them. Default: what the traces stored.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    curves: Annotated[
        list[str] | None,
        typer.Option(
            "--curves",
            metavar="TARGET_LOG REFERENCE_LOG [REPEAT ...]",
            help="Logs of the long run, the reference's and those of its repeats, determinism off.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    learning_rate_0: Annotated[
        list[str] | None,
        typer.Option(
            "--learning-rate-0",
            metavar="TARGET_LOG REFERENCE_LOG",
            help="Logs of the same runs at learning rate 0.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    evaluations: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--eval",
            metavar="TARGET.json REFERENCE.json",
            help="Results of lm-evaluation-harness of both trained models.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar='"COMMAND"',
            help="The target's training command: faults in the first steps are then found for certain.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Vouch for weights, settings, randomness, data or all, instead of a proof.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="How the standard's default conditions were changed, such as dataset=c4.",
            rich_help_panel=_GIVEN,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder of the sign-off.", rich_help_panel=_OUT),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.", rich_help_panel=_OUT)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.", rich_help_panel=_OUT),
    ] = False,
) -> None:
    """Go through the accuracy guide for a pair of runs and write the sign-off.

    Checklist, aligned preparation, steps 1 and 2, learning rate 0, the long run and downstream tasks, from
    what is given; what is not is listed as not shown, with how to show it. Writes signoff.html, .md, .json.

    Ends with 0 where the target is accepted, 1 where it is refused, 2 where that is not decided.
    """
    from trueup.accepting.procedure import accept
    from trueup.capture.launch.folder import make_writable
    from trueup.reporting.signoff import write_reports

    given = _given(
        target, reference, config, curves, learning_rate_0, evaluations, replay, assume or [], condition or []
    )
    if output is None:
        raise ConfigError("say where the sign-off is to go: trueup accept TARGET REFERENCE ... -o OUT")
    make_writable(output)
    with program_output_apart(output / _LOG):
        procedure = accept(given, output=output, say=(lambda _: None) if quiet or as_json else note_line)
    reports, missing = write_reports(procedure, output)
    document = procedure.signoff.to_json()
    if as_json:
        print(json.dumps(document, ensure_ascii=False, indent=2))
    elif not quiet:
        from rich.console import Console

        from trueup.reporting.render import show
        from trueup.reporting.signoff import signoff_report

        files = list(reports.values())
        show(signoff_report(procedure.signoff, reports=files, missing=missing), Console(highlight=False))
    raise typer.Exit(procedure.signoff.exit_code)


def _given(
    target: Path | None,
    reference: Path | None,
    config: tuple[str, str] | None,
    curves: list[str] | None,
    no_update: list[str] | None,
    evaluations: tuple[Path, Path] | None,
    replay: str | None,
    assume: list[str],
    condition: list[str],
) -> Given:
    from trueup.accepting.procedure import Given
    from trueup.curves.conditions import parse_assumptions, parse_conditions

    check_pair("--config", config)
    check_pair("--eval", evaluations)
    if target is not None and reference is None:
        raise ConfigError(f"REFERENCE is missing: trueup accept {target} REFERENCE -o OUT")
    if replay is not None and target is None:
        raise ConfigError(
            "--replay needs the two traces: trueup accept TARGET REFERENCE --replay COMMAND -o OUT"
        )
    return Given(
        target=target,
        reference=reference,
        configs=config,
        curves=curves or [],
        no_update=no_update or [],
        evaluations=evaluations,
        command=None if replay is None else words_of(replay),
        assumed=parse_assumptions(assume),
        stated=parse_conditions(condition),
    )
