"""Configurations of the same training in several dialects, pair by pair."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

FOLDER = Path(__file__).parent / "configurations"
SAME: tuple[tuple[str, ...], ...] = (
    ("llama2/megatron.log", "llama2/pynative.yaml", "llama2/hf", "llama2/mindformers.yaml"),
    ("llama3/megatron.sh", "llama3/mindformers.yaml", "llama3/hf/config.json,llama3/hf/train.sh"),
    ("llama3/torchtitan.toml", "llama3/megatron_from_weights.sh"),
    ("qwen2/megatron.sh", "qwen2/mindformers.yaml", "qwen2/hf/config.json,qwen2/hf/train.yaml"),
    ("qwen2/mindspeed.sh", "qwen2/mindformers.yaml"),
    ("qwen3/megatron.yaml", "qwen3/mindformers.yaml", "qwen3/hf"),
    ("qwen3/megatron_tp.yaml", "qwen3/mindformers_tp.yaml"),
    ("mixtral/megatron.sh", "mixtral/mindformers.yaml", "mixtral/hf/config.json,mixtral/hf/train.sh"),
    ("mixtral/recipe.yaml", "mixtral/nemo.yaml"),
    ("finetuning/llamafactory.yaml", "finetuning/axolotl.yaml", "finetuning/swift.sh", "finetuning/trl.yaml"),
    ("deepseek_v3/megatron.sh", "deepseek_v3/mindformers.yaml", "deepseek_v3/hf"),
)
"""groups of files that describe one training, each side as `trueup check` takes it"""


def side(name: str) -> str:
    """A side as it is given on the command line."""
    return ",".join(str(FOLDER / part) for part in name.split(","))


def pairs() -> list[tuple[str, str]]:
    """Every pair within a group."""
    return [pair for group in SAME for pair in combinations(group, 2)]
