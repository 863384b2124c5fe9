"""Train a base on the reference trainer's MindSpore half with one entry planted.

A plain training program: it knows nothing of what captures it. Several processes are started by msrun.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from bugzoo.bases import Base, bases  # noqa: E402
from bugzoo.entries import entries, planted_by  # noqa: E402
from trueup_gpt.launching import finished, launch, place_in_world, schedule  # noqa: E402


def main() -> int:
    """Train and print the loss of every step, or start the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base", required=True)
    parser.add_argument("--steps", type=int, default=2)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--fault", metavar="NAME")
    chosen.add_argument("--benign", metavar="NAME")
    given = parser.parse_args()
    base = bases().get(given.base)
    if base is None or base.framework != "mindspore":
        parser.error(f"--base {given.base}: not one of MindSpore's")
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return schedule("cpu")
    if base.ranks > 1 and "MS_ROLE" not in os.environ:
        os.environ.setdefault("GLOG_v", "3")
        with tempfile.TemporaryDirectory(prefix="msrun-") as folder:
            words = [str(Path(__file__).resolve()), *sys.argv[1:]]
            return launch(base.ranks, words, Path(folder), quiet=False)
    _train(base, given.fault or given.benign, given.steps)
    finished(*place_in_world(os.environ))
    return 0


def _train(base: Base, name: str, steps: int) -> None:
    from bugzoo.half import changes  # noqa: F401
    from bugzoo.half.trainer import MindSporeTrainer

    trainer = MindSporeTrainer(base)
    planted_by(name)(trainer, **entries()[name].arguments)
    for step in range(steps):
        loss = trainer.step().loss
        if trainer.rank == 0:
            print(f"step {step} loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
