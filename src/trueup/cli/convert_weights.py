"""``trueup convert-weights``: weights of one model under the names and in the layout of another."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trueup.cli.printing import note_line, print_json, warning_line
from trueup.cli.shared import AllowUnmatched, NumHeads, NumKvHeads, Printed
from trueup.errors import ConfigError
from trueup.types.option import Option, expected

if TYPE_CHECKING:
    from trueup.weights.plan import ConversionPlan
    from trueup.weights.weight_set import WeightSet

_LARGEST_MULTIPLE = 2**24
"""rows of zeros; no vocabulary is larger"""
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def bytes_from_text(text: str, place: str) -> int:
    """A number of bytes such as ``5G``, ``500M`` or ``64Ki``.

    Raises:
        ConfigError: not of that form, or 0.
    """
    match = re.fullmatch(r"(\d+)\s*(|k|m|g|ki|mi|gi)b?", text.strip().lower())
    if match is None or not int(match[1]):
        raise expected(place, "a number of bytes, such as 500M or 5G", text)
    return int(match[1]) * _SIZES[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """Which weights, and what becomes of them."""

    source: Annotated[
        Path, Option("A file or folder of weights, or a trace (its initial weights).", argument="SRC")
    ]
    destination: Annotated[
        Path, Option("A .safetensors, .ckpt or .pth file, or a new folder.", argument="DST")
    ]
    to: Annotated[
        str | None,
        Option(
            "mindspore, torch, or a family of models: hf-llama, hf-gpt2, hf-mixtral, hf-qwen-moe, "
            "hf-moe-stacked, megatron, mindformers-llama, mindformers-llama-fused (1.2, 1.3), "
            "mindformers-llama-fused-1.4, mindformers-mcore-1.6, mindformers-mcore-1.7, "
            "mindformers-mcore-1.7-contiguous, torchtitan-llama.",
            "--to NAME",
        ),
    ] = None
    source_family: Annotated[
        str | None, Option("Family of the source.", "--from NAME", default="by its names")
    ] = None
    plan: Annotated[Path | None, Option("A plan (docs/weights.md).", "--plan FILE")] = None
    inverse: Annotated[
        bool, Option("Invert the plan; --like names the weights it was applied to.", "--inverse")
    ] = False
    like: Annotated[
        Path | None,
        Option(
            "Weights with the expected names and shapes. Without --to and --plan, the plan is inferred "
            "from them.",
            "--like TARGET",
        ),
    ] = None
    format: Annotated[
        str | None, Option("safetensors, ckpt, pth, hf, npy or megatron.", "--format F", default="by DST")
    ] = None
    split: Annotated[
        str | None,
        Option(
            "Tensor, pipeline and expert parallel sizes of --format megatron, such as 2,4,1.",
            "--split TP,PP,EP",
            default="1,1,1",
        ),
    ] = None
    num_heads: NumHeads = None
    num_kv_heads: NumKvHeads = None
    pad_vocab: Annotated[
        int | None,
        Option(
            "Append rows of zeros until the vocabulary is a multiple of N.",
            "--pad-vocab",
            least=1,
            most=_LARGEST_MULTIPLE,
        ),
    ] = None
    save_plan: Annotated[
        Path | None, Option("Write the plan, even if it leaves weights unmatched.", "--save-plan FILE")
    ] = None
    shard_size: Annotated[
        int,
        Option(
            "Largest file of a Hugging Face folder.",
            "--shard-size SIZE",
            unit="bytes",
            default="5G",
            read=bytes_from_text,
        ),
    ] = 5 * 10**9
    allow_unmatched: AllowUnmatched = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was written; the document of --json."""

    destination: str
    format: str
    num_source: int
    num_weights: int
    num_bytes: int
    num_renamed: int
    num_joined: int
    lowest_confidence: float | None
    padded: dict[str, int]
    not_converted: list[str]
    not_made: list[str]
    remarks: list[str]


