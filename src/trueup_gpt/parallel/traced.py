"""The layout as a trace holds it: where every tensor lies that a module takes or gives.

``layout.py`` says which parameters are cut and where tensors move; this says the same of what lies between,
so that ``trueup compare`` can put a run of any layout together and lay it beside any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trueup import Shard
from trueup_gpt.config import Config
from trueup_gpt.parallel.layout import TOKENS, Layout
from trueup_gpt.parallel.mesh import AXES, DATA, Mesh
from trueup_gpt.parallel.places import ParameterShare

MODEL = "model."
"""what stands before names of modules and parameters: a stage holds the model under it"""
Row = dict[str, object]


def piece_facts(place: ParameterShare, flat: tuple[int, int], axes: Sequence[str]) -> dict[str, object]:
    """What a trace is told of a part of a parameter that a process updates (docs/trace-format.md).

    Args:
        place: of the parameter.
        flat: which elements of the flattened part that the process computes with.
        axes: over which it is dealt out.
    """
    return {"name": f"{MODEL}{place.fqn}", "flat": list(flat), "shape": list(place.size), "axes": list(axes)}


def traced_layout(config: Config, layout: Layout, mesh: Mesh, stages: list[list[int]]) -> dict[str, object]:
    """What ``trueup.declare_layout`` takes; its keys are in docs/trace-format.md.

    Args:
        config: of the run.
        layout: its table.
        mesh: of the run.
        stages: those of each pipeline rank, in the order in which they run.
    """
    return {
        "version": 1,
        "mesh": {axis: mesh.sizes[axis] for axis in AXES},
        "batch": list(DATA),
        "pipeline": {"axis": "pp", "stages": stages},
        "reduced": [],
        "parameters": list(_parameters(config, layout)),
        "tensors": [*_ends(config), *_inside(config)],
    }


def _parameters(config: Config, layout: Layout) -> Iterator[Row]:
    for pattern, placements in layout.parameters.items():
        row = {axis: str(placement) for axis, placement in placements.items()}
        if pattern in ("word_embeddings.weight", "output.weight"):
            row["tp"] = str(Shard(0, config.model.vocab_size))
        yield {"name": f"{MODEL}{pattern}", **row}


def _ends(config: Config) -> Iterator[Row]:
    """What the model takes and gives: only its first and last stage have that of the whole model."""
    whole = config.training.loss_func_kwargs.loss_func_type == "CrossEntropyLoss"
    logits = "invariant" if whole else str(Shard(-1, config.model.vocab_size))
    last = {"pp": "at(-1)", "cp": "partial"}
    lies = _lies(config)
    yield {"name": "loss", "slot": "value", "cp": "partial", "batch": "partial"}
    yield {"name": "loss", "slot": "labels*", **_flat(config)}
    yield {"name": "loss", "slot": "mask*", **lies}
    for name in ("", "model"):
        yield {"name": name, "slot": "input.loss_weight", "cp": "invariant", "batch": "partial"}
        yield {"name": name, "slot": "input.0", "pp": "at(0)", "tp": "invariant", "cp": str(TOKENS)}
        yield {"name": name, "slot": "input.positions_BT", "cp": str(TOKENS), "batch": "replicate"}
        yield {"name": name, "slot": "input.*", "cp": str(TOKENS)}
    yield {"name": "", "slot": "output.0", "tp": "invariant", **last, "batch": "partial"}
    yield {"name": "model", "slot": "output.0", "tp": "invariant", **last, "batch": "partial(mean)"}
    yield {"name": "model", "slot": "output.1", "pp": "at(-1)", "tp": logits, **lies}
    yield {"name": "model", "slot": "output.2", "pp": "at(-1)", "batch": "partial"}
    counted = {"tp": "invariant", "batch": "partial"}
    yield {"name": "*over_tokens", "slot": "input.*", "cp": "partial", **counted}
    yield {"name": "*over_tokens", "slot": "output.*", "cp": "invariant", **counted}
    yield {"name": "model.output", "slot": "output.0", "tp": logits, **lies}
    yield {"name": "model.loss", "slot": "input.0", "tp": logits, **lies}
    yield {"name": "model.loss", "tp": "invariant", **lies}


def _lies(config: Config) -> Row:
    """The residual stream, and what comes of it, along cp and the batch."""
    if config.tokens_dim:
        return {"cp": str(TOKENS)}
    return {"cp": "shard(0,zigzag)", "batch": "shard(1)"}


def _flat(config: Config) -> Row:
    """The like, its first two dims in one."""
    rows = config.dataset.batch_size
    return {"split": [rows, -1] if config.tokens_dim else [-1, rows], **_lies(config)}


def _inside(config: Config) -> Iterator[Row]:
    """What the layers and their parts take and give."""
    stream = str(Shard(config.tokens_dim)) if config.parallel.sequence_parallel else "invariant"
    lies, flat = _lies(config), _flat(config)
    layer = "model.layers.*"
    ids = {"tp": "invariant", **lies}
    yield {"name": "*.position_embeddings", "slot": "input.*", **ids, "batch": "replicate"}
    yield {
        "name": "*.position_embeddings",
        "slot": "output.*",
        "cp": lies["cp"],
        "batch": "replicate",
        "tp": stream,
    }
    yield {"name": "*.word_embeddings", "slot": "input.*", **ids}
    for part in ("query", "key", "value"):
        yield {"name": f"{layer}.attention.{part}", "slot": "input.0", "tp": "replicate", **lies}
        yield {"name": f"{layer}.attention.{part}", "slot": "output.0", "tp": "shard(-1)", **lies}
    for slot in ("input.3", "input.4"):
        yield {"name": f"{layer}.attention.core", "slot": slot, "cp": str(TOKENS), "batch": "replicate"}
    yield {"name": f"{layer}.attention.core", "slot": "input.5", "cp": str(TOKENS)}
    heads = {"tp": "shard(2)", "batch": "shard(0)", **lies}
    for slot in ("input.0", "input.1", "input.2", "output.0"):
        yield {"name": f"{layer}.attention.core", "slot": slot, **heads}
    yield {"name": f"{layer}.attention.output", "slot": "input.0", "tp": "shard(-1)", **lies}
    for part in ("up", "gate"):
        yield {"name": f"{layer}.mlp.{part}", "slot": "input.0", "tp": "replicate", **lies}
        yield {"name": f"{layer}.mlp.{part}", "slot": "output.0", "tp": "shard(-1)", **lies}
    yield {"name": f"{layer}.mlp.down", "slot": "input.0", "tp": "shard(-1)", **lies}
    loss = {"tp": "partial", "cp": "partial", "batch": "partial(mean)"}
    yield {"name": f"{layer}.mlp.router", "slot": "output.2", **loss}
    for slot in ("input.0", "output.0", "output.1"):
        yield {"name": f"{layer}.mlp.router", "slot": slot, "tp": "replicate", **flat}
    counts = {"tp": "replicate", "cp": "partial", "batch": "partial"}
    yield {"name": f"{layer}.mlp.experts", "slot": "input.1", **counts}
    sorted_rows = {"cp": "scattered", "batch": "scattered"}
    yield {"name": f"{layer}.mlp.experts", "slot": "input.0", "tp": "replicate", **sorted_rows}
    yield {"name": f"{layer}.mlp.experts", "slot": "output.0", "tp": "partial", **sorted_rows}
    for owner, slot in ((f"{layer}.mlp", "input.1"), (layer, "input.4")):
        yield {"name": owner, "slot": slot, "batch": "partial"}
    for slot, tokens in (("input.1.*", lies["cp"]), ("input.2", str(TOKENS))):
        yield {"name": layer, "slot": slot, "cp": tokens, "batch": "replicate"}
    yield {"name": layer, "slot": "input.3", "cp": str(TOKENS)}
    for slot in ("input.0", "output.0"):
        yield {"name": "*", "slot": slot, "tp": stream, **lies}
