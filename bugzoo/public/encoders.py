"""BERT, ViT, T5 and Whisper of the transformers library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bugzoo.models.hugging_face import trained_like
from bugzoo.public.language import IGNORED, PAD, padded, text
from bugzoo.public.run import Batch, Run

MASKED = 3


class Bert(Run):
    """Masked language model on pairs of sentences, no dropout."""

    length = 32

    def make_model(self) -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(
            vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            pad_token_id=PAD,
        )  # fmt: skip
        config._attn_implementation = self.attention
        return trained_like(BertForMaskedLM(config))

    attention = "eager"

    def pair(self, step: int, row: int) -> tuple[Tensor, Tensor]:
        """Two sentences."""
        return text(step, 10 * row, most=16), text(step, 10 * row + 1, most=16)

    def types(self, first: Tensor, second: Tensor) -> Tensor:
        """0 in the first sentence, 1 in the second."""
        return torch.cat([torch.zeros_like(first), torch.ones_like(second)])

    def hidden(self, tokens: Tensor, step: int, row: int) -> Tensor:
        """Which tokens are to be predicted: one in four."""
        generator = torch.Generator().manual_seed(7 * step + 31 * row + 3)
        return torch.rand(len(tokens), generator=generator) < 0.25

    def labels(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Only hidden tokens count."""
        return tokens.masked_fill(~hidden, IGNORED)

    def whole_batch(self, step: int) -> Batch:
        pairs = [self.pair(step, row) for row in range(self.rows)]
        tokens = [torch.cat(pair) for pair in pairs]
        hidden = [self.hidden(row, step, index) for index, row in enumerate(tokens)]
        ids = [row.masked_fill(h, MASKED) for row, h in zip(tokens, hidden, strict=True)]
        labels = [self.labels(row, h) for row, h in zip(tokens, hidden, strict=True)]
        return {
            "input_ids": padded(ids, PAD, self.length),
            "attention_mask": padded([torch.ones_like(row) for row in ids], 0, self.length),
            "token_type_ids": padded([self.types(*pair) for pair in pairs], 0, self.length),
            "labels": padded(labels, IGNORED, self.length),
        }

    def loss(self, batch: Batch) -> Tensor:
        given = dict(batch)
        given.pop("items")
        loss: Tensor = self.wrapped(**given).loss
        return loss / self.accumulation


class BertBf16(Bert):
    """bfloat16 autocast, two microbatches."""

    precision = "bf16"
    accumulation = 2


def image(step: int, rows: int, *, channels: int = 3, size: int = 16) -> Tensor:
    """Pictures with values in 0 to 1, channels of different means."""
    generator = torch.Generator().manual_seed(1_003 * step + 11)
    base = torch.rand(rows, channels, size, size, generator=generator)
    return base * torch.linspace(0.5, 1.0, channels)[None, :, None, None]


def classes(step: int, rows: int, number: int) -> Tensor:
    """Labels of pictures."""
    return torch.randint(number, (rows,), generator=torch.Generator().manual_seed(77 * step + 5))


class Vit(Run):
    """Image classification; pictures are normalised to -1 to 1."""

    rows = 6
    norm_eps = 1e-6
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)
    attention = "eager"

    def make_model(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=16,
            patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=10,
            layer_norm_eps=self.norm_eps,
        )  # fmt: skip
        config._attn_implementation = self.attention
        return trained_like(ViTForImageClassification(config))

    def normalise(self, pictures: Tensor) -> Tensor:
        """By mean and deviation of each channel."""
        mean, deviation = (torch.tensor(x)[None, :, None, None] for x in (self.mean, self.deviation))
        return (pictures - mean) / deviation

    def whole_batch(self, step: int) -> Batch:
        return {
            "pixel_values": self.normalise(image(step, self.rows)),
            "labels": classes(step, self.rows, 10),
        }

    def loss(self, batch: Batch) -> Tensor:
        logits = self.wrapped(pixel_values=batch["pixel_values"]).logits
        return nn.functional.cross_entropy(logits.float(), batch["labels"])


class VitBf16(Vit):
    """bfloat16 autocast."""

    precision = "bf16"


class T5(Run):
    """Text to text, tied embedding scaled before the head."""

    length = 24
    scales = True

    def config(self) -> Any:
        from transformers import T5Config

        return T5Config(
            vocab_size=128, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
            pad_token_id=PAD, decoder_start_token_id=PAD, eos_token_id=2, relative_attention_num_buckets=8,
            scale_decoder_outputs=self.scales,
        )  # fmt: skip

    def make_model(self) -> nn.Module:
        from transformers import T5ForConditionalGeneration

        config = self.config()
        config._attn_implementation = "eager"
        model = T5ForConditionalGeneration(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        return model

    def whole_batch(self, step: int) -> Batch:
        sources = [text(step, row, most=self.length) for row in range(self.rows)]
        targets = [text(step, 50 + row, most=16) for row in range(self.rows)]
        return {
            "input_ids": padded(sources, PAD, self.length),
            "attention_mask": padded([torch.ones_like(row) for row in sources], 0, self.length),
            "labels": padded([row[1:] for row in targets], IGNORED, 16),
        }

    def loss(self, batch: Batch) -> Tensor:
        given = dict(batch)
        given.pop("items")
        loss: Tensor = self.wrapped(**given, use_cache=False).loss
        return loss


START, LANGUAGE = 4, 5


class Whisper(Run):
    """Speech to text: frames of a spectrogram, a transcript that begins with the start token."""

    freezes_positions = True

    def make_model(self) -> nn.Module:
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        config = WhisperConfig(
            vocab_size=128, num_mel_bins=16, d_model=48, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
            max_source_positions=24, max_target_positions=32, pad_token_id=PAD, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=START, suppress_tokens=None, begin_suppress_tokens=None,
        )  # fmt: skip
        config._attn_implementation = self.attention
        model = WhisperForConditionalGeneration(config)
        sinusoids = model.model.encoder.embed_positions.weight.detach().clone()
        trained_like(model)
        with torch.no_grad():
            model.model.encoder.embed_positions.weight.copy_(sinusoids)
        model.model.encoder.embed_positions.requires_grad_(not self.freezes_positions)
        return model

    attention = "eager"

    def transcript(self, tokens: Tensor) -> Tensor:
        """The model puts the start token before the labels itself: they begin with the language."""
        return torch.cat([torch.tensor([LANGUAGE]), tokens])

    def whole_batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(13 * step + 1)
        targets = [self.transcript(text(step, row, most=16)[1:]) for row in range(self.rows)]
        return {
            "input_features": torch.randn(self.rows, 16, 48, generator=generator),
            "labels": padded(targets, IGNORED, 20),
        }

    def loss(self, batch: Batch) -> Tensor:
        given = dict(batch)
        given.pop("items")
        loss: Tensor = self.wrapped(**given, use_cache=False).loss
        return loss
