"""``PrecisionDebugger``: msprobe's calls and ``config.json``, writing a trueup trace under ``dump_path``.

A script that imports it from msprobe changes one import. Where it differs from msprobe 26.2.0: a model is
never needed, ``save`` works at every level, a second debugger is a real one (in msprobe it is the first
again, with any arguments), and an argument without effect warns instead of passing in silence.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from types import MethodType
from typing import ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast

from trueup import adapters
from trueup.capture import session
from trueup.capture.config import CaptureConfig, read_config
from trueup.capture.frameworks import framework_in_use
from trueup.capture.options import CaptureOptions
from trueup.capture.shield import shielded
from trueup.capture.watch import FileWatch
from trueup.errors import ConfigError
from trueup.store.layout import whole_steps
from trueup.types.option import expected

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """What the program passed; each takes precedence over the file."""

    task: str | None
    dump_path: Path | None
    level: str | None
    step: object

    def read(self, file: Path | None) -> CaptureConfig:
        """The configuration, read anew."""
        return read_config(
            file,
            task=self.task,
            dump_path=self.dump_path,
            level=self.level,
            step=self.step,
        )


class _Either(Generic[_Parameters, _Result]):
    """A method of the class as well: ``PrecisionDebugger.start()`` means the newest debugger."""

    def __init__(self, method: Callable[Concatenate[PrecisionDebugger, _Parameters], _Result]) -> None:
        self._method = method
        self.__doc__ = method.__doc__
        _, *others = signature(method).parameters.values()
        self._signature = signature(method).replace(parameters=others)

    def __get__(
        self, instance: PrecisionDebugger | None, owner: type[PrecisionDebugger]
    ) -> Callable[_Parameters, _Result]:
        if instance is not None:
            return cast("Callable[_Parameters, _Result]", MethodType(self._method, instance))

        @wraps(self._method)
        def of_newest(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            return self._method(owner.newest(), *args, **kwargs)

        of_newest.__signature__ = self._signature  # type: ignore[attr-defined]
        return of_newest


class PrecisionDebugger:
    """Captures between ``start`` and ``stop``, and counts steps with ``step``.

    Args:
        config_path: msprobe's ``config.json``; None takes msprobe's defaults.
        task: ``statistics`` or ``tensor``; this and the next three win over the file.
        dump_path: the folder the trace is written to.
        level: ``L0``, ``L1``, ``mix`` or ``debug`` (only what ``save`` is given).
        step: steps to capture, ``[0, "5-8"]``; ``[]`` or None means all.

    Every method may be called on the class as well. While the file holds ``dump_enable``, it is read again at
    ``start``, ``stop`` and ``step`` when it has changed. Under ``trueup capture`` the command line's options
    and folder hold, and only the calls count.

    Raises:
        ConfigError: an argument or the file is wrong.

    Example:
        >>> debugger = trueup.PrecisionDebugger(config_path="config.json")   # doctest: +SKIP
        >>> debugger.start(model); train_one_step(); debugger.stop(); debugger.step()   # doctest: +SKIP
    """

    _instance: ClassVar[PrecisionDebugger | None] = None
    _next_step: ClassVar[dict[Path, int]] = {}
    """folder -> the step it is at, so that a folder that is used again continues"""

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        step: object = None,
    ) -> None:
        for name, value in (("config_path", config_path), ("dump_path", dump_path)):
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise expected(f"PrecisionDebugger: {name}", "a path", value)
        self._file = None if config_path is None else Path(config_path).absolute()
        self._arguments = _Arguments(
            task=task, dump_path=Path(dump_path) if dump_path else None, level=level, step=step
        )
        config = self._arguments.read(self._file)
        self._watch = FileWatch(self._file if config.dump_enable is not None else None)
        self._enabled = config.dump_enable is not False
        self._saved_only = config.saved_only
        self._warned: set[str] = set()
        self._models: list[object] = []
        self._running = False
        if session.FROM_OUTSIDE in os.environ:
            adapters.load(framework_in_use())  # the session from outside begins when it is imported
        self._outside = session.FROM_OUTSIDE in os.environ and session.current() is not None
        self._options = self._placed(config.options)
        self.service = Service(self)
        PrecisionDebugger._instance = self
        if self._outside:
            self._warn(
                "this run was started by trueup capture: its options and folder are used, not config.json's"
            )
        self._session = self._begin()

    @classmethod
    def newest(cls) -> PrecisionDebugger:
        """The debugger made last.

        Raises:
            ConfigError: none has been made.
        """
        if cls._instance is None:
            raise ConfigError(
                "PrecisionDebugger: make one first, PrecisionDebugger(config_path=...), then call start()"
            )
        return cls._instance

    @_Either
    @shielded
    def start(
        self,
        model: object | None = None,
        token_range: object = None,
        rank_id: object = None,
        scheduled_tokens: object = None,
    ) -> None:
        """Capture on. ``model`` (or a list of them) limits it to what happens inside, for later starts too.

        Raises:
            ConfigError: ``model`` is not a model.
        """
        self._reread()
        if model is not None:
            self._models = _models(model)
        for name, value in (("token_range", token_range), ("scheduled_tokens", scheduled_tokens)):
            if value is not None:
                self._warn(f"{name} has no effect: every forward between start and stop is captured")
        if rank_id is not None and str(rank_id) != os.environ.get("RANK", "0"):
            self._warn(
                f"rank_id={rank_id} has no effect: the rank is the process group's, or the variable RANK"
            )
        if self._enabled and not self._saved_only:
            self._session = self._begin()
            self._session.start(self._models or None)
            self._running = True

    @_Either
    @shielded
    def stop(self) -> None:
        """Capture off until the next ``start``; the step continues until ``step``."""
        self._session.stop()
        self._running = False
        self._reread()

    @_Either
    @shielded
    def step(self) -> None:
        """The training step is over: write it and go on to the next number."""
        self._session = self._begin()
        self._session.step()
        self._reread()

    @_Either
    @shielded
    def save(self, variable: object, name: str, save_backward: bool = True) -> None:
        """Record a tensor, a number, or a nest of them under ``name``, between start and stop or not.

        ``save_backward``: also the gradient at each tensor, where backward runs before ``stop`` (PyTorch).
        """
        if not isinstance(name, str):
            self._warn(f"save: expected text as name (got {name!r}); nothing saved")
            return
        if not self._enabled:
            return
        self._session = self._begin()
        if not self._running:
            self._session.start(self._models or None)
        for part, value in _leaves(name, variable):
            self._session.save(part, value, backward=save_backward)
        if not self._running and not self._saved_only:
            self._session.stop()

    @_Either
    @shielded
    def set_init_step(self, step: int) -> None:
        """Number of the step under way, for a run that resumes.

        Raises:
            ConfigError: not a whole number from 0.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise expected("set_init_step", "an integer from 0", step)
        self._session.go_to_step(step)

    @_Either
    def register_custom_api(self, module: object, api: str, api_prefix: str | None = None) -> None:
        """Warns: a function of the program's own is seen through the calls it makes."""
        self._warn(f"register_custom_api({api!r}) has no effect: the calls inside it are captured")

    @_Either
    def restore_custom_api(self, module: object, api: str) -> None:
        """Nothing to restore: ``register_custom_api`` replaces nothing."""

    def _begin(self) -> session.Session:
        """The session, on this debugger's options; another debugger may have used it in between."""
        running = session.current()
        if self._outside and running is not None:
            return running
        if running is None or running.options.output != self._options.output:
            self._note_step(running)
            step = self._next_step.get(self._options.output, self._options.first_step)
            options = replace(self._options, first_step=step)
            return session.begin(options, framework=framework_in_use(self._models))
        if replace(running.options, first_step=0, append=False) != replace(
            self._options, first_step=0, append=False
        ):
            running.reconfigure(self._options)
        return running

    def _note_step(self, running: session.Session | None) -> None:
        if running is not None:
            under_way = running.clock.seen_forward or bool(running.recorder.records)
            self._next_step[running.options.output] = running.clock.step + under_way

    def _placed(self, options: CaptureOptions) -> CaptureOptions:
        """Where numbering begins: after the steps this rank has in the folder, whoever wrote them."""
        rank = _rank()
        running = session.current()
        there: list[int] = []
        own = running is not None and running.options.output == options.output
        if options.output.is_dir() and not own and not self._outside:
            there = [step for step, ranks in whole_steps(options.output).items() if rank in ranks]
        first = max(there, default=-1) + 1
        if there and options.output not in self._next_step:
            left = options.steps.last is None or options.steps.last >= first
            continues = f"continues with step {first}" if left else "has no step left to capture"
            self._warn(
                f"{options.output} already holds steps {there[0]} to {there[-1]} of an earlier process: "
                f"this one {continues}. If it is another run, give it another dump_path."
            )
        return replace(options, manual_steps=True, append=True, first_step=first)

    def _move(self, output: Path) -> None:
        """Write to another folder from the next call on."""
        arguments = replace(self._arguments, dump_path=output)
        config = arguments.read(self._file)
        self._arguments = arguments
        self._options = self._placed(config.options)

    def _reread(self) -> None:
        """Take in a changed ``config.json``; one that is wrong switches capture off and says so."""
        if not self._watch.changed():
            return
        try:
            config = self._arguments.read(self._file)
        except ConfigError as error:
            self._enabled = False
            self._session.stop()
            self._warn(
                f"config.json has changed and cannot be used, capture is off until it is corrected: {error}"
            )
            return
        self._enabled = self._enabled if config.dump_enable is None else config.dump_enable
        self._saved_only = config.saved_only
        first = self._options.first_step if config.options.output == self._options.output else 0
        self._options = replace(config.options, manual_steps=True, append=True, first_step=first)
        if not self._enabled:
            self._session.stop()

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            warnings.warn(f"PrecisionDebugger: {sentence}", UserWarning, stacklevel=3)


