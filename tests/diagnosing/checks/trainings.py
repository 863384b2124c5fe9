"""A small GPT trained for a few steps, as it should be or with one thing wrong: each function changes one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trueup

CONFIG = GPTConfig(hidden_size=64, num_layers=3, num_heads=4, seq_length=24, vocab_size=96, dropout=0.1)
KEPT = ["labels", "integers", "dropout"]


@dataclass
class Training:
    """What a step is made of."""

    model: GPT
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = loss_of
    scaler: torch.amp.GradScaler | None = None
    clip: bool = True
    after_update: Callable[[int], None] = field(default=lambda step: None)
    extra: dict[str, Any] = field(default_factory=dict)


def build(config: GPTConfig = CONFIG) -> Training:
    """The training as it should be."""
    torch.manual_seed(0)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Training(model=model, optimizer=optimizer, batch=lambda step: batch(config, step=step, size=2))


def train(training: Training, steps: int = 3) -> None:
    """Forward, backward, clip, update."""
    for step in range(steps):
        loss = training.loss(training.model, *training.batch(step))
        scaler = training.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        if training.clip:
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        if scaler is None:
            training.optimizer.step()
        else:
            scaler.step(training.optimizer)
            scaler.update()
        training.after_update(step)
        training.optimizer.zero_grad()
        training.model.zero_grad()


def capture(output: Path, change: Callable[[Training], None] | None = None, **options: Any) -> Path:
    """The trace of a training with one thing changed."""
    torch.set_num_threads(1)
    wanted = {"level": "mix", "steps": "0-1", "store_values_of": KEPT, **options}
    with trueup.Tracer(output, **wanted):
        training = build()
        if change is not None:
            change(training)
        train(training)
    return output


class Wrapped(nn.Module):
    """A module whose output goes through a function."""

    def __init__(self, inner: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x))


def _through(training: Training, function: Callable[[Tensor], Tensor]) -> None:
    training.model.layers[1].mlp.act = Wrapped(training.model.layers[1].mlp.act, function)


# -- not finite, or nearly ------------------------------------------


def log_of_negative(training: Training) -> None:
    """NaN in forward."""
    _through(training, lambda x: x + torch.log(-x.abs() - 1))


def sqrt_at_zero(training: Training) -> None:
    """Finite in forward, infinite in backward."""
    _through(training, lambda x: x + torch.sqrt(x * 0.0))


def row_masked_whole(training: Training) -> None:
    """The first token attends to nothing: softmax of minus infinities."""
    training.model.layers[1].attn.mask_offset = 0


def float16_overflow(training: Training) -> None:
    """A product beyond 65504."""
    _through(training, lambda x: ((x.half() * 300.0) * 3000.0).float() * 1e-6)


def log_of_zero_masked_away(training: Training) -> None:
    """Minus infinity where nobody takes it: no fault."""

    def guarded(x: Tensor) -> Tensor:
        with torch.no_grad():
            logarithm = torch.log(torch.relu(x))
            return_to = torch.where(x > 0, logarithm, torch.zeros_like(x))
        return x + 0.01 * return_to.clamp(-1, 1)

    _through(training, guarded)


def smallest_number_as_mask(training: Training) -> None:
    """As Hugging Face writes a mask: no fault."""

    def masked(x: Tensor) -> Tensor:
        low = torch.full((x.shape[-1],), torch.finfo(x.dtype).min)
        low[: x.shape[-1] // 2] = 0.0
        return x * torch.softmax(x + low, dim=-1) * x.shape[-1]

    _through(training, masked)


def nearly_overflowing(training: Training) -> None:
    """float16 within a factor of two of its largest number."""
    _through(training, lambda x: ((x / x.abs().max()).half() * 200.0 * 250.0 / 50000.0).float())


def gradients_too_small(training: Training) -> None:
    """float16 weights and no loss scale to speak of."""
    training.model.half()
    training.loss = lambda model, ids, labels: 1e-4 * loss_of(model, ids, labels)
    training.clip = False


# -- gradients and updates ------------------------------------------


def frozen_in_the_middle(training: Training) -> None:
    """One layer does not train."""
    training.model.layers[1].mlp.up.weight.requires_grad_(False)


def first_layers_frozen(training: Training) -> None:
    """As in fine-tuning: no fault."""
    training.model.emb.requires_grad_(False)
    training.model.layers[0].requires_grad_(False)


def detached(training: Training) -> None:
    """Attention of one layer is cut off."""
    attention = training.model.layers[2].attn
    original = attention.forward
    attention.forward = lambda x: original(x).detach()


def times_zero(training: Training) -> None:
    """Gradients arrive, as zeros."""
    _through(training, lambda x: x * 0.0)


def scaled_when_clipped(training: Training) -> None:
    """Clips before the scaler has taken its scale out."""
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def stale_parameters(training: Training) -> None:
    """The optimizer was made from a copy."""
    kept = copy.deepcopy(training.model)
    training.optimizer = torch.optim.AdamW(kept.parameters(), lr=1e-3)
    training.extra["kept"] = kept
    original = training.optimizer.step

    def step(*args: Any) -> None:
        for mine, theirs in zip(kept.parameters(), training.model.parameters(), strict=True):
            mine.grad = theirs.grad
        original(*args)

    training.optimizer.step = step


def left_out_of_the_optimizer(training: Training) -> None:
    """Some parameters were never given to it."""
    chosen = [p for name, p in training.model.named_parameters() if "layers.2.mlp" not in name]
    training.optimizer = torch.optim.AdamW(chosen, lr=1e-3)


def update_undone(training: Training) -> None:
    """Something writes the old weight back."""
    weight = training.model.head.weight
    old = weight.detach().clone()

    def undo(step: int) -> None:
        weight.data.copy_(old)

    training.after_update = undo


def update_lost_in_rounding(training: Training) -> None:
    """bfloat16 weights of 1 and a small rate."""
    training.model.bfloat16()
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4)


def warming_up(training: Training) -> None:
    """The first rate is 0: no fault."""
    schedule = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: 0.1 * step)
    training.after_update = lambda step: schedule.step()


# -- master weights ------------------------------------------


def master_weights(training: Training) -> None:
    """bfloat16 in the model, float32 in the optimizer, copied after every update: no fault."""
    _with_masters(training, late=False)


def slow_master_weights(training: Training) -> None:
    """Updates too small for bfloat16, which the master weights keep: no fault."""
    _with_masters(training, late=False, rate=1e-4)


def stale_working_copy(training: Training) -> None:
    """The copy is made before the update."""
    _with_masters(training, late=True)


def masters_made_anew(training: Training) -> None:
    """Copied back after every update: what is smaller than a rounding of bfloat16 is lost."""
    _with_masters(training, late=False, back=True)


def _with_masters(training: Training, *, late: bool, rate: float = 1e-2, back: bool = False) -> None:
    model = training.model.bfloat16()
    own = list(model.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in own]
    optimizer = torch.optim.AdamW([{"params": masters[1::2]}, {"params": masters[::2]}], lr=rate)
    original = optimizer.step

    def give(*_: Any) -> None:
        for mine, master in zip(own, masters, strict=True):
            mine.data.copy_(master.data)

    def step(*args: Any) -> None:
        for mine, master in zip(own, masters, strict=True):
            master.grad = mine.grad.float()
        nn.utils.clip_grad_norm_(masters, 1.0)
        if late:
            give()
        original(*args)
        if not late:
            give()
        for mine, master in zip(own, masters, strict=True) if back else ():
            master.data.copy_(mine.data)

    optimizer.step = step
    training.optimizer, training.clip = optimizer, False


# -- randomness ------------------------------------------


def seeded_in_the_forward(training: Training) -> None:
    """Every block sets the same seed."""
    for layer in training.model.layers:
        layer.register_forward_pre_hook(lambda module, args: torch.manual_seed(7) and None)


def recomputed_with_another_state(training: Training) -> None:
    """A checkpoint that forgets the random state."""
    _checkpointed(training, preserve=False)


def recomputed(training: Training) -> None:
    """A checkpoint as it should be: no fault."""
    _checkpointed(training, preserve=True)


def _checkpointed(training: Training, *, preserve: bool) -> None:
    layer = training.model.layers[1]
    original = layer.forward
    layer.forward = lambda x: checkpoint(original, x, use_reentrant=False, preserve_rng_state=preserve)


# -- labels ------------------------------------------


def labels_not_shifted(training: Training) -> None:
    """The model predicts what it is given."""
    given = training.batch
    training.batch = lambda step: (given(step)[0], given(step)[0])


def labels_shifted_twice(training: Training) -> None:
    """By the data, and by the loss."""
    training.loss = lambda model, ids, labels: F.cross_entropy(
        model(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )


def labels_all_ignored(training: Training) -> None:
    """Nothing is left to learn from."""
    given = training.batch
    training.batch = lambda step: (given(step)[0], torch.full_like(given(step)[1], -100))


def head_far_too_large(training: Training) -> None:
    """Initial weights of the head are a hundred times too large."""
    with torch.no_grad():
        training.model.head.weight.mul_(100.0)


def labels_of_something_else(training: Training) -> None:
    """Not a next-token model: nothing to hold the labels against."""
    given = training.batch
    training.batch = lambda step: (given(step)[0], (given(step)[0] * 7 + 3) % CONFIG.vocab_size)


def with_reference_model(training: Training) -> None:
    """A loss against a copy that is only evaluated, whose weights could be trained, as DPO's."""
    reference, own = copy.deepcopy(training.model), training.loss

    def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            expected = reference(ids)
        return own(model, ids, labels) + 0.1 * F.mse_loss(model(ids), expected)

    training.loss = loss


