"""The layout table: how each parameter and each tensor between modules is placed on the mesh.

The model is written for one process. The table says which dim of each parameter is cut along which axis, and
at which calls a tensor changes its placement; ``apply.py`` acts on it. Initialisation, reduction of
gradients, the gradient norm, checkpoints and comparison of runs read the same table. It is plain data:
``Layout.to_dict``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from trueup import Invariant, Partial, Placement, Replicate, Shard
from trueup_gpt.config import Config

WHOLE, REPLICATED, TERM = Invariant(), Replicate(), Partial()
TOKENS = Shard(1, zigzag=True)
"""(B, T) along cp: equal work for causal attention"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A tensor's placement before and after it is moved along an axis."""

    have: Placement
    need: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call at whose border tensors move: inputs before it, by number, and its output after it."""

    pattern: str
    """fqn of a module, or of a method of one; ``*`` stands for anything"""
    axis: str
    inputs: Mapping[int, Change] = field(default_factory=dict)
    output: Change | None = None
    rule: str | None = None
    """a computation of its own in place of the module's: see ``apply.RULES``"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Both tables."""

    parameters: Mapping[str, Mapping[str, Placement]]
    """pattern -> axis -> placement; the first pattern that fits holds, axes it leaves out are replicated"""
    calls: tuple[Call, ...]

    def of(self, fqn: str) -> Mapping[str, Placement]:
        """Placements of one parameter, of the axes edp, ep, cp and tp."""
        for pattern, placements in self.parameters.items():
            if fnmatchcase(fqn, pattern):
                return {axis: placements.get(axis, REPLICATED) for axis in ("edp", "ep", "cp", "tp")}
        raise KeyError(f"the layout table has no row for {fqn}")

    def to_dict(self) -> dict[str, object]:
        """Plain values, as a trace's manifest can carry them."""
        return {
            "parameters": {
                pattern: {axis: str(placement) for axis, placement in row.items()}
                for pattern, row in self.parameters.items()
            },
            "calls": [_plain(call) for call in self.calls],
        }


def _plain(call: Call) -> dict[str, object]:
    def change(one: Change) -> list[str]:
        return [str(one.have), str(one.need)]

    return {
        "pattern": call.pattern,
        "axis": call.axis,
        "inputs": {str(number): change(one) for number, one in call.inputs.items()},
        "output": None if call.output is None else change(call.output),
        "rule": call.rule,
    }


def layout_for(config: Config) -> Layout:
    """The table of a configuration. Rows along an axis of one process are there too; nobody acts on them."""
    sequence = config.parallel.sequence_parallel
    stream: Placement = Shard(config.tokens_dim) if sequence else WHOLE
    """the residual stream along tp"""
    shared = REPLICATED if sequence else WHOLE
    """what is applied to the stream: each process sees its tokens only, or all of them"""
    return Layout(
        parameters={
            "word_embeddings.weight": {"tp": Shard(0)},
            "position_embeddings.weight": {"tp": WHOLE},
            "*norm.*": {"tp": shared},
            "layers.*.attention.output.weight": {"tp": Shard(1)},
            "layers.*.attention.output.bias": {"tp": shared},
            "layers.*.attention.*": {"tp": Shard(0)},
            "layers.*.mlp.router.weight": {"tp": REPLICATED},
            "layers.*.mlp.experts.down": {"ep": Shard(0), "tp": Shard(2)},
            "layers.*.mlp.experts.*": {"ep": Shard(0), "tp": Shard(1)},
            "layers.*.mlp.down.weight": {"tp": Shard(1)},
            "layers.*.mlp.down.bias": {"tp": shared},
            "layers.*.mlp.*": {"tp": Shard(0)},
            "output.weight": {"tp": Shard(0)},
        },
        calls=(*_tensor(config, stream), *_dropout(config), *_context(config), *_experts()),
    )


def _tensor(config: Config, stream: Placement) -> Iterator[Call]:
    enter = {0: Change(have=stream, need=REPLICATED)}
    leave = Change(have=TERM, need=stream)
    vocabulary = Shard(-1, config.model.vocab_size)
    yield Call(pattern="word_embeddings", axis="tp", rule="vocabulary_rows", output=leave)
    yield Call(pattern="position_embeddings", axis="tp", output=Change(have=WHOLE, need=stream))
    yield Call(pattern="layers.*.attention", axis="tp", inputs=enter)
    yield Call(pattern="layers.*.attention.output.multiply", axis="tp", output=leave)
    yield Call(pattern="layers.*.mlp", axis="tp", inputs=enter)
    yield Call(pattern="layers.*.mlp.down.multiply", axis="tp", output=leave)
    yield Call(pattern="layers.*.mlp.combine", axis="tp", output=leave)
    yield Call(pattern="layers.*.mlp.router", axis="tp", rule="shared_loss")
    if config.training.loss_func_kwargs.loss_func_type == "CrossEntropyLoss":
        whole = Change(have=vocabulary, need=WHOLE)
        yield Call(pattern="output", axis="tp", inputs=enter, output=whole)
    else:
        yield Call(pattern="output", axis="tp", inputs=enter)
        yield Call(pattern="loss", axis="tp", rule="vocabulary_loss")


def _dropout(config: Config) -> Iterator[Call]:
    """Heads are cut, the stream only where the sequence is."""
    if config.model.attention_dropout:
        yield Call(pattern="layers.*.attention.core", axis="tp", rule="parted_dropout")
    if config.model.hidden_dropout and config.parallel.sequence_parallel:
        yield Call(pattern=".drop", axis="tp", rule="parted_dropout")
        yield Call(pattern="layers.*.drop", axis="tp", rule="parted_dropout")


def _context(config: Config) -> Iterator[Call]:
    """Keys and values of all tokens; positions and the padding mask, (B, T), go with them."""
    dims = {1: config.tokens_dim, 2: config.tokens_dim, 4: 1, 5: 1}
    gathered = {number: Change(have=Shard(dim), need=REPLICATED) for number, dim in dims.items()}
    yield Call(pattern="layers.*.attention.core", axis="cp", inputs=gathered)
    yield Call(pattern="*over_tokens", axis="cp", output=Change(have=TERM, need=WHOLE))


def _experts() -> Iterator[Call]:
    yield Call(pattern="layers.*.mlp.experts", axis="ep", rule="exchanged_tokens")
