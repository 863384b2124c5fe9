"""Kept runs judged again, and their answers held against those that were frozen.

Only the command line and the files it writes are used, in processes of this one: what is judged does not
depend on how the code is arranged inside.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bugzoo.scoreboard import facts
from bugzoo.scoreboard.answers import FAILED, Answer, from_compare, from_diagnose
from bugzoo.scoreboard.keeping import Kept
from bugzoo.scoreboard.runs import ACROSS, PASSIVE, REPLAY, SKETCHES, VALUES
from bugzoo.scoreboard.runs import write as write_answer

FROZEN = Path(__file__).resolve().parents[1] / "frozen.json"
Answers = dict[str, dict[str, Any]]
"""mode -> facts"""


def judge_all(
    entries: Iterable[Kept], *, jobs: int, documents: Path | None = None
) -> Iterator[tuple[str, Answers]]:
    """Every entry's answers, in the given order; the documents they are read from go to ``documents``."""
    judge = functools.partial(judge_kept, documents=documents)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(judge, entries)


def judge_kept(one: Kept, documents: Path | None = None) -> tuple[str, Answers]:
    """The answers that ``zoo.py`` asks for, from what is kept of an entry."""
    values, reference = one.folder / "values", one.reference / "values"
    printed: dict[str, Any] = {}
    answers = {
        VALUES: compare(values, reference, printed, VALUES),
        SKETCHES: compare(one.folder / "sketches", one.reference / "sketches", printed, SKETCHES),
        PASSIVE: diagnose(values, reference, printed, PASSIVE),
    }
    if one.replays:
        answers[REPLAY] = diagnose(values, reference, printed, REPLAY, **one.replays)
    if one.alone is not None:
        answers[ACROSS] = diagnose(values, one.alone, printed, ACROSS)
    if documents is not None:
        write_answer(documents / f"{one.entry.name}.json", printed)
    return one.entry.name, answers


def on_board(raw: dict[str, Any], documents: Path) -> dict[str, Any]:
    """What the board holds of an entry, with the answers that were read from kept runs; how long a command
    took stays what it was when the program ran."""
    path = documents / f"{raw['entry']}.json"
    if not path.exists():
        return raw
    answers = dict(raw.get("answers", {}))
    printed = json.loads(path.read_text(encoding="utf-8"))
    printed.setdefault(REPLAY, printed[PASSIVE])  # where nothing differs no replay is made
    for mode, document in printed.items():
        read_answer = from_compare if mode in (VALUES, SKETCHES) else from_diagnose
        seconds = answers.get(mode, {}).get("seconds")
        answer = Answer(state=FAILED) if document is None else read_answer(document, seconds=seconds)
        answers[mode] = answer.to_json()
    return raw | {"answers": answers, "is_judged_again": True}


def compare(target: Path, reference: Path, printed: dict[str, Any], mode: str) -> dict[str, Any]:
    """Facts of ``trueup compare``; its document goes to ``printed``."""
    with tempfile.TemporaryDirectory(prefix="judged-") as out:
        status, document = command("compare", str(target), str(reference), "-o", out, "--no-html", "--json")
        printed[mode] = document
        if document is None:
            return {"failed": status}
        return _with_status(facts.of_compare(document, Path(out) / "result.parquet"), status)


def diagnose(
    target: Path,
    reference: Path,
    printed: dict[str, Any],
    mode: str,
    *,
    replay: Path | None = None,
    gradients: Path | None = None,
) -> dict[str, Any]:
    """Facts of ``trueup diagnose``, with replays made before; its document goes to ``printed``."""
    replayed = [] if replay is None else ["--replayed", str(replay)]
    replayed += [] if gradients is None else ["--gradients", str(gradients)]
    with tempfile.TemporaryDirectory(prefix="judged-") as out:
        words = ("diagnose", str(target), str(reference), "-o", out, "--no-html", "--json", *replayed)
        status, document = command(*words)
    printed[mode] = document
    return {"failed": status} if document is None else _with_status(facts.of_diagnose(document), status)


def command(*words: str) -> tuple[int, dict[str, Any] | None]:
    """Exit status of a trueup command and the document it prints, None where it prints none."""
    from trueup.cli.app import run

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = run(list(words))
    return status, json.loads(printed.getvalue()) if printed.getvalue().strip() else None


def _with_status(found: dict[str, Any], status: int) -> dict[str, Any]:
    """The process's status as well, where it is not the document's."""
    return found if found["exit"] == status else found | {"status": status}


def read(path: Path = FROZEN) -> dict[str, Answers]:
    """Entry -> mode -> facts."""
    found: dict[str, Answers] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(answers: dict[str, Answers], path: Path = FROZEN) -> None:
    """A line an entry and mode."""
    parts = []
    for name, modes in answers.items():
        lines = (f"  {json.dumps(mode)}: {_line(found)}" for mode, found in modes.items())
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _line(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def changes(name: str, found: Answers, frozen: Answers) -> tuple[list[str], list[str]]:
    """A line for each fact that differs; and for each place that is only worded otherwise."""
    lines, texts = [], []
    for mode in dict.fromkeys([*frozen, *found]):
        now, then = found.get(mode, {}), frozen.get(mode, {})
        for key in dict.fromkeys([*then, *now]):
            if now.get(key) != then.get(key):
                line = f"{name}, {mode}, {key}: {_line(now.get(key))} (frozen: {_line(then.get(key))})"
                (texts if key in facts.TEXTS else lines).append(line)
    return lines, texts
