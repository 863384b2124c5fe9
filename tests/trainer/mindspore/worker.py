"""One process of ``runs.in_world``: trains every case in turn, and leaves what it holds as files."""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from pathlib import Path

from trueup_gpt.launching import finished, place_in_world, schedule


def main(folder: Path) -> None:
    """A case that fails is told by its traceback; the ones after it may hang, and are not tried."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        schedule("cpu")
        return
    from tests.trainer.mindspore.runs import train

    rank, size = place_in_world(os.environ)
    given = json.loads((folder / "cases.json").read_text())
    for name, plain in given["cases"].items():
        try:
            found: object = train(plain, given["steps"])
        except Exception:
            found = traceback.format_exc()
        (folder / f"{name}.{rank}.pickle").write_bytes(pickle.dumps(found))
        if isinstance(found, str):
            sys.exit(1)
    finished(rank, size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
