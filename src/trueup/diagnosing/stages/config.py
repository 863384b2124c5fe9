"""Stage: do the two configurations describe the same training? What differs explains faults that later
stages find; a finding of its own is only what no stage could see act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trueup.checklist.check import Checklist, check, compared
from trueup.checklist.configuration import configured
from trueup.checklist.judging import DemandRow, DemandSide, DemandStatus
from trueup.checklist.readers import read_side
from trueup.checklist.readers.trace import is_trace
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.errors import ConfigError
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason

"""confidence that a difference without effect is a fault: from a run's files, from what its trace stored"""
_COMPARED = (DemandStatus.ALIGNED, DemandStatus.DEFAULT, DemandStatus.DIFFERENT)
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """Both sides of a run's settings, compared."""

    checklist: Checklist
    given: tuple[str, str] | None
    """the files, where a person named them; None: what the traces stored"""

    @property
    def num_compared(self) -> int:
        """Settings both sides tell of."""
        return sum(row.status in _COMPARED for row in self.checklist.rows)


def configurations(
    target: Path,
    reference: Path,
    given: tuple[str, str] | None = None,
    *,
    data: Sequence[str] | None = None,
    inference: Sequence[str] = (),
) -> Configurations | None:
    """The configurations of two runs by the checklist's rules; None where nothing tells of them.

    ``data``: data sets whose ids are held against the special ids, beside those of traces among the sides;
    None looks at no ids. ``inference``: what the target is used for inference with.

    Raises:
        ConfigError: a file given cannot be read, or the two have no setting in common.
    """
    if given is not None:
        found = _compared(*given, data, inference)
        if not Configurations(checklist=found, given=given).num_compared:
            raise ConfigError(f"--config {' '.join(given)}: they have no setting in common")
        return Configurations(checklist=found, given=given)
    if not (is_trace(target) and is_trace(reference)):
        return None
    return Configurations(checklist=_compared(str(target), str(reference), data, inference), given=None)


def _compared(target: str, reference: str, data: Sequence[str] | None, inference: Sequence[str]) -> Checklist:
    if data is not None:
        return check([target], [reference], data=data, inference=inference)
    return compared(configured(read_side([target])), configured(read_side([reference])))


class ConfigStage:
    """The settings of both runs, before anything is computed."""

    stage = Stage.CONFIG
    title = reason(Stages.TITLE, key="config")

    def check(self, context: Context) -> StageOutcome:
        """Every setting that makes another training; never confirmed, since words compute nothing."""
        outcome = partial(StageOutcome, stage=self.stage, title=self.title)
        both = context.configurations
        if both is None or not both.num_compared:
            why = reason(Stages.NO_CONFIGURATION)
            return outcome(status=StageStatus.SKIPPED, conclusion=why)
        rows = [row for row in both.checklist.rows if row.matters]
        grave = [row for row in rows if row.severity == "error"]
        light = [row for row in rows if row.severity != "error"]
        evidence = (
            *map(row_reason, grave),
            *(reason(Stages.MAY_CHANGE_ROUNDING, row_reason(row)) for row in light),
        )
        if not grave:
            conclusion = reason(Stages.CONFIG_ALIGNED, num=both.num_compared)
            return outcome(status=StageStatus.PASSED, conclusion=conclusion, evidence=evidence)
        return outcome(
            status=StageStatus.FAILED,
            conclusion=_headline(grave),
            evidence=evidence,
            findings=(_finding(grave, both.given),),
            details={"differences": [_plain(row) for row in grave], "given": both.given},
        )


