"""``trueup curves``: the loss curves of long runs, judged by the migration standard and beyond it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup.cli.printing import warning_line
from trueup.errors import ConfigError
from trueup.types import Outcome

if TYPE_CHECKING:
    from trueup.curves.comparison import CurveComparison, Options

_RUN, _PROOF, _OUT = "The runs", "What cannot be seen in a log", "Reports"


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...",
            help="Logs of the runs under question: a file, several of one run joined by commas, a "
            "folder, or a trace.",
        ),
    ] = None,
    references: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            "-r",
            metavar="REF [REF2 ...]",
            help="The log of the trusted run, then those of its repeats with determinism off.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The target's step number minus the reference's. Found where not given.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST", help="Only these steps, as the target numbers them.", rich_help_panel=_RUN
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=NAME",
            help="What a column is called in a table, such as loss=train/ce. May be repeated.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Read on while the logs grow.", rich_help_panel=_RUN)
    ] = False,
    every: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="With --follow: how often.", rich_help_panel=_RUN),
    ] = 10.0,
    target_trace: Annotated[
        Path | None,
        typer.Option(
            "--target-trace",
            metavar="DIR",
            help="A trace of the target's first steps.",
            rich_help_panel=_PROOF,
        ),
    ] = None,
    reference_trace: Annotated[
        Path | None,
        typer.Option(
            "--reference-trace", metavar="DIR", help="A trace of the reference's.", rich_help_panel=_PROOF
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Vouch for weights, settings, randomness, data or all, instead of a proof.",
            rich_help_panel=_PROOF,
        ),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="How the standard's default conditions were changed, such as dataset=c4.",
            rich_help_panel=_PROOF,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A tokenizer's folder: batches around an onset are shown as text, where a trace holds them.",
            rich_help_panel=_PROOF,
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--command", metavar='"COMMAND"', help="The target's training command.", rich_help_panel=_PROOF
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the reports.", rich_help_panel=_OUT),
    ] = None,
    report: Annotated[
        str,
        typer.Option(metavar="LIST", help="Of json,html,png,xlsx,md. Default: all.", rich_help_panel=_OUT),
    ] = "all",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.", rich_help_panel=_OUT)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.", rich_help_panel=_OUT),
    ] = False,
) -> None:
    """Judge loss curves by a reference, its repeats and the migration standard.

    Reads logs of Megatron-LM, MindFormers, trueup_gpt, Hugging Face Trainer,
    torchtitan, nanotron and verl, TensorBoard events, CSV, JSON and traces.

    Ends with 0 where the target is accepted, 1 where it differs, 2 where that
    cannot be decided.
    """
    if not targets:
        raise ConfigError(
            "TARGET is missing: trueup curves TARGET --reference REF REF2 -o OUT; targets come first"
        )
    if not references:
        raise ConfigError(f"say what to compare with: trueup curves {' '.join(targets)} --reference REF REF2")
    if tokenizer is not None and not tokenizer.is_dir():
        raise ConfigError(
            f"--tokenizer {tokenizer}: no such folder; a local folder with tokenizer.json is wanted"
        )
    formats = _formats(report)
    options = _options(offset, steps, assume or [], condition or [], target_trace, reference_trace, program)
    columns = _columns(column or [])
    if follow:
        raise typer.Exit(_follow(targets, references, columns, options, every=every, quiet=quiet))
    comparisons = _compare(targets, references, columns, options)
    around = _around(comparisons, options, tokenizer)
    written = _write(comparisons, output, formats, around)
    code = _show(comparisons, around, written, as_json=as_json, quiet=quiet)
    raise typer.Exit(code)


def _formats(report: str) -> list[str]:
    from trueup.reporting.curves import FORMATS

    words = [word.strip() for word in report.split(",") if word.strip()]
    if words == ["all"]:
        return list(FORMATS)
    for word in words:
        if word not in FORMATS:
            raise ConfigError(f"--report {word!r}: there is {', '.join(FORMATS)} and all")
    return words


def _columns(given: list[str]) -> dict[str, str]:
    from trueup.curves.columns import parse_choice

    return dict(parse_choice(text) for text in given)


def _options(
    offset: int | None,
    steps: str | None,
    assume: list[str],
    condition: list[str],
    target_trace: Path | None,
    reference_trace: Path | None,
    program: str | None,
) -> Options:
    from trueup.curves.comparison import Options
    from trueup.curves.conditions import parse_assumptions, parse_conditions

    first, last = _span(steps)
    return Options(
        offset=offset,
        assumed=parse_assumptions(assume),
        stated=parse_conditions(condition),
        target_trace=target_trace,
        reference_trace=reference_trace,
        program=program,
        first=first,
        last=last,
    )


def _span(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    begin, sign, end = text.partition("-")
    try:
        first, last = int(begin) if begin else None, int(end) if end else None
    except ValueError:
        sign = ""
    if not sign or (first is not None and last is not None and last < first):
        raise ConfigError(f"--steps {text!r}: FIRST-LAST is wanted, such as 0-5000, or 1000- to the end")
    return first, last


def _compare(
    targets: list[str], references: list[str], columns: Mapping[str, str], options: Options
) -> list[CurveComparison]:
    from trueup.curves.many import compare_many

    found = list(compare_many(targets, references, columns=columns, options=options))
    if options.reference_trace is not None and all(
        (options.target_trace or one.target.trace) is None for one in found
    ):
        raise ConfigError("--reference-trace alone proves nothing of two runs: give --target-trace DIR too")
    return found


def _around(
    comparisons: list[CurveComparison], options: Options, tokenizer: Path | None
) -> dict[str, dict[str, Any]]:
    """What traces hold of the step a judgement points at."""
    from trueup.diagnosing.around import around_step

    found = {}
    for comparison in comparisons:
        trace = options.target_trace or comparison.target.trace
        if trace is not None and comparison.judgement.step is not None:
            said = around_step(
                trace,
                options.reference_trace or comparison.references[0].trace,
                comparison,
                tokenizer=tokenizer,
            )
            if said:
                found[comparison.target.name] = said
    return found


def _write(
    comparisons: list[CurveComparison],
    output: Path | None,
    formats: list[str],
    around: dict[str, dict[str, Any]],
) -> dict[str, Path]:
    if output is None:
        return {}
    from trueup.capture.launch.folder import make_writable
    from trueup.reporting.curves import write_reports

    make_writable(output)
    try:
        return write_reports(comparisons, output, formats, around=around)
    except ConfigError as error:
        warning_line(str(error))
        return {name: path for name, path in _there(output).items() if name in formats}


def _there(output: Path) -> dict[str, Path]:
    from trueup.reporting.curves import FILES

    return {name: output / file for name, file in FILES.items() if (output / file).exists()}


def _show(
    comparisons: list[CurveComparison],
    around: dict[str, dict[str, Any]],
    written: dict[str, Path],
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    from trueup.reporting.curves import document_of

    document = document_of(comparisons, around)
    if as_json:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2, default=str))
    elif not quiet:
        from rich.console import Console

        from trueup.reporting.curves.report import curves_report
        from trueup.reporting.render import show

        console, files = Console(highlight=False), list(written.values())
        if len(comparisons) > 1:
            show(curves_report(comparisons), console)
        worst = max(comparisons, key=lambda c: (c.judgement.outcome is Outcome.DIFFER, c.evidence.level))
        show(curves_report([worst], around=around, reports=files), console)
    return int(document["exit_code"])


def _follow(
    targets: list[str],
    references: list[str],
    columns: Mapping[str, str],
    options: Options,
    *,
    every: float,
    quiet: bool,
) -> int:
    from rich.console import Console

    from trueup.curves.following import follow
    from trueup.reporting.curves.following import watch

    if len(targets) > 1:
        raise ConfigError("--follow watches one target; start one for each")
    updates = follow(targets[0], references, columns=columns, options=options, every=every)
    return watch(updates, Console(highlight=False), quiet=quiet)
