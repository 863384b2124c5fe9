"""Two replicas: gradients before and after reduction, weights that part, a capture on both ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trueup.monitoring.reader import open_run, read_alarms
from trueup.store.layout import whole_steps

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, torch, trueup
import torch.distributed as dist
from tests.monitoring.programs import model
output, rank, meeting, result = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
for watched in (False, True):
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    if watched:
        trueup.Tracer(output, monitor=trueup.Monitor()).start()
    losses = []
    for step in range(9):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = net(x).square().mean()
        loss.backward()
        if step == 4 and rank == 1:
            with torch.no_grad():
                next(net.parameters()).view(-1)[0] += 1e-3
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    open(f"{result}_{watched}_{rank}", "w").write(" ".join(losses))
dist.barrier()
dist.destroy_process_group()
"""


def train(folder: Path) -> None:
    """Both ranks train twice, the second time watched; their losses are left in ``losses_WATCHED_RANK``."""
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


def test_replicas_that_part_are_told_and_both_ranks_capture_the_same_step(tmp_path: Path) -> None:
    train(tmp_path)
    for rank in range(2):
        plain, seen = (tmp_path / f"losses_{watched}_{rank}" for watched in (False, True))
        assert seen.read_text() == plain.read_text()
    alarms = [alarm for alarm in read_alarms(tmp_path / "run") if alarm["rule"] == "replicas_parted"]
    assert [alarm["rank"] for alarm in alarms] == [1]
    assert "step 4, rank 1" in alarms[0]["subjects"][0]["name"]
    assert whole_steps(tmp_path / "run") == {alarms[0]["captured_step"]: [0, 1]}
    first, second = (open_run(tmp_path / "run", rank=rank) for rank in range(2))
    local = [run.series("local_gradient", "l2_norm") for run in (first, second)]
    reduced = [run.series("gradient", "l2_norm") for run in (first, second)]
    assert all(one is not None for one in (*local, *reduced))
    assert (local[0].values[0] != local[1].values[0]).all()  # type: ignore[union-attr]
    assert (reduced[0].values[:4] == reduced[1].values[:4]).all()  # type: ignore[union-attr]
    assert first.lines[0]["weight_norm"] == second.lines[0]["weight_norm"]
