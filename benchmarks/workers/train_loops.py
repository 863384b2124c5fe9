"""Steps of one small GPT by the trainer and by plain torch, in turns, in every process of a torchrun.

The twin is written with ``nn.Linear`` and knows torch's own engines: DDP, FSDP2, DTensor tensor parallelism.
Prints one JSON object: seconds of each step by way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from trueup_gpt.config import config_from
from trueup_gpt.data.batch import Batch
from trueup_gpt.torch.optimizers import build_optimizer
from trueup_gpt.torch.parallel.mesh import start_mesh
from trueup_gpt.torch.parallel.stages import build
from trueup_gpt.torch.session import groups_of
from trueup_gpt.torch.step import TrainStep

HIDDEN, LAYERS, HEADS, FFN, VOCAB, LENGTH, ROWS = 256, 4, 8, 688, 1024, 128, 4
CLIP = 1.0
Step = Callable[[Tensor, Tensor], float]


class TwinLayer(nn.Module):
    """A Llama layer in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(HIDDEN, 1e-5), nn.RMSNorm(HIDDEN, 1e-5)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)
        self.attention, self.mlp = nn.Identity(), nn.Identity()  # borders for DTensor's plans

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.attention(self.input_norm(x))
        q, k, v = (w(h).unflatten(-1, (-1, HIDDEN // HEADS)) for w in (self.wq, self.wk, self.wv))
        q, k = (_turned(one, cos, sin).transpose(1, 2) for one in (q, k))
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(-2))
        h = self.mlp(self.post_norm(x))
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Twin(nn.Module):
    """The model of ``configuration`` in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(TwinLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(HIDDEN, 1e-5), nn.Linear(HIDDEN, VOCAB, bias=False)
        pair = torch.arange(0, HIDDEN // HEADS, 2) / (HIDDEN // HEADS)
        angle = torch.arange(LENGTH)[:, None, None] * 10000.0**-pair
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def configuration(parallel: dict[str, Any]) -> dict[str, Any]:
    """The same model for the trainer."""
    return {
        "training_config": {"grad_clip_kwargs": {"clip_value": CLIP}, "training_iters": 1000},
        "parallel_config": parallel,
        "model_config": {
            "vocab_size": VOCAB, "seq_length": LENGTH, "num_layers": LAYERS, "hidden_size": HIDDEN,
            "ffn_hidden_size": FFN, "num_attention_heads": HEADS, "position_embedding_type": "rope",
            "normalization": "RMSNorm", "hidden_act": "swiglu", "use_flash_attention": True,
            "qkv_has_bias": False, "out_proj_has_bias": False, "mlp_has_bias": False,
            "untie_embeddings_and_output_weights": True,
        },
        "dataset_config": {"batch_size": ROWS},
        "optimizer_config": {"learning_rate": 1e-3, "weight_decay": 0.1},
    }  # fmt: skip


def trainer(parallel: dict[str, Any], micro: int = 1) -> Step:
    """The trainer's step; ``micro`` microbatches share the rows."""
    plain = configuration(parallel)
    plain["dataset_config"] |= {"batch_size": ROWS // micro, "micro_batch_num": micro}
    config = config_from(plain)
    built = build(config, start_mesh(config, "cpu"))
    step = TrainStep(built, build_optimizer(config.optimizer, groups_of(built)), config)

    def run(ids: Tensor, labels: Tensor) -> float:
        mask = torch.ones(ids.shape)
        parts = zip(ids.chunk(micro), labels.chunk(micro), mask.chunk(micro), strict=True)
        return step([Batch(tokens=a, labels=b, loss_mask=c) for a, b, c in parts]).loss

    return run


def plain(wrap: Callable[[Twin], nn.Module] = lambda model: model, *, clip: bool = True) -> Step:
    """A training loop as one writes it by hand."""
    torch.manual_seed(0)
    model = wrap(Twin())
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if "norm" not in n], "weight_decay": 0.1},
        {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.95))

    def run(ids: Tensor, labels: Tensor) -> float:
        loss = F.cross_entropy(model(ids).flatten(0, 1).float(), labels.flatten())
        loss.backward()
        if clip:  # torch does not clip plain tensors and DTensors together
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def fsdp(model: Twin) -> nn.Module:
    """FSDP2, ZeRO-3."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def dtensor(model: Twin, *, sequence: bool) -> nn.Module:
    """DTensor tensor parallelism by torch's own plans, logits gathered."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    stream = Shard(1) if sequence else Replicate()
    enter = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
    leave = RowwiseParallel(output_layouts=stream, use_local_output=not sequence)
    norm = {"input_norm": SequenceParallel(), "post_norm": SequenceParallel()} if sequence else {}
    for layer in model.layers:
        columns = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "gate", "up")}
        borders = {"attention": enter, "mlp": enter} if sequence else {}
        parallelize_module(layer, mesh, {**columns, **norm, **borders, "wo": leave, "down": leave})
    head = ColwiseParallel(input_layouts=stream, output_layouts=Replicate())
    embedding = RowwiseParallel(
        input_layouts=Replicate(), output_layouts=stream, use_local_output=not sequence
    )
    root = {"embedding": embedding, "head": head} | ({"norm": SequenceParallel()} if sequence else {})
    return parallelize_module(model, mesh, root)


TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"


def ways(size: int) -> dict[str, Callable[[], Step]]:
    """What runs on that many processes."""
    if size == 1:
        return {"plain": plain, "trainer": lambda: trainer({})}
    return {
        "DDP": lambda: plain(DistributedDataParallel),
        "FSDP2": lambda: plain(fsdp),
        "DTensor tp": lambda: plain(lambda model: dtensor(model, sequence=False), clip=False),
        "DTensor tp+sp": lambda: plain(lambda model: dtensor(model, sequence=True), clip=False),
        "trainer dp": lambda: trainer({}),
        "trainer z1": lambda: trainer({"zero_level": "z1"}),
        "trainer z3": lambda: trainer({"zero_level": "z3"}),
        "trainer tp": lambda: trainer({TP: size}),
        "trainer tp+sp": lambda: trainer({TP: size, "sequence_parallel": True}),
        "trainer pp": lambda: trainer({PP: size}, micro=4),
    }


def main() -> None:
    """Take turns, so that a slow moment of the machine meets all ways alike."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    steps = {name: make() for name, make in ways(size).items()}
    torch.manual_seed(1)
    ids = torch.randint(0, VOCAB, (ROWS, LENGTH + 1))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, float] = {}
    for number in range(rounds + 3):
        for name, step in steps.items():
            began = time.perf_counter()
            losses[name] = step(ids[:, :-1], ids[:, 1:])
            if number >= 3:
                seconds[name].append(time.perf_counter() - began)
    if int(os.environ.get("RANK", "0")) == 0:
        found = {
            "seconds": {n: statistics.median(s) for n, s in seconds.items()},
            "losses": losses,
            "raw": seconds,
        }
        print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
