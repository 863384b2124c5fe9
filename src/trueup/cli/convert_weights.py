"""``trueup convert-weights``: weights of one model under the names and in the layout of another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup.cli.printing import note_line, warning_line
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.weights.plan import ConversionPlan
    from trueup.weights.weight_set import WeightSet

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def command(
    source: Annotated[
        Path,
        typer.Argument(metavar="SRC", help="A file or folder of weights, or a trace (its initial weights)."),
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="A .safetensors, .ckpt or .pth file, or a new folder.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="NAME",
            help="mindspore, torch, or a family of models: hf-llama, hf-gpt2, hf-mixtral, hf-qwen-moe, "
            "hf-moe-stacked, megatron, mindformers-llama, mindformers-llama-fused, torchtitan-llama.",
        ),
    ] = None,
    source_family: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="The source's family. Default: by its names.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A plan (docs/weights.md).")
    ] = None,
    turned_round: Annotated[
        bool, typer.Option("--inverse", help="Turn the plan round; --like gives what it began with.")
    ] = False,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="TARGET",
            help="Weights whose names and shapes are wanted. Alone, the plan is inferred from them.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help="safetensors, ckpt, pth, hf or npy. Default: by DST."),
    ] = None,
    num_heads: Annotated[
        int | None,
        typer.Option("--num-heads", min=1, help="Attention heads. Default: config.json beside SRC."),
    ] = None,
    num_kv_heads: Annotated[
        int | None,
        typer.Option("--num-kv-heads", min=1, help="Key/value heads. Default: as --num-heads."),
    ] = None,
    pad_vocab: Annotated[
        int | None,
        typer.Option("--pad-vocab", metavar="N", help="Zero rows until the vocabulary is a multiple of N."),
    ] = None,
    save_plan: Annotated[
        Path | None,
        typer.Option(
            "--save-plan", metavar="FILE", help="Write the plan, also one that leaves weights over."
        ),
    ] = None,
    shard_size: Annotated[
        str, typer.Option("--shard-size", metavar="SIZE", help="Largest file of a Hugging Face folder.")
    ] = "5G",
    allow_unmatched: Annotated[
        bool, typer.Option("--allow-unmatched", help="Weights left over on either side are no error.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Write the weights of SRC to DST: other names, transposed, fused, split, stacked. Bits are only moved.

    Without --to, --plan and --like the names stay, and only the file's format changes. .ckpt files of
    MindSpore are read and written without it.
    """
    from trueup.cli.inferring import infer_plan
    from trueup.weights.applying import apply_plan
    from trueup.weights.converting import Conversion, merged, plan_conversion
    from trueup.weights.layouts import Heads
    from trueup.weights.model_config import heads_beside
    from trueup.weights.opening import open_weights
    from trueup.weights.writing import format_of, write_weights

    chosen, shard_bytes = format_of(destination, format), _bytes(shard_size)
    weights = open_weights(source)
    asked = Conversion(
        to=to,
        source_family=source_family,
        plan=plan,
        turned_round=turned_round,
        like=None if like is None else open_weights(like),
        heads=merged(Heads(num_heads=num_heads, num_kv_heads=num_kv_heads), heads_beside(source)),
        pad_vocabulary=pad_vocab,
        allow_unmatched=allow_unmatched,
        save_plan=save_plan,
    )
    used = plan_conversion(weights, asked, infer=infer_plan)
    made = apply_plan(used, weights)
    write_weights(
        made,
        destination,
        format=chosen,
        shard_bytes=shard_bytes,
        made_for="ms" if to == "mindspore" or (to or "").startswith("mindformers") else "pt",
    )
    facts = _facts(weights, made, used, destination, chosen)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, indent=2))
    elif not quiet:
        _say(facts)


def _bytes(size: str) -> int:
    found = re.fullmatch(r"(\d+)\s*(|k|m|g|ki|mi|gi)b?", size.strip().lower())
    if found is None or not int(found[1]):
        raise ConfigError(f"--shard-size {size!r}: a number of bytes is wanted, such as 500M or 5G")
    return int(found[1]) * _SIZES[found[2]]


def _facts(
    source: WeightSet, made: WeightSet, plan: ConversionPlan, destination: Path, format: str
) -> dict[str, Any]:
    table = made.table
    inferred = [entry.confidence for entry in plan.entries]
    return {
        "destination": str(destination),
        "format": format,
        "num_source": len(source.table),
        "num_weights": len(table),
        "num_bytes": sum(info.nbytes for info in table.values()),
        "num_renamed": sum(entry.target != entry.pieces[0].source for entry in plan.entries),
        "num_joined": sum(entry.join is not None for entry in plan.entries),
        "lowest_confidence": min(inferred, default=None),
        "padded": {entry.target: entry.padding for entry in plan.entries if entry.padding},
        "not_converted": list(plan.only_source),
        "not_made": list(plan.only_target),
        "remarks": list(source.remarks),
    }


def _say(facts: dict[str, Any]) -> None:
    for sentence in facts["remarks"]:
        warning_line(sentence)
    if facts["not_converted"]:
        warning_line(f"not converted: {', '.join(facts['not_converted'])}")
    if facts["not_made"]:
        warning_line(f"not made: {', '.join(facts['not_made'])}")
    lowest = facts["lowest_confidence"]
    unsure = f"; lowest confidence of the plan {lowest:.2f}" if lowest is not None and lowest < 1 else ""
    padded = "".join(f"; {name} has {rows} rows of zeros more" for name, rows in facts["padded"].items())
    note_line(
        f"wrote {facts['destination']} ({facts['format']}): {facts['num_weights']} weights of "
        f"{facts['num_source']}, {facts['num_bytes']:,} bytes; {facts['num_renamed']} renamed, "
        f"{facts['num_joined']} joined{padded}{unsure}"
    )
