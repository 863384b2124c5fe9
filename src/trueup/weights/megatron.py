"""Megatron checkpoints of one file a rank (``iter_0000100/mp_rank_01_002/model_optim_rng.pt``), joined.

Every rank's weights are named as the whole model names them: layers of a pipeline stage count on, and so do
experts. Tensor-parallel parts are joined as Megatron-core splits them, by a ``ConversionPlan`` over all
parts, so that one weight at a time is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueup.errors import WeightsError
from trueup.weights.applying import PlannedWeights
from trueup.weights.plan import ConversionPlan, Permute, PlannedWeight, Reshape, Slice, SourcePiece, Values
from trueup.weights.torch_file import TorchFile
from trueup.weights.weight_set import Table, WeightInfo, known, same_bits

LATEST = "latest_checkpointed_iteration.txt"
_EMBEDDING, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
FILES = ("model_optim_rng.pt", "model_rng.pt")
_PART = re.compile(r"mp_rank_(?P<tensor>\d{2,})(?:_(?P<second>\d{3,}))?(?:_(?P<third>\d{3,}))?")
LAYER = re.compile(r"(?P<before>(?:^|\.)(?:decoder|encoder)\.layers\.)(?P<number>\d+)(?=\.)")
EXPERT = re.compile(r"(?P<before>\.local_experts\.|\.experts\.linear_fc[12]\.(?:weight|bias))(?P<number>\d+)")
_CHUNK = re.compile(r"model(?P<number>\d+)\.")
ALONG_ROWS = re.compile(
    r"(word_embeddings\.weight|output_layer\.(weight|bias)|linear_(qkv|fc1)\.(weight|bias)\d*"
    r"|linear_(q|q_up|kv_up)_proj\.weight|linear_(q|kv)\.(weight|bias)|eh_proj\.weight"
    r"|core_attention\.softmax_offset|mixer\.norm\.weight"
    r"|(mixer|self_attention)\.(in_proj\.(weight|bias)|conv1d[._](weight|bias)|A_log|D|dt_bias)"
    r"|(query_key_value|dense_h_to_4h)\.(weight|bias))$"
)
ALONG_COLUMNS = re.compile(
    r"(linear_(proj|fc2)\.weight\d*|(attention\.dense|dense_4h_to_h)\.weight|(mixer|self_attention)\.out_proj\.weight)$"
)
_GATED = re.compile(r"(?P<before>.*\.)(linear_fc1|dense_h_to_4h)\.(?P<what>weight|bias)(?P<number>\d*)$")
_MIXER = re.compile(r"(?P<before>.*\b(?:mixer|self_attention)\.)(?P<what>in_proj|conv1d)[._](?:weight|bias)$")
"""of a state-space mixer, or of linear attention in attention's place"""
_GROUPED = re.compile(r"(?P<before>.*\.experts\.)weight(?P<number>[12])$")
"""all experts of a rank in one weight, as Megatron-core's ``GroupedMLP`` holds them"""


def iteration_folder(path: Path) -> Path:
    """The folder of one iteration: ``path``, or what its ``latest_checkpointed_iteration.txt`` names.

    Raises:
        WeightsError: the text names no iteration, or its folder is not there.
    """
    latest = path / LATEST
    if not latest.is_file():
        return path
    word = latest.read_text(encoding="utf-8", errors="replace").strip()
    name = "release" if word == "release" else f"iter_{int(word):07d}" if word.isdecimal() else ""
    if not name or not (path / name).is_dir():
        raise WeightsError(f"{latest} says {word!r}, but {path / (name or 'iter_NNNNNNN')} is not there")
    return path / name


