"""What a monitor measures, and when it raises an alarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from trueup.types.option import Option, check_options, expected
from trueup.types.plain import fields_from_json, fields_to_json

PANEL = "Monitor the run while it trains"
_command_line = partial(Option, panel=PANEL)
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
    "mismatch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Thresholds. A rule is raised after so many consecutive measured steps, and cleared after
    ``clear_after``.

    Raises:
        ConfigError: ``disabled`` names no rule.
    """

    disabled: Annotated[
        tuple[str, ...], Option(f"Names of rules that are not applied, of: {', '.join(RULES)}.")
    ] = ()
    clear_after: Annotated[
        int, Option("Measured steps without the condition before a rule may raise again.", unit="steps")
    ] = 32
    skipped_steps: Annotated[
        int,
        Option(
            "overflow: consecutive updates skipped by a loss scaler; fewer are its ordinary search for a "
            "scale.",
            unit="steps",
        ),
    ] = 4
    spike_sigmas: Annotated[
        float,
        Option(
            "spike: distance of loss and gradient norm above the mean of the window; 0: not applied.",
            unit="standard deviations",
        ),
    ] = 6.0
    spike_window: Annotated[
        int, Option("spike: preceding steps, without spikes; no alarm before 16 of them.", unit="steps")
    ] = 128
    spike_multiple: Annotated[
        float,
        Option(
            "spike: multiple of the largest gradient norm of a weight, or magnitude of an activation, "
            "seen so far; 0: not applied.",
            unit="ratio",
        ),
    ] = 10.0
    baseline: Annotated[
        int,
        Option(
            "vanishing, exploding: measured steps whose median a gradient norm is compared with.",
            unit="steps",
        ),
    ] = 32
    vanishing_share: Annotated[float, Option("vanishing: share of the baseline.", unit="ratio")] = 1e-3
    vanishing_steps: Annotated[int, Option("vanishing: consecutive measured steps.", unit="steps")] = 8
    exploding_multiple: Annotated[float, Option("exploding: multiple of the baseline.", unit="ratio")] = 100.0
    exploding_steps: Annotated[int, Option("exploding: consecutive measured steps.", unit="steps")] = 3
    frozen_steps: Annotated[
        int,
        Option(
            "frozen: consecutive updates that leave a weight unchanged although the learning rate is not 0.",
            unit="steps",
        ),
    ] = 8
    zero_steps: Annotated[
        int,
        Option(
            "all_zero: consecutive measured steps in which a gradient or activation is all zeros.",
            unit="steps",
        ),
    ] = 4
    no_learning_steps: Annotated[
        int, Option("no_learning: steps after which the loss must be below its start.", unit="steps")
    ] = 512
    no_learning_share: Annotated[
        float,
        Option("no_learning: by this share, mean of the last 64 steps against the first 64.", unit="ratio"),
    ] = 0.01

    mismatch_ess: Annotated[
        float,
        Option(
            "mismatch: least effective sample size of the tokens' importance ratios, trainer against "
            "rollout; 0: not applied.",
            unit="share of the tokens",
        ),
    ] = 0.9
    mismatch_multiple: Annotated[
        float,
        Option(
            "mismatch: multiple of the median k3 of the first steps; 0: not applied.",
            unit="ratio",
        ),
    ] = 10.0
    mismatch_baseline: Annotated[
        int, Option("mismatch: first steps whose median k3 is compared with.", unit="steps")
    ] = 8
    mismatch_steps: Annotated[int, Option("mismatch: consecutive steps beyond a bound.", unit="steps")] = 3

    def __post_init__(self) -> None:
        for name in self.disabled:
            if name not in RULES:
                raise expected("monitor: rules.disabled", f"one of: {', '.join(RULES)}", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """Everything a person can choose.

    Raises:
        ConfigError: a number out of bounds.
    """

    every: Annotated[
        int,
        _command_line(
            "Measure weights, gradients and activations at every Nth step; scalars at every step.",
            "--monitor-every",
            unit="steps",
            least=1,
        ),
    ] = 1
    gradients: Annotated[bool, Option("Measure the gradient of every weight.")] = True
    local_gradients: Annotated[
        bool | None,
        Option(
            "Measure the gradient of every weight before reduction as well.",
            default="where several processes train",
        ),
    ] = None
    weights: Annotated[bool, Option("Measure every weight.")] = True
    updates: Annotated[bool, Option("Measure the update of every weight.")] = True
    moments_every: Annotated[
        int,
        Option(
            "Measure Adam's moments at every Nth measured step, because they change slowly; 0: never.",
            unit="measured steps",
            least=0,
        ),
    ] = 10
    modules: Annotated[
        tuple[str, ...],
        _command_line(
            "Measure the outputs of these modules as well: parts of names, class names, or patterns with *.",
            "--monitor-modules NAMES",
            commas=True,
        ),
    ] = ()
    routers: Annotated[bool, Option("Measure the load of every router of a mixture of experts.")] = True
    capture_steps: Annotated[
        int, Option("Steps captured in full after an alarm; 0: none.", unit="steps", least=0)
    ] = 1
    max_captures: Annotated[int, Option("Alarms of a run that cause a capture.", least=0)] = 3
    program: Annotated[
        tuple[str, ...],
        Option(
            "The training command, for the command that runs a step again.",
            default="the command of this process",
        ),
    ] = ()
    command: Annotated[
        str | None,
        _command_line(
            "Shell command to run at every alarm, in the background; TRUEUP_EVENT is the path of its file.",
            '--on-alarm "COMMAND"',
        ),
    ] = None
    rules: Annotated[RuleSettings, Option("Thresholds of the rules.", default="as below")] = field(
        default_factory=RuleSettings
    )

    def __post_init__(self) -> None:
        check_options(self, "monitor: ")

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return fields_to_json(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, object], source: str = "monitor") -> MonitorSettings:
        """Inverse of ``to_json``; checks names, types and bounds.

        Raises:
            ConfigError: an unknown setting, or a wrong value.
        """
        return fields_from_json(cls, plain, source=source)
