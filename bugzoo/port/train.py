"""Train the port with one entry planted; it is otherwise as the example's, mended.

A plain training program: it knows nothing of what captures it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from examples.migration import mindspore_gpt  # noqa: E402

from bugzoo.entries import planted_by  # noqa: E402
from bugzoo.port import changes  # noqa: E402, F401


def main() -> None:
    """``--fault NAME`` or ``--benign NAME``, and the port's own options."""
    how, name = sys.argv[1:3]
    if how not in ("--fault", "--benign"):
        raise SystemExit(f"{how}: --fault NAME or --benign NAME comes first")
    planted_by(name)(mindspore_gpt)
    sys.argv[1:3] = ["--mend", *mindspore_gpt.MENDS]
    mindspore_gpt.main()


if __name__ == "__main__":
    main()
