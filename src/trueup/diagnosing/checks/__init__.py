"""Checks of one run that need no reference: what must be true of any training."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.diagnosing.checks import (
    finite,
    grad_norm,
    gradients,
    labels,
    master_weights,
    own_batches,
    range,
    repeatable,
    replicas,
    streams,
    updates,
)
from trueup.diagnosing.checks.outcome import Check, CheckedSite, CheckOutcome, CheckVerdict, Judge
from trueup.diagnosing.checks.run import CheckedRun
from trueup.errors import ConfigError
from trueup.store import TraceSource
from trueup.types.codes import CheckCode
from trueup.types.reason import reason

__all__ = ["CHECKS", "Check", "CheckOutcome", "CheckVerdict", "CheckedSite", "check_run", "exit_code"]

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        labels,
        finite,
        range,
        gradients,
        grad_norm,
        updates,
        master_weights,
        repeatable,
        streams,
        own_batches,
        replicas,
    )
)
"""in the order a step runs"""


def check_run(
    source: TraceSource, *, again: TraceSource | None = None, only: Sequence[str] = (), status: int = 0
) -> list[CheckOutcome]:
    """Every check's outcome for a trace; ``again`` is a trace of the same program run once more. A program
    that ended with an exit ``status`` other than 0 has failed, whatever else holds.

    Raises:
        ConfigError: ``only`` names a check that there is not.
        TraceError: a step cannot be read.

    Example:
        >>> check_run(open_trace(Path("run")))[0].verdict        # doctest: +SKIP
        <Verdict.PASSED: 'passed'>
    """
    known = {check.name for check in CHECKS}
    for name in only:
        if name not in known:
            names = ", ".join(check.name for check in CHECKS)
            raise ConfigError(f"--only: expected one of: {names} (got {name!r})")
    run = CheckedRun(source, again)
    outcomes = [check.check(run) for check in CHECKS if not only or check.name in only]
    return outcomes if status == 0 else [_stopped(run, status), *outcomes]


def _stopped(run: CheckedRun, status: int) -> CheckOutcome:
    judge = Judge("finished", "The program runs without an error")
    return judge.failed(reason(CheckCode.STOPPED, status=status, step=max(run.steps, default=None)))


def exit_code(outcomes: Sequence[CheckOutcome]) -> int:
    """1 where a check failed, else 2 where one is undecided or none had anything to check, else 0."""
    verdicts = {outcome.verdict for outcome in outcomes}
    if CheckVerdict.FAILED in verdicts:
        return 1
    return 2 if CheckVerdict.UNDECIDED in verdicts or CheckVerdict.PASSED not in verdicts else 0
