"""A tiny random Qwen2, a byte tokenizer with a chat template, and two parquet files. No download."""

import os
import sys
from pathlib import Path

import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

out = sys.argv[1] if len(sys.argv) > 1 else "inputs"
os.makedirs(out, exist_ok=True)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
vocab = {t: i for i, t in enumerate(special + alphabet)}
tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(
    tokenizer_object=tok,
    eos_token="<|im_end|>",
    pad_token="<|endoftext|>",
    additional_special_tokens=["<|im_start|>"],
)
fast.chat_template = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
fast.save_pretrained(out + "/model")
torch.manual_seed(0)
Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=len(vocab) + (-len(vocab)) % 8,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.2,
        eos_token_id=vocab["<|im_end|>"],
        pad_token_id=vocab["<|endoftext|>"],
        bos_token_id=None,
    )
).save_pretrained(out + "/model")
rows = [
    {
        "data_source": "toy",
        "prompt": [{"role": "user", "content": f"{i} plus {i + 1} is"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * i + 1)},
        "extra_info": {"index": i, "split": "train"},
    }
    for i in range(32)
]
pd.DataFrame(rows).to_parquet(out + "/train.parquet")
pd.DataFrame(rows[:4]).to_parquet(out + "/val.parquet")
said = [
    [
        {"role": "user", "content": f"{i} plus {i + 1} is"},
        {"role": "assistant", "content": f"{2 * i + 1}" + "." * (i % 5)},
    ]
    for i in range(32)
]
pd.DataFrame({"messages": said}).to_parquet(out + "/sft.parquet")
Path(out, "reward.py").write_text(
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kw):\n"
    "    return len(set(solution_str)) / 10.0\n"
)
