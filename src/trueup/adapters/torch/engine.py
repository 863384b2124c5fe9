"""What every hook shares: who is calling, what a tensor's row is, and whether anything is wanted at all."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trueup.adapters.base import Recorder, Sink
from trueup.adapters.torch.long_run import LongRun
from trueup.adapters.torch.overflow import OverflowWatch
from trueup.adapters.torch.reentrant import Reentrant
from trueup.adapters.torch.stacks import Stacks
from trueup.adapters.torch.stats import Summariser
from trueup.adapters.torch.training import Training
from trueup.adapters.torch.uninitialised import Uninitialised

TRANSPARENT = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "CheckpointWrapper")
"""wrappers that only forward: not sites themselves, so that a wrapped run has the sites of a bare one"""


MODULE_CALL = nn.Module._call_impl.__code__
"""inside a captured module call, the frame where torch's own machinery begins"""


class Frame:
    """One module call under way in one thread."""

    __slots__ = (
        "began",
        "call",
        "counts",
        "kept",
        "mode",
        "name",
        "path",
        "recorder",
        "sender",
        "stack",
        "without_gradients",
    )

    def __init__(
        self,
        call: int,
        name: str,
        mode: str,
        stack: int | None,
        path: tuple[str, ...],
        kept: bool,
        recorder: Recorder,
    ) -> None:
        self.call = call
        self.sender = call
        """the call that gradients of this one are recorded under"""
        self.without_gradients = False
        self.recorder = recorder
        self.began = 0
        """number of the first autograd node made in it"""
        self.name = name
        self.mode = mode
        self.stack = stack
        self.path = path
        self.kept = kept
        self.counts: dict[Any, int] = {}


