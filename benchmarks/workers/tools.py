"""The tools a worker can run under: none, trueup, msprobe. Runs in either tool's environment."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Protocol


class Tool(Protocol):
    """Captures the steps of a training loop."""

    def attach(self, model: Any, optimizer: Any) -> None:
        """Both are made; the first step comes."""

    def begin_step(self, model: Any) -> None:
        """A step begins."""

    def end_step(self) -> None:
        """The step is over."""

    def close(self) -> None:
        """Everything is on disk afterwards."""


class Nothing:
    """Capture off."""

    def attach(self, model: Any, optimizer: Any) -> None:
        """Nothing."""

    def begin_step(self, model: Any) -> None:
        """Nothing."""

    def end_step(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Trueup:
    """trueup's ``Tracer``, which sees steps by itself."""

    def __init__(self, output: Path, options: dict[str, Any]) -> None:
        import trueup

        watched = {"monitor": trueup.Monitor(**options["monitor"])} if "monitor" in options else {}
        self._tracer = trueup.Tracer(output, **{"steps": "all", **options, **watched})
        self._tracer.start()

    def attach(self, model: Any, optimizer: Any) -> None:
        """Nothing to say."""

    def begin_step(self, model: Any) -> None:
        """Nothing to say."""

    def end_step(self) -> None:
        """Nothing to say."""

    def close(self) -> None:
        """Write the last step."""
        self._tracer.close()


class Msprobe:
    """msprobe's ``PrecisionDebugger`` over a config.json of its own."""

    def __init__(self, output: Path, options: dict[str, Any]) -> None:
        if options.get("framework") == "mindspore":
            from msprobe.mindspore import PrecisionDebugger
        else:
            from msprobe.pytorch import PrecisionDebugger

        task = options.get("task", "statistics")
        of_task = {
            "scope": [],
            "list": [],
            "data_mode": ["all"],
            "summary_mode": options.get("summary_mode", "statistics"),
        }
        config = {
            "task": task,
            "dump_path": str(output),
            "rank": [],
            "step": [],
            "level": options["level"],
            task: of_task,
        }
        output.mkdir(parents=True, exist_ok=True)
        path = output.parent / f"{output.name}.config.json"
        path.write_text(json.dumps(config))
        self._debugger = PrecisionDebugger(config_path=str(path))

    def attach(self, model: Any, optimizer: Any) -> None:
        """It is given the model at every step."""

    def begin_step(self, model: Any) -> None:
        """Capture on."""
        self._debugger.start(model=model)

    def end_step(self) -> None:
        """Capture off, step written."""
        self._debugger.stop()
        self._debugger.step()

    def close(self) -> None:
        """Nothing is left to write."""


class MsprobeMonitor:
    """msprobe's ``TrainerMon``: gradients and weights of every step, by the hooks of the optimizer."""

    def __init__(self, output: Path, options: dict[str, Any]) -> None:
        os.environ["MONITOR_OUTPUT_DIR"] = str(output)
        from msprobe.pytorch import TrainerMon

        kinds = {"wg_distribution": True, "param_distribution": True}
        config = {"targets": {}, "format": "csv", "ops": ["min", "max", "mean", "norm"], **kinds, **options}
        output.mkdir(parents=True, exist_ok=True)
        path = output.parent / f"{output.name}.config.json"
        path.write_text(json.dumps(config))
        self._monitor = TrainerMon(config_file_path=str(path), params_have_main_grad=False)

    def attach(self, model: Any, optimizer: Any) -> None:
        """Put its hooks in place."""
        self._monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)

    def begin_step(self, model: Any) -> None:
        """Nothing to say."""

    def end_step(self) -> None:
        """Nothing to say."""

    def close(self) -> None:
        """Nothing is left to write."""


def tool_from(spec: dict[str, Any]) -> Tool:
    """The tool a specification names, set up to write to its ``output``."""
    if spec["tool"] is None:
        return Nothing()
    kind = {"trueup": Trueup, "msprobe": Msprobe, "msprobe_monitor": MsprobeMonitor}[spec["tool"]]
    return kind(Path(spec["output"]), spec["options"])


class Stopwatch:
    """Wall and CPU seconds, of this process and its children that ended."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin at zero."""
        self._began = _now()

    def read(self) -> dict[str, float]:
        """Seconds since the start."""
        wall, cpu = (now - began for now, began in zip(_now(), self._began, strict=True))
        return {"wall_seconds": wall, "cpu_seconds": cpu}


def _now() -> tuple[float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return perf_counter(), process_time() + children.ru_utime + children.ru_stime
