"""Changes that are no mistake, to the programs that are not decoders of a library."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.public.entries import change
from bugzoo.public.language import IGNORED
from bugzoo.public.run import Batch

# ---- plain GPT


@change("flash-for-written-attention")
@change("flash-for-written-attention-bf16")
def flash_for_written_attention(run: Any) -> None:
    """PyTorch's attention function for the four lines."""
    run.edits.append(lambda model: [setattr(block.attn, "flash", True) for block in model.h])


class TransposedLinear(nn.Module):
    """A weight stored as (inputs, outputs), as GPT-2's Conv1D has it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        zero = torch.zeros(self.weight.shape[1], dtype=x.dtype)
        flat = torch.addmm(zero, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


@change("addmm-for-linear")
def addmm_for_linear(run: Any) -> None:
    """Transposed weights in every feed-forward layer."""

    def edit(model: Any) -> None:
        for block in model.h:
            block.mlp.c_fc = TransposedLinear(block.mlp.c_fc)
            block.mlp.c_proj = TransposedLinear(block.mlp.c_proj)

    run.edits.append(edit)


@change("compiled")
def compiled(run: Any) -> None:
    """Traced by the compiler, run by the same kernels."""
    run.wrap = lambda model: torch.compile(model, backend="aot_eager")


@change("groups-in-another-order")
def groups_in_another_order(run: Any) -> None:
    """A parameter group a weight, last first."""

    def groups() -> list[dict[str, Any]]:
        named = [(n, w) for n, w in run.model.named_parameters()]
        return [
            {"params": [w], "weight_decay": run.weight_decay if run.decays(n, w) else 0.0}
            for n, w in reversed(named)
        ]

    run.groups = groups


@change("log-softmax-and-gather")
def log_softmax_and_gather(run: Any) -> None:
    """The loss written out."""
    run.mean = lambda logits, targets: (
        -logits.float().log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1).mean()
    )


class Numbered(torch.utils.data.Dataset[Tensor]):
    """Batches by number."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __len__(self) -> int:
        return 8

    def __getitem__(self, step: int) -> Batch:
        found: Batch = type(self.run).whole_batch(self.run, step)
        return found


@change("loader-with-workers")
def loader_with_workers(run: Any) -> None:
    """Batches are made by two other processes."""
    held: list[Any] = []

    def whole_batch(step: int) -> Batch:
        if not held:
            settings = type(run)()
            held.append(iter(torch.utils.data.DataLoader(Numbered(settings), batch_size=None, num_workers=2)))
        found: Batch = next(held[0])
        return found

    run.whole_batch = whole_batch


@change("reduced-by-hand")
def reduced_by_hand(run: Any) -> None:
    """An all-reduce of every gradient for DistributedDataParallel."""
    run.wrap = lambda model: model
    clip = run.clip

    def reduced() -> None:
        for weight in run.weights():
            dist.all_reduce(weight.grad)
            weight.grad.div_(run.world)
        clip()

    run.clip = reduced


@change("static-graph")
def static_graph(run: Any) -> None:
    """DistributedDataParallel plans once."""
    run.accumulation = run.accumulation
    run.ddp_options = {"find_unused_parameters": True}


@change("one-process-for-two-nano")
def one_process_for_two_nano(run: Any) -> None:
    """The whole batch in one process."""


@change("rows-of-two-for-rows-of-four")
def rows_of_two_for_rows_of_four(run: Any) -> None:
    """Four microbatches of two rows for two of four."""
    run.accumulation = 4


# ---- nets


@change("channels-last")
@change("channels-last-unet")
def channels_last(run: Any) -> None:
    """Another memory format."""
    run.edits.append(lambda model: model.to(memory_format=torch.channels_last))


@change("without-onednn")
def without_onednn(run: Any) -> None:
    """Convolutions by PyTorch's own kernels."""
    torch.backends.mkldnn.enabled = False


@change("buffers-not-broadcast")
def buffers_not_broadcast(run: Any) -> None:
    """Running statistics are each process's own; nothing in training reads them."""
    run.ddp_options = {"broadcast_buffers": False}


