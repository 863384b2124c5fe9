"""A checkpoint of any layout, read into one process and written for others."""

from __future__ import annotations

from pathlib import Path

import torch

from trueup.errors import ConfigError
from trueup_gpt.config import Config, ParallelConfig
from trueup_gpt.torch.checkpoint import Checkpoints
from trueup_gpt.torch.hugging_face import check_exchangeable, write_hugging_face
from trueup_gpt.torch.session import Session, prepare


def in_one_process(config: Config) -> Config:
    """The same model and run, not cut, from its last checkpoint, without its optimizer."""
    training = config.training.model_copy(update={"resume_training": True, "no_load_optim": True})
    return config.model_copy(update={"parallel": ParallelConfig(), "training": training})


def export_hugging_face(config: Config, folder: Path) -> Path:
    """Write the last checkpoint as Llama or Mixtral safetensors; returns the checkpoint.

    Raises:
        ConfigError: the model has no such form, or no checkpoint exists.
    """
    check_exchangeable(config)
    session: Session = prepare(in_one_process(config), device="cpu")
    source = Checkpoints(session).resume()
    if source is None:
        raise ConfigError(f"{config.training.output_dir} holds no checkpoint: set save_interval, and train")
    with torch.no_grad():
        write_hugging_face(folder, config, {fqn: p.data for fqn, p in session.parallel.parameters.items()})
    return source
