"""``trueup dump-config``: the configuration of MindSpore's own dump, written or checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup.cli.capture import one_of
from trueup.cli.printing import error_line, note_line, warning_line
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.capture.dump_config import DumpRequest, Mistake
    from trueup.capture.options import StepSet

_WHAT = "What to dump"
_WHERE = "Where it runs"
_CHECK = "Check a configuration"
_SAVED = ("tensor", "statistic", "full")
_FORMATS = ("npy", "bin")
_BAD_USE = 2


def command(
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="full|partial|overflow|condition",
            help="Every operator; statistics or samples alone; what overflows; what --kernel, --set-dump, "
            "--iteration or --devices choose.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    path: Annotated[Path | None, typer.Option(help="Folder the dump goes to.", rich_help_panel=_WHAT)] = None,
    net_name: Annotated[
        str, typer.Option(help="Name of the network's folder in the dump.", rich_help_panel=_WHAT)
    ] = "Net",
    iteration: Annotated[
        str, typer.Option(help='Such as "0|5-8|100-120", or all.', rich_help_panel=_WHAT)
    ] = "all",
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Operator: full name, part of a type, or name-regex(...); may be given again.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    set_dump: Annotated[
        bool, typer.Option("--set-dump", help="What mindspore.set_dump marked.", rich_help_panel=_WHAT)
    ] = False,
    input_output: Annotated[
        str, typer.Option(metavar="both|input|output", help="Tensors of an operator.", rich_help_panel=_WHAT)
    ] = "both",
    devices: Annotated[
        str, typer.Option("--devices", "--ranks", help="Devices, such as 0,2-3.", rich_help_panel=_WHAT)
    ] = "0-7",
    saved_data: Annotated[
        str | None,
        typer.Option(
            metavar="tensor|statistic|full",
            help="Values, statistics or both. Default: what the kind means.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    statistics: Annotated[
        str,
        typer.Option(
            help="Columns of statistic.csv, such as max,min,avg,l2norm,nan count,md5.", rich_help_panel=_WHAT
        ),
    ] = "max,min,l2norm",
    sample: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only N elements of each tensor.", rich_help_panel=_WHAT),
    ] = None,
    overflow_number: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="End after N overflows, 0: never.", rich_help_panel=_WHAT),
    ] = None,
    file_format: Annotated[
        str, typer.Option(metavar="npy|bin", help="Of values at level O2.", rich_help_panel=_WHAT)
    ] = "npy",
    level: Annotated[
        str | None,
        typer.Option(
            metavar="O0|O1|O2",
            help="jit_level of the training script. Default: O0; with --check what the file is written for.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    device_target: Annotated[
        str | None,
        typer.Option(
            metavar="Ascend|GPU|CPU", help="MindSpore's device. Default: Ascend.", rich_help_panel=_WHERE
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSON file to write.")] = Path(
        "data_dump.json"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Name the mistakes in a configuration.", rich_help_panel=_CHECK),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A dump of the same network, or its execution order (.csv): are the kernels there?",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Write a MINDSPORE_DUMP_CONFIG and print the environment it needs; or --check one.

    What is printed is for a shell: eval "$(trueup dump-config --kind full --path /dump)". Ends with 2 where
    --check finds a mistake.
    """
    if check is not None:
        if kind is not None or path is not None:
            raise ConfigError("--check looks at a file that is there; --kind and --path write a new one")
        raise typer.Exit(_check(check, level, device_target, dump, quiet=quiet))
    if dump is not None:
        raise ConfigError("--dump goes with --check FILE")
    request = _request(
        {
            "kind": kind,
            "path": path,
            "level": level or "O0",
            "device_target": device_target or "Ascend",
            "input_output": input_output,
            "saved_data": saved_data,
            "file_format": file_format,
        },
        net_name=net_name,
        iterations=_numbers(iteration, what="--iteration"),
        kernels=tuple(kernel or ()),
        set_dump=set_dump,
        devices=_listed(devices),
        statistics=_statistics(statistics),
        sample=sample,
        overflow_number=overflow_number,
    )
    _write(request, output.absolute(), overwrite=overwrite, quiet=quiet)