@change("dense-adjacency")
def dense_adjacency(run: Any) -> None:
    """A product with the adjacency matrix for a sum over edges."""

    def edit(model: Any) -> None:
        def gather(x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
            matrix = torch.zeros(x.shape[0], x.shape[0])
            matrix.index_put_((edges[1], edges[0]), weights, accumulate=True)
            return matrix @ x

        model.conv1.gather = model.conv2.gather = gather

    run.edits.append(edit)


@change("tasks-summed-one-by-one")
def tasks_summed_one_by_one(run: Any) -> None:
    """The weighted losses added in a loop."""

    def combine(first: Tensor, second: Tensor) -> Tensor:
        total = torch.zeros(())
        for loss, log_var in zip((first, second), run.model.log_vars, strict=True):
            total = total + (-log_var).exp() * loss + log_var
        return total

    run.combine = combine


# ---- libraries' encoders


@change("sdpa-for-eager-vit")
@change("sdpa-for-eager-bert")
@change("sdpa-for-eager-whisper")
def sdpa_for_eager(run: Any) -> None:
    """PyTorch's attention function."""
    run.attention = "sdpa"


class PatchesByLinear(nn.Module):
    """The same weights on unfolded patches."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.kernel_size = convolution.kernel_size

    def forward(self, x: Tensor) -> Tensor:
        size = self.kernel_size[0]
        patches = F.unfold(x, size, stride=size).transpose(1, 2)
        out = F.linear(patches, self.weight.flatten(1), self.bias).transpose(1, 2)
        side = x.shape[-1] // size
        return out.reshape(x.shape[0], -1, side, side)


@change("patches-by-linear")
def patches_by_linear(run: Any) -> None:
    """A linear layer on patches for the strided convolution."""

    def edit(model: Any) -> None:
        embeddings = model.vit.embeddings.patch_embeddings
        embeddings.projection = PatchesByLinear(embeddings.projection)

    run.edits.append(edit)


@change("decoder-inputs-given")
def decoder_inputs_given(run: Any) -> None:
    """The collator shifts the labels into the decoder's inputs."""
    whole = run.whole_batch

    def whole_batch(step: int) -> Batch:
        batch = whole(step)
        shifted = F.pad(batch["labels"][:, :-1], (1, 0), value=0)
        return batch | {"decoder_input_ids": shifted.masked_fill(shifted == IGNORED, 0)}

    run.whole_batch = whole_batch


# ---- generative, preferences


@change("fused-spatial-attention")
def fused_spatial_attention(run: Any) -> None:
    """PyTorch's attention function for two einsums."""
    run.edits.append(lambda model: setattr(model.attention, "fused", True))


@change("divergence-by-distributions")
def divergence_by_distributions(run: Any) -> None:
    """``torch.distributions`` for the formula."""

    def divergence(mu: Tensor, logvar: Tensor) -> Tensor:
        normal = torch.distributions.Normal
        own, prior = normal(mu, torch.exp(0.5 * logvar)), normal(torch.zeros(()), torch.ones(()))
        return torch.distributions.kl_divergence(own, prior).sum(1)

    run.divergence = divergence


@change("adapter-merged-in-forward")
def adapter_merged_in_forward(run: Any) -> None:
    """The product of the adapter is added to the weight, not to the output."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            for name in ("q_proj", "v_proj"):
                lora = getattr(layer.self_attn, name)

                def forward(x: Tensor, lora: Any = lora) -> Tensor:
                    added = lora.lora_B.weight @ lora.lora_A.weight * lora.scaling
                    return F.linear(x, lora.base_layer.weight + added)

                lora.forward = forward

    run.edits.append(edit)


@change("pairs-concatenated")
def pairs_concatenated(run: Any) -> None:
    """Both answers in one forward pass."""

    def loss(batch: Batch) -> Tensor:
        joined = {
            f"joined_{part}": torch.cat([batch[f"chosen_{part}"], batch[f"rejected_{part}"]])
            for part in ("ids", "mask", "labels")
        }
        policy = run.log_probabilities(run.wrapped, joined, "joined").chunk(2)
        with torch.no_grad():
            old = run.log_probabilities(run.reference, joined, "joined").chunk(2)
        result: Tensor = run.preference(policy[0] - policy[1], old[0] - old[1])
        return result

    run.loss = loss


@change("contrast-written-out")
def contrast_written_out(run: Any) -> None:
    """The diagonal of two log-softmaxes for two cross-entropies."""

    def contrast(one: Tensor, other: Tensor, scale: Tensor) -> Tensor:
        logits = scale * one @ other.T
        return -(logits.log_softmax(1).diagonal().mean() + logits.log_softmax(0).diagonal().mean()) / 2

    run.contrast = contrast


@change("one-process-for-two-clip")
def one_process_for_two_clip(run: Any) -> None:
    """All pairs in one process."""


@change("answers-averaged-by-weights")
def answers_averaged_by_weights(run: Any) -> None:
    """Each token weighted by its answer's length for two means."""
    run.reduce = lambda each, counts: (each * (counts / (counts.sum(1, keepdim=True) * len(counts)))).sum()
