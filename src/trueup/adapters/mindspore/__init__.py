"""The MindSpore adapter. Importing it imports MindSpore; only ``adapters.load("mindspore")`` does."""

from __future__ import annotations

import mindspore
from mindspore import Tensor, nn

from trueup.adapters.base import Recorder, Sink
from trueup.adapters.measures import Measured, Wanted
from trueup.adapters.mindspore import api, collectives, compiled, long_run, modules, training
from trueup.adapters.mindspore.determinism import contrary
from trueup.adapters.mindspore.engine import Engine
from trueup.adapters.mindspore.forcing import forcing_from_options
from trueup.adapters.mindspore.measures import Measures
from trueup.adapters.mindspore.settings import configuration_of, settings_of
from trueup.adapters.mindspore.world import place

__all__ = ["Adapter"]


class Adapter:
    """What ``adapters.base.Adapter`` asks for, for MindSpore."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._engine = Engine(sink)
        self._cells_set: dict[str, dict[str, object]] = {}
        self._models_set: dict[str, dict[str, object]] = {}

    def install(self) -> None:
        """Put the hooks in place; they stay, and look at one flag while nothing is captured."""
        modules.install(self._engine)
        self._take_changes()
        training.install(self._engine.training)
        collectives.install(self._engine)
        self._engine.forcing = forcing_from_options(self._engine)
        compiled.install(self._engine)
        api.install(self._engine)

    def adopt(self) -> None:
        """The session has other options now."""
        self._engine.adopt(self._sink)
        self._engine.forcing = forcing_from_options(self._engine)
        self._take_changes()
        api.install(self._engine)

    def _take_changes(self) -> None:
        """What the person wants changed in the run; what cannot be is said, never left out in silence."""
        self._engine.long_run = long_run.begin(self._engine)
        options = self._sink.options
        if "labels" in options.store_values_of and not self._engine.api_on:
            self._sink.limit(
                "labels are known from API calls in MindSpore: capture at level L1 or mix for them"
            )
        if "dropout" in options.store_values_of:
            self._sink.limit("what dropout dropped is not sampled in MindSpore programs")

    def watch(self, wanted: Wanted | None) -> None:
        """From now on measure this in the steps that are watched; None: nothing."""
        engine = self._engine
        engine.measures = None if wanted is None else Measures(engine, wanted)
        engine.watched = {} if engine.measures is None else engine.measures.watched

    def measure(self, on: bool) -> None:
        """Whether the step that begins is measured."""
        if self._engine.measures is not None:
            self._engine.measures.on = on

    def measured(self) -> Measured:
        """What was measured in the step under way."""
        with self._engine.quiet():
            return Measured() if self._engine.measures is None else self._engine.measures.take()

    def set_models(self, models: list[object]) -> None:
        """Restrict capture to these models; an empty list means every model that trains."""
        self._engine.restrict([m for m in models if isinstance(m, nn.Cell)])

    def save(self, name: str, value: object, *, backward: bool) -> None:
        """Record a tensor the program hands over by name; the gradient at it is not seen."""
        if not isinstance(value, Tensor):
            raise TypeError(f"save({name!r}) takes a tensor or a number, not {type(value).__name__}")
        with self._engine.quiet():
            call = self._engine.add_call("api", f"save.{name}", None, "train", self._engine.enclosing())
            self._engine.tensor(call, "forward", "output.0", value)

    def to_host(self) -> None:
        """Gradients still on their way will not come."""
        self._engine.flush_gradients()

    def on_its_way(self, recorder: Recorder | None, scalars: dict[str, object]) -> None:
        """Rows are written when a tensor is seen."""

    def item(self, value: object) -> float | None:
        """A noted scalar as a Python number; what is none is None."""
        if isinstance(value, Tensor):
            with self._engine.quiet():
                value = value.asnumpy().item() if value.size == 1 else None
        return value if isinstance(value, (int, float)) else None

    def overflows(self, *, skipped: bool) -> list[dict[str, object]]:
        """Where values that are not finite were made in the step under way."""
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

    def manifest(self) -> dict[str, object]:
        """Framework facts for the manifest."""
        mode = mindspore.get_context("mode")
        deterministic = mindspore.get_context("deterministic") == "ON"
        for sentence in contrary() if deterministic else []:
            self._sink.limit(sentence)
        return {
            "framework_version": mindspore.__version__,
            "mode": "graph" if mode == mindspore.GRAPH_MODE else "pynative",
            "deterministic_algorithms": deterministic,
            "devices": [str(mindspore.get_context("device_target"))],
            "default_dtype": "float32",
        }

    def reached_code(self) -> dict[str, object] | None:
        """The program's functions that the calls so far can reach."""
        return self._engine.reached_code()

    def rank_facts(self) -> dict[str, object]:
        """Parameter table, roots, opaque cells, optimizers."""
        engine = self._engine
        roots = [(reference(), name) for reference, name in engine.roots]
        return {
            "local_rank": self.rank()[2],
            "coordinate": {},
            "parameters": list(engine.parameter_table.values()),
            "roots": [
                {"name": name, "type": engine.class_of(cell)} for cell, name in roots if cell is not None
            ],
            "wrapped_by": list(engine.wrapped_by),
            "optimizers": list(engine.training.optimizers.values()),
            "opaque": [{"name": name, "type": kind} for name, kind in engine.opaque_modules.items()],
            **({} if engine.forcing is None else {"replay": engine.forcing.facts()}),
            **({"given_gradients": given.facts()} if (given := engine.training.given) else {}),
            **({} if engine.long_run is None else {"long_run": engine.long_run.facts()}),
            **self._settings([(cell, name) for cell, name in roots if cell is not None]),
        }

    def _settings(self, roots: list[tuple[nn.Cell, str]]) -> dict[str, object]:
        """How the cells are set, where that is captured; kept when a cell is gone."""
        if "configuration" not in self._sink.options.store_values_of:
            return {}
        for cell, name in roots:
            self._cells_set |= settings_of(self._engine.modules_below(cell), name)
            self._models_set |= {name: found} if (found := configuration_of(cell)) else {}
        return {"settings": self._cells_set, "configuration": self._models_set}

    def rank(self) -> tuple[int, int, int]:
        """rank, world size, local rank."""
        return place()
