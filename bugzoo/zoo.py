"""Run the whole collection through trueup's public commands and write ``bugzoo/SCOREBOARD.md``.

An interrupted run goes on where it was, as long as neither trueup nor the collection has changed.

``--part public`` runs the mistakes that others reported (``public/``), judged also by their cause; ``--part
blind`` those of them that nobody had looked at until they were opened, and prints totals alone.

Whether a change of trueup's code changes an answer: ``zoo.py --keep DIR`` once, with the code as it was
(an hour; 15 GB), then ``zoo.py --judge DIR`` with the code as it is. That compares and diagnoses the kept
runs again, starts no program (minutes) and prints every fact that is not in ``frozen.json``: outcome, exit
status, stage, place, kinds, axis and ranks of each finding, and the status, score and tolerance of every
record (as a digest). ``--judge DIR --freeze`` writes ``frozen.json``: an intended change is a diff of it;
``--judge DIR --documents DOCUMENTS --rescore`` puts the answers on the board, ``--others`` those of msprobe
and the loss curves alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SHOWN = 10
sys.path[0] = str(ROOT)

from bugzoo.entries import HELD_OUT, TUNING, Entry, entries  # noqa: E402
from bugzoo.public import running as public  # noqa: E402
from bugzoo.public.entries import BLIND, PUBLIC  # noqa: E402
from bugzoo.scoreboard import frozen, msprobe  # noqa: E402
from bugzoo.scoreboard.answers import Answer  # noqa: E402
from bugzoo.scoreboard.board import Raw, Row, board  # noqa: E402
from bugzoo.scoreboard.keeping import SAMPLE, Kept, in_order, keep, kept, sample  # noqa: E402
from bugzoo.scoreboard.runs import ACROSS, MODES, REPLAY, Runs, What, write  # noqa: E402


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", help="only these entries: shown, not written to the board"
    )
    parser.add_argument(
        "--part",
        choices=(TUNING, HELD_OUT, PUBLIC, BLIND),
        help="only this part: shown, not written; public and blind are written to bugzoo/public",
    )
    parser.add_argument(
        "--blind", action="store_true", help="show the entries of the blind part, not only totals"
    )
    parser.add_argument("--base", metavar="NAME", nargs="+", help="only these programs: shown, not written")
    parser.add_argument("--passive", action="store_true", help="without replay")
    parser.add_argument("--no-noise", action="store_true", help="without noise profiles")
    parser.add_argument("--no-others", action="store_true", help="without msprobe and loss curves")
    parser.add_argument(
        "--others", action="store_true", help="ask only msprobe and loss curves, put them on the board"
    )
    parser.add_argument("--jobs", type=int, default=2, help="entries at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run left")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep traces and replays, judge nothing")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="judge what --keep kept, show what changed")
    parser.add_argument(
        "--sample",
        type=int,
        nargs="?",
        const=SAMPLE,
        metavar="N",
        help="with --judge: N entries of all sorts",
    )
    parser.add_argument("--freeze", action="store_true", help="with --judge: these answers are right")
    parser.add_argument("--documents", type=Path, metavar="DIR", help="with --judge: keep the JSON documents")
    parser.add_argument(
        "--rescore", action="store_true", help="with --judge and --documents: put these answers on the board"
    )
    parser.add_argument("--board", type=Path, default=HERE / "SCOREBOARD.md")
    return parser


def main() -> int:
    """Run, print a line an entry, write the board; 1 where a control raised an alarm or an entry failed."""
    given = arguments().parse_args()
    if given.part in (PUBLIC, BLIND):
        return public.main(
            given.part, only=given.only, base=given.base, fresh=given.fresh, shows_blind=given.blind
        )
    chosen = chosen_entries(given.only, given.part, given.base)
    if given.keep is not None:
        return keep_all(chosen, given.keep)
    if given.judge is not None:
        some = entries().keys() if given.sample is None else sample(given.sample)
        chosen = [entry for entry in in_order(chosen) if entry.name in some]
        chosen_kept = kept(given.judge, chosen)
        status = judge_all(chosen_kept, jobs=given.jobs, freeze=given.freeze, documents=given.documents)
        if given.rescore and given.documents is not None:
            raw = json.loads(given.board.with_name("scoreboard.json").read_text(encoding="utf-8"))
            write_board(given.board, [frozen.on_board(one, given.documents) for one in raw])
        return status
    if given.others:
        return ask_others_alone(chosen, given.board, jobs=given.jobs)
    what = What(replay=not given.passive, noise=not given.no_noise)
    ask_others = not given.no_others
    if ask_others and msprobe.home() is None:
        print(
            "msprobe is not set up, its column stays empty: benchmarks/setup_msprobe.sh makes its environment"
        )
    is_whole = len(chosen) == len(entries())
    folder = ROOT / "out" / "zoo" / fingerprint(what)
    others = _others()
    if is_whole:
        for old in folder.parent.glob("*"):
            if old not in (folder, others):
                shutil.rmtree(old, ignore_errors=True)
    work = folder / f"work-{os.getpid()}"  # runs of parts may go on side by side
    fresh = given.fresh or given.only is not None
    try:
        runs = Runs(work, what)
        raw = run_all(chosen, runs.entry, folder / "answers", jobs=given.jobs, fresh=fresh)
        if is_whole:
            write_board(given.board, with_others(raw, others))
        if ask_others:
            run_all(chosen, runs.others, others, jobs=given.jobs, fresh=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    raw = with_others(raw, others)
    if is_whole:
        write_board(given.board, raw)
        print(f"written: {given.board}")
    else:
        print(board(raw).split("## Faults")[0].split("## Figures\n")[1])
        print(f"what was said of each: {folder / 'answers'}")
    rows = [Row(entry=entries()[one["entry"]], raw=one) for one in raw]
    alarms = sum(bool(row.judged(mode).false_alarm) for row in rows for mode in MODES)
    failed = sum(
        (a := row.answer(mode)) is not None and a.state == "failed" for row in rows for mode in MODES
    )
    return 1 if alarms or failed else 0


def _others() -> Path:
    """Where the answers of msprobe and the loss curves are kept: they do not depend on trueup's code."""
    return ROOT / "out" / "zoo" / f"others-{_digest(repr(msprobe.home()), HERE)}"


