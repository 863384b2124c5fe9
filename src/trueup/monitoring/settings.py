"""What a monitor watches, and when it gives alarm."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trueup.errors import ConfigError

_NO_OTHERS = {"extra": "forbid"}
"""for files: an unknown key is an error"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Thresholds. A rule is raised after so many judged steps in a row, and lowered after ``clear_after``."""

    __pydantic_config__ = _NO_OTHERS

    disabled: tuple[str, ...] = ()
    """names of rules that are not applied: nan overflow spike vanishing exploding frozen all_zero
    replicas_parted no_learning"""
    clear_after: int = 32
    """judged steps without the condition after which a rule may give alarm anew"""
    skipped_steps: int = 4
    """overflow: updates left out in a row by a loss scaler; fewer are its ordinary search for a scale"""
    spike_sigmas: float = 6.0
    """standard deviations of loss and gradient norm above the mean of the window; 0: not applied"""
    spike_window: int = 128
    """steps before, spikes left out; no alarm before 16 of them"""
    spike_multiple: float = 10.0
    """times the largest gradient norm of a weight, or magnitude of an activation, seen before; 0: not
    applied"""
    baseline: int = 32
    """measured steps whose median a gradient norm is compared with, for vanishing and exploding"""
    vanishing_share: float = 1e-3
    vanishing_steps: int = 8
    exploding_multiple: float = 100.0
    exploding_steps: int = 3
    frozen_steps: int = 8
    """updates in a row that leave a weight as it was although the learning rate is not 0"""
    zero_steps: int = 4
    """measured steps in a row in which a gradient or activation is nothing but zeros"""
    no_learning_steps: int = 512
    """steps after which the loss must be lower than at the start"""
    no_learning_share: float = 0.01
    """by this share of itself, mean of the last 64 steps against the first 64"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """Everything a person can choose."""

    __pydantic_config__ = _NO_OTHERS

    every: int = 1
    """measure weights, gradients and activations at every n-th step; loss and other scalars at every one"""
    gradients: bool = True
    local_gradients: bool | None = None
    """each weight's gradient before reduction too; None: where several processes train"""
    weights: bool = True
    updates: bool = True
    moments_every: int = 10
    """Adam's moments at every so many measured steps, because they move slowly; 0: never"""
    modules: tuple[str, ...] = ()
    """modules whose outputs are measured: parts of names, class names, or patterns with ``*``"""
    routers: bool = True
    """load of every router of a mixture of experts"""
    capture_steps: int = 1
    """steps captured in full after an alarm; 0: none"""
    max_captures: int = 3
    """alarms of a run that cause a capture"""
    program: tuple[str, ...] = ()
    """the training command, for the line that runs a step again; empty: this process's own"""
    command: str | None = None
    """shell command run at an alarm, not waited for; TRUEUP_EVENT holds the path of its file"""
    rules: RuleSettings = field(default_factory=RuleSettings)

    def __post_init__(self) -> None:
        _check_number(self.every, "every", 1)
        _check_number(self.moments_every, "moments_every", 0)
        _check_number(self.capture_steps, "capture_steps", 0)
        _check_number(self.max_captures, "max_captures", 0)
        unknown = set(self.rules.disabled) - set(RULES)
        if unknown:
            raise ConfigError(f"monitor: no rule {sorted(unknown)[0]!r}; there is {', '.join(RULES)}")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> MonitorSettings:
        """Inverse of ``to_json``."""
        rules = RuleSettings(**_with_tuples(plain.get("rules") or {}))
        return cls(**_with_tuples({**plain, "rules": rules}))


RULES = (
    "nan",
    "overflow",
    "spike",
    "vanishing",
    "exploding",
    "frozen",
    "all_zero",
    "replicas_parted",
    "no_learning",
)


def _with_tuples(plain: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists alone."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _check_number(value: int, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"monitor: {name} is {value!r}; a whole number from {least} is wanted")
