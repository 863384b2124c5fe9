"""Decoder-only models of the transformers library, and the text they are trained on."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bugzoo.data import Shape, document
from bugzoo.models.hugging_face import trained_like
from bugzoo.public.run import Batch, Run

PAD, BOS, EOS, IGNORED = 0, 1, 2, -100
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
PROMPT = 5


def text(step: int, row: int, *, vocabulary: int = 128, least: int = 10, most: int = 24) -> Tensor:
    """One example: BOS, a prompt, an answer, EOS; a function of step and row alone."""
    generator = torch.Generator().manual_seed(1_000_003 * step + 1009 * row + 7)
    length = int(torch.randint(least, most + 1, (1,), generator=generator))
    tokens = document(Shape(vocab_size=vocabulary - 2, rows=1, length=length), length - 2, generator) + 1
    return torch.cat([torch.tensor([BOS]), tokens.clamp(3, vocabulary - 1), torch.tensor([EOS])])


def padded(rows: list[Tensor], value: int, length: int, *, left: bool = False) -> Tensor:
    """Rows of one length."""
    pad = [torch.full((length - len(row),), value) for row in rows]
    parts = [(p, row) if left else (row, p) for p, row in zip(pad, rows, strict=True)]
    return torch.stack([torch.cat(part) for part in parts])


class Causal(Run):
    """Fine-tuning on padded examples: the answer has labels, prompt and padding have none."""

    rows = 4
    length = 24
    left = False

    def config(self) -> Any:
        """Of the model; eager attention."""
        raise NotImplementedError

    def make_model(self) -> nn.Module:
        from transformers import AutoModelForCausalLM

        config = self.config()
        config._attn_implementation = self.attention
        return self.initialised(AutoModelForCausalLM.from_config(config))

    attention = "eager"

    def initialised(self, model: nn.Module) -> nn.Module:
        """Weights as if it had been trained for a while."""
        return trained_like(model)

    def examples(self, step: int) -> list[Tensor]:
        """Token ids of every row."""
        return [text(step, row, most=self.length) for row in range(self.rows)]

    def labels(self, row: Tensor) -> Tensor:
        """What is learned of an example."""
        return torch.cat([torch.full((PROMPT,), IGNORED), row[PROMPT:]])

    def whole_batch(self, step: int) -> Batch:
        rows = self.examples(step)
        return {
            "input_ids": padded(rows, PAD, self.length, left=self.left),
            "attention_mask": padded([torch.ones_like(row) for row in rows], 0, self.length, left=self.left),
            "labels": padded([self.labels(row) for row in rows], IGNORED, self.length, left=self.left),
        }

    def count(self, batch: Batch) -> Tensor:
        """Labels that count, after the shift."""
        return (batch["labels"][:, 1:] != IGNORED).sum()

    def loss(self, batch: Batch) -> Tensor:
        given = dict(batch)
        loss: Tensor = self.wrapped(**given, num_items_in_batch=given.pop("items"), use_cache=False).loss
        return loss


class Llama(Causal):
    """Llama 3 style: grouped heads, rotary embedding with scaling."""

    theta = 500000.0
    scaling: ClassVar[dict[str, Any]] = {"rope_type": "linear", "factor": 4.0}
    tied = False

    def config(self) -> Any:
        from transformers import LlamaConfig

        rope = {"rope_theta": self.theta, **self.scaling}
        return LlamaConfig(**SIZES, rope_parameters=rope, tie_word_embeddings=self.tied)


class LlamaAccumulated(Llama):
    """Three microbatches with unequal numbers of labels."""

    accumulation = 3
    rows = 6


class LlamaBf16(Llama):
    """bfloat16 autocast, float32 weights."""

    precision = "bf16"


class LlamaPureBf16(Llama):
    """Weights in bfloat16, rotary frequencies kept in float32."""

    precision = "pure"
    learning_rate = 1e-2

    def initialised(self, model: Any) -> nn.Module:
        frequencies = model.model.rotary_emb.inv_freq.clone()
        model = trained_like(model).to(torch.bfloat16)
        model.model.rotary_emb.inv_freq = frequencies
        return model


class LlamaDdp(Llama):
    """Two processes, two microbatches."""

    parallel = "ddp"
    accumulation = 2
    rows = 8


class LlamaFsdp(Llama):
    """FSDP2 over two processes: computes in bfloat16, reduces in float32; tied embedding."""

    parallel = "fsdp"
    rows = 4
    tied = True
    reduce_dtype = torch.float32

    def shard_options(self) -> dict[str, Any]:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        return {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=self.reduce_dtype)}


class Qwen3Packed(Causal):
    """Qwen 3 on packed documents: positions and attention of each document are its own."""

    rows = 2
    length = 48
    theta = 1000000.0

    def config(self) -> Any:
        from transformers import Qwen3Config

        return Qwen3Config(
            **SIZES, head_dim=16, rope_parameters={"rope_theta": self.theta, "rope_type": "default"}
        )

    def packed(self, step: int, row: int) -> list[Tensor]:
        """Documents that fill a row, the last cut off."""
        found: list[Tensor] = []
        while sum(map(len, found)) < self.length:
            found.append(text(step, 100 * row + len(found), most=20))
        found[-1] = found[-1][: self.length - sum(map(len, found[:-1]))]
        return found

    def positions(self, lengths: list[int]) -> Tensor:
        """Each document begins at 0."""
        return torch.cat([torch.arange(length) for length in lengths])

    def mask(self, lengths: list[int]) -> Tensor:
        """True where a token may look: (1, length, length)."""
        number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        causal = torch.ones(self.length, self.length).tril().bool()
        return (causal & (number[:, None] == number[None, :]))[None]

    def whole_batch(self, step: int) -> Batch:
        rows = [self.packed(step, row) for row in range(self.rows)]
        lengths = [[len(one) for one in row] for row in rows]
        labels = [torch.cat([torch.cat([torch.tensor([IGNORED]), one[1:]]) for one in row]) for row in rows]
        seen = torch.stack([self.mask(of) for of in lengths])
        low = torch.finfo(torch.float32).min
        return {
            "input_ids": torch.stack([torch.cat(row) for row in rows]),
            "position_ids": torch.stack([self.positions(of) for of in lengths]),
            "attention_mask": torch.zeros(seen.shape).masked_fill(~seen, low),
            "labels": torch.stack(labels),
        }


class Gemma2(Causal):
    """Gemma 2: soft-capped logits, a sliding window in every other layer, (1 + w) norms."""

    softcap: float | None = 5.0
    final_softcap: float | None = 8.0
    activation = "gelu_pytorch_tanh"

    def config(self) -> Any:
        from transformers import Gemma2Config

        return Gemma2Config(
            **SIZES,
            head_dim=12,
            query_pre_attn_scalar=12,
            sliding_window=8,
            hidden_activation=self.activation,
            attn_logit_softcapping=self.softcap,
            final_logit_softcapping=self.final_softcap,
        )


class Gemma2Bf16(Gemma2):
    """All weights in bfloat16."""

    precision = "pure"
    learning_rate = 1e-2

    def initialised(self, model: Any) -> nn.Module:
        frequencies = model.model.rotary_emb.inv_freq.clone()
        model = trained_like(model).to(torch.bfloat16)
        model.model.rotary_emb.inv_freq = frequencies
        return model


class Mistral(Causal):
    """A sliding window of 8."""

    window: int | None = 8

    def config(self) -> Any:
        from transformers import MistralConfig

        return MistralConfig(**SIZES, sliding_window=self.window)


class Mixtral(Causal):
    """Four experts, two a token, with the balance loss."""

    router_logits = True

    def config(self) -> Any:
        from transformers import MixtralConfig

        config = MixtralConfig(
            **SIZES, num_local_experts=4, output_router_logits=self.router_logits, router_aux_loss_coef=0.05
        )
        config._experts_implementation = self.experts
        return config

    experts = "eager"


class MixtralBf16(Mixtral):
    """bfloat16 autocast; the router computes in float32."""

    precision = "bf16"

    def initialised(self, model: Any) -> nn.Module:
        model = trained_like(model)
        for layer in model.model.layers:
            in_float32(layer.mlp.gate)
        return model


def in_float32(gate: Any) -> None:
    """The gate's forward without autocast."""
    forward = gate.forward

    def upcast(hidden: Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            return forward(hidden.float())

    gate.forward = upcast


class Gpt2(Causal):
    """GPT-2 without dropout; rows are padded on the left, positions count real tokens."""

    left = True

    def config(self) -> Any:
        from transformers import GPT2Config

        return GPT2Config(
            vocab_size=128, n_embd=48, n_layer=2, n_head=4, n_positions=64,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
        )  # fmt: skip

    def whole_batch(self, step: int) -> Batch:
        batch = super().whole_batch(step)
        return batch | {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)}


class Gpt2Fp16(Gpt2):
    """float16 autocast with a scaler, clipping that bites."""

    precision = "fp16"
    max_norm = 0.3


class Mamba(Causal):
    """Mamba's reference path; rows are padded on the left."""

    left = True

    def config(self) -> Any:
        from transformers import MambaConfig

        return MambaConfig(
            vocab_size=128, hidden_size=48, state_size=8, num_hidden_layers=2, expand=2,
            time_step_rank=4, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, use_mambapy=False,
        )  # fmt: skip

    def initialised(self, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
        return model

    def decays(self, name: str, weight: Tensor) -> bool:
        """State matrices are marked as not decaying."""
        return weight.dim() >= 2 and not getattr(weight, "_no_weight_decay", "A_log" in name)

    def loss(self, batch: Batch) -> Tensor:
        given = dict(batch)
        items, labels = given.pop("items"), given.pop("labels")
        logits = self.wrapped(**given, use_cache=False).logits
        return (
            nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum"
            )
            / items
        )
