"""Replays of models nobody here wrote, of several ranks, and of runs that compute activations again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.adapters.torch.loops import SMALL
from tests.diagnosing.replaying import Loop, replay, sites, states
from tests.models.gpt import GPT, batch, loss_of
from trueup.diagnosing.replay import build_plan, origins
from trueup.store import Trace
from trueup.types.codes import LeftFree

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2_moe"])
def test_hugging_face_models_on_themselves(name: str, level: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.scripts import train_hf

    losses: list[list[float]] = []
    made, reference, _ = replay(
        tmp_path,
        lambda: losses.append(train_hf.train(name)),
        lambda: losses.append(train_hf.train(name)),
        level=level,
    )
    assert set(states(made)) == {"equal"}, sites(made).filter(state="replaced")
    assert losses[-1] == losses[0]
    assert origins(made.path, reference.path) == []


# -- activations computed again ------------------------------------------


def trained(*, scale: float = 1.0, reentrant: bool | None = None) -> Loop:
    """The small GPT, its blocks perhaps checkpointed, the attention scale of layer 1 perhaps wrong."""

    def train() -> None:
        torch.manual_seed(0)
        model = GPT(SMALL).train()
        model.layers[1].attn.scale *= scale
        if reentrant is not None:
            for block in model.layers:
                inner = block.forward
                block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=reentrant)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        loss_of(model, *batch(SMALL, step=0, size=2)).backward()
        optimizer.step()

    return train


@pytest.mark.parametrize("reentrant_reference", [None, True, False])
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_what_is_computed_again_is_forced_too(
    reentrant: bool | None, reentrant_reference: bool | None, tmp_path: Path
) -> None:
    made, reference, _ = replay(
        tmp_path, trained(reentrant=reentrant_reference), trained(scale=1.01, reentrant=reentrant)
    )
    assert [o.module for o in origins(made.path, reference.path)] == ["layers.1.attn"]
    assert "recompute" not in set(sites(made).filter(phase="forward")["mode"])


# -- several ranks ------------------------------------------

PROGRAM = """
import json, sys, torch, trueup
import torch.distributed as dist
from tests.models.gpt import GPT, GPTConfig, batch, loss_of
output, rank, fault, options = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fault", json.loads(sys.argv[5])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=2)
config = GPTConfig(vocab_size=32, num_layers=2, hidden_size=16, num_heads=2, seq_length=8)
torch.manual_seed(0)
model = GPT(config)
if fault:
    model.layers[0].ln1.eps = 1e-2
    if rank == 1:
        model.layers[1].mlp.up.weight.register_hook(lambda gradient: gradient * 1.01)
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
trueup.Tracer(output, **options).start()
loss_of(model, *batch(config, step=rank, size=2)).backward()
optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def two_ranks(folder: Path, name: str, *, fault: bool, **options: Any) -> Trace:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    words = [str(folder / name), "{rank}", "fault" if fault else "none", str(folder / f"{name}.meeting")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *(w.format(rank=rank) for w in words), json.dumps(options)],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return Trace(folder / name)


@pytest.mark.distributed
def test_each_rank_follows_its_own(tmp_path: Path) -> None:
    reference = two_ranks(tmp_path, "reference", fault=False, steps="0", task="tensor")
    for fault in (False, True):
        free = two_ranks(tmp_path, f"free-{fault}", fault=fault, steps="0")
        folder = tmp_path / f"replay-{fault}"
        plan = build_plan(free, reference, folder / "plan")
        assert [(p.step, p.rank) for p in plan.steps] == [(0, 0), (0, 1)]
        made = two_ranks(tmp_path, folder.name, fault=fault, steps="0", replay=str(plan.folder))
        found = {o.module: o.rank for o in origins(folder, reference.path)}
        if fault:
            assert found == {"layers.0.ln1": 0, "layers.1.mlp.up": 1}
        else:
            assert found == {}
            assert all(set(states(made, rank=rank)) == {"equal"} for rank in (0, 1))


class TinyNet(nn.Module):
    """A buffer, an expanded tensor and a parameter among the inputs of its parts."""

    def __init__(self, *, shift: float) -> None:
        super().__init__()
        self.register_buffer("offset", torch.full((4,), 0.5 + shift))
        self.first, self.second = Add(), Add()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x, self.offset)
        return self.second(x, self.weight[:1].expand(4))


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_what_is_never_overwritten_is_listed(tmp_path: Path) -> None:
    def train(shift: float) -> Loop:
        def run() -> None:
            model = TinyNet(shift=shift)
            with torch.no_grad():
                model.weight += shift
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            x = torch.linspace(-1, 1, 8).reshape(2, 4)
            before = x.clone()
            model(x).square().sum().backward()
            assert torch.equal(x, before)
            optimizer.step()
            assert float(model.offset[0]) == 0.5 + shift

        return run

    made, reference, _ = replay(tmp_path, train(0.0), train(0.25))
    rows = sites(made).filter(phase="forward", slot="input.1")
    assert rows["reason"].to_list() == [LeftFree.PARAMETER.value] * 2
    facts = made.rank_facts(0)["replay"]
    assert facts["replaced"] > 0
    assert any(one["reason"]["code"] == LeftFree.PARAMETER.value for one in facts["free"])
    assert {o.stage.value for o in origins(made.path, reference.path)} >= {"weights"}


def test_a_batch_is_replaced_not_written_to(tmp_path: Path) -> None:
    """The data may lie in a file that cannot be written: here a write would end the process."""

    def train(first: int) -> Loop:
        def run() -> None:
            torch.manual_seed(0)
            path = tmp_path / f"data-{first}.bin"
            np.arange(first, first + 32).astype(np.int64).tofile(path)
            held = np.memmap(path, dtype=np.int64, mode="r", shape=(2, 16))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says that writing to it would end the process
                ids = torch.from_numpy(held)
            before = ids.clone()
            model = GPT(SMALL).eval()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            loss_of(model, ids, ids).backward()
            optimizer.step()
            assert torch.equal(ids, before)

        return run

    made, reference, _ = replay(tmp_path, train(0), train(3))
    found = origins(made.path, reference.path)
    assert found[0].stage.value == "data"
    assert sites(made).filter(name="", phase="forward", slot="input.0")["state"].to_list() == ["replaced"]
