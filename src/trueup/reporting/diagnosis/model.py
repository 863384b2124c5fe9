"""A diagnosis as its drawings see it: module outputs with errors, and the parts of the model as boxes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trueup.diagnosing.diagnosis import Diagnosis

_BLOCK = re.compile(r"^(.*?)\.?(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The output of one module, as it ran."""

    module: str
    type: str
    error: float | None
    """relative L2"""
    tolerance: float | None

    @property
    def score(self) -> float | None:
        """Error over tolerance; 0 where no difference was measured, infinite where nothing is tolerated."""
        if self.error is None or self.tolerance is None:
            return None
        if self.error == 0:
            return 0.0
        return math.inf if self.tolerance == 0 else self.error / self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBlock:
    """A part of the model that is drawn as one box: a layer, or a module beside the layers."""

    name: str
    label: str
    forward: float | None
    """largest error of its outputs over tolerance"""
    backward: float | None
    holds_origin: bool


def points_of(diagnosis: Diagnosis, phase: str) -> list[Point]:
    """Module outputs of a phase in execution order."""
    return [
        Point(
            module=str(point["module"] or ""),
            type=str(point["type"] or ""),
            error=_number(point["rel_l2"]),
            tolerance=_number(point["tolerance"]),
        )
        for point in diagnosis.path
        if point["phase"] == phase
    ]


def blocks_of(diagnosis: Diagnosis) -> list[ModelBlock]:
    """The model in execution order, as boxes."""
    scores: dict[str, dict[str, float | None]] = {}
    for phase in ("forward", "backward"):
        for point in points_of(diagnosis, phase):
            name = block_of(point.module)
            if name is not None:
                entry = scores.setdefault(name, {"forward": None, "backward": None})
                entry[phase] = _larger(entry[phase], point.score)
    origins = {finding.module for finding in diagnosis.findings if finding.module}
    held = {name for origin in origins for name in (block_of(origin), block_of(f"{origin}.x"))}
    return [
        ModelBlock(
            name=name,
            label=_label(name),
            forward=entry["forward"],
            backward=entry["backward"],
            holds_origin=name in held,
        )
        for name, entry in scores.items()
    ]


def inside(points: Sequence[Point], block: str, lane: str, origin: str) -> list[ModelBlock]:
    """The children of one box, one level of names down, with the errors of a lane."""
    found: dict[str, float | None] = {}
    for point in points:
        if point.module.startswith(block + "."):
            name = block + "." + point.module[len(block) + 1 :].split(".")[0]
            found[name] = _larger(found.get(name), point.score)
    return [
        ModelBlock(
            name=name,
            label=name.rpartition(".")[2],
            forward=score if lane == "forward" else None,
            backward=score if lane == "backward" else None,
            holds_origin=origin == name or origin.startswith(name + "."),
        )
        for name, score in found.items()
    ]


def block_of(module: str) -> str | None:
    """The box a module is drawn in: its layer, or itself; the root has none."""
    if not module:
        return None
    match = _BLOCK.match(module)
    return f"{match[1]}.{match[2]}".lstrip(".") if match else module


def tone_of(score: float | None) -> str:
    """The class of the style sheet that gives a score its colour."""
    if score is None:
        return "open"
    if score == 0:
        return "equal"
    if score <= 1:
        return "within"
    return "far" if score > 100 else "over"


def score_text(score: float | None) -> str:
    """A score in words."""
    if score is None:
        return "not compared"
    if score == 0:
        return "no difference"
    return "not comparable" if math.isinf(score) else f"{score:.3g} × tolerance"


def _label(name: str) -> str:
    match = _BLOCK.match(name)
    return match[2] if match and name.endswith(match[2]) else name.rpartition(".")[2]


def _number(value: object) -> float | None:
    """A number of the path; infinities may be words."""
    return None if value is None else float(str(value))


def _larger(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else max(one, other)
