"""Put real programs through capture, compare, diagnose and check-run; write ``docs/real-programs.md``.

``python -m realworld.run [NAME ...]``; without a name all of them. Results lie in ``realworld/results.json``,
and a program's traces and log in ``out/realworld/NAME`` with ``--keep``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any

from realworld.entries import HERE, ROOT, Program, programs
from realworld.page import page
from realworld.pythons import Pythons
from realworld.trial import Asked, Trial, faults_of

RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "real-programs.md"


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these")
    parser.add_argument("--in-ci", action="store_true", help="those that CI runs")
    parser.add_argument("--fault", action="append", help="only this fault; 'none' plants none")
    parser.add_argument("--no-replay", action="store_true", help="diagnose without running the target again")
    parser.add_argument("--no-seed", action="store_true", help="leave out the run with another seed")
    parser.add_argument("--no-parity", action="store_true", help="leave out check-run --compile-parity")
    parser.add_argument("--only-parity", action="store_true", help="check-run --compile-parity alone")
    parser.add_argument("--keep", action="store_true", help="keep the traces")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--no-results", action="store_true", help="print only: leave the page as it is")
    return parser


def main() -> int:
    """Run, print what does not hold; 1 where something does not."""
    given = arguments().parse_args()
    unknown = sorted(set(given.names) - set(programs()))
    if unknown:
        raise SystemExit(f"no program {', '.join(unknown)}; expected some of: {', '.join(programs())}")
    chosen = [one for name, one in programs().items() if not given.names or name in given.names]
    chosen = [one for one in chosen if one.in_ci is not None or not given.in_ci]
    asked = Asked(
        faults=None if given.fault is None else tuple(given.fault),
        replay=not given.no_replay,
        seed=not given.no_seed,
        parity=not given.no_parity,
        only_parity=given.only_parity,
    )
    status = 0
    with ExitStack() as closing:
        pythons = Pythons(closing)
        pool = closing.enter_context(ThreadPoolExecutor(given.jobs))
        try:
            work = [pool.submit(trial, one, pythons.of(one), asked, keep=given.keep) for one in chosen]
        except FileNotFoundError as error:
            raise SystemExit(str(error)) from None
        for done in as_completed(work):
            results = done.result()
            lines = faults_of(results)
            status |= bool(unknown_lines(programs()[results["name"]], lines))
            print(f"{results['name']}: {results['seconds']} s", *lines, sep="\n   ", flush=True)
            if not given.no_results:
                save(results)
    return status


def unknown_lines(program: Program, lines: list[str]) -> list[str]:
    """What does not hold, but for what is known not to."""
    return [line for line in lines if not line.startswith(tuple(program.known))]


def trial(program: Program, python: str, asked: Asked, *, keep: bool) -> dict[str, Any]:
    """One program in a folder of its own."""
    folder = ROOT / "out" / "realworld" / program.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        results = Trial(program, folder, python).run(asked)
        (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        return results
    finally:
        if not keep:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)


def save(results: dict[str, Any]) -> None:
    """Put one program's results among the others, and write the page; what was not asked for stays."""
    read = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    before = {key: held for key, held in read.get(results["name"], {}).items() if key != "failed"}
    faults = {**before.get("faults", {}), **results.get("faults", {})}
    read[results["name"]] = {**before, **results, "faults": faults}
    ordered = {name: read[name] for name in programs() if name in read}
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(ordered, programs()), encoding="utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
