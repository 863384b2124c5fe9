"""What must be the same before curves are worth comparing, proved from two traces: weights, settings,
randomness."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from trueup.curves.standard import Criterion, Met
from trueup.errors import ConfigError
from trueup.store import Trace
from trueup.types.codes import CriterionCode as Code
from trueup.types.reason import Reason, reason

WEIGHTS, SETTINGS, RANDOMNESS, DATA = "weights", "settings", "randomness", "data"
ASSUMABLE = (WEIGHTS, SETTINGS, RANDOMNESS, DATA)
_FREE = {"num_params", "foreach", "fused", "capturable", "differentiable", "maximize", "initial_lr", "params"}
"""what an optimizer's group may have of its own without training otherwise"""
DEFAULTS = ("dataset", "accuracy_mode", "parallelism", "cluster", "checkpoint", "determinism")
"""keys of the standard's default configuration"""


_NUM_LISTED = 3
"""settings that a reason names"""
_Found: TypeAlias = "tuple[Met, Reason, Reason] | None"
"""status, what was found, and a note; None where the traces do not tell"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One line of the standard's default configuration."""

    key: str
    state: str
    """``kept``, ``changed`` or ``not told``"""
    actual: Reason

    @property
    def name(self) -> Reason:
        """What it is about."""
        return reason(Code.CONDITION, key=self.key)

    @property
    def default(self) -> Reason:
        """What the standard asks for."""
        return reason(Code.DEFAULT, key=self.key)

    def to_json(self) -> dict[str, object]:
        """Fields by name."""
        return {name: getattr(self, name) for name in ("key", "name", "default", "state", "actual")}


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
            names = ", ".join((*ASSUMABLE, "all"))
            raise ConfigError(f"--assume: expected one of: {names} (got {word!r})")
    return frozenset(words)


def parse_conditions(given: Collection[str]) -> dict[str, str]:
    """``determinism=on`` and the like, as a person states the default configuration was changed.

    Raises:
        ConfigError: no such condition.
    """
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not value or key not in DEFAULTS:
            names = ", ".join(DEFAULTS)
            raise ConfigError(f"--condition: expected NAME=VALUE, NAME one of: {names} (got {text!r})")
        found[key] = value
    return found


def proofs(target: Path | None, reference: Path | None, *, assumed: Collection[str] = ()) -> list[Criterion]:
    """The four preconditions; without two traces `undecided`, unless a person vouches for them."""
    if target is None or reference is None:
        return [_unproved(key, assumed) for key in ASSUMABLE]
    target_run, reference_run = Trace(target), Trace(reference)
    found: dict[str, _Found] = {
        WEIGHTS: _weights(target_run, reference_run),
        SETTINGS: _settings(target_run, reference_run),
        RANDOMNESS: _randomness(target_run, reference_run),
        DATA: _data(target_run, reference_run),
    }
    return [
        _unproved(key, assumed) if (proof := found[key]) is None else _criterion(key, *proof)
        for key in ASSUMABLE
    ]


def _unproved(key: str, assumed: Collection[str]) -> Criterion:
    if key in assumed:
        return _criterion(key, Met.MET, reason(Code.STATED), reason(Code.STATED_ONLY))
    return _criterion(key, Met.UNDECIDED, reason(Code.UNPROVED), reason(Code.GIVE_TRACES))


def _criterion(key: str, status: Met, value: Reason, note: Reason) -> Criterion:
    return Criterion(
        key=key,
        value=value,
        threshold=reason(Code.OFF if key == RANDOMNESS else Code.THE_SAME),
        status=status,
        decisive=key != DATA or status is Met.NOT_MET,
        origin=reason(Code.STANDARD, rule="test standard 2"),
        note=note,
    )


_HASH = re.compile(r"[0-9a-fA-F]{1,16}")
"""what capture writes of a weight's content"""


def _weights(target: Trace, reference: Trace) -> _Found:
    """By the order-free hash of each parameter: names, order and layout may differ."""
    sides = [_contents(trace) for trace in (target, reference)]
    if not all(sides):
        return None
    a, b = (Counter(side) for side in sides)
    if a == b:
        return Met.MET, reason(Code.TENSORS_EQUAL, num=sum(a.values())), reason(Code.BY_CONTENT)
    total = [sum(int(content, 16) for content in side) % 2**64 for side in sides]
    if total[0] == total[1]:
        return Met.MET, reason(Code.EQUAL_IN_SUM), reason(Code.CUT_DIFFERENTLY)
    shared = sum((a & b).values())
    some = reason(Code.SOME_TENSORS, num=shared, total=max(len(sides[0]), len(sides[1])))
    return Met.NOT_MET, some, reason(Code.COMPARE_WEIGHTS)


def _contents(trace: Trace) -> list[str]:
    """Hashes of the parameters all ranks hold between them; empty where one has none."""
    found: dict[tuple[str, str], str] = {}
    for rank in range(int(trace.manifest.get("world_size") or 1)):
        for parameter in trace.rank_facts(rank).get("parameters") or []:
            content = parameter.get("content")
            if not content or not _HASH.fullmatch(content):
                return []
            if not parameter.get("tied_to"):
                found[parameter["fqn"], content] = content
    return list(found.values())


