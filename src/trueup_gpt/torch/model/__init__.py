"""The model, written for one process."""

from trueup_gpt.torch.model.gpt import GPTModel

__all__ = ["GPTModel"]
