"""What each entry changes in the port: a class, a constant or a function of its module."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.experimental import optim

from bugzoo.entries import plant

Cell = Any


def once_loaded(port: ModuleType, change: Callable[[Cell], None]) -> None:
    """Change the model when its weights are in place."""
    load = port.load

    def load_and_change(model: Cell, path: str) -> None:
        load(model, path)
        change(model)

    port.load = load_and_change  # type: ignore[attr-defined]


def set_value(parameter: Any, values: np.ndarray) -> None:
    """Overwrite a weight."""
    parameter.set_data(Tensor(np.ascontiguousarray(values)))


# -- forward ------------------------------------------


@plant("port-embedding-fp16")
def embedding_in_half_precision(port: ModuleType) -> None:
    """The embedding's own precision is another."""

    def change(model: Cell) -> None:
        model.model.tok_embeddings.compute = ms.float16

    once_loaded(port, change)


@plant("port-norm-eps")
def norm_eps(port: ModuleType) -> None:
    """The other framework's default."""

    def change(model: Cell) -> None:
        model.model.layers[1].ffn_norm.eps = 1e-6

    once_loaded(port, change)


@plant("port-rotary-theta")
def rotary_theta(port: ModuleType) -> None:
    """Rotary base of another family."""

    def change(model: Cell) -> None:
        model.model.theta = 500000.0

    once_loaded(port, change)


