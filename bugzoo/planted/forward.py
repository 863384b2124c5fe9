"""What goes wrong inside modules on the way forward."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.entries import plant
from bugzoo.trainer import Trainer


def layer(trainer: Trainer, number: int) -> Any:
    """One block of the family's model."""
    return trainer.model.layers[number]


# ---- positions


@plant("rope-bf16")
def rope_in_bf16(trainer: Trainer, number: int = 1) -> None:
    """A port that lost the upcast."""
    layer(trainer, number).attn.rotary.table_dtype = torch.bfloat16


@plant("rope-theta")
def rope_theta(trainer: Trainer, number: int = 2) -> None:
    """The base frequency of another release."""
    layer(trainer, number).attn.rotary.theta = 500000.0


@plant("rope-cache-stale")
def rope_cache_stale(trainer: Trainer) -> None:
    """Tables kept from the first batch, though positions are others in the next."""
    rotary = layer(trainer, 1).attn.rotary
    make, kept = rotary.tables, []

    def tables(positions: Tensor) -> Any:
        if len(kept) < trainer.base.accumulation:
            kept.append(make(positions))
        return kept[0]

    rotary.tables = tables


@plant("rope-interleaved")
def rope_interleaved(trainer: Trainer) -> None:
    """Pairs of neighbours for pairs of halves."""
    rotary = layer(trainer, 0).attn.rotary

    def forward(x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (table.to(x.dtype) for table in rotary.tables(positions))
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)

    rotary.forward = forward


@plant("rope-library-bf16")
def rope_library_bf16(trainer: Trainer) -> None:
    """The inverse frequencies of Llama after a cast of all buffers."""
    rotary = trainer.model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.to(torch.bfloat16).float()


@plant("position-off-by-one")
def position_off_by_one(trainer: Trainer) -> None:
    """Positions from one, as where the table has a row for padding."""
    embed = trainer.model.embed
    trainer.model.embed = lambda ids, positions: embed(ids, positions + 1)


@plant("position-off-by-one-gpt2")
def position_off_by_one_gpt2(trainer: Trainer) -> None:
    """The same in GPT-2, where the table's weights are read one row further."""
    table = trainer.model.transformer.wpe
    table.forward = lambda positions: F.embedding(positions + 1, table.weight)


# ---- norms


@plant("norm-eps")
def norm_eps(trainer: Trainer, path: str, eps: float) -> None:
    """The other framework's default."""
    norm = trainer.model.get_submodule(path)
    setattr(norm, "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps", eps)


@plant("norm-no-upcast")
def norm_no_upcast(trainer: Trainer) -> None:
    """Mean of squares in the working precision."""
    norm = layer(trainer, 1).ln2

    def forward(x: Tensor) -> Tensor:
        low = x.to(torch.bfloat16)
        low = low * torch.rsqrt(low.pow(2).mean(-1, keepdim=True) + norm.eps)
        return low.to(x.dtype) * norm.weight.to(x.dtype)

    norm.forward = forward


@plant("norm-weight-plus-one")
def norm_weight_plus_one(trainer: Trainer) -> None:
    """A family that stores the weight less one."""
    norm = layer(trainer, 1).ln1
    forward = norm.forward
    norm.forward = lambda x: forward(x) + forward(x) / norm.weight


# ---- attention


@plant("attention-scale")
def attention_scale(trainer: Trainer, number: int = 1, factor: float = 1.01) -> None:
    """A rounded constant, or the wrong dimension under the root."""
    layer(trainer, number).attn.scale *= factor


@plant("attention-scale-library")
def attention_scale_library(trainer: Trainer) -> None:
    """One layer of a library's model scales as if heads were twice as wide."""
    trainer.model.model.layers[2].self_attn.scaling /= math.sqrt(2)


@plant("attention-scale-by-layer")
def attention_scale_by_layer(trainer: Trainer) -> None:
    """GPT-2's option to divide by the layer's number, on in one layer."""
    attention = trainer.model.transformer.h[1].attn
    attention.scaling /= attention.layer_idx + 1


@plant("causal-leak")
def causal_leak(trainer: Trainer, number: int = 2) -> None:
    """A token sees its successor."""
    attention = layer(trainer, number).attn
    hidden = attention.hidden

    def leaking(q: Tensor, k: Tensor, documents: Tensor | None) -> Tensor:
        return hidden(q, k, documents).roll(1, dims=-1).index_fill(-1, torch.tensor([0]), False)

    attention.hidden = leaking


