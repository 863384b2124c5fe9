"""The model, written for one process."""

from trueup_gpt.model.gpt import GPTModel

__all__ = ["GPTModel"]
