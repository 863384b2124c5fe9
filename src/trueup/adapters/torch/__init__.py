"""The PyTorch adapter. Importing it imports torch; only ``adapters.load("torch")`` does."""

from __future__ import annotations

import torch

from trueup.adapters.adapter import Attributes, BaseAdapter
from trueup.adapters.base import OnItsWay, Recorder, Sink
from trueup.adapters.measures import Wanted
from trueup.adapters.torch import (
    api,
    collectives,
    dynamo,
    escapes,
    gradients,
    long_run,
    modules,
    regions,
    training,
)
from trueup.adapters.torch.device import recording
from trueup.adapters.torch.engine import Engine
from trueup.adapters.torch.forcing import forcing_from_options
from trueup.adapters.torch.measures import Measures
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.settings import configuration_of, settings_of
from trueup.adapters.torch.world import place

__all__ = ["Adapter"]


class Adapter(BaseAdapter[torch.nn.Module, torch.Tensor]):
    """What ``adapters.base.Adapter`` asks for, for PyTorch."""

    _engine: Engine

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._engine = Engine(sink)
        self._mode: api.ApiMode | None = None
        self._regions: regions.Regions | None = None

    def install(self) -> None:
        """Put the hooks in place; they stay, and look at one flag while nothing is captured."""
        engine = self._engine
        modules.install(engine)
        engine.long_run = long_run.begin(engine)
        training.install(engine.training)
        long_run.complete()
        self._regions = regions.begin(engine)
        collectives.install(engine)
        escapes.install(engine)
        recording.install()
        engine.forcing = forcing_from_options(engine)
        self._mode = api.install(engine)
        dynamo.skip_package()

    def adopt(self) -> None:
        """The session has other options now."""
        self._engine.adopt(self._sink)
        self._engine.long_run = long_run.begin(self._engine)
        long_run.complete()
        self._engine.forcing = forcing_from_options(self._engine)
        self._mode = api.install(self._engine)

    def set_models(self, models: list[object]) -> None:
        """Restrict capture to these models; an empty list means every model that trains."""
        self._engine.restrict([m for m in models if isinstance(m, torch.nn.Module)])

    def save(self, name: str, value: object, *, backward: bool) -> None:
        """Record a tensor the program hands over by name; with ``backward`` the total gradient at it too."""
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"save({name!r}) takes a tensor or a number, not {type(value).__name__}")
        with quiet():
            frame = self._engine.enclosing()
            call = self._engine.add_call("api", f"save.{name}", None, "train", frame)
            self._engine.tensor(call, "forward", "output.0", value)
            if backward:
                gradients.at_outputs(self._engine, call, [("output.0", value)])

    def measures(self, wanted: Wanted) -> Measures:
        """What measures this in the steps that are watched."""
        return Measures(self._engine, wanted)

    def to_host(self) -> None:
        """Bring everything still on a device into the recorder's rows."""
        with quiet():
            self._engine.training.step_ends()
            self._engine.flush_gradients()
            self._engine.summariser.to_host()

    def on_its_way(self, recorder: Recorder | None, scalars: dict[str, object]) -> OnItsWay | None:
        """Start the copies; see ``adapters.base``."""
        with quiet():
            if recorder is not None:
                self._engine.training.step_ends()
                self._engine.flush_gradients()
            return self._engine.summariser.on_its_way(recorder, scalars)

    def item(self, value: object) -> float | None:
        """A noted scalar as a Python number; complex and non-numeric values are None."""
        if isinstance(value, torch.Tensor):
            with quiet():
                value = value.item() if value.numel() == 1 and not value.is_complex() else None
        return value if isinstance(value, (int, float)) else None

    def manifest(self) -> dict[str, object]:
        """Framework facts for the manifest."""
        facts: dict[str, object] = {
            "framework_version": torch.__version__,
            "num_threads": torch.get_num_threads(),
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "devices": [],
        }
        if torch.cuda.is_available():
            facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            facts["cuda"] = torch.version.cuda
            products = torch.backends.cuda.matmul
            for name in ("bf16", "fp16"):
                setting = f"allow_{name}_reduced_precision_reduction"
                facts[setting] = bool(getattr(products, setting))
            facts["allow_tf32"] = products.allow_tf32
        return facts

    def rank_facts(self) -> dict[str, object]:
        """Parameter table, roots, opaque modules, optimizers."""
        engine = self._engine
        return {
            **super().rank_facts(),
            "buffers": list(engine.training.buffers.table.values()),
            **({} if (averages := engine.training.averages.facts()) is None else {"averages": averages}),
            **({"masters": masters} if (masters := engine.training.averages.master_facts()) else {}),
            "groups": engine.groups,
            "optimizers": list(engine.training.optimizers.values()),
            **({"summarised_by": paths} if (paths := engine.summariser.paths()) else {}),
            **({} if self._regions is None else {"compiled": self._regions.facts()}),
            **({"given_gradients": given.facts()} if (given := engine.training.given) else {}),
        }

    def settings(self, module: torch.nn.Module, name: str) -> tuple[Attributes, dict[str, object]]:
        """How the modules of a root are set, by name, and the configuration it was made from."""
        return settings_of(module, name), configuration_of(module)

    def _settings(self) -> dict[str, object]:
        found = super()._settings()
        for fqn, mode in self._engine.training.buffers.modes_of_all().items() if found else ():
            self._modules_set.setdefault(fqn, {})["training"] = mode
        return found

    def rank(self) -> tuple[int, int, int]:
        """rank, world size, local rank."""
        return place()
