"""``trueup check``: two training configurations compared, in any of the formats it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.cli.printing import json_text, print_json
from trueup.cli.shared import Data, Inference, Printed
from trueup.errors import ConfigError
from trueup.types.option import Option

if TYPE_CHECKING:
    from trueup.checklist import Checklist
    from trueup.checklist.settings import SettingsDocument

_HTML, _XLSX, _JSON = "checklist.html", "checklist.xlsx", "checklist.json"


def names_from_words(words: Sequence[str], place: str) -> tuple[str, ...]:
    """Names, separated by commas as well; none is no error."""
    return tuple(name.strip() for text in words for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Which configurations, and what of them."""

    target: Annotated[
        str,
        Option(
            "Configuration of the run to check: a file, several joined by commas, a folder, a trace, or "
            "a quoted command line.",
            argument="TARGET",
        ),
    ]
    reference: Annotated[
        str | None,
        Option(
            "The same for the trusted run. Without it, TARGET is compared with the recommendations.",
            argument="REFERENCE",
        ),
    ] = None
    output: Annotated[
        Path | None, Option("Write checklist.html, .xlsx and .json into this folder.", "-o --output DIR")
    ] = None
    only: Annotated[
        tuple[str, ...],
        Option(
            "Check only these sections (structure, moe, optimizer, weights, precision, parallel, data, rl, "
            "environment) or fields (docs/check-fields.md); may be repeated.",
            "--only SECTION|FIELD",
            read_all=names_from_words,
        ),
    ] = ()
    ignore: Annotated[
        tuple[str, ...],
        Option(
            "Leave these sections or fields out; may be repeated.",
            "--ignore SECTION|FIELD",
            read_all=names_from_words,
        ),
    ] = ()
    data: Data = ()
    inference: Inference = None
    no_recommendations: Annotated[
        bool,
        Option(
            "Judge only whether the training is the same, and not the accuracy guide's recommendations.",
            "--no-recommendations",
        ),
    ] = False
    prepare: Annotated[
        bool,
        Option(
            "Write TARGET reduced to a first, deterministic reproduction, in its own format, and the "
            "environment for it, into -o; with REFERENCE both, side by side.",
            "--prepare",
            excludes="expand",
        ),
    ] = False
    expand: Annotated[
        bool,
        Option(
            "Write the way back from the reduced configuration to TARGET into -o, one feature a file; with "
            "REFERENCE both, rung by rung.",
            "--expand",
        ),
    ] = False
    all_rows: Annotated[bool, Option("Print aligned rows and unread keys as well.", "--all")] = False


def _none_left(options: CheckOptions) -> str:
    words = (("--only", options.only), ("--ignore", options.ignore))
    given = " ".join(f"{flag} {','.join(names)}" for flag, names in words if names)
    both = [name for name in options.only if name in options.ignore]
    if both and len(both) == len(options.only):
        return f"{given} leaves no row: --ignore takes away all that --only names"
    none = "the configuration has no" if options.reference is None else "neither configuration has a"
    return (
        f"{given} leaves no row: {none} setting of it; what a framework fixes in its code is compared in the "
        "precision table of trueup compare"
    )


def command(options: CheckOptions, printed: Printed) -> int:
    """Check that two training configurations describe the same training, before any run.

    Reads Megatron-LM (command line, launch script, log, YAML, checkpoint), MindFormers (static graph and
    pynative), Hugging Face (config.json, TrainingArguments, trainer_state.json), LLaMA-Factory,
    ms-swift, Axolotl, torchtune, DeepSpeed, torchtitan,
    Lightning, NeMo, plain YAML, JSON and TOML, traces of trueup, and environments. Put a script that takes
    arguments in quotes with them. Exit status: 0 if they agree, 1 if they differ, 2 if that cannot be
    decided. The verdict has two parts: whether both describe the same training, and whether the accuracy
    guide's recommendations are followed; either can make it 1.
    """
    from trueup.checklist import check
    from trueup.checklist.document import to_json
    from trueup.reporting.checklist import checklist_report
    from trueup.reporting.render import show
    from trueup.wording import document

    if options.prepare or options.expand:
        return _write_reduced(options, printed)
    references = None if options.reference is None else [options.reference]
    checklist = check(
        [options.target],
        references,
        only=list(options.only),
        ignore=list(options.ignore),
        recommend=not options.no_recommendations,
        data=options.data,
        inference=() if options.inference is None else [options.inference],
    )
    if not checklist.rows and not checklist.unmet:
        if options.only or options.ignore:
            raise ConfigError(_none_left(options))
        raise ConfigError(f"{options.target}: it contains nothing that could be checked")
    text = json_text(document(to_json(checklist)))
    reports = [] if options.output is None else _write_reports(checklist, text, options.output)
    if printed.as_json:
        print(text)
    elif not printed.quiet:
        from rich.console import Console

        show(checklist_report(checklist, everything=options.all_rows, reports=reports), Console())
    return checklist.exit_code


def _write_reports(checklist: Checklist, text: str, output: Path) -> list[Path]:
    from trueup.capture.launch.folder import make_writable
    from trueup.reporting.checklist import checklist_report
    from trueup.reporting.render import write

    make_writable(output)
    (output / _JSON).write_text(text + "\n", encoding="utf-8")
    report = checklist_report(checklist)
    return [write(report, output / _HTML), write(report, output / _XLSX), output / _JSON]


def _write_reduced(options: CheckOptions, printed: Printed) -> int:
    from trueup.capture.launch.folder import make_writable
    from trueup.checklist.ladder import expanded
    from trueup.checklist.prepare import prepared
    from trueup.checklist.readers import read_side

    flag = "--prepare" if options.prepare else "--expand"
    if options.output is None:
        raise ConfigError(f"-o is missing: trueup check {options.target} {flag} -o OUT")
    make_writable(options.output)
    documents = read_side([options.target])
    if options.reference is not None:
        return _write_both(options, documents, read_side([options.reference]), options.output, printed)
    reduce = prepared if options.prepare else expanded
    result = reduce(documents, options.output)
    if printed.as_json:
        print_json(result.to_json())
    elif not printed.quiet:
        from rich.console import Console

        from trueup.reporting.checklist_reduced import reduced_report
        from trueup.reporting.render import show

        show(reduced_report(result), Console())
    return 0


def _write_both(
    options: CheckOptions,
    target: Sequence[SettingsDocument],
    reference: Sequence[SettingsDocument],
    output: Path,
    printed: Printed,
) -> int:
    from trueup.checklist.both_sides import reduced_together

    result = reduced_together(target, reference, output, ladder=options.expand)
    if printed.as_json:
        print_json(result.to_json())
    elif not printed.quiet:
        from rich.console import Console

        from trueup.reporting.checklist_reduced import both_reduced_report
        from trueup.reporting.render import show

        show(both_reduced_report(result), Console())
    return result.exit_code
