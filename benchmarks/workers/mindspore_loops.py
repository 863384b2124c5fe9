"""Steps of one small GPT by the trainer on MindSpore and by a loop of one's own, in turns.

The twin is written with MindSpore's ``mint`` and its optimizers, as its documentation shows a PyNative loop.
Prints one JSON object: wall and CPU seconds of each step by way, and the last loss.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim

from trueup_gpt.config import config_from
from trueup_gpt.data.batch import Batch
from trueup_gpt.mindspore.optimizers import build_optimizer
from trueup_gpt.mindspore.parallel.mesh import start_mesh
from trueup_gpt.mindspore.parallel.stages import Parallel, build
from trueup_gpt.mindspore.session import groups_of
from trueup_gpt.mindspore.step import TrainStep

HIDDEN, LAYERS, HEADS, FFN, VOCAB, LENGTH, ROWS = 256, 4, 8, 688, 1024, 128, 4
CLIP, RATE, DECAY, BETAS = 1.0, 1e-3, 0.1, (0.9, 0.95)
Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[Array, Array], float]


def zeros(*shape: int) -> Parameter:
    """A weight that is given its values later."""
    return Parameter(Tensor(np.zeros(shape, np.float32)), name="weight")


class Norm(nn.Cell):
    """RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = zeros(HIDDEN)

    def construct(self, x: Tensor) -> Tensor:
        return x * mint.rsqrt(mint.mean(mint.square(x), -1, keepdim=True) + 1e-5) * self.weight


