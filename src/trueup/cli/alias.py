"""``trueup alias``: trueup under the name of another tool, for programs that import it by that name."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from trueup.cli.printing import note_line
from trueup.cli.shared import Quiet
from trueup.errors import ConfigError
from trueup.types.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasOptions:
    """Which name."""

    name: Annotated[Literal["msprobe"] | None, Option("The other tool: msprobe.", argument="NAME")] = None
    remove: Annotated[bool, Option("Remove the alias.", "--remove")] = False
    quiet: Quiet = False


def command(options: AliasOptions) -> int:
    """Let programs of this environment that import msprobe use trueup's PrecisionDebugger.

    verl's profiler with tool: precision_debugger then writes traces. A msprobe that is installed, before or
    later, is always the one that is imported.
    """
    from trueup.capture.alias import add_alias, remove_alias

    if options.name is None:
        raise ConfigError("NAME is missing: trueup alias msprobe")
    packages = Path(sysconfig.get_path("purelib"))
    file = (remove_alias if options.remove else add_alias)(options.name, packages)
    if not options.quiet:
        note_line(
            f"removed {file}" if options.remove else f"wrote {file}; undo: trueup alias msprobe --remove"
        )
    return 0
