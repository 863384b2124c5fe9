"""What the MindSpore half does and this one does not: refused before a process starts, with what would do."""

from __future__ import annotations

from trueup.errors import ConfigError
from trueup_gpt.config import Config


def check_supported(config: Config) -> None:
    """Refuse what torch's schedules cannot run.

    Raises:
        ConfigError: 1F1B with fewer microbatches than stages.
    """
    parallel, count = config.parallel, config.dataset.micro_batch_num
    pp, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size
    is_1f1b = parallel.pipeline_schedule == "1f1b" or (
        parallel.pipeline_schedule is None and (chunks or 1) == 1
    )
    if is_1f1b and count < pp:
        raise ConfigError(
            f"micro_batch_num {count} is less than pipeline_model_parallel_size {pp}: {pp} or more are "
            "possible with pipeline_schedule 1f1b on PyTorch, any number with gpipe"
        )
