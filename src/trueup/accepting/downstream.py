"""Downstream tasks: the last part of the guide, from two evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trueup.accepting.evaluation import Evaluation, read_evaluation
from trueup.accepting.item import GUIDE, Item, Part, State
from trueup.accepting.scores import Compared, Scores, compare_evaluations
from trueup.curves.standard import absolute, percent
from trueup.errors import ConfigError

HOW = "--eval TARGET.json REFERENCE.json, results of lm-evaluation-harness with the same tasks and shots"
_ORIGIN = f"{GUIDE}, loss varies in the later stages: the 1 %; the standard errors are the evaluation's"


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
        why = (
            ("the long run leaves a small late gap: the guide lets downstream tasks decide",)
            if wanted
            else ()
        )
        return [
            Item(
                key="downstream",
                part=Part.DOWNSTREAM,
                title="Scores of downstream tasks",
                state=State.NOT_SHOWN,
                binding=wanted,
                measured="no evaluation was given",
                threshold="< 1.0 %, or within the standard error",
                origin=_ORIGIN,
                evidence=why,
                how=HOW,
            )
        ]
    limit = found.scores.limit_z
    rows = [found.scores.together, *found.scores.rows]
    return [_item(row, limit, wanted=wanted) for row in rows if row is not None]


def _item(row: Compared, limit: float, *, wanted: bool) -> Item:
    measured = "–"
    if row.difference is not None and row.target is not None and row.reference is not None:
        sign = "+" if row.difference > 0 else "−" if row.difference < 0 else ""
        error = "" if row.standard_error is None else f" ± {row.standard_error:.4f}"
        measured = (
            f"{row.target:.4f} against {row.reference:.4f}: {sign}{absolute(abs(row.difference))}{error}, "
            f"{percent(row.relative)}"
        )
    together = row.task.startswith("all ")
    return Item(
        key=f"eval:{row.task}:{row.metric}",
        part=Part.DOWNSTREAM,
        title=f"{row.task[:1].upper()}{row.task[1:]}" if together else f"{row.task}, {row.metric}",
        state=row.state,
        binding=row.state is State.FAILED or wanted,
        measured=measured,
        threshold=f"< 1.0 %, or ≤ {1.96 if together else limit:.1f} standard errors",
        origin=_ORIGIN,
        evidence=(row.why,),
        how=row.why if row.state is State.NOT_SHOWN else "",
    )
