"""Keyword arguments of ``Monitor``, for editors and type checkers.

Written by ``python docs/make_keywords.py``.
"""

from __future__ import annotations

from typing import TypedDict

from trueup.monitoring.settings import RuleSettings


class RuleKeywords(TypedDict, total=False):
    """Thresholds of ``RuleSettings`` by name: ``Monitor(rules={...})``."""

    disabled: list[str] | tuple[str, ...] | set[str] | frozenset[str]
    """Names of rules that are not applied, of: nan, overflow, spike, vanishing, exploding, frozen,
    all_zero, replicas_parted, no_learning, mismatch."""

    clear_after: int
    """Measured steps without the condition before a rule may raise again. Unit: steps. Default: 32."""

    skipped_steps: int
    """overflow: consecutive updates skipped by a loss scaler; fewer are its ordinary search for a scale.
    Unit: steps. Default: 4."""

    spike_sigmas: float
    """spike: distance of loss and gradient norm above the mean of the window; 0: not applied. Unit:
    standard deviations. Default: 6."""

    spike_window: int
    """spike: preceding steps, without spikes; no alarm before 16 of them. Unit: steps. Default: 128."""

    spike_multiple: float
    """spike: multiple of the largest gradient norm of a weight, or magnitude of an activation, seen so
    far; 0: not applied. Unit: ratio. Default: 10."""

    baseline: int
    """vanishing, exploding: measured steps whose median a gradient norm is compared with. Unit: steps.
    Default: 32."""

    vanishing_share: float
    """vanishing: share of the baseline. Unit: ratio. Default: 0.001."""

    vanishing_steps: int
    """vanishing: consecutive measured steps. Unit: steps. Default: 8."""

    exploding_multiple: float
    """exploding: multiple of the baseline. Unit: ratio. Default: 100."""

    exploding_steps: int
    """exploding: consecutive measured steps. Unit: steps. Default: 3."""

    frozen_steps: int
    """frozen: consecutive updates that leave a weight unchanged although the learning rate is not 0.
    Unit: steps. Default: 8."""

    zero_steps: int
    """all_zero: consecutive measured steps in which a gradient or activation is all zeros. Unit: steps.
    Default: 4."""

    no_learning_steps: int
    """no_learning: steps after which the loss must be below its start. Unit: steps. Default: 512."""

    no_learning_share: float
    """no_learning: by this share, mean of the last 64 steps against the first 64. Unit: ratio. Default:
    0.01."""

    mismatch_ess: float
    """mismatch: least effective sample size of the tokens' importance ratios, trainer against rollout; 0:
    not applied. Unit: share of the tokens. Default: 0.9."""

    mismatch_multiple: float
    """mismatch: multiple of the median k3 of the first steps; 0: not applied. Unit: ratio. Default:
    10."""

    mismatch_baseline: int
    """mismatch: first steps whose median k3 is compared with. Unit: steps. Default: 8."""

    mismatch_steps: int
    """mismatch: consecutive steps beyond a bound. Unit: steps. Default: 3."""


class MonitorKeywords(TypedDict, total=False):
    """Settings of ``MonitorSettings`` by name."""

    every: int
    """Measure weights, gradients and activations at every Nth step; scalars at every step. A number from
    1. Unit: steps. Default: 1."""

    gradients: bool
    """Measure the gradient of every weight. Default: on."""

    local_gradients: bool | None
    """Measure the gradient of every weight before reduction as well. Default: where several processes
    train."""

    weights: bool
    """Measure every weight. Default: on."""

    updates: bool
    """Measure the update of every weight. Default: on."""

    moments_every: int
    """Measure Adam's moments at every Nth measured step, because they change slowly; 0: never. A number
    from 0. Unit: measured steps. Default: 10."""

    modules: list[str] | tuple[str, ...] | set[str] | frozenset[str]
    """Measure the outputs of these modules as well: parts of names, class names, or patterns with *."""

    routers: bool
    """Measure the load of every router of a mixture of experts. Default: on."""

    capture_steps: int
    """Steps captured in full after an alarm; 0: none. A number from 0. Unit: steps. Default: 1."""

    max_captures: int
    """Alarms of a run that cause a capture. A number from 0. Default: 3."""

    program: list[str] | tuple[str, ...] | set[str] | frozenset[str]
    """The training command, for the command that runs a step again. Default: the command of this
    process."""

    command: str | None
    """Shell command to run at every alarm, in the background; TRUEUP_EVENT is the path of its file."""

    rules: RuleSettings | RuleKeywords
    """Thresholds of the rules. Default: as below."""