class Linear(nn.Cell):
    """Without a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = zeros(outputs, inputs)

    def construct(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Layer(nn.Cell):
    """A Llama layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = Norm(), Norm()
        self.wq, self.wk, self.wv, self.wo = (Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.gate, self.up, self.down = Linear(HIDDEN, FFN), Linear(HIDDEN, FFN), Linear(FFN, HIDDEN)
        self.mask = Tensor(np.triu(np.ones((LENGTH, LENGTH), bool), 1))

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.input_norm(x)
        shape = (*x.shape[:-1], HEADS, HIDDEN // HEADS)
        q, k, v = (w(h).reshape(shape) for w in (self.wq, self.wk, self.wv))
        q, k, v = (mint.transpose(one, 1, 2) for one in (turned(q, cos, sin), turned(k, cos, sin), v))
        scores = mint.matmul(q * (HIDDEN // HEADS) ** -0.5, mint.transpose(k, -1, -2))
        weights = F.softmax(scores.masked_fill(self.mask, -3.4e38), dim=-1)
        y = mint.transpose(mint.matmul(weights, v), 1, 2).reshape(x.shape)
        x = x + self.wo(y)
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions."""
    a, b = mint.chunk(x, 2, -1)
    return mint.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Twin(nn.Cell):
    """The model of ``configuration``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = zeros(VOCAB, HIDDEN)
        self.layers = nn.CellList([Layer() for _ in range(LAYERS)])
        self.norm, self.head = Norm(), Linear(HIDDEN, VOCAB)
        pair = np.arange(0, HIDDEN // HEADS, 2) / (HIDDEN // HEADS)
        angle = (np.arange(LENGTH)[:, None, None] * 10000.0**-pair).astype(np.float32)
        self.cos, self.sin = Tensor(np.cos(angle)), Tensor(np.sin(angle))

    def construct(self, ids: Tensor) -> Tensor:
        x = ops.gather(self.embedding, ids, 0)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def started_as(model: Twin, parallel: Parallel) -> Twin:
    """With the trainer's first weights."""
    held = {fqn: one.asnumpy().copy() for fqn, one in parallel.parameters.items()}
    own = {"embedding": "word_embeddings", "norm": "final_norm", "head": "output"}
    names = [(own[key], getattr(model, key)) for key in own]
    parts = {
        "input_norm": "input_norm", "post_norm": "post_attention_norm", "wq": "attention.query",
        "wk": "attention.key", "wv": "attention.value", "wo": "attention.output", "gate": "mlp.gate",
        "up": "mlp.up", "down": "mlp.down",
    }  # fmt: skip
    for number, layer in enumerate(model.layers):
        names += [(f"layers.{number}.{name}", getattr(layer, key)) for key, name in parts.items()]
    for name, cell in names:
        parameter = cell if isinstance(cell, Parameter) else cell.weight
        parameter.set_data(Tensor(held[f"{name}.weight"]))
    return model


def by_hand(model: Twin, optimizer: nn.Cell) -> Step:
    """Forward, backward, clipping, update."""

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(model(ids).reshape(-1, VOCAB), labels.reshape(-1))

    gradient_of = ms.value_and_grad(forward, None, optimizer.parameters)

    def run(ids: Array, labels: Array) -> float:
        loss, gradients = gradient_of(Tensor(ids), Tensor(labels))
        optimizer(ops.clip_by_global_norm(gradients, CLIP))
        return float(loss.asnumpy())

    return run


def configuration() -> dict[str, Any]:
    """The same model for the trainer."""
    return {
        "training_config": {"grad_clip_kwargs": {"clip_value": CLIP}, "training_iters": 1000},
        "model_config": {
            "vocab_size": VOCAB, "seq_length": LENGTH, "num_layers": LAYERS, "hidden_size": HIDDEN,
            "ffn_hidden_size": FFN, "num_attention_heads": HEADS, "position_embedding_type": "rope",
            "normalization": "RMSNorm", "hidden_act": "swiglu", "qkv_has_bias": False,
            "out_proj_has_bias": False, "mlp_has_bias": False,
            "untie_embeddings_and_output_weights": True,
        },
        "dataset_config": {"batch_size": ROWS},
        "optimizer_config": {"learning_rate": RATE, "weight_decay": DECAY, "betas": list(BETAS)},
    }  # fmt: skip


def ways() -> dict[str, Step]:
    """The trainer's step, and by hand with two optimizers."""
    config = config_from(configuration())
    parallel = build(config, start_mesh(config, "cpu"))
    step = TrainStep(parallel, build_optimizer(config.optimizer, groups_of(parallel)), config)

    def trainer(ids: Array, labels: Array) -> float:
        return step([Batch(tokens=ids, labels=labels, loss_mask=np.ones(ids.shape, np.float32))]).loss

    twins = [started_as(Twin(), parallel) for _ in range(2)]
    for twin in twins:
        twin.set_train()
    groups = [
        {"params": [one for one in twins[0].trainable_params() if one.ndim > 1], "weight_decay": DECAY},
        {"params": [one for one in twins[0].trainable_params() if one.ndim == 1], "weight_decay": 0.0},
    ]
    exact = optim.AdamW(groups, lr=RATE, betas=BETAS)
    fused = nn.AdamWeightDecay(twins[1].trainable_params(), RATE, *BETAS, weight_decay=DECAY)
    return {
        "trainer": trainer,
        "by hand": by_hand(twins[0], exact),
        "by hand, AdamWeightDecay": by_hand(twins[1], fused),
    }


def main() -> None:
    """Take turns, so that a slow moment of the machine meets all ways alike."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    steps = ways()
    rng = np.random.default_rng(1)
    ids = rng.integers(0, VOCAB, (ROWS, LENGTH + 1))
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, float] = {}
    for number in range(rounds + 3):
        for name in list(steps) if number % 2 else reversed(steps):
            began = time.perf_counter(), time.process_time()
            losses[name] = steps[name](ids[:, :-1], ids[:, 1:])
            ended = time.perf_counter(), time.process_time()
            if number >= 3:
                wall[name].append(ended[0] - began[0])
                cpu[name].append(ended[1] - began[1])
    print(json.dumps({"wall": wall, "cpu": cpu, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
