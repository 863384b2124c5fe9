"""``trueup compare``: two runs, one verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup.capture.options import StepSet
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.comparing.options import CompareOptions

_MOST_NUMBERS = 1_000_000


def command(
    target: Annotated[Path | None, typer.Argument(help="The run under question.")] = None,
    reference: Annotated[Path | None, typer.Argument(help="The run that is trusted.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the result and the reports.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Only these steps, such as 0,5-8.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Only these ranks.")] = None,
    target_step: Annotated[
        int | None, typer.Option(min=0, help="One step of each, with --reference-step.")
    ] = None,
    reference_step: Annotated[int | None, typer.Option(min=0, help="See --target-step.")] = None,
    target_rank: Annotated[
        int | None, typer.Option(min=0, help="One rank of each, with --reference-rank.")
    ] = None,
    reference_rank: Annotated[int | None, typer.Option(min=0, help="See --target-rank.")] = None,
    noise: Annotated[
        Path | None,
        typer.Option(
            "--noise", help="Noise profile of the reference. Default: REFERENCE/noise if it is there."
        ),
    ] = None,
    no_noise: Annotated[
        bool, typer.Option("--no-noise", help="Judge by the dtype bound though there is a profile.")
    ] = False,
    arbiter: Annotated[
        Path | None,
        typer.Option(help="A float64 or float32 run of the program, to say which side is less accurate."),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option("--map", help="Pairs that are given, as trueup match -o writes them.")
    ] = None,
    merge: Annotated[
        bool | None,
        typer.Option(
            "--merge/--no-merge",
            help="Whole tensors from all ranks, or rank by rank. Default: whole where the layouts differ.",
        ),
    ] = None,
    target_layout: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="Where the target's tensors lie on its ranks, if it does not say."),
    ] = None,
    reference_layout: Annotated[
        Path | None, typer.Option(metavar="YAML", help="See --target-layout.")
    ] = None,
    tolerance_factor: Annotated[
        float, typer.Option(help="Multiply every tolerance by this; 1 is the documented bound.")
    ] = 1.0,
    html: Annotated[bool | None, typer.Option(help="Write report.html. Default: with -o.")] = None,
    xlsx: Annotated[bool | None, typer.Option("--xlsx/--no-xlsx", help="Write a workbook.")] = None,
    advisor: Annotated[
        bool | None, typer.Option("--advisor/--no-advisor", help="Write advice as text.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.")
    ] = False,
    input_file: Annotated[
        Path | None, typer.Option("-i", "--input", help="msprobe's compare.json names the two runs.")
    ] = None,
    framework: Annotated[str | None, typer.Option("-f", "--framework", hidden=True)] = None,
    stack_mode: Annotated[bool, typer.Option("-s", "--stack_mode", hidden=True)] = False,
) -> None:
    """Compare two runs and say whether they agree, and if not, where they part.

    Either side is a trace of trueup or a dump of msprobe. Ends with 0 if they agree, 1 if they differ, 2 if
    that cannot be decided.
    """
    _keep_memory_low()
    from trueup.capture.launch.folder import make_writable
    from trueup.comparing.run import compare

    target, reference = _sides(target, reference, input_file)
    _check_framework(framework)
    formats = _formats(output, html=html, xlsx=xlsx, advisor=advisor, as_msprobe=input_file is not None)
    if noise is not None and no_noise:
        raise ConfigError(f"--noise {noise} and --no-noise: one of them, or neither")
    options = _options(
        noise=False if no_noise else True if noise is None else noise,
        arbiter=arbiter,
        mapping=mapping,
        merge=merge,
        layouts=(target_layout, reference_layout),
        tolerance_factor=tolerance_factor,
        steps=steps,
        ranks=ranks,
        target_step=target_step,
        reference_step=reference_step,
        target_rank=target_rank,
        reference_rank=reference_rank,
    )
    if output is not None:
        make_writable(output)
    comparison = compare(target, reference, output=output, options=options)
    _show(comparison, output=output, formats=formats, as_json=as_json, quiet=quiet)
    raise typer.Exit(int(comparison.summary["verdict"]["exit_code"]))


def _keep_memory_low() -> None:
    """Have the table libraries give memory back at once: a fifth less of it at the peak, for no more time.

    Their allocators read these variables when they load, so before the first import of either; a person's own
    settings stand.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def _sides(target: Path | None, reference: Path | None, input_file: Path | None) -> tuple[Path, Path]:
    if input_file is not None:
        from trueup.cli.compare_file import sides_from_compare_file

        if target is not None:
            raise ConfigError(
                f"give the two runs either on the command line ({target}) or in {input_file}, not both"
            )
        return sides_from_compare_file(input_file)
    if target is None or reference is None:
        missing = "TARGET and REFERENCE are" if target is None else "REFERENCE is"
        raise ConfigError(f"{missing} missing: trueup compare TARGET REFERENCE -o OUT")
    return target, reference


