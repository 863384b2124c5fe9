"""Compiled regions, with ``CaptureOptions.compiled``: none is compiled, or each is measured.

A region is what dynamo hands to a compiler at once. The first call of each, in each captured step and for
each module it runs for, is also made on copies of its inputs, before the program makes it: compiled, by its
own graph without the compiler, and so again with every operation moved by rounding. The gradients are those
of 1 for an output that is a number, of fixed random numbers for others. The program's tensors and random
state stay as they are.

Inductor draws random numbers of its own; ``fallback_random`` lets both runs draw the same.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from trueup.adapters.torch import region_graph
from trueup.adapters.torch.quiet import quiet

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

Compiled = Callable[..., Any]
_current: Regions | None = None
_installed: list[bool] = []


@dataclass(slots=True, kw_only=True)
class Region:
    """One, in one shape."""

    number: str
    """dynamo's: ``frame/compilation``"""
    function: str
    graph: fx.GraphModule
    compiler: Any
    compiled: Compiled
    code: list[str]
    """files of generated source"""
    names: list[str]
    """of inputs"""
    module: str | None = None
    """which module's call it is; None: not called yet"""
    in_module: bool = True
    """it is called inside some module's call; with no name, inside the outermost"""
    skipped: str = ""
    """why nothing was measured"""
    calls: list[dict[str, object]] = field(default_factory=list)
    seen: set[tuple[int, str]] = field(default_factory=set)

    def facts(self) -> dict[str, object]:
        """For the trace."""
        return {
            "region": self.number,
            "function": self.function,
            "module": self.module or "",
            "in_module": self.in_module,
            "operations": sum(node.op.startswith("call") for node in self.graph.graph.nodes),
            "code": self.code,
            "skipped": self.skipped,
            "calls": self.calls,
        }


class Regions:
    """Those of this process."""

    def __init__(self, engine: Engine, *, compiled: bool) -> None:
        self.engine, self.compiled = engine, compiled
        self.all: list[Region] = []
        self.busy = False

    def facts(self) -> dict[str, object]:
        """For the trace."""
        if "torch._dynamo.utils" not in sys.modules:
            return {"regions": []}
        counters = sys.modules["torch._dynamo.utils"].counters
        breaks = {str(why).strip().splitlines()[0]: number for why, number in counters["graph_break"].items()}
        again = sum(int(one.number.rpartition("/")[2].partition("_")[0] or 0) > 0 for one in self.all)
        return {
            "regions": [one.facts() for one in self.all],
            "graph_breaks": breaks,
            "recompiles": again,
        }

    def made(self, graph: fx.GraphModule, output: Any, compiled: Compiled, begun: int) -> Compiled:
        """The compiler has returned: what the program is to call."""
        code = output.root_tx.f_code
        region = Region(
            number=str(output.dynamo_compile_id),
            function=f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})",
            graph=graph,
            compiler=output.compiler_fn,
            compiled=compiled,
            code=_generated(begun),
            names=[_input_name(node) for node in graph.graph.nodes if node.op == "placeholder"],
        )
        self.all.append(region)

        @functools.wraps(compiled)
        def call(*given: object) -> object:
            self._before(region, given)
            return compiled(*given)

        return call

    def _before(self, region: Region, given: Sequence[object]) -> None:
        """Never raises."""
        if self.busy or not self.engine.sink.active:
            return
        frame = self.engine.enclosing()
        where = (self.engine.sink.recorder.step, frame.name if frame is not None else "")
        if where in region.seen:
            return
        region.seen.add(where)
        if region.module is None:
            region.module, region.in_module = where[1], frame is not None
        self.busy = True
        begun = _num_generated()
        try:
            with quiet(), _unseen(self.engine), _undisturbed() as again:
                self._measure(region, given, where, again)
        except Exception as error:
            region.skipped = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            self.busy = False
            region.code += [one for one in _generated(begun) if one not in region.code]

    def _measure(
        self, region: Region, given: Sequence[object], where: tuple[int, str], again: Callable[[], None]
    ) -> None:
        if not region_graph.plain(given):
            region.skipped = "inputs are tensors of a class of their own, such as DTensor"
            return
        if any("c10d" in str(node.target) for node in region.graph.graph.nodes):
            region.skipped = "it communicates with other ranks"
            return
        rows: dict[str, dict[str, object]] = {}
        for scalars in (True, False):

            def values(
                run: Compiled, seed: int | None = None, *, scalars: bool = scalars
            ) -> region_graph.Values:
                again()
                return region_graph.evaluate(run, given, region.names, scalars=scalars, seed=seed)

            eager = values(region.graph.forward)
            compiled = values(region.compiled)
            moved = [values(region_graph.moved_run(region.graph, seed), seed) for seed in region_graph.SEEDS]
            for name in eager:
                row = region_graph.measured(name, compiled, eager, moved)
                if name not in rows or _excess(row) > _excess(rows[name]):
                    rows[name] = row
        beyond = [row for row in rows.values() if _excess(row) > 1]
        call: dict[str, object] = {"step": where[0], "module": where[1], "tensors": list(rows.values())}
        region.calls.append(call)
        if beyond and not any("operation" in one for one in region.calls):
            with _apart():
                search = region_graph.Search(
                    graph=region.graph,
                    compile=functools.partial(_compile_again, region),
                    given=given,
                    prepare=again,
                )
                call["operation"] = search.first()


