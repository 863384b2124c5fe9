"""The commands whose answers are golden; every word that is a name in the inputs stands for its path."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.checklist.pairs import FOLDER, SAME
from tests.goldens.reading import READERS, Facts

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
ARCHIVES = ("goldens/inputs.tar.xz", "msprobe/msprobe-26.2.0.tar.xz", "mindspore/mindspore-2.10.tar.xz")
Cases = dict[str, tuple[str, ...]]

_ONE_STEP = (
    "repeat",
    "in-halves",
    "norm-eps",
    "attention-scale",
    "gradient-scale",
    "two-at-once",
    "transposed",
)
_ONE_STEP += ("frozen", "labels")
_TWO_STEPS = ("clipping", "not-cleared", "rate", "put-back")
_PAIRS = [(name, "reference") for name in _ONE_STEP] + [(name, "reference-of-two") for name in _TWO_STEPS]
_PAIRS += [("late-bf16", "reference-bf16")]
_MSPROBE = ("L0_statistics_statistics", "mix_statistics_md5", "mix_statistics_statistics")
_REPEATS = ("--reference", "gpu1.log", "gpu2.log")
_STILL = ("--learning-rate-0", "still.log", "still0.log")


def compared() -> Cases:
    """Traces with values, traces with statistics of every call, dumps of msprobe and of MindSpore."""
    pairs = [*_PAIRS, ("norm-eps.calls", "reference.calls"), ("norm-eps", "reference-of-two")]
    pairs += [("norm-eps.calls", "reference"), ("reference", "norm-eps.replay")]
    pairs += [(f"msprobe-26.2.0/rope_bf16/{m}", f"msprobe-26.2.0/base/{m}") for m in _MSPROBE]
    pairs += [("msprobe-26.2.0/ddp_rope_bf16", "msprobe-26.2.0/ddp_base")]
    pairs += [("msprobe-26.2.0/accumulation/tensor", "msprobe-26.2.0/accumulation/statistics")]
    pairs += [("mindspore-2.10/graph_O0", "mindspore-2.10/graph_O0")]
    cases = {f"{t} {r}": (t, r) for t, r in pairs}
    strict = ("--tolerance-factor", "0.01")
    return cases | {"in-halves reference strict": ("in-halves", "reference", *strict)}


def diagnosed() -> Cases:
    """Every pair from the traces alone; those with replays with them."""
    cases = {f"{t} {r}": (t, r) for t, r in _PAIRS}
    made = {"--replayed": "replay", "--gradients": "gradients"}
    given = {
        "in-halves": ("--replayed",),
        "norm-eps": ("--replayed",),
        "attention-scale": ("--replayed", "--gradients"),
        "gradient-scale": ("--replayed",),
        "two-at-once": ("--replayed",),
        "clipping": ("--gradients",),
        "rate": ("--gradients",),
    }
    for target, reference in _PAIRS:
        if target in given:
            words = [w for option in given[target] for w in (option, f"{target}.{made[option]}")]
            cases[f"{target} {reference} replayed"] = (target, reference, *words)
    more = (
        "--config",
        "settings.json",
        "other-settings.json",
        "--curves",
        "parted.log",
        "gpu1.log",
        "gpu2.log",
    )
    return cases | {"repeat reference with the long run": ("repeat", "reference", *more)}


def checked() -> Cases:
    """Configurations of one training in several dialects, and of two trainings."""
    pairs = [pair for group in SAME for pair in pairwise(group)]
    pairs += [(a[0], b[0]) for a, b in pairwise(SAME)]
    return {f"{a} {b}": (a, b) for a, b in pairs} | {
        "settings": ("settings.json", "other-settings.json"),
        "one side": (SAME[0][0],),
    }


def followed() -> Cases:
    """Curves good and bad, with and without what a person vouches for."""
    targets = ("good", "parted", "offset", "spiked")
    cases = {name: (f"{name}.log", *_REPEATS) for name in targets}
    cases |= {f"{name} vouched": (f"{name}.log", *_REPEATS, "--assume", "all") for name in targets}
    cases["one reference"] = ("good.log", "--reference", "gpu1.log")
    cases["some steps"] = ("spiked.log", *_REPEATS, "--steps", "100-900")
    cases["learning rate 0"] = ("moved.log", "--reference", "still0.log")
    return cases


def accepted() -> Cases:
    """The whole procedure: every part good, every part bad, parts left out."""
    parts = {
        "traces": (("repeat", "reference"), ("norm-eps", "reference")),
        "config": (
            ("--config", "settings.json", "settings.json"),
            ("--config", "settings.json", "other-settings.json"),
        ),
        "curves": (("--curves", "good.log", *_REPEATS[1:]), ("--curves", "offset.log", *_REPEATS[1:])),
        "still": (_STILL, ("--learning-rate-0", "moved.log", "still0.log")),
        "eval": (("--eval", "good-eval.json", "eval.json"), ("--eval", "bad-eval.json", "eval.json")),
    }
    cases = {
        "good": tuple(word for good, _ in parts.values() for word in good),
        "bad": tuple(word for _, bad in parts.values() for word in bad),
    }
    cases["good without the waiver"] = cases["good"]
    cases["good"] += ("--waive", "adam_beta2", "the default of the framework on both sides")
    cases["traces alone"] = parts["traces"][0]
    cases["curves vouched"] = (*parts["curves"][0], "--assume", "all")
    return cases


def checked_alone() -> Cases:
    """One run without a reference, and with its repetition."""
    cases: Cases = {
        name: (name,) for name in ("reference.calls", "not-cleared.calls", "labels", "frozen", "put-back")
    }
    cases |= {"msprobe": ("msprobe-26.2.0/base/mix_statistics_statistics",)}
    return cases | {"again": ("reference", "--again", "norm-eps")}


CASES: dict[str, Cases] = {
    "compare": compared(),
    "diagnose": diagnosed(),
    "check": checked(),
    "curves": followed(),
    "accept": accepted(),
    "check-run": checked_alone(),
    "monitor": {"watched": ("watched",)},
}
_MORE: dict[str, tuple[str, ...]] = {
    "compare": ("--no-html", "-o"),
    "diagnose": ("--no-html", "-o"),
    "accept": ("-o",),
}


def unpack(folder: Path) -> Path:
    """The inputs, and the configurations of the checklist's tests beside them."""
    folder.mkdir(exist_ok=True)
    for name in ARCHIVES:
        with tarfile.open(FIXTURES / name) as archive:
            if sys.version_info >= (3, 12):
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)
    for path in FOLDER.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def answer(verb: str, name: str, inputs: Path, out: Path) -> Facts:
    """What a command says of a case today; ``inputs`` is the folder it runs in."""
    from trueup.cli.app import run

    more = _MORE.get(verb, ())
    words = [verb, *CASES[verb][name], *more, *([str(out)] if more else []), "--json"]
    before = Path.cwd()
    os.chdir(inputs)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = run(words)
    finally:
        os.chdir(before)
    found: Facts = {"status": status}
    if printed.getvalue().strip():
        found |= READERS[verb](json.loads(printed.getvalue()), out)
    return found


def golden(verb: str) -> dict[str, Any]:
    """Case -> facts, as they were."""
    read: dict[str, Any] = json.loads((HERE / f"{verb}.json").read_text(encoding="utf-8"))
    return read


def write(verb: str, answers: dict[str, Facts]) -> None:
    """A line a fact."""
    cases = []
    for name, found in answers.items():
        lines = (f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items())
        cases.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    (HERE / f"{verb}.json").write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")
