"""``trueup compare``: two runs, one verdict."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from trueup.cli.roles import by_role
from trueup.cli.shared import Output, Printed
from trueup.comparing.options import CompareOptions
from trueup.errors import ConfigError
from trueup.types.option import Option

if TYPE_CHECKING:
    from rich.console import Console

    from trueup.diagnosing.rl.walk import RLComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRuns:
    """The two runs: on the command line, or in msprobe's compare.json."""

    target: Annotated[Path | None, Option("The run to check: a trace or a dump.", argument="TARGET")] = None
    reference: Annotated[Path | None, Option("The run that is trusted.", argument="REFERENCE")] = None
    input_file: Annotated[
        Path | None, Option("msprobe's compare.json names the two runs.", "-i --input JSON")
    ] = None
    framework: Annotated[
        Literal["pytorch", "mindspore"] | None,
        Option("msprobe's -f; no effect: a trace names its framework.", "-f --framework", hidden=True),
    ] = None
    stack_mode: Annotated[bool, Option("msprobe's -s; no effect.", "-s --stack_mode", hidden=True)] = False

    def sides(self) -> tuple[Path, Path]:
        """Target and reference.

        Raises:
            ConfigError: one is missing, or both places name them.
        """
        if self.input_file is not None:
            from trueup.cli.compare_file import sides_from_compare_file

            if self.target is not None:
                raise ConfigError(
                    f"TARGET and --input exclude each other (got {self.target} and {self.input_file})"
                )
            return sides_from_compare_file(self.input_file)
        if self.target is None or self.reference is None:
            missing = "TARGET and REFERENCE are" if self.target is None else "REFERENCE is"
            raise ConfigError(f"{missing} missing: trueup compare TARGET REFERENCE -o OUT")
        return self.target, self.reference

    def chosen(self, options: CompareOptions) -> CompareOptions:
        """``options`` with the steps and ranks that compare.json names.

        Raises:
            ConfigError: they are named there and on the command line.
        """
        if self.input_file is None:
            return options
        from trueup.cli.compare_file import chosen_in_compare_file

        chosen = chosen_in_compare_file(self.input_file)
        for name in chosen:
            if getattr(options, name) is not None:
                raise ConfigError(f"{self.input_file} and --{name} exclude each other: both name {name}")
        return replace(options, **chosen)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReports:
    """What is written."""

    output: Output = None
    html: Annotated[bool | None, Option("Write report.html.", "--html/--no-html", default="with -o")] = None
    xlsx: Annotated[
        bool | None, Option("Write a workbook.", "--xlsx/--no-xlsx", default="with -o and -i")
    ] = None
    advisor: Annotated[
        bool | None, Option("Write advice as text.", "--advisor/--no-advisor", default="with -o and -i")
    ] = None

    def formats(self, *, as_msprobe: bool) -> set[str]:
        """What to write into ``output``; for msprobe's compare.json, what msprobe writes as well.

        Raises:
            ConfigError: a format is chosen, and no folder.
        """
        chosen = {"html": self.html, "xlsx": self.xlsx, "advisor": self.advisor}
        defaults = {"html": True, "xlsx": as_msprobe, "advisor": as_msprobe}
        if self.output is not None:
            return {name for name, on in chosen.items() if (defaults[name] if on is None else on)}
        for name, on in chosen.items():
            if on:
                raise ConfigError(f"--{name} needs a folder to write to: add -o OUT")
        return set()


def command(runs: CompareRuns, options: CompareOptions, reports: CompareReports, printed: Printed) -> int:
    """Compare two runs: do they agree, and if not, where is the first divergence?

    Each side is a trace of trueup, or a dump of msprobe or MindSpore. Exit status: 0 if they agree, 1 if they
    differ, 2 if that cannot be decided. Of jobs with several process groups (verl's critic) each role is
    compared with its counterpart, of folders of verl's profiler each step and stage with its own.
    """
    _keep_memory_low()
    from trueup import reporting
    from trueup.capture.launch.folder import make_writable
    from trueup.comparing.run import compare
    from trueup.reporting.comparison.result import to_json
    from trueup.store.rollouts import is_trace

    target, reference = runs.sides()
    options = runs.chosen(options)
    formats = reports.formats(as_msprobe=runs.input_file is not None)
    _check_merge(options)
    if reports.output is not None:
        make_writable(reports.output)
    console = None
    if not (printed.quiet or printed.as_json):
        from rich.console import Console

        console = Console()
    rollouts = _rollouts(target, reference, reports, console)
    if rollouts is not None and not (is_trace(target) and is_trace(reference)):
        from trueup.reporting.rl import rl_json

        if printed.as_json:
            print(json.dumps(rl_json(rollouts), ensure_ascii=False, indent=1))
        return rollouts.outcome.exit_code

    def one(target: Path, reference: Path, output: Path | None) -> int:
        comparison = compare(target, reference, output=output, options=options)
        if output is not None:
            reporting.write_reports(comparison, output=output, formats=formats, console=console)
        elif console is not None:
            reporting.print_summary(comparison, console)
        if printed.as_json:
            print(to_json(comparison.summary))
        return int(comparison.summary["verdict"]["exit_code"])

    codes = {by_role(target, reference, reports.output, one, quiet=console is None)}
    codes |= set() if rollouts is None else {rollouts.outcome.exit_code}
    return 1 if 1 in codes else max(codes)


def _rollouts(
    target: Path, reference: Path, reports: CompareReports, console: Console | None
) -> RLComparison | None:
    """What both runs recorded of reinforcement learning, compared, shown and written."""
    from trueup.store.rollouts import has_rollouts

    if not (has_rollouts(target) and has_rollouts(reference)):
        return None  # as most have: what compares them takes as long to import as a small comparison
    from trueup.diagnosing.rl.walk import compare_rollouts
    from trueup.reporting.render import show, write
    from trueup.reporting.rl import FILES, rl_json, rl_report

    found = compare_rollouts(target, reference)
    if found is None:
        return None
    if reports.output is not None:
        text = json.dumps(rl_json(found), ensure_ascii=False, indent=1)
        (reports.output / FILES["json"]).write_text(text + "\n", encoding="utf-8")
        if reports.html is not False:
            write(rl_report(found), reports.output / FILES["html"])
    if console is not None:
        show(rl_report(found), console)
    return found


def _check_merge(options: CompareOptions) -> None:
    if options.merge is False and (options.target_layout or options.reference_layout):
        raise ConfigError("--no-merge compares rank by rank: a layout has no effect; omit one of them")
    if options.merge and (options.ranks is not None or options.target_rank is not None):
        raise ConfigError("--merge uses all ranks: omit --ranks, --target-rank and --reference-rank")


def _keep_memory_low() -> None:
    """Have the table libraries return memory at once: a fifth less at the peak, for no more time.

    Their allocators read these variables when they load, so before the first import of either; variables
    that are already set stay.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
