"""``model_config``, ``rotary_config`` within it, and ``moe_config``: the network."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from trueup_gpt.config.base import Count, Dtype, Positive, Section, Share

MaskType = Literal["causal", "padding", "padding_causal", "no_mask"]
Activation = Literal["gelu", "fast_gelu", "swiglu", "squared_relu", "silu", "relu"]


class RotaryConfig(Section):
    """Rotary position embedding: angle of pair i at position p is p / (factor * base^(2i / dims))."""

    rotary_base: float = Field(default=10000.0, gt=0)
    rotary_percent: float = Field(default=1.0, gt=0, le=1)
    """share of a head's channels that are turned"""
    rotary_interleaved: bool = False
    """pairs are (0, 1), (2, 3), ... instead of (i, i + dims / 2)"""
    seq_len_interpolation_factor: float = Field(default=1.0, gt=0)
    """positions are divided by it"""


class ModelConfig(Section):
    """A decoder-only transformer. Defaults are the original's, but where a comment says otherwise."""

    vocab_size: Positive
    num_layers: Positive
    num_attention_heads: Positive
    hidden_size: Positive
    ffn_hidden_size: Positive
    seq_length: Positive = 2048
    """tokens of a row; also how many learned positions there are"""
    kv_channels: Positive | None = None
    """channels of a head; default: hidden_size / num_attention_heads"""
    group_query_attention: bool = False
    num_query_groups: Positive = 32
    """heads of key and value; no effect without group_query_attention"""
    position_embedding_type: Literal["rope", "absolute"] = "absolute"
    rotary_config: RotaryConfig = RotaryConfig()
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    norm_epsilon: float = Field(default=1e-5, gt=0)
    use_final_norm: bool = True
    apply_residual_connection_post_norm: bool = False
    """the residual branch starts after the norm"""
    hidden_act: Activation = "gelu"
    """gelu is exact (erf), fast_gelu is x * sigmoid(1.702 x); swiglu has a gate of its own"""
    qkv_has_bias: bool = True
    out_proj_has_bias: bool = True
    mlp_has_bias: bool = True
    untie_embeddings_and_output_weights: bool = False
    encoder_attn_mask_type: MaskType = "causal"
    """padding reads attention_mask (B, T) of the batch, true where a token is real"""
    attention_dropout: Share = 0.0
    hidden_dropout: Share = 0.0
    apply_query_key_layer_scaling: bool = False
    """scores are divided by the layer's number before the softmax dtype, and multiplied after"""
    use_flash_attention: bool = False
    """torch's fused attention, with MindSpore Ascend's; softmax_compute_dtype then has no effect"""
    init_method: Literal["normal", "zeros", "ones"] = "normal"
    init_method_std: float = Field(default=0.01, gt=0)
    bias_init: Literal["normal", "zeros", "ones"] = "zeros"
    params_dtype: Dtype = "float32"
    compute_dtype: Dtype = "float32"
    """of matrix products"""
    softmax_compute_dtype: Dtype = "float32"
    residual_connection_dtype: Dtype = "float32"
    fp16_lm_cross_entropy: bool = False
    """the loss takes float16 logits; else they are made float32 (float64 stays)"""
    torch_compile: bool = False
    """each layer through torch.compile; not a key of the original"""

    @field_validator("position_embedding_type", mode="before")
    @classmethod
    def _alias(cls, value: object) -> object:
        return "absolute" if value == "learned_absolute" else value

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward block has a gate beside its wide product."""
        return self.hidden_act == "swiglu"

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of key and value."""
        return self.num_query_groups if self.group_query_attention else self.num_attention_heads


class MoEConfig(Section):
    """Mixture of experts in place of every layer's feed-forward block; num_experts 1 is none."""

    num_experts: Positive = 1
    moe_router_topk: Positive = 2
    moe_router_load_balancing_type: Literal["none", "aux_loss"] = "none"
    moe_aux_loss_coeff: float = Field(default=0.0, ge=0)
    """no effect with moe_router_load_balancing_type none"""
    moe_z_loss_coeff: float | None = Field(default=None, ge=0)
    moe_expert_capacity_factor: float | None = Field(default=None, gt=0)
    """an expert takes at most this times its even share of a microbatch's tokens, rounded up; None: all"""
    moe_token_drop_policy: Literal["probs", "position"] = "probs"
    """which of an expert's tokens stay: those with the largest weights, or the first"""
    moe_token_dispatcher_type: Literal["alltoall"] = "alltoall"
    num_experts_from_layer: Count = 0
    """layers before it keep the plain block; not a key of the original"""

    def are_in(self, layer: int) -> bool:
        """Whether that layer has them."""
        return self.num_experts > 1 and layer >= self.num_experts_from_layer
