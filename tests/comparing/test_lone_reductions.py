"""Updates that a program writes itself: below what a coarse model's rounding may make, bits and code tell."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from trueup.comparing.run import compare
from trueup.comparing.verdict import Verdict
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.status import Outcome

STEP = """
def step(self):
    square = self.sum.pow(2).sum()
    dist.all_reduce(square)
    self.master.sub_(self.lr * self.sum / square.sqrt())
    dist.all_gather(self.parts, self.master)
"""
WITHOUT = STEP.replace("    dist.all_reduce(square)\n", "")
REDUCED = 0.0
"""a reduction that returns what it was given"""


def run(
    folder: Path,
    source: str = STEP,
    *,
    off: float = 0.0,
    reduced: float | None = 0.5,
    between: float = 0.0,
    device: str = "CPU",
) -> Path:
    """A step in float16 whose flat float32 weights, ``off`` by a share, are sent after a sum of squares over
    ranks that adds ``reduced``; None: it is not made. ``between``: share by which what is sent before is off.
    """
    draw, out = np.random.default_rng(0).standard_normal, Recorder()
    weight = out.call("parameter", "layer.weight")
    out.record(weight, "param", "value", draw((8, 8)).astype(np.float16))
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", draw((4, 8)).astype(np.float16))
    out.record(root, "forward", "output.0", draw((4, 8)).astype(np.float16))
    out.record(weight, "param_grad", "local", draw((8, 8)).astype(np.float16))

    def sent(name: str, **arrays: np.ndarray) -> None:
        call = out.call("collective", f"torch.distributed.{name}")
        for slot, array in arrays.items():
            out.record(call, "collective", slot.replace("_", "."), array.astype(np.float32))

    flat = draw(64)
    sent("all_reduce", input_0=flat, output_0=flat * (1 + between))
    if reduced is not None:
        sent("all_reduce", input_0=np.ones(()), output_0=np.full((), 1 + reduced))
    master = draw(64)
    sent("all_gather", input_1=master * (1 + off * np.sign(draw(64))))
    out.write(folder, devices=[device], world_size=2)
    roots = {"type": {"": "Net"}, "class": {"Net": "Net.forward"}, "module": {}, "frame": {"Own.step": 0}}
    code = {"functions": [["Own.step", "train.py", 1, source, source, {}, {}]], "roots": roots | {"role": {}}}
    (folder / "code").mkdir()
    (folder / "code" / "rank_00000.json.gz").write_bytes(gzip.compress(json.dumps(code).encode()))
    return folder


def verdict_of(target: Path, reference: Path) -> Verdict:
    return compare(target, reference).verdict


@pytest.mark.parametrize("lacking", ["target", "reference"])
def test_the_only_other_statement_made_the_other_bits(lacking: str, tmp_path: Path) -> None:
    with_it = run(tmp_path / "with")
    without = run(tmp_path / "without", WITHOUT, off=1e-5, reduced=None)
    pair = (without, with_it) if lacking == "target" else (with_it, without)
    verdict = verdict_of(*pair)
    assert (verdict.outcome, verdict.headline.code) == (Outcome.DIFFER, VerdictCode.REDUCED_BY_ONE)
    assert verdict.headline.place("side") == ("reference" if lacking == "target" else "target")
    assert (verdict.headline.place("call"), verdict.headline.place("function")) == ("all_reduce", "Own.step")
    assert verdict.evidence[1].code is EvidenceCode.REDUCED_BY_ONE
    assert (verdict.evidence[1].number("given"), verdict.evidence[1].number("made")) == (1.0, 1.5)


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"off": 1e-6, "source": WITHOUT.replace("self.lr * self.sum", "self.sum * self.lr")},
        {"off": 1e-6, "device": "NVIDIA H100"},
        {"off": 1e-6, "between": 1e-6},
    ],
    ids=["logged", "more is written otherwise", "kernels may not repeat", "other bits before it"],
)
def test_rounding_may_have_made_the_other_bits(target: dict[str, object], tmp_path: Path) -> None:
    with_it = run(tmp_path / "with", device=str(target.get("device", "CPU")))
    settings = {"source": WITHOUT, "reduced": None, **target}
    assert verdict_of(run(tmp_path / "without", **settings), with_it).outcome is Outcome.AGREE  # type: ignore[arg-type]


def test_a_reduction_that_changes_nothing_made_no_other_bits(tmp_path: Path) -> None:
    with_it = run(tmp_path / "with", reduced=REDUCED)
    without = run(tmp_path / "without", WITHOUT, off=1e-6, reduced=None)
    assert verdict_of(without, with_it).outcome is Outcome.AGREE


CAST = STEP.replace("    self.master", "    self.master = self.master.half().float()\n    self.master", 1)
OTHER = STEP.replace("self.lr", "2 * self.lr")


@pytest.mark.parametrize(
    ("source", "off", "outcome", "code"),
    [
        (CAST, 2e-4, Outcome.DIFFER, VerdictCode.CASTS_DIFFER),
        (OTHER, 2e-4, Outcome.UNDECIDED, VerdictCode.UPDATE_CODE_DIFFERS),
        (OTHER, 1e-6, Outcome.AGREE, VerdictCode.AGREE),
        (STEP, 2e-4, Outcome.AGREE, VerdictCode.AGREE),
        (OTHER.replace("sub_", "sub"), 2e-4, Outcome.AGREE, VerdictCode.AGREE),
    ],
    ids=["casts", "an update", "rounding of float32", "the same code", "writes no weights"],
)
def test_what_is_sent_after_backward_tells_of_the_update(
    source: str, off: float, outcome: Outcome, code: VerdictCode, tmp_path: Path
) -> None:
    """In float32, of a model in float16: within its rounding, and far from that of float32."""
    before = STEP.replace("sub_", "sub") if "sub(" in source else STEP
    verdict = verdict_of(run(tmp_path / "target", source, off=off), run(tmp_path / "reference", before))
    assert (verdict.outcome, verdict.headline.code) == (outcome, code)
    if code is VerdictCode.CASTS_DIFFER:
        assert verdict.headline.place("dtype") == "float16"
