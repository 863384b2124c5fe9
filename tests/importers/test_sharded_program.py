"""Sharded weights (FSDP2): trueup records a rank's part, the real msprobe the whole weight of the forward."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.msprobe,
    pytest.mark.xdist_group("msprobe"),
]
PROGRAM = Path(__file__).with_name("sharded_program.py")


def launched(python: str, processes: int, *arguments: str | Path) -> list[str]:
    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={processes}",
        PROGRAM,
        *arguments,
    ]
    return [python, *map(str, words)]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def captured(folder: Path, processes: int, fault: str, dtype: str) -> Path:
    command = [
        sys.executable,
        "-m",
        "trueup",
        "capture",
        "-q",
        "--level",
        "L0",
        "-o",
        str(folder / "run"),
        "--",
    ]
    run([*command, *launched(sys.executable, processes, fault, dtype)])
    return folder / "run"


def dumped(msprobe_command: list[str], folder: Path, processes: int, dtype: str) -> Path:
    options = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "statistics", "dump_path": str(folder / "dump"), "rank": [], "step": [], "level": "L0"}
    (folder / "config.json").write_text(json.dumps(config | {"statistics": options}))
    run(launched(msprobe_command[0], processes, "none", dtype, folder / "config.json"))
    return folder / "dump"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("processes", [1, 2])
def test_sharded_weights_agree_with_a_dump(
    msprobe_command: list[str], processes: int, dtype: str, tmp_path: Path
) -> None:
    dump = dumped(msprobe_command, tmp_path, processes, dtype)
    trace = captured(tmp_path, processes, "none", dtype)
    for target, reference in ((trace, dump), (dump, trace)):
        found = compare(target, reference)
        assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
        assert found.verdict.headline.code is VerdictCode.AGREE_IN_PART
        kind, status = (pl.col(name).cast(pl.String) for name in ("kind", "status"))
        modules = found.frame().filter(kind == "module").group_by("name").agg((status != "unmatched").any())
        alone = modules.filter(~pl.col("status"))["name"].cast(pl.String).to_list()
        assert (modules.height, alone) == (21, [""])  # msprobe does not dump the outermost module
        gradients = found.frame().filter(pl.col("slot").cast(pl.String) == "accumulated")
        assert set(gradients.select(status).to_series()) == {"within_noise"}


def test_a_fault_beside_a_dump_of_sharded_weights(msprobe_command: list[str], tmp_path: Path) -> None:
    """The twin: another epsilon, with the parts of two ranks."""
    dump = dumped(msprobe_command, tmp_path, 2, "float32")
    found = compare(captured(tmp_path, 2, "fault", "float32"), dump)
    assert found.exit_code == 1
    assert found.summary["verdict"]["where"].startswith("layers.1.before"), found.summary["verdict"]


def test_a_dump_may_lack_a_module_in_between(msprobe_command: list[str], tmp_path: Path) -> None:
    """As of verl's actor, whose dump holds neither its decoder nor its head: what is inside still pairs."""
    dump = dumped(msprobe_command, tmp_path, 1, "float32")
    for file in dump.rglob("construct.json"):
        inner = json.loads(file.read_text())
        gone = {key for key in inner if key.startswith("Module.layers.1.FSDPBlock")}
        kept = {key: None if above in gone else above for key, above in inner.items() if key not in gone}
        file.write_text(json.dumps(kept))
        data = json.loads(file.with_name("dump.json").read_text())
        data["data"] = {key: one for key, one in data["data"].items() if key not in gone}
        file.with_name("dump.json").write_text(json.dumps(data))
        assert gone
    found = compare(captured(tmp_path, 1, "none", "float32"), dump)
    kind, status = (pl.col(name).cast(pl.String) for name in ("kind", "status"))
    modules = found.frame().filter(kind == "module").group_by("name").agg((status != "unmatched").any())
    alone = modules.filter(~pl.col("status"))["name"].cast(pl.String).to_list()
    assert (modules.height, sorted(alone), found.exit_code) == (21, ["", "layers.1"], 0)
