"""The MindSpore adapter. Importing it imports MindSpore; only ``adapters.load("mindspore")`` does."""

from __future__ import annotations

import mindspore
from mindspore import Tensor, nn

from trueup.adapters.adapter import Attributes, BaseAdapter
from trueup.adapters.base import Recorder, Sink
from trueup.adapters.measures import Wanted
from trueup.adapters.mindspore import api, collectives, compiled, long_run, modules, training
from trueup.adapters.mindspore.determinism import contrary
from trueup.adapters.mindspore.engine import Engine
from trueup.adapters.mindspore.forcing import forcing_from_options
from trueup.adapters.mindspore.measures import Measures
from trueup.adapters.mindspore.settings import configuration_of, settings_of
from trueup.adapters.mindspore.world import place

__all__ = ["Adapter"]


class Adapter(BaseAdapter[nn.Cell, Tensor]):
    """What ``adapters.base.Adapter`` asks for, for MindSpore."""

    _engine: Engine

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._engine = Engine(sink)

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

    def measures(self, wanted: Wanted) -> Measures:
        """What measures this in the steps that are watched."""
        return Measures(self._engine, wanted)

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

    def rank_facts(self) -> dict[str, object]:
        """Parameter table, roots, opaque cells, optimizers."""
        training = self._engine.training
        return {
            **super().rank_facts(),
            "optimizers": list(training.optimizers.values()),
            **({"given_gradients": given.facts()} if (given := training.given) else {}),
        }

    def settings(self, module: nn.Cell, name: str) -> tuple[Attributes, dict[str, object]]:
        """How the cells of a root are set, by name, and the configuration it was made from."""
        return settings_of(self._engine.modules_below(module), name), configuration_of(module)

    def rank(self) -> tuple[int, int, int]:
        """rank, world size, local rank."""
        return place()
