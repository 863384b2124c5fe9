"""diagnosis.json as reports see it: verdict, stages, the way from the symptom to the origin."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trueup.reporting.formatting import short_frame

NUMERICAL = "numerical"

SHORT = {
    "config": "Configuration",
    "data": "Data",
    "weights": "Initial weights",
    "forward": "Forward, loss",
    "backward": "Backward",
    "reduction": "Reduction",
    "optimizer": "Optimizer",
    "loss": "Next loss",
    "resume": "Resume",
    "long_run": "Long run",
}
_BLOCK = re.compile(r"^(.*?)\.?(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of the model that is drawn as one box: a layer, or a module beside the layers."""

    name: str
    label: str
    forward: float | None
    """largest error of its outputs over what is allowed"""
    backward: float | None
    is_origin: bool
    holds_origin: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The document of a diagnosis, read."""

    document: Mapping[str, Any]

    @property
    def outcome(self) -> str:
        """``agree differ undecided``."""
        return str(self.document["outcome"])

    @property
    def headline(self) -> str:
        """One sentence."""
        return str(self.document["headline"])

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        """The verdict first."""
        return list(self.document["findings"])

    @property
    def verdict(self) -> Mapping[str, Any]:
        """The finding the diagnosis ends in, empty where there is none."""
        return self.findings[0] if self.findings else {}

    @property
    def further(self) -> list[Mapping[str, Any]]:
        """All other findings."""
        return self.findings[1:]

    @property
    def kind(self) -> Mapping[str, Any] | None:
        """The likeliest kind of the verdict."""
        kinds = self.verdict.get("kinds") or []
        return kinds[0] if kinds else None

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The checklist, each with a ``short`` name."""
        return [
            {**stage, "short": SHORT.get(stage["stage"], stage["stage"])} for stage in self.document["stages"]
        ]

    @property
    def coordinates(self) -> str:
        """Step, rank and phase of the verdict, in words."""
        return coordinates(self.verdict)

    @property
    def sources(self) -> list[tuple[str, str, str]]:
        """(side, place, line of code) of the verdict, on both sides."""
        return sources(self.verdict)

    @property
    def next_command(self) -> str | None:
        """What to type next."""
        found = self.verdict.get("next")
        return None if found is None else str(found)

    @property
    def next_note(self) -> str:
        """What to do next, in words."""
        return str(self.verdict.get("next_note") or "")

    # -- the way from the symptom to the origin ------------------------------------------

    def points(self, phase: str) -> list[dict[str, Any]]:
        """Module outputs of a phase as they ran: ``module type error bound score``."""
        found = []
        for point in self.document["path"]:
            if point["phase"] == phase:
                error, bound = number_of(point["rel_l2"]), number_of(point["tolerance"])
                found.append({**point, "error": error, "bound": bound, "score": _score(error, bound)})
        return found

    def blocks(self) -> list[Block]:
        """The model in execution order, as boxes."""
        scores: dict[str, dict[str, float | None]] = {}
        for phase in ("forward", "backward"):
            for point in self.points(phase):
                name = block_of(point["module"])
                if name is not None:
                    entry = scores.setdefault(name, {"forward": None, "backward": None})
                    entry[phase] = _larger(entry[phase], point["score"])
        origins = {str(f["module"]) for f in self.findings if f.get("module")}
        return [
            Block(
                name=name,
                label=_label(name),
                forward=entry["forward"],
                backward=entry["backward"],
                is_origin=name in origins,
                holds_origin=any(
                    block_of(origin) == name or block_of(f"{origin}.x") == name for origin in origins
                ),
            )
            for name, entry in scores.items()
        ]

    def inside(self, block: str, phase: str, origin: str) -> list[Block]:
        """The children of one box, one level of names down."""
        found: dict[str, float | None] = {}
        for point in self.points(phase):
            if point["module"].startswith(block + "."):
                name = block + "." + point["module"][len(block) + 1 :].split(".")[0]
                found[name] = _larger(found.get(name), point["score"])
        return [
            Block(
                name=name,
                label=name.rpartition(".")[2],
                forward=score if phase == "forward" else None,
                backward=score if phase == "backward" else None,
                is_origin=name == origin,
                holds_origin=origin == name or origin.startswith(name + "."),
            )
            for name, score in found.items()
        ]


def report_from(document: Mapping[str, Any]) -> Report:
    """The report of a document, or of a diagnosis as it is in memory."""
    return Report(document=document)


def coordinates(finding: Mapping[str, Any]) -> str:
    """Step, rank and phase in words."""
    parts = [
        f"step {finding['step']}" if finding.get("step") is not None else "",
        processes(finding),
        str(finding.get("phase") or "").replace("_", " "),
    ]
    return " · ".join(part for part in parts if part)


def processes(finding: Mapping[str, Any]) -> str:
    """Which ranks a finding is about, in words: some alone, those along an axis, else where it was seen."""
    ranks, axis = finding.get("ranks") or [], finding.get("axis")
    if ranks:
        who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} alone"
        return f"{who} ({axis})" if axis else who
    if axis:
        return f"all ranks along {axis}"
    return f"rank {finding['rank']}" if finding.get("rank") is not None else ""


def sources(finding: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(side, place, line of code) where known."""
    origin = finding.get("origin") or {}
    frames = (("target", finding.get("source")), ("reference", origin.get("reference_source")))
    return [(side, *short_frame(str(frame))) for side, frame in frames if frame]


def block_of(module: str) -> str | None:
    """The box a module is drawn in: its layer, or itself; the root has none."""
    if not module:
        return None
    match = _BLOCK.match(module)
    if match:
        return f"{match[1]}.{match[2]}".lstrip(".")
    return module


def _label(name: str) -> str:
    match = _BLOCK.match(name)
    return match[2] if match and name.endswith(match[2]) else name.rpartition(".")[2]


def number_of(value: Any) -> float | None:
    """A number of the document, where infinities are words."""
    if value is None:
        return None
    return math.inf if value == "inf" else -math.inf if value == "-inf" else float(value)


def _score(error: float | None, bound: float | None) -> float | None:
    if error is None or bound is None:
        return None
    if error == 0:
        return 0.0
    return math.inf if bound == 0 else error / bound


def _larger(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else max(one, other)
