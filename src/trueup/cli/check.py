"""``trueup check``: two training configurations held against each other, whatever they are written for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.checklist import Checklist

_HTML, _XLSX, _JSON = "checklist.html", "checklist.xlsx", "checklist.json"


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Configuration of the run under question: a file, several joined by commas, a folder, "
            "a trace, or a quoted command line.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="[REFERENCE]",
            help="The same for the trusted run. Without it, TARGET is held against the recommendations.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write checklist.html, .xlsx and .json into this folder."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="SECTION|FIELD", help="Look at these alone; may be repeated."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="SECTION|FIELD", help="Leave these out; may be repeated."),
    ] = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Write TARGET reduced to a first, deterministic reproduction, in its own dialect, and the "
            "environment for it, into -o.",
        ),
    ] = False,
    expand: Annotated[
        bool,
        typer.Option(
            "--expand",
            help="Write the way back from the reduced configuration to TARGET into -o, one feature a file.",
        ),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show aligned rows and unread keys too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.")
    ] = False,
) -> None:
    """Check that two training configurations describe the same training, before anything is dumped.

    Reads Megatron-LM (command line, launch script, log, YAML, checkpoint), MindFormers (static graph and
    pynative), Hugging Face (config.json, TrainingArguments, trainer_state.json), DeepSpeed, torchtitan,
    Lightning, NeMo, plain YAML, JSON and TOML, traces of trueup, and environments. A script that takes
    arguments is given in quotes with them. Ends with 0 if they agree, 1 if they differ, 2 if that cannot be
    decided.
    """
    from trueup.checklist import check

    if target is None:
        raise ConfigError("TARGET is missing: trueup check TARGET_CONFIG REFERENCE_CONFIG")
    if prepare or expand:
        _write_reduced(
            target, reference, output, prepare=prepare, expand=expand, as_json=as_json, quiet=quiet
        )
        return
    checklist = check(
        [target], None if reference is None else [reference], only=_names(only), ignore=_names(ignore)
    )
    if not checklist.rows:
        raise ConfigError(f"{target}: nothing that could be checked was found in it")
    _show(checklist, output=output, everything=everything, as_json=as_json, quiet=quiet)
    raise typer.Exit(checklist.exit_code)


def _names(given: list[str] | None) -> list[str]:
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]


def _show(checklist: Checklist, *, output: Path | None, everything: bool, as_json: bool, quiet: bool) -> None:
    from trueup.checklist.document import to_json
    from trueup.reporting.checklist import checklist_report

    text = json.dumps(to_json(checklist), ensure_ascii=False, indent=2)
    reports = [] if output is None else _reports(checklist, text, output)
    if as_json:
        print(text)
    elif not quiet:
        from rich.console import Console

        from trueup.reporting.render import show

        show(checklist_report(checklist, everything=everything, reports=reports), Console())


def _reports(checklist: Checklist, text: str, output: Path) -> list[Path]:
    from trueup.capture.launch.folder import make_writable
    from trueup.reporting.checklist import checklist_report
    from trueup.reporting.render import write

    make_writable(output)
    (output / _JSON).write_text(text + "\n", encoding="utf-8")
    report = checklist_report(checklist)
    return [write(report, output / _HTML), write(report, output / _XLSX), output / _JSON]


def _write_reduced(
    target: str,
    reference: str | None,
    output: Path | None,
    *,
    prepare: bool,
    expand: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    option = "--prepare" if prepare else "--expand"
    if prepare and expand:
        raise ConfigError("--prepare and --expand: one of them; --expand starts from what --prepare writes")
    if reference is not None:
        raise ConfigError(f"{option} takes one configuration; run it once for each side")
    if output is None:
        raise ConfigError(f"say where the configurations are to go: trueup check {target} {option} -o OUT")
    from trueup.capture.launch.folder import make_writable
    from trueup.checklist.ladder import expanded
    from trueup.checklist.prepare import prepared
    from trueup.checklist.readers import read_side

    make_writable(output)
    documents = read_side([target])
    result = prepared(documents, output) if prepare else expanded(documents, output)
    if as_json:
        print(json.dumps(result.to_json(), ensure_ascii=False, indent=2))
    elif not quiet:
        from rich.console import Console

        from trueup.reporting.checklist_reduced import reduced_report
        from trueup.reporting.render import show

        show(reduced_report(result), Console())