def part_files(path: Path) -> dict[str, Path]:
    """``mp_rank_...`` folders below ``path`` with their files; empty where it is no such checkpoint."""
    found = {}
    for folder in sorted(path.glob("mp_rank_*")):
        if _PART.fullmatch(folder.name):
            file = next((folder / name for name in FILES if (folder / name).is_file()), None)
            if file is not None:
                found[folder.name] = file
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One rank's file, and where it stands in the layout."""

    name: str
    weights: TorchFile
    tensor: int
    pipeline: int
    expert: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What the arguments in the checkpoint say of the layout."""

    tensor: int
    pipeline: int
    expert: int
    expert_tensor: int | None
    """into how many parts each expert is cut, where the arguments say it"""
    num_layers: int | None
    num_experts: int | None
    num_chunks: int

    @classmethod
    def of(cls, arguments: Mapping[str, object], num_chunks: int) -> _Sizes:
        def number(name: str) -> int | None:
            value = arguments.get(name)
            return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

        return cls(
            tensor=number("tensor_model_parallel_size") or 1,
            pipeline=number("pipeline_model_parallel_size") or 1,
            expert=number("expert_model_parallel_size") or 1,
            expert_tensor=number("expert_tensor_parallel_size"),
            num_layers=number("num_layers"),
            num_experts=number("num_experts") or number("num_moe_experts"),
            num_chunks=num_chunks,
        )


class _AllParts:
    """Every weight of every part, as ``mp_rank_00/decoder...``."""

    def __init__(self, path: Path, parts: Sequence[_Part]) -> None:
        self.path = path
        self.remarks: tuple[str, ...] = ()
        self.copies: dict[str, list[str]] = {}
        """what other ranks hold of a weight that all of them should hold alike"""
        self._home = {f"{part.name}/{name}": (part, name) for part in parts for name in part.weights.table}
        self.table: Table = {
            key: WeightInfo(
                name=key, dtype=part.weights.table[name].dtype, shape=part.weights.table[name].shape
            )
            for key, (part, name) in self._home.items()
        }

    def read(self, name: str) -> Values:
        """One part of one weight.

        Raises:
            WeightsError: a rank that should hold the same holds other values.
        """
        part, inner = self._home[known(self, name)]
        values = part.weights.read(inner)
        for copy in self.copies.get(name, ()):
            other, inner = self._home[copy]
            if not same_bits(values, other.weights.read(inner)):
                raise WeightsError(
                    f"{self.path}: {name} and {copy} differ, and every expert rank should hold the same; "
                    "are the parts of different iterations?"
                )
        return values


def read_megatron(path: Path, files: Mapping[str, Path]) -> PlannedWeights:
    """The whole model of the parts ``files``.

    Raises:
        WeightsError: parts are missing, do not fit each other, or hold different values of what every rank
            should hold alike; says which.
    """
    parts = _parts(path, files)
    _check_complete(path, parts)
    every = _AllParts(path, parts)
    entries, copies = _without_copies(list(_entries(path, parts, every)), parts[0], every)
    whole = PlannedWeights(ConversionPlan(entries=entries), every)
    sizes = _sizes(parts[0])
    merged = (
        f"{len(parts)} parts put together: tensor parallel {sizes.tensor}, pipeline parallel "
        f"{sizes.pipeline}, expert parallel {sizes.expert}",
    )
    whole.remarks = (
        *(merged if len(parts) > 1 else ()),
        *vocabulary_remark(parts[0].weights.arguments),
        *copies,
    )
    whole.vocabulary = rows_without_padding(parts[0].weights.arguments)
    return whole


def _without_copies(
    entries: Sequence[PlannedWeight], part: _Part, every: _AllParts
) -> tuple[tuple[PlannedWeight, ...], Iterator[str]]:
    """Without the last stage's copy of a tied embedding, which is no weight of the model."""
    made = {entry.target: entry for entry in entries}
    output, embedding = made.get(_OUTPUT), made.get(_EMBEDDING)
    tied = part.weights.arguments.get("untie_embeddings_and_output_weights") is False
    if not tied or output is None or embedding is None:
        return tuple(entries), iter(())
    pairs = zip(output.pieces, embedding.pieces, strict=True)
    if not all(same_bits(every.read(one.source), every.read(other.source)) for one, other in pairs):
        return tuple(entries), iter(
            (f"{_OUTPUT} is kept: the last stage's copy of the tied embedding differs",)
        )
    kept = tuple(entry for entry in entries if entry is not output)
    return kept, iter((f"{_OUTPUT} is left out: the last stage's copy of the tied embedding",))


def rows_without_padding(arguments: Mapping[str, object]) -> int | None:
    """Rows of the embedding that are no padding; Megatron's tokenizers without a text add an end of their
    own to ``--vocab-size``."""
    padded, own = arguments.get("padded_vocab_size"), arguments.get("vocab_size")
    if not isinstance(padded, int) or not isinstance(own, int):
        return None
    rows = own + str(arguments.get("tokenizer_type")).startswith("Null")
    return rows if 0 < rows < padded else None


def vocabulary_remark(arguments: Mapping[str, object]) -> Iterator[str]:
    """That the arguments tell of padding, where they do."""
    if (own := rows_without_padding(arguments)) is not None:
        yield f"the vocabulary of {own:,} is padded to {arguments['padded_vocab_size']:,} rows"


def _sizes(part: _Part) -> _Sizes:
    chunks = {found[0] for name in part.weights.table if (found := _CHUNK.match(name))}
    return _Sizes.of(part.weights.arguments, len(chunks) or 1)