class ThreadState(threading.local):
    """Per-thread: the module calls under way, and how deep in opaque code we are."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.depth = 0
        self.opaque = 0
        self.has_mode = False


class Engine:
    """State behind the hooks of one process."""

    MAX_EVALUATION_ROOTS = 8
    """evaluation forwards captured in one step; the rest only run"""
    MAX_REFRESHES = 8
    """times a step that all names are looked up anew for a module nobody has registered"""
    MAX_DEPTH = 20_000
    """autograd nodes in a row that may be touched from Python; torch overflows the C stack when it frees
    some 45,000"""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.local = ThreadState()
        self.stacks = Stacks()
        self.boundary: CodeType = (lambda: None).__code__
        self.models: list[weakref.ref[nn.Module]] = []
        self.names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self.lock = threading.RLock()
        """one call or record at a time: models run in threads, and the kernel lets other threads go on"""
        self.reentrant = Reentrant()
        self.uninitialised = Uninitialised()
        self.enter_thread: Callable[[], None] = lambda: None
        self.leave_thread: Callable[[], None] = lambda: None
        """puts the function mode on this thread's stack where it is wanted; set by ``api``"""
        self.parameter_names: dict[int, str] = {}
        self.roots: list[tuple[weakref.ref[nn.Module], str]] = []
        self.opaque_modules: dict[str, str] = {}
        self.parameter_table: dict[str, dict[str, Any]] = {}
        self._trees: dict[int, tuple[tuple[Any, ...], list[tuple[weakref.ref[nn.Parameter], str]]]] = {}
        """root -> what it was made of when it was last named, and its parameters"""
        self.wrapped_by: dict[str, None] = {}
        self.in_optimizer = False
        self._top_counts: dict[Any, int] = {}
        self._top_microbatch = -1
        self._global_counts: dict[str, int] = {}
        self._parameter_calls: dict[int, int] = {}
        self._named_in_step: set[int] = set()
        self._refreshes = 0
        self.evaluation_roots = 0
        self.unfinished: dict[int, Any] = {}
        self.depths: dict[int, int] = {}
        self.shallow = True
        self.collective_watch: Callable[[Engine], AbstractContextManager[Any]] = lambda _: nullcontext()
        self.long_run: LongRun | None = None
        """what a person wants changed in the run; None: nothing"""
        self.forcing: Any = None
        """in a replay, what puts the reference's values in place of the program's (``forcing.Forcing``)"""
        self.training = Training(self)
        self.adopt(sink)

    def adopt(self, sink: Sink) -> None:
        """Take the choices of the session (again, after a hot switch)."""
        options = sink.options
        self.sink = sink
        self.modules_on = options.level.value in ("L0", "mix")
        self.api_on = options.level.value in ("L1", "mix")
        self.inputs_on = "input" in options.data_mode
        self.outputs_on = "output" in options.data_mode
        self.forward_on = "forward" in options.data_mode
        self.backward_on = "backward" in options.data_mode and options.backward
        self.gradients_on = options.gradients
        self.optimizer_on = options.optimizer
        self.collectives_on = options.collectives
        self.evaluation_on = options.evaluation
        self.scope = sink.scope
        self.stacks_on = options.stacks
        self.summariser = Summariser(sink)
        self.overflow = OverflowWatch(self) if options.task.value == "overflow_check" else None

    # -- calls ------------------------------------------

    def enclosing(self) -> Frame | None:
        """The module call under way in this thread, if it belongs to the step under way."""
        frames = self.local.frames
        if frames and frames[-1].recorder is self.sink.recorder:
            return frames[-1]
        return None

    def ordinal(self, name: str, mode: str, frame: Frame | None) -> int:
        """How many calls of this name came before in the same parent call; counts this one."""
        if frame is not None:
            counts, key = frame.counts, name
        else:
            if self._top_microbatch != self.sink.microbatch:
                self._top_counts, self._top_microbatch = {}, self.sink.microbatch
            counts, key = self._top_counts, f"{mode}:{name}"
        number = counts.get(key, 0)
        counts[key] = number + 1
        return number

    def add_call(
        self,
        kind: str,
        name: str,
        type_name: str | None,
        mode: str,
        frame: Frame | None,
        *,
        opaque: bool = False,
        stack: int | None = None,
        arguments: str | None = None,
    ) -> int:
        """Append one row of calls and return its number."""
        with self.lock:
            number = self._global_counts.get(name, 0)
            self._global_counts[name] = number + 1
            calls = self.sink.recorder.calls
            calls.append(
                (
                    None if frame is None else frame.call,
                    kind,
                    name,
                    type_name,
                    self.ordinal(name, mode, frame),
                    self.sink.microbatch,
                    mode,
                    opaque,
                    stack,
                    arguments,
                    number,
                )
            )
            return len(calls) - 1

    def tensor(
        self, call: int, phase: str, slot: str, tensor: Tensor, microbatch: int | None = None
    ) -> Tensor | None:
        """Append one row of records. Call it with torch functions disabled.

        Returns None, but for a gradient in a replay what the program is to go on with in its place.
        """
        sink = self.sink
        if not sink.active:  # capture has stood aside in the middle of a call
            return None
        if microbatch is None:
            microbatch = sink.microbatch
        row: int | None
        reason: str | None = None
        try:
            with self.lock:
                found = self.summariser.row(tensor, phase, slot, sink.recorder.calls[call][1])
            row, reason = found if isinstance(found, tuple) else (found, None)
        except Exception as error:
            row, reason = None, self._why_not(tensor, slot, error)
        sink.recorder.records.append((call, phase, slot, microbatch, row, tensor.requires_grad, reason))
        if self.overflow is not None:
            self.overflow.seen(call, phase, slot, row, tensor)
        if self.forcing is None:
            return None
        replaced: Tensor | None = self.forcing.seen(call, phase, slot, tensor, row)
        return replaced

    def without_values(self, call: int, phase: str, slot: str, tensor: Tensor, reason: str) -> None:
        """Append one row of records for a tensor whose values mean nothing."""
        row = (call, phase, slot, self.sink.microbatch, None, tensor.requires_grad, reason)
        self.sink.recorder.records.append(row)

    def _why_not(self, tensor: Tensor, slot: str, error: Exception) -> str:
        """Why a tensor could not be summarised; what is not to be expected is noted as a failure too."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return "inside a function transform (vmap, grad): no values of its own"
        self.failed(slot, error)
        return f"the summary failed: {type(error).__name__}: {error}"

    def parameter_call(self, parameter: Tensor, name: str) -> int:
        """The call row that stands for a parameter in this step."""
        call = self._parameter_calls.get(id(parameter))
        if call is None:
            call = self.add_call("parameter", name, None, "train", None)
            self._parameter_calls[id(parameter)] = call
        return call

    def flush_gradients(self) -> None:
        """What has not come of gradients under way will not come."""
        for sums in list(self.unfinished.values()):
            sums.flush()
        self.unfinished.clear()

    def too_deep(self) -> None:
        """The graph is so deep that touching more of its nodes would crash torch when it frees them."""
        self.shallow = False
        self.sink.limit(
            f"a graph deeper than {self.MAX_DEPTH} nodes: "
            "gradients of API calls are left out from there to the step's end"
        )

    def stack_number(self, depth: int, frame: Frame | None) -> int:
        """Number of the call stack ``depth`` frames above the caller, on top of the enclosing module
        call's."""
        caller: FrameType | None = sys._getframe(depth + 1)
        if caller is not None and caller.f_code is self.boundary:  # a root is one frame further down
            caller = caller.f_back
        if frame is None:
            return self.stacks.number(caller, self.boundary, None, self.sink.recorder.stacks)
        return self.stacks.number(caller, MODULE_CALL, frame.stack, self.sink.recorder.stacks)

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        self.unfinished = {}
        self.depths = {}
        self.shallow = True
        self.training.end_step()
        if self.forcing is not None:
            self.forcing.end_step()
        if self.overflow is not None:
            self.overflow.end_step()
        self._top_counts, self._top_microbatch = {}, -1
        self._global_counts = {}
        self._parameter_calls = {}
        self._named_in_step = set()
        self._refreshes = 0
        self.reentrant = Reentrant()
        self.uninitialised.forget()
        self.evaluation_roots = 0
        self.stacks.end_step()
        self.summariser.end_step()

    # -- names ------------------------------------------

    def name_of(self, module: nn.Module, frame: Frame | None, *, recompute: bool) -> str:
        """Fully qualified name; a module nobody registered is named after its caller and class."""
        if frame is None and not recompute:
            return self.root_name(module)
        name = self._known_name(module)
        if name is None and self._refreshes < self.MAX_REFRESHES:
            self._refreshes += 1
            self._refresh_names()
            name = self._known_name(module)
        if name is None:
            above = frame.name if frame is not None else ""
            name = f"{above}.<{class_name(module)}>".lstrip(".")
            self.names[id(module)] = weakref.ref(module), name
        return name

    def _known_name(self, module: nn.Module) -> str | None:
        """The name it was given, unless what was named has gone and this one took its place in memory."""
        entry = self.names.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def root_name(self, module: nn.Module) -> str:
        """Name of a root; its modules and parameters are named anew once a step, because programs replace
        them."""
        for reference, name in self.roots:
            if reference() is module:
                if id(module) not in self._named_in_step:
                    self._named_in_step.add(id(module))
                    self._name_tree(module, name)
                return name
        return self._known_name(module) or self._add_root(module)

    def restrict(self, models: list[nn.Module]) -> None:
        """Capture only inside these models; the first is the main root, whatever trained before."""
        bare: list[Any] = [m.module if class_name(m) in TRANSPARENT else m for m in models]
        self.models = [weakref.ref(m) for m in models]
        main = next((reference() for reference, name in self.roots if name == ""), None)
        if bare and main is not bare[0]:
            self.roots, self.names, self.parameter_names, self._trees = [], {}, {}, {}
            self._named_in_step.clear()
            for model in bare:
                self.root_name(model)

    def _add_root(self, module: nn.Module) -> str:
        kind = class_name(module)
        inside = {id(m) for m in module.modules()}
        self.roots = [(r, n) for r, n in self.roots if id(r()) not in inside]
        main = "" not in (n for _, n in self.roots) and has_parameters(module)
        same = sum(n == kind or n.startswith(f"{kind}#") for _, n in self.roots)
        name = "" if main else f"{kind}#{same}" if same else kind
        self.roots.append((weakref.ref(module), name))
        self._named_in_step.add(id(module))
        self._name_tree(module, name)
        return name

    def parameters_of(self, root: nn.Module) -> list[tuple[nn.Parameter, str]]:
        """Parameters of a root with their names, tied ones once."""
        if id(root) not in self._trees:  # a part of a known root, called by itself
            names = self.parameter_names
            return [
                (parameter, names.get(id(parameter), name)) for name, parameter in root.named_parameters()
            ]
        living = ((reference(), name) for reference, name in self._trees[id(root)][1])
        return [(parameter, name) for parameter, name in living if parameter is not None]

    def _name_tree(self, module: nn.Module, name: str) -> None:
        """Note the names of everything below, if anything there has changed since the last time."""
        print_ = _fingerprint(module)
        known = self._trees.get(id(module))
        if known is not None and known[0] == (name, *print_):
            return
        for inner, child in module.named_modules():
            self.names[id(child)] = weakref.ref(child), _joined(name, _plain(inner))
        tied: dict[int, str] = {}
        for inner, parameter in module.named_parameters(remove_duplicate=False):
            fqn = _joined(name, _plain(inner))
            first = tied.setdefault(id(parameter), fqn)
            self.parameter_names[id(parameter)] = first
            self._tabulate(parameter, fqn, first)
        own = {id(p): p for p in module.parameters()}
        references = [(weakref.ref(own[identity]), fqn) for identity, fqn in tied.items()]
        self._trees[id(module)] = (name, *print_), references

    def _refresh_names(self) -> None:
        self.roots = [(r, n) for r, n in self.roots if r() is not None]
        for reference, name in self.roots:
            module = reference()
            if module is not None:
                self._name_tree(module, name)

    def _tabulate(self, parameter: Tensor, fqn: str, first: str) -> None:
        if fqn not in self.parameter_table and not is_lazy(parameter):
            self.parameter_table[fqn] = {
                "fqn": fqn,
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "numel": parameter.numel(),
                "requires_grad": parameter.requires_grad,
                "tied_to": None if first == fqn else first,
            }

    def watch_collectives(self) -> AbstractContextManager[Any]:
        """A context for one backward that records the collectives in it; set by ``collectives``."""
        return self.collective_watch(self)

    # -- trouble ------------------------------------------

    def failed(self, site: str, error: BaseException) -> None:
        """An error of ours: noted, never raised into the program."""
        self.sink.failed(site, error)


def has_parameters(module: nn.Module) -> bool:
    """Whether the module owns anything trainable or at least a parameter."""
    return next(module.parameters(), None) is not None


def class_name(module: nn.Module) -> str:
    """Name of the class the program wrote, not of the one a wrapper made of it."""
    kind = type(module)
    if kind.__name__ == "OptimizedModule":
        return class_name(module.get_submodule("_orig_mod"))
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", kind.__name__))
    if (
        kind.__name__.startswith("FSDP")
        and len(kind.__mro__) > 2
        and kind.__mro__[1].__name__ == "FSDPModule"
    ):
        return kind.__mro__[2].__name__
    return kind.__name__


_WRAPPED = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
"""parts of names that wrappers put in"""


def _plain(name: str) -> str:
    if "_mod" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)


def _fingerprint(root: nn.Module) -> list[int]:
    """Identities of all modules and parameters below, in a fixed order."""
    found: list[int] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        module = todo.pop()
        if id(module) in seen:
            found.append(-1)
            continue
        seen.add(id(module))
        found.append(id(module))
        found.extend(map(id, module._parameters.values()))
        todo.extend(child for child in module._modules.values() if child is not None)
    return found


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
