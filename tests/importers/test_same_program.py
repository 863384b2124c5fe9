"""One program captured by trueup and dumped by the real msprobe: the same runs agree, a fault is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.comparing.reading import coded
from trueup.comparing.run import compare
from trueup.importers import open_trace
from trueup.importers.msprobe.export import export_msprobe
from trueup.types.codes import EvidenceCode, RecordCode, VerdictCode

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("same_program.py")
LEVELS = ("L0", "mix")
FAULTS = ("none", "fault")


def run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each level with and without the fault, ``LEVEL.FAULT``."""
    folder = tmp_path_factory.mktemp("captured")
    for level in LEVELS:
        for fault in FAULTS:
            command = [sys.executable, "-m", "trueup", "capture", "--level", level, "--task", "tensor"]
            run(*command, "-o", folder / f"{level}.{fault}", "--", sys.executable, PROGRAM, fault)
    return folder


@pytest.fixture(scope="module")
def dumped(msprobe_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of msprobe, ``LEVEL.FAULT.MODE``."""
    folder = tmp_path_factory.mktemp("dumped")
    for level in LEVELS:
        for fault in FAULTS:
            for mode in ("statistics", "md5", "tensor"):
                task = "tensor" if mode == "tensor" else "statistics"
                out, file = folder / f"{level}.{fault}.{mode}", folder / "config.json"
                options = {"scope": [], "list": [], "data_mode": ["all"]}
                if task == "statistics":
                    options["summary_mode"] = mode  # type: ignore[assignment]
                config = {"task": task, "dump_path": str(out), "rank": [], "step": [], "level": level}
                file.write_text(json.dumps(config | {"enable_dataloader": False, task: options}))
                run(msprobe_command[0], PROGRAM, fault, file)
    return folder


@pytest.mark.msprobe
@pytest.mark.xdist_group("msprobe")
@pytest.mark.parametrize("mode", ["statistics", "md5", "tensor"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_run_agrees_with_its_dump(captured: Path, dumped: Path, level: str, mode: str) -> None:
    run_path, dump = captured / f"{level}.none", dumped / f"{level}.none.{mode}"
    for target, reference in ((run_path, dump), (dump, run_path)):
        compared = compare(target, reference)
        headline = compared.verdict.headline
        assert compared.exit_code == 0, compared.verdict
        assert headline.code is VerdictCode.AGREE_IN_PART
        assert "optimizer" in (headline.place("phases") or ())
    rows = compared.frame()
    assert RecordCode.ROOT_NOT_DUMPED.value in rows["reason_code"].cast(str).to_list()
    of_norms = rows.filter(rows["site"].str.contains("layer_norm"), phase="forward")
    assert set(of_norms["status"].cast(str)) <= {"equal", "within_noise"}, "weights by name, and by position"


@pytest.mark.msprobe
@pytest.mark.xdist_group("msprobe")
@pytest.mark.parametrize("mode", ["statistics", "md5", "tensor"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_is_named_across_tools(captured: Path, dumped: Path, level: str, mode: str) -> None:
    for target, reference in (
        (captured / f"{level}.fault", dumped / f"{level}.none.{mode}"),
        (dumped / f"{level}.fault.{mode}", captured / f"{level}.none"),
    ):
        verdict = compare(target, reference).verdict
        assert (verdict.exit_code, verdict.owner) == (1, "layers.1.before"), verdict
        found = coded(verdict.evidence, EvidenceCode.ARGUMENTS_DIFFER)
        assert len(found) == (level == "mix"), found
        names = [str(part.place("name")) for one in found for part in one.parts]
        assert all("eps" in name for name in names), "only what differs, under either of its names"


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_agrees_with_its_own_export(captured: Path, tmp_path: Path, level: str) -> None:
    export_msprobe(open_trace(captured / f"{level}.none"), tmp_path)
    for target, reference in ((captured / f"{level}.none", tmp_path), (tmp_path, captured / f"{level}.none")):
        compared = compare(target, reference)
        assert compared.exit_code == 0, compared.summary["verdict"]
        counts = compared.summary["counts"]
        assert counts["equal"] == counts["compared"], counts
    verdict = compare(captured / f"{level}.fault", tmp_path).summary["verdict"]
    assert (verdict["exit_code"], verdict["owner"]) == (1, "layers.1.before"), verdict