def _excess(row: dict[str, Any]) -> float:
    return float(row["difference"] / row["allowed"]) if row["allowed"] else float(row["difference"] > 0) * 2.0


def begin(engine: Engine) -> Regions | None:
    """What was asked for; None where regions are left alone."""
    global _current
    wanted: str | None = engine.sink.options.compiled
    _current = None if wanted is None else Regions(engine, compiled=wanted == "measured")
    engine.uncompiled = wanted == "eager"
    if _current is not None and not _installed:
        _installed.append(True)
        _wait_for_compile()
    return _current


def _wait_for_compile() -> None:
    """Importing the compiler takes seconds and reads the environment: only once the program does."""
    original = torch.compile

    @functools.wraps(original)
    def compile_(*args: Any, **kwargs: Any) -> Any:
        if _current is not None and len(_installed) == 1:
            _installed.append(True)
            try:
                _install(_current)
            except Exception as error:
                _current.engine.failed("torch.compile", error)
        return original(*args, **kwargs)

    torch.compile = compile_


def _install(regions: Regions) -> None:
    if not regions.compiled:
        _force_eager()
        return
    from torch._dynamo.output_graph import OutputGraph
    from torch._inductor import config as inductor

    inductor.fallback_random = True
    original = OutputGraph.call_user_compiler

    @functools.wraps(original)
    def call_user_compiler(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        graph, begun = None, _num_generated()
        try:
            if _current is not None and not _current.busy:
                graph = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        except Exception as error:
            regions.engine.failed("torch.compile", error)
        compiled = original(self, gm, *args, **kwargs)
        if _current is None or graph is None:
            return compiled
        return _current.made(graph, self, compiled, begun)

    OutputGraph.call_user_compiler = call_user_compiler  # type: ignore[method-assign]


def _force_eager() -> None:
    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")
        return
    # below 2.6: what that does, where a compiled function is entered
    eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
    original = eval_frame.set_eval_frame
    eval_frame.set_eval_frame = lambda callback: original(None if callable(callback) else callback)


def _compile_again(region: Region, graph: fx.GraphModule) -> Compiled:
    compiled: Compiled = torch.compile(graph, backend=region.compiler, dynamic=False)
    return compiled


@contextmanager
def _unseen(engine: Engine) -> Iterator[None]:
    """What runs in here is no part of the program."""
    local = engine.local
    before = local.depth, local.opaque, local.in_backward
    local.depth, local.opaque, local.in_backward = before[0] + 1, before[1] + 1, True
    try:
        yield
    finally:
        local.depth, local.opaque, local.in_backward = before


@contextmanager
def _undisturbed() -> Iterator[Callable[[], None]]:
    """Random state as it was at the end; what is given sets it so before each evaluation."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        states = torch.get_rng_state(), [torch.cuda.get_rng_state(one) for one in devices]

        def again() -> None:
            torch.set_rng_state(states[0])
            for one, state in zip(devices, states[1], strict=True):
                torch.cuda.set_rng_state(state, one)

        yield again


@contextmanager
def _apart() -> Iterator[None]:
    """What is compiled in here is not the program's: it is not counted, and no cache is read or written
    (graphs with more outputs have come out of inductor's with other results than they went in)."""
    counters = sys.modules["torch._dynamo.utils"].counters
    kept = {name: Counter(numbers) for name, numbers in counters.items()}
    inductor = sys.modules.get("torch._inductor.config")
    try:
        with ExitStack() as stack:
            if inductor is not None:
                stack.enter_context(inductor.patch(force_disable_caches=True))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            yield
    finally:
        counters.clear()
        counters.update(kept)


def _cache() -> Any:
    return getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)


def _num_generated() -> int:
    return len(getattr(_cache(), "modules", ()))


def _generated(begun: int) -> list[str]:
    """Files of source that inductor has loaded since it had loaded ``begun``."""
    files = [str(getattr(one, "__file__", "")) for one in getattr(_cache(), "modules", [])[begun:]]
    return [one for one in dict.fromkeys(files) if one and Path(one).exists()]


def _input_name(node: fx.Node) -> str:
    given = node.meta.get("grapharg")
    source = getattr(given, "source", None)
    name = getattr(source, "name", node.name)
    return region_graph.module_of(str(name() if callable(name) else name)) or node.name