def _request(words: dict[str, Any], **more: Any) -> DumpRequest:
    from trueup.capture.dump_config import DeviceTarget, DumpRequest, InputOutput, JitLevel, Kind

    if words["kind"] is None:
        raise ConfigError("--kind is missing: full, partial, overflow or condition; or --check FILE")
    if words["path"] is None:
        raise ConfigError("--path is missing: the folder the dump goes to")
    saved, stored = words["saved_data"], words["file_format"]
    if saved is not None and saved not in _SAVED:
        raise ConfigError(f"--saved-data {saved!r}: one of {', '.join(_SAVED)} is wanted")
    if stored not in _FORMATS:
        raise ConfigError(f"--file-format {stored!r}: one of {', '.join(_FORMATS)} is wanted")
    sides = {side.name.lower(): side for side in InputOutput}
    if words["input_output"] not in sides:
        raise ConfigError(f"--input-output {words['input_output']!r}: one of {', '.join(sides)} is wanted")
    return DumpRequest(
        kind=one_of(Kind, words["kind"], what="--kind"),
        path=words["path"].expanduser().absolute(),
        level=one_of(JitLevel, words["level"], what="--level"),
        device_target=one_of(DeviceTarget, words["device_target"], what="--device-target"),
        input_output=sides[words["input_output"]],
        saved_data=saved,
        file_format=stored,
        **more,
    )


def _numbers(text: str, *, what: str) -> StepSet:
    from trueup.capture.options import StepSet

    return StepSet.parse(text, what=what)


def _listed(text: str) -> tuple[int, ...]:
    ranges = _numbers(text, what="--devices").ranges
    if ranges is None:
        raise ConfigError("--devices: MindSpore wants their numbers, such as 0-7")
    return tuple(sorted({number for first, last in ranges for number in range(first, last + 1)}))


def _statistics(text: str) -> tuple[str, ...]:
    from trueup.capture.config_file import unknown_key_message
    from trueup.capture.dump_config.settings import STATISTICS

    words = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    for word in words:
        if word not in STATISTICS:
            said = unknown_key_message(word, STATISTICS).replace("unknown key", "unknown statistic")
            raise ConfigError(f"--statistics: {said}")
    if not words:
        raise ConfigError("--statistics is empty; max,min,l2norm are MindSpore's own choice")
    return words


def _write(request: DumpRequest, file: Path, *, overwrite: bool, quiet: bool) -> None:
    from trueup.capture.dump_config import dump_settings, environment_lines

    settings = dump_settings(request)
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} is there already; --overwrite replaces it, -o writes another")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings, indent=4) + "\n", encoding="utf-8")
    if not quiet:
        note_line(f"wrote {file}; afterwards: trueup inspect {request.path}")
    for line in environment_lines(file, request):
        print(line)


def _check(
    file: Path, level: str | None, device_target: str | None, dump: Path | None, *, quiet: bool
) -> int:
    """Print every mistake; the exit status."""
    from trueup.capture.dump_config import DeviceTarget, JitLevel, check_dump_config

    found = check_dump_config(
        file,
        level=None if level is None else one_of(JitLevel, level, what="--level"),
        device_target=(
            None if device_target is None else one_of(DeviceTarget, device_target, what="--device-target")
        ),
        operators=None if dump is None else _operators(dump),
    )
    for mistake in found:
        (error_line if mistake.fatal else warning_line)(str(mistake))
    if not quiet:
        note_line(_summary(file, found))
    return _BAD_USE if any(mistake.fatal for mistake in found) else 0


def _summary(file: Path, found: list[Mistake]) -> str:
    fatal = sum(mistake.fatal for mistake in found)
    if not found:
        return f"{file} is right"
    return f"{file}: mistakes that MindSpore stops at: {fatal}; that it passes over: {len(found) - fatal}"


def _operators(dump: Path) -> list[str]:
    from trueup.importers import operator_names

    names = operator_names(dump)
    if not names:
        raise ConfigError(
            f"{dump} names no operator; give a dump of the same network with its execution_order"
        )
    return names