class Service:
    """What verl reaches for below msprobe's debugger: ``config.dump_path`` and ``reset_status``."""

    def __init__(self, debugger: PrecisionDebugger) -> None:
        self._debugger = debugger
        self.config = ServiceConfig(debugger)

    def reset_status(self) -> None:
        """What was captured since the last step is written now, as a step of its own."""
        self._debugger.step()


class ServiceConfig:
    """``dump_path``, to be read and set."""

    def __init__(self, debugger: PrecisionDebugger) -> None:
        self._debugger = debugger

    @property
    def dump_path(self) -> str:
        """The folder of the trace."""
        return str(self._debugger._options.output)

    @dump_path.setter
    def dump_path(self, path: str | os.PathLike[str]) -> None:
        self._debugger._move(Path(path).absolute())


def module_dump(module: object, dump_name: str) -> None:
    """Narrow the newest debugger to ``module`` until ``module_dump_end``; it keeps the module's own name."""
    debugger = PrecisionDebugger.newest()
    debugger._session.start(_models(module))


def module_dump_end() -> None:
    """Undo ``module_dump``."""
    debugger = PrecisionDebugger.newest()
    if debugger._running:
        debugger._session.start(debugger._models or None)
    else:
        debugger._session.stop()


def _rank() -> int:
    try:
        return int(os.environ.get("RANK", os.environ.get("RANK_ID", "0")))
    except ValueError:
        return 0


def _models(model: object) -> list[object]:
    """One model or a list of them (pipeline chunks); never asked for truth, a compiled model has none."""
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    for one in models:
        if not hasattr(one, "named_modules") and not hasattr(one, "cells_and_names"):
            raise ConfigError(
                f"PrecisionDebugger.start: {type(one).__name__} is not a model; expected a module or a "
                f"list of them"
            )
    return models


def _leaves(name: str, variable: object) -> Iterator[tuple[str, object]]:
    if isinstance(variable, dict):
        for key, value in variable.items():
            yield from _leaves(f"{name}.{key}", value)
    elif isinstance(variable, (list, tuple)):
        for index, value in enumerate(variable):
            yield from _leaves(f"{name}.{index}", value)
    elif variable is not None:
        yield name, variable