def _parts(path: Path, files: Mapping[str, Path]) -> list[_Part]:
    """All parts; the second number is the pipeline stage, or the expert rank where there is one stage."""
    parts = []
    for name, file in files.items():
        found = _PART.fullmatch(name)
        assert found is not None
        weights = TorchFile(file)
        sizes = _Sizes.of(weights.arguments, 1)
        second, third = int(found["second"] or 0), int(found["third"] or 0)
        is_expert_rank = found["third"] is None and sizes.pipeline == 1 and sizes.expert > 1
        parts.append(
            _Part(
                name=name,
                weights=weights,
                tensor=int(found["tensor"]),
                pipeline=0 if is_expert_rank else second,
                expert=second if is_expert_rank else third,
            )
        )
    return parts


def _check_complete(path: Path, parts: Sequence[_Part]) -> None:
    sizes = _sizes(parts[0])
    there = {(part.tensor, part.pipeline, part.expert) for part in parts}
    wanted = {
        (tensor, stage, expert)
        for tensor in range(sizes.tensor)
        for stage in range(sizes.pipeline)
        for expert in range(sizes.expert)
    }
    if _are_shared(sizes, there):
        cut = sizes.expert_tensor or 1  # Megatron-core counts the parts of an expert first
        wanted = {
            (rank % sizes.tensor, stage, rank // cut % sizes.expert)
            for rank in range(math.lcm(sizes.tensor, cut * sizes.expert))
            for stage in range(sizes.pipeline)
        }
    missing = sorted(wanted - there)
    if missing:
        tensor, stage, expert = missing[0]
        raise WeightsError(
            f"{path}: the arguments say tensor parallel {sizes.tensor}, pipeline parallel {sizes.pipeline}, "
            f"expert parallel {sizes.expert}, but {len(missing)} of the parts are missing, first that of "
            f"tensor rank {tensor}, stage {stage}, expert rank {expert}; "
            f"found {', '.join(part.name for part in parts)}"
        )


def _are_shared(sizes: _Sizes, there: set[tuple[int, int, int]]) -> bool:
    """Whether tensor ranks are expert ranks at once, so that experts are cut into fewer parts than other
    weights: in each stage each tensor rank has its own experts."""
    if sizes.expert == 1 or sizes.tensor == 1:
        return False
    if sizes.expert_tensor is not None:
        return sizes.expert_tensor != sizes.tensor
    return all(len({expert for tensor, _, expert in there if tensor == rank}) == 1 for rank, _, _ in there)


def _entries(path: Path, parts: Sequence[_Part], every: _AllParts) -> Iterator[PlannedWeight]:
    """One entry a weight of the whole model, layers in order."""
    held: dict[str, dict[tuple[int, int], str]] = {}
    starts = _first_layers(path, parts)
    for part in parts:
        sizes = _sizes(part)
        for name in part.weights.table:
            whole = _whole_name(name, part, sizes, starts)
            held.setdefault(whole, {}).setdefault((part.tensor, part.expert), f"{part.name}/{name}")
    num_experts, cut = _sizes(parts[0]).num_experts, _sizes(parts[0]).expert_tensor
    for whole in sorted(held, key=_in_order):
        if _GROUPED.fullmatch(whole):
            each = {
                rank: _by_cut({t: key for (t, own), key in held[whole].items() if own == rank}, every, cut)
                for rank in sorted({own for _, own in held[whole]})
            }
            yield from _experts_apart(path, whole, each, every, num_experts)
            continue
        by_rank: dict[int, str] = {}
        for (tensor, _), key in sorted(held[whole].items()):
            first = by_rank.setdefault(tensor, key)
            if first != key:
                every.copies.setdefault(first, []).append(key)
        if EXPERT.search(whole):
            by_rank = _by_cut(by_rank, every, cut)
        yield _joined(path, whole, list(by_rank.values()), every)


def _by_cut(by_rank: Mapping[int, str], every: _AllParts, cut: int | None) -> dict[int, str]:
    """The parts of an expert's weight by their order: experts may be cut into fewer parts than there are
    tensor ranks, so that several ranks hold the same one. Where the arguments do not say into how many, equal
    values are one part."""
    found: dict[int, str] = {}
    for tensor, key in sorted(by_rank.items()):
        at = tensor if cut is None else tensor % cut
        if cut is None:
            shape = every.table[key].shape
            alike = (r for r, other in found.items() if every.table[other].shape == shape)
            at = next((r for r in alike if same_bits(every.read(found[r]), every.read(key))), tensor)
        first = found.setdefault(at, key)
        if first != key:
            every.copies.setdefault(first, []).append(key)
    return found


def _in_order(name: str) -> tuple[tuple[int, int | str], ...]:
    rank = 0 if name.startswith("embedding") else 1 if ".layers." in name else 2
    words = re.split(r"(\d+)", name)
    return ((0, rank), *((0, int(word)) if word.isdecimal() else (1, word) for word in words))


def _whole_name(name: str, part: _Part, sizes: _Sizes, starts: Mapping[tuple[int, int], int]) -> str:
    """The name in the whole model: layers and experts count on from the ranks before."""
    chunk = _CHUNK.match(name)
    bare = name[chunk.end() :] if chunk else name
    number = int(chunk["number"]) if chunk else 0
    at = starts[part.pipeline, number]
    bare = LAYER.sub(lambda found: f"{found['before']}{int(found['number']) + at}", bare)
    if sizes.expert > 1:
        ahead = part.expert * _experts_of(part, sizes)
        bare = EXPERT.sub(lambda found: f"{found['before']}{int(found['number']) + ahead}", bare)
    return bare


def _experts_of(part: _Part, sizes: _Sizes) -> int:
    """How many experts each expert rank holds; where the arguments do not say, as many as this one does."""
    if sizes.num_experts:
        return sizes.num_experts // sizes.expert
    return len({found["number"] for name in part.weights.table if (found := EXPERT.search(name))})


def _first_layers(path: Path, parts: Sequence[_Part]) -> dict[tuple[int, int], int]:
    """For each stage and chunk, how many layers lie before it: chunk by chunk, in each stage by stage, as
    many as each holds, so that stages may be uneven.

    Raises:
        WeightsError: the parts of one stage hold different numbers of layers, or all together another number
            than the arguments say.
    """
    held: dict[tuple[int, int], int] = {}
    for part in parts:
        num_chunks = _sizes(part).num_chunks
        layers: dict[int, set[int]] = {number: set() for number in range(num_chunks)}
        for name in part.weights.table:
            chunk = _CHUNK.match(name)
            if found := LAYER.search(name):
                layers[int(chunk["number"]) if chunk else 0].add(int(found["number"]))
        for number, found_ones in layers.items():
            here, before = len(found_ones), held.setdefault((part.pipeline, number), len(found_ones))
            if here != before:
                raise WeightsError(
                    f"{path}: of stage {part.pipeline} one part holds {before} layers and {part.name} "
                    f"{here}; are the parts of different iterations?"
                )
    starts, total = {}, 0
    for place in sorted(held, key=lambda one: one[::-1]):  # chunks first
        starts[place] = total
        total += held[place]
    expected = _sizes(parts[0]).num_layers
    if expected is not None and total not in (0, expected):
        raise WeightsError(
            f"{path}: the arguments say {expected} layers, but the parts hold {total} "
            f"({', '.join(str(held[place]) for place in starts)}); are the parts of different iterations?"
        )
    return starts


def _joined(path: Path, whole: str, keys: Sequence[str], every: _AllParts) -> PlannedWeight:
    shapes = [every.table[key].shape for key in keys]
    plain = tuple(SourcePiece(source=key) for key in keys)
    if len(keys) == 1:
        return PlannedWeight(target=whole, pieces=plain, how="map")
    if ALONG_ROWS.search(whole):
        sections = sections_of(keys[0], every.table)
        if sections:
            pieces = tuple(_by_section(keys, sections))
            return PlannedWeight(target=whole, pieces=pieces, join="concat", how="map")
        return PlannedWeight(target=whole, pieces=plain, join="concat", how="map")
    if ALONG_COLUMNS.search(whole):
        return PlannedWeight(target=whole, pieces=plain, join="concat", dim=1, how="map")
    for key in keys[1:]:
        if every.table[key].shape != shapes[0] or not same_bits(every.read(keys[0]), every.read(key)):
            raise WeightsError(
                f"{path}: {keys[0]} and {key} differ, and tensor parallelism is not known to split "
                f"{whole}; is it of another model family, or are the parts of different iterations?"
            )
    return PlannedWeight(target=whole, pieces=plain[:1], how="map")


def is_gated(name: str, table: Table) -> bool:
    """Whether ``linear_fc1`` (``dense_h_to_4h`` of Megatron-LM before core) holds the gate above the up
    projection: twice the columns of ``linear_fc2``."""
    found = _GATED.fullmatch(name)
    after = None if found is None else "dense_4h_to_h" if found[2] == "dense_h_to_4h" else "linear_fc2"
    behind = None if found is None else table.get(f"{found['before']}{after}.weight{found['number']}")
    return behind is not None and table[name].shape[0] == 2 * behind.shape[1]


def sections_of(name: str, table: Table) -> list[int]:
    """The rows of each part of a weight of which every rank holds its share of each part; none of a weight
    that is one part.

    Gate above up; of a Mamba mixer (``mamba_ssm``'s order) gate, input, B, C and step sizes, and in its
    convolution input, B and C; of a gated delta net queries, keys, values, gate, beta and alpha, and in its
    convolution the first three.
    """
    if is_gated(name, table):
        return [table[name].shape[0] // 2] * 2
    found = _MIXER.fullmatch(name)
    if found is None:
        return []
    out, heads = (table.get(f"{found['before']}{part}") for part in ("out_proj.weight", "A_log"))
    projected = table.get(f"{found['before']}in_proj.weight")
    if out is None or heads is None or projected is None:
        return []
    inner, num_heads, is_projection = out.shape[1], heads.shape[0], found["what"] == "in_proj"
    if f"{found['before']}out_norm.weight" in table:  # a gated delta net's; Mamba's is cut and called norm
        keys = (projected.shape[0] - 2 * inner - 2 * num_heads) // 2
        parts = [keys, keys, inner, *([inner, num_heads, num_heads] if is_projection else [])]
    else:
        keys = (projected.shape[0] - 2 * inner - num_heads) // 2
        parts = [inner, keys, keys]
        parts = [inner, *parts, num_heads] if is_projection else parts
    return parts if sum(parts) == table[name].shape[0] and keys > 0 else []


def _by_section(keys: Sequence[str], sections: Sequence[int]) -> Iterator[SourcePiece]:
    start = 0
    for rows in sections:
        for key in keys:
            yield SourcePiece(source=key, steps=(Slice(dim=0, start=start, stop=start + rows),))
        start += rows


def _experts_apart(
    path: Path,
    whole: str,
    each_rank: Mapping[int, Mapping[int, str]],
    every: _AllParts,
    num_experts: int | None,
) -> Iterator[PlannedWeight]:
    """The experts in ``GroupedMLP``'s ``weight1`` and ``weight2``, as ``SequentialMLP`` names them.

    A rank holds its experts side by side, each transposed: ``weight1`` is (experts, hidden, features) seen as
    (hidden, experts * features), ``weight2`` (experts * features, hidden).

    Raises:
        WeightsError: the arguments do not say how many experts there are.
    """
    found = _GROUPED.fullmatch(whole)
    assert found is not None
    ranks = list(each_rank)
    if not num_experts or num_experts % len(ranks):
        raise WeightsError(
            f"{path}: {whole} holds all experts of a rank in one weight, and the arguments in the checkpoint "
            f"do not say how many there are (num_experts: {num_experts}, expert ranks: {len(ranks)})"
        )
    each = num_experts // len(ranks)
    is_first = found["number"] == "1"
    for rank in ranks:
        keys = [key for _, key in sorted(each_rank[rank].items())]
        rows, columns = every.table[keys[0]].shape
        stacked = (each, rows, columns // each) if is_first else (each, rows // each, columns)
        second = every.table.get(f"{keys[0][:-1]}2")
        gated = is_first and second is not None and columns == 2 * second.shape[0]
        for number in range(each):
            pieces = tuple(_of_expert(keys, stacked, number, halves=2 if gated and len(keys) > 1 else 1))
            yield PlannedWeight(
                target=f"{found['before']}local_experts.{rank * each + number}."
                f"linear_fc{found['number']}.weight",
                pieces=pieces,
                join="concat" if len(pieces) > 1 else None,
                dim=0 if is_first else 1,
                how="map",
            )


def _of_expert(
    keys: Sequence[str], stacked: tuple[int, int, int], number: int, *, halves: int
) -> Iterator[SourcePiece]:
    """One expert of each part, turned to (out, in); with two ``halves`` all gates before all others."""
    _, rows, columns = stacked
    one = (
        Reshape(shape=stacked),
        Slice(dim=0, start=number, stop=number + 1),
        Reshape(shape=(rows, columns)),
        Permute(dims=(1, 0)),
    )
    size = columns // halves
    for half in range(halves):
        cut = (Slice(dim=0, start=half * size, stop=(half + 1) * size),) if halves > 1 else ()
        for key in keys:
            yield SourcePiece(source=key, steps=(*one, *cut))
