"""Two processes: gradients before and after reduction, weights that part, shards, a capture on both ranks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trueup.monitoring.reader import open_run, read_alarms
from trueup.store.layout import whole_steps

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

ROOT = Path(__file__).parents[2]
STEPS = 9
PROGRAM = """
import sys, torch, trueup
import torch.distributed as dist
from contextlib import nullcontext
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from tests.monitoring.programs import model
output, rank, meeting, result = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

def sharded():
    net = model()
    for part in net:
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)

def train(net, spoil):
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    losses, norms = [], []
    for step in range(9):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = net(x).square().mean()
        loss.backward()
        if spoil and step == 4 and rank == 1:
            with torch.no_grad():
                next(net.parameters()).view(-1)[0] += 1e-3
        if not spoil and step == 4 and rank == 1:  # of a shard on this rank alone
            next(net.parameters()).grad.to_local().view(-1)[0] = float("nan")
        whole = [g.full_tensor() if hasattr(g := p.grad, "full_tensor") else g for p in net.parameters()]
        norms.append(sum(float(g.square().sum()) for g in whole) ** 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses, norms

for kind, make in (("ddp", lambda: DistributedDataParallel(model())), ("fsdp", sharded)):
    for watched in (False, True):
        monitor = trueup.Monitor(modules=["act"])
        with trueup.Tracer(f"{output}_{kind}", monitor=monitor) if watched else nullcontext():
            losses, norms = train(make(), kind == "ddp")
        open(f"{result}_{kind}_{watched}_{rank}", "w").write(" ".join(losses))
        open(f"{result}_{kind}_norms", "w").write(" ".join(map(str, norms)))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both ranks train with copies of the weights and with shards, each twice, the second time watched."""
    folder = tmp_path_factory.mktemp("distributed")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    arguments = [str(folder / "meeting"), str(folder / "losses")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder / "run"), str(rank), *arguments],
            env={**env, "RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, said = process.communicate(timeout=250)
        assert process.returncode == 0, said
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_stay_the_same_to_the_last_bit(trained: Path, kind: str) -> None:
    for rank in range(2):
        plain, seen = (trained / f"losses_{kind}_{watched}_{rank}" for watched in (False, True))
        assert seen.read_text() == plain.read_text()


def test_replicas_that_part_are_told_and_both_ranks_capture_the_same_step(trained: Path) -> None:
    folder = trained / "run_ddp"
    alarms = [alarm for alarm in read_alarms(folder) if alarm["rule"] == "replicas_parted"]
    assert [alarm["rank"] for alarm in alarms] == [1]
    assert "step 4, rank 1" in alarms[0]["subjects"][0]["name"]
    assert whole_steps(folder) == {alarms[0]["captured_step"]: [0, 1]}
    first, second = (open_run(folder, rank=rank) for rank in range(2))
    local = [run.series("local_gradient", "l2_norm") for run in (first, second)]
    reduced = [run.series("gradient", "l2_norm") for run in (first, second)]
    assert all(one is not None for one in (*local, *reduced))
    assert (local[0].values[0] != local[1].values[0]).all()  # type: ignore[union-attr]
    assert (reduced[0].values[:4] == reduced[1].values[:4]).all()  # type: ignore[union-attr]
    assert first.lines[0]["weight_norm"] == second.lines[0]["weight_norm"]


def test_shards_are_measured_where_they_lie(trained: Path) -> None:
    """The squares of the shards' gradient norms add up to those of the whole gradient."""
    ranks = [open_run(trained / "run_fsdp", rank=rank) for rank in range(2)]
    norms = [float(norm) for norm in (trained / "losses_fsdp_norms").read_text().split()]
    for step in range(4):
        local = [run.lines[step]["local_norm"] for run in ranks]
        assert math.hypot(*local) == pytest.approx(norms[step], rel=1e-5)
        assert all(run.lines[step].get("grad_norm") is None for run in ranks)  # a shard's is not the whole's
    for kind in ("gradient", "weight", "update", "exp_avg"):
        series = [run.series(kind, "l2_norm") for run in ranks]
        assert all(one is not None and len(one.names) == 10 for one in series), kind
    assert ranks[0].series("units", "dead_share") is not None
    before = [run.series("local_gradient", "l2_norm") for run in ranks]  # of whole weights, each rank its own
    assert all(one is not None and len(one.names) == 10 for one in before)


def test_a_nan_in_one_shard_is_told_by_its_rank_and_captured_by_both(trained: Path) -> None:
    folder = trained / "run_fsdp"
    alarms = [alarm for alarm in read_alarms(folder) if alarm["rule"] == "nan"]
    assert (alarms[0]["step"], alarms[0]["rank"]) == (4, 1)
    assert not [alarm for alarm in read_alarms(folder) if alarm["rule"] == "replicas_parted"]
    assert whole_steps(folder)[alarms[0]["captured_step"]] == [0, 1]
