"""Train one of the public part's programs, as it should be or with one entry planted.

A plain training program: it knows nothing of what captures it. Programs of two processes are started with
torchrun.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __package__ in (None, ""):  # started by its path: this folder is on sys.path, not the repository's
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist

from bugzoo.public.entries import planted
from bugzoo.public.programs import PROGRAMS


def main() -> None:
    """Build, change, train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--program", required=True, choices=sorted(PROGRAMS))
    parser.add_argument("--change", metavar="NAME", help="plant this entry")
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = PROGRAMS[given.program]()
    run.world = int(os.environ.get("WORLD_SIZE", "1"))
    run.rank = int(os.environ.get("RANK", "0"))
    if given.change is not None:
        planted(given.change)(run)
    if run.world > 1:
        dist.init_process_group("gloo")
    try:
        run.train(given.steps)
        if run.world > 1:
            dist.barrier()
    finally:
        if run.world > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
