"""The collection's GPT, which most tests use."""

from bugzoo.models.gpt import GPT, MLP, Attention, Block, GPTConfig, Rotary, batch, loss_of

__all__ = ["GPT", "MLP", "Attention", "Block", "GPTConfig", "Rotary", "batch", "loss_of"]
