"""Count how often a conclusion with each word of confidence is right.

    python bugzoo/zoo.py --judge KEPT --documents DOCUMENTS
    python bugzoo/calibration.py DOCUMENTS

The tuning part gives the shares that trueup knows (``MEASURED`` in ``trueup/types/confidence.py``); the
held-out part says whether they hold (``reliability.json``, shown on the scoreboard). A control that is said
to differ counts as a wrong conclusion.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from bugzoo.scoreboard import reliability  # noqa: E402
from bugzoo.scoreboard.board import board  # noqa: E402


def main() -> int:
    """Count, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("documents", type=Path, help="folder that zoo.py --judge --documents has written")
    counts = reliability.count(parser.parse_args().documents)
    reliability.write(counts)
    raw = json.loads((HERE / "scoreboard.json").read_text(encoding="utf-8"))
    (HERE / "SCOREBOARD.md").write_text(board(raw), encoding="utf-8")
    print("\n".join(reliability.table(counts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
