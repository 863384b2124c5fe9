"""Writes docs/estimate.md: what a capture costs, with the estimate of a 7B model on the meta device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).parent / "estimate.md"
PROGRAM = "python examples/on_meta.py examples/llama_7b.json --sequence 4096"
COMMANDS = (
    f"trueup capture --estimate --preset diagnose --max-bytes 200GB -o runs/7b -- {PROGRAM}",
    "trueup capture --estimate --preset diagnose --no-optimizer --scope model.layers.0 model.layers.15 "
    f"--steps 0 --max-bytes 50GB -o runs/7b -- {PROGRAM}",
)
HEAD = """# What a capture costs, before it is made

Written by `python docs/make_estimate.py`, which runs the commands shown (they need the transformers
library).

`trueup capture --estimate OPTIONS -- COMMAND` runs the first steps of COMMAND with OPTIONS: two with values
counted and not written, two more without capture, then the program is ended; nothing is left behind. It
says tensors, bytes on disk, host memory and seconds a step for each rank and in all, and which smaller
captures fit on the disk, or into `--max-bytes`. Estimates are held to what real captures take by
`tests/capture/test_estimate.py`: within 5 %, smaller captures and the meta device within 20 %.

## A model that is too large for this machine

On the meta device tensors have shapes and no values, so that a 7B model at sequence 4096 is estimated on a
laptop in a minute, without seconds a step. `examples/on_meta.py` trains any model of Transformers there,
from its `config.json`; a program of your own does the same under `with torch.device("meta"):`. Parallel
layouts are not simulated: the numbers are those of one process that holds the whole model.

"""
TAIL = """
What to do with it:

- **Statistics first.** Without `--preset` and `--task tensor` a step of this model is a megabyte: compare,
  and store values only of what differs.
- **One step, half the layers, no optimizer state**, as the advice says; the other half in a second run. A
  replay feeds each module the reference's inputs, so halves are diagnosed one by one.
- **Level L0.** API calls (`--level mix`) store every intermediate result as well.
- Values are kept in their own dtype: bfloat16 is never widened.
- `--max-bytes` is kept by the capture too: values that do not fit are left out, with a line in the trace,
  statistics stay whole. `--sample-ranks N` captures N ranks, evenly spaced.

While a large step is written a line every 10 s says how far it is. At most 256 MB of values (or one tensor,
if that is larger) wait in host memory on the CPU; values of a device pass through 32 MB on the device and a
ring of 256 MB of pinned memory. A disk that is slower than the program then slows it, and the trace says
so.

## Compression

Values are not compressed. zstd at level 1 with shuffled bytes makes bfloat16 values of a trained GPT 1.5 to
1.8 times smaller at 65 to 210 MB/s of one core, without shuffling 1.3 to 1.5 times at 150 to 560 MB/s
(`benchmarks/compress_values.py`, 2 busy cores): less than a local disk writes, on cores that the program's
data loaders use, and a compressed file can no longer be mapped, or read by other tools. A file system that
compresses does as much for an archive.
"""


def shown(command: str) -> str:
    """The command with what it prints."""
    words = command.replace("trueup ", f"{sys.executable} -m trueup ").replace(
        "-- python ", f"-- {sys.executable} "
    )
    done = subprocess.run(
        words.split(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "src", "COLUMNS": "110"},
    )
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    return "\n".join(["```console", f"$ {command}", *lines, "```", ""])


def main() -> None:
    """Write the page."""
    PAGE.write_text(HEAD + "\n".join(map(shown, COMMANDS)) + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
