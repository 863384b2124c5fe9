"""The model's stages and parameters as plain data: which layers are where, and every parameter's shape."""

from __future__ import annotations

from collections.abc import Iterator

from trueup_gpt.config import Config

TIED = "word_embeddings.weight"
"""also the head's weight, unless ``untie_embeddings_and_output_weights``"""


def stage_layers(config: Config) -> list[list[int]]:
    """Numbers of the layers of each stage, in the order of the pipeline."""
    parallel, layers = config.parallel, config.model.num_layers
    stages = parallel.pipeline_model_parallel_size * chunks_per_rank(config)
    listed = parallel.num_layer_list
    counts = [n for one in listed for n in (one if isinstance(one, list) else [one])] if listed else []
    counts = counts or [layers // stages] * stages
    starts = [sum(counts[:number]) for number in range(stages)]
    return [list(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]


def chunks_per_rank(config: Config) -> int:
    """Stages of one process."""
    if config.parallel.pipeline_schedule == "zbv":
        return 2
    return config.parallel.virtual_pipeline_model_parallel_size or 1


def rank_of_stage(config: Config, stage: int) -> int:
    """The pipeline rank that has it: round and round, or there and back for the V of zbv."""
    pp = config.parallel.pipeline_model_parallel_size
    if config.parallel.pipeline_schedule == "zbv":
        return min(stage, 2 * pp - 1 - stage)
    return stage % pp


def has_masters(config: Config) -> bool:
    """Whether the optimizer updates float32 copies."""
    half = config.model.params_dtype in ("bfloat16", "float16")
    return half and config.optimizer.fp32_master_weights


def stages_of_ranks(config: Config) -> list[list[int]]:
    """The stages of each pipeline rank, in the order in which they run."""
    held: list[list[int]] = [[] for _ in range(config.parallel.pipeline_model_parallel_size)]
    for number in range(len(stage_layers(config))):
        held[rank_of_stage(config, number)].append(number)
    return held


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every parameter of the whole model with its shape; a tied head is the embedding."""
    return dict(stage_parameters(config, list(range(config.model.num_layers)), first=True, last=True))


def stage_parameters(
    config: Config, layers: list[int], *, first: bool, last: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Those of a stage with these layers, in the order of the model's modules."""
    model = config.model
    table, tied = (model.vocab_size, model.hidden_size), not model.untie_embeddings_and_output_weights
    if first or (last and tied):
        yield "word_embeddings.weight", table
    if first and model.position_embedding_type == "absolute":
        yield "position_embeddings.weight", (model.seq_length, model.hidden_size)
    for layer in layers:
        for name, shape in _layer(config, layer):
            yield f"layers.{layer}.{name}", shape
    if last:
        if model.use_final_norm:
            yield from _norm(config, "final_norm")
        if not tied:
            yield "output.weight", table


def _layer(config: Config, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    model, moe = config.model, config.moe
    hidden, wide, heads = model.hidden_size, model.ffn_hidden_size, model.num_attention_heads * model.head_dim
    groups = model.num_kv_heads * model.head_dim
    yield from _norm(config, "input_norm")
    yield from _norm(config, "post_attention_norm")
    for name, rows in (("query", heads), ("key", groups), ("value", groups)):
        yield from _linear(f"attention.{name}", rows, hidden, bias=model.qkv_has_bias)
    yield from _linear("attention.output", hidden, heads, bias=model.out_proj_has_bias)
    gate = ("gate",) if model.is_gated else ()
    if moe.are_in(layer):
        yield "mlp.router.weight", (moe.num_experts, hidden)
        for name in (*gate, "up"):
            yield f"mlp.experts.{name}", (moe.num_experts, wide, hidden)
        yield "mlp.experts.down", (moe.num_experts, hidden, wide)
        return
    for name in (*gate, "up"):
        yield from _linear(f"mlp.{name}", wide, hidden, bias=model.mlp_has_bias)
    yield from _linear("mlp.down", hidden, wide, bias=model.mlp_has_bias)


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(config: Config, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (config.model.hidden_size,)
    if config.model.normalization == "LayerNorm":
        yield f"{name}.bias", (config.model.hidden_size,)
