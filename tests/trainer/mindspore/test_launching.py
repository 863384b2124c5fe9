"""How a run on MindSpore is started, and how it ends where something is wrong."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.layouts import configuration
from tests.warm import COLD
from trueup.errors import ConfigError
from trueup_gpt.config import config_from
from trueup_gpt.launching import launch
from trueup_gpt.mindspore.limits import check_supported
from trueup_gpt.session import device_of

pytestmark = [pytest.mark.mindspore, pytest.mark.distributed]
SCRIPT = Path("examples/pretrain_gpt.sh").resolve()
TP2 = "parallel_config.tensor_model_parallel_size=2"
slow = pytest.mark.slow


def _environment(**more: str) -> dict[str, str]:
    path = f"{Path(COLD).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "GLOG_v": "3", **more}


def _run(cwd: Path, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=_environment(**more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _train(cwd: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return _run(cwd, [sys.executable, "-m", "trueup_gpt", "tiny", "--framework", "mindspore", *words], **more)


@slow
@pytest.mark.timeout(300)
def test_the_script_trains_on_two_processes(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(_tiny() + "parallel_config: {tensor_model_parallel_size: 2}\n")
    done = _run(tmp_path, ["bash", str(SCRIPT), "my.yaml"], FRAMEWORK="mindspore", NPROC="2", PORT="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("dp 1 | pp 1 | tp 2 | sp False | vpp 1\n")
    losses = [
        re.findall(r"Loss: (\d+\.\d+)", (tmp_path / f"output/log/rank_{rank}/info.log").read_text())
        for rank in range(2)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    assert (tmp_path / "output" / "msrun_log" / "worker_1.log").exists()


def _tiny() -> str:
    from importlib.resources import files

    text = (files("trueup_gpt") / "configs" / "tiny.yaml").read_text()
    return text.replace("training_iters: 60", "training_iters: 2").replace(
        "log_interval: 5", "log_interval: 1"
    )


def test_a_framework_that_is_none_is_named(tmp_path: Path) -> None:
    done = _run(tmp_path, ["bash", str(SCRIPT), "tiny"], FRAMEWORK="jax")
    assert done.returncode == 1
    assert "FRAMEWORK=jax: expected pytorch or mindspore" in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = str(held.getsockname()[1])
        script = _run(tmp_path, ["bash", str(SCRIPT), "tiny"], FRAMEWORK="mindspore", NPROC="2", PORT=port)
        command = _train(tmp_path, "--nproc", "2", "--set", TP2, TRUEUP_PORT=port)
    assert (script.returncode, command.returncode) == (1, 2)
    assert f"port {port} is taken" in script.stderr
    assert f"port {port} is taken" in command.stderr


@slow
@pytest.mark.timeout(300)
def test_a_dead_process_ends_all_with_its_own_error_and_the_logs_are_named(tmp_path: Path) -> None:
    (tmp_path / "output" / "log").mkdir(parents=True)
    (tmp_path / "output" / "log" / "rank_1").write_text("in the way")
    endless = ("--set", "training_config.training_iters=100000")
    done = _train(tmp_path, "--nproc", "2", "--set", TP2, *endless)
    assert done.returncode == 1
    assert "error: rank 1: FileExistsError" in done.stderr
    assert "error: rank 0" not in done.stderr
    assert "logs of the processes: output/msrun_log/worker_*.log" in done.stderr


DIES = """
import os, signal, sys
from trueup_gpt.launching import finished, place_in_world, schedule
if os.environ["MS_ROLE"] == "MS_SCHED":
    sys.exit(schedule("cpu"))
from mindspore.communication import init
init("mccl")
rank, size = place_in_world(os.environ)
if sys.argv[1] == "after":
    finished(rank, size)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
finished(rank, size)
"""


@slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("when", "status", "words"),
    [
        ("before", 1, "error: a process was ended by SIGSEGV, without an error of its own"),
        (
            "after",
            0,
            "note: all processes were done; one then was ended by SIGSEGV, inside MindSpore's own end",
        ),
    ],
)
def test_a_process_that_dies_once_all_are_done_is_no_failure(
    when: str, status: int, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOG_v", "3")
        patch.setenv("OMP_NUM_THREADS", "1")
        assert launch(2, [str(program), when], tmp_path, quiet=True) == status
    assert capfd.readouterr().err.splitlines()[0] == words


def test_bfloat16_is_refused_where_only_a_cpu_is_there() -> None:
    config = config_from(configuration("float32", model={"compute_dtype": "bfloat16"}))
    with pytest.raises(ConfigError, match="float32 and float16 are possible"):
        check_supported(config)
    check_supported(config, "npu")


def test_the_device_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUEUP_DEVICE", raising=False)
    config = config_from(configuration(training={"device_target": "Ascend"}))
    assert device_of(config, None) == "npu"
    assert device_of(config, "cpu") == "cpu"
    monkeypatch.setenv("TRUEUP_DEVICE", "cuda")
    assert device_of(config, None) == "cuda"
    monkeypatch.delenv("TRUEUP_DEVICE")
    assert device_of(config_from(configuration()), None) is None
