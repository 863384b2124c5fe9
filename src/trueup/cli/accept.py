"""``trueup accept``: the guide's complete procedure for a pair of runs, and its sign-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from trueup.cli.diagnose import PROGRAM_LOG
from trueup.cli.printing import notes, print_json, stdout_to_file
from trueup.cli.shared import Assumed, Conditions, Configs, Curves, Data, Inference, Printed, Replay
from trueup.errors import ConfigError
from trueup.types.option import Option, expected


def waivers_from_words(words: Sequence[str], place: str) -> dict[str, str]:
    """Row -> reason.

    Raises:
        ConfigError: a row without a reason, or twice.
    """
    found: dict[str, str] = {}
    for row, why in zip_longest(words[::2], words[1::2], fillvalue=""):
        if not row.strip() or not why.strip():
            raise expected(place, 'a row and why it is not followed, in quotes: clip_grad "REASON"', row)
        if row in found:
            raise ConfigError(f"{place}: {row} is given twice")
        found[row.strip()] = why.strip()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptOptions:
    """What the sign-off is based on, and where it goes."""

    target: Annotated[
        Path | None, Option("Trace of the first steps of the run to check.", argument="TARGET")
    ] = None
    reference: Annotated[
        Path | None, Option("The same of the run that is trusted.", argument="REFERENCE")
    ] = None
    config: Configs = None
    data: Data = ()
    inference: Inference = None
    curves: Curves = ()
    learning_rate_0: Annotated[
        tuple[str, ...],
        Option(
            "Logs of the same runs at learning rate 0.",
            "--learning-rate-0 TARGET_LOG REFERENCE_LOG",
            several=True,
        ),
    ] = ()
    evaluations: Annotated[
        tuple[Path, Path] | None,
        Option(
            "Results of lm-evaluation-harness for both trained models.", "--eval TARGET.json REFERENCE.json"
        ),
    ] = None
    replay: Replay = None
    waived: Annotated[
        dict[str, str],
        Option(
            "Sign although this recommendation of the accuracy guide is not followed, or although this "
            "setting, which no rule reads, differs; the sign-off prints the reason. May be repeated.",
            "--waive ROW REASON",
            several=True,
            read_all=waivers_from_words,
        ),
    ] = field(default_factory=dict)
    assumed: Assumed = frozenset()
    conditions: Conditions = field(default_factory=dict)
    output: Annotated[Path, Option("Folder of the sign-off.", "-o --output DIR")]


def command(options: AcceptOptions, printed: Printed) -> int:
    """Apply the accuracy guide to a pair of runs and write the sign-off.

    Checklist, aligned preparation, steps 1 and 2, learning rate 0, the long run and downstream tasks, from
    what is given; everything else is listed as not shown, with how to show it. Writes signoff.html, .md,
    .json.

    Exit status: 0 if the target is accepted, 1 if it is refused, 2 if that is not decided.
    """
    from trueup.accepting.procedure import AcceptanceInputs, accept
    from trueup.capture.launch.folder import make_writable
    from trueup.reporting.signoff import write_reports

    if options.target is not None and options.reference is None:
        raise ConfigError(f"REFERENCE is missing: trueup accept {options.target} REFERENCE -o OUT")
    if options.replay is not None and options.target is None:
        raise ConfigError("--replay needs two traces: trueup accept TARGET REFERENCE --replay COMMAND -o OUT")
    given = AcceptanceInputs(
        target=options.target,
        reference=options.reference,
        configs=options.config,
        data=options.data,
        inference=() if options.inference is None else (options.inference,),
        curves=options.curves,
        no_update=options.learning_rate_0,
        evaluations=options.evaluations,
        command=options.replay,
        assumed=options.assumed,
        stated=options.conditions,
        waived=options.waived,
    )
    make_writable(options.output)
    with stdout_to_file(options.output / PROGRAM_LOG):
        procedure = accept(given, output=options.output, say=notes(quiet=printed.quiet or printed.as_json))
    reports, missing = write_reports(procedure, options.output)
    if printed.as_json:
        print_json(procedure.signoff.to_json())
    elif not printed.quiet:
        from rich.console import Console

        from trueup.reporting.render import show
        from trueup.reporting.signoff import signoff_report

        report = signoff_report(procedure.signoff, reports=list(reports.values()), missing=missing)
        show(report, Console(highlight=False))
    return procedure.signoff.exit_code
