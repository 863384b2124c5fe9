"""What the PyTorch half does and this one does not: refused before a weight exists, with what would do."""

from __future__ import annotations

from collections.abc import Iterator

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.session import device_of

_FLASH_DTYPES = ("float16", "bfloat16")
_FLASH_MULTIPLE, _FLASH_MOST = 16, 512


def check_supported(config: Config, device: str | None = None) -> None:
    """Refuse what cannot run on MindSpore.

    Raises:
        ConfigError: naming the first of the problems.
    """
    problem = next(_problems(config, device), None)
    if problem is not None:
        raise ConfigError(problem)


def _problems(config: Config, device: str | None) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    keys = ("params_dtype", "compute_dtype", "softmax_compute_dtype", "residual_connection_dtype")
    half = next((key for key in keys if getattr(model, key) == "bfloat16"), None)
    if half is not None and _is_cpu(config, device):
        yield f"{half} bfloat16: no such kernels in MindSpore on a CPU; float32 and float16 are possible"
    if parallel.zero_level in ("z2", "z3"):
        yield f"zero_level {parallel.zero_level} is FSDP2 of PyTorch; z1 is possible with MindSpore"
    if parallel.pipeline_schedule == "zbv":
        yield "pipeline_schedule zbv is PyTorch's; 1f1b, gpipe and interleaved are possible with MindSpore"
    if (model.hidden_dropout or model.attention_dropout) and parallel.tensor_model_parallel_size > 1:
        yield "dropout with tensor parallelism needs PyTorch; set hidden_dropout and attention_dropout to 0"
    if model.use_flash_attention:
        yield from _of_flash_attention(config, device)
    if config.training.ckpt_format == "torch_dist":
        yield "ckpt_format torch_dist is PyTorch's; ckpt and safetensors are possible with MindSpore"
    if model.torch_compile:
        yield "torch_compile needs PyTorch; leave it out with MindSpore"


def _of_flash_attention(config: Config, device: str | None) -> Iterator[str]:
    """What MindSpore 2.10 documents of ``ops.flash_attention_score``; dropout takes a packed mask there."""
    model, size = config.model, config.model.head_dim
    if _is_cpu(config, device):
        yield "use_flash_attention: MindSpore has it on Ascend alone; leave it out on a CPU"
    if model.compute_dtype not in _FLASH_DTYPES:
        yield (
            f"use_flash_attention with compute_dtype {model.compute_dtype}: Ascend's takes "
            f"{' and '.join(_FLASH_DTYPES)}; set one of them, or leave use_flash_attention out"
        )
    if size % _FLASH_MULTIPLE or size > _FLASH_MOST:
        yield (
            f"use_flash_attention with {size} channels of a head: Ascend's takes multiples of "
            f"{_FLASH_MULTIPLE} up to {_FLASH_MOST}; set kv_channels, or leave use_flash_attention out"
        )
    if model.attention_dropout:
        yield "use_flash_attention with attention_dropout needs PyTorch; leave one of them out"


def _is_cpu(config: Config, device: str | None) -> bool:
    """Whether it would run on one: as asked, else as MindSpore finds, which takes its import."""
    from trueup_gpt.mindspore.parallel.mesh import device_type

    return (device_of(config, device) or device_type()) == "cpu"
