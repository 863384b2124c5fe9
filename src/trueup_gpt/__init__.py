"""The reference trainer: a GPT with dynamic-graph parallelism, from one YAML file.

Importing it touches no framework: names load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueup_gpt.config import Config, load_config
    from trueup_gpt.data import open_data
    from trueup_gpt.logs import RunLog
    from trueup_gpt.optimize import weight_decay_groups
    from trueup_gpt.session import steps_of
    from trueup_gpt.torch.model import GPTModel
    from trueup_gpt.torch.optimizers import build_optimizer
    from trueup_gpt.torch.parallel.mesh import start_mesh
    from trueup_gpt.torch.parallel.stages import build
    from trueup_gpt.torch.session import Session, prepare, seed_streams
    from trueup_gpt.torch.step import TrainStep
    from trueup_gpt.train import train

_HOME = {
    "Config": "trueup_gpt.config",
    "GPTModel": "trueup_gpt.torch.model",
    "RunLog": "trueup_gpt.logs",
    "Session": "trueup_gpt.torch.session",
    "TrainStep": "trueup_gpt.torch.step",
    "build": "trueup_gpt.torch.parallel.stages",
    "build_optimizer": "trueup_gpt.torch.optimizers",
    "load_config": "trueup_gpt.config",
    "open_data": "trueup_gpt.data",
    "prepare": "trueup_gpt.torch.session",
    "seed_streams": "trueup_gpt.torch.session",
    "steps_of": "trueup_gpt.session",
    "start_mesh": "trueup_gpt.torch.parallel.mesh",
    "train": "trueup_gpt.train",
    "weight_decay_groups": "trueup_gpt.optimize",
}

__all__ = [
    "Config",
    "GPTModel",
    "RunLog",
    "Session",
    "TrainStep",
    "build",
    "build_optimizer",
    "load_config",
    "open_data",
    "prepare",
    "seed_streams",
    "start_mesh",
    "steps_of",
    "train",
    "weight_decay_groups",
]


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'trueup_gpt' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