@plant("port-rotary-interleaved")
def rotary_on_neighbours(port: ModuleType) -> None:
    """Pairs of neighbours are turned, the weights are for halves."""

    class Interleaved(port.LlamaAttention):  # type: ignore[name-defined, misc]
        def rotated(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
            cos, sin = (part[:, : x.shape[-1] // 2] for part in rotary)
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            first, second = pairs[..., 0], pairs[..., 1]
            turned = (first * cos - second * sin, second * cos + first * sin)
            return mint.cat([part.expand_dims(-1) for part in turned], -1).reshape(x.shape)

    _exchange(port, "attention", Interleaved)


@plant("port-attention-scale")
def attention_scale(port: ModuleType) -> None:
    """Divided by the root of the hidden size, not of the head's."""

    def change(model: Cell) -> None:
        model.model.layers[0].attention.scale = port.HIDDEN**-0.5

    once_loaded(port, change)


@plant("port-causal-leak")
def causal_leak(port: ModuleType) -> None:
    """A token sees its successor."""

    def change(model: Cell) -> None:
        model.model.diagonal = 2

    once_loaded(port, change)


@plant("port-softmax-fp16")
def softmax_in_half_precision(port: ModuleType) -> None:
    """Softmax follows the compute dtype in one layer."""

    class Half(port.LlamaAttention):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
            return _attention(
                port,
                self,
                x,
                rotary,
                hidden,
                lambda s: F.softmax(s.astype(ms.float16), dim=-1).astype(ms.float32),
            )

    _exchange(port, "attention", Half)


@plant("port-kv-heads")
def kv_heads_repeated_in_turn(port: ModuleType) -> None:
    """Keys and values are repeated as a whole: 0 1 0 1 for 0 0 1 1."""

    class Tiled(port.LlamaAttention):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
            return _attention(port, self, x, rotary, hidden, lambda s: F.softmax(s, dim=-1), in_turn=True)

    _exchange(port, "attention", Tiled)


@plant("port-gate-and-up-exchanged")
def gate_and_up_exchanged(port: ModuleType) -> None:
    """The halves of the fused projection are taken in the other order."""

    class Exchanged(port.LlamaFeedForward):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor) -> Tensor:
            hidden, gate = mint.chunk(self.w_gate_hidden(x), 2, -1)
            return self.w2(F.silu(gate) * hidden)

    _exchange(port, "feed_forward", Exchanged)


@plant("port-gelu-for-silu")
def gelu_for_silu(port: ModuleType) -> None:
    """The library's default activation."""

    class WithGelu(port.LlamaFeedForward):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor) -> Tensor:
            gate, hidden = mint.chunk(self.w_gate_hidden(x), 2, -1)
            return self.w2(ops.gelu(gate) * hidden)

    _exchange(port, "feed_forward", WithGelu)


@plant("port-residual-from-norm")
def residual_from_norm(port: ModuleType) -> None:
    """``apply_residual_connection_post_layernorm`` is on in one layer."""

    class AfterNorm(port.LlamaDecodeLayer):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
            x = x + self.attention(self.attention_norm(x), rotary, hidden)
            y = self.ffn_norm(x)
            return y + self.feed_forward(y)

    _exchange(port, "", AfterNorm)


# -- weights, data, loss ------------------------------------------


@plant("port-qkv-grouped")
def qkv_rows_by_group(port: ModuleType) -> None:
    """Rows of the fused projection converted as Megatron groups them."""

    def change(model: Cell) -> None:
        projection = model.model.layers[1].attention.w_qkv
        size, groups = port.SIZE, port.KV_HEADS
        for parameter in (projection.weight, projection.bias):
            values = parameter.asnumpy()
            kinds = np.split(values, [port.HEADS * size, (port.HEADS + groups) * size])
            parts = [part.reshape(groups, -1, *values.shape[1:]) for part in kinds]
            set_value(parameter, np.concatenate(parts, 1).reshape(values.shape))

    once_loaded(port, change)


@plant("port-bias-not-loaded")
def bias_not_loaded(port: ModuleType) -> None:
    """A name that did not match, loaded without strictness."""

    def change(model: Cell) -> None:
        bias = model.model.layers[0].attention.w_qkv.bias
        set_value(bias, np.zeros_like(bias.asnumpy()))

    once_loaded(port, change)


@plant("port-labels-shifted-twice")
def labels_shifted_twice(port: ModuleType) -> None:
    """The recorded labels are shifted already."""
    batch = port.batch

    def shifted(*place: Any) -> tuple[Tensor, Tensor]:
        tokens, labels = batch(*place)
        return tokens, Tensor(np.roll(labels.asnumpy(), -1, axis=1))

    port.batch = shifted  # type: ignore[attr-defined]


@plant("port-label-smoothing")
def label_smoothing(port: ModuleType) -> None:
    """A default of the training recipe it was ported into."""

    def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
        flat = logits.reshape(-1, port.VOCABULARY)
        return ops.cross_entropy(flat, labels.reshape(-1), label_smoothing=0.01)

    port.loss_of = smoothed  # type: ignore[attr-defined]


# -- clipping and the optimizer ------------------------------------------


@plant("port-clip-per-weight")
def clip_per_weight(port: ModuleType) -> None:
    """Each gradient by its own norm."""

    def clipped(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(ops.clip_by_norm(one, 0.1) for one in gradients)

    port.clipped = clipped  # type: ignore[attr-defined]


@plant("port-no-clipping")
def no_clipping(port: ModuleType) -> None:
    """Left out; it acts from the first step whose norm is above the limit."""
    port.clipped = lambda gradients: gradients  # type: ignore[attr-defined]


@plant("port-decay-of-vectors")
def decay_of_vectors(port: ModuleType) -> None:
    """Biases and one-dimensional weights are left out of the weight decay."""

    def without(model: Cell, *, all_decayed: bool) -> Any:
        return optim.AdamW(port.groups(model, all_decayed=False), lr=port.LEARNING_RATE)

    port.optimizer_for = without  # type: ignore[attr-defined]


@plant("port-adam-eps")
def adam_eps(port: ModuleType) -> None:
    """1e-6, as several of MindSpore's optimizers have it."""
    port.optimizer_for = _adamw(port, eps=1e-6)  # type: ignore[attr-defined]


@plant("port-adam-betas")
def adam_betas(port: ModuleType) -> None:
    """0.9 and 0.95, as language models are usually trained."""
    port.optimizer_for = _adamw(port, betas=(0.9, 0.95))  # type: ignore[attr-defined]


def _adamw(port: ModuleType, **settings: Any) -> Callable[..., Any]:
    def make(model: Cell, *, all_decayed: bool) -> Any:
        return optim.AdamW(port.groups(model, all_decayed=all_decayed), lr=port.LEARNING_RATE, **settings)

    return make


# -- no faults ------------------------------------------


@plant("port-as-it-is")
def as_it_is(port: ModuleType) -> None:
    """The mended port."""


@plant("port-scale-in-query")
def scale_in_query(port: ModuleType) -> None:
    """Queries are scaled before the product, as fused kernels do it."""

    class Before(port.LlamaAttention):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
            return _attention(port, self, x, rotary, hidden, lambda s: F.softmax(s, dim=-1), early=True)

    _exchange(port, "attention", Before, layers=(0, 1))


@plant("port-norm-by-root")
def norm_by_root(port: ModuleType) -> None:
    """A quotient for the product with a reciprocal root; weight first."""

    class ByRoot(port.LlamaRMSNorm):  # type: ignore[name-defined, misc]
        def construct(self, x: Tensor) -> Tensor:
            return self.weight * (x / mint.sqrt(mint.mean(x * x, -1, keepdim=True) + self.eps))

    _exchange(port, "ffn_norm", ByRoot, layers=(0, 1))


@plant("port-loss-by-hand")
def loss_by_hand(port: ModuleType) -> None:
    """Log-softmax and a gather in place of the framework's cross entropy."""

    def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
        rows = ops.log_softmax(logits.reshape(-1, port.VOCABULARY), -1)
        return -mint.mean(mint.gather(rows, 1, labels.reshape(-1, 1)))

    port.loss_of = by_hand  # type: ignore[attr-defined]


# -- what several share ------------------------------------------


def _exchange(port: ModuleType, name: str, kind: type, *, layers: tuple[int, ...] = (1,)) -> None:
    """Make a part of some layers (or the layers themselves) one of another kind."""

    def change(model: Cell) -> None:
        for number in layers:
            layer: nn.Cell = model.model.layers[number]
            (getattr(layer, name) if name else layer).__class__ = kind

    once_loaded(port, change)


def _attention(
    port: ModuleType,
    self: Any,
    x: Tensor,
    rotary: tuple[Tensor, Tensor],
    hidden: Tensor,
    softmax: Callable[[Tensor], Tensor],
    *,
    in_turn: bool = False,
    early: bool = False,
) -> Tensor:
    """The port's attention with one thing done in another way."""
    batch, length, _ = x.shape
    size, heads, groups = port.SIZE, port.HEADS, port.KV_HEADS
    q, k, v = mint.split(self.w_qkv(x), [heads * size, groups * size, groups * size], -1)
    q, k, v = (mint.transpose(part.reshape(batch, length, -1, size), 1, 2) for part in (q, k, v))
    q, k = self.rotated(q, rotary), self.rotated(k, rotary)
    order = [head % groups if in_turn else head * groups // heads for head in range(heads)]
    k, v = (mint.cat([part[:, head : head + 1] for head in order], 1) for part in (k, v))
    if early:
        scores = mint.matmul(q * self.scale, mint.transpose(k, 2, 3)) + hidden
    else:
        scores = mint.matmul(q, mint.transpose(k, 2, 3)) * self.scale + hidden
    y = mint.matmul(softmax(scores), v)
    return self.wo(mint.transpose(y, 1, 2).reshape(batch, length, port.HIDDEN))