def ask_others_alone(chosen: list[Entry], board_path: Path, *, jobs: int) -> int:
    """Run what trueup has no part in, and put it beside the answers on the board; 1 where one failed."""
    work, others = ROOT / "out" / "zoo" / f"work-{os.getpid()}", _others()
    try:
        said = run_all(chosen, Runs(work, What()).others, others, jobs=jobs, fresh=False)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    raw = json.loads(board_path.with_name("scoreboard.json").read_text(encoding="utf-8"))
    write_board(board_path, with_others(raw, others))
    return int(any("failed" in one for one in said))


def keep_all(chosen: list[Entry], folder: Path) -> int:
    """Run the programs and keep what they leave, a line an entry; 1 where one failed."""
    lines = []
    for line in keep(in_order(chosen), folder):
        print(line, flush=True)
        lines.append(line)
    return int(any("  failed: " in line for line in lines))


def judge_all(chosen: list[Kept], *, jobs: int, freeze: bool, documents: Path | None) -> int:
    """Judge kept runs again and print what is not as it was frozen; 1 where a fact has changed."""
    began, answers, changed, reworded = time.perf_counter(), frozen.read(), list[str](), list[str]()
    for name, found in frozen.judge_all(chosen, jobs=jobs, documents=documents):
        lines, texts = frozen.changes(name, found, answers.get(name, {}))
        changed += lines
        reworded += texts
        if freeze:
            answers[name] = found
            frozen.write({one: answers[one] for one in entries() if one in answers})
        elif lines:
            print("\n".join(lines), flush=True)
    if reworded and not freeze:
        print(f"{len(reworded)} places are worded otherwise, among them:", *reworded[:SHOWN], sep="\n")
    seconds = time.perf_counter() - began
    print(f"{len(chosen)} entries judged in {seconds:.0f} s: {len(changed)} facts changed")
    return int((bool(changed) and not freeze) or not chosen)