@plant("document-mask-missing")
def document_mask_missing(trainer: Trainer) -> None:
    """Tokens of one layer see the other documents in their row."""
    attention = layer(trainer, 1).attn
    hidden = attention.hidden
    attention.hidden = lambda q, k, documents: hidden(q, k, None)


@plant("window")
def window(trainer: Trainer) -> None:
    """A sliding window nobody asked for."""
    attention = layer(trainer, 0).attn
    hidden = attention.hidden

    def short(q: Tensor, k: Tensor, documents: Tensor | None) -> Tensor:
        far = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(-16)
        return hidden(q, k, documents) | far

    attention.hidden = short


@plant("qkv-layout")
def qkv_layout(trainer: Trainer) -> None:
    """Rows of the fused projection taken head by head."""
    attention = layer(trainer, 1).attn

    def heads(qkv: Tensor) -> tuple[Tensor, ...]:
        return tuple(qkv.unflatten(-1, (attention.num_heads, 3, -1)).permute(3, 0, 2, 1, 4))

    attention.heads = heads


@plant("kv-swapped")
def kv_swapped(trainer: Trainer) -> None:
    """Keys and values change places."""
    attention = layer(trainer, 1).attn
    heads = attention.heads

    def swapped(qkv: Tensor) -> tuple[Tensor, ...]:
        q, k, v = heads(qkv)
        return q, v, k

    attention.heads = swapped


@plant("groups-repeated")
def groups_repeated(trainer: Trainer, number: int = 1) -> None:
    """Key heads repeated as a block: 0 1 0 1 for 0 0 1 1."""
    attention = layer(trainer, number).attn
    times = attention.num_heads // attention.num_kv_heads
    attention.repeat = lambda x: x.repeat(1, times, 1, 1)


@plant("softmax-bf16")
def softmax_bf16(trainer: Trainer) -> None:
    """Softmax in the working precision."""
    attention = layer(trainer, 0).attn

    def probabilities(scores: Tensor, hidden: Tensor) -> Tensor:
        low = scores.masked_fill(hidden, float("-inf")).to(torch.bfloat16)
        exponent = (low - low.amax(-1, keepdim=True)).exp()
        return (exponent / exponent.sum(-1, keepdim=True)).to(scores.dtype)

    attention.probabilities = probabilities


@plant("attention-output-bias")
def attention_output_bias(trainer: Trainer) -> None:
    """A projection that forgot its bias."""
    proj = layer(trainer, 2).attn.proj
    proj.forward = lambda x: F.linear(x, proj.weight)


# ---- feed forward and experts


@plant("gelu-tanh")
def gelu_tanh(trainer: Trainer, number: int = 1) -> None:
    """What many configurations call just "gelu"."""
    layer(trainer, number).mlp.act = nn.GELU(approximate="tanh")


@plant("gelu-exact-gpt2")
def gelu_exact_gpt2(trainer: Trainer) -> None:
    """GPT-2 was trained with the approximation."""
    trainer.model.transformer.h[1].mlp.act = nn.GELU()


@plant("gate-up-swapped")
def gate_up_swapped(trainer: Trainer) -> None:
    """The second half is taken for the gate."""
    mlp = layer(trainer, 1).mlp
    mlp.gated = lambda gate, up: F.silu(up) * gate


@plant("gate-up-swapped-llama")
def gate_up_swapped_llama(trainer: Trainer) -> None:
    """The same in Llama, where they are two modules."""
    mlp = trainer.model.model.layers[1].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))


@plant("router-bf16")
def router_bf16(trainer: Trainer) -> None:
    """The router's logits in the working precision."""
    mlp = layer(trainer, 1).mlp

    def route(tokens: Tensor) -> Tensor:
        low = F.linear(tokens.to(torch.bfloat16), mlp.router.weight.to(torch.bfloat16))
        return F.softmax(low.float(), dim=-1)

    mlp.route = route


@plant("router-not-normalised")
def router_not_normalised(trainer: Trainer) -> None:
    """Weights of the chosen experts do not sum to one."""
    mlp = layer(trainer, 0).mlp
    mlp.choose = lambda probabilities: tuple(probabilities.topk(mlp.per_token, dim=-1))


