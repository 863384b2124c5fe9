"""Changes to the same programs that are no mistake: the mathematics is the same, or differs by rounding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.public.entries import change
from bugzoo.public.language import IGNORED
from bugzoo.public.run import Batch


@change("same-again")
def same_again(run: Any) -> None:
    """Nothing."""


@change("sdpa-for-eager")
@change("sdpa-for-eager-bf16")
def sdpa_for_eager(run: Any) -> None:
    """PyTorch's attention function."""
    run.attention = "sdpa"


@change("two-threads")
@change("two-threads-bf16")
def two_threads(run: Any) -> None:
    """Sums in another order."""
    torch.set_num_threads(2)


@change("fused-adamw")
def fused_adamw(run: Any) -> None:
    """One kernel for the whole update."""
    run.optimizer_options = {"fused": True}


@change("foreach-adamw")
def foreach_adamw(run: Any) -> None:
    """Horizontal fusion."""
    run.optimizer_options = {"foreach": True}


@change("four-times-two-for-two-times-four")
def four_times_two(run: Any) -> None:
    """Six microbatches of one row for three of two."""
    run.accumulation = 6


@change("gradient-checkpointing")
def gradient_checkpointing(run: Any) -> None:
    """Activations are computed again in backward."""
    run.edits.append(lambda model: model.activation_checkpointing_enable({"use_reentrant": False}))


class FusedProjection(nn.Module):
    """One matrix for queries, keys and values."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
        self.sizes = [part.out_features for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Part(nn.Module):
    """Queries, keys or values of what the fused projection gives."""

    def __init__(self, fused: list[FusedProjection], index: int) -> None:
        super().__init__()
        self.fused, self.index = fused, index

    def forward(self, x: Tensor) -> Tensor:
        fused = self.fused[0]
        if self.index == 0:
            self.fused[1:] = [fused(x)]  # type: ignore[list-item]
        whole: Tensor = self.fused[1]  # type: ignore[assignment]
        return whole.split(fused.sizes, dim=-1)[self.index]


@change("fused-qkv")
def fused_qkv(run: Any) -> None:
    """As most training frameworks have it."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.qkv_proj = FusedProjection(attention)
            shared = [attention.qkv_proj]
            for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
                setattr(attention, name, Part(shared, index))

    run.edits.append(edit)


@change("chunked-cross-entropy")
def chunked_cross_entropy(run: Any) -> None:
    """Logits and loss of 16 positions at a time."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        items, labels = given.pop("items"), given.pop("labels")
        hidden = run.model.model(**given, use_cache=False)[0][:, :-1].flatten(0, 1)
        target = labels[:, 1:].flatten()
        parts = [
            F.cross_entropy(run.model.lm_head(h).float(), t, reduction="sum", ignore_index=IGNORED)
            for h, t in zip(hidden.split(16), target.split(16), strict=True)
        ]
        return torch.stack(parts).sum() / items

    run.loss = loss


def _allowed(batch: Batch) -> Tensor:
    mask = batch["attention_mask"].bool()
    causal = torch.ones(mask.shape[1], mask.shape[1]).tril().bool()
    return causal[None, None] & mask[:, None, None, :]


@change("additive-mask-given")
def additive_mask_given(run: Any) -> None:
    """The four-dimensional mask comes with the batch."""
    whole = run.whole_batch

    def whole_batch(step: int) -> Batch:
        batch = whole(step)
        low = torch.finfo(torch.float32).min
        seen = _allowed(batch)
        return batch | {"attention_mask": torch.zeros(seen.shape).masked_fill(~seen, low)}

    run.whole_batch = whole_batch


@change("boolean-mask-given")
def boolean_mask_given(run: Any) -> None:
    """The same in booleans, for PyTorch's attention function."""
    run.attention = "sdpa"
    whole = run.whole_batch
    run.whole_batch = lambda step: (batch := whole(step)) | {"attention_mask": _allowed(batch)}


@change("positions-given")
def positions_given(run: Any) -> None:
    """Those that the model would make itself."""
    whole = run.whole_batch

    def whole_batch(step: int) -> Batch:
        batch = whole(step)
        return batch | {"position_ids": torch.arange(run.length).expand(run.rows, -1)}

    run.whole_batch = whole_batch


@change("loss-in-the-loop")
def loss_in_the_loop(run: Any) -> None:
    """The training loop shifts the labels and takes the loss of the logits."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        items, labels = given.pop("items"), given.pop("labels")
        logits = run.wrapped(**given, use_cache=False).logits
        return (
            F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")
            / items
        )

    run.loss = loss


@change("experts-batched")
def experts_batched(run: Any) -> None:
    """All experts in one batched product."""
    run.experts = "batched_mm"


@change("softmax-of-chosen-logits")
def softmax_of_chosen_logits(run: Any) -> None:
    """Softmax over the chosen logits for softmax over all, normalised: the same weights."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            gate = layer.mlp.gate

            def forward(hidden: Tensor, gate: Any = gate) -> Any:
                logits = F.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
                top, index = torch.topk(logits.float(), gate.top_k, dim=-1)
                return logits, F.softmax(top, dim=-1), index

            gate.forward = forward

    run.edits.append(edit)


@change("padded-on-the-right")
def padded_on_the_right(run: Any) -> None:
    """The same examples, padding on the other side, positions counted alike."""
    run.left = False


@change("other-loss-scale")
def other_loss_scale(run: Any) -> None:
    """Half the scale of the loss, a power of two."""
    run.make_scaler = lambda: torch.amp.GradScaler("cpu", init_scale=2.0**11)


@change("gradients-kept-as-zeros")
def gradients_kept_as_zeros(run: Any) -> None:
    """Gradients are set to zero, not dropped."""
    run.clear = lambda: run.optimizer.zero_grad(set_to_none=False)


@change("one-process-for-two")
def one_process_for_two(run: Any) -> None:
    """The whole batch in one process; the entry says how it is started."""


@change("small-buckets")
def small_buckets(run: Any) -> None:
    """Gradients are exchanged in many small buckets."""
    run.ddp_options = {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}


@change("weights-kept-gathered")
def weights_kept_gathered(run: Any) -> None:
    """FSDP2 does not shard the weights again between forward and backward."""
    options = run.shard_options
    run.shard_options = lambda: {**options(), "reshard_after_forward": False}


@change("packed-positions-run-on")
def packed_positions_run_on(run: Any) -> None:
    """Attention keeps documents apart, positions are counted over the row."""
    run.positions = lambda lengths: torch.arange(run.length)
