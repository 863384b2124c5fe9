"""``trueup curves``: the loss curves of long runs, judged by the migration standard and beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.cli.printing import print_json, warning_line
from trueup.cli.shared import PROOF, Assumed, Conditions, Output, Printed
from trueup.errors import ConfigError
from trueup.types.option import Option, expected

if TYPE_CHECKING:
    from trueup.curves.comparison import CurveComparison, Options
    from trueup.diagnosing.around import Around

_run = partial(Option, panel="The runs")
_proof = partial(Option, panel=PROOF)


def span_from_text(text: str, place: str) -> tuple[int | None, int | None]:
    """First and last step of ``FIRST-LAST``; either may be left out.

    Raises:
        ConfigError: not of that form.

    Example:
        >>> span_from_text("1000-", "--steps")
        (1000, None)
    """
    begin, dash, end = text.partition("-")
    try:
        first, last = int(begin) if begin else None, int(end) if end else None
    except ValueError:
        dash = ""
    if not dash or (first is not None and last is not None and last < first):
        raise expected(place, "FIRST-LAST, such as 0-5000, or 1000- to the end", text)
    return first, last


def columns_from_words(words: Sequence[str], place: str) -> dict[str, str]:
    """``loss=my/loss`` as a column and its name in a file."""
    from trueup.curves.columns import parse_choice

    return dict(parse_choice(word) for word in words)


def formats_from_text(text: str, place: str) -> tuple[str, ...]:
    """Formats of reports.

    Raises:
        ConfigError: an unknown format.
    """
    from trueup.reporting.curves import FORMATS

    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in FORMATS and words != ("all",):
            raise expected(place, f"all, or some of: {', '.join(FORMATS)}", word)
    return tuple(FORMATS) if words == ("all",) else words


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesOptions:
    """Which logs, and how they are compared."""

    targets: Annotated[
        tuple[str, ...],
        Option(
            "Logs of the runs to check: a file, several of one run joined by commas, a folder, or a trace.",
            argument="TARGET...",
        ),
    ] = ()
    references: Annotated[
        tuple[str, ...],
        _run(
            "The log of the trusted run, then those of its repeats without determinism.",
            "--reference -r REF [REF2 ...]",
            several=True,
        ),
    ] = ()
    offset: Annotated[
        int | None,
        _run(
            "The target's step number minus the reference's.",
            "--offset",
            unit="steps",
            default="found automatically",
        ),
    ] = None
    steps: Annotated[
        tuple[int | None, int | None],
        _run(
            "Only these steps, in the target's numbers.",
            "--steps FIRST-LAST",
            default="all",
            read=span_from_text,
        ),
    ] = (None, None)
    columns: Annotated[
        dict[str, str],
        _run(
            "Name of a column in a table, such as loss=train/ce; may be repeated.",
            "--column COLUMN=NAME",
            read_all=columns_from_words,
        ),
    ] = field(default_factory=dict)
    follow: Annotated[bool, _run("Continue to read while the logs grow.", "--follow -f")] = False
    every: Annotated[
        float,
        _run(
            "How often the logs are read.",
            "--every SECONDS",
            unit="seconds",
            least=0.1,
            no_effect="without --follow",
            only_with="follow",
        ),
    ] = 10.0
    target_trace: Annotated[
        Path | None, _proof("A trace of the target's first steps.", "--target-trace DIR")
    ] = None
    reference_trace: Annotated[
        Path | None, _proof("A trace of the reference's first steps.", "--reference-trace DIR")
    ] = None
    assumed: Assumed = frozenset()
    conditions: Conditions = field(default_factory=dict)
    tokenizer: Annotated[
        Path | None,
        _proof(
            "Folder of a tokenizer: batches around an onset are printed as text, if a trace holds them.",
            "--tokenizer DIR",
        ),
    ] = None
    program: Annotated[
        str | None,
        _proof(
            "Training command of the target, written into the commands to run next.", '--command "COMMAND"'
        ),
    ] = None
    output: Output = None
    report: Annotated[
        tuple[str, ...],
        Option(
            "Some of json,html,png,xlsx,md.",
            "--report LIST",
            default="all",
            read=formats_from_text,
            no_effect="without -o",
            only_with="output",
        ),
    ] = ("all",)


def command(options: CurvesOptions, printed: Printed) -> int:
    """Judge loss curves by a reference, its repeats and the migration standard.

    Reads logs of Megatron-LM, MindFormers, trueup_gpt, Hugging Face Trainer, torchtitan, nanotron, verl,
    nanoGPT and of loops that print "step 5 loss 3.2", TensorBoard events, CSV, JSON and traces.

    Exit status: 0 if the target is accepted, 1 if it differs, 2 if that cannot be decided.
    """
    from trueup.curves.comparison import Options
    from trueup.diagnosing.stages.texts import require_folder

    if not options.targets:
        raise ConfigError(
            "TARGET is missing: trueup curves TARGET --reference REF REF2 -o OUT; targets come first"
        )
    if not options.references:
        raise ConfigError(
            f"--reference is missing: trueup curves {' '.join(options.targets)} --reference REF REF2"
        )
    require_folder(options.tokenizer)
    settings = Options(
        offset=options.offset,
        assumed=options.assumed,
        stated=options.conditions,
        target_trace=options.target_trace,
        reference_trace=options.reference_trace,
        program=options.program,
        first=options.steps[0],
        last=options.steps[1],
    )
    if options.follow:
        return _follow(options, settings, quiet=printed.quiet)
    comparisons = _compare(options, settings)
    around = _around(comparisons, settings, options.tokenizer)
    written = _write(comparisons, options.output, options.report, around)
    return _show(comparisons, around, written, printed)


def _compare(options: CurvesOptions, settings: Options) -> list[CurveComparison]:
    from trueup.curves.many import compare_many

    comparisons = list(
        compare_many(
            list(options.targets), list(options.references), columns=options.columns, options=settings
        )
    )
    if settings.reference_trace is not None and all(
        (settings.target_trace or one.target.trace) is None for one in comparisons
    ):
        raise ConfigError(
            "--reference-trace proves nothing without a trace of the target: add --target-trace DIR"
        )
    return comparisons


def _around(
    comparisons: list[CurveComparison], settings: Options, tokenizer: Path | None
) -> dict[str, Around]:
    """What traces hold of the step of each judgement, by target."""
    from trueup.diagnosing.around import around_step

    around = {}
    for comparison in comparisons:
        trace = settings.target_trace or comparison.target.trace
        if trace is not None and comparison.judgement.step is not None:
            reference = settings.reference_trace or comparison.references[0].trace
            facts = around_step(trace, reference, comparison, tokenizer=tokenizer)
            if facts:
                around[comparison.target.name] = facts
    return around


def _write(
    comparisons: list[CurveComparison],
    output: Path | None,
    formats: Sequence[str],
    around: Mapping[str, Around],
) -> dict[str, Path]:
    if output is None:
        return {}
    from trueup.capture.launch.folder import make_writable
    from trueup.reporting.curves import FILES, FORMATS, write_reports

    chosen = list(FORMATS) if formats == ("all",) else list(formats)
    make_writable(output)
    try:
        return write_reports(comparisons, output, chosen, around=dict(around))
    except ConfigError as error:
        warning_line(str(error))
        paths = {name: output / file for name, file in FILES.items()}
        return {name: path for name, path in paths.items() if name in chosen and path.exists()}


def _show(
    comparisons: list[CurveComparison],
    around: Mapping[str, Around],
    written: dict[str, Path],
    printed: Printed,
) -> int:
    from trueup.reporting.curves import document_of

    document = document_of(comparisons, dict(around))
    if printed.as_json:
        print_json(document)
    elif not printed.quiet:
        from rich.console import Console

        from trueup.reporting.curves.report import curves_report
        from trueup.reporting.render import show
        from trueup.types.status import Outcome

        console = Console(highlight=False)
        if len(comparisons) > 1:
            show(curves_report(comparisons), console)
        worst = max(comparisons, key=lambda c: (c.judgement.outcome is Outcome.DIFFER, c.evidence.level))
        show(curves_report([worst], around=around, reports=list(written.values())), console)
    return document["exit_code"]


def _follow(options: CurvesOptions, settings: Options, *, quiet: bool) -> int:
    from rich.console import Console

    from trueup.curves.following import follow
    from trueup.reporting.curves.following import watch

    if len(options.targets) > 1:
        raise ConfigError("--follow: expected one target; start one for each")
    updates = follow(
        options.targets[0],
        list(options.references),
        columns=options.columns,
        options=settings,
        every=options.every,
    )
    return watch(updates, Console(highlight=False), quiet=quiet)
