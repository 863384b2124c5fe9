"""The command line: one module per verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

_INTERRUPTED = 130
"""128 and SIGINT, as shells have it"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``trueup`` on ``argv`` (default: the process's own) and end the process with its exit status.

    0: agree, or done. 1: the two runs differ. 2: undecided, or used wrongly, or a fault of trueup's own.
    130: interrupted, even while the verbs are still being imported.
    """
    try:
        from trueup.cli.app import run

        sys.exit(run(list(sys.argv[1:] if argv is None else argv)))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
