"""The rules: each looks at a reading and says what is wrong with it, and nothing twice while it lasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trueup.adapters import measures
from trueup.monitoring.alarms import Latch, Subject
from trueup.monitoring.history import Baselines, Largest, Window
from trueup.monitoring.readings import L2_NORM, LARGEST, NUM_INF, NUM_NAN, ZERO_SHARE, Reading
from trueup.monitoring.settings import RuleSettings
from trueup.monitoring.thresholds import LEARNING_STEPS, LEAST_DEVIATION, NEW_LEVEL, SPIKE_AGAIN
from trueup.types.arrays import Floats

_CURVES = ("loss", "grad_norm")
_TENSORS = (measures.ACTIVATION, measures.LOCAL_GRADIENT, measures.GRADIENT, measures.WEIGHT)
"""in the order a step makes them"""


class MonitorRule(Protocol):
    """One rule over a run."""

    name: str

    def judge(self, reading: Reading) -> list[Subject]:
        """What is raised by this step, worst or first first."""


class _Latched:
    """A rule whose findings pass through a latch."""

    name = ""
    whole = False
    """one alarm until the condition is over, for all subjects"""

    def __init__(
        self, settings: RuleSettings, *, raise_after: int = 1, clear_after: int | None = None
    ) -> None:
        self.settings = settings
        self._latch = Latch(raise_after=raise_after, clear_after=clear_after or settings.clear_after)

    def judge(self, reading: Reading) -> list[Subject]:
        found = self.found(reading)
        if found is None:
            return []
        if self.whole:
            return found if self._latch.update([self.name] if found else []) else []
        subjects = {subject.name: subject for subject in found}
        return [subjects[name] for name in self._latch.update(subjects)]

    def found(self, reading: Reading) -> list[Subject] | None:
        """What is wrong now; None where this step cannot tell."""
        raise NotImplementedError


class NaN(_Latched):
    """A NaN in the loss, a gradient, a weight or an activation."""

    name = "nan"
    whole = True

    def found(self, reading: Reading) -> list[Subject]:
        """Gradients of an update a loss scaler left out are left alone."""
        return list(_not_finite(reading, math.isnan, NUM_NAN, "NaN"))


class Overflow(_Latched):
    """An infinity, or a loss scaler that finds no scale."""

    name = "overflow"
    whole = True

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings)
        self._skipped = 0

    def found(self, reading: Reading) -> list[Subject]:
        """Infinities at once; updates left out only in a row."""
        self._skipped = self._skipped + 1 if reading.skipped else 0
        found = list(_not_finite(reading, math.isinf, NUM_INF, "infinite"))
        most = self.settings.skipped_steps
        if most and self._skipped >= most:
            found.append(Subject(name="updates left out in a row:", value=self._skipped, threshold=most))
        return found


def _not_finite(
    reading: Reading, wrong: Callable[[float], bool], column: str, unit: str
) -> Iterator[Subject]:
    for name in _CURVES:
        value = reading.numbers.get(name)
        if value is not None and wrong(value) and not (reading.skipped and name == "grad_norm"):
            yield Subject(name=name, value=value, threshold=None)
    for kind in _TENSORS:
        if reading.skipped and kind in (measures.GRADIENT, measures.LOCAL_GRADIENT):
            continue
        counted = reading.column(kind, column)
        if counted is not None and counted[1].any():
            names, counts = counted
            for place in np.flatnonzero(counts):
                name = f"{_what(kind)} {names[place]}"
                yield Subject(name=name, value=float(counts[place]), threshold=None, unit=unit)


class Spike(_Latched):
    """Loss or gradient norm far above the window, or a tensor many times the largest seen."""

    name = "spike"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings, clear_after=min(SPIKE_AGAIN, settings.clear_after))
        self._windows = {name: Window(settings.spike_window) for name in _CURVES}
        self._in_row = dict.fromkeys(_CURVES, 0)
        self._largest = {measures.GRADIENT: Largest(), measures.ACTIVATION: Largest()}

    def found(self, reading: Reading) -> list[Subject]:
        """Curves by the window, tensors by the largest seen."""
        found = [*self._of_curves(reading)]
        multiple = self.settings.spike_multiple
        for kind, column in ((measures.GRADIENT, L2_NORM), (measures.ACTIVATION, LARGEST)):
            known = reading.column(kind, column)
            if known is not None and not reading.skipped:
                before = self._largest[kind].before(*known)
                if multiple:
                    wrong = (known[1] > before * multiple) & np.isfinite(known[1])
                    found += _beyond(kind, known, before * multiple, wrong)
        return found

    def _of_curves(self, reading: Reading) -> Iterator[Subject]:
        for name in _CURVES:
            value = reading.numbers.get(name)
            if value is None or reading.skipped:
                continue
            window = self._windows[name]
            mean, deviation = window.mean, max(window.deviation, LEAST_DEVIATION * abs(window.mean))
            bound = mean + self.settings.spike_sigmas * deviation
            spike = window.is_full_enough and self.settings.spike_sigmas > 0 and value > bound
            self._in_row[name] = self._in_row[name] + 1 if spike else 0
            if self._in_row[name] > NEW_LEVEL:
                window.clear()
            if spike:
                yield Subject(name=name, value=value, threshold=bound)
            elif math.isfinite(value):
                window.add(value)


class Vanishing(_Latched):
    """A gradient norm that stays far below what it was at the start."""

    name = "vanishing"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings, raise_after=settings.vanishing_steps)
        self._baselines = Baselines(settings.baseline)

    def found(self, reading: Reading) -> list[Subject] | None:
        """Against the median of the first measured steps; zero itself is another rule's."""
        known = reading.column(measures.GRADIENT, L2_NORM)
        if known is None or reading.skipped:
            return None
        bound = self._baselines.of(*known) * self.settings.vanishing_share
        with np.errstate(invalid="ignore"):
            return _beyond(measures.GRADIENT, known, bound, (known[1] < bound) & (known[1] > 0))


