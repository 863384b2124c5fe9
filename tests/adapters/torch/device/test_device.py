"""A whole run on a device that is not the CPU (``lazy_device``): same numbers, bounded cost, no waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from torch.utils import backend_registration

from tests.adapters.reading import Captured
from trueup.numerics._native import summarise_array
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST
from trueup.store import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="torch takes no device written in Python: 2.6 does not",
    ),
]

Found = tuple[Path, Mapping[str, Any]]
EXACT = (
    "digest",
    "minimum",
    "maximum",
    "smallest_nonzero",
    "num_nan",
    "num_posinf",
    "num_neginf",
    "num_zero",
)


def ran(scenario: str, folder: Path) -> Found:
    """One scenario, in a process of its own."""
    command = [sys.executable, "-m", "tests.adapters.torch.device.on_device", scenario, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=290, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return ran("runs", tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return ran("twins", tmp_path_factory.mktemp("twins"))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return ran("faults", tmp_path_factory.mktemp("faults"))


def num_different(actual: Captured, expected: Captured) -> int:
    """Records whose counts, extremes or digest differ."""
    assert len(actual.records) == len(expected.records) > 500
    pairs = [(a["summary"], e["summary"]) for a, e in zip(actual.records, expected.records, strict=True)]
    assert all((a is None) == (e is None) for a, e in pairs)
    return sum(any(a[name] != e[name] for name in EXACT) for a, e in pairs if a is not None)


ALL = ["kernel", "modules", "side", "elsewhere", "values", "slow", "scalars", "graph"]


@pytest.mark.parametrize("name", [*ALL, "operations"])
def test_training_is_the_same_bits(runs: Found, name: str) -> None:
    losses = runs[1][name]["losses"]
    assert losses == runs[1]["bare"]["losses"][: len(losses)]
    assert Trace(runs[0] / name).rank_facts(0)["failures"] == []


def test_kernel_and_torch_operations_agree(runs: Found) -> None:
    kernel, operations = Captured(runs[0] / "kernel"), Captured(runs[0] / "operations")
    assert num_different(kernel, operations) == 0
    assert kernel.facts["summarised_by"] == {"lazy:0": "triton"}
    assert operations.facts["summarised_by"] == {"lazy:0": "torch operations"}
    for one, other in zip(kernel.records, operations.records, strict=True):
        a, b = one["summary"], other["summary"]
        if a is not None and a["numel"]:
            np.testing.assert_allclose(a["l2_norm"], b["l2_norm"], rtol=1e-6)
            sketches = [np.frombuffer(s["sketch"], np.float32) for s in (a, b)]
            np.testing.assert_allclose(*sketches, rtol=1e-5, atol=1e-6 * b["l2_norm"])


@pytest.mark.parametrize("name", ["side", "elsewhere"])
@pytest.mark.parametrize("step", [0, 1])
def test_other_streams_give_the_same(runs: Found, name: str, step: int) -> None:
    assert num_different(Captured(runs[0] / name, step), Captured(runs[0] / "kernel", step)) == 0


@pytest.mark.parametrize("name", ALL)
def test_the_training_thread_waits_for_nothing(runs: Found, name: str) -> None:
    assert runs[1][name]["waits"] == [0, 0]


def test_averages_of_the_weights_are_waited_for_where_they_are_found(runs: Found) -> None:
    """When the copy is found and first written, and in no step after that."""
    assert runs[1]["averaged"]["waits"][2:] == [0, 0]
    (fact,) = Captured(runs[0] / "averaged").facts["averages"]
    assert fact["slot"] == "copy.0"


def test_hashes_of_the_weights_come_without_a_wait(runs: Found) -> None:
    hashes = [
        {row["fqn"]: row["content"] for row in Captured(runs[0] / name).facts["parameters"]}
        for name in ("kernel", "operations")
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0].values())) > 10


def wrong_values(folder: Path, step: int) -> list[str]:
    """Stored values that are not those that were summarised, by the digest."""
    trace = Trace(folder)
    rows = trace.read(step, 0).summaries.filter(pl.col("chunk").is_not_null()).to_dicts()
    assert len(rows) > 200
    wrong = []
    for row in rows:
        stored = trace.tensor(step, 0, row)
        assert stored is not None
        array = stored.data.view(DTYPES[stored.dtype].storage).reshape(stored.shape)
        if row["digest"] != summarise_array(array, HAS_DIGEST, stored.dtype)["digest"]:
            wrong.append(row["tensor"])
    return wrong


@pytest.mark.parametrize("name", ["values", "slow"])
@pytest.mark.parametrize("step", [0, 1])
def test_values_are_what_was_summarised(runs: Found, name: str, step: int) -> None:
    assert wrong_values(runs[0] / name, step) == []


def test_values_read_from_the_tensor_itself_are_noticed(twins: Found) -> None:
    assert len(wrong_values(twins[0] / "unstaged", 1)) > 10


def test_a_slow_disk_slows_the_step_within_the_memory_stated(runs: Found) -> None:
    assert 0 < runs[1]["slow"]["most_waiting"] <= 1 << 16
    limits = Captured(runs[0] / "slow").facts["limits"]
    assert sum("disk is slower" in limit for limit in limits) == 1
    assert not any("disk is slower" in limit for limit in Captured(runs[0] / "values").facts["limits"])


def test_memory_handed_back_too_early_is_noticed(twins: Found, runs: Found) -> None:
    """Of a step that is not the last: after it the program goes on and uses what is free."""
    kernel = Captured(runs[0] / "kernel", 1)
    assert num_different(Captured(twins[0] / "delayed", 1), kernel) == 0
    assert num_different(Captured(twins[0] / "freed_early", 1), kernel) > 0


def test_nothing_is_added_to_a_graph_that_is_recorded(runs: Found) -> None:
    graph, bare = runs[1]["graph"], runs[1]["bare"]
    assert graph["losses"] == bare["losses"]
    assert (graph["cost"]["operations"], graph["cost"]["kernels"]) == (bare["cost"]["operations"], 0)
    records = Captured(runs[0] / "graph").records
    left_out = [r for r in records if r["summary"] is None]
    assert len(left_out) > 300
    assert all("device graph" in r["reason"] for r in left_out)


def test_nothing_is_done_while_a_graph_is_recorded(runs: Found) -> None:
    """Neither by the thread that trains nor by the one that waits for earlier steps, which go on after it."""
    bare, captured = runs[1]["recorded_bare"], runs[1]["recorded"]
    assert captured["losses"] == bare["losses"]
    cost = ("operations", "kernels", "copies", "allocations", "events", "synchronisations")
    assert [captured["held"][name] for name in cost] == [bare["held"][name] for name in cost]
    trace = Trace(runs[0] / "recorded")
    assert trace.rank_facts(0)["failures"] == []
    assert len(trace.steps()) >= 3
    assert sum("graphs of a device" in limit for limit in Captured(runs[0] / "recorded").facts["limits"]) == 1


def test_gradients_are_read_anew_before_an_update(runs: Found) -> None:
    """Loss scalers and fused clipping scale them without counting a version."""
    records = Captured(runs[0] / "halved").records
    norms = {
        slot: [r["summary"]["l2_norm"] for r in records if (r["phase"], r["slot"]) == ("param_grad", slot)]
        for slot in ("accumulated", "clipped")
    }
    assert len(norms["clipped"]) > 20
    np.testing.assert_allclose(2 * np.array(norms["clipped"]), norms["accumulated"], rtol=1e-6)


def test_tensors_that_are_offloaded_give_the_same(runs: Found) -> None:
    assert runs[1]["offloaded"]["losses"] == runs[1]["offloaded_bare"]["losses"]
    assert runs[1]["offloaded"]["waits"] == runs[1]["offloaded_bare"]["waits"]
    for step in (0, 1):
        assert num_different(Captured(runs[0] / "offloaded", step), Captured(runs[0] / "kernel", step)) == 0


def test_at_most_one_launch_a_tensor(runs: Found) -> None:
    steps = [Captured(runs[0] / "kernel", step) for step in (0, 1)]
    tensors = sum(
        len({r["summary"]["digest"] for r in s.records if r["summary"] and r["summary"]["device"] != "cpu"})
        for s in steps
    )
    assert 0 < runs[1]["kernel"]["cost"]["kernels"] <= tensors


def test_at_most_two_launches_a_module_or_parameter(runs: Found) -> None:
    """Modules are seen in forward and backward, parameters when a gradient comes and when updated."""
    calls = [c for step in (0, 1) for c in Captured(runs[0] / "modules", step).calls]
    places = [c for c in calls if c["kind"] in ("module", "parameter")]
    assert 0 < runs[1]["modules"]["cost"]["kernels"] <= 2 * len(places)


def test_extra_device_memory_is_bounded(runs: Found) -> None:
    for name in ("kernel", "values"):
        extra = runs[1][name]["cost"]["most_bytes"] - runs[1]["bare"]["cost"]["most_bytes"]
        assert 0 < extra <= 64 << 20


def test_waiting_at_every_tensor_is_noticed(twins: Found) -> None:
    assert twins[1]["impatient"]["waits"][1] > 100


@pytest.mark.parametrize("name", ["too_early", "too_late"])
def test_reading_on_another_stream_without_care_is_noticed(twins: Found, runs: Found, name: str) -> None:
    assert num_different(Captured(twins[0] / name, 1), Captured(runs[0] / "kernel", 1)) > 0


def test_out_of_memory_leaves_tensors_out_and_says_so(faults: Found) -> None:
    folder, found = faults
    assert found["memory"]["losses"] == found["bare"]["losses"]
    captured = Captured(folder / "memory")
    assert captured.facts["failures"] == []
    assert any("no device memory" in limit for limit in captured.facts["limits"])
    known = [r["summary"] for r in captured.records if r["summary"] is not None]
    lost = [s for s in known if s["num_zero"] is None]
    assert 0 < len(lost) < len(known) / 2
    assert all(s["digest"] is None and s["sketch"] is None for s in lost)


def test_a_kernel_that_raises_stops_no_training(faults: Found) -> None:
    folder, found = faults
    assert found["kernel"]["losses"] == found["bare"]["losses"]
    facts = Captured(folder / "kernel").facts
    assert "no kernel image" in facts["failures"][0]["error"]


def test_a_stream_that_is_stuck_stops_no_training(faults: Found) -> None:
    folder, found = faults
    assert found["stuck"]["losses"] == found["bare"]["losses"]
    facts = json.loads((folder / "stuck" / "ranks" / "rank_00000.json").read_text())
    assert facts["stood_aside"]
    assert not (folder / "stuck" / "step_000000").exists()
