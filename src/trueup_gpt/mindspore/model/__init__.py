"""The model, written for one process."""

from trueup_gpt.mindspore.model.gpt import GPTModel

__all__ = ["GPTModel"]
