"""Is the place of a planted fault named first, and noise left alone? trueup next to msprobe.

Runs the collection's training program free, with each fault and each change that is none planted in it,
through ``trueup capture`` at its defaults (level L0, gradients, optimizer), and compares with the
unchanged run.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bugzoo.benign import BENIGN
from bugzoo.catalogue import Change
from bugzoo.faults import FAULTS
from processes import ROOT, TRUEUP, measure, msprobe_bin
from results import Results, Row, heading, parser
from turns import trained

STEPS = {"two-threads": 3}
"""captured steps, where they are not two"""
LEVELS = {True: "L0", False: "mix"}
"""level of faults, and of changes that are none: more sites, more to be wrong about"""
SUMMARY = {"repeat": "md5"}
"""msprobe's summary mode where it is not statistics: whether a run is the same again is asked of the bits"""
METHOD = (
    "The collection's GPT (hidden 256, sequence 128, 4 layers), same seed, two captured steps (three "
    "for one against two threads), level L0 with gradients and optimizer for faults, mix for changes "
    "that are none. Named first: the first site of the verdict belongs to the owning module, or to "
    "something inside it, in the right phase. For a change that is no fault nothing may be flagged. "
    "msprobe: the same levels, statistics (md5 for the repeat), its own compare of step 0 (of every "
    "step where there is no fault); its answer is taken to be the first row it marks as error, else the "
    "first warning, read kindly: any row of the owner will do, in whatever phase."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool says of one change, and whether that is right."""

    right: bool
    said: str
    raw: dict[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """Captures a run with a change planted, compares it with the unchanged one, and answers."""

    def judge(self, change: Change, *, steps: int) -> Answer:
        """The answer for one change."""


class Trueup:
    """trueup's command line; the answer is the verdict."""

    def __init__(self, folder: Path, *, steps: int) -> None:
        self._folder = folder
        self._references = {level: self._capture(None, level, steps=steps) for level in LEVELS.values()}

    def judge(self, change: Change, *, steps: int) -> Answer:
        """Right: the first site belongs to the owner, in the right phase; without a fault, the runs agree."""
        level, out = LEVELS[change.phase is not None], self._folder / f"{change.name}.out"
        sides = [str(self._capture(change, level, steps=steps)), str(self._references[level])]
        measure([*TRUEUP, "compare", *sides, "-o", str(out), "--no-html", "--quiet"], allowed=(0, 1, 2))
        result = json.loads((out / "result.json").read_text())
        verdict = result["verdict"]
        if change.phase is None:
            right = verdict["outcome"] == "agree"
        else:
            right = change.is_named_by(phase=verdict["phase"], owner=verdict["owner"], where=verdict["where"])
        said = verdict["where"] or verdict["outcome"]
        kept = {name: value for name, value in verdict.items() if name != "next"}
        return Answer(right=right, said=said, raw={"verdict": kept, "counts": result["counts"]})

    def _capture(self, change: Change | None, level: str, *, steps: int) -> Path:
        out = self._folder / (change.name if change else f"reference-{level}")
        program = [sys.executable, str(ROOT / "bugzoo" / "train.py"), "--steps", str(steps)]
        if change is not None:
            program += ["--benign" if change.phase is None else "--fault", change.name]
        options = ["--level", level, "--steps", f"0-{steps - 1}", "--quiet", "-o", str(out)]
        measure([*TRUEUP, "capture", *options, "--", *program])
        return out


class Msprobe:
    """msprobe in its own environment; the answer is the first row its compare marks."""

    def __init__(self, folder: Path, home: Path, *, steps: int) -> None:
        self._folder, self._home, self._steps = folder, home, steps
        self._references: dict[str, Path] = {}

    def judge(self, change: Change, *, steps: int) -> Answer:
        """Right: the row a person would look at first is the owner's; without a fault, no row is marked."""
        options = {
            "level": LEVELS[change.phase is not None],
            "summary_mode": SUMMARY.get(change.name, "statistics"),
        }
        kind = "-".join(options.values())
        if kind not in self._references:
            self._references[kind] = self._capture(None, f"reference-{kind}", options, steps=self._steps)
        target = self._capture(change, change.name, options, steps=steps)
        looked_at = range(1 if change.phase else steps)
        marked = [row for step in looked_at for row in self._marked(target, self._references[kind], step)]
        first = next(
            (name for name, result in marked if result != "warning"), marked[0][0] if marked else None
        )
        right = not marked if change.phase is None else first is not None and _owns(change, first)
        raw = {"options": options, "num_marked": len(marked), "first_marked": marked[:10]}
        said = first or "nothing"
        return Answer(right=right, said=said if change.phase else f"{len(marked)} rows marked", raw=raw)

    def _capture(self, change: Change | None, name: str, options: dict[str, str], *, steps: int) -> Path:
        out = self._folder / name
        how: dict[str, Any] = {"options": options, "output": str(out), "keep": True}
        how |= {"change": change and change.name, "hidden": 256, "seq": 128}
        trained(self._home / "python", "train_steps.py", tool="msprobe", **how, steps=steps)
        return out

    def _marked(self, target: Path, reference: Path, step: int) -> list[tuple[str, str]]:
        """Rows it does not pass, in its order: name and result."""
        out = self._folder / f"{target.name}.{step}.out"
        sides = ["-tp", str(target / f"step{step}"), "-gp", str(reference / f"step{step}")]
        measure([str(self._home / "msprobe"), "compare", *sides, "-o", str(out)])
        with next(out.glob("*.csv")).open(newline="") as file:
            rows = [(row["NPU Name"], row["Result"].lower()) for row in csv.DictReader(file)]
        return [row for row in rows if row[1] in ("error", "warning", "different")]


def _owns(change: Change, name: str) -> bool:
    """Whether a row of msprobe's (``Module.layers.0.ln1.LayerNorm.forward.0.input.0``) is the owner's."""
    match = re.match(r"Module\.(.*)\.[^.]+\.(?:forward|backward|parameters_grad)\.", name)
    fqn = match[1] if match else ""
    return change.owner is not None and (fqn == change.owner or fqn.startswith(change.owner + "."))


def main() -> None:
    """Plant everything, and write ``results/origin.json``."""
    options = parser(__doc__)
    options.add_argument("--only", help="only this entry of the collection")
    given = options.parse_args()
    settings = {"steps": 2, "seed": 0, "threads": 1}
    results = Results(name="origin", title="Naming the origin", method=METHOD, settings=settings)
    changes = [c for c in (*FAULTS.values(), *BENIGN.values()) if given.only in (None, c.name)]
    if given.quick and not given.only:
        changes = [FAULTS["rope-bf16"], FAULTS["weight-decay"], BENIGN["chunk-for-split"]]
    print(heading())
    with tempfile.TemporaryDirectory() as folder:
        _judge_all(results, changes, Path(folder))
    results.save(quick=given.quick or given.only is not None)


def _judge_all(results: Results, changes: list[Change], folder: Path) -> None:
    most, home = max(STEPS.get(change.name, 2) for change in changes), msprobe_bin()
    for tool in ("trueup", "msprobe"):
        (folder / tool).mkdir()
    tools: dict[str, Tool] = {"trueup": Trueup(folder / "trueup", steps=most)}
    if home is not None:
        tools["msprobe"] = Msprobe(folder / "msprobe", home, steps=most)
    answers: dict[str, dict[str, Answer]] = {}
    for change in changes:
        answers[change.name] = {
            name: tool.judge(change, steps=STEPS.get(change.name, 2)) for name, tool in tools.items()
        }
        results.add(_row(change, answers[change.name]))
        results.raw[change.name] = {name: answer.raw for name, answer in answers[change.name].items()}
    faults = [answers[change.name] for change in changes if change.phase is not None]
    others = [answers[change.name] for change in changes if change.phase is None]
    results.add(_total("faults whose origin is named first", faults))
    results.add(_total("changes that are no fault, left alone", others))


def _row(change: Change, answers: dict[str, Answer]) -> Row:
    right, wrong = ("agree", "flagged") if change.phase is None else ("named", "not named")
    words = {name: right if answer.right else wrong for name, answer in answers.items()}
    return Row(
        what=f"{'no fault' if change.phase is None else 'fault'}: {change.summary}",
        bar=right,
        trueup=words["trueup"],
        msprobe=words.get("msprobe", ""),
        met=answers["trueup"].right,
        note="; ".join(f"{name}: {answer.said}" for name, answer in answers.items()),
    )


def _total(what: str, answers: list[dict[str, Answer]]) -> Row:
    def count(name: str) -> int:
        return sum(given[name].right for given in answers)

    said = {name: f"{count(name)} of {len(answers)}" for given in answers[:1] for name in given}
    return Row(
        what=what,
        bar=f"{len(answers)} of {len(answers)}",
        trueup=said.get("trueup", ""),
        msprobe=said.get("msprobe", ""),
        met=not answers or count("trueup") == len(answers),
    )


if __name__ == "__main__":
    main()
