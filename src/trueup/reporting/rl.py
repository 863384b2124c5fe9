"""The report of two RL runs compared quantity by quantity, and its JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trueup.diagnosing.rl.steps import QuantityCheck
from trueup.diagnosing.rl.walk import RL_STAGES, RLComparison
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.reporting.diagnosis.words import STAGES
from trueup.reporting.document import (
    OUTCOMES,
    Column,
    Document,
    Mark,
    On,
    Row,
    Section,
    Table,
    Tone,
    fact,
    facts,
    reason_text,
)
from trueup.reporting.formatting import count, plain
from trueup.types.reason import Json
from trueup.wording import advice, headline, text
from trueup.wording.rl import QUANTITIES

FILES = {"json": "rl.json", "html": "rl.html"}
_MARKS = {
    StageStatus.PASSED: Mark("=", "agrees", Tone.GOOD),
    StageStatus.FAILED: Mark("≠", "differs", Tone.BAD),
    StageStatus.CONSEQUENCE: Mark("→", "follows", Tone.FOLLOWS),
    StageStatus.UNDECIDED: Mark("?", "undecided", Tone.WARN),
    StageStatus.SKIPPED: Mark("·", "not recorded", Tone.QUIET),
}
_VERSION = 1


def rl_report(comparison: RLComparison) -> Document:
    """Every quantity in the order of the pipeline, step by step."""
    failed = comparison.failed
    asked = failed or [one for one in comparison.checks if not one.passed][:1]
    return Document(
        title="Reinforcement learning, role by role",
        mark=OUTCOMES[comparison.outcome],
        headline=plain(headline(comparison.headline)),
        blocks=(
            facts(
                [
                    fact("evidence", *(reason_text(r) for one in failed[:1] for r in one.evidence)),
                    fact("next step", *filter(None, (advice(one.conclusion) for one in asked))),
                ]
            ),
            _step(comparison),
            Section(
                title="Pipeline",
                key="pipeline",
                nav="Pipeline",
                blocks=(_table(_rows(comparison.checks)),),
                on=On.FILES,
            ),
        ),
    )


def _step(comparison: RLComparison) -> Section:
    """On a screen: the first step that does not agree, or the first."""
    steps = sorted({one.step for one in comparison.checks})
    first = min((one.step for one in comparison.checks if not one.passed), default=steps[0])
    shown = [one for one in comparison.checks if one.step == first]
    note = f"{count(len(steps), 'step')} compared" if len(steps) > 1 else ""
    return Section(title=f"Step {first}", blocks=(_table(_rows(shown)),), note=note, on=On.SCREEN)


def _table(rows: Iterator[Row]) -> Table:
    columns = (
        Column(title="step", fit=True, words=True),
        Column(title="stage", fit=True, words=True),
        Column(title="quantity", fit=True, words=True),
        Column(title="role", fit=True, words=True),
        Column(title="status", words=True),
        Column(title="what was seen", least=100),
    )
    return Table(columns=columns, rows=tuple(rows))


def _rows(checks: Sequence[QuantityCheck]) -> Iterator[Row]:
    order = {stage: at for at, stage in enumerate(RL_STAGES)}
    for one in sorted(checks, key=lambda one: (one.step, order[one.stage])):
        mark = _MARKS[one.status]
        what = QUANTITIES.get(one.quantity, one.quantity).removeprefix("the ")
        cells = (str(one.step), STAGES[one.stage], what, one.role, mark.words, plain(text(one.conclusion)))
        yield Row(cells=cells, mark=mark, loud=one.status is StageStatus.FAILED)


def rl_json(comparison: RLComparison) -> dict[str, Json]:
    """Plain values: the verdict and every check."""
    return {
        "schema_version": _VERSION,
        "outcome": comparison.outcome.value,
        "exit_code": comparison.outcome.exit_code,
        "headline": text(comparison.headline),
        "headline_reason": comparison.headline.to_json(),
        "checks": [_check(one) for one in comparison.checks],
    }


def _check(check: QuantityCheck) -> Json:
    return {
        "step": check.step,
        "stage": check.stage.value,
        "quantity": check.quantity,
        "role": check.role,
        "status": check.status.value,
        "confirmed": check.confirmed,
        "said": text(check.conclusion),
        "reason": check.conclusion.to_json(),
        "evidence": [one.to_json() for one in check.evidence],
    }
