"""The port: the same GPT written for MindSpore, in MindFormers' names, with projections fused.

As it came from the port it has two faults; ``--mend`` takes them out. Weights come from a converted
checkpoint, batches from files ``step_N/rank_R/{tokens,labels}.npy``. A plain training script that knows
nothing of trueup. Runs on one process, or data-parallel under msrun.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore warns of every gradient that is clipped

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import init
from mindspore.experimental import optim

VOCABULARY, HIDDEN, HEADS, KV_HEADS, FFN, LAYERS = 256, 64, 4, 2, 160, 2
SIZE = HIDDEN // HEADS
LEARNING_RATE = 1e-3
MENDS = ("embedding", "decay")


def weight(*shape: int) -> Parameter:
    """Its values come from the checkpoint."""
    return Parameter(Tensor(np.zeros(shape, np.float32)), name="weight")


class Linear(nn.Cell):
    """A projection, its weight (out, in)."""

    def __init__(self, inputs: int, outputs: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = weight(outputs, inputs)
        self.bias = Parameter(Tensor(np.zeros(outputs, np.float32)), name="bias") if has_bias else None

    def construct(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class LlamaRMSNorm(nn.Cell):
    """Root-mean-square norm over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(HIDDEN, np.float32)), name="weight")
        self.eps = 1e-5

    def construct(self, x: Tensor) -> Tensor:
        return x * mint.rsqrt(mint.mean(mint.square(x), -1, keepdim=True) + self.eps) * self.weight


class LlamaEmbedding(nn.Cell):
    """Token embedding, computed in a precision of its own."""

    def __init__(self, compute: ms.Type) -> None:
        super().__init__()
        self.embedding_weight = Parameter(Tensor(np.zeros((VOCABULARY, HIDDEN), np.float32)), name="weight")
        self.compute = compute

    def construct(self, tokens: Tensor) -> Tensor:
        return ops.gather(self.embedding_weight.astype(self.compute), tokens, 0).astype(ms.float32)


class LlamaAttention(nn.Cell):
    """Causal attention, queries in groups that share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.w_qkv = Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * SIZE, has_bias=True)
        self.wo = Linear(HIDDEN, HIDDEN)
        self.scale = SIZE**-0.5

    def construct(self, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = mint.split(self.w_qkv(x), [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)
        q, k, v = (mint.transpose(part.reshape(batch, length, -1, SIZE), 1, 2) for part in (q, k, v))
        q, k = self.rotated(q, rotary), self.rotated(k, rotary)
        k, v = (
            mint.broadcast_to(
                part.expand_dims(2), (batch, KV_HEADS, HEADS // KV_HEADS, length, SIZE)
            ).reshape(batch, HEADS, length, SIZE)
            for part in (k, v)
        )
        scores = mint.matmul(q, mint.transpose(k, 2, 3)) * self.scale + hidden
        y = mint.matmul(F.softmax(scores, dim=-1), v)
        return self.wo(mint.transpose(y, 1, 2).reshape(batch, length, HIDDEN))

    def rotated(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = rotary
        first, second = mint.chunk(x, 2, -1)
        return x * cos + mint.cat((mint.neg(second), first), -1) * sin


class LlamaFeedForward(nn.Cell):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w_gate_hidden, self.w2 = Linear(HIDDEN, 2 * FFN), Linear(FFN, HIDDEN)

    def construct(self, x: Tensor) -> Tensor:
        gate, hidden = mint.chunk(self.w_gate_hidden(x), 2, -1)
        return self.w2(F.silu(gate) * hidden)


class LlamaDecodeLayer(nn.Cell):
    """Pre-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = LlamaRMSNorm(), LlamaAttention()
        self.ffn_norm, self.feed_forward = LlamaRMSNorm(), LlamaFeedForward()

    def construct(self, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, hidden)
        return x + self.feed_forward(self.ffn_norm(x))


