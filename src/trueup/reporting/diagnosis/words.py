"""What a finding is called and where it is, in words."""

from __future__ import annotations

from trueup.reporting.document import Source
from trueup.reporting.formatting import short_frame
from trueup.types.finding import Basis, Finding, KindClass, Stage

STAGES = {
    Stage.CONFIG: "Configuration",
    Stage.DATA: "Data",
    Stage.WEIGHTS: "Initial weights",
    Stage.FORWARD: "Forward, loss",
    Stage.BACKWARD: "Backward",
    Stage.REDUCTION: "Reduction",
    Stage.OPTIMIZER: "Optimizer",
    Stage.LOSS: "Next loss",
    Stage.RESUME: "Resume",
    Stage.LONG_RUN: "Long run",
    Stage.PROMPTS: "Prompts",
    Stage.ROLLOUT: "Rollout",
    Stage.REWARDS: "Rewards",
    Stage.OLD_LOG_PROBS: "Old log-probs",
    Stage.REFERENCE_LOG_PROBS: "Reference log-probs",
    Stage.VALUES: "Values",
    Stage.ADVANTAGES: "Advantages",
    Stage.POLICY_LOSS: "Policy loss",
    Stage.KL_TERM: "KL term",
    Stage.VALUE_LOSS: "Value loss",
    Stage.UPDATE: "Update",
}
FAMILIES = {
    KindClass.NUMERICAL: "numerical: word length, order of operations, dtype",
    KindClass.MODEL: "model: data, settings, structure, use of the framework",
}
BASES = {
    Basis.RECORDED: "recorded by both runs",
    Basis.REPLAY: "confirmed by replay",
    Basis.FITTED: "fitted to what both runs recorded",
    Basis.EQUAL_INPUTS: "from the traces: its inputs agree",
    Basis.NOISE: "from the traces, against measured noise",
    Basis.BOUND: "from the traces alone",
    Basis.CURVES: "from the loss curves",
    Basis.CONFIGURATION: "from the configurations alone",
}
_WAYS = {
    Stage.CONFIG: "The settings differ; the captured steps show no other fault.",
    Stage.LONG_RUN: "The captured steps agree, forward and backward; the runs diverge later.",
    Stage.DATA: "The error enters with the batch and reaches everything computed from it.",
    Stage.WEIGHTS: "The error is in the initial weights and reaches everything computed with them.",
    Stage.REDUCTION: "Forward and backward agree; the error is introduced between gradients and optimizer.",
    Stage.OPTIMIZER: "Everything before the update agrees; the error is introduced by the update.",
    Stage.RESUME: "The optimizer states differ; the error shows after the first update.",
    Stage.BACKWARD: "The forward pass agrees; the error is introduced in the backward pass.",
}
_FORWARD = "The error is introduced in the forward pass and reaches what is computed from there."
_ONE_GRADIENT = "Forward and backward agree, but for the gradient of one weight and that weight's update."
_NO_FINDING = "Every part of the model on both sides, forward to the loss and back."


def way(finding: Finding | None) -> str:
    """How the error travels, in one sentence."""
    if finding is None:
        return _NO_FINDING
    if finding.stage is Stage.BACKWARD and finding.phase == "param_grad":
        return f"{_ONE_GRADIENT} Numbers mark the findings."
    return f"{_WAYS.get(finding.stage, _FORWARD)} Numbers mark the findings."


def coordinates(finding: Finding) -> str:
    """Step, ranks and phase."""
    parts = [
        "" if finding.step is None else f"step {finding.step}",
        _processes(finding),
        (finding.phase or "").replace("_", " "),
    ]
    return " · ".join(part for part in parts if part)


def _processes(finding: Finding) -> str:
    """Which ranks it is about: only some, all along an axis, else where it was first seen."""
    if finding.ranks:
        noun = "rank" if len(finding.ranks) == 1 else "ranks"
        axis = f" ({finding.axis})" if finding.axis else ""
        return f"{noun} {', '.join(map(str, finding.ranks))} only{axis}"
    if finding.axis:
        return f"all ranks along {finding.axis}"
    return "" if finding.rank is None else f"rank {finding.rank}"


def sources(finding: Finding) -> tuple[Source, ...]:
    """Lines of code of both sides, where known."""
    reference = finding.origin.reference_source if finding.origin else None
    frames = (("target", finding.source), ("reference", reference))
    return tuple(Source(side, *short_frame(frame)) for side, frame in frames if frame)
