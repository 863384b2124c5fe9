"""Training against inference while a run trains: the measures of every step, and alarms.

The process that knows both log-probs of the sampled tokens writes them: verl's driver, TRL's first process.
One line of ``monitor/mismatch.jsonl`` a step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from trueup.capture.observer import WatchedRun
from trueup.mismatch.judging import judge
from trueup.mismatch.measuring import TokenMeasures, measure
from trueup.mismatch.reading import tokens_from_arrays
from trueup.monitoring.alarms import Latch, Subject
from trueup.monitoring.events import Events, alarm_from_subjects
from trueup.monitoring.history import Baselines
from trueup.monitoring.settings import MonitorSettings, RuleSettings
from trueup.store import layout
from trueup.store.files import object_from_json, text_from_file
from trueup.types.arrays import Array
from trueup.types.codes import MismatchCode as M
from trueup.types.plain import number_from_json
from trueup.types.status import Outcome

NAME = "mismatch"
SERIES = (
    *("k1", "k3", "chi2_token", "rms_diff", "max_abs_diff", "pearson", "mean_ratio"),
    *("ess_token", "ess_sequence", "share_high", "share_low", "num_tokens", "num_not_finite"),
)
"""fields of ``TokenMeasures`` that are kept"""
_FAULTS = {
    M.NOT_FINITE: "log-probs that are not finite",
    M.SHIFTED: "log-probs of a neighbouring token",
    M.REORDERED: "log-probs of other sequences",
    M.NOT_SAMPLED: "log-probs not of the sampling distribution",
    M.SPREAD: "log-probs scaled, as by a temperature",
}
"""what rounding cannot do: at once"""


class MismatchRule:
    """What rounding cannot do at once; effective sample size and k3 once they stay beyond their bounds."""

    def __init__(self, settings: RuleSettings) -> None:
        self._settings = settings
        clear = settings.clear_after
        self._faults = Latch(raise_after=1, clear_after=clear)
        self._drift = Latch(raise_after=settings.mismatch_steps, clear_after=clear)
        self._baseline = Baselines(settings.mismatch_baseline)

    def judge(self, measures: TokenMeasures, faults: Mapping[str, Subject]) -> list[Subject]:
        """What is raised by this step."""
        present = {one.name: one for one in self._beyond(measures)}
        found = [faults[name] for name in self._faults.update(faults)]
        return found + [present[name] for name in self._drift.update(present)]

    def _beyond(self, measures: TokenMeasures) -> list[Subject]:
        settings, found = self._settings, []
        least, times = settings.mismatch_ess, settings.mismatch_multiple
        if least and measures.ess_token < least:
            name = "effective sample size of importance ratios"
            found.append(Subject(name=name, value=measures.ess_token, threshold=least))
        usual = float(self._baseline.of(("k3",), np.array([measures.k3]))[0]) * times
        if times and measures.k3 > usual:
            found.append(Subject(name="k3 of rollout and trainer", value=measures.k3, threshold=usual))
        return found


class RolloutMonitor:
    """Writes and judges the log-probs of one process, step by step."""

    def __init__(self, run: WatchedRun, settings: MonitorSettings) -> None:
        self._file = layout.mismatch_file(run.output)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        layout.events_dir(run.output).mkdir(parents=True, exist_ok=True)
        self._events = Events(run, program=settings.program, command=settings.command)
        self._rule = None if NAME in settings.rules.disabled else MismatchRule(settings.rules)
        self._rank = run.rank

    def step_over(self, step: int, arrays: Mapping[str, Array]) -> None:
        """One step's log-probs, under any of the names of a token file.

        Raises:
            ConfigError: they are no log-probs of one batch.
            OSError: nothing can be written.
        """
        tokens = tokens_from_arrays(arrays, Path(f"step {step}"))
        measures = measure(tokens)
        kept = asdict(measures)
        line = {"step": step, "time": time.time(), **{name: kept[name] for name in SERIES}}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self._rule is None:
            return
        judgement = judge(tokens, measures, ())
        reasons = judgement.reasons if judgement.outcome is Outcome.DIFFER else ()
        names = [_FAULTS[one.code] for one in reasons if isinstance(one.code, M) and one.code in _FAULTS]
        faults = {name: Subject(name=name, value=measures.rms_diff, threshold=None) for name in names}
        subjects = self._rule.judge(measures, faults)
        if subjects:
            alarm = alarm_from_subjects(NAME, subjects, step=step, rank=self._rank)
            self._events.emit(alarm, captured=None, before=())


def mismatch_lines(root: Path) -> list[dict[str, float]]:
    """What a monitored run has written so far, one entry a step; what is not known is NaN, and lines that are
    no JSON, as the half of a last one, are left out.

    Raises:
        TraceError: a line is JSON of another kind.
    """
    file = layout.mismatch_file(root)
    if not file.exists():
        return []
    found = []
    for number, line in enumerate(text_from_file(file).rpartition("\n")[0].splitlines(), 1):
        with suppress(ValueError):
            held = object_from_json(line, f"{file}, line {number},")
            found.append({name: _number(value) for name, value in held.items()})
    return found


def _number(value: object) -> float:
    number = number_from_json(value)
    return math.nan if number is None else number
