"""The examples of docs/architecture.md run as they stand: importer, stage, report, names of an adapter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trueup.comparing.result import Comparison
from trueup.comparing.run import compare_sources
from trueup.diagnosing.stages import Context, StageStatus
from trueup.reporting.render import write

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")


def example(module: str) -> dict:
    """The names that the page's example of this module defines."""
    code = PAGE.split(f"# {module}\n")[1].split("```")[0].split("\n# ")[0]
    made = {"__name__": "example"}
    exec(compile(code, module, "exec"), made)  # the page is ours
    return made


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, object]:
    """A reference of two calls, and a target whose second call gives twice as much."""
    rng, made = np.random.default_rng(0), {}
    first, last = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
    for name, factor in (("reference", 1), ("target", 2)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "step0.npz", relu=first, linear=last * np.float32(factor))
        made[name] = example("importers/npz.py")["NpzDump"](tmp_path / name)
    return made


def test_the_importer_reads_values(runs):
    tables = runs["target"].read(0, 0)
    assert tables.records.height == 2
    (row,) = (r for r in tables.summaries.iter_rows(named=True) if r["shape"] == [4, 3])
    assert runs["target"].tensor(0, 0, row).shape == (4, 3)


@pytest.mark.parametrize(
    ("target", "status"), [("reference", StageStatus.PASSED), ("target", StageStatus.FAILED)]
)
def test_the_stage_sees_what_the_comparison_says(runs, target: str, status: StageStatus):
    found = compare_sources(runs[target], runs["reference"])
    stage = example("diagnosing/stages/logits.py")["LogitsStage"]()
    context = Context(target=runs[target], reference=runs["reference"], comparison=found)
    assert stage.check(context).status is status


@pytest.mark.parametrize("suffix", [".html", ".xlsx", ".md", ".txt"])
def test_the_report_is_drawn_by_every_renderer(runs, tmp_path: Path, suffix: str):
    found: Comparison = compare_sources(runs["target"], runs["reference"])
    written = write(example("reporting/statuses.py")["statuses"](found), tmp_path / f"statuses{suffix}")
    assert written.stat().st_size > 0
    assert suffix == ".xlsx" or "equal" in written.read_text(encoding="utf-8")


def test_the_adapter_names_what_is_below_a_root():
    made = example("adapters/plain/engine.py")
    weight = np.ones(3)
    model = made["Module"](inner=made["Module"](weight=weight))
    names = made["PlainModules"]()
    assert names.root_name(model) == ""
    assert names.name_of(model.inner, None, recompute=True) == "inner"
    assert names.parameter_names == {id(weight): "inner.weight"}
    assert names.parameter_table["inner.weight"]["shape"] == [3]
