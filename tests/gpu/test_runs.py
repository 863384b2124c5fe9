"""On a GPU: capture changes no bit, benign ways agree, others are told apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu.running import (
    AGREE,
    APART,
    DIAGNOSED,
    NAMES,
    Ran,
    Verdict,
    all_runs,
    all_verdicts,
    device_or_none,
)
from trueup.store import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(device_or_none() is None, reason="needs a GPU"),
]

Runs = dict[str, Ran]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All of them; TRUEUP_GPU_TRACES keeps their traces."""
    kept = os.environ.get("TRUEUP_GPU_TRACES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("gpu")
    folder.mkdir(exist_ok=True)
    return all_runs(folder)


@pytest.mark.parametrize("way", NAMES)
def test_capture_changes_no_bit(runs: Runs, way: str) -> None:
    bare, captured = runs[f"bare {way}"], runs[way]
    assert len(bare.results) == 2, bare.errors[-3000:]
    assert len(captured.results) == 1, captured.errors[-3000:]
    again = runs.get(f"again {way}", bare)
    if not bare.results[0] == bare.results[1] == again.results[0]:
        pytest.skip("does not give the same bits twice without capture")
    assert captured.results[0] == bare.results[0]


@pytest.mark.parametrize("way", NAMES)
def test_what_a_trace_says_of_the_device(runs: Runs, way: str) -> None:
    facts = Trace(runs[way].trace).rank_facts(0)
    assert facts["failures"] == []
    assert facts["summarised_by"].get("cuda:0") == "triton"


@pytest.fixture(scope="module")
def verdicts(runs: Runs) -> dict[str, Verdict]:
    return all_verdicts(runs["plain"].trace.parent)


@pytest.mark.parametrize(("target", "reference"), AGREE)
def test_ways_that_agree(verdicts: dict[str, Verdict], target: str, reference: str) -> None:
    verdict = verdicts[f"compare {target} {reference}"]
    assert verdict.status == 0, verdict.said


@pytest.mark.parametrize(("target", "reference"), APART)
def test_ways_that_do_not(verdicts: dict[str, Verdict], target: str, reference: str) -> None:
    verdict = verdicts[f"compare {target} {reference}"]
    assert verdict.status == 1, verdict.said


@pytest.mark.parametrize("name", DIAGNOSED)
def test_a_diagnosis_with_replay(verdicts: dict[str, Verdict], name: str) -> None:
    verdict = verdicts[f"diagnose {name}"]
    assert verdict.status == (0 if name in ("plain", "fused") else 1), verdict.said