def command(options: ConvertOptions, printed: Printed) -> int:
    """Write the weights of SRC to DST: renamed, transposed, fused, split, stacked. Values keep their bits.

    Without --to, --plan and --like the names stay, and only the file format changes. .ckpt files of
    MindSpore are read and written without MindSpore.
    """
    from trueup.cli.inferring import infer_plan
    from trueup.weights.applying import apply_plan
    from trueup.weights.converting import Conversion, merged, plan_conversion
    from trueup.weights.layouts import Heads
    from trueup.weights.megatron_writing import layout_from_text
    from trueup.weights.model_config import heads_beside
    from trueup.weights.opening import open_weights
    from trueup.weights.writing import format_of, write_weights

    file_format = format_of(options.destination, options.format)
    if options.split is not None and file_format != "megatron":
        raise ConfigError(f"--split {options.split} needs --format megatron (got {file_format})")
    layout = layout_from_text(options.split or "1", "--split")
    weights = open_weights(options.source)
    given = Heads(num_heads=options.num_heads, num_kv_heads=options.num_kv_heads)
    heads = merged(given, heads_beside(options.source))
    request = Conversion(
        to=options.to,
        source_family=options.source_family,
        plan=options.plan,
        turned_round=options.inverse,
        like=None if options.like is None else open_weights(options.like),
        heads=heads,
        pad_vocabulary=options.pad_vocab,
        allow_unmatched=options.allow_unmatched,
        save_plan=options.save_plan,
        proposal=Path(f"{options.destination}.plan.yaml"),
    )
    num_heads = heads.num_heads or (heads_beside(options.like).num_heads if options.like else None)
    infer = partial(infer_plan, by_structure=True, num_heads=num_heads)
    plan = plan_conversion(weights, request, infer=infer)
    result = apply_plan(plan, weights)
    for_mindspore = (options.to or "").startswith(("mindspore", "mindformers"))
    write_weights(
        result,
        options.destination,
        format=file_format,
        shard_bytes=options.shard_size,
        made_for="ms" if for_mindspore else "pt",
        layout=layout,
        num_groups=heads.num_kv_heads or heads.num_heads,
    )
    converted = _converted(weights, result, plan, options, file_format)
    if printed.as_json:
        print_json(asdict(converted))
    elif not printed.quiet:
        _print(converted)
    return 0


def _converted(
    source: WeightSet, result: WeightSet, plan: ConversionPlan, options: ConvertOptions, file_format: str
) -> Converted:
    from trueup.weights.mapping import assumed
    from trueup.weights.megatron import iteration_folder, part_files
    from trueup.weights.torch_dist import COMMON

    table = result.table
    folder = iteration_folder(options.source)
    own = options.source.is_dir() and (part_files(folder) or (folder / COMMON).is_file())  # Megatron's files
    family = options.source_family or ("megatron" if own else None)
    return Converted(
        destination=str(options.destination),
        format=file_format,
        num_source=len(source.table),
        num_weights=len(table),
        num_bytes=sum(info.nbytes for info in table.values()),
        num_renamed=sum(entry.target != entry.pieces[0].source for entry in plan.entries),
        num_joined=sum(entry.join is not None for entry in plan.entries),
        lowest_confidence=min((entry.confidence for entry in plan.entries), default=None),
        padded={entry.target: entry.padding for entry in plan.entries if entry.padding},
        not_converted=list(plan.only_source),
        not_made=list(plan.only_target),
        remarks=[*source.remarks, *assumed(source.table, to=options.to, source_family=family, made=table)],
    )


def _print(converted: Converted) -> None:
    for sentence in converted.remarks:
        warning_line(sentence)
    if converted.not_converted:
        warning_line(f"not converted: {', '.join(converted.not_converted)}")
    if converted.not_made:
        warning_line(f"not produced: {', '.join(converted.not_made)}")
    lowest = converted.lowest_confidence
    unsure = f"; lowest confidence of the plan {lowest:.2f}" if lowest is not None and lowest < 1 else ""
    padded = "".join(f"; {name} padded by {rows} rows of zeros" for name, rows in converted.padded.items())
    note_line(
        f"wrote {converted.destination} ({converted.format}): {converted.num_weights} weights from "
        f"{converted.num_source}, {converted.num_bytes:,} bytes; {converted.num_renamed} renamed, "
        f"{converted.num_joined} joined{padded}{unsure}"
    )
