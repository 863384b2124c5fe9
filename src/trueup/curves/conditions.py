"""What must be the same before curves are worth comparing, proved from two traces: weights, settings,
randomness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trueup.curves.standard import Criterion, Met
from trueup.errors import ConfigError
from trueup.store import Trace

WEIGHTS, SETTINGS, RANDOMNESS, DATA = "weights", "settings", "randomness", "data"
ASSUMABLE = (WEIGHTS, SETTINGS, RANDOMNESS, DATA)
_RULE = "migration standard, test standard 2"
_TITLES = {
    WEIGHTS: "Same initial weights",
    SETTINGS: "Same hyperparameters",
    RANDOMNESS: "Randomness off",
    DATA: "Same batches, step by step",
}
_FREE = {"num_params", "foreach", "fused", "capturable", "differentiable", "maximize", "initial_lr", "params"}
"""what an optimizer's group may have of its own without training otherwise"""
_NEED = "traces prove it: --target-trace, --reference-trace"

DEFAULTS = (
    ("dataset", "Dataset", "wikitext-103 (pretraining), alpaca (fine-tuning)"),
    ("accuracy_mode", "Accuracy mode", "BF16, mixed-precision settings the same on both sides"),
    ("parallelism", "Parallel method", "data parallel"),
    ("cluster", "Cluster", "one machine, 8 cards"),
    ("checkpoint", "Checkpoint", "initialised by the script (pretraining), loaded (fine-tuning)"),
    ("determinism", "Determinism", "on while comparing; off while the fluctuation is measured"),
)
"""the standard's default configuration: key, name, value"""


_Found: TypeAlias = "tuple[Met, str, str] | None"
"""status, what was found, and a note; None where the traces do not tell"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One line of the standard's default configuration."""

    key: str
    name: str
    default: str
    state: str
    """``kept``, ``changed`` or ``not told``"""
    actual: str

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return {name: str(getattr(self, name)) for name in ("key", "name", "default", "state", "actual")}


def parse_assumptions(given: Collection[str]) -> frozenset[str]:
    """What a person vouches for.

    Raises:
        ConfigError: it is none of the four.
    """
    words = {word.strip() for text in given for word in text.split(",") if word.strip()}
    if "all" in words:
        return frozenset(ASSUMABLE)
    for word in words:
        if word not in ASSUMABLE:
            raise ConfigError(f"--assume {word!r}: there is {', '.join(ASSUMABLE)} and all")
    return frozenset(words)


def parse_conditions(given: Collection[str]) -> dict[str, str]:
    """``determinism=on`` and the like, as a person states the default configuration was changed.

    Raises:
        ConfigError: no such condition.
    """
    known = [key for key, _, _ in DEFAULTS]
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not value or key not in known:
            raise ConfigError(f"--condition {text!r}: NAME=VALUE is wanted, NAME one of {', '.join(known)}")
        found[key] = value
    return found


def proofs(target: Path | None, reference: Path | None, *, assumed: Collection[str] = ()) -> list[Criterion]:
    """The four preconditions; without two traces `undecided`, unless a person vouches for them."""
    if target is None or reference is None:
        return [_unproved(key, assumed) for key in ASSUMABLE]
    mine, theirs = Trace(target), Trace(reference)
    found: dict[str, _Found] = {
        WEIGHTS: _weights(mine, theirs),
        SETTINGS: _settings(mine, theirs),
        RANDOMNESS: _randomness(mine, theirs),
        DATA: _data(mine, theirs),
    }
    return [
        _unproved(key, assumed) if (told := found[key]) is None else _criterion(key, *told)
        for key in ASSUMABLE
    ]


def _unproved(key: str, assumed: Collection[str]) -> Criterion:
    if key in assumed:
        return _criterion(key, Met.MET, "stated by the user", "stated, not proved")
    return _criterion(key, Met.UNDECIDED, "not proved", _NEED)


def _criterion(key: str, status: Met, value: str, note: str) -> Criterion:
    return Criterion(
        key=key,
        title=_TITLES[key],
        value=value,
        threshold="the same" if key != RANDOMNESS else "off",
        status=status,
        decisive=key != DATA or status is Met.NOT_MET,
        origin=_RULE,
        note=note,
    )


def _weights(mine: Trace, theirs: Trace) -> _Found:
    """By the order-free hash of each parameter: names, order and layout may differ."""
    sides = [_contents(trace) for trace in (mine, theirs)]
    if not all(sides):
        return None
    a, b = (Counter(side) for side in sides)
    if a == b:
        return Met.MET, f"{sum(a.values()):,} tensors equal", "proved by their content, from the traces"
    total = [sum(int(content, 16) for content in side) % 2**64 for side in sides]
    if total[0] == total[1]:
        return Met.MET, "equal as a whole", "proved by their content, tensors cut otherwise"
    shared = sum((a & b).values())
    few = f"{shared:,} of {max(len(sides[0]), len(sides[1])):,} tensors equal"
    return Met.NOT_MET, few, "trueup compare-weights TARGET REFERENCE says which differ"


def _contents(trace: Trace) -> list[str]:
    """Hashes of the parameters all ranks hold between them; empty where one has none."""
    found: dict[tuple[str, str], str] = {}
    for rank in range(int(trace.manifest.get("world_size") or 1)):
        for parameter in trace.rank_facts(rank).get("parameters") or []:
            content = parameter.get("content")
            if not content:
                return []
            if not parameter.get("tied_to"):
                found[parameter["fqn"], content] = content
    return list(found.values())


