"""Run a command with a warm Python that has PyTorch and transformers imported already.

``python -m bugzoo.public.warm COMMAND ...``
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.warm import COLD, OF_TRUEUP, TRUEUP, WARM, warm_python

MODELS = ("llama", "qwen3", "gemma2", "mistral", "mixtral", "gpt2", "mamba", "bert", "t5", "vit", "whisper")
IMPORTED = ("transformers", *(f"transformers.models.{name}.modeling_{name}" for name in MODELS))

if __name__ == "__main__":
    with warm_python(COLD, *OF_TRUEUP, *TRUEUP, *IMPORTED) as python:
        status = subprocess.call(sys.argv[1:], env=os.environ | {WARM: python})
    sys.exit(status)