def accumulate(output: Path, divide: Callable[[Tensor, Tensor, int], Tensor], microbatches: int = 4) -> Path:
    """A trace of a training whose loss is ``divide(logits, labels, microbatches)`` of some microbatches."""
    torch.set_num_threads(1)
    with trueup.Tracer(output, level="mix", steps="0-1", store_values_of=KEPT):
        training = build()
        for step in range(2):
            for at in range(microbatches):
                ids, labels = training.batch(step * microbatches + at)
                divide(training.model(ids), labels, microbatches).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
    return output


def divided_by_all_tokens(logits: Tensor, labels: Tensor, microbatches: int) -> Tensor:
    """As transformers' Trainer does: the sum, by the labels of all microbatches of the step."""
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels.numel() * microbatches)


def divided_by_microbatches(logits: Tensor, labels: Tensor, microbatches: int) -> Tensor:
    """As nanoGPT does."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / microbatches


def summed(logits: Tensor, labels: Tensor, microbatches: int) -> Tensor:
    """The sum itself."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def labels_visible(logits: Tensor, labels: Tensor, microbatches: int) -> Tensor:
    """The model sees what it is to predict."""
    seen = logits + 12.0 * F.one_hot(labels, logits.shape[-1])
    return F.cross_entropy(seen.flatten(0, 1), labels.flatten()) / microbatches


class Adapted(nn.Module):
    """A layer with a low-rank term whose second factor starts at zero, as LoRA's."""

    def __init__(self, inner: nn.Linear, *, zero: bool = True) -> None:
        super().__init__()
        self.base = inner
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inner.in_features, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, inner.out_features, bias=False)})
        self.factor = 1.0 if zero else 0.0
        if zero:
            nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B["default"](self.lora_A["default"](x)) * self.factor


def adapted(training: Training, *, zero: bool = True) -> None:
    """Adapters alone are trained, at a rate that is still 0: their first factors have gradients of zeros."""
    training.model.requires_grad_(False)
    for layer in training.model.layers:
        layer.attn.qkv = Adapted(layer.attn.qkv, zero=zero)
    trained = [p for p in training.model.parameters() if p.requires_grad]
    training.optimizer = torch.optim.AdamW(trained, lr=0.0)


def adapted_and_cut_off(training: Training) -> None:
    """Adapters that are multiplied with zero: no weight is zero, and none gets a gradient."""
    adapted(training, zero=False)
