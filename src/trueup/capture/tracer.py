"""The Python API of capture."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trueup.capture import session
from trueup.capture.frameworks import framework_in_use
from trueup.capture.observer import Observer
from trueup.capture.options import CaptureOptions, StepSet
from trueup.capture.passed_options import options_of_next
from trueup.capture.shield import shielded
from trueup.errors import ConfigError
from trueup.types.plain import fields_from_json
from trueup.types.signature import KeywordSignature

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trueup.capture.keywords import TracerKeywords


class Tracer:
    """Captures a run from inside the program.

    Every option of ``CaptureOptions`` may be given by name, ``steps`` and ``ranks`` also as text such as
    ``"0,5-8"`` or as a list such as ``[0, "5-8"]``. ``framework`` is ``"torch"`` or ``"mindspore"``; by
    default the one the program uses.
    ``monitor`` measures the run while it trains; with it no step is captured in full unless ``steps`` says
    so, or an alarm does.

    Example:
        >>> with trueup.Tracer("runs/target", level="mix", steps="0-2") as tracer:   # doctest: +SKIP
        ...     train()
        >>> tracer = trueup.Tracer("runs/long", monitor=trueup.Monitor(every=10))   # doctest: +SKIP

    Raises:
        ConfigError: an option is unknown or malformed.
    """

    __signature__ = KeywordSignature(CaptureOptions)

    def __init__(
        self,
        output: str | Path,
        *,
        framework: str | None = None,
        monitor: Observer | None = None,
        **options: Unpack[TracerKeywords],
    ) -> None:
        given: dict[str, object] = {**options, "output": Path(output).absolute()}
        if monitor is not None:
            if not callable(getattr(monitor, "step_over", None)):
                raise ConfigError(f"Tracer: monitor: expected trueup.Monitor() (got {monitor!r})")
            given = {"steps": StepSet(()), **given, "observer": monitor.described()}
        self.options = fields_from_json(CaptureOptions, given, source="Tracer")
        self._framework = framework
        self._monitor = monitor
        self._session: session.Session | None = None
        self._joined = False
        """the session was begun from outside"""
        self._silent = False
        """the program is run again for another of its Tracers"""

    @classmethod
    def from_options(cls, options: CaptureOptions) -> Tracer:
        """A Tracer that captures with ``options``, without a monitor."""
        tracer = cls(options.output)
        tracer.options = replace(options, output=options.output.absolute(), observer=None)
        return tracer

    @shielded
    def start(self, model: object | None = None) -> None:
        """Begin to capture; with ``model``, only what happens inside it."""
        running = session.current()
        if self._session is None and running is not None and session.FROM_OUTSIDE in os.environ:
            warnings.warn(
                f"the program runs under 'trueup capture': its Tracer writes to {running.options.output} too",
                stacklevel=2,
            )
            self._session, self._joined = running, True
            if self.options.manual_steps:
                running.leave_steps_to_program()
        elif self._session is None and not self._silent:
            self._begin(model)
        if self._session is None:
            return
        if self._monitor is not None and self._session.watch.observer is not self._monitor:
            warnings.warn("a capture is under way already: the monitor given here is not used", stacklevel=2)
        self._session.start(model)

    def _begin(self, model: object | None) -> None:
        options = options_of_next(self.options)
        self._silent = options is None
        if options is not None:
            framework = self._framework or framework_in_use(model)
            self._session = session.begin(options, framework=framework, observer=self._monitor)

    @shielded
    def stop(self) -> None:
        """Pause until the next ``start``."""
        if self._session is not None:
            self._session.stop()

    @shielded
    def step(self) -> None:
        """Say that a training step is over, where it cannot be seen from the optimizer."""
        if self._session is not None:
            self._session.step()

    @shielded
    def save(self, name: str, value: object) -> None:
        """Record a tensor or a number of the program's under ``name``, and the gradient at the tensor."""
        if self._session is not None:
            self._session.save(name, value, backward=self.options.backward)

    @shielded
    def close(self) -> None:
        """Write what is left and end the capture, unless it was begun from outside."""
        if self._session is not None:
            if not self._joined:
                self._session.close()
            self._session = None

    def __enter__(self) -> Tracer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
