"""On a GPU: capture waits for nothing, takes bounded memory, and survives when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import trueup
from tests.gpu.program import ids_of, loss_of, model_of
from tests.gpu.running import device_or_none
from trueup.store import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(device_or_none() is None, reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # torch calls its debug mode a prototype
]

MIX: dict[str, Any] = {"level": "mix", "sketch": True}
VALUES: dict[str, Any] = {"level": "L0", "task": "tensor"}
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What a test sets for the whole process is undone."""
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def trained(steps: int = 3, *, strict: bool = False, **changed: object) -> list[torch.Tensor]:
    """Losses, which nothing waits for. ``strict``: a wait within a step after the first is an error."""
    device = torch.device("cuda", 0)
    model = model_of(**changed).to(device)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    losses = []
    batches = [ids_of(step, device) for step in range(steps)]
    for step, ids in enumerate(batches):
        torch.cuda.set_sync_debug_mode("error" if strict and step else "default")
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    torch.cuda.set_sync_debug_mode("default")
    return losses


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("options", [MIX, VALUES], ids=["mix", "values"])
def test_no_step_waits_for_the_device(tmp_path: Path, options: dict[str, Any]) -> None:
    expected = trained(strict=True)
    with trueup.Tracer(tmp_path / "run", steps="all", **options):
        found = trained(strict=True)
    assert same(found, expected)
    assert Trace(tmp_path / "run").rank_facts(0)["failures"] == []


@pytest.mark.parametrize("options", [MIX, VALUES], ids=["mix", "values"])
def test_memory_is_bounded(tmp_path: Path, options: dict[str, Any]) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 4096}
    peaks = []
    for captured in (False, True):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if captured:
            with trueup.Tracer(tmp_path / "run", steps="all", **options):
                trained(**sizes)
        else:
            trained(**sizes)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    print("peaks", peaks)
    assert peaks[1] - peaks[0] <= 64 * MEGABYTE


def test_training_needs_no_more_than_64_megabytes_beside_it(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    expected = trained()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_reserved() + 64 * MEGABYTE
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(0).total_memory)
    with trueup.Tracer(tmp_path / "run", steps="all", **MIX):
        found = trained()
    assert same(found, expected)
    facts = Trace(tmp_path / "run").rank_facts(0)
    print("limits", facts["limits"], "failures", facts["failures"])
    assert facts["failures"] == []


def test_at_most_one_launch_a_tensor(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run", steps="all", **MIX):
        trained(2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            trained(2)
            torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages() if event.key == "summarise")
    trace = Trace(tmp_path / "run")
    tensors = sum(trace.read(step, 0).summaries["digest"].drop_nulls().n_unique() for step in (2, 3))
    print("launches", launches, "tensors", tensors)
    assert 0 < launches <= tensors


def test_weights_have_the_digests_they_have_on_the_host(tmp_path: Path) -> None:
    """Across devices, traces are compared bit for bit where bits agree."""
    for device in ("cpu", "cuda"):
        with trueup.Tracer(tmp_path / device, steps="all", level="L0"):
            model = model_of().to(device)
            loss_of(model, ids_of(0, torch.device(device))).backward()
    host, there = (
        {row["fqn"]: row["content"] for row in Trace(tmp_path / name).rank_facts(0)["parameters"]}
        for name in ("cpu", "cuda")
    )
    assert host == there
    assert len(host) > 10
    assert isinstance(Trace(tmp_path / "cuda").read(0, 0).summaries, pl.DataFrame)
