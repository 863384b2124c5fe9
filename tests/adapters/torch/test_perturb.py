"""A perturbed run differs from the run by rounding, everywhere and nowhere more; its random state is the
run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from trueup import Tracer
from trueup.adapters.torch.perturb import change_in_place, roundoff
from trueup.store import Trace

pytestmark = pytest.mark.torch


class Tied(nn.Module):
    """A tied head, a dropout that draws, a frozen parameter and a floating input."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.emb = nn.Embedding(50, 32, dtype=dtype)
        self.mix = nn.Linear(32, 32, dtype=dtype)
        self.frozen = nn.Parameter(torch.randn(32).to(dtype), requires_grad=False)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(32, 50, bias=False, dtype=dtype)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor, *, noise: Tensor) -> Tensor:
        return self.head(self.drop(self.mix(self.emb(ids) + noise.to(self.emb.weight.dtype))) * self.frozen)


def run(
    path: Path, *, seed: int | None, dtype: torch.dtype = torch.float32, amp: bool = False
) -> dict[str, Any]:
    """One captured step: weights before it and as it used them, and the random state after."""
    torch.manual_seed(0)
    model = Tied(dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    noise = torch.randn(4, 8, 32)
    kept = noise.clone()
    with Tracer(path, steps="0", perturb=seed):
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            out = model(torch.arange(32).view(4, 8), noise=noise)
        after = {name: p.detach().clone() for name, p in model.named_parameters()}
        out.float().sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert torch.equal(noise, kept), "the program's own tensors stay as they are"
    return {"before": before, "after": after, "random": torch.get_rng_state()}


def summary_of(path: Path, slot: str, step: int = 0) -> dict[str, Any]:
    """The summary of the first record in this slot."""
    tables = Trace(path).read(step, 0)
    row = tables.records.filter(pl.col("slot").cast(pl.String) == slot).row(0, named=True)
    return tables.summaries.row(row["summary"], named=True)


@pytest.mark.parametrize(
    ("dtype", "amp", "size"),
    [(torch.float32, False, 2.0**-24), (torch.bfloat16, False, 2.0**-8), (torch.float32, True, 2.0**-8)],
)
def test_weights_change_by_one_rounding(tmp_path: Path, dtype: torch.dtype, amp: bool, size: float) -> None:
    plain = run(tmp_path / "plain", seed=None, dtype=dtype, amp=amp)
    perturbed = run(tmp_path / "perturbed", seed=3, dtype=dtype, amp=amp)
    again = run(tmp_path / "again", seed=3, dtype=dtype, amp=amp)
    other = run(tmp_path / "other", seed=4, dtype=dtype, amp=amp)
    assert torch.equal(plain["random"], perturbed["random"])
    for name, before in plain["before"].items():
        assert torch.equal(plain["after"][name], before)
        changed, wide = perturbed["after"][name].double(), before.double()
        relative = ((changed - wide) / wide.abs().clamp_min(1e-30)).abs()
        assert 0 < relative.max() <= 2.01 * size
        assert 0 < (changed != wide).double().mean() < 0.25
        assert torch.equal(again["after"][name], perturbed["after"][name])
        assert not torch.equal(other["after"][name], perturbed["after"][name])
    assert "emb.weight" in plain["before"], "a tied parameter is there once, hence changed once"


def test_floating_inputs_change_and_whole_numbers_do_not(tmp_path: Path) -> None:
    for name, seed in (("plain", None), ("perturbed", 1)):
        run(tmp_path / name, seed=seed)
    digests = {
        slot: [summary_of(tmp_path / name, slot)["digest"] for name in ("plain", "perturbed")]
        for slot in ("input.0", "input.noise")
    }
    assert digests["input.0"][0] == digests["input.0"][1]
    assert digests["input.noise"][0] != digests["input.noise"][1]
    assert json.loads((tmp_path / "perturbed" / "manifest.json").read_text())["options"]["perturb"] == 1
    assert json.loads((tmp_path / "plain" / "manifest.json").read_text())["options"]["perturb"] is None


def test_once_a_run_and_every_forward(tmp_path: Path) -> None:
    model, seen = nn.Linear(8, 8), []
    with Tracer(tmp_path, steps="all", perturb=0):
        for _ in range(3):
            model(torch.ones(200, 8)).sum().backward()
            seen.append(model.weight.detach().clone())
            model.zero_grad()
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    digests = [summary_of(tmp_path, "input.0", step)["digest"] for step in range(3)]
    assert len(set(digests)) == 3


def test_an_input_in_the_graph_keeps_its_gradient(tmp_path: Path) -> None:
    leaf = torch.ones(2, 8, requires_grad=True)
    with Tracer(tmp_path, steps="0", perturb=0):
        nn.Linear(8, 1)(leaf * 2).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_never_finer_than_the_tensor_itself() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert roundoff(torch.ones(1, dtype=torch.float32)) == 2.0**-8
        assert roundoff(torch.ones(1, dtype=torch.float64)) == 2.0**-8
    assert roundoff(torch.ones(1, dtype=torch.float16)) == 2.0**-11
    whole = torch.ones(50, 6).t()
    change_in_place(whole, torch.Generator().manual_seed(0), 0.25)
    assert set(whole.flatten().tolist()) == {0.75, 1.0, 1.25}


def test_the_program_is_its_own_again_once_the_session_is_over(tmp_path: Path) -> None:
    def trained() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for _ in range(2):
            model(torch.ones(200, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    own = trained()
    for number, change in enumerate([{"perturb": 0}, {"learning_rate": 0.0}]):
        with Tracer(tmp_path / str(number), steps="all", **change):
            changed = trained()
        assert any(not torch.equal(a, b) for a, b in zip(changed, own, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(trained(), own, strict=True))


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2.0**-8), (None, 2.0**-23)])
def test_weights_that_fsdp_gathers_in_a_coarser_dtype(
    tmp_path: Path, dtype: torch.dtype | None, size: float
) -> None:
    """A change that float32 alone holds is gone before anything is computed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        before = [p.to_local().detach().clone() for p in model.parameters()]
        with Tracer(tmp_path, steps="0", perturb=3):
            model(torch.ones(4, 64)).sum().backward()
            after = [p.to_local().detach().clone() for p in model.parameters()]
    finally:
        torch.distributed.destroy_process_group()
    moved = [((b - a).abs() / a.abs()).max().item() for a, b in zip(before, after, strict=True)]
    assert moved == pytest.approx([size] * 4, rel=0.6)
