"""What a transformer of the family is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches; every base program is one setting of them."""

    vocab_size: int = 256
    padded_vocab_size: int = 256
    """rows of embedding and head; those past ``vocab_size`` are never right"""
    num_layers: int = 3
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 4
    max_length: int = 64
    norm: str = "layer"
    """``layer`` or ``rms``"""
    norm_eps: float = 1e-5
    position: str = "rotary"
    """``rotary`` or ``learned``"""
    rotary_theta: float = 10000.0
    feed_forward: str = "gelu"
    """``gelu``, ``swiglu`` or ``experts``"""
    num_experts: int = 4
    experts_per_token: int = 2
    auxiliary_weight: float = 0.02
    tied: bool = False
    dropout: float = 0.0
    recompute: bool = False
    """activation checkpointing of every block"""
    attention: str = "eager"
    """``eager`` or ``sdpa``"""
    padding_id: int | None = None
    parallel: str | None = None
    """``tensor`` (heads and inner width over ranks, norms on sequence parts) or ``context`` (sequence parts
    throughout, keys gathered)"""
