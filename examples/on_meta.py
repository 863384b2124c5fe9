r"""Trains a model of Transformers on the meta device, where nothing is computed: for
``trueup capture --estimate`` of a model that is too large for this machine.

    trueup capture --estimate --preset diagnose -o RUN -- \
        python examples/on_meta.py CONFIG.json [--sequence 4096] [--batch 1] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def train(config: Path, *, sequence: int, batch: int, dtype: torch.dtype, steps: int = 2) -> None:
    """Make the causal language model of a ``config.json`` and train it with AdamW."""
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # under a name of its own: masks of the known ones look at values
    AttentionInterface.register("causal", sdpa_attention_forward)
    settings = AutoConfig.from_pretrained(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation="causal")
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        ids = torch.zeros(batch, sequence, dtype=torch.int64)
        for _ in range(steps):
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    train(given.config, sequence=given.sequence, batch=given.batch, dtype=getattr(torch, given.dtype))


if __name__ == "__main__":
    main()
