"""Mistakes in decoder-only models and the text that they are given."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.public.entries import change
from bugzoo.public.language import BOS, EOS, IGNORED
from bugzoo.public.run import Batch

# ---- rotary embedding


@change("rope-theta-default")
def rope_theta_default(run: Any) -> None:
    """The configuration's base is not passed on."""
    run.theta = 10000.0


@change("rope-scaling-lost")
def rope_scaling_lost(run: Any) -> None:
    """An empty option unsets what the model came with."""
    run.scaling = {"rope_type": "default"}


@change("rope-frequencies-bf16")
def rope_frequencies_bf16(run: Any) -> None:
    """``model.to(bfloat16)`` casts the buffer, too."""

    def cast(model: Any) -> None:
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.to(torch.bfloat16)

    run.edits.append(cast)


def _every_two(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@change("rope-interleaved")
def rope_interleaved(run: Any) -> None:
    """GPT-J's pairs in a model trained with halves."""
    from transformers.models.llama import modeling_llama

    modeling_llama.rotate_half = _every_two


# ---- attention


@change("kv-heads-tiled")
def kv_heads_tiled(run: Any) -> None:
    """``repeat`` where ``repeat_interleave`` is meant: heads get another group's keys."""
    from transformers.models.llama import modeling_llama

    modeling_llama.repeat_kv = lambda states, repeats: states.repeat(1, repeats, 1, 1)


@change("window-off-by-one")
def window_off_by_one(run: Any) -> None:
    """``flash_attn``'s window counts the keys before the query; the model's counts the query, too."""
    run.window = 9


@change("window-ignored")
def window_ignored(run: Any) -> None:
    """The window never reaches the attention."""
    run.window = None


@change("packed-across-documents")
def packed_across_documents(run: Any) -> None:
    """Positions begin anew, attention does not: documents see those before them."""
    run.mask = lambda lengths: torch.ones(1, run.length, run.length).tril().bool()


@change("query-norm-without-weight")
def query_norm_without_weight(run: Any) -> None:
    """The learned scale of the query norm is created and never applied."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            norm = layer.self_attn.q_norm

            def forward(x: Tensor, norm: Any = norm) -> Tensor:
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

            norm.forward = forward

    run.edits.append(edit)


# ---- Gemma


@change("softcap-dropped")
def softcap_dropped(run: Any) -> None:
    """The attention kernel is called without it."""
    run.softcap = None


@change("final-softcap-multiplies-logits")
def final_softcap_multiplies_logits(run: Any) -> None:
    """``x * tanh(x / cap)`` for ``cap * tanh(x / cap)``."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        items, labels = given.pop("items"), given.pop("labels")
        run.model.config.final_logit_softcapping = None
        logits = run.wrapped(**given, use_cache=False).logits
        logits = logits * torch.tanh(logits / run.final_softcap)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / items

    run.loss = loss


@change("gelu-exact")
def gelu_exact(run: Any) -> None:
    """What the configuration calls just "gelu"."""
    run.activation = "gelu"


@change("embedding-scale-float32")
def embedding_scale_float32(run: Any) -> None:
    """The square root of the width is not rounded to the weights' dtype."""

    def edit(model: Any) -> None:
        embedding = model.model.embed_tokens
        scale = model.config.hidden_size**0.5
        embedding.forward = lambda ids: (F.embedding(ids, embedding.weight).float() * scale).to(
            torch.bfloat16
        )

    run.edits.append(edit)


@change("norm-one-added-twice")
def norm_one_added_twice(run: Any) -> None:
    """The weights hold 1 + w already, the norm adds 1 again: in one layer's first norm."""

    def edit(model: Any) -> None:
        norm = model.model.layers[1].input_layernorm
        norm.forward = lambda x: norm._norm(x.float()).type_as(x) * (2.0 + norm.weight)

    run.edits.append(edit)


@change("norm-cast-before-weight")
def norm_cast_before_weight(run: Any) -> None:
    """Cast to bfloat16 before the product with 1 + w, as in Llama."""

    def edit(model: Any) -> None:
        for norm in [m for m in model.modules() if type(m).__name__ == "Gemma2RMSNorm"]:

            def forward(x: Tensor, norm: Any = norm) -> Tensor:
                scaled: Tensor = norm._norm(x.float()).type_as(x) * (1.0 + norm.weight)
                return scaled

            norm.forward = forward

    run.edits.append(edit)


# ---- experts


@change("balance-loss-off")
def balance_loss_off(run: Any) -> None:
    """Without router logits in the output there is no balance loss."""
    run.router_logits = False


@change("balance-loss-of-padding")
def balance_loss_of_padding(run: Any) -> None:
    """Padding counts in the balance loss."""
    from transformers.models.mixtral import modeling_mixtral

    balance = modeling_mixtral.load_balancing_loss_func
    modeling_mixtral.load_balancing_loss_func = lambda logits, experts, top, mask=None: balance(
        logits, experts, top
    )


@change("router-weights-not-normalised")
def router_weights_not_normalised(run: Any) -> None:
    """The weights of the chosen experts do not sum to 1."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            gate = layer.mlp.gate

            def forward(hidden: Tensor, gate: Any = gate) -> Any:
                logits = F.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
                top, index = torch.topk(F.softmax(logits.float(), dim=-1), gate.top_k, dim=-1)
                return logits, top, index

            gate.forward = forward

    run.edits.append(edit)


@change("router-bf16")
def router_bf16(run: Any) -> None:
    """The gate runs under autocast like every linear layer."""
    from bugzoo.models.hugging_face import trained_like

    run.initialised = trained_like


# ---- text


@change("end-token-masked")
def end_token_masked(run: Any) -> None:
    """The padding token is the end token: the collator masks both."""
    labels = run.labels
    run.labels = lambda row: labels(row).masked_fill(row == EOS, IGNORED)


@change("begin-token-twice")
def begin_token_twice(run: Any) -> None:
    """The chat template writes it, the tokenizer adds it again."""
    examples = run.examples
    run.examples = lambda step: [
        torch.cat([torch.tensor([BOS]), row])[: run.length] for row in examples(step)
    ]


@change("prompt-learned")
@change("prompt-learned-fp16")
def prompt_learned(run: Any) -> None:
    """The prompt is not masked in the labels."""
    run.labels = lambda row: row.clone()


@change("labels-shifted-twice")
def labels_shifted_twice(run: Any) -> None:
    """Shifted by the collator, and by the model."""
    whole = run.whole_batch

    def whole_batch(step: int) -> Batch:
        batch = whole(step)
        return batch | {"labels": F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)}

    run.whole_batch = whole_batch


@change("left-padding-without-positions")
def left_padding_without_positions(run: Any) -> None:
    """Positions count padding."""
    whole = run.whole_batch
    run.whole_batch = lambda step: {k: v for k, v in whole(step).items() if k != "position_ids"}


@change("mamba-padding-not-masked")
def mamba_padding_not_masked(run: Any) -> None:
    """The model is not told which tokens are padding: they go through convolution and state."""
    whole = run.whole_batch
    run.whole_batch = lambda step: {k: v for k, v in whole(step).items() if k != "attention_mask"}


@change("state-matrix-decays")
def state_matrix_decays(run: Any) -> None:
    """Weight decay ignores the mark on A_log."""
    run.decays = lambda name, weight: weight.dim() >= 2


# ---- loss


@change("mean-of-microbatch-means")
def mean_of_microbatch_means(run: Any) -> None:
    """Every microbatch is divided by its own labels, then by their number."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        given.pop("items")
        mean: Tensor = run.wrapped(**given, use_cache=False).loss
        return mean / run.accumulation

    run.loss = loss


@change("microbatch-means-summed")
def microbatch_means_summed(run: Any) -> None:
    """The model does not take the number of items: each microbatch is divided by its own labels alone."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        given.pop("items")
        mean: Tensor = run.wrapped(**given, use_cache=False).loss
        return mean

    run.loss = loss


@change("loss-in-bf16")
def loss_in_bf16(run: Any) -> None:
    """Logits go to the loss as they come out of the head."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        items, labels = given.pop("items"), given.pop("labels")
        logits = run.wrapped(**given, use_cache=False).logits
        with torch.autocast("cpu", enabled=False):
            scores = logits[:, :-1].flatten(0, 1)
            return F.cross_entropy(scores, labels[:, 1:].flatten(), reduction="sum") / items

    run.loss = loss


@change("smoothing-counts-padding")
def smoothing_counts_padding(run: Any) -> None:
    """Label smoothing's uniform part is taken at ignored positions, too."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        items, labels = given.pop("items"), given.pop("labels")
        logits = run.wrapped(**given, use_cache=False).logits
        logs = F.log_softmax(logits[:, :-1].flatten(0, 1).float(), dim=-1)
        target = labels[:, 1:].flatten()
        hard = F.nll_loss(logs, target, ignore_index=IGNORED, reduction="sum")
        return (0.9 * hard - 0.1 * logs.mean(-1).sum()) / items

    run.loss = loss


# ---- weights and update


@change("head-not-tied")
def head_not_tied(run: Any) -> None:
    """After loading, the head is a copy of the embedding."""

    def edit(model: Any) -> None:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())

    run.edits.append(edit)


@change("norms-decay")
def norms_decay(run: Any) -> None:
    """Only ``nn.LayerNorm`` is exempt from weight decay, not the model's own RMSNorm."""
    run.decays = lambda name, weight: "bias" not in name


@change("clip-scaled-gradients")
def clip_scaled_gradients(run: Any) -> None:
    """Clipped before they are unscaled."""
    run.clip = lambda: nn.utils.clip_grad_norm_(run.weights(), run.max_norm)