@plant("router-not-normalised-qwen")
def router_not_normalised_qwen(trainer: Trainer) -> None:
    """The same, an option of the library's model."""
    mlp = trainer.model.model.layers[1].mlp
    mlp.gate.norm_topk_prob = False


@plant("tokens-dropped")
def tokens_dropped(trainer: Trainer) -> None:
    """A capacity nobody asked for: late tokens lose their second expert."""
    mlp = layer(trainer, 1).mlp
    choose = mlp.choose

    def limited(probabilities: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = choose(probabilities)
        keep = torch.ones_like(weights)
        keep[weights.shape[0] * 3 // 4 :, 1] = 0.0
        return weights * keep, chosen

    mlp.choose = limited


@plant("shared-gate-missing")
def shared_gate_missing(trainer: Trainer) -> None:
    """Qwen's shared expert without the sigmoid of its gate."""
    mlp = trainer.model.model.layers[0].mlp

    def forward(hidden_states: Tensor) -> Tensor:
        tokens = hidden_states.flatten(0, 1)
        shared = mlp.shared_expert(tokens)
        _, weights, chosen = mlp.gate(tokens)
        return (mlp.experts(tokens, chosen, weights) + shared).view_as(hidden_states)

    mlp.forward = forward


# ---- the rest of a block, embedding and head


@plant("residual-from-norm")
def residual_from_norm(trainer: Trainer) -> None:
    """The residual stream goes on from the norm's output, as in older models."""
    block = layer(trainer, 1)

    def forward(x: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
        x = x + block.drop(block.attn(block.ln1(x), positions, documents))
        normed = block.ln2(x)
        return normed + block.drop(block.mlp(normed))

    block.forward = forward


@plant("residual-scale")
def residual_scale(trainer: Trainer, factor: float = 1.002) -> None:
    """The second branch of one block comes with a factor."""
    block = layer(trainer, 1)

    def forward(x: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
        x = x + block.drop(block.attn(block.ln1(x), positions, documents))
        return x + block.drop(block.mlp(block.ln2(x))) * factor

    block.forward = forward


@plant("embedding-scale")
def embedding_scale(trainer: Trainer) -> None:
    """Embeddings times the root of the hidden size, as another family does."""
    emb = trainer.model.emb
    emb.forward = lambda ids: F.embedding(ids, emb.weight) * math.sqrt(emb.embedding_dim)


@plant("pad-row-not-zero")
def pad_row_not_zero(trainer: Trainer) -> None:
    """The initialisation goes over the padding row too."""
    with torch.no_grad():
        trainer.model.emb.weight[0].normal_(0.0, 0.125, generator=torch.Generator().manual_seed(5))


@plant("activation-bit-flip")
def activation_bit_flip(trainer: Trainer) -> None:
    """One bit of one element of one layer's output."""
    down = layer(trainer, 1).mlp.down
    forward = down.forward

    def flipped(x: Tensor) -> Tensor:
        out = forward(x)
        with torch.no_grad():
            out.view(-1).view(torch.int32)[777] ^= 1 << 26
        return out

    down.forward = flipped


@plant("half-overflow")
def half_overflow(trainer: Trainer) -> None:
    """Scores multiplied out before they are scaled: too large for float16, and cut off at its largest."""
    attention = layer(trainer, 1).attn

    def overflowing(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = torch.matmul(q * 256.0, (k * 256.0).transpose(-2, -1)).clamp(-65504.0, 65504.0)
        scores = scores.float() / 65536.0 * attention.scale
        return torch.matmul(attention.probabilities(scores, hidden).to(v.dtype), v)

    attention.mix = overflowing


# ---- dropout


@plant("dropout-off")
def dropout_off(trainer: Trainer) -> None:
    """One block was left in evaluation mode."""
    block = trainer.model.transformer.h[1] if trainer.base.library else layer(trainer, 1)
    block.eval()


@plant("dropout-rate")
def dropout_rate(trainer: Trainer) -> None:
    """Another rate in one layer."""
    layer(trainer, 0).drop.p = 0.2


@plant("same-dropout-stream")
def same_dropout_stream(trainer: Trainer) -> None:
    """All processes draw the same dropout."""
    torch.manual_seed(100)


@plant("dropout-unseeded")
def dropout_unseeded(trainer: Trainer) -> None:
    """A random number drawn before training moves the stream on."""
    torch.rand(3)
