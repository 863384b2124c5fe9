"""``python -m tests.goldens [--write] [VERB ...]``: show or take what is not as it was."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.goldens.cases import CASES, answer, golden, unpack, write
from tests.goldens.reading import differences


def main() -> int:
    """Ask every case; 1 where an answer is not as it was."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens")
    parser.add_argument("verbs", metavar="VERB", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--write", action="store_true", help="today's answers are right")
    given = parser.parse_args()
    num_changed = 0
    with tempfile.TemporaryDirectory(prefix="goldens-") as made:
        inputs = unpack(Path(made))
        for verb in given.verbs or CASES:
            answers = {
                name: answer(verb, name, inputs, Path(made) / f"out.{verb}.{number}")
                for number, name in enumerate(CASES[verb])
            }
            if given.write:
                write(verb, answers)
                continue
            was = golden(verb)
            lines = [
                f"{verb}, {k}: {line}" for k, v in answers.items() for line in differences(v, was.get(k))
            ]
            print(*lines, sep="\n", end="\n" * bool(lines))
            num_changed += len(lines)
    print("written" if given.write else f"{num_changed} facts changed")
    return int(num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())
