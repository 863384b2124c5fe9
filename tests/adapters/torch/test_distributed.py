"""Several ranks: data parallel and sharded runs are the same bits, and have the sites of a bare run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.adapters.torch.reading import Captured
from trueup.diagnosing.ledger import summings
from trueup.merging.sides import mesh_of
from trueup.store import Trace, step_view

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

ROOT = Path(__file__).parents[3]
fully_sharded = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason="torch's fully_shard runs on no CPU: 2.6 asks its streams for events, which they lack",
)

PROGRAM = """
import json, os, sys, torch, trueup
import torch.distributed as dist
from tests.models.gpt import GPT, GPTConfig, batch, loss_of
kind, output, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = json.loads(sys.argv[5])
torch.set_num_threads(1)
if world > 1 or kind == "offloaded":
    dist.init_process_group("gloo", init_method="file://" + sys.argv[6], rank=rank, world_size=world)
config = GPTConfig(vocab_size=32, num_layers=2, hidden_size=16, num_heads=2, seq_length=8)
torch.manual_seed(0)
model = GPT(config)
if kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
if kind in ("fsdp", "offloaded"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
if options is not None:
    trueup.Tracer(output, **options).start()
losses = []
for step in range(3):
    loss = loss_of(model, *batch(config, step=10 * step + rank, size=2))
    loss.backward()
    if kind == "python":
        for p in model.parameters():
            dist.all_reduce(p.grad)
        gathered = [torch.zeros(2) for _ in range(world)]
        dist.all_gather(gathered, torch.full((2,), float(rank)))
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item().hex())
    if kind == "offloaded":
        model.to("cpu", non_blocking=True)
