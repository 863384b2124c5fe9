"""Attention heads as the configuration beside the weights, or in them, says them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from trueup.store import layout
from trueup.weights.layouts import Heads
from trueup.weights.megatron import iteration_folder, part_files
from trueup.weights.torch_dist import COMMON, arguments_beside
from trueup.weights.torch_file import TorchFile

_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_query_groups", "n_kv_heads", "n_kv_head")


def heads_beside(path: Path) -> Heads:
    """The heads of the model whose weights are at ``path``, from ``config.json`` beside them, from a trace,
    or from the arguments that Megatron keeps in its checkpoint.

    Unknown where nothing says it; a file that cannot be read counts as none.
    """
    for config in _configurations(path):
        if (num := _number(config, _HEADS)) is not None:
            return Heads(num_heads=num, num_kv_heads=_number(config, _KV_HEADS))
    return Heads()


def _configurations(path: Path) -> Iterator[dict[str, object]]:
    folder = path if path.is_dir() else path.parent
    files = [folder / "config.json"]
    if (folder / layout.MANIFEST).is_file():
        files += sorted(folder.glob("ranks/rank_*.json"))[:1]
    for file in files:
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(plain, dict):
            yield from _within(plain)
    if path.is_dir():
        for part in list(part_files(iteration_folder(path)).values())[:1]:
            yield _of_arguments(TorchFile(part).arguments)
        common = iteration_folder(path) / COMMON
        if common.is_file():
            yield _of_arguments(arguments_beside(common)[0])


def _of_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    """Megatron has a number of query groups also where it does not group: then it means nothing."""
    heads = arguments.get("num_attention_heads")
    groups = arguments.get("num_query_groups") if arguments.get("group_query_attention") else heads
    return {"num_attention_heads": heads, "num_query_groups": groups}


def _within(plain: dict[str, object]) -> Iterator[dict[str, object]]:
    """A configuration and those it holds (the text part of a model; one a root of a trace)."""
    yield plain
    for key in ("text_config", "configuration"):
        below = plain.get(key)
        if isinstance(below, dict):
            yield below
            yield from (value for value in below.values() if isinstance(value, dict))


def _number(config: Mapping[str, object], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        found = config.get(key)
        if isinstance(found, int) and not isinstance(found, bool):
            return found or None
    return None