def _settings(mine: Trace, theirs: Trace) -> _Found:
    sides = [_groups(trace) for trace in (mine, theirs)]
    if not all(sides):
        return None
    apart = [
        f"{key} {_words(sides[0][key])} against {_words(sides[1][key])}"
        for key in sides[0]
        if key in sides[1] and sides[0][key] != sides[1][key]
    ]
    if apart:
        return Met.NOT_MET, "; ".join(apart[:3]), "trueup check TARGET_CONFIG REFERENCE_CONFIG lists them all"
    shared = [key for key in sides[0] if key in sides[1]]
    return (
        Met.MET,
        f"{len(shared)} settings equal",
        "of optimizers and batches, proved from the traces: " + ", ".join(shared),
    )


def _groups(trace: Trace) -> dict[str, list[Any]]:
    """Setting -> its values over parameter groups; batch sizes beside them."""
    found: dict[str, list[Any]] = {}
    for optimizer in trace.rank_facts(0).get("optimizers") or []:
        for group in optimizer.get("groups") or []:
            for key, value in group.items():
                if key not in _FREE:
                    found.setdefault(key, []).append(value)
    lines = trace.scalars(0)
    for key in ("global_batch_size", "loss_scale"):
        if found and lines and lines[0].get(key) is not None:
            found[key] = [lines[0][key]]
    return {key: sorted(values, key=str) for key, values in found.items()}


def _words(values: list[Any]) -> str:
    return ", ".join(
        dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    )


def _randomness(mine: Trace, theirs: Trace) -> _Found:
    sides = [trace.manifest for trace in (mine, theirs)]
    told = [m.get("deterministic_algorithms", m.get("deterministic")) for m in sides]
    if any(one is None for one in told):
        return None
    open_ = [
        name
        for name, one in zip(("target", "reference"), told, strict=True)
        if str(one).lower() not in ("true", "on", "1")
    ]
    dropout = [_dropout(trace) for trace in (mine, theirs)]
    if open_:
        return (
            Met.NOT_MET,
            f"deterministic algorithms off in the {' and the '.join(open_)}",
            "capture with --deterministic",
        )
    if any(dropout):
        return Met.NOT_MET, f"dropout of {max(dropout):g} is on", "set dropout to 0 on both sides"
    return Met.MET, "deterministic on both sides, no dropout seen", "proved from the traces"


def _dropout(trace: Trace) -> float:
    settings = trace.rank_facts(0).get("settings") or {}
    found = [
        float(value)
        for module in settings.values()
        for key, value in module.items()
        if (key == "p" or "dropout" in key) and isinstance(value, (int, float)) and 0 < value < 1
    ]
    return max(found, default=0.0)


def _data(mine: Trace, theirs: Trace) -> _Found:
    sides = [
        {line["step"]: line["batch_digest"] for line in trace.scalars(0) if line.get("batch_digest")}
        for trace in (mine, theirs)
    ]
    shared = sorted(sides[0].keys() & sides[1].keys())
    if not shared:
        return None
    differ = [step for step in shared if sides[0][step] != sides[1][step]]
    if not differ:
        return Met.MET, f"{len(shared):,} batches equal", "proved by their digests"
    if mine.manifest.get("framework") != theirs.manifest.get("framework"):
        return None  # digests see the dtype of the ids, which frameworks choose
    return (
        Met.NOT_MET,
        f"{len(differ):,} of {len(shared):,} batches differ, the first at step {differ[0]}",
        ("trueup diagnose TARGET REFERENCE -o OUT shows how"),
    )


def conditions(trace: Path | None, stated: dict[str, str]) -> list[Condition]:
    """The standard's default configuration, kept or changed, as the trace or a person tells."""
    told = _told(trace) | {key: ("changed", value) for key, value in stated.items()}
    found = []
    for key, name, default in DEFAULTS:
        state, actual = told.get(key, ("not told", "logs say nothing of it"))
        if key in stated and stated[key].lower() in ("default", "kept"):
            state, actual = "kept", default
        found.append(Condition(key=key, name=name, default=default, state=state, actual=actual))
    return found


def _told(trace: Path | None) -> dict[str, tuple[str, str]]:
    if trace is None:
        return {}
    source = Trace(trace)
    manifest, facts = source.manifest, source.rank_facts(0)
    world = int(manifest.get("world_size") or 1)
    dtypes = Counter(p.get("dtype") for p in facts.get("parameters") or [])
    mesh = set(facts.get("coordinate") or {})
    on = str(manifest.get("deterministic_algorithms", manifest.get("deterministic"))).lower() in (
        "true",
        "on",
    )
    found = {
        "cluster": ("kept" if world == 8 else "changed", f"{world} process{'es' if world > 1 else ''}"),
        "determinism": ("kept" if on else "changed", "on" if on else "off"),
    }
    if dtypes:
        common = dtypes.most_common(1)[0][0]
        found["accuracy_mode"] = ("kept" if common == "bfloat16" else "changed", f"parameters in {common}")
    if world > 1 and mesh:
        found["parallelism"] = ("kept" if mesh == {"dp"} else "changed", ", ".join(sorted(mesh)))
    elif world == 1:
        found["parallelism"] = ("changed", "one process")
    return found