def chosen_entries(only: list[str] | None, part: str | None, base: list[str] | None) -> list[Entry]:
    """What to run, programs together.

    Raises:
        SystemExit: a name is none of the collection's.
    """
    unknown = sorted(set(only or ()) - set(entries()))
    if unknown:
        raise SystemExit(f"no entry {', '.join(unknown)}; python bugzoo/train.py --list shows all")
    found = [
        entry
        for entry in entries().values()
        if (only is None or entry.name in only)
        and part in (None, entry.part)
        and (base is None or entry.base in base)
    ]
    return sorted(found, key=lambda entry: entry.base)


def fingerprint(what: What) -> str:
    """Of all code that takes part, and of what is asked for: answers of other code are not gone on from."""
    return _digest(repr(what), ROOT / "src" / "trueup", HERE)


def _digest(said: str, *folders: Path) -> str:
    digest = hashlib.sha256(said.encode())
    for path in (path for folder in folders for path in sorted(folder.rglob("*"))):
        if path.suffix in (".py", ".yaml", ".c") and "scoreboard" not in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def write_board(path: Path, raw: list[Raw]) -> None:
    """The page, and beside it what it was made of."""
    path.write_text(board(raw), encoding="utf-8")
    text = json.dumps(raw, indent=1, ensure_ascii=False)
    path.with_name("scoreboard.json").write_text(text + "\n", encoding="utf-8")


def with_others(raw: list[Raw], others: Path) -> list[Raw]:
    """Answers, and what msprobe and the loss curves said as far as they were asked."""
    paths = {path.stem: path for path in others.glob("*.json")}
    read = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    said = {name: one for name, one in read.items() if "failed" not in one}
    return [one | {k: v for k, v in said.get(one["entry"], {}).items() if k not in one} for one in raw]


def run_all(
    chosen: list[Entry], ask: Callable[[Entry], Raw], answers: Path, *, jobs: int, fresh: bool
) -> list[Raw]:
    """What is answered for every entry, in the collection's order; kept one by one."""
    began, done = time.perf_counter(), dict[str, Raw]()
    for entry in chosen:
        path = answers / f"{entry.name}.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not fresh else {"failed": ""}
        if "failed" not in kept:
            done[entry.name] = kept
    if done:
        print(f"{len(done)} of {len(chosen)} entries were run before")
    left = [entry for entry in chosen if entry.name not in done]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(ask, entry): entry for entry in left}
        for number, future in enumerate(as_completed(waiting), start=1):
            entry, said = waiting[future], future.result()
            write(answers / f"{entry.name}.json", said)
            done[entry.name] = said
            minutes = (time.perf_counter() - began) / 60
            print(f"{number:3}/{len(left)} {minutes:5.1f} min  {line(entry, said)}", flush=True)
    return [done[name] for name in entries() if name in done]


def line(entry: Entry, said: Raw) -> str:
    """One entry in a terminal."""
    row, words = Row(entry=entry, raw=said), []
    if "failed" in said:
        words.append(f"FAILED: {said['failed'].strip()[-200:]}")
    for mode in MODES:
        answer = row.answer(mode)
        if answer is not None:
            words.append(f"{mode}: {_verdict(row, mode, answer)}")
    return f"{entry.name} ({entry.base}; {said['seconds']} s)  " + "; ".join(words)


def _verdict(row: Row, mode: str, answer: Answer) -> str:
    if answer.state != "ran":
        return answer.state
    judged = row.judged(mode)
    if row.entry.is_benign:
        return "FALSE ALARM" if judged.false_alarm else str(answer.outcome)
    wrong = [name for name in ("stage", "site", "kind", "whose") if getattr(judged, name) is False]
    if mode not in (MODES[2], REPLAY, ACROSS):
        wrong = [name for name in wrong if name not in ("kind", "whose")]
    if not wrong:
        return "right"
    first = answer.named[0] if answer.named else None
    whose = f" {first.axis or ''}{first.ranks or ''}" if first else ""
    said = f"{first.stage} {first.site or 'root'} {first.kinds[:1]}{whose}" if first else answer.outcome
    return f"wrong {'+'.join(wrong)} ({said})"


if __name__ == "__main__":
    sys.exit(main())
