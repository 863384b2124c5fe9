"""Adapters, preferences and contrast: LoRA, DPO, GRPO and CLIP on small models."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.public.encoders import image
from bugzoo.public.language import IGNORED, PAD, PROMPT, Causal, Llama, padded, text
from bugzoo.public.run import Batch, Run


class LoraLinear(nn.Module):
    """A frozen linear layer and a trained product of two narrow ones."""

    def __init__(self, base: nn.Linear, *, r: int, alpha: float) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base.out_features, bias=False)
        nn.init.normal_(self.lora_B.weight, std=0.1)
        self.scaling = alpha / r

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scaling
        return out


class Lora(Llama):
    """Adapters on queries and values of a frozen Llama."""

    r, alpha = 8, 16.0

    def initialised(self, model: Any) -> nn.Module:
        super().initialised(model).requires_grad_(False)
        for layer in model.model.layers:
            for name in ("q_proj", "v_proj"):
                base = getattr(layer.self_attn, name)
                setattr(layer.self_attn, name, LoraLinear(base, r=self.r, alpha=self.alpha))
        return model


class LoraBf16(Lora):
    """bfloat16 autocast, activations computed again in backward; the head is trained, too."""

    precision = "bf16"

    def initialised(self, model: Any) -> nn.Module:
        model = super().initialised(model)
        model.lm_head.requires_grad_(True)
        return model

    def build(self) -> None:
        super().build()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Gradients reach the adapters although the embedding is frozen."""
        self.model.activation_checkpointing_enable({"use_reentrant": True})


class Dpo(Causal):
    """Pairs of answers: the IPO loss of a policy and a frozen reference model."""

    rows = 4
    length = 24
    beta = 0.1
    dropout = 0.0

    def config(self) -> Any:
        from transformers import LlamaConfig

        from bugzoo.public.language import SIZES

        return LlamaConfig(**SIZES, attention_dropout=self.dropout)

    def build(self) -> None:
        super().build()
        torch.manual_seed(7)
        self.reference = self.make_reference()

    def make_reference(self) -> nn.Module:
        """Where the policy began, frozen."""
        import copy

        return copy.deepcopy(self.model).requires_grad_(False).eval()

    def count(self, batch: Batch) -> Tensor:
        """Pairs."""
        return torch.tensor(self.rows)

    def whole_batch(self, step: int) -> Batch:
        found: Batch = {}
        for kind, offset in (("chosen", 0), ("rejected", 20)):
            rows = []
            for row in range(self.rows):
                prompt = text(step, row)[:PROMPT]
                rows.append(torch.cat([prompt, text(step, row + offset, most=self.length)[PROMPT:]]))
            found[f"{kind}_ids"] = padded(rows, PAD, self.length)
            found[f"{kind}_mask"] = padded([torch.ones_like(row) for row in rows], 0, self.length)
            found[f"{kind}_labels"] = padded([self.labels(row) for row in rows], IGNORED, self.length)
        return found

    def log_probabilities(self, model: Any, batch: Batch, kind: str) -> Tensor:
        """Of the answers: the mean over their tokens, one number a row."""
        logits = model(
            input_ids=batch[f"{kind}_ids"], attention_mask=batch[f"{kind}_mask"], use_cache=False
        ).logits
        return self.of_tokens(logits[:, :-1], batch[f"{kind}_labels"][:, 1:])

    def of_tokens(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Averaged over the tokens that count."""
        counts = labels != IGNORED
        each = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        return (each * counts).sum(1) / counts.sum(1)

    def preference(self, policy: Tensor, reference: Tensor) -> Tensor:
        """IPO: the margin is to be 1 / (2 beta)."""
        return ((policy - reference - 1 / (2 * self.beta)) ** 2).mean()

    def loss(self, batch: Batch) -> Tensor:
        chosen, rejected = (self.log_probabilities(self.wrapped, batch, k) for k in ("chosen", "rejected"))
        with torch.no_grad():
            old = [self.log_probabilities(self.reference, batch, k) for k in ("chosen", "rejected")]
        return self.preference(chosen - rejected, old[0] - old[1])


class Grpo(Causal):
    """Sampled answers with advantages; each answer counts alike, whatever its length."""

    rows = 6

    def config(self) -> Any:
        from transformers import LlamaConfig

        from bugzoo.public.language import SIZES

        return LlamaConfig(**SIZES)

    def whole_batch(self, step: int) -> Batch:
        batch = super().whole_batch(step)
        generator = torch.Generator().manual_seed(23 * step + 6)
        rewards = torch.rand(self.rows, generator=generator)
        old = -4.5 + 0.3 * torch.randn(self.rows, self.length - 1, generator=generator)
        return batch | {"advantages": self.advantages(rewards), "old": old}

    def advantages(self, rewards: Tensor) -> Tensor:
        """Against the group's mean, by its deviation."""
        return (rewards - rewards.mean()) / (rewards.std() + 1e-4)

    def reduce(self, each: Tensor, counts: Tensor) -> Tensor:
        """The mean over each answer's tokens, then over answers."""
        return ((each * counts).sum(1) / counts.sum(1)).mean()

    def clipped(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """The smaller of both."""
        return torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)

    def loss(self, batch: Batch) -> Tensor:
        labels = batch["labels"][:, 1:]
        counts = labels != IGNORED
        logits = self.wrapped(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        ).logits[:, :-1]
        log = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        ratio = (log - batch["old"]).exp()
        return self.reduce(-self.clipped(ratio, batch["advantages"][:, None]), counts)


class Towers(nn.Module):
    """A tower for pictures, one for texts, and a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(192, 64), nn.GELU(), nn.Linear(64, 32))
        self.embedding, self.textual = nn.Embedding(128, 48), nn.Linear(48, 32)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def scale(self) -> Tensor:
        """Of the similarities."""
        return self.logit_scale.exp()

    def forward(self, pictures: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = F.normalize(self.visual(pictures), dim=-1)
        other = F.normalize(self.textual(self.embedding(ids).mean(1)), dim=-1)
        return one, other, self.scale()


class Clip(Run):
    """Contrastive loss of pictures and texts."""

    rows = 8

    def make_model(self) -> nn.Module:
        return Towers()

    def whole_batch(self, step: int) -> Batch:
        rows = [text(step, row, least=12, most=12) for row in range(self.rows)]
        pictures = image(step, self.rows, size=8).flatten(1)
        return {"pictures": pictures - pictures.mean(0), "ids": torch.stack(rows)}

    def gathered(self, features: Tensor) -> Tensor:
        """Of all processes, with gradients."""
        return features

    def contrast(self, one: Tensor, other: Tensor, scale: Tensor) -> Tensor:
        """Each picture with its text, and each text with its picture."""
        first = torch.arange(len(one)) + self.rank * len(one)
        logits, back = scale * one @ self.gathered(other).T, scale * other @ self.gathered(one).T
        return (F.cross_entropy(logits, first) + F.cross_entropy(back, first)) / 2

    def loss(self, batch: Batch) -> Tensor:
        return self.contrast(*self.wrapped(batch["pictures"], batch["ids"]))


class ClipDdp(Clip):
    """Two processes, each with half of the pairs; negatives come from both."""

    parallel = "ddp"

    def gathered(self, features: Tensor) -> Tensor:
        if self.world == 1:
            return features
        from torch.distributed.nn.functional import all_gather

        return torch.cat(tuple(all_gather(features)))