# In one piece: one branch a fate of a difference, then what each fate makes of the outcomes.
def settled(outcomes: Sequence[StageOutcome], context: Context) -> tuple[StageOutcome, ...]:
    """The outcomes with the configuration's differences weighed by the stages they act in.

    A difference that acts where a stage failed is evidence there; one that acts only where all stages agree
    had no effect; the others stay findings.
    """
    own = next((o for o in outcomes if o.stage is Stage.CONFIG and o.status is StageStatus.FAILED), None)
    both = context.configurations
    if own is None or both is None:
        return tuple(outcomes)
    rows = [row for row in both.checklist.rows if row.matters and row.severity == "error"]
    others = [o for o in outcomes if o is not own]
    of_calls = context.comparison.verdict.headline.code is VerdictCode.CALLS_WITH_GRADIENTS
    other_steps = any(f.headline.code in _OTHER_STEPS for o in others for f in o.findings)
    # of several models in a step: which of their inputs are a batch is told by what the programs detach
    same_batches = any(o.stage is Stage.DATA and o.status is StageStatus.PASSED for o in others)
    same_batches &= context.microbatches[0] == context.microbatches[1]
    if both.given is None and (of_calls or other_steps or same_batches):
        counted = [row for row in rows if row.key in _OF_A_STEP]
        rows = [row for row in rows if row.key not in _OF_A_STEP]
        if not rows:
            aligned = reason(Stages.CONFIG_ALIGNED, num=both.num_compared - len(counted))
            passed = replace(own, status=StageStatus.PASSED, conclusion=aligned, evidence=(), findings=())
            return tuple(passed if o is own else o for o in outcomes)
    shown: dict[int, list[DemandRow]] = {}
    left, idle = [], []
    for row in rows:
        at = next((i for i, o in enumerate(others) if o.stage in row.acts and _failed(o)), None)
        if at is not None:
            shown.setdefault(at, []).append(row)
        elif _without_effect(row, others):
            idle.append(row)
        else:
            left.append(row)
    for at, found in shown.items():
        others[at] = _with_rows(others[at], found, stored=both.given is None)
    done = iter(others)
    weighed = _weighed(own, left, [r for found in shown.values() for r in found], idle, both.given, others)
    return tuple(weighed if o is own else next(done) for o in outcomes)


_OTHER_STEPS = (Stages.CLEARED_BEFORE_UPDATE, Stages.SUMMED_BEFORE_UPDATE)
"""one run's steps are parts of the other's"""
_OF_A_STEP = ("global_batch_size", "micro_batch_size", "gradient_accumulation")
"""what runs that stored it counted in what they took for a step, or of calls with gradients: no settings
where one run has other steps, or more such calls, or both have the same batches"""


def beside_findings(
    outcomes: Sequence[StageOutcome], findings: Sequence[Finding], context: Context
) -> tuple[StageOutcome, ...]:
    """The outcomes; where the verdict names a setting of the program that is none of those compared, that
    none of them differs is said with it."""
    both = context.configurations
    named = _settings_of(findings[0].headline, *findings[0].evidence) if findings else []
    if both is None or not named:
        return tuple(outcomes)
    conclusion = reason(Stages.CONFIG_ALIGNED_BUT, num=both.num_compared, names=tuple(dict.fromkeys(named)))
    return tuple(
        replace(o, conclusion=conclusion) if o.conclusion.code is Stages.CONFIG_ALIGNED else o
        for o in outcomes
    )


_SETTINGS = (Stages.SETTING_DIFFERS, EvidenceCode.CODE_VALUE_DIFFERS, VerdictCode.OTHER_VALUE_IN_CODE)


def _settings_of(*reasons: Reason) -> list[str]:
    """Names of settings, in reasons and their parts."""
    found = [str(one.place("name")) for one in reasons if one.code in _SETTINGS]
    return [*found, *(name for one in reasons for name in _settings_of(*one.parts))]


def _failed(outcome: StageOutcome) -> bool:
    return outcome.status is StageStatus.FAILED and bool(outcome.findings)


def _without_effect(row: DemandRow, others: Sequence[StageOutcome]) -> bool:
    """Whether every stage it acts in agrees; of the steps to come no stage has seen enough."""
    statuses = [o.status for o in others if o.stage in row.acts]
    seen = bool(statuses) and all(status is StageStatus.PASSED for status in statuses)
    return seen and Stage.LONG_RUN not in row.acts


def _with_rows(outcome: StageOutcome, rows: Sequence[DemandRow], *, stored: bool) -> StageOutcome:
    """The outcome with the settings that act there. The only one, where the runs themselves ``stored`` it, is
    the headline of a finding of which no kind of fault is seen."""
    first, *rest = outcome.findings
    settings = tuple(reason(Stages.ACTS_HERE, row_reason(row)) for row in rows)
    if len(rows) == 1 and stored and first.headline.code is Stages.ORIGIN:
        evidence = (*settings, *first.evidence)
        first = replace(
            first, headline=_headline(rows), evidence=evidence, next_note=reason(Stages.ALIGN_SETTINGS)
        )
        return replace(outcome, conclusion=first.headline, findings=(first, *rest))
    first = replace(first, evidence=(*first.evidence[:1], *settings, *first.evidence[1:]))
    return replace(outcome, findings=(first, *rest))


