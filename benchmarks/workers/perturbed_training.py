"""Train as ``python -m trueup_gpt`` does, from weights that are changed by as much as rounding does.

    python -m benchmarks.workers.perturbed_training SEED CONFIG ...

The change is that of ``trueup noise``: once, in one of twelve elements, to the next number. Of the rest of
the run nothing is changed, and of its steps only the first is captured, into a folder that is removed.
"""

from __future__ import annotations

import sys
import tempfile

from trueup import Tracer
from trueup_gpt.cli import main


def train(seed: int) -> None:
    """The run whose configuration and options are left in ``sys.argv``."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Tracer(f"{folder}/trace", level="L0", steps="0", perturb=seed),
    ):
        main()


if __name__ == "__main__":
    train(int(sys.argv.pop(1)))
