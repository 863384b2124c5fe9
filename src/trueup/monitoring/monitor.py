"""The monitor: watches the run of its process, writes what it sees, and gives alarm."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from trueup.adapters.measures import Measured, Wanted
from trueup.capture.observer import WatchedRun
from trueup.monitoring import replicas
from trueup.monitoring.alarms import Alarm
from trueup.monitoring.events import Events, alarm_from_subjects
from trueup.monitoring.readings import reading_of
from trueup.monitoring.replicas import ReplicaCheck
from trueup.monitoring.rollouts import RolloutMonitor
from trueup.monitoring.rules import MonitorRule, rules_from_settings
from trueup.monitoring.settings import MonitorSettings
from trueup.store import layout
from trueup.store.series import SeriesWriter
from trueup.types.arrays import Array
from trueup.types.signature import KeywordSignature
from trueup.types.trace import ScalarLine

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trueup.monitoring.keywords import MonitorKeywords

MADE_BY = "trueup.monitoring.monitor:monitor_from_plain"
_BEFORE = 32
"""steps whose scalars an event's file keeps"""
_KEPT = ("step", "loss", "grad_norm", "learning_rate", "loss_scale", "skipped", "update_ratio", "weight_norm")


def describe_monitor(settings: MonitorSettings) -> dict[str, object]:
    """What creates a monitor with these settings in the process that trains."""
    return {"made_by": MADE_BY, "settings": settings.to_json()}


def monitor_from_plain(settings: dict[str, object]) -> Monitor:
    """The monitor a description names, in the process that trains."""
    monitor = Monitor()
    monitor.settings = MonitorSettings.from_json(settings)
    return monitor


class Monitor:
    """Watches a run: ``Tracer(output, monitor=Monitor(every=10))``.

    Every setting of ``MonitorSettings`` may be given by name, ``rules`` as a ``RuleSettings`` or a mapping.
    ``on_alarm`` is called with each ``Alarm``; what it raises is noted and goes no further.

    Example:
        >>> monitor = trueup.Monitor(modules=["*.mlp"], on_alarm=print)   # doctest: +SKIP

    Raises:
        ConfigError: a setting is unknown or cannot be.
    """

    __signature__ = KeywordSignature(MonitorSettings)

    def __init__(
        self, *, on_alarm: Callable[[Alarm], object] | None = None, **settings: Unpack[MonitorKeywords]
    ) -> None:
        self.settings = MonitorSettings.from_json({**settings}, "Monitor")
        self._on_alarm = on_alarm
        self._run: WatchedRun | None = None
        self._rules: list[MonitorRule] = []
        self._before: deque[ScalarLine] = deque(maxlen=_BEFORE)
        self._captured: list[range] = []
        self._last_time: float | None = None
        self._rollouts: RolloutMonitor | None = None

    def described(self) -> dict[str, object]:
        """What creates the same monitor in another process; a callback is not included."""
        return describe_monitor(self.settings)

    def begin(self, run: WatchedRun) -> Wanted:
        """The run is open: make ready to write."""
        settings = self.settings
        self.close()
        self._run = run
        self._rules = rules_from_settings(settings.rules)
        self._captured, self._last_time = [], None
        self._before.clear()
        self._replicas = ReplicaCheck(run.output, run.rank, settings.rules)
        self._events = Events(run, program=settings.program, command=settings.command)
        self._series = SeriesWriter(layout.series_dir(run.output, run.rank))
        layout.events_dir(run.output).mkdir(parents=True, exist_ok=True)
        self._heard = set(os.listdir(layout.events_dir(run.output)))
        local = settings.local_gradients
        return Wanted(
            gradients=settings.gradients,
            local_gradients=run.world_size > 1 if local is None else local,
            weights=settings.weights,
            updates=settings.updates,
            moments_every=settings.moments_every,
            modules=settings.modules,
            routers=settings.routers,
        )

    def measures(self, step: int) -> bool:
        """Every n-th step."""
        return step % self.settings.every == 0

    def captures(self, step: int) -> bool:
        """Steps that follow an alarm."""
        return any(step in steps for steps in self._captured)

    def step_over(self, line: ScalarLine, measured: Measured) -> None:
        """Add what was measured to the line, write the series, apply the rules."""
        run = self._run
        if run is None:
            return
        reading = reading_of(line, measured, whole=run.world_size == 1 or bool(measured.replicas))
        values = cast("dict[str, object]", line)
        for name, value in reading.numbers.items():
            if values.get(name) is None:
                values[name] = value
        now = time.perf_counter()
        if self._last_time is not None:
            line.setdefault("step_seconds", now - self._last_time)
        self._last_time = now
        self._series.append(reading.step, reading.blocks)
        kept = {name: values[name] for name in _KEPT if values.get(name) is not None}
        self._before.append(cast("ScalarLine", kept))
        self._hear_others(run)
        raised = [(rule.name, rule.judge(reading)) for rule in self._rules]
        if replicas.NAME not in self.settings.rules.disabled:
            norm = reading.numbers.get("weight_norm")
            parted = self._replicas.judge(reading.step, norm, measured.replicas)
            raised.append((replicas.NAME, parted))
        self._give_alarm(
            [
                alarm_from_subjects(name, subjects, step=reading.step, rank=run.rank)
                for name, subjects in raised
                if subjects
            ],
            run,
        )

    def rollout(self, run: WatchedRun, step: int, arrays: Mapping[str, Array]) -> None:
        """Both log-probs of a step's sampled tokens are known to this process."""
        if self._rollouts is None:
            self._rollouts = RolloutMonitor(run, self.settings)
        self._rollouts.step_over(step, arrays)

    def close(self) -> None:
        """The run is over."""
        if self._run is not None:
            self._series.close()
            self._replicas.close()
            self._run = None

    def _give_alarm(self, alarms: list[Alarm], run: WatchedRun) -> None:
        """The callback last: what it raises must not keep a file from being written."""
        for alarm in alarms:
            captured = self._plan_capture(alarm.step, run)
            self._events.emit(alarm, captured=captured, before=self._before)
        if self._on_alarm is not None:
            for alarm in alarms:
                self._on_alarm(alarm)

    def _plan_capture(self, step: int, run: WatchedRun) -> int | None:
        """The first step that will be captured because of an alarm at ``step``; None where none is.

        Of several processes the others hear of the alarm by its file before the step after next, because the
        next cannot end without this one.
        """
        first = step + (1 if run.world_size == 1 else 2)
        steps = range(first, first + self.settings.capture_steps)
        if not steps:
            return None
        if steps not in self._captured:
            if len(self._captured) >= self.settings.max_captures:
                return None
            self._captured.append(steps)
        return first

    def _hear_others(self, run: WatchedRun) -> None:
        """Alarms of other ranks: the same steps are captured here."""
        if run.world_size == 1:
            return
        new = set(os.listdir(layout.events_dir(run.output))) - self._heard
        self._heard |= new
        for name in sorted(new):
            event = layout.parse_event_file(name)
            if event is not None and event[2] != run.rank:
                self._plan_capture(event[0], run)