class LlamaModel(nn.Cell):
    """Tokens (batch, length) to hidden states (batch, length, hidden)."""

    def __init__(self, embedding: ms.Type, layers: int) -> None:
        super().__init__()
        self.tok_embeddings = LlamaEmbedding(embedding)
        self.layers = nn.CellList([LlamaDecodeLayer() for _ in range(layers)])
        self.norm_out = LlamaRMSNorm()
        self.theta, self.diagonal = 10000.0, 1

    def construct(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        frequency = (self.theta ** -(np.arange(0, SIZE, 2, dtype=np.float32) / SIZE)).astype(np.float32)
        angle = np.tile(np.outer(np.arange(length, dtype=np.float32), frequency), 2)
        rotary = Tensor(np.cos(angle)), Tensor(np.sin(angle))
        hidden = Tensor(np.triu(np.full((length, length), -1e9, np.float32), self.diagonal))
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, rotary, hidden)
        return self.norm_out(x)


class LlamaForCausalLM(nn.Cell):
    """Tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, embedding: ms.Type, layers: int) -> None:
        super().__init__()
        self.model = LlamaModel(embedding, layers)
        self.lm_head = Linear(HIDDEN, VOCABULARY)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.model(tokens))


def groups(model: nn.Cell, *, all_decayed: bool) -> list[dict[str, object]]:
    """Biases and one-dimensional weights are not decayed, as MindFormers has it unless told otherwise."""
    weights = list(model.trainable_params())
    decayed = [one for one in weights if all_decayed or one.ndim > 1]
    rest = [one for one in weights if not (all_decayed or one.ndim > 1)]
    return [
        {"params": decayed, "weight_decay": 0.1},
        *([{"params": rest, "weight_decay": 0.0}] if rest else []),
    ]


def log(path: Path | None, step: int, loss: float, norm: float) -> None:
    """To the file, or to the screen."""
    if path is None:
        print(f"step {step} loss {loss:.6f} grad_norm {norm:.6f}", flush=True)
        return
    with path.open("a" if step else "w") as file:
        file.write(json.dumps({"step": step, "loss": loss, "grad_norm": norm, "lr": LEARNING_RATE}) + "\n")


def load(model: nn.Cell, path: str) -> None:
    """The converted weights, every one of them."""
    ms.load_param_into_net(model, ms.load_checkpoint(path), strict_load=True)


def batch(data: Path, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of one rank, (rows, length)."""
    folder = data / f"step_{step}" / f"rank_{rank}"
    tokens, labels = (np.load(folder / f"{name}.npy").astype(np.int32) for name in ("tokens", "labels"))
    return Tensor(tokens), Tensor(labels)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over all tokens."""
    return ops.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def optimizer_for(model: nn.Cell, *, all_decayed: bool) -> nn.Cell:
    """AdamW as the reference's."""
    return optim.AdamW(groups(model, all_decayed=all_decayed), lr=LEARNING_RATE)


def clipped(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """By their common norm."""
    return ops.clip_by_global_norm(gradients, 1.0)


def main() -> None:
    """Train and print the loss of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--curve", type=Path, help="a line of JSON for every step")
    parser.add_argument("--mend", nargs="*", choices=MENDS, default=[])
    args = parser.parse_args()
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ranks = int(os.environ.get("RANK_SIZE", os.environ.get("MS_WORKER_NUM", "1")))
    rank = 0
    if ranks > 1:
        init("mccl")
        rank, total = mint.distributed.get_rank(), ops.AllReduce()
    embedding = ms.float32 if "embedding" in args.mend else ms.float16
    model = LlamaForCausalLM(embedding, args.layers)
    load(model, args.weights)
    model.set_train()
    optimizer = optimizer_for(model, all_decayed="decay" in args.mend)
    gradient = ms.value_and_grad(
        lambda tokens, labels: loss_of(model(tokens), labels), None, optimizer.parameters
    )
    gc.freeze()  # MindSpore's own objects are many; to look through them again takes a tenth of the time
    for step in range(args.steps):
        loss, gradients = gradient(*batch(args.data, step, rank))
        if ranks > 1:
            loss, *gradients = (total(one) / ranks for one in (loss, *gradients))
        norm = float(np.linalg.norm([np.linalg.norm(one.asnumpy()) for one in gradients]))
        optimizer(clipped(tuple(gradients)))
        if rank == 0:
            log(args.curve, step, float(loss), norm)


if __name__ == "__main__":
    ms.runtime.set_cpu_affinity(True)  # once in a process: a second call is an error
    main()
