"""The configuration file: its sections, reading it, and what does not go together."""

from trueup_gpt.config.config import Config
from trueup_gpt.config.dataset import DatasetConfig
from trueup_gpt.config.limits import check_combinations, data_parallel_size
from trueup_gpt.config.model import ModelConfig, MoEConfig, RotaryConfig
from trueup_gpt.config.optimizer import OptimizerConfig
from trueup_gpt.config.parallel import ParallelConfig
from trueup_gpt.config.reading import config_from, load_config, shipped_configs
from trueup_gpt.config.training import TrainingConfig

__all__ = [
    "Config",
    "DatasetConfig",
    "MoEConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RotaryConfig",
    "TrainingConfig",
    "check_combinations",
    "config_from",
    "data_parallel_size",
    "load_config",
    "shipped_configs",
]
