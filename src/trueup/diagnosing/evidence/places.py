"""Where an origin stands in both traces: the indices of its step, the calls, the records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from trueup.diagnosing.evidence.facts import SlotPair
from trueup.diagnosing.evidence.tensors import known_tensor
from trueup.errors import TraceError
from trueup.store import StepView, TraceSource, step_view, view_if_there
from trueup.store.parquet import lazy_from_parquet
from trueup.types.finding import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedOrigin:
    """One origin in two traces; -1 and None where a side has nothing there."""

    origin: Origin
    target: StepView
    reference: StepView | None
    target_record: int | None
    reference_record: int | None
    target_call: int
    reference_call: int

    @property
    def step(self) -> int:
        """The target's step."""
        return self.origin.step

    @property
    def rank(self) -> int:
        """The target's rank."""
        return self.origin.rank

    @property
    def reference_step(self) -> int:
        """The reference's step."""
        return self.reference.step if self.reference is not None else self.step

    @property
    def reference_rank(self) -> int:
        """The reference's rank."""
        return self.reference.rank if self.reference is not None else self.rank

    def pair(self) -> SlotPair:
        """The origin's tensor on both sides."""
        t, r = self.target_record, self.reference_record
        return SlotPair(
            slot=self.origin.slot,
            target=None if t is None else known_tensor(self.target, t, "the target's tensor"),
            reference=None
            if r is None or self.reference is None
            else known_tensor(self.reference, r, "the reference's tensor"),
        )

    def requires_grad(self) -> tuple[bool | None, bool | None]:
        """Of the target's and the reference's tensor."""
        t, r = self.target_record, self.reference_record
        return (
            None if t is None else self.target.requires_grad[t],
            None if r is None or self.reference is None else self.reference.requires_grad[r],
        )

    def reasons(self) -> tuple[str | None, str | None]:
        """What is special about either record."""
        t, r = self.target_record, self.reference_record
        return (
            None if t is None else self.target.reason[t],
            None if r is None or self.reference is None else self.reference.reason[r],
        )


def locate(origin: Origin, target: TraceSource, reference: TraceSource) -> PairedOrigin:
    """The place of an origin in both traces, its records those it names or, failing that, those at the same
    site.

    Raises:
        TraceError: the target has no such step and rank.
    """
    target_view = step_view(target, origin.step, origin.rank)
    reference_view = _counterpart(origin, reference)
    t = _checked(target_view, origin.target_record, origin)
    r = None if reference_view is None else _checked(reference_view, origin.reference_record, origin)
    call_t = target_view.record_call[t] if t is not None else -1
    call_r = reference_view.record_call[r] if r is not None and reference_view is not None else -1
    if reference_view is not None and call_t < 0 and call_r >= 0:
        call_t, t = _same_site(target_view, reference_view, call_r, r)
    elif reference_view is not None and call_r < 0 and call_t >= 0:
        call_r, r = _same_site(reference_view, target_view, call_t, t)
    return PairedOrigin(
        origin=origin,
        target=target_view,
        reference=reference_view,
        target_record=t,
        reference_record=r,
        target_call=call_t,
        reference_call=call_r,
    )


def _counterpart(origin: Origin, reference: TraceSource) -> StepView | None:
    """The reference's step and rank of the same numbers, else its rank 0 of that step."""
    found = view_if_there(reference, origin.step, origin.rank)
    return found if found is not None else view_if_there(reference, origin.step, 0)


def _checked(view: StepView, record: int | None, origin: Origin) -> int | None:
    """The record an origin names, if it is of the origin's phase."""
    if record is None or not 0 <= record < len(view.phase):
        return None
    return record if view.phase[record] == origin.phase else None


def _same_site(here: StepView, there: StepView, call: int, record: int | None) -> tuple[int, int | None]:
    found = here.same_place(there, call)
    if not found or record is None:
        return (found[0] if found else -1), None
    phase, slot = there.phase[record], there.slot[record]
    return found[0], here.record(found[0], phase, slot, there.record_microbatch[record])


def repeat_noise(place: PairedOrigin) -> float | None:
    """How far the reference was from its own plain repeat at this site, from ``noise/profile.parquet``."""
    view, record = place.reference, place.reference_record
    if view is None or record is None:
        return None
    file = view.source.path / "noise" / "profile.parquet"
    if not Path(file).is_file():
        return None
    wanted = ["step", "rank", "place", "phase", "slot", "repeat"]
    try:
        frame = lazy_from_parquet(file, remedy="measure the noise again").select(
            pl.col(c).cast(pl.String) if c in ("place", "phase", "slot") else pl.col(c) for c in wanted
        )
        rows = frame.filter(
            (pl.col("step") == view.step)
            & (pl.col("rank") == view.rank)
            & (pl.col("phase") == view.phase[record])
            & (pl.col("slot") == view.slot[record])
            & (pl.col("place") == view.places[view.record_call[record]])
        ).collect()
    except (TraceError, OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    found = [v for v in rows["repeat"].to_list() if v is not None]
    return max(found, default=None)
