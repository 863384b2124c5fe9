"""All checks of all common steps of two runs, in the order of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trueup.diagnosing.rl import advantage_checks, batch_checks, loss_checks, model_checks
from trueup.diagnosing.rl.steps import QuantityCheck, RLStepPair
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.store.rollouts import read_rollouts
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome

CHECKS: tuple[Callable[[RLStepPair], Iterator[QuantityCheck]], ...] = (
    batch_checks.prompts,
    model_checks.rollout,
    batch_checks.rewards,
    batch_checks.masks,
    model_checks.policy,
    model_checks.reference_policy,
    model_checks.values,
    batch_checks.kl_in_reward,
    advantage_checks.advantages,
    advantage_checks.returns,
    loss_checks.given,
    loss_checks.weights,
    loss_checks.entropies,
    loss_checks.losses,
    loss_checks.updates,
)
RL_STAGES = (
    Stage.PROMPTS,
    Stage.ROLLOUT,
    Stage.REWARDS,
    Stage.OLD_LOG_PROBS,
    Stage.REFERENCE_LOG_PROBS,
    Stage.VALUES,
    Stage.ADVANTAGES,
    Stage.POLICY_LOSS,
    Stage.KL_TERM,
    Stage.VALUE_LOSS,
    Stage.UPDATE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RLComparison:
    """What was seen of every quantity in every common step."""

    checks: tuple[QuantityCheck, ...]

    @property
    def failed(self) -> tuple[QuantityCheck, ...]:
        """Faults, the verdict first: the first with confirmation, else the first."""
        failed = [one for one in self.checks if one.status is StageStatus.FAILED]
        step = min((one.step for one in failed), default=0)
        failed = [one for one in failed if one.step == step]
        first = next((one for one in failed if one.confirmed), failed[0] if failed else None)
        return () if first is None else (first, *(one for one in failed if one is not first))

    @property
    def same_sequences(self) -> bool:
        """Whether both runs train on the same tokens in every step."""
        tokens = [one for one in self.checks if one.quantity in ("prompts", "responses")]
        return bool(tokens) and all(one.passed for one in tokens)

    @property
    def generated_apart(self) -> Reason | None:
        """How the sequences differ where the prompts do not: the runs themselves generated the difference."""
        prompts = [one for one in self.checks if one.quantity == "prompts"]
        apart = [one for one in self.checks if one.quantity == "responses" and not one.passed]
        if not prompts or not apart or not all(one.passed for one in prompts):
            return None
        return apart[0].conclusion

    @property
    def headline(self) -> Reason:
        """What is concluded of all of it."""
        if self.failed:
            return self.failed[0].conclusion
        open_checks = [one for one in self.checks if not one.passed]
        if open_checks:
            return open_checks[0].conclusion
        steps = {one.step for one in self.checks}
        return reason(RLCode.AGREES, steps=len(steps), quantities=len({one.quantity for one in self.checks}))

    @property
    def outcome(self) -> Outcome:
        """Differ, agree, or undecided where some quantity is."""
        statuses = {one.status for one in self.checks}
        if StageStatus.FAILED in statuses:
            return Outcome.DIFFER
        if not self.checks or StageStatus.UNDECIDED in statuses or StageStatus.CONSEQUENCE in statuses:
            return Outcome.UNDECIDED
        return Outcome.AGREE


def compare_rollouts(target: Path, reference: Path) -> RLComparison | None:
    """Both runs' RL records compared; None where a run has none, or no step is common.

    Raises:
        TraceError: a record cannot be read.
    """
    sides = read_rollouts(target), read_rollouts(reference)
    found: list[QuantityCheck] = []
    for step in sorted(set(sides[0]) & set(sides[1])):
        pair = RLStepPair(
            step=step,
            target=sides[0][step],
            reference=sides[1][step],
            before=tuple(found),
            earlier=tuple(one for number, one in sides[1].items() if number < step),
        )
        for checks in CHECKS:
            for one in checks(pair):
                if one not in pair.found:
                    pair.found.append(one)
        found += pair.found
    return RLComparison(checks=tuple(found)) if found else None
