"""Run the public or the blind part through trueup's commands, keep the documents, and count.

``python bugzoo/zoo.py --part public`` calls this. An interrupted run goes on where it was as long as neither
trueup nor the programs have changed; ``--fresh`` asks anew. With a warm Python an entry takes some seconds:
``python -m bugzoo.public.warm python bugzoo/zoo.py --part public``.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bugzoo.public import board
from bugzoo.public.entries import BLIND, TWO, PublicEntry, public_entries
from bugzoo.scoreboard import commands
from bugzoo.scoreboard.commands import PYTHON, TRUEUP, CommandFailed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Raw = dict[str, Any]
WORK = ROOT / "out" / "zoo-public"
KEPT = (
    "stage module site phase step rank axis ranks headline headline_reason evidence_reasons".split()  # noqa: SIM905
)
"""fields of a finding that judging reads"""


PROGRAMS = ("run", "language", "encoders", "plain", "generative", "preference", "programs", "train")
"""modules of this folder that the clean programs are made of"""
JUDGES = ("comparing", "diagnosing/kinds", "diagnosing/stages", "diagnosing/checks", "diagnosing/evidence")
WORDS = ("reporting", "wording", "cli", "checklist", "curves", "accepting", "monitoring", "types/codes")
"""folders of trueup that a captured run and its noise profile do not depend on"""


def references_folder() -> Path:
    """Clean runs made by the present capture; those of another are not used again."""
    own = [HERE / f"{name}.py" for name in PROGRAMS]
    skipped = tuple(f"{ROOT / 'src' / 'trueup' / name}/" for name in (*JUDGES, *WORDS))
    code = [path for path in _code(ROOT / "src" / "trueup") if not str(path).startswith(skipped)]
    return WORK / f"references-{_digest([*own, *code])}"


def documents_folder() -> Path:
    """Answers of the present code; those of another are not gone on from."""
    own = [path for path in _code(HERE) if path.name not in ("judging.py", "board.py", "running.py")]
    return WORK / f"documents-{_digest([*own, *_code(ROOT / 'src' / 'trueup')])}"


def _code(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h"))


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def program(base: str, entry: PublicEntry | None = None) -> list[str]:
    """What starts a program, maybe with an entry planted."""
    number = 2 if base.endswith(TWO) else 1
    if entry is not None and entry.target_processes is not None:
        number = entry.target_processes
    script = [str(HERE / "train.py"), "--program", base]
    script += [] if entry is None else ["--change", entry.name]
    if number == 1:
        return [PYTHON, *script]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
    return [PYTHON, *launcher, *script]


def reference(base: str, folder: Path) -> Raw:
    """The clean run of a program with its noise profile, once; seconds of each."""
    done = folder / "seconds.json"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        capture = commands.run([*_capture(folder / "run"), *program(base)]).seconds
        options = ["noise", "-k", "3", "--quiet", "--reference", str(folder / "run"), "--"]
        noise = commands.run([*TRUEUP, *options, *program(base)]).seconds
        done.write_text(json.dumps({"capture": round(capture, 1), "noise": round(noise, 1)}))
    seconds: Raw = json.loads(done.read_text())
    return seconds


def _capture(out: Path) -> list[str]:
    options = ["--preset", "diagnose", "--steps", "0-1", "--quiet", "--overwrite", "-o", str(out), "--"]
    return [*TRUEUP, "capture", *options]


def ask(entry: PublicEntry, work: Path, references: Path) -> Raw:
    """The documents of ``compare`` and ``diagnose --replay`` on one entry."""
    began = time.perf_counter()
    said: Raw = {"entry": entry.name, "is_warm": sys.executable != PYTHON}
    folder = work / "entries" / entry.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        said["reference_seconds"] = reference(entry.base, references / entry.base)
        clean, planted = references / entry.base / "run", program(entry.base, entry)
        commands.run([*_capture(folder / "run"), *planted])
        said["compare"], said["compare_seconds"] = _document(
            ["compare", str(folder / "run"), str(clean), "-o", str(folder / "compare"), "--no-html", "--json"]
        )
        options = ["-o", str(folder / "diagnosis"), "--no-html", "--json", "--replay", shlex.join(planted)]
        said["diagnose"], said["diagnose_seconds"] = _document(
            ["diagnose", str(folder / "run"), str(clean), *options]
        )
    except (CommandFailed, ValueError) as error:
        said["failed"] = str(error)[-1500:]
    shutil.rmtree(folder, ignore_errors=True)
    said["seconds"] = round(time.perf_counter() - began, 1)
    return said


def _document(arguments: list[str]) -> tuple[Raw, float]:
    done = commands.run([*TRUEUP, *arguments], allowed=(0, 1, 2))
    if not done.output.strip():
        raise CommandFailed(done.said[-1500:])
    return json.loads(done.output), round(done.seconds, 1)


def run_all(chosen: list[PublicEntry], work: Path, *, fresh: bool) -> list[Raw]:
    """Every entry's documents, one file each; those that the same code left are not asked for again."""
    references, documents, found = references_folder(), documents_folder(), list[Raw]()
    for old in work.glob("*-*"):
        if old not in (references, documents):
            shutil.rmtree(old, ignore_errors=True)
    for number, entry in enumerate(chosen, start=1):
        path = documents / f"{entry.name}.json"
        if fresh or not path.exists() or "failed" in json.loads(path.read_text()):
            path.parent.mkdir(parents=True, exist_ok=True)
            said = ask(entry, work, references)
            path.write_text(json.dumps(said))
            shown = entry.name if entry.part != BLIND else "(blind)"
            print(f"{number:3}/{len(chosen)} {said['seconds']:6.1f} s  {shown}", file=sys.stderr, flush=True)
        found.append(json.loads(path.read_text()))
    return found


