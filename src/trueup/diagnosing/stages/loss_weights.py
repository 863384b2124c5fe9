"""Weights of classes or elements that a loss is given, in one run alone or with other numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.losses.calls import loss_records
from trueup.diagnosing.stages.batch import data_finding
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.loss_targets import rank_of_other_loss
from trueup.diagnosing.stages.naming import kind_named
from trueup.store import StepView
from trueup.types.arrays import Array
from trueup.types.codes import BatchCode as Batches
from trueup.types.finding import EvidenceRank, Finding, Stage
from trueup.types.reason import reason

_NAMES = ("weight", "pos_weight")
_SHOWN = 8
"""numbers of each side"""


def loss_weights(context: Context) -> tuple[Finding, ...]:
    """One where losses of the first step differ, and nothing before them, and weights do. Weights of 1 are
    as good as none."""
    rank = rank_of_other_loss(context)
    if rank is None:
        return ()
    books = context.pair(rank=rank)
    for name in _NAMES:
        own, other = (_weights(view, name) for view in books)
        if _alike(own, other):
            continue
        side = "reference" if own is None else "target" if other is None else None
        weights = reason(Batches.LOSS_WEIGHTS, name=name, target=_first(own), reference=_first(other))
        kind = kind_named("constant_argument", EvidenceRank.EVERY_ELEMENT, weights)
        found = data_finding(
            headline=reason(Batches.LOSS_WEIGHTED, name=name, side=side),
            site=f"loss · {name}",
            book=books[0],
            phase="loss",
            kinds=(kind,),
            evidence=(weights,),
            next_note=reason(Batches.CHECK_WEIGHTS, name=name),
        )
        return (replace(found, stage=Stage.FORWARD),)
    return ()


def _weights(view: StepView, name: str) -> Array | None:
    return next((view.value(record) for _, record in loss_records(view, name)), None)


def _alike(own: Array | None, other: Array | None) -> bool:
    sides = [np.ones(1) if one is None else np.asarray(one, np.float64) for one in (own, other)]
    if own is not None and other is not None and own.size != other.size:
        return bool((sides[0] == 1).all() and (sides[1] == 1).all())
    return bool((sides[0].ravel() == sides[1].ravel()).all())


def _first(values: Array | None) -> tuple[str, ...]:
    if values is None:
        return ()
    shown = tuple(f"{one:.4g}" for one in values.ravel()[:_SHOWN].tolist())
    return (*shown, "…") if values.size > _SHOWN else shown
