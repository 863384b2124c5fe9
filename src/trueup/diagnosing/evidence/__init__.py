"""Everything a rule may ask about one origin: read when first asked for, then kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar, cast

from trueup.diagnosing.evidence.elsewhere import elsewhere_of, parameter_of
from trueup.diagnosing.evidence.facts import (
    Elsewhere,
    Known,
    NeighbourCall,
    OwnGradients,
    ParameterStep,
    RunFacts,
    SlotPair,
    Surroundings,
    Window,
)
from trueup.diagnosing.evidence.own_gradients import own_gradients
from trueup.diagnosing.evidence.places import locate, repeat_noise
from trueup.diagnosing.evidence.run import run_facts, with_forms_of
from trueup.diagnosing.evidence.surroundings import surroundings_of
from trueup.diagnosing.evidence.vectors import Vectors, vectors_of
from trueup.diagnosing.evidence.windows import MAX_WHOLE, window_of
from trueup.numerics.ulp import unit_roundoff
from trueup.store import TraceSource
from trueup.types.arrays import Floats
from trueup.types.finding import Origin

__all__ = [
    "Elsewhere",
    "Evidence",
    "Known",
    "NeighbourCall",
    "OwnGradients",
    "ParameterStep",
    "RunFacts",
    "SlotPair",
    "Surroundings",
    "Vectors",
]

Result = TypeVar("Result")


class Evidence:
    """One origin, the tensor on both sides, and what stands around it.

    Built from two traces by ``from_origin``, or from parts at hand. Each part is worked out once, when it is
    first asked for; what is not known is None or empty.

    Example:
        >>> evidence = Evidence.from_origin(origin, Trace(a), Trace(b))          # doctest: +SKIP
        >>> evidence.target_values.shape, evidence.surroundings.inputs_agree     # doctest: +SKIP
        ((4, 128, 256), True)
    """

    def __init__(
        self,
        origin: Origin,
        pair: SlotPair,
        *,
        surroundings: Callable[[], Surroundings] = Surroundings,
        elsewhere: Callable[[], Elsewhere] = Elsewhere,
        parameter: Callable[[], ParameterStep | None] = lambda: None,
        own: Callable[[], OwnGradients | None] = lambda: None,
        target_run: Callable[[], RunFacts] = RunFacts,
        reference_run: Callable[[], RunFacts] = RunFacts,
        repeat: Callable[[], float | None] = lambda: None,
        requires_grad: tuple[bool | None, bool | None] = (None, None),
        reasons: tuple[str | None, str | None] = (None, None),
        dtypes_in_code: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self.origin = origin
        self.pair = pair
        self.requires_grad = requires_grad
        """of target and reference"""
        self.reasons = reasons
        """why a side has no summary, or what is special about it"""
        self._surroundings, self._elsewhere, self._parameter = surroundings, elsewhere, parameter
        self._own = own
        self._target_run, self._reference_run, self._repeat = target_run, reference_run, repeat
        self._dtypes_in_code = dtypes_in_code
        self._remembered: dict[object, object] = {}

    @classmethod
    def from_origin(
        cls,
        origin: Origin,
        target: TraceSource,
        reference: TraceSource,
        *,
        free: TraceSource | None = None,
        dtypes_in_code: Callable[[], frozenset[str]] = frozenset,
    ) -> Evidence:
        """What two traces hold about an origin; the target's may be a free run or a replay of it, beside
        which the ``free`` run tells the form of its losses. ``dtypes_in_code``: those that the program's code
        names at the origin on one side alone.

        Raises:
            TraceError: the origin's step is not in a trace.
        """
        place = locate(origin, target, reference)
        return cls(
            origin,
            place.pair(),
            surroundings=lambda: surroundings_of(place),
            elsewhere=lambda: elsewhere_of(place),
            parameter=lambda: parameter_of(place),
            own=lambda: own_gradients(place),
            target_run=lambda: with_forms_of(
                run_facts(target, place.step, place.rank, place.target), free, place.step, place.rank
            ),
            reference_run=lambda: run_facts(
                reference, place.reference_step, place.reference_rank, place.reference
            ),
            repeat=lambda: repeat_noise(place),
            requires_grad=place.requires_grad(),
            reasons=place.reasons(),
            dtypes_in_code=dtypes_in_code,
        )

    # -- the tensor ------------------------------------------

    @property
    def target(self) -> Known | None:
        """The target's tensor."""
        return self.pair.target

    @property
    def reference(self) -> Known | None:
        """The reference's."""
        return self.pair.reference

    @cached_property
    def window(self) -> Window | None:
        """The part that is widened to float64, around the first difference; None where that is everything."""
        either = self.target if self.target is not None else self.reference
        return None if either is None else window_of(self.target, self.reference, either.shape)

    @property
    def part_seen(self) -> str:
        """``start:stop`` of every dimension where a part of the values was looked at, else empty."""
        if self.window is None or self.target is None or self.target.raw is None:
            return ""
        return ", ".join(f"{start}:{stop}" for start, stop in self.window)

    def values_of(self, known: Known | None) -> Floats | None:
        """float64 values of a tensor of the origin's size, cut as the origin is; smaller ones whole."""
        if known is None:
            return None
        either = self.target or self.reference
        same = either is not None and known.shape == either.shape
        if not same and known.numel > MAX_WHOLE:
            return None
        return known.values(self.window if same else None)

    @property
    def whole_values(self) -> tuple[Floats, Floats] | None:
        """Both sides' values uncut, for what a part cannot show; None where they are too many."""
        t, r = self.target, self.reference
        if t is None or r is None or max(t.numel, r.numel) > MAX_WHOLE:
            return None
        a, b = t.values(), r.values()
        return None if a is None or b is None else (a, b)

    @property
    def target_values(self) -> Floats | None:
        """float64, None where only summaries are kept."""
        return self.values_of(self.target)

    @property
    def reference_values(self) -> Floats | None:
        """float64, None where only summaries are kept."""
        return self.values_of(self.reference)

    @property
    def same_shape(self) -> bool:
        """Both sides are there and of one shape."""
        t, r = self.target, self.reference
        return t is not None and r is not None and t.shape == r.shape

    @cached_property
    def roundoff(self) -> float:
        """Unit roundoff of the coarser of the two dtypes."""
        found = [
            unit_roundoff(k.dtype) for k in (self.target, self.reference) if k is not None and k.is_floating
        ]
        return max(found, default=0.0)

    @cached_property
    def vectors(self) -> Vectors | None:
        """Both tensors as flat vectors of values or of sketches; None where neither is there."""
        return vectors_of(self.target, self.reference, self.values_of, self.roundoff)

    # -- what stands around it ------------------------------------------

    @cached_property
    def surroundings(self) -> Surroundings:
        """The call and the module it belongs to."""
        return self._surroundings()

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """The same site at other steps, microbatches and ranks."""
        return self._elsewhere()

    @cached_property
    def parameter(self) -> ParameterStep | None:
        """The parameter the origin is about, where it is about one."""
        return self._parameter()

    @cached_property
    def own_gradients(self) -> OwnGradients | None:
        """What the calls of the module make of the weight's gradient, where that can be worked out."""
        return self._own()

    @cached_property
    def target_run(self) -> RunFacts:
        """Numbers of the target's run at this step."""
        return self._target_run()

    @cached_property
    def reference_run(self) -> RunFacts:
        """Numbers of the reference's run at this step."""
        return self._reference_run()

    @cached_property
    def repeat(self) -> float | None:
        """Relative difference of the reference from its own repeat here, from the noise profile."""
        return self._repeat()

    @cached_property
    def dtypes_in_code(self) -> frozenset[str]:
        """Those that the code of the place names on one side alone."""
        return self._dtypes_in_code()

    def remembered(self, work_out: Callable[[Evidence], Result]) -> Result:
        """What several rules ask for: worked out once."""
        if work_out not in self._remembered:
            self._remembered[work_out] = work_out(self)
        return cast("Result", self._remembered[work_out])
