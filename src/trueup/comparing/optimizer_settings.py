"""What both programs declare of their optimizers, parameter by parameter.

A setting of the update rule that differs makes two different trainings, also where the captured weights
round the difference away (docs/decisions/0025-declared-optimizer-settings.md): compare and diagnose share
this rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trueup.comparing.thresholds import ROUNDED_SETTING

Setting = object
Settings = Mapping[str, Setting]
"""setting -> value of one parameter's group; ``betas`` are ``beta1`` and ``beta2``"""

UPDATE_RULE = (
    "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening", "nesterov", "amsgrad", "maximize",
    "alpha", "centered", "rho", "lambd", "lr_decay",
)  # fmt: skip
"""Settings that enter the update. Not the learning rate: a schedule moves it, and each step records it."""
_RULES = (
    ("Adam", "AdamW", "FusedAdam"),
    *((name,) for name in ("NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Adafactor", "SGD", "ASGD")),
    *((name,) for name in ("RMSprop", "Rprop", "LBFGS", "Muon", "Lion", "LAMB", "Lamb")),
)
"""classes of optimizers by what they do"""
_RATES = ("lr", "class")
NO_EFFECT = ("foreach", "fused", "capturable", "differentiable", "initial_lr", "decoupled_weight_decay")
"""How an update is computed, not what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingGap:
    """One setting that both programs declare, with different values."""

    key: str
    target: Setting
    reference: Setting

    @property
    def target_text(self) -> str:
        """The target's value to six digits."""
        return _text(self.target)

    @property
    def reference_text(self) -> str:
        """The reference's."""
        return _text(self.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGap:
    """The same difference, with every parameter that has it."""

    gap: SettingGap
    parameters: tuple[str, ...]
    """of the target"""

    @property
    def values(self) -> dict[str, str]:
        """The setting's name and its two values, as a reason states them."""
        texts = {"target": self.gap.target_text, "reference": self.gap.reference_text}
        return {"name": self.gap.key, **texts}


def declared(facts: Mapping[str, object]) -> dict[str, dict[str, Setting]]:
    """What the optimizer group of each parameter declares, with the optimizer's class under ``class``.

    Args:
        facts: of one rank, as capture wrote them (docs/trace-format.md: ``optimizers``, ``parameters``).
    """
    optimizers, parameters = facts.get("optimizers") or [], facts.get("parameters") or []
    assert isinstance(optimizers, Sequence)
    assert isinstance(parameters, Sequence)
    groups = {
        (o, g): {"class": optimizer["class"], **group}
        for o, optimizer in enumerate(optimizers)
        for g, group in enumerate(optimizer["groups"])
    }
    places = {entry["fqn"]: tuple(entry.get("optimizer_group") or ()) for entry in parameters}
    settings = {fqn: dict(groups[place]) for fqn, place in places.items() if place in groups}
    unnamed = {place: group for place, group in groups.items() if place not in places.values()}
    settings |= _of_unnamed(unnamed)
    for of in settings.values():
        of.pop("num_params", None)
    return settings


def added_to_sizes(settings: Mapping[str, Mapping[str, Setting]]) -> dict[str, float]:
    """Parameter -> what its optimizer adds to the size of the gradients that it divides by: its ``eps``; 0 of
    one that averages gradients and declares none, as it then takes signs (Lion). Of others none is known."""
    found = {}
    for name, group in settings.items():
        eps = group.get("eps", 0.0 if "betas" in group else None)
        if isinstance(eps, (int, float)) and not isinstance(eps, bool) and eps >= 0:
            found[name] = float(eps)
    return found


def _of_unnamed(groups: Mapping[tuple[int, int], Settings]) -> dict[str, dict[str, Setting]]:
    """Of what optimizers update in place of the model's parameters (ZeRO's flat partitions), by the names
    that capture gives it; none of a name that two optimizers of one class share."""
    found: dict[str, list[Settings]] = {}
    for (_, number), group in groups.items():
        num = group.get("num_params")
        for at in range(num if isinstance(num, int) else 0):
            found.setdefault(f"{group['class']}.group{number}.{at}", []).append(group)
    return {name: dict(of[0]) for name, of in found.items() if len(of) == 1}


def setting_gaps(target: Settings, reference: Settings) -> Iterator[SettingGap]:
    """Settings that both of two parameters' groups declare, and that differ. Two spellings of one number,
    one of them in float32, are equal."""
    first, second = flat(target), flat(reference)
    for key, value in first.items():
        if key in second and key not in NO_EFFECT and not _same(value, second[key]):
            yield SettingGap(key=key, target=value, reference=second[key])


def update_rule_gaps(
    target: Mapping[str, Settings], reference: Mapping[str, Settings], *, others: bool = False
) -> tuple[SharedGap, ...]:
    """Differences of the update rule between two runs, each with its parameters; ``others``: with settings of
    classes that are not known here, of which one may enter the update.

    Parameters pair by name. Of two implementations, whose names differ, a setting is compared where each
    side has one value of it for all parameters.
    """
    names = [name for name in target if name in reference]
    shared: dict[SettingGap, list[str]] = {}
    if names:
        for name in names:
            for gap in setting_gaps(target[name], reference[name]):
                shared.setdefault(gap, []).append(name)
    elif target and reference:
        for gap in setting_gaps(_of_all(target), _of_all(reference)):
            shared[gap] = list(target)
    gaps = (SharedGap(gap=gap, parameters=tuple(of)) for gap, of in shared.items())
    return tuple(one for one in gaps if _enters_update(one.gap) or (others and one.gap.key not in _RATES))


def are_other_rules(target: Setting, reference: Setting) -> bool:
    """Whether both classes are known by name, and their update rules are not one rule with other settings."""
    rules = {name: rule for rule, names in enumerate(_RULES) for name in names}
    return target in rules and reference in rules and rules[str(target)] != rules[str(reference)]


def _enters_update(gap: SettingGap) -> bool:
    return gap.key in UPDATE_RULE or (gap.key == "class" and are_other_rules(gap.target, gap.reference))


def _of_all(settings: Mapping[str, Settings]) -> Settings:
    """The settings that have one value for all parameters."""
    every = [flat(of) for of in settings.values()]
    return {k: v for k, v in every[0].items() if all(k in one and _same(one[k], v) for one in every)}


def _text(value: Setting) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _same(target: Setting, reference: Setting) -> bool:
    if isinstance(target, float) and isinstance(reference, float):
        return math.isclose(target, reference, rel_tol=ROUNDED_SETTING)
    return bool(target == reference)


def flat(settings: Settings) -> dict[str, Setting]:
    flat: dict[str, Setting] = {}
    for key, value in settings.items():
        if not _is_setting(value):
            continue
        if key == "betas" and isinstance(value, (list, tuple)) and len(value) == 2:
            flat |= {"beta1": value[0], "beta2": value[1]}
        elif not _are_names(value):
            flat[key] = tuple(value) if isinstance(value, list) else value
    if not flat.get("momentum", True):  # without momentum these two have no effect
        flat.pop("nesterov", None), flat.pop("dampening", None)
    return flat


def _is_setting(value: object) -> bool:
    """Whether it is plain, or a list of plain values: what capture writes of a group."""
    return all(not isinstance(one, (list, tuple, dict)) for one in _items(value))


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _are_names(value: object) -> bool:
    """Whether it lists the group's parameters: which those are depends on the layout."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, str) for one in value)
