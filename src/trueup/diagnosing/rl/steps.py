"""One step of both runs, and what a check of it concludes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from trueup.diagnosing.rl.tables import Apart, SequencePair, SequenceTable, rms
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.numerics.dtypes import DTYPES
from trueup.store.rollouts import RLRecord, RLStep, Setting
from trueup.types.codes import RLCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

TRAINED = {"actor": ("log_probs", "old_log_probs"), "critic": ("predictions", "values")}
"""what a role gives in its update, and gave before it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityCheck:
    """What was seen of one quantity in one step."""

    step: int
    stage: Stage
    quantity: str
    role: str
    status: StageStatus
    conclusion: Reason
    evidence: tuple[Reason, ...] = ()
    confirmed: bool = False
    """by a formula that the run's own numbers keep or break, or by the same tokens on both sides"""
    side: str = "target"
    """whose numbers are at fault"""

    @property
    def passed(self) -> bool:
        """Whether both sides agree here."""
        return self.status is StageStatus.PASSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What is looked at, and the makers of its conclusions."""

    step: int
    stage: Stage
    name: str
    role: str

    def check(
        self, status: StageStatus, conclusion: Reason, *evidence: Reason, confirmed: bool = False
    ) -> QuantityCheck:
        """A conclusion."""
        return QuantityCheck(
            step=self.step,
            stage=self.stage,
            quantity=self.name,
            role=self.role,
            status=status,
            conclusion=conclusion,
            evidence=evidence,
            confirmed=confirmed,
        )

    def passed(self, code: RLCode, *evidence: Reason, **facts: float) -> QuantityCheck:
        """Agrees."""
        return self.check(StageStatus.PASSED, reason(code, quantity=self.name, **facts), *evidence)

    def agreeing(self, apart: Apart) -> QuantityCheck:
        """Agrees: bit by bit, within rounding, or within rounding that training has carried on."""
        if not apart.num_different:
            return self.passed(RLCode.EQUAL)
        return self.passed(RLCode.WITHIN if apart.rms <= apart.allowed else RLCode.WITHIN_GROWN)

    def failed(self, conclusion: Reason, *evidence: Reason, confirmed: bool = True) -> QuantityCheck:
        """Differs, and nothing before it explains that."""
        return self.check(StageStatus.FAILED, conclusion, *evidence, confirmed=confirmed)

    def undecided(self, conclusion: Reason, *evidence: Reason) -> QuantityCheck:
        """Cannot be told."""
        return self.check(StageStatus.UNDECIDED, conclusion, *evidence)

    def follows(self, *evidence: Reason) -> QuantityCheck:
        """Differs because of what precedes it."""
        return self.check(StageStatus.CONSEQUENCE, reason(RLCode.FOLLOWS, quantity=self.name), *evidence)


@dataclass(kw_only=True)
class RLStepPair:
    """One step of both runs."""

    step: int
    target: RLStep
    reference: RLStep
    before: Sequence[QuantityCheck]
    """of preceding steps"""
    earlier: tuple[RLStep, ...] = ()
    """the reference's"""
    found: list[QuantityCheck] = field(default_factory=list)
    """of this step so far"""

    @cached_property
    def batch(self) -> SequencePair | None:
        """Batches of both sides."""
        if self.target.batch is None or self.reference.batch is None:
            return None
        return SequencePair.of(
            SequenceTable.of([self.target.batch]), SequenceTable.of([self.reference.batch])
        )

    @property
    def settings(self) -> tuple[Mapping[str, Setting], Mapping[str, Setting]]:
        """Settings of the batches."""
        sides = (self.target.batch, self.reference.batch)
        target, reference = ({} if one is None else one.settings for one in sides)
        return target, reference

    def unit(self) -> float | None:
        """Unit roundoff of what the models compute in, None where it was not recorded: then of float32."""
        named = [str(one["dtype"]) for one in self.settings if one.get("dtype") in DTYPES]
        return max((DTYPES[name].eps for name in named), default=None)

    def changed(self, role: str, until: int = 0) -> float:
        """How much the reference's training has changed what a role gives: within its updates of earlier
        steps and of this one's first ``until`` mini-batches; the policy's distance from its reference too."""
        if role not in TRAINED:
            return 0.0
        now, before = TRAINED[role]
        own = [one for one in self.reference.losses if one.number < until]
        calls = [
            one for one in (*own, *(one for step in self.earlier for one in step.losses)) if one.role == role
        ]
        sizes = [_movement(SequenceTable.of([one]), now, before) for one in calls if one.number]
        if self.earlier and self.reference.batch is not None:
            batch = SequenceTable.of([self.reference.batch])
            sizes.append(_movement(batch, before, "ref_log_probs") if role == "actor" else 0.0)
        return max(sizes, default=0.0)

    def losses(self, role: str, side: int) -> tuple[RLRecord, ...]:
        """Calls of a role's loss; side 0 is the target."""
        return tuple(one for one in (self.target, self.reference)[side].losses if one.role == role)

    def mini_batches(self, role: str) -> Iterator[SequencePair]:
        """Each mini-batch that both sides have, its microbatches together, in order."""
        sides = [self._by_number(role, side) for side in (0, 1)]
        for number in sorted(set(sides[0]) & set(sides[1])):
            yield SequencePair.of(SequenceTable.of(sides[0][number]), SequenceTable.of(sides[1][number]))

    def _by_number(self, role: str, side: int) -> dict[int, list[RLRecord]]:
        found: dict[int, list[RLRecord]] = {}
        for one in self.losses(role, side):
            found.setdefault(one.number, []).append(one)
        return found

    def quantity(self, stage: Stage, name: str, role: str) -> Quantity:
        """What a check looks at."""
        return Quantity(step=self.step, stage=stage, name=name, role=role)

    def agrees(self, *names: str) -> bool:
        """Whether nothing was found against these quantities in this step."""
        bad = (StageStatus.FAILED, StageStatus.CONSEQUENCE)
        return not any(one.quantity in names and one.status in bad for one in self.found)

    @property
    def has_failed_before(self) -> bool:
        """Whether a preceding step has a fault."""
        return any(one.status is StageStatus.FAILED for one in self.before)


def _movement(table: SequenceTable, now: str, before: str) -> float:
    held = table.get(now), table.get(before)
    return 0.0 if held[0] is None or held[1] is None else rms((held[0] - held[1])[table.mask > 0])