def _check_framework(framework: str | None) -> None:
    """msprobe's ``-f``; the traces say themselves what they are of."""
    if framework not in (None, "pytorch", "mindspore"):
        raise ConfigError(
            f"-f {framework!r}: pytorch or mindspore is wanted (it has no effect, a trace says it itself)"
        )


def _formats(
    output: Path | None, *, html: bool | None, xlsx: bool | None, advisor: bool | None, as_msprobe: bool
) -> set[str]:
    """What to write into ``output``; with ``-i`` also what msprobe writes."""
    asked = {"html": html, "xlsx": xlsx, "advisor": advisor}
    if output is None:
        wanted = [f"--{name}" for name, on in asked.items() if on]
        if wanted:
            raise ConfigError(f"{wanted[0]} needs a folder to write to: add -o OUT")
        return set()
    usual = {"html": True, "xlsx": as_msprobe, "advisor": as_msprobe}
    return {name for name, on in asked.items() if (usual[name] if on is None else on)}


def _options(
    *,
    noise: Path | bool,
    arbiter: Path | None,
    mapping: Path | None,
    merge: bool | None,
    layouts: tuple[Path | None, Path | None],
    tolerance_factor: float,
    steps: str | None,
    ranks: str | None,
    **one_of_each: int | None,
) -> CompareOptions:
    from trueup.comparing.options import CompareOptions

    for what in ("step", "rank"):
        if (one_of_each[f"target_{what}"] is None) != (one_of_each[f"reference_{what}"] is None):
            raise ConfigError(f"--target-{what} and --reference-{what} go together: one {what} of each run")
    if not 0 < tolerance_factor < float("inf"):
        raise ConfigError(f"--tolerance-factor {tolerance_factor:g}: a number above 0 is wanted")
    if merge is False and any(layouts):
        raise ConfigError("--no-merge compares rank by rank: a layout has no effect; leave one of them out")
    if merge and (ranks is not None or one_of_each["target_rank"] is not None):
        raise ConfigError("--merge takes all ranks: leave --ranks, --target-rank and --reference-rank out")
    pairs: dict[str, Any] = one_of_each
    return CompareOptions(
        noise=noise,
        arbiter=arbiter,
        mapping=mapping,
        merge=merge,
        target_layout=layouts[0],
        reference_layout=layouts[1],
        tolerance_factor=tolerance_factor,
        steps=_numbers(steps, "--steps"),
        ranks=_numbers(ranks, "--ranks"),
        **pairs,
    )


def _numbers(text: str | None, what: str) -> frozenset[int] | None:
    ranges = None if text is None else StepSet.parse(text, what=what).ranges
    if ranges is None:
        return None
    if sum(last - first + 1 for first, last in ranges) > _MOST_NUMBERS:
        raise ConfigError(f"{what} {text}: more than {_MOST_NUMBERS} numbers; write all, or a shorter range")
    return frozenset(number for first, last in ranges for number in range(first, last + 1))


def _show(comparison: Any, *, output: Path | None, formats: set[str], as_json: bool, quiet: bool) -> None:
    from trueup import reporting
    from trueup.reporting import terminal

    console = None
    if not (quiet or as_json):
        from rich.console import Console

        console = Console()
    if output is not None:
        reporting.render(comparison, output=output, formats=formats, console=console)
    elif console is not None:
        terminal.print_summary(comparison, console)
    if as_json:
        print(terminal.to_json(comparison.summary))