local = [p.detach() if not hasattr(p, "to_local") else p.to_local().detach() for p in model.parameters()]
torch.save((losses, [t.clone() for t in local]), f"{sys.argv[7]}_{rank}.pt")
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
"""


def run(kind: str, tmp_path: Path, options: dict[str, object] | None, name: str, world: int = 2) -> Path:
    output = tmp_path / name
    meeting, result = tmp_path / f"{name}.meeting", tmp_path / f"{name}.result"
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, kind, str(output), str(rank), str(world)),
                *(json.dumps(options), str(meeting), str(result)),
            ],
            env={**env, "RANK": str(rank), "WORLD_SIZE": str(world)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        assert "trueup" not in error
    return output


def results(tmp_path: Path, name: str, world: int = 2) -> list[tuple[list[str], list[torch.Tensor]]]:
    return [torch.load(tmp_path / f"{name}.result_{rank}.pt", weights_only=True) for rank in range(world)]


def assert_same_bits(tmp_path: Path, actual: str, expected: str, world: int = 2) -> None:
    for a, e in zip(results(tmp_path, actual, world), results(tmp_path, expected, world), strict=True):
        assert a[0] == e[0]
        assert all(torch.equal(x, y) for x, y in zip(a[1], e[1], strict=True))


def call_stack(trace: Trace, rank: int, call: dict[str, Any]) -> list[str]:
    """Frames of a call of step 1, innermost first."""
    stacks = trace.read(1, rank).stacks
    return list(stacks.filter(stack=call["stack"])["frames"][0])


@fully_sharded
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_sharded_and_offloaded_after_each_step(level: str, world: int, tmp_path: Path) -> None:
    """``Module.to`` swaps the contents of sharded parameters: offloading and writing a checkpoint use it."""
    run("offloaded", tmp_path, None, "off", world)
    path = run("offloaded", tmp_path, {"level": level, "steps": "all"}, "on", world)
    assert_same_bits(tmp_path, "on", "off", world)
    num = [len(Trace(path).read(step, 0).records) for step in range(3)]
    assert num[1] == num[2] > 0


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_data_parallel(level: str, tmp_path: Path) -> None:
    run("ddp", tmp_path, None, "off")
    path = run("ddp", tmp_path, {"level": level, "steps": "all"}, "on")
    assert_same_bits(tmp_path, "on", "off")
    trace = Trace(path)
    assert trace.steps() == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
    assert trace.manifest["world_size"] == 2
    assert not list(path.glob("**/*.writing-*"))
    bare = run("plain", tmp_path, {"level": level, "steps": "all"}, "bare", world=1)
    alone = Captured(bare, 1)
    for rank in (0, 1):
        captured = Captured(path, 1, rank)
        assert captured.facts["num_failures"] == 0, captured.facts["failures"]
        assert captured.facts["wrapped_by"] == ["DistributedDataParallel"]
        kept = [s for s in captured.sites() if s[2] != "collective" and "distributed" not in str(s[0])]
        assert Counter(kept) == Counter(alone.sites())
        assert [p["fqn"] for p in captured.facts["parameters"]] == [
            p["fqn"] for p in alone.facts["parameters"]
        ]
        buckets = [c for c in captured.calls if c["kind"] == "collective"]
        assert len(buckets) > 1
        assert {c["name"] for c in buckets} == {"c10d.allreduce_"}
        stacks = [call_stack(trace, rank, call) for call in captured.calls if call["kind"] == "module"]
        assert all(any(" loss_of " in frame for frame in stack) for stack in stacks), "the wrapper's caller"
    ranks = [Captured(path, 1, rank) for rank in (0, 1)]
    for slot, same in (("local", False), ("accumulated", True)):
        digests = [r.one("head.weight", "param_grad", slot)["summary"]["digest"] for r in ranks]
        assert (digests[0] == digests[1]) is same


def test_collectives_of_the_program(tmp_path: Path) -> None:
    path = run("python", tmp_path, {"level": "L0", "steps": "1", "task": "tensor"}, "on")
    captured = [Captured(path, 1, rank) for rank in (0, 1)]
    reduced = [c.find("torch.distributed.all_reduce", "collective", "input.0") for c in captured]
    after = [c.find("torch.distributed.all_reduce", "collective", "output.0") for c in captured]
    assert len(reduced[0]) == len(after[0]) == len(captured[0].facts["parameters"])
    for i in range(len(after[0])):
        total = captured[0].values(reduced[0][i]) + captured[1].values(reduced[1][i])
        assert torch.equal(captured[0].values(after[0][i]), total)
        assert torch.equal(captured[1].values(after[1][i]), total)
    gathered = captured[1].value("torch.distributed.all_gather", "collective", "output.0.1")
    assert torch.equal(gathered, torch.ones(2))
    unread = captured[1].find("torch.distributed.all_gather", "collective", "input.0.1")[0]
    assert unread["summary"] is None
    assert unread["reason"] == "uninitialised memory"
    clipped = captured[0].value("head.weight", "param_grad", "clipped")
    accumulated = captured[0].value("head.weight", "param_grad", "accumulated")
    assert not torch.equal(clipped, accumulated)


def test_only_the_ranks_asked_for(tmp_path: Path) -> None:
    path = run("ddp", tmp_path, {"level": "L0", "steps": "all", "ranks": "1"}, "on")
    trace = Trace(path)
    assert trace.steps() == {0: [1], 1: [1], 2: [1]}
    assert [len(trace.scalars(rank)) for rank in (0, 1)] == [3, 3]
    assert json.loads((path / "manifest.json").read_text())["options"]["ranks"] == [[1, 1]]


@fully_sharded
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_fully_sharded(level: str, tmp_path: Path) -> None:
    run("fsdp", tmp_path, None, "off")
    path = run("fsdp", tmp_path, {"level": level, "steps": "all"}, "on")
    assert_same_bits(tmp_path, "on", "off")
    assert Trace(path).steps() == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
    for rank in (0, 1):
        captured = Captured(path, 1, rank)
        assert captured.facts["num_failures"] == 0, captured.facts["failures"]
        types = {c["name"]: c["type"] for c in captured.calls if c["kind"] == "module"}
        assert types[""] == "GPT"
        assert types["layers.0"] == "Block"
        assert [r["type"] for r in captured.facts["roots"]] == ["GPT"]
        for phase, slot in (
            ("param", "value"),
            ("param_grad", "accumulated"),
            ("optimizer", "state.exp_avg"),
        ):
            summary = captured.one("layers.0.mlp.up.weight", phase, slot)["summary"]
            assert summary["shape"] == [32, 16]
            placement = json.loads(summary["placement"])
            assert placement == {
                "mesh": {"dp": 2},
                "placements": ["S(0)"],
                "global_shape": [64, 16],
                "offset": [32 * rank, 0],
            }
        assert captured.one("layers.0.mlp.up", "backward", "output.0")


@fully_sharded
@pytest.mark.parametrize("with_values", [True, False])
def test_whole_gradients_are_seen_before_they_are_reduced(tmp_path: Path, with_values: bool) -> None:
    """Each rank's own gradient of a whole weight; the shards are their mean, which their values tell."""
    run("fsdp", tmp_path, None, "off")
    options = {"level": "L0", "steps": "all"} | ({"task": "tensor"} if with_values else {})
    path = run("fsdp", tmp_path, options, "on")
    assert_same_bits(tmp_path, "on", "off")
    local = [Captured(path, 1, rank).one("layers.0.mlp.up.weight", "param_grad", "local") for rank in (0, 1)]
    assert [one["summary"]["shape"] for one in local] == [[64, 16]] * 2
    assert local[0]["summary"]["digest"] != local[1]["summary"]["digest"]
    trace = Trace(path)
    books = [step_view(trace, 1, rank) for rank in (0, 1)]
    found = [summings(books, at, None, mesh_of(trace)) for at in (0, 1)]
    assert len(found[0]) == len(books[0].parameters)
    assert found[1] == {}  # told of both ranks at once
    for one in found[0].values():
        assert one.in_pieces
        assert one.way == ("ranks" if with_values else "unknown")
        assert not with_values or (one.factor == pytest.approx(0.5) and one.residual < 1e-6)
