"""rules.yaml as values, and the words all rules use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from trueup.diagnosing.evidence import Evidence
from trueup.errors import ConfigError
from trueup.types.finding import Kind, KindClass


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What rules.yaml says of one kind."""

    family: KindClass
    causes: tuple[tuple[str, frozenset[str]], ...]
    """text, and the phases it holds for (none: all)"""
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBook:
    """Content of rules.yaml."""

    kinds: Mapping[str, About]
    factors: tuple[tuple[float, str], ...]
    """value, label"""
    without_effect: frozenset[str]
    layout: frozenset[str]
    casts: frozenset[str]
    random: frozenset[str]
    settings: Mapping[str, str]


@lru_cache(maxsize=1)
def rule_book() -> RuleBook:
    """The rules that come with trueup.

    Raises:
        ConfigError: the file was edited into something else than the schema at its head says.
    """
    import yaml

    source = files("trueup.diagnosing.kinds") / "rules.yaml"
    content = yaml.safe_load(source.read_text(encoding="utf-8"))
    try:
        return RuleBook(
            kinds={name: _about(entry) for name, entry in content["kinds"].items()},
            factors=tuple((float(f["value"]), str(f["label"])) for f in content["factors"]),
            without_effect=frozenset(content["arguments_without_effect"]),
            layout=frozenset(content["layout_functions"]),
            casts=frozenset(content["cast_functions"]),
            random=frozenset(content["random_functions"]),
            settings=dict(content["optimizer_settings"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{source}: {type(error).__name__} at {error}; every kind needs family (model or numerical), "
            "causes and next, every factor a value and a label"
        ) from error


def _about(entry: Mapping[str, Any]) -> About:
    causes = [
        (c, frozenset[str]()) if isinstance(c, str) else (str(c["text"]), frozenset(c.get("when", ())))
        for c in entry["causes"]
    ]
    return About(family=KindClass(entry["family"]), causes=tuple(causes), next=str(entry["next"]))


def named(
    name: str,
    confidence: float,
    sentence: str,
    evidence: Evidence,
    *,
    causes: Sequence[str] = (),
    whole: bool = False,
) -> Kind:
    """A kind as rules.yaml describes it, with this case's sentence.

    ``causes`` stand before the usual ones; ``whole``: what is said does not rest on the part of a large
    tensor that was looked at.
    """
    about = rule_book().kinds[name]
    usual = [text for text, when in about.causes if not when or evidence.origin.phase in when]
    return Kind(
        name=name,
        family=about.family,
        confidence=round(min(max(confidence, 0.0), 1.0), 4),
        sentence=sentence if whole else sentence + evidence.sampled,
        causes=tuple(dict.fromkeys([*causes, *usual])),
        next=about.next,
    )


def subject(evidence: Evidence) -> str:
    """What the origin's tensor is, as the subject of a sentence."""
    phase, slot = evidence.origin.phase, evidence.origin.slot
    if phase == "param":
        return "the parameter"
    if phase == "param_grad":
        words = {
            "local": "the gradient",
            "accumulated": "the accumulated gradient",
            "clipped": "the gradient",
        }
        return words.get(slot, "the gradient")
    if phase == "optimizer":
        return "the updated parameter" if slot == "param" else f"the optimizer's {slot.rpartition('.')[2]}"
    if phase == "loss":
        return "the loss"
    part = slot.partition(".")[0]
    if phase == "backward":
        return f"the gradient of the {part}"
    return f"the {part}"


def number(value: float) -> str:
    """A number to six digits, without a tail of zeros."""
    return f"{value:.6g}"


def percent(share: float) -> str:
    """A share as a person reads it."""
    return f"{100 * share:.3g} %"
