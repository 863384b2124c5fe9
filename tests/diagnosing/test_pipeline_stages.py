"""What one stage of a pipeline hands to another, and clipping over stages that hold different weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.traces import Recorder, of_two_ranks
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.store import layout
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason

SEND = "torch.distributed.isend"
LIMIT = 0.5


def _drawn(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _clipped(gradients: list[NDArray[np.float32]]) -> float:
    return LIMIT / float(np.sqrt(sum(float(np.square(one).sum()) for one in gradients)))


def _stage(
    name: str,
    factor: float,
    gradient: NDArray[np.float32],
    arrives: NDArray[np.float32],
    seed: int,
    *,
    receives: bool = False,
) -> Recorder:
    """A module with one weight, whose gradients come from ``arrives``."""
    out = Recorder()
    weight = out.call("parameter", f"{name}.weight")
    out.record(weight, "param", "value", _drawn(seed, 8, 8))
    root = out.call("module", "", type_="Stage")
    module = out.call("module", name, root, "Linear")
    for call in (root, module):
        out.record(call, "forward", "input.0", _drawn(seed + 1, 4, 8))
    for call in (module, root):
        out.record(call, "forward", "output.0", _drawn(seed + 2, 4, 8))
    if receives:
        received = out.call("collective", "torch.distributed.irecv")
        out.record(received, "collective", "input.0", None, reason="the memory that is received into")
    for call in (module, root):
        out.record(call, "backward", "output.0", arrives)
    for slot in ("local", "accumulated"):
        out.record(weight, "param_grad", slot, gradient)
    out.record(weight, "param_grad", "clipped", gradient * np.float32(factor))
    return out


def _run(path: Path, *, made: float = 1.0, sent: float = 1.0, clip: float = 1.0) -> Path:
    """Two stages; the second makes ``made`` times its gradient and sends ``sent`` times that back."""
    back = _drawn(5, 4, 8) * np.float32(made)
    handed = back * np.float32(sent)
    gradients = [_drawn(6, 8, 8) * np.float32(made * sent), _drawn(7, 8, 8)]
    factor = clip * _clipped(gradients)
    first = _stage("up", factor, gradients[0], handed, 10, receives=True)
    second = _stage("down", factor, gradients[1], _drawn(8, 4, 8), 20)
    calls = second.step.calls["name"]
    for name in ("down", ""):
        second.record(calls.index(name), "backward", "input.0", back)
    send = second.call("collective", SEND)
    second.record(send, "collective", "input.0", handed)
    of_two_ranks(first, path, second)
    return path


def _said(tmp_path: Path, **target: Any) -> Diagnosis:
    return diagnose(
        _run(tmp_path / "target", **target), _run(tmp_path / "reference"), output=tmp_path / "out"
    )


def test_a_gradient_changed_between_the_module_and_the_call_that_sends_it(tmp_path: Path) -> None:
    first, *_ = _said(tmp_path, sent=0.5).findings
    assert (first.stage, first.module, first.rank) == (Stage.BACKWARD, SEND, 1)
    assert first.kinds[0].name == "wrong_scale"


def test_a_gradient_that_the_module_made_so_is_the_modules(tmp_path: Path) -> None:
    first, *_ = _said(tmp_path, made=0.5).findings
    assert (first.stage, first.rank) == (Stage.BACKWARD, 1)
    assert first.module != SEND


def test_smaller_gradients_clipped_to_the_same_norm_of_all_stages_are_clipped_alike(tmp_path: Path) -> None:
    for name, changed in (("sent", {"sent": 0.5}), ("made", {"made": 0.5})):
        stages = [one.stage for one in _said(tmp_path / name, **changed).findings]
        assert Stage.REDUCTION not in stages


def test_another_norm_of_all_stages_is_seen(tmp_path: Path) -> None:
    first, *_ = _said(tmp_path, clip=0.8).findings
    assert first.stage is Stage.REDUCTION


def test_the_same_runs_agree(tmp_path: Path) -> None:
    assert _said(tmp_path).findings == ()


def _handed_on(path: Path, made: float, *, is_sent: bool, dtype: str = "float32", kept: int = 4) -> Path:
    """A first stage that makes ``made`` times an output, and a second that is given it, all or the first
    rows of it, as it was sent in a dtype."""
    batch, out = _drawn(30, 4, 8), _drawn(31, 4, 8) * np.float32(made)
    sent = out.astype(dtype)
    taken = np.concatenate([sent[:kept], batch[kept:].astype(dtype)]).astype(np.float32)
    stages = Recorder(), Recorder()
    for stage, (given, gives) in zip(stages, ((batch, out), (taken, taken @ _drawn(32, 8, 8))), strict=True):
        root = stage.call("module", "", type_="Stage")
        stage.record(root, "forward", "input.0", given)
        stage.record(root, "forward", "output.0", gives)
    send = stages[0].call("collective", SEND)
    stages[0].record(send, "collective", "input.0", sent if is_sent else batch)
    of_two_ranks(stages[0], path, stages[1])
    for rank, digest in ((0, "ab"), (1, f"cd{made}{dtype}{kept}")):
        line = {"step": 0, "rank": rank, "loss": 1.0, "batch_digest": digest}
        file = layout.scalars_file(path, rank)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(line) + "\n")
    return path


@pytest.mark.parametrize("is_sent", [True, False])
def test_what_another_stage_sends_is_no_batch(tmp_path: Path, is_sent: bool) -> None:
    """Its twin: an input that nobody sends is one."""
    runs = (_handed_on(tmp_path / str(made), made, is_sent=is_sent) for made in (2.0, 1.0))
    found = diagnose(*runs, output=tmp_path / "out")
    (data,) = (one for one in found.stages if one.stage is Stage.DATA)
    assert (data.status is StageStatus.FAILED) is not is_sent
    assert found.findings[0].stage is (Stage.FORWARD if is_sent else Stage.DATA)


@pytest.mark.parametrize("side", ["target", "reference"])
def test_what_is_sent_in_a_coarser_dtype_is_no_batch(side: str, tmp_path: Path) -> None:
    sides = {name: "float16" if name == side else "float32" for name in ("target", "reference")}
    runs = (_handed_on(tmp_path / name, 1.0, is_sent=True, dtype=dtype) for name, dtype in sides.items())
    found = diagnose(*runs, output=tmp_path / "out")
    (data,) = (one for one in found.stages if one.stage is Stage.DATA)
    assert data.status is not StageStatus.FAILED
    assert Stage.DATA not in {finding.stage for finding in found.findings}


def test_rows_of_something_else_in_a_coarser_dtype_are_a_batch(tmp_path: Path) -> None:
    """Twin: only the first rows of what the second stage is given were sent."""
    runs = (
        _handed_on(tmp_path / name, 1.0, is_sent=True, dtype=dtype, kept=kept)
        for name, dtype, kept in (("target", "float16", 2), ("reference", "float32", 4))
    )
    found = diagnose(*runs, output=tmp_path / "out")
    (data,) = (one for one in found.stages if one.stage is Stage.DATA)
    assert data.status is StageStatus.FAILED


def _reading(path: Path, batches: list[NDArray[np.int64]]) -> Path:
    """Two ranks whose models are given token ids."""
    ranks = Recorder(), Recorder()
    for out, ids in zip(ranks, batches, strict=True):
        out.record(out.call("parameter", "w"), "param", "value", _drawn(3, 6, 4))
        root = out.call("module", "", type_="Model")
        out.record(root, "forward", "input.input_ids", ids)
        out.record(root, "forward", "output.0", ids.astype(np.float32))
    for rank, out in enumerate(ranks):
        out.write(path, rank=rank, world_size=2, values=True)
    return path


@pytest.mark.parametrize(("rows", "shared"), [(slice(0, 8), True), (slice(2, 10), False)])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_ranks_that_read_a_whole_batch_each(tmp_path: Path, rows: slice, shared: bool, side: str) -> None:
    """Its twin: the longer batch holds the shorter one and other rows than all ranks of the other run."""
    ids = np.random.default_rng(5).integers(0, 90, (16, 12))
    whole, parts = [ids[rows], ids[8:]], [ids[2:6], np.concatenate([ids[:2], ids[6:8]])]
    runs = {side: whole, ("reference", "target")[side == "reference"]: parts}
    paths = [_reading(tmp_path / name, runs[name]) for name in ("target", "reference")]
    first, *_ = diagnose(*paths, output=tmp_path / "out").findings
    assert (first.stage, first.headline.place("relation")) == (Stage.DATA, "more_rows")
    assert (first.causes == (Reason(CauseCode.NOT_SHARED_OUT),)) is shared
    assert (Reason(CauseCode.NOT_SHARED_OUT) in first.kinds[0].causes) is shared


@pytest.mark.parametrize(
    ("ranks", "kinds", "without"),
    [
        (2, ("parameter", "module"), True),
        (2, ("parameter", "module", "loss"), False),
        (1, ("parameter", "module"), False),
    ],
)
def test_a_gradient_from_outside_is_the_losss_only_where_there_is_a_loss(
    ranks: int, kinds: tuple[str, ...], without: bool
) -> None:
    book = SimpleNamespace(kind=kinds)
    step = SimpleNamespace(_num_ranks=ranks, target=book, reference=book)
    assert ReplayedStep.is_without_loss.func(step) is without


@pytest.mark.parametrize(
    ("dtype", "shape", "is_count"), [(np.int64, (), True), (np.float32, (), False), (np.int64, (2,), False)]
)
def test_a_count_that_is_summed_is_no_gradient(
    tmp_path: Path, dtype: Any, shape: tuple[int, ...], is_count: bool
) -> None:
    """Its twins: a number that need not be whole, and several."""
    runs = []
    for name, tokens in (("target", 39), ("reference", 34)):
        stages = Recorder(), Recorder()
        for stage, given in zip(stages, (tokens, 30), strict=True):
            root = stage.call("module", "", type_="Stage")
            stage.record(root, "forward", "input.0", _drawn(40, 4, 8))
            stage.record(root, "forward", "output.0", _drawn(41, 4, 8))
            call = stage.call("collective", "torch.distributed.all_reduce")
            stage.record(call, "collective", "input.0", np.full(shape, given, dtype))
        of_two_ranks(stages[0], tmp_path / name, stages[1])
        runs.append(tmp_path / name)
    found = [one for one in diagnose(*runs, output=tmp_path / "out").findings if one.phase == "collective"]
    assert found
    assert (found[0].headline.code is Stages.COUNT_GIVEN) is is_count
    if is_count:
        facts = found[0].headline.facts
        assert (facts["target"], facts["reference"], facts["step"]) == (39, 34, 0)
        assert [one.code for one in found[0].causes] == [Stages.COUNT_CAUSE]
        assert found[0].next_note is not None
        assert found[0].next_note.code is Stages.CAPTURE_NEXT_STEP