def _weighed(
    own: StageOutcome,
    left: Sequence[DemandRow],
    shown: Sequence[DemandRow],
    idle: Sequence[DemandRow],
    given: tuple[str, str] | None,
    others: Sequence[StageOutcome],
) -> StageOutcome:
    quiet = tuple(reason(Stages.WITHOUT_EFFECT, row_reason(row)) for row in idle)
    light = tuple(one for one in own.evidence if one.code is Stages.MAY_CHANGE_ROUNDING)
    evidence = (*map(row_reason, (*left, *shown)), *quiet, *light)
    if not left and not shown:
        conclusion = reason(Stages.ALL_WITHOUT_EFFECT, keys=[row.key for row in idle])
        return replace(own, status=StageStatus.PASSED, conclusion=conclusion, evidence=evidence, findings=())
    agree = all(o.status in (StageStatus.PASSED, StageStatus.SKIPPED) for o in others)
    findings = (_finding(left, given, steps_agree=agree),) if left else ()
    return replace(own, conclusion=_headline((*left, *shown)), evidence=evidence, findings=findings)


def _finding(
    rows: Sequence[DemandRow], given: tuple[str, str] | None, *, steps_agree: bool = False
) -> Finding:
    headline = _headline(rows)
    if steps_agree:
        headline = reason(Stages.STEPS_AGREE_BUT, headline)
    advice = next((row for row in rows if row.advice), None)
    return Finding(
        stage=Stage.CONFIG,
        headline=headline,
        module=None,
        site=f"configuration, {_names(rows)}",
        basis=Basis.CONFIGURATION,
        evidence=tuple(map(row_reason, rows)),
        causes=tuple(reason(Stages.RULE_WHY, key=row.key, why=row.why) for row in rows if row.why),
        next=reason(Stages.CHECK_CONFIGS, target=given[0], reference=given[1]) if given else None,
        next_note=reason(Stages.RULE_ADVICE, key=advice.key, advice=advice.advice)
        if advice
        else reason(Stages.ALIGN_SETTINGS),
    )


def _headline(rows: Sequence[DemandRow]) -> Reason:
    if len(rows) > 1:
        return reason(Stages.CONFIGS_DIFFER, num=len(rows), keys=[row.key for row in rows])
    return reason(Stages.CONFIG_DIFFERS, key=rows[0].key, **_values(rows[0]))


def _names(rows: Sequence[DemandRow]) -> str:
    more = len(rows) - _NAMED
    return ", ".join(row.key for row in rows[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def row_reason(row: DemandRow) -> Reason:
    """One row of the checklist, with where each side sets it."""
    facts = {"key": row.key, **_values(row)}
    places = {"target_place": _place(row.target), "reference_place": _place(row.reference)}
    return reason(Stages.CONFIG_ROW, **facts, **places)


def _values(row: DemandRow) -> dict[str, str]:
    """What both sides set, numbers with as many digits as it takes to tell them apart."""
    for spec in ("g", ".17g"):
        shown = {
            side: _value(cell, spec) for side, cell in (("target", row.target), ("reference", row.reference))
        }
        if shown["target"] != shown["reference"]:
            break
    return shown


def _value(cell: DemandSide | None, spec: str) -> str:
    if cell is None or cell.value is None:
        return "nothing"
    return format(cell.value, spec) if isinstance(cell.value, float) else str(cell.value)


def _place(cell: DemandSide | None) -> str:
    if cell is None or not cell.keys:
        return cell.says if cell is not None else ""
    where = cell.places[0].rpartition("/")[2] if cell.places else ""
    return ", ".join(part for part in (cell.keys[0], where) if part)


def _plain(row: DemandRow) -> dict[str, object]:
    return {
        "key": row.key,
        "about": row.about,
        **_values(row),
        "acts": [stage.value for stage in row.acts],
        "sources": list(row.sources),
    }
