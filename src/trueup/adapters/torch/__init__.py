"""The PyTorch adapter. Importing it imports torch; only ``adapters.load("torch")`` does."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from trueup.adapters.base import OnItsWay, Recorder, Sink
from trueup.adapters.measures import Measured, Wanted
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

__all__ = ["Adapter"]


class Adapter:
    """What ``adapters.base.Adapter`` asks for, for PyTorch."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._engine = Engine(sink)
        self._mode: api.ApiMode | None = None
        self._modules_set: dict[str, dict[str, object]] = {}
        self._models_set: dict[str, dict[str, object]] = {}
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
        dynamo.leave_alone()

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
        with quiet():
            return Measured() if self._engine.measures is None else self._engine.measures.take()

    def to_host(self) -> None:
        """Bring everything still on a device into the recorder's rows."""
        with quiet():
            self._engine.flush_gradients()
            self._engine.summariser.to_host()

    def on_its_way(self, recorder: Recorder | None, scalars: dict[str, object]) -> OnItsWay | None:
        """Start the copies; see ``adapters.base``."""
        with quiet():
            if recorder is not None:
                self._engine.flush_gradients()
            return self._engine.summariser.on_its_way(recorder, scalars)

    def item(self, value: object) -> float | None:
        """A noted scalar as a Python number; complex and non-numeric values are None."""
        if isinstance(value, torch.Tensor):
            with quiet():
                value = value.item() if value.numel() == 1 and not value.is_complex() else None
        return value if isinstance(value, (int, float)) else None

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

    def reached_code(self) -> dict[str, object] | None:
        """The program's functions that the calls so far can reach."""
        return self._engine.reached_code()

    def rank_facts(self) -> dict[str, object]:
        """Parameter table, roots, opaque modules, optimizers."""
        engine = self._engine
        roots = [(r(), name) for r, name in engine.roots]
        return {
            "local_rank": self.rank()[2],
            "coordinate": {},
            "parameters": list(engine.parameter_table.values()),
            "buffers": list(engine.training.buffers.table.values()),
            "roots": engine.root_types(),
            "wrapped_by": list(engine.wrapped_by),
            "groups": engine.groups,
            "optimizers": list(engine.training.optimizers.values()),
            "opaque": [{"name": name, "type": kind} for name, kind in engine.opaque_modules.items()],
            **({"summarised_by": paths} if (paths := engine.summariser.paths()) else {}),
            **({} if engine.long_run is None else {"long_run": engine.long_run.facts()}),
            **({} if self._regions is None else {"compiled": self._regions.facts()}),
            **({} if engine.forcing is None else {"replay": engine.forcing.facts()}),
            **({"given_gradients": given.facts()} if (given := engine.training.given) else {}),
            **self._settings([(module, name) for module, name in roots if module is not None]),
        }

    def _settings(self, roots: list[tuple[torch.nn.Module, str]]) -> dict[str, object]:
        """How the modules are set, where that is captured; kept when a module is gone."""
        if "configuration" not in self._sink.options.store_values_of:
            return {}
        for module, name in roots:
            self._modules_set |= settings_of(module, name)
            self._models_set |= {name: found} if (found := configuration_of(module)) else {}
        for fqn, mode in self._engine.training.buffers.modes_of_all().items():
            self._modules_set.setdefault(fqn, {})["training"] = mode
        return {"settings": self._modules_set, "configuration": self._models_set}

    def rank(self) -> tuple[int, int, int]:
        """rank, world size, local rank."""
        local = int(os.environ.get("LOCAL_RANK", 0))
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size(), local
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), local