def _settings(target_run: Trace, reference_run: Trace) -> _Found:
    sides = [_groups(trace) for trace in (target_run, reference_run)]
    if not all(sides):
        return None
    keys = [key for key in sides[0] if key in sides[1]]
    if not keys:  # nothing was compared
        return None
    different = [key for key in keys if sides[0][key] != sides[1][key]][:_NUM_LISTED]
    if different:
        shown = [_shown(sides[0][key], sides[1][key]) for key in different]
        target, reference = ([one[at] for one in shown] for at in (0, 1))
        apart = reason(Code.SETTINGS_DIFFER, keys=different, target=target, reference=reference)
        return Met.NOT_MET, apart, reason(Code.CHECK_CONFIGS)
    return Met.MET, reason(Code.SETTINGS_EQUAL, num=len(keys)), reason(Code.COMPARED_SETTINGS, keys=keys)


def _groups(trace: Trace) -> dict[str, list[object]]:
    """Setting -> its values over parameter groups; batch sizes beside them."""
    found: dict[str, list[object]] = {}
    for optimizer in trace.rank_facts(0).get("optimizers") or []:
        for group in optimizer.get("groups") or []:
            for key, value in group.items():
                if key not in _FREE:
                    found.setdefault(key, []).append(value)
    lines = trace.scalars(0)
    for key in ("global_batch_size", "loss_scale"):
        logged: object = lines[0].get(key) if lines else None
        if found and logged is not None:
            found[key] = [logged]
    return {key: sorted(values, key=str) for key, values in found.items()}


def _shown(target: list[object], reference: list[object]) -> tuple[str, str]:
    """Both sides, with as many digits, and repeated values, as it takes to tell them apart."""
    shown = "", ""
    for spec, once in (("g", True), (".17g", True), (".17g", False)):
        sides = (
            [format(v, spec) if isinstance(v, float) else str(v) for v in of] for of in (target, reference)
        )
        own, other = (", ".join(dict.fromkeys(of) if once else of) for of in sides)
        shown = own, other
        if own != other:
            break
    return shown


def _randomness(target: Trace, reference: Trace) -> _Found:
    sides = [trace.manifest for trace in (target, reference)]
    stated = [m.get("deterministic_algorithms", m.get("deterministic")) for m in sides]
    if any(one is None for one in stated):
        return None
    open_ = [name for name, one in zip(("target", "reference"), stated, strict=True) if not _is_on(one)]
    dropout = [_dropout(trace) for trace in (target, reference)]
    if open_:
        off = reason(Code.NOT_DETERMINISTIC, sides=open_)
        return Met.NOT_MET, off, reason(Code.CAPTURE_DETERMINISTIC)
    if any(dropout):
        return Met.NOT_MET, reason(Code.DROPOUT_ON, value=max(dropout)), reason(Code.DROPOUT_OFF)
    return Met.MET, reason(Code.DETERMINISTIC), reason(Code.FROM_TRACES)


def _is_on(stated: object) -> bool:
    return str(stated).lower() in ("true", "on", "1")


def _dropout(trace: Trace) -> float:
    settings = trace.rank_facts(0).get("settings") or {}
    found = [
        float(value)
        for module in settings.values()
        for key, value in module.items()
        if (key == "p" or "dropout" in key) and isinstance(value, (int, float)) and 0 < value < 1
    ]
    return max(found, default=0.0)


def _data(target: Trace, reference: Trace) -> _Found:
    sides = [
        {line["step"]: line["batch_digest"] for line in trace.scalars(0) if line.get("batch_digest")}
        for trace in (target, reference)
    ]
    shared = sorted(sides[0].keys() & sides[1].keys())
    if not shared:
        return None
    differ = [step for step in shared if sides[0][step] != sides[1][step]]
    if not differ:
        return Met.MET, reason(Code.BATCHES_EQUAL, num=len(shared)), reason(Code.BY_DIGEST)
    if target.manifest.get("framework") != reference.manifest.get("framework"):
        return None  # digests see the dtype of the ids, which frameworks choose
    some = reason(Code.BATCHES_DIFFER, num=len(differ), total=len(shared), step=differ[0])
    return Met.NOT_MET, some, reason(Code.DIAGNOSE)


def conditions(trace: Path | None, stated: dict[str, str]) -> list[Condition]:
    """The standard's default configuration, kept or changed, as the trace or a person tells."""
    known = _known(trace) | {
        key: ("changed", reason(Code.AS_STATED, value=value)) for key, value in stated.items()
    }
    found = []
    for key in DEFAULTS:
        state, actual = known.get(key, ("not told", reason(Code.UNKNOWN)))
        if key in stated and stated[key].lower() in ("default", "kept"):
            state, actual = "kept", reason(Code.DEFAULT, key=key)
        found.append(Condition(key=key, state=state, actual=actual))
    return found


def _known(trace: Path | None) -> dict[str, tuple[str, Reason]]:
    """Condition -> whether it was kept, and what holds, as the trace shows it."""
    if trace is None:
        return {}
    source = Trace(trace)
    manifest, facts = source.manifest, source.rank_facts(0)
    world = int(manifest.get("world_size") or 1)
    dtypes = Counter(p.get("dtype") for p in facts.get("parameters") or [])
    mesh = set(facts.get("coordinate") or {})
    found = {"cluster": (_state(world == 8), reason(Code.PROCESSES, num=world))}
    stated = manifest.get("deterministic_algorithms", manifest.get("deterministic"))
    if stated is not None:
        on = _is_on(stated)
        found["determinism"] = _state(on), reason(Code.DETERMINISM, is_on=on)
    if dtypes:
        common = dtypes.most_common(1)[0][0]
        found["accuracy_mode"] = _state(common == "bfloat16"), reason(Code.DTYPE, dtype=str(common))
    if world == 1 or mesh:
        axes = sorted(mesh) if world > 1 else ()
        found["parallelism"] = _state(mesh == {"dp"} and world > 1), reason(Code.AXES, axes=axes)
    return found


def _state(kept: bool) -> str:
    return "kept" if kept else "changed"
