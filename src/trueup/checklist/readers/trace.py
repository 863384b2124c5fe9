"""A trace of trueup as a configuration: what manifest, first rank and first step say of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from trueup.checklist.readers import mappings
from trueup.checklist.settings import Setting, SettingsDocument, flat
from trueup.errors import ConfigError
from trueup.store import layout
from trueup.types.trace import Manifest, RankFacts

_FACTS = frozenset(
    {
        *("framework", "framework_version", "python_version", "cuda", "world_size"),
        *("deterministic_algorithms", "seed", "allow_tf32"),
    }
)


def is_trace(folder: Path) -> bool:
    """Whether the folder is a trace."""
    return (folder / layout.MANIFEST).is_file() and (folder / "ranks").is_dir()


def documents(folder: Path) -> list[SettingsDocument]:
    """The facts of the run, and the configuration object of its model where the trace kept it.

    Raises:
        ConfigError: the manifest cannot be read.
    """
    manifest = cast(Manifest, _json(folder / layout.MANIFEST))
    rank_file = next(iter(sorted(folder.glob("ranks/rank_*.json"))), None)
    rank = RankFacts() if rank_file is None else cast(RankFacts, _json(rank_file))
    facts: dict[str, object] = {key: value for key, value in manifest.items() if key in _FACTS}
    facts["environment"] = manifest.get("environment") or {}
    facts["optimizer"] = _optimizer(rank)
    facts["scalars"] = _scalars(folder)
    place = str(folder)
    settings = {key: Setting(key, value, place) for key, value in flat(facts)}
    found = [SettingsDocument(dialect="trace", path=place, settings=settings, data=facts, kind="trace")]
    for name, model in (rank.get("configuration") or {}).items():
        if isinstance(model, Mapping) and model:
            where = f"{place} (configuration of {name or 'the model'})"
            found.append(
                mappings.from_data(model, dialect=mappings.dialect_of(model), path=where, kind="trace")
            )
    return found


def _json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _optimizer(rank: RankFacts) -> dict[str, object]:
    """The first optimizer: its class, its first decaying group, and where one does,
    how many parameters do not."""
    found = rank.get("optimizers") or []
    if not found:
        return {}
    groups = [group for group in found[0].get("groups", []) if isinstance(group, Mapping)]
    decaying = [group for group in groups if group.get("weight_decay")]
    settings: dict[str, object] = {
        "name": found[0].get("class"),
        "group": dict((decaying or groups or [{}])[0]),
    }
    if not decaying:  # which parameters a decay of 0 applies to is no question
        return settings
    return settings | {
        "undecayed": sum(_whole(g.get("num_params")) for g in groups if not g.get("weight_decay"))
    }


def _whole(count: object) -> int:
    return count if isinstance(count, int) else 0


def _scalars(folder: Path) -> dict[str, object]:
    first = next(iter(sorted(folder.glob("scalars/rank_*.jsonl"))), None)
    if first is None:
        return {}
    try:
        with first.open(encoding="utf-8") as stream:
            content = json.loads(stream.readline())
    except ValueError:  # UnicodeDecodeError is one
        return {}
    if not isinstance(content, dict):
        return {}
    kept = ("batch_size", "microbatches", "global_batch_size", "loss_scale")
    return {key: content[key] for key in kept if content.get(key)}