class Exploding(_Latched):
    """A gradient norm that stays far above what it was at the start."""

    name = "exploding"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings, raise_after=settings.exploding_steps)
        self._baselines = Baselines(settings.baseline)

    def found(self, reading: Reading) -> list[Subject] | None:
        """Against the median of the first measured steps."""
        known = reading.column(measures.GRADIENT, L2_NORM)
        if known is None or reading.skipped:
            return None
        bound = self._baselines.of(*known) * self.settings.exploding_multiple
        with np.errstate(invalid="ignore"):
            wrong = (known[1] > bound) & np.isfinite(known[1])
            return _beyond(measures.GRADIENT, known, bound, wrong)


class Frozen(_Latched):
    """A weight that no update changes, or that gets no gradient."""

    name = "frozen"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings, raise_after=settings.frozen_steps)

    def found(self, reading: Reading) -> list[Subject] | None:
        """Only where an update was made with a rate that is not 0."""
        if reading.skipped or not reading.updates:
            return None
        found = []
        zeros, weights = reading.column(measures.UPDATE, ZERO_SHARE), reading.column(measures.WEIGHT, L2_NORM)
        if zeros is not None:
            found += _beyond(measures.UPDATE, zeros, np.ones(len(zeros[0])), zeros[1] >= 1.0)
        gradients = reading.column(measures.GRADIENT, L2_NORM)
        if weights is not None and gradients is not None:
            known = {*gradients[0], *(zeros[0] if zeros is not None else ())}  # sparse ones are not measured
            missing = [name for name in weights[0] if name not in known]
            found += [Subject(name=f"no gradient of {name}", value=None, threshold=None) for name in missing]
        return found


class AllZero(_Latched):
    """A gradient or activation of nothing but zeros."""

    name = "all_zero"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings, raise_after=settings.zero_steps)

    def found(self, reading: Reading) -> list[Subject] | None:
        """Gradients and activations; weights may begin at zero."""
        known = {kind: reading.column(kind, ZERO_SHARE) for kind in (measures.ACTIVATION, measures.GRADIENT)}
        if all(one is None for one in known.values()):
            return None
        return [
            subject
            for kind, one in known.items()
            if one is not None
            for subject in _beyond(kind, one, np.ones(len(one[0])), one[1] >= 1.0)
        ]


class NoLearning(_Latched):
    """A loss that is no lower than it was at the start."""

    name = "no_learning"

    def __init__(self, settings: RuleSettings) -> None:
        super().__init__(settings)
        self._first: list[float] = []
        self._window = Window(LEARNING_STEPS)
        self._steps = 0

    def found(self, reading: Reading) -> list[Subject] | None:
        """Means over 64 steps; not with a learning rate of 0."""
        loss = reading.numbers.get("loss")
        if loss is None or not math.isfinite(loss) or not reading.updates:
            return None
        self._steps += 1
        self._window.add(loss)
        if len(self._first) < LEARNING_STEPS:
            self._first.append(loss)
        after = self.settings.no_learning_steps
        if not after or self._steps < max(after, 2 * LEARNING_STEPS):
            return None
        start = sum(self._first) / len(self._first)
        bound = start - self.settings.no_learning_share * abs(start)
        mean = self._window.mean
        return [Subject(name="loss", value=mean, threshold=bound)] if mean > bound else []


def rules_from_settings(settings: RuleSettings) -> list[MonitorRule]:
    """Every rule that needs nothing but the readings of its own process."""
    kinds = (NaN, Overflow, Spike, Vanishing, Exploding, Frozen, AllZero, NoLearning)
    return [kind(settings) for kind in kinds if kind.name not in settings.disabled]


def _beyond(
    kind: str, known: tuple[tuple[str, ...], Floats], bound: Floats, wrong: NDArray[np.bool_]
) -> list[Subject]:
    """Subjects where ``wrong``, farthest from its bound first."""
    if not wrong.any():
        return []
    names, values = known
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.abs(np.log(np.maximum(values, 1e-300) / np.maximum(bound, 1e-300)))
    places = np.flatnonzero(wrong)
    return [
        Subject(name=f"{_what(kind)} {names[i]}", value=float(values[i]), threshold=float(bound[i]))
        for i in places[np.argsort(-far[places], kind="stable")]
    ]


def _what(kind: str) -> str:
    words = {
        measures.GRADIENT: "gradient of",
        measures.LOCAL_GRADIENT: "local gradient of",
        measures.WEIGHT: "weight",
        measures.UPDATE: "update of",
        measures.ACTIVATION: "output of",
    }
    return words[kind]
