"""``trueup dump-config``: the configuration of MindSpore's own dump, written or checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.capture.dump_config.build import (
    DeviceTarget,
    DumpRequest,
    JitLevel,
    dump_settings,
    environment_lines,
)
from trueup.cli.printing import error_line, hint_line, note_line, warning_line
from trueup.cli.shared import Overwrite, Quiet
from trueup.errors import ConfigError
from trueup.types.option import GivenOptions, Option, option_fields

if TYPE_CHECKING:
    from trueup.capture.dump_config.check import Mistake

_CHECK = "Check a configuration"
_BAD_USE = 2
_READ = ("level", "device_target")
"""options that a check uses too"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpConfigFile:
    """The file to write, or to check."""

    output: Annotated[Path, Option("The JSON file to write.", "-o --output FILE")] = Path("data_dump.json")
    overwrite: Overwrite = False
    check: Annotated[
        Path | None, Option("List the mistakes in a configuration.", "--check FILE", panel=_CHECK)
    ] = None
    dump: Annotated[
        Path | None,
        Option(
            "A dump of the same network, or its execution order (.csv), that should have the kernels.",
            "--dump DIR",
            panel=_CHECK,
        ),
    ] = None
    quiet: Quiet = False


def command(request: GivenOptions[DumpRequest], file: DumpConfigFile) -> int:
    """Write a MINDSPORE_DUMP_CONFIG and print the environment it needs; or --check one.

    The output is for a shell: eval "$(trueup dump-config --kind full --path /dump)". Exit status: 2 if
    --check finds a mistake.
    """
    if file.check is not None:
        _check_unused(request, file)
        return _check(file.check, request, file)
    if file.dump is not None:
        raise ConfigError("--dump has no effect without --check FILE")
    if "kind" not in request:
        raise ConfigError("--kind is missing: full, partial, overflow or condition; or --check FILE")
    if "path" not in request:
        raise ConfigError("--path is missing: the folder of the dump")
    _write(DumpRequest(**request.values), file)  # type: ignore[arg-type]
    return 0


def _check_unused(request: GivenOptions[DumpRequest], file: DumpConfigFile) -> None:
    """Raise for what says how a file is written, beside one that is read.

    Raises:
        ConfigError: naming it.
    """
    default = DumpConfigFile()
    given = [f.flag for f in option_fields(DumpRequest) if f.name in request and f.name not in _READ]
    given += ["--output"] if file.output != default.output else []
    given += ["--overwrite"] if file.overwrite else []
    if given:
        raise ConfigError(f"--check excludes {' and '.join(given)}: it reads an existing file")


def _write(request: DumpRequest, file: DumpConfigFile) -> None:
    settings, path = dump_settings(request), file.output.absolute()
    if path.is_file() and not file.overwrite:
        raise ConfigError(f"{path} exists already; --overwrite replaces it, -o names another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=4) + "\n", encoding="utf-8")
    if not file.quiet:
        note_line(f"wrote {path}; afterwards: trueup inspect {request.path}")
    for line in environment_lines(path, request):
        print(line)


def _check(path: Path, request: GivenOptions[DumpRequest], file: DumpConfigFile) -> int:
    """Print every mistake; the exit status."""
    from trueup.capture.dump_config.check import check_dump_config

    mistakes = check_dump_config(
        path,
        level=request.get("level", JitLevel),
        device_target=request.get("device_target", DeviceTarget),
        operators=None if file.dump is None else _operators(file.dump),
    )
    for mistake in mistakes:
        (error_line if mistake.fatal else warning_line)(str(mistake))
    if not file.quiet:
        note_line(_summary(path, mistakes))
    if any(mistake.fatal for mistake in mistakes) and not file.quiet:
        hint_line("trueup dump-config --kind full --path /dump writes one that is correct")
    return _BAD_USE if any(mistake.fatal for mistake in mistakes) else 0


def _summary(path: Path, mistakes: list[Mistake]) -> str:
    fatal = sum(mistake.fatal for mistake in mistakes)
    if not mistakes:
        return f"{path} is correct"
    return f"{path}: mistakes at which MindSpore stops: {fatal}; mistakes it ignores: {len(mistakes) - fatal}"


def _operators(dump: Path) -> list[str]:
    from trueup.importers.mindspore.reader import operator_names

    names = operator_names(dump)
    if not names:
        raise ConfigError(
            f"{dump} names no operator; expected a dump of the same network with its execution_order"
        )
    return names
