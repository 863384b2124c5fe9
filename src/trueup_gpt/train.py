"""The training loop: steps, log lines, validation, checkpoints, and leaving cleanly when asked to."""

from __future__ import annotations

import math
import operator
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from trueup_gpt.checkpoints import Checkpoints
from trueup_gpt.logs import RunLog, step_line
from trueup_gpt.result import GradientNotFinite, StepResult
from trueup_gpt.session import Session

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    steps: int
    """that were done, those of an earlier run included"""
    losses: list[float] = field(default_factory=list)
    """of this run's steps"""
    signal: int = 0
    """that ended it before its last step"""
    checkpoint: Path | None = None
    """the last one written"""


@dataclass(slots=True)
class _Asked:
    """Whether a signal has asked to end."""

    number: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number


def train(session: Session, log: RunLog, *, on_step: Callable[[StepResult], None] | None = None) -> Outcome:
    """Train to the last step, or until SIGINT or SIGTERM: then a checkpoint is written first.

    Args:
        session: the run; a checkpoint is loaded where the configuration says so.
        log: where it speaks.
        on_step: called after each step.

    Raises:
        GradientNotFinite: see ``check_for_nan_in_grad``.
    """
    training = session.config.training
    checkpoints = session.checkpoints(log.info)
    resumed = checkpoints.resume()
    if resumed is not None:
        log.info(f"resumed from {resumed}, step {session.step.number}")
    elif training.resume_training:
        log.warning(f"resume: no checkpoint in {checkpoints.folder}; training starts from step 0")
    outcome = Outcome(session.step.number)
    _say_what_runs(session, log)
    meter = _Meter(session, log)
    with _signals() as asked, _all_written(checkpoints):
        while session.step.number < session.num_steps:
            number = session.step.number
            result = session.step(session.data.read(session.portion(number)))
            outcome.losses.append(result.loss)
            meter(result)
            if on_step is not None:
                on_step(result)
            done = number + 1
            if (
                training.eval_interval
                and done % training.eval_interval == 0
                and session.validation is not None
            ):
                _validate(session, log, checkpoints)
            outcome.signal = session.largest(asked.number)  # all must leave at the same step
            last = done == session.num_steps and training.save_interval is not None
            if outcome.signal or last or (training.save_interval and done % training.save_interval == 0):
                outcome.checkpoint = checkpoints.save()
            if outcome.signal:
                log.warning(f"ended by {signal.Signals(outcome.signal).name} after step {number}")
                break
    outcome.steps = session.step.number
    return outcome


@contextmanager
def _all_written(checkpoints: Checkpoints) -> Iterator[None]:
    """Afterwards the last checkpoint is whole, also where every process ends for the same reason."""
    try:
        yield
    except GradientNotFinite:
        checkpoints.wait()
        raise
    checkpoints.wait()


def _say_what_runs(session: Session, log: RunLog) -> None:
    parallel, mesh = session.config.parallel, session.mesh
    log.info(
        f"{mesh} | sp {parallel.sequence_parallel} | vpp {parallel.virtual_pipeline_model_parallel_size or 1}"
    )
    held = f"{session.num_parameters():,} parameters in this process"
    log.info(f"{session.device()}, {held}, {session.num_steps} steps")


class _Meter:
    """Log lines, every ``log_interval`` steps, with the time of a step since the last."""

    def __init__(self, session: Session, log: RunLog) -> None:
        self._session, self._log = session, log
        self._began, self._steps = time.perf_counter(), 0

    def __call__(self, result: StepResult) -> None:
        self._steps += 1
        config = self._session.config
        if (result.step + 1) % config.training.log_interval and result.step + 1 != self._session.num_steps:
            return
        seconds = (time.perf_counter() - self._began) / self._steps
        rows = self._session.rows_of_step
        rate = rows * config.model.seq_length / seconds
        epoch = self._session.data.epoch(result.step, rows)
        self._log.tokens_per_second = rate
        self._log.info(step_line(result, epoch=epoch, milliseconds=1000 * seconds, tokens_per_second=rate))
        values = {
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "loss_scale": result.loss_scale,
            "learning_rate": result.learning_rates[0],
            "tokens_per_second": rate,
        }
        memory = self._session.memory_bytes()
        if memory is not None:
            values["memory_bytes"] = memory
            self._log.memory = f"  {values['memory_bytes'] / 2**30:.1f} GiB"
        self._log.metrics(result.step, values)
        self._began, self._steps = time.perf_counter(), 0


def _validate(session: Session, log: RunLog, checkpoints: Checkpoints) -> None:
    training, step = session.config.training, session.step.number - 1
    loss = session.evaluate()
    found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    log.info(f"eval: Step:{step}, Loss: {loss:.6f}, Perplexity: {found['perplexity']:.4f}")
    log.metrics(step, {f"eval_{name}": value for name, value in found.items()})
    value = found[training.eval_metric or "loss"]
    better = _COMPARISONS[training.best_metric_comparison or "less"]
    if training.save_interval is not None and (checkpoints.best is None or better(value, checkpoints.best)):
        checkpoints.best = value
        checkpoints.save(best=True)


@contextmanager
def _signals() -> Iterator[_Asked]:
    """SIGINT and SIGTERM are noted while it lasts; a second one acts as ever."""
    asked = _Asked()
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
    for one in (signal.SIGINT, signal.SIGTERM):
        before[one] = signal.signal(one, asked)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
