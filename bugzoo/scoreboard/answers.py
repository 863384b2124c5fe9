"""What a tool says of one entry, in one form for all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_STAGE_OF_PHASE = {
    "param": "weights",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "collective": "reduction",
    "optimizer": "optimizer",
}
RAN, NOT_RUN, FAILED = "ran", "not run", "failed"


@dataclass(frozen=True, kw_only=True)
class Named:
    """One place that is blamed."""

    stage: str | None
    site: str | None
    """module or weight; "" is the whole model"""
    kinds: list[str] = field(default_factory=list)
    """best first"""
    headline: str = ""
    axis: str | None = None
    """of the mesh along which processes do not agree"""
    ranks: list[int] = field(default_factory=list)
    """the only processes that err"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A tool's answer to one entry."""

    state: str = RAN
    outcome: str | None = None
    """``agree``, ``differ`` or ``undecided``"""
    named: list[Named] = field(default_factory=list)
    """most likely first"""
    seconds: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Answer:
        """The answer of plain values."""
        return cls(**{**plain, "named": [Named(**named) for named in plain["named"]]})


def from_compare(document: dict[str, Any], *, seconds: float | None) -> Answer:
    """The verdict of ``trueup compare --json``; a batch that differs in its step puts it in the data."""
    verdict = document["verdict"]
    named = []
    if verdict["outcome"] != "agree" and (verdict["where"] or _batch_differs(document)):
        stage = "data" if _batch_differs(document) else _stage_from(verdict["phase"], verdict["where"] or "")
        named = [Named(stage=stage, site=_site_from(verdict), headline=verdict["headline"])]
    return Answer(outcome=verdict["outcome"], named=named, seconds=seconds)


def _site_from(verdict: dict[str, Any]) -> str | None:
    """The owner; where there is none, the whole program for a gradient that an output is sent, else what the
    site begins with: a weight."""
    if verdict["owner"] is not None:
        return str(verdict["owner"])
    if verdict["phase"] == "backward" and "gradient of output" in (verdict["where"] or ""):
        return ""
    return verdict["where"].split(" · ")[0] if verdict["where"] else None


def _batch_differs(document: dict[str, Any]) -> bool:
    step = document["verdict"]["step"]
    return any(
        one["beyond"] and one["name"].startswith("batch_digest") and step in (None, one["step"])
        for one in document.get("scalars", [])
    )


def _stage_from(phase: str | None, where: str) -> str | None:
    """The stage of a record's phase; a gradient is the backward's until it is added up."""
    if phase == "param_grad":
        return "backward" if "local" in where else "reduction"
    return _STAGE_OF_PHASE.get(phase or "")


def from_diagnose(document: dict[str, Any], *, seconds: float | None) -> Answer:
    """The findings of ``trueup diagnose --json``."""
    named = [
        Named(
            stage=finding["stage"],
            site=finding["module"] if finding["module"] is not None else finding["site"],
            kinds=[kind["name"] for kind in finding["kinds"]],
            headline=finding["headline"],
            axis=finding.get("axis"),
            ranks=finding.get("ranks") or [],
        )
        for finding in document["findings"]
    ]
    verdict = document.get("verdict")
    outcome = document.get("outcome") or (verdict or {}).get("outcome") or ("differ" if named else "agree")
    return Answer(outcome=outcome, named=named, seconds=seconds)
