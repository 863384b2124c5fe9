"""What a rule is: the codes it gives, what it needs, how it judges, and why it stands where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

import numpy as np

from trueup.comparing.history import History
from trueup.comparing.inflow import Inflow
from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import NONE, Metrics
from trueup.comparing.noise import StepNoise
from trueup.comparing.rows import StepRows
from trueup.comparing.tolerance import Bound
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RecordCode
from trueup.types.status import Status


class Needs(Flag):
    """What a rule is not asked without."""

    NOTHING = 0
    NOISE_PROFILE = auto()
    """the reference's measured noise, at this step and rank"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """One step of one rank, as rules see it."""

    rows: StepRows
    rounding: Bound
    """what rounding alone explains"""
    noise: StepNoise | None
    inflow: Inflow
    """what each record was made from"""
    history: History
    """what the steps before left"""
    step: int
    factor: float
    """of all tolerances"""
    same_distances: Bools | None = None
    """positions given to the model that are as far apart as the other run's, where tokens see each other"""
    longer_rows: Bools | None = None
    """ids given to the model that are the other run's, or hold these and further columns"""
    summed_apart: Floats | None = None
    """of what was sent where one run alone has sent before: the distance of the sums over these steps"""
    is_merged: bool = False
    """several ranks were put together"""
    num_ranks: int = 1
    """of the target"""
    is_single_process: bool = False
    """both runs are of one process: nothing is reduced"""

    repeats: bool = False
    """all records of the steps before are bit-identical, and neither run's kernels vary from call to call"""

    @property
    def offers(self) -> Needs:
        """What rules can be asked with."""
        return Needs.NOTHING if self.noise is None else Needs.NOISE_PROFILE

    def comparable(self, metrics: Metrics) -> Bools:
        """Pairs with something known on both sides."""
        return np.asarray(self.rows.paired & (metrics.evidence != NONE))

    def floating(self, metrics: Metrics) -> Bools:
        """Those whose values are floating, or complex, on both sides: rounding may tell them apart."""
        words = self.rows.match.words.dtype
        kinds = np.array([w in DTYPES and DTYPES[w].kind in ("float", "complex") for w in words] + [False])
        both = kinds[self.rows.target.dtype] & kinds[self.rows.reference.dtype]
        return np.asarray(self.comparable(metrics) & both)


Apply = Callable[[StepContext, Metrics, Judgement], Judgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One conclusion about records. Its module defines ``RULE``; ``RULES`` lists it."""

    apply: Apply
    """writes into nothing that it is given"""
    codes: tuple[RecordCode, ...] = ()
    """reasons that it gives"""
    statuses: tuple[Status, ...] = ()
    """statuses that it gives"""
    needs: Needs = Needs.NOTHING
    place: str
    """why it stands where it stands in ``RULES``"""
    note: str
    """the decision it comes from, in docs/decisions"""

    @property
    def name(self) -> str:
        """Of its module."""
        return self.apply.__module__.rpartition(".")[2]
