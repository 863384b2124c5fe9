"""What a replay says as a whole: its origins, how much agreed, what was left free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trueup.diagnosing.replay.charge import REFINED, origins
from trueup.diagnosing.replay.noise import ReplayNoise
from trueup.diagnosing.replay.plan import has_api_values, read_plan
from trueup.diagnosing.replay.plan_step import Left, left_from_json
from trueup.store import Trace
from trueup.types.codes import LeftFree
from trueup.types.finding import Origin
from trueup.types.reason import Reason
from trueup.types.trace import Replayed

SCHEMA_VERSION = 2
_COMPARED = (LeftFree.SHARED_GRADIENT, LeftFree.COMPARED_ONLY)
"""reasons that leave nothing out: such tensors were compared all the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """A finished replay."""

    output: Path
    reference: Path
    origins: tuple[Origin, ...]
    step: int
    ranks: tuple[int, ...]
    equal: int
    replaced: int
    left: tuple[Left, ...]
    """what was not forced, most first"""
    refined: bool
    can_refine: bool

    @property
    def exit_code(self) -> int:
        """0 no site differs, 1 some do, 2 nothing was forced."""
        if not self.equal + self.replaced:
            return 2
        return 1 if self.origins else 0

    @classmethod
    def read(cls, output: Path, reference: Path, *, noise: ReplayNoise | None = None) -> ReplayOutcome:
        """What the replay in ``output`` says.

        Raises:
            TraceError: there is none.
        """
        found = origins(output, reference, noise=noise)
        trace, plan = Trace(output), read_plan(output / "plan")
        there = [p for p in plan.steps if p.rank in trace.steps().get(p.step, [])]
        counts = {"equal": 0, "replaced": 0}
        left: dict[Reason, Left] = {}
        for one in there:
            states = trace.forced(one.step, one.rank)["state"].cast(str).value_counts()
            for state, count in states.iter_rows():
                counts[state] = counts.get(state, 0) + count
            for more in one.left:
                _add(left, more)
        for rank in sorted({p.rank for p in there}):
            for free in (trace.rank_facts(rank).get("replay") or Replayed()).get("free", ()):
                if (more := left_from_json(free)).reason.code not in _COMPARED:
                    _add(left, more)
        return cls(
            output=output,
            reference=reference,
            origins=tuple(found),
            step=there[0].step,
            ranks=tuple(sorted({p.rank for p in there})),
            equal=counts["equal"],
            replaced=counts["replaced"],
            left=tuple(sorted(left.values(), key=lambda one: -one.count)),
            refined=(output / REFINED).exists(),
            can_refine=has_api_values(Trace(reference)),
        )

    def to_json(self) -> dict[str, object]:
        """The document of ``trueup replay --json`` (docs/diagnosis-format.md), reasons as they are."""
        return {
            "schema_version": SCHEMA_VERSION,
            "exit_code": self.exit_code,
            "origins": self.origins,
            "output": str(self.output),
            "reference": str(self.reference),
            "step": self.step,
            "ranks": self.ranks,
            "equal": self.equal,
            "replaced": self.replaced,
            "left": self.left,
            "refined": self.refined,
            "can_refine": self.can_refine,
        }


def _add(left: dict[Reason, Left], more: Left) -> None:
    known = left.get(more.reason)
    left[more.reason] = (
        more
        if known is None
        else Left(reason=more.reason, count=known.count + more.count, examples=known.examples)
    )
