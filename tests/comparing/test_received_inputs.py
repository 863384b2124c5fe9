"""What a pipeline's stage is given by another process is no data of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.traces import Recorder, of_two_ranks
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode


def _drawn(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32)


def _stage(given: NDArray[np.float32], made: NDArray[np.float32], *, receives: str | None) -> Recorder:
    """A stage that is given a tensor, by the program or by a call that receives, and makes another."""
    out = Recorder()
    if receives is not None:
        came = out.call("collective", receives)
        out.record(came, "collective", "input.0", None, reason="the memory that is received into")
    root = out.call("module", "", type_="Stage")
    module = out.call("module", "up", root, "Linear")
    for call in (root, module):
        out.record(call, "forward", "input.0", given)
    for call in (module, root):
        out.record(call, "forward", "output.0", made)
    return out


def _run(path: Path, made: float, given: float = 1.0, *, receives: str | None) -> Path:
    """The first stage makes ``made`` times what the reference does, and hands it to the second."""
    handed = _drawn(2) * np.float32(made)
    first = _stage(_drawn(1) * np.float32(given), handed, receives=None)
    second = _stage(handed, _drawn(3) * np.float32(made), receives=receives)
    of_two_ranks(first, path, second)
    return path


@pytest.mark.parametrize("receives", ["torch.distributed.recv", "torch.distributed.irecv"])
def test_what_another_stage_made_is_not_this_one_s_data(tmp_path: Path, receives: str) -> None:
    runs = [_run(tmp_path / str(made), made, receives=receives) for made in (1.5, 1.0)]
    verdict = compare(*runs).verdict
    assert (verdict.headline.code, verdict.rank, verdict.owner) == (VerdictCode.FIRST_DIVERGENCE, 0, "up")


@pytest.mark.parametrize("again", ["torch.distributed.recv", None])
def test_the_first_call_is_given_what_later_ones_are(tmp_path: Path, again: str | None) -> None:
    """What is received before the first call of a step leaves no record."""
    runs = []
    for made in (1.5, 1.0):
        handed = _drawn(2) * np.float32(made)
        second = _stage(handed, _drawn(3) * np.float32(made), receives=None)
        if again is not None:
            came = second.call("collective", again)
            second.record(came, "collective", "input.0", None, reason="the memory that is received into")
        root = second.call("module", "", type_="Stage")
        second.record(root, "forward", "input.0", handed)
        runs.append(tmp_path / str(made))
        of_two_ranks(_stage(_drawn(1), handed, receives=None), runs[-1], second)
    code = VerdictCode.FIRST_DIVERGENCE if again else VerdictCode.DATA_DIFFERS
    assert compare(*runs).verdict.headline.code is code


@pytest.mark.parametrize("receives", [None, "torch.distributed.all_reduce"])
def test_what_the_program_gives_the_model_is(tmp_path: Path, receives: str | None) -> None:
    runs = [_run(tmp_path / str(made), made, receives=receives) for made in (1.5, 1.0)]
    assert compare(*runs).verdict.headline.code is VerdictCode.DATA_DIFFERS


def test_data_of_the_first_stage_are_told_first(tmp_path: Path) -> None:
    runs = [_run(tmp_path / str(made), made, made, receives="torch.distributed.recv") for made in (1.5, 1.0)]
    verdict = compare(*runs).verdict
    assert (verdict.headline.code, verdict.rank) == (VerdictCode.DATA_DIFFERS, 0)
