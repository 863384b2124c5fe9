"""Downstream tasks: the last part of the guide, from two evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trueup.accepting.evaluation import Evaluation, read_evaluation
from trueup.accepting.item import Item, ProcedurePart, State
from trueup.accepting.scores import TOGETHER_Z, Compared, Scores, compare_evaluations
from trueup.errors import ConfigError
from trueup.types.codes import AcceptCode as Code
from trueup.types.reason import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Downstream:
    """Two evaluations and what their scores say."""

    target: Evaluation
    reference: Evaluation
    scores: Scores


def downstream(files: tuple[Path, Path] | None) -> Downstream | None:
    """The evaluations, compared; None where there are none.

    Raises:
        ConfigError: a file that is none, or the same one twice.
        NothingCompared: no score is in both.
    """
    if files is None:
        return None
    target, reference = (read_evaluation(path) for path in files)
    if target.path.resolve() == reference.path.resolve():
        raise ConfigError(f"--eval {files[0]} {files[1]}: both are the same file")
    return Downstream(target=target, reference=reference, scores=compare_evaluations(target, reference))


def downstream_items(found: Downstream | None, *, wanted: bool) -> list[Item]:
    """One item a score; ``wanted``: a late gap of the loss leaves the decision to these tasks."""
    if found is None:
        return [
            Item(
                key="downstream",
                part=ProcedurePart.DOWNSTREAM,
                title=reason(Code.TITLE, key="downstream"),
                state=State.NOT_SHOWN,
                binding=wanted,
                measured=reason(Code.NO_EVALUATION),
                threshold=reason(Code.SCORE_LIMIT, z=None),
                origin=reason(Code.DOWNSTREAM_RULE),
                evidence=(reason(Code.LATE_GAP),) if wanted else (),
                how=reason(Code.GIVE_EVALUATIONS),
            )
        ]
    scores = found.scores
    items = [_item(row, scores.limit_z, wanted=wanted) for row in scores.rows]
    return items if scores.together is None else [_item(scores.together, TOGETHER_Z, wanted=wanted), *items]


def _item(row: Compared, limit: float, *, wanted: bool) -> Item:
    return Item(
        key=f"eval:{row.task}:{row.metric}",
        part=ProcedurePart.DOWNSTREAM,
        title=(
            reason(Code.SCORE, task=row.task, metric=row.metric)
            if row.num_tasks is None
            else reason(Code.ALL_SCORES, num=row.num_tasks)
        ),
        state=row.state,
        binding=row.state is State.FAILED or wanted,
        measured=reason(
            Code.SCORES,
            target=row.target,
            reference=row.reference,
            difference=row.difference,
            relative=row.relative,
            standard_error=row.standard_error,
        ),
        threshold=reason(Code.SCORE_LIMIT, z=limit),
        origin=reason(Code.DOWNSTREAM_RULE),
        evidence=(row.why,),
        how=row.why if row.state is State.NOT_SHOWN else None,
    )
