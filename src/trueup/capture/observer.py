"""The observer of a run while it trains, as a session sees it.

Capture has no observer of its own: one is passed (``Tracer(monitor=...)``), or named by the options of a run
that is started from outside, and created in the process that trains.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trueup.adapters.measures import Measured, Wanted
from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup.types.trace import ScalarLine

if TYPE_CHECKING:
    from trueup.capture.session import Session

_SITE = "the monitor"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """The run that begins, as far as this process knows it."""

    output: Path
    rank: int
    world_size: int
    first_step: int
    command: tuple[str, ...]


class Observer(Protocol):
    """Told of every step; never asked to change anything. Its errors are noted and go no further."""

    def described(self) -> dict[str, object]:
        """``made_by`` (``module:function``) and ``settings`` (plain values) that make the same again."""

    def begin(self, run: WatchedRun) -> Wanted:
        """The run is open. Returns what is to be measured."""

    def measures(self, step: int) -> bool:
        """Whether a step that begins is measured."""

    def captures(self, step: int) -> bool:
        """Whether a step that begins is captured in full, also where the options do not."""

    def step_over(self, line: ScalarLine, measured: Measured) -> None:
        """A step is over: ``line`` is what is about to be written of its scalars, and may be added to."""

    def rollout(self, run: WatchedRun, step: int, arrays: Mapping[str, Array]) -> None:
        """Log-probs of a step's sampled tokens by inference engine and trainer, in the process that knows
        both (it may train nothing: verl's driver)."""

    def close(self) -> None:
        """The run is over."""


def observer_from_description(description: dict[str, object] | None) -> Observer | None:
    """The observer that ``described`` described; None for None.

    Raises:
        ConfigError: it names nothing that can be imported and called.
    """
    if description is None:
        return None
    module, _, name = str(description.get("made_by")).partition(":")
    try:
        make: Callable[[object], Observer] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"observer {description.get('made_by')!r} cannot be imported: {error}") from error
    return make(description.get("settings") or {})


class Watch:
    """A session's observer, if it has one: what it is asked and told, and when."""

    def __init__(self, session: Session, observer: Observer | None) -> None:
        self._session = session
        self._observer = observer

    @property
    def observer(self) -> Observer | None:
        """Who watches."""
        return self._observer

    def begin(self, world_size: int) -> None:
        """The run is open: its rank is known."""
        observer, session = self._observer, self._session
        if observer is None:
            return
        with session.guard(_SITE):
            run = WatchedRun(
                output=session.output,
                rank=session.rank,
                world_size=world_size,
                first_step=session.clock.step,
                command=tuple(sys.orig_argv),
            )
            session.adapter.watch(observer.begin(run))

    def step_begins(self, step: int) -> None:
        """A training forward begins, of a new step or the one under way."""
        if self._observer is not None:
            with self._session.guard(_SITE):
                self._session.adapter.measure(self._observer.measures(step))

    def captures(self, step: int) -> bool:
        """Whether the observer wants a step in full."""
        if self._observer is not None:
            with self._session.guard(_SITE):
                return self._observer.captures(step)
        return False

    def step_over(self, line: ScalarLine) -> None:
        """A step is over."""
        if self._observer is not None:
            with self._session.guard(_SITE):
                self._observer.step_over(line, self._session.adapter.measured())

    def close(self) -> None:
        """The run is over."""
        if self._observer is not None:
            with self._session.guard(_SITE):
                self._session.adapter.watch(None)
                self._observer.close()
            self._observer = None