def chosen_entries(part: str, only: list[str] | None, base: list[str] | None) -> list[PublicEntry]:
    """Of one part, programs together."""
    found = [
        entry
        for entry in public_entries().values()
        if entry.part == part and (not only or entry.name in only) and (not base or entry.base in base)
    ]
    return sorted(found, key=lambda entry: entry.base)


def main(part: str, *, only: list[str] | None, base: list[str] | None, fresh: bool, shows_blind: bool) -> int:
    """Run a part, print its figures, and every entry but those of the blind part; 1 where a benign change is
    called a fault or a command failed.

    Raises:
        SystemExit: entries of the blind part are asked for by name, or names are none of the part's.
    """
    if part == BLIND and (only or base) and not shows_blind:
        raise SystemExit("the blind part is run as a whole; --blind shows its entries and takes names")
    chosen = chosen_entries(part, only, base)
    if not chosen:
        raise SystemExit(
            f"no entry of the {part} part has these names; bugzoo/public/planted/*.yaml has them all"
        )
    rows = board.rows_of(run_all(chosen, WORK, fresh=fresh))
    print("\n".join(board.figures(rows)))
    if part != BLIND or shows_blind:
        print("\n".join(board.details(rows)))
    if len(chosen) == len(chosen_entries(part, None, None)):
        write(part, rows)
    alarms = [
        row for row in rows if row.failed or (row.entry.is_benign and row.diagnosed.outcome == "differ")
    ]
    return int(bool(alarms))


def write(part: str, rows: list[board.PublicRow]) -> None:
    """The facts that the figures are made of; of the blind part the figures alone."""
    if part == BLIND:
        board.BLIND_COUNTS.write_text(json.dumps(board.figures(rows), indent=1) + "\n", encoding="utf-8")
        return
    said = [compact(row.raw) for row in rows]
    text = ",\n".join(json.dumps(one, ensure_ascii=False) for one in said)
    board.RESULTS.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def compact(raw: Raw) -> Raw:
    """What judging reads of an entry's documents."""
    if "failed" in raw:
        return {key: raw[key] for key in ("entry", "failed", "seconds")}
    verdict = raw["compare"]["verdict"]
    keys = ("outcome", "exit_code", "where", "owner", "step", "rank", "phase", "headline")
    scalars = [one for one in raw["compare"].get("scalars", []) if one["name"].startswith("batch_digest")]
    document = raw["diagnose"]
    findings = [
        {key: one.get(key) for key in KEPT}
        | {
            "kinds": [
                {key: kind.get(key) for key in ("name", "rank", "sentence_reason")} for kind in one["kinds"]
            ]
        }
        for one in document["findings"]
    ]
    said = {key: document[key] for key in ("outcome", "exit_code", "headline")}
    seconds = ("seconds", "reference_seconds", "compare_seconds", "diagnose_seconds", "is_warm")
    return {
        "entry": raw["entry"],
        "compare": {"verdict": {key: verdict[key] for key in keys}, "scalars": scalars},
        "diagnose": said | {"findings": findings},
        **{key: raw.get(key) for key in seconds},
    }
