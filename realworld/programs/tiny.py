"""Tiny random models and data of the transformers library, made here: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, LENGTH = 128, 24
CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def llama(vocabulary: int = VOCABULARY, **more: object) -> LlamaForCausalLM:
    """A Llama of two layers with random weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.1,
            tie_word_embeddings=False,
            **more,
        )
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet]
    inner = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT
    return fast


def rows(count: int, seed: int, length: int = LENGTH, *, wrong: bool = False) -> list[dict[str, Tensor]]:
    """Rows of random ids with equal labels; with a fault, one token of one row is another."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (count, length), generator=draw)
    if wrong:
        ids[:, 5] = 3 + (ids[:, 5] - 2) % (VOCABULARY - 3)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def raise_eps(norm: nn.Module) -> None:
    """A fault of the forward pass: a norm's eps."""
    norm.variance_epsilon = 1e-2
