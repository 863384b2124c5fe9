"""What trueup says of one file trained on both frameworks: they agree, without a map and across layouts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.trainer.mindspore.runs import ALL

pytestmark = [pytest.mark.mindspore, pytest.mark.torch, pytest.mark.distributed, pytest.mark.slow]

HALVES = ("dataset_config.batch_size=4", "dataset_config.micro_batch_num=2")
"""two microbatches of four rows: what two data-parallel processes have between them"""
MOE = "moe_config.num_experts=4"
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tp2 sp": (
        ("parallel_config.tensor_model_parallel_size=2", "parallel_config.sequence_parallel=true"),
        (),
    ),
    "pp2": (("parallel_config.pipeline_model_parallel_size=2", *HALVES), HALVES),
    "ep2": (
        ("parallel_config.expert_model_parallel_size=2", "dataset_config.batch_size=4", MOE),
        (*HALVES, MOE),
    ),
    "dp2 zero1": (("parallel_config.zero_level=z1", "dataset_config.batch_size=4"), HALVES),
}
"""keys of two processes, and of the one process that does the same"""


Capture = Callable[..., Path]


def _trueup(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GLOG_v": "3"}
    command = [sys.executable, "-m", "trueup", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Capture a run of this framework, with these changes; the same one is trained once."""
    folder = tmp_path_factory.mktemp("captured")

    @cache
    def captured(framework: str, *changes: str, level: str = "L0", nproc: int = 1) -> Path:
        path = folder / str(captured.cache_info().misses)
        settings = ["training_config.training_iters=2", f"training_config.output_dir={path}.run", *changes]
        words = [word for one in settings for word in ("--set", one)]
        program = [sys.executable, "-m", "trueup_gpt", "tiny", "--device", "cpu", "--framework", framework]
        program += ["--nproc", str(nproc), *words]
        done = _trueup("capture", "--level", level, "-o", str(path), "--", *program)
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    return captured


def _agree(target: Path, reference: Path, out: Path) -> None:
    for words in (("compare",), ("diagnose", "-o", str(out))):
        done = _trueup(words[0], str(target), str(reference), *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_one_process_agrees_at(level: str, capture: Capture, tmp_path: Path) -> None:
    """With two microbatches: PyTorch shows the sum of their gradients, MindSpore does not."""
    target, reference = (capture(framework, *HALVES, level=level) for framework in ("mindspore", "pytorch"))
    _agree(target, reference, tmp_path / "out")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAYOUTS if ALL else ("tp2 sp", "pp2"))
def test_a_layout_agrees_with_the_same_one_and_with_one_process_of_torch(
    name: str, capture: Capture, tmp_path: Path
) -> None:
    cut, whole = LAYOUTS[name]
    target = capture("mindspore", *cut, nproc=2)
    _agree(target, capture("pytorch", *cut, nproc=2), tmp_path / "alike")
    _agree(target, capture("pytorch", *whole), tmp_path / "alone")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAYOUTS if ALL else ("dp2 zero1",))
def test_calls_of_other_collectives_agree_too(name: str, capture: Capture, tmp_path: Path) -> None:
    """At mix: pieces of an optimizer, gradients of a schedule, weights put together of parts on one side."""
    cut, whole = LAYOUTS[name]
    target = capture("mindspore", *cut, nproc=2, level="mix")
    _agree(target, capture("pytorch", *cut, nproc=2, level="mix"), tmp_path / "alike")
    _agree(target, capture("pytorch", *whole, level="mix"), tmp_path / "alone")


def test_another_epsilon_of_the_norms_is_seen(capture: Capture) -> None:
    target = capture("mindspore", "model_config.norm_epsilon=1e-3")
    assert _trueup("compare", str(target), str(capture("pytorch"))).returncode == 1
