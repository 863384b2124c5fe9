"""What does not go together, and what would: checked before a process group or a weight exists."""

from __future__ import annotations

from collections.abc import Iterator

from trueup.errors import ConfigError
from trueup_gpt.config.config import Config
from trueup_gpt.config.optimizer import OptimizerConfig


def data_parallel_size(config: Config, world_size: int) -> int:
    """Processes left over by tensor, pipeline and context parallelism.

    Raises:
        ConfigError: they do not divide the number of processes.
    """
    sizes = _model_parallel(config)
    taken = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    if world_size % taken:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        near = max(taken, world_size // taken * taken)
        raise ConfigError(
            f"{world_size} {'process' if world_size == 1 else 'processes'} cannot be cut into {product}: "
            f"expected a multiple of {taken}, such as --nproc {near}"
        )
    return world_size // taken


def check_combinations(config: Config, world_size: int) -> None:
    """Refuse what cannot run, saying what would.

    Raises:
        ConfigError: naming the first of the problems, in the order of the file.
    """
    dp = data_parallel_size(config, world_size)
    problem = next(_problems(config, dp), None)
    if problem is not None:
        raise ConfigError(problem)


def _model_parallel(config: Config) -> dict[str, int]:
    parallel = config.parallel
    return {
        "tensor": parallel.tensor_model_parallel_size,
        "pipeline": parallel.pipeline_model_parallel_size,
        "context": parallel.context_parallel_size,
    }


def _problems(config: Config, dp: int) -> Iterator[str]:
    yield from _shapes(config)
    yield from _tensor(config)
    yield from _pipeline(config)
    yield from _experts(config, dp)
    yield from _numbers(config)


def _shapes(config: Config) -> Iterator[str]:
    model = config.model
    heads, hidden, groups = model.num_attention_heads, model.hidden_size, model.num_query_groups
    if model.kv_channels is None and hidden % heads:
        yield _indivisible("hidden_size", hidden, "num_attention_heads", heads)
    if model.group_query_attention and heads % groups:
        yield _indivisible("num_attention_heads", heads, "num_query_groups", groups)
    rotated = int(model.head_dim * model.rotary_config.rotary_percent)
    if model.position_embedding_type == "rope" and rotated % 2:
        yield f"rope turns pairs of channels: expected an even number of a head's, got {rotated}"


def _tensor(config: Config) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    tp, cp = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    size = "tensor_model_parallel_size"
    if model.num_attention_heads % tp:
        yield _indivisible("num_attention_heads", model.num_attention_heads, size, tp)
    if model.num_kv_heads % tp:
        yield _indivisible("num_query_groups", model.num_kv_heads, size, tp)
    if model.ffn_hidden_size % tp:
        yield _indivisible("ffn_hidden_size", model.ffn_hidden_size, size, tp)
    if model.vocab_size < tp:
        yield f"vocab_size {model.vocab_size} is less than {size} {tp}"
    if parallel.sequence_parallel and tp == 1:
        yield f"sequence_parallel cuts the sequence over tensor-parallel ranks; {size} is 1"
    if model.seq_length % (2 * cp) and cp > 1:
        yield _indivisible("seq_length", model.seq_length, "2 x context_parallel_size", 2 * cp)
    if parallel.sequence_parallel and model.seq_length // cp % tp:
        yield _indivisible("seq_length of one context-parallel rank", model.seq_length // cp, size, tp)


# In one piece: one branch a rule that the configuration may break.
def _pipeline(config: Config) -> Iterator[str]:
    parallel, layers = config.parallel, config.model.num_layers
    pp, chunks = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size
    schedule, listed = parallel.pipeline_schedule, parallel.num_layer_list
    if pp == 1:
        for key in ("virtual_pipeline_model_parallel_size", "num_layer_list", "pipeline_schedule"):
            if getattr(parallel, key) not in (None, 1):
                yield f"{key} needs pipeline_model_parallel_size above 1"
        return
    if schedule == "zbv" and chunks not in (None, 1, 2):
        yield f"pipeline_schedule zbv has two chunks a rank; virtual_pipeline_model_parallel_size is {chunks}"
    if schedule in ("1f1b", "gpipe") and chunks not in (None, 1):
        yield f"pipeline_schedule {schedule} has one chunk a rank; interleaved takes {chunks}"
    if schedule == "interleaved" and chunks in (None, 1):
        yield "pipeline_schedule interleaved needs virtual_pipeline_model_parallel_size above 1"
    stages = pp * (2 if schedule == "zbv" else chunks or 1)
    if listed is None and layers % stages:
        yield f"{_indivisible('num_layers', layers, 'stages', stages)}; num_layer_list cuts unevenly"
    flat = [n for one in listed or [] for n in (one if isinstance(one, list) else [one])]
    if listed is not None and (len(flat) != stages or sum(flat) != layers or min(flat) < 0):
        yield f"num_layer_list {listed}: expected {stages} numbers that add up to num_layers {layers}"
    if (chunks or 1) > 1 and schedule != "zbv" and config.dataset.micro_batch_num % pp:
        yield _indivisible("micro_batch_num", config.dataset.micro_batch_num, "pipeline ranks", pp)


def _experts(config: Config, dp: int) -> Iterator[str]:
    moe, ep = config.moe, config.parallel.expert_model_parallel_size
    if ep > 1 and moe.num_experts == 1:
        yield "expert_model_parallel_size needs num_experts of moe_config above 1"
    if moe.num_experts % ep:
        yield _indivisible("num_experts", moe.num_experts, "expert_model_parallel_size", ep)
    if moe.num_experts > 1 and moe.moe_router_topk > moe.num_experts:
        yield f"moe_router_topk {moe.moe_router_topk} is more than num_experts {moe.num_experts}"
    if moe.moe_expert_capacity_factor is not None and config.parallel.context_parallel_size > 1:
        yield "moe_expert_capacity_factor counts tokens of whole rows: not possible with context parallelism"
    if dp % ep:
        yield _indivisible("data-parallel ranks", dp, "expert_model_parallel_size", ep)


def _numbers(config: Config) -> Iterator[str]:
    model, training, parallel = config.model, config.training, config.parallel
    if model.fp16_lm_cross_entropy and model.compute_dtype != "float16":
        yield f"fp16_lm_cross_entropy needs compute_dtype float16; it is {model.compute_dtype}"
    if training.loss_scale is not None and training.loss_scale_value is not None:
        yield "loss_scale is static and loss_scale_value dynamic; choose one"
    cut = parallel.tensor_model_parallel_size > 1 or parallel.zero_level or config.moe.num_experts > 1
    if config.optimizer.optimizer_type == "Came" and cut:
        yield "Came needs whole weights: not possible with tensor parallelism, zero_level or experts"
    yield from _numbers_of_another(config.optimizer)


def _indivisible(what: str, number: int, by: str, divisor: int) -> str:
    fits = [n for n in range(1, number + 1) if number % n == 0]
    near = sorted(sorted(fits, key=lambda n: abs(n - divisor))[:3])
    return f"{what} {number} cannot be divided by {by} {divisor}; {', '.join(map(str, near))} would do"


def _numbers_of_another(optimizer: OptimizerConfig) -> Iterator[str]:
    """Betas and eps that were given, and are those of another optimizer."""
    kind, given = optimizer.optimizer_type, optimizer.model_fields_set
    came = kind == "Came"
    if "betas" in given and len(optimizer.betas) != (3 if came else 2):
        takes = "three betas, such as [0.9, 0.999, 0.9999]" if came else "two betas, such as [0.9, 0.95]"
        yield f"{kind} takes {takes} (got {list(optimizer.betas)})"
    if "eps" in given and isinstance(optimizer.eps, tuple) != came:
        takes = "two eps, such as [1e-30, 1e-16]" if came else "one eps, such as 1e-8"
        yield f"{kind} takes {takes} (got {optimizer.eps})"
