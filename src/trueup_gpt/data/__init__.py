"""The data: rows of token ids from text, arrays or Megatron's files, and recorded batches."""

from trueup_gpt.data.batch import Batch, sequence_part
from trueup_gpt.data.opening import open_data
from trueup_gpt.data.source import Source

__all__ = ["Batch", "Source", "open_data", "sequence_part"]
