"""Trains every layout of the PyTorch half's tests on MindSpore, and each one's process alone.

Run as ``python -m benchmarks.workers.mindspore_worlds``. Prints one JSON object a layout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.trainer.layouts import cut, differences
from tests.trainer.mindspore.runs import Run, in_world, reference
from tests.trainer.test_layouts import EIGHT, FOUR, FP32, SAME_BITS, TWO

from trueup.errors import ConfigError
from trueup_gpt.config import config_from
from trueup_gpt.mindspore.limits import check_supported

WORLDS = {2: {**TWO, **SAME_BITS}, 4: FOUR, 8: EIGHT}
SINGLE = " float32"
SECONDS = 3000


def cases(size: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> dtype and configuration of the layouts of that many processes."""
    found = {name: ("float64", cut(sections, size)) for name, sections in WORLDS[size].items()}
    if size == 2:
        names = [name for name in (*FP32, *SAME_BITS) if not name.startswith(("z2", "z3"))]
        found |= {name + SINGLE: ("float32", cut(WORLDS[size][name], size, "float32")) for name in names}
    return found


def refused(plain: dict[str, Any]) -> str | None:
    """What the trainer says of a layout that MindSpore does not run."""
    try:
        check_supported(config_from(plain), "cpu")
    except ConfigError as error:
        return str(error)
    return None


def say(name: str, **found: Any) -> None:
    """One line."""
    print(json.dumps({"name": name, **found}), flush=True)


def main() -> None:
    """World by world."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    only = given.only.split(",") if given.only else None
    known = {name for size in WORLDS for name in cases(size)}
    if only and not known.issuperset(only):
        sys.exit(f"--only: expected some of {', '.join(sorted(known))}")
    for size in WORLDS:
        chosen = {name: one for name, one in cases(size).items() if only is None or name in only}
        for name, (_, plain) in chosen.items():
            if (why := refused(plain)) is not None:
                say(name, processes=size, refused=why)
        left = {name: one for name, one in chosen.items() if refused(one[1]) is None}
        if left:
            _world(size, left, given.steps)


def _world(size: int, left: dict[str, tuple[str, dict[str, Any]]], steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = {name: one for name, (_, one) in left.items()}
        found = in_world(size, plain, Path(folder), steps=steps, seconds=SECONDS)
    for name, (dtype, one) in left.items():
        run = found[name]
        if isinstance(run, Run):
            far = differences(run, reference(one, steps))
            say(name, processes=size, dtype=dtype, differences=far)
        else:
            say(name, processes=size, dtype=dtype, error=run[-600:])


if __name__ == "__main__":
    main()
