"""What the adapter of every framework does alike with its engine (``adapters.base.Adapter``)."""

from __future__ import annotations

from typing import Generic

from trueup.adapters.base import ModuleT, Sink, TensorT
from trueup.adapters.engine import BaseEngine
from trueup.adapters.measures import Measured, Wanted
from trueup.adapters.measuring import BaseMeasures

Attributes = dict[str, dict[str, object]]


class BaseAdapter(Generic[ModuleT, TensorT]):
    """One framework's side."""

    _engine: BaseEngine[ModuleT, TensorT]

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._modules_set: Attributes = {}
        self._models_set: Attributes = {}

    # -- what is measured ------------------------------------------

    def measures(self, wanted: Wanted) -> BaseMeasures[ModuleT, TensorT]:
        """What measures this in the steps that are watched."""
        raise NotImplementedError

    def watch(self, wanted: Wanted | None) -> None:
        """From now on measure this in the steps that are watched; None: nothing."""
        engine = self._engine
        engine.measures = None if wanted is None else self.measures(wanted)
        engine.watched = {} if engine.measures is None else engine.measures.watched

    def measure(self, on: bool) -> None:
        """Whether the step that begins is measured."""
        if self._engine.measures is not None:
            self._engine.measures.on = on

    def measured(self) -> Measured:
        """What was measured in the step under way."""
        with self._engine.quiet():
            return Measured() if self._engine.measures is None else self._engine.measures.take()

    # -- what the session asks ------------------------------------------

    def overflows(self, *, skipped: bool) -> list[dict[str, object]]:
        """With task ``overflow_check``: where values that are not finite were made in the step under way."""
        watch = self._engine.overflow
        return [] if watch is None else watch.found(skipped=skipped)

    def unkept(self) -> list[str]:
        """Changes of the run that were asked for and did not happen; asked once the run is over."""
        return [] if self._engine.long_run is None else self._engine.long_run.unkept()

    def let_go(self) -> None:
        """The session is over: what the program does from now on is no longer changed in any way."""
        self._engine.let_go()

    def end_step(self) -> None:
        """The step under way is over: forget everything tied to it."""
        self._engine.end_step()

    def reached_code(self) -> dict[str, object] | None:
        """The program's functions that the calls so far can reach."""
        found, called = self._engine.reached_code(), self._engine.called
        if found is not None and self._engine.names_functions and not called.is_over:
            found = {**found, "called": called.to_plain()}
        return found

    def rank(self) -> tuple[int, int, int]:
        """rank, world size, local rank."""
        raise NotImplementedError

    def rank_facts(self) -> dict[str, object]:
        """Parameter table, roots, opaque modules."""
        engine = self._engine
        return {
            "local_rank": self.rank()[2],
            "coordinate": {},
            "parameters": list(engine.parameter_table.values()),
            "roots": engine.root_types(),
            "wrapped_by": list(engine.wrapped_by),
            "opaque": [{"name": name, "type": kind} for name, kind in engine.opaque_modules.items()],
            **({} if engine.long_run is None else {"long_run": engine.long_run.facts()}),
            **({} if engine.forcing is None else {"replay": engine.forcing.facts()}),
            **self._settings(),
        }

    def settings(self, module: ModuleT, name: str) -> tuple[Attributes, dict[str, object]]:
        """How the modules of a root are set, by name, and the configuration it was made from."""
        raise NotImplementedError

    def _settings(self) -> dict[str, object]:
        """Of all roots, where that is captured; kept when a module is gone."""
        if "configuration" not in self._sink.options.store_values_of:
            return {}
        for reference, name in self._engine.roots:
            if (module := reference()) is not None:
                found, configuration = self.settings(module, name)
                self._modules_set |= found
                self._models_set |= {name: configuration} if configuration else {}
        return {"settings": self._modules_set, "configuration": self._models_set}
