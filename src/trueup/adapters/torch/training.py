"""The training loop as seen from outside: roots, backward, parameters, optimizers, scalers, clipping."""

from __future__ import annotations

import functools
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from trueup.adapters.names import ParameterReference
from trueup.adapters.torch.averages import Averages
from trueup.adapters.torch.buffers import Buffers
from trueup.adapters.torch.device.recording import RECORDING
from trueup.adapters.torch.given_gradients import GivenGradients, put_given
from trueup.adapters.torch.labels import labels_of
from trueup.adapters.torch.memory import in_transform
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.trees import split_call
from trueup.adapters.torch.whole_weights import whole_weights
from trueup.numerics.flat_parts import covers

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

_is_compiling = torch.compiler.is_compiling
_graph_task = torch._C._current_graph_task_id

IN_TRANSFORM = (
    "the model is called inside a function transform (torch.func): its values cannot be read there, and as "
    "there is no backward() a step ends only where the program says so (Tracer.step)"
)

UNSEEN_UPDATE = (
    "a step was cut where gradients were taken away and no update was seen: a program that adds them up "
    "marks its steps (Tracer(manual_steps=True))"
)

_training: Training | None = None


class Training:
    """What one process trains, and the records that belong to parameters rather than calls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.optimizers: dict[int, dict[str, object]] = {}
        self.schedulers: weakref.WeakKeyDictionary[LRScheduler, None] = weakref.WeakKeyDictionary()
        """in the order in which they became known"""
        self.buffers = Buffers(engine)
        self.averages = Averages(engine)
        self._hooked: dict[int, RemovableHandle] = {}
        self._parameters: dict[int, tuple[ParameterReference[Tensor], str]] = {}
        self._recorded: set[int] = set()
        self._sharded_roots: dict[int, Callable[[], nn.Module | None]] = {}
        """models of this step whose weights are distributed tensors"""
        self._watched: ParameterReference[Tensor] | None = None
        self._watched_version = self._gradient_version = 0
        self._copies: bool | None = None
        """an optimizer updates copies of the weights; None: not looked for"""
        self._buffered: bool | None = None
        """the program adds up gradients in buffers of its own; None: not looked for"""
        self._sample: Tensor | None = None
        """some numbers of the gradient of the watched weight, as the last backward left it"""
        self._numbers: Tensor | None = None
        """some of the watched weight then, while it is not known to be in an optimizer"""
        self._in_optimizer = False
        self._has_buffers = False
        self._has_first_buffers = False
        """what the step leaves in buffers has been noted"""
        self._scaled: tuple[Tensor, Tensor] | None = None
        """what a gradient scaler returned, until its backward, and the loss it scaled"""
        self.loss_scale: Tensor | None = None
        """what the loss was last multiplied with before backward"""
        self.given: GivenGradients | None = None
        """another run's gradients, to be put in place of the program's own"""
        self.in_closure = False
        """an optimizer is calling back to evaluate the loss anew: steps neither begin nor end"""
        self.is_update_noted = False
        """the gradients that the update under way starts from have been recorded"""

    # -- forward ------------------------------------------

    def before_root(self, module: nn.Module, *, training: bool) -> None:
        """A root call begins: were gradients thrown away since the last one?"""
        self.engine.in_optimizer = False
        if not training or self.in_closure or (accumulates := _is_accumulating(module)):
            return
        watched = self._watched() if self._watched is not None else None
        if watched is not None and (watched.grad is None or self._is_zeroed(watched, watched.grad)):
            self._watched = None
            if accumulates is not None or self._is_thrown_away(watched):
                self.engine.sink.gradients_cleared()

    def _is_zeroed(self, watched: Tensor, gradient: Tensor) -> bool:
        """Whether a program that updates its weights itself has written to a weight and to its gradient since
        backward: ``zero_grad(set_to_none=False)`` clears in place."""
        updated = watched._version not in (self._watched_version, _UPDATED)
        return updated and self._watched_version != _UPDATED and gradient._version != self._gradient_version

    def _is_thrown_away(self, watched: Tensor) -> bool:
        """Whether a gradient that is gone ends the step: its weight has changed, or nothing tells that the
        program goes on with it."""
        if watched._version != self._watched_version:
            return True
        if self._updates_copies():
            return False
        if self._is_rewritten(watched):
            return True
        if self._adds_up(watched):
            return False
        sink, known = self.engine.sink, self._buffered is not None and not self._in_optimizer
        if known and not sink.over and not sink.options.manual_steps:
            sink.limit(UNSEEN_UPDATE)
        return True

    def _updates_copies(self) -> bool:
        """Whether an optimizer holds copies of the weights, or flat tensors that they are parts of, none of
        them itself: a program that adds up gradients by itself takes them away after every microbatch, and
        its step ends with the optimizer's."""
        if self._copies is None:
            own = [parameter for parameter, _ in self._living() if parameter.requires_grad]
            wanted, known = sorted(tuple(one.shape) for one in own), set(map(id, own))
            objects = gc.get_objects()
            # issubclass: isinstance would ask the object
            optimizers = [one for one in objects if issubclass(type(one), torch.optim.Optimizer)]
            held = [[one for group in each.param_groups for one in group["params"]] for each in optimizers]
            others = [each for each in held if not known & set(map(id, each))]
            self._copies = any(sorted(tuple(one.shape) for one in each) == wanted for each in others)
            if not self._copies and len(others) == len(held):  # none holds a weight of the model
                self._copies = _hold_flat_copies(others, objects, sum(one.numel() for one in own))
        return self._copies

    def _is_rewritten(self, parameter: Tensor) -> bool:
        """Whether a weight that no optimizer holds has other numbers than when backward left its gradient:
        an update that its version does not tell (``weight.data``)."""
        if self._in_optimizer or self._numbers is None:
            return False
        now = _sampled(parameter)
        return now is None or not bool((now == self._numbers).all())

    def _adds_up(self, parameter: Tensor) -> bool:
        """Whether a buffer of the program holds what the cleared gradient was: such a program hands the sum
        to the weight's optimizer as ``grad``, or to code of its own that updates the weight, and its step
        ends with the update. Looked for once, where a gradient is first taken away without an update."""
        if self._buffered is None and self._sample is not None:
            sample, self._sample = self._sample, None
            objects = gc.get_objects()
            self._in_optimizer = any(
                one is parameter
                for optimizer in objects
                if issubclass(type(optimizer), torch.optim.Optimizer)
                for group in optimizer.param_groups
                for one in group["params"]
            )
            others = (one for one in objects if type(one) in (Tensor, nn.Parameter))
            own = (parameter, sample, self._numbers)
            held = [one for one in others if all(one is not known for known in own)]
            self._buffered = (
                not self._is_rewritten(parameter)
                and _one_holds(held, parameter, sample)
                and not _has_second_moment(held, parameter, sample)
            )
        return bool(self._buffered)

    def root(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """A training forward of a root begins, the session knows already."""
        engine = self.engine
        engine.root_name(module)
        measures = engine.measures
        if measures is not None:
            measures.root(module, training=True)
        hooked = self._hooks_gradients()
        try:
            self._note_batch(module, args, kwargs)
            if engine.sink.active:
                self.buffers.root(module)
                self._note_buffers_before()
        except Exception as error:
            engine.failed("batch", error)
        for reference, fqn in engine.parameters_of(module):
            parameter = reference()
            if parameter is None or id(parameter) in self._recorded or is_lazy(parameter):
                continue
            if in_transform(parameter):
                engine.sink.limit(IN_TRANSFORM)
                break
            self._recorded.add(id(parameter))
            self._parameters[id(parameter)] = reference, fqn
            if engine.sink.active:
                engine.tensor(engine.parameter_call(parameter, fqn), "param", "value", parameter)
            elif measures is None or not measures.wanted.local_gradients:
                continue
            if hooked:
                self._hook(parameter, fqn, parameter)
                if hasattr(parameter, "_local_tensor"):
                    self._sharded_roots[id(module)] = weakref.ref(module)
        try:
            if engine.sink.active:
                self.averages.root(module)
        except Exception as error:
            engine.failed("averaged weights", error)

    def _hooks_gradients(self) -> bool:
        """Whether each backward's own gradients of weights are asked for."""
        measures = self.engine.measures
        return self.engine.gradients_on or (measures is not None and measures.wanted.local_gradients)

    def _hook(self, parameter: Tensor, fqn: str, at: Tensor) -> None:
        """Take note of what arrives ``at`` a tensor as this parameter's gradient."""
        if at.requires_grad and not self._is_hooked(at):
            self._hooked[id(at)] = at.register_hook(functools.partial(self._arrived, fqn, id(parameter)))

    def before_backward(self) -> None:
        """A backward begins: the gradients of sharded weights will arrive at the whole ones."""
        try:
            roots = [root for one in self._sharded_roots.values() if (root := one()) is not None]
            for sharded, whole in (pair for root in roots for pair in whole_weights(root)):
                if (known := self._parameters.get(id(sharded))) is not None:
                    self._hook(sharded, known[1], whole)
        except Exception as error:
            self.engine.failed("whole weights", error)

    def _is_hooked(self, parameter: Tensor) -> bool:
        """Whether it has our hook, and is not another tensor in the place of one that had."""
        handle = self._hooked.get(id(parameter))
        return handle is not None and handle.id in (parameter._backward_hooks or ())

    def before_swap(self, *tensors: Tensor) -> None:
        """Two tensors are about to swap their contents: take our hooks off them, until the next forward.

        The swap would take the hook away and leave the dictionary of hooks, after which torch calls no hook
        that the program registers on this tensor (seen with 2.13).
        """
        self.averages.forget(*tensors)
        for tensor in tensors:
            handle = self._hooked.pop(id(tensor), None)
            if handle is not None and handle.id in (tensor._backward_hooks or ()):
                handle.remove()
                if not tensor._backward_hooks:
                    tensor._backward_hooks = None

    def _note_batch(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tensors = _plain_tensors(args, kwargs)
        # What other roots of the step computed, such as the hidden states that a program gives a head, is no
        # batch: its digest differs by rounding.
        read = [t for t in tensors if t.grad_fn is None]
        if not read and self.engine.sink.batches_of() - {id(module)}:
            return
        tensors = read or tensors
        if not tensors or self._is_part(module):
            return
        first = next((t for t in tensors if not t.is_floating_point()), tensors[0])
        samples = int(tensors[0].shape[0]) if tensors[0].ndim else 1
        ordered = dict(sorted(kwargs.items()))  # another program's order is another
        kept = {id(t) for t in tensors}
        digest = self.engine.summariser.digest([t for t in _plain_tensors(args, ordered) if id(t) in kept])
        packed = _num_packed(kwargs.get("position_ids"), first) if samples == 1 else None
        self.engine.sink.batch(
            of=id(module), tokens=first.numel(), samples=samples if packed is None else packed, digest=digest
        )
        if packed is not None:
            self.engine.sink.scalar("packed", True)
        replicas = self._replicas(module)
        if replicas is not None:
            self.engine.sink.scalar("data_parallel_size", replicas)

    def _is_part(self, module: nn.Module) -> bool:
        """Whether a root is a part of one that had its batch in this step; parts of this one that were called
        before it (an embedding, by the program itself) had none."""
        sink = self.engine.sink
        others = sink.batches_of() - {id(module)}
        if not others:
            return False
        sink.no_batches(others & {id(inner) for inner in module.modules()})
        wholes = (reference() for reference, _ in self.engine.roots)
        return any(
            module is inner
            for whole in wholes
            if whole is not None and whole is not module and id(whole) in others
            for inner in whole.modules()
        )

    def _replicas(self, module: nn.Module) -> int | None:
        """How many ranks read other samples, where that can be told: DDP, FSDP, or one process alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return 1
        if "batches" in self.engine.groups:
            return len(self.engine.groups["batches"])
        if self.engine.wrapped_by or any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            return dist.get_world_size()
        return 1 if dist.get_world_size() == 1 else None

    # -- backward ------------------------------------------

    def _arrived(self, fqn: str, identity: int, gradient: Tensor | None) -> None:
        """A parameter's own gradient of this backward, before reduction and accumulation; None where the
        backward of a program's own function returns none for it."""
        engine = self.engine
        if RECORDING.depth or gradient is None:
            return
        try:
            watched = engine.measures is not None and engine.measures.on
            if not (engine.sink.active or watched) or identity not in self._parameters:
                return
            with quiet():
                if watched and engine.measures is not None:
                    engine.measures.local_gradient(fqn, gradient)
                if not (engine.sink.active and engine.gradients_on):
                    return
                call, parameter = engine.call_of_parameter(identity), self._parameters[identity][0]()
                if call is None and parameter is not None:
                    call = engine.parameter_call(parameter, fqn)
                if call is not None:
                    engine.tensor(call, "param_grad", "local", gradient)
        except Exception as error:
            engine.failed(f"gradient of {fqn}", error)

    def loss(self, loss: Tensor) -> None:
        """``backward`` was called on this; a scaled loss counts with what it was before scaling."""
        graph, (scaled, self._scaled) = loss, (self._scaled, None)
        if scaled is not None and scaled[0] is loss:
            loss = scaled[1]
        if loss.numel() != 1:
            return
        sink = self.engine.sink
        sink.scalar("losses", loss.detach().clone(), per_microbatch=True)
        if sink.active:
            labels, loss_arguments = labels_of(graph) if sink.options.with_labels else ([], {})
            arguments = json.dumps(loss_arguments) if loss_arguments else None
            call = self.engine.add_call("loss", "loss", None, "train", None, arguments=arguments)
            for slot, tensor in labels:
                self.engine.tensor(call, "loss", slot, tensor)
            self.engine.tensor(call, "loss", "value", loss)

    def scaled(self, loss: Tensor, scaled: Tensor, scale: Tensor | None) -> None:
        """A gradient scaler made ``scaled`` from ``loss``."""
        self._scaled = scaled, loss.detach()
        self.loss_scale = scale
        if scale is not None:
            self.engine.sink.scalar("loss_scale", scale.detach().clone())

    def after_backward(self) -> None:
        """Backward is over: what was accumulated, and reduced, is in ``.grad``."""
        engine = self.engine
        engine.flush_gradients()
        if engine.measures is not None:
            engine.measures.gradients(self._living())
        present = False
        for parameter, fqn in self._living():
            if parameter.grad is None:
                continue
            if not present:
                present = True
                self._watched = self._parameters[id(parameter)][0]
                self._watched_version = parameter._version
                self._gradient_version = parameter.grad._version
                if self._buffered is None:
                    self._sample = _sampled(parameter.grad)
                if not self._in_optimizer:
                    self._numbers = _sampled(parameter)
            if not (engine.sink.active and engine.gradients_on):
                break
            engine.tensor(engine.parameter_call(parameter, fqn), "param_grad", "accumulated", parameter.grad)
        if engine.sink.options.gradients_from is not None and engine.sink.active:
            put_given(self, self._living())
        engine.sink.backward_ended(gradients_present=present)

    def backward_failed(self) -> None:
        """Backward left by an exception: what came until then stays, and the next forward is a new one."""
        self.engine.flush_gradients()
        self.engine.sink.backward_ended(gradients_present=False)

    def forget(self, parameters: frozenset[int]) -> None:
        """These are no part of the run."""
        for identity in parameters:
            self._parameters.pop(identity, None)

    def _living(self) -> Iterator[tuple[Tensor, str]]:
        for reference, fqn in list(self._parameters.values()):
            parameter = reference()
            if parameter is not None:
                yield parameter, fqn

    # -- optimizer ------------------------------------------

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step: note its settings and the gradients it receives."""
        engine = self.engine
        self._note_settings(optimizer)
        engine.summariser.forget_devices()  # gradients may have been scaled by kernels that count no version
        if engine.measures is not None:
            engine.measures.before_update(self._updated(optimizer))
        if not engine.sink.active:
            return
        if engine.gradients_on:
            # A fused optimizer divides by the scale of the loss itself, which GradScaler.step gives it.
            scale = getattr(optimizer, "grad_scale", None)
            for parameter, fqn in self._updated(optimizer):
                gradient = parameter.grad
                if gradient is not None and isinstance(scale, Tensor):
                    with torch.no_grad():
                        gradient = gradient / scale.to(gradient.device)
                if gradient is not None:
                    call = engine.parameter_call(parameter, fqn)
                    engine.tensor(call, "param_grad", "clipped", gradient)

    def _note_settings(self, optimizer: torch.optim.Optimizer) -> None:
        engine = self.engine
        groups = optimizer.param_groups
        engine.sink.scalar("learning_rate", [float(g["lr"]) for g in groups if "lr" in g])
        schedulers = (one for one in self.schedulers if getattr(one, "optimizer", None) is optimizer)
        positions = [one.last_epoch for one in schedulers]
        if positions:
            engine.sink.scalar("scheduler_steps", positions)
        if not engine.sink.active:
            return
        if id(optimizer) not in self.optimizers:
            for g, group in enumerate(groups):
                for parameter in group["params"]:
                    name = engine.parameter_names.get(id(parameter), "")
                    engine.parameter_table.get(name, {})["optimizer_group"] = [len(self.optimizers), g]
        if id(optimizer) not in self.optimizers:
            run = engine.long_run
            settings = [_settings(g) for g in (groups if run is None else run.groups_of_program(optimizer))]
            engine.code.function(f"{type(optimizer).__name__}.step", type(optimizer).step)
            pieces = {
                name: parameter.trueup_piece
                for parameter, name in self._updated(optimizer)
                if hasattr(parameter, "trueup_piece")
            }
            self.optimizers[id(optimizer)] = {"class": type(optimizer).__name__, "groups": settings} | (
                {"pieces": pieces} if pieces else {}
            )

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped: parameters and state are new."""
        engine = self.engine
        if not self.is_update_noted:
            self._note_settings(optimizer)
        engine.summariser.forget()
        watched = self._watched() if self._watched is not None else None
        if watched is not None and any(one is watched for one, _ in self._updated(optimizer)):
            self._watched_version = _UPDATED
            self._in_optimizer, self._numbers = True, None
        if engine.measures is not None:
            engine.measures.after_update(optimizer, self._updated(optimizer))
        if engine.sink.active and engine.optimizer_on:
            for parameter, fqn in self._updated(optimizer):
                call = engine.parameter_call(parameter, fqn)
                engine.tensor(call, "optimizer", "param", parameter)
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        engine.tensor(call, "optimizer", f"state.{key}", value)
        self._note_buffers()
        engine.sink.optimizer_stepped()

    def step_ends(self) -> None:
        """The step under way is about to be written: note buffers that no optimizer's update
        has told of, and averaged weights."""
        try:
            if not self._has_buffers:
                self._note_buffers()
        except Exception as error:
            self.engine.failed("buffers", error)
        try:
            self.averages.record()
        except Exception as error:
            self.engine.failed("averaged weights", error)

    def _note_buffers_before(self) -> None:
        """What the buffers of the first model hold as the step begins: a program may write them between
        steps, where no update is under way (a router's bias, a cache of angles)."""
        if not self._has_first_buffers and (norms := self.buffers.norms()) is not None:
            self.engine.sink.scalar("_buffers_before", norms)
        self._has_first_buffers = True

    def _note_buffers(self) -> None:
        if self.engine.sink.active and (norms := self.buffers.norms()) is not None:
            self.engine.sink.scalar("_buffers", norms)
            self._has_buffers = True

    def _updated(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, str]]:
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                name = self.engine.parameter_names.get(id(parameter))
                yield parameter, name or f"{type(optimizer).__name__}.group{g}.{i}"

    def end_step(self) -> None:
        """The step under way is over."""
        self._recorded = set()
        self._sharded_roots = {}
        self._scaled = None
        self._has_buffers = self._has_first_buffers = False
        self.buffers.end_step()


_UPDATED = -1
"""no version of a tensor: fused optimizers count none"""
_SAMPLE = 64
"""numbers of a gradient by which it is known again"""


def _sampled(tensor: Tensor) -> Tensor | None:
    """Some numbers of a tensor, as float32; None where it is not a plain one."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or not tensor.numel():
        return None
    with torch.no_grad():
        return tensor.detach().reshape(-1)[:: -(-tensor.numel() // _SAMPLE)].float().clone()


def _one_holds(tensors: list[Tensor], like: Tensor, sample: Tensor) -> bool:
    """Whether a tensor has a weight's shape and the sampled numbers of its gradient, times any factor; a
    device is waited for once, if there is any of that shape."""
    alike = [one for one in tensors if one.shape == like.shape and one.device == sample.device]
    others = [one for tensor in alike if tensor.is_floating_point() and (one := _sampled(tensor)) is not None]
    if not others:
        return False
    rows = torch.stack(others)
    lengths = rows.norm(dim=1) * sample.norm()
    same = (rows @ sample).abs() > lengths * (1 - torch.finfo(torch.bfloat16).eps)
    return bool((same & (lengths > 0)).any())


def _hold_flat_copies(held: list[list[Tensor]], objects: list[object], num_weights: int) -> bool:
    """Whether what optimizers hold, of one dimension and no module's, has room for all weights."""
    modules = [one for one in objects if issubclass(type(one), nn.Module)]
    known = {id(one) for module in modules for one in vars(module).get("_parameters", {}).values()}
    flat = [one.numel() for each in held for one in each if one.ndim == 1 and id(one) not in known]
    ways = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return covers(flat, num_weights, ways)


def _has_second_moment(tensors: list[Tensor], like: Tensor, sample: Tensor) -> bool:
    """Whether a tensor holds the squares of a gradient: an update has taken it, at a rate of 0, and what
    holds the gradient itself is its first moment. Numbers that are all alike have squares like themselves."""
    squares = sample.square()
    alike = squares @ sample.abs() > squares.norm() * sample.norm() * (1 - torch.finfo(torch.bfloat16).eps)
    return not bool(alike) and _one_holds(tensors, like, squares)


def _plain_tensors(args: tuple[object, ...], kwargs: dict[str, object]) -> list[Tensor]:
    """Of a call, without those that have no digest."""
    return [t for _, t in split_call(args, kwargs)[0] if t.layout is torch.strided and not t.is_nested]


def _settings(group: dict[str, Any]) -> dict[str, object]:
    plain = {
        k: v
        for k, v in group.items()
        if k != "params" and isinstance(v, (bool, int, float, str, tuple, list))
    }
    return {**plain, "num_params": len(group["params"])}


def install(training: Training) -> None:
    """Put the wrappers in place, or hand those in place another ``Training``."""
    global _training
    first = _training is None
    _training = training
    if not first:
        return
    torch.autograd.backward = _wrap_backward(torch.autograd.backward)
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    _wrap_clipping()
    _wrap_scaler()
    _wrap_swap()
    _wrap_schedulers()


def _wrap_schedulers() -> None:
    """One is known from when it is made, or, where that was before capture began, from its first step."""
    for name in ("__init__", "step"):
        setattr(LRScheduler, name, _noting_scheduler(getattr(LRScheduler, name)))


def _noting_scheduler(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def noting(self: LRScheduler, *args: object, **kwargs: object) -> None:
        if _training is not None:
            _training.schedulers[self] = None
        original(self, *args, **kwargs)

    return noting


def _wrap_swap() -> None:
    original = torch.utils.swap_tensors

    @functools.wraps(original)
    def swap_tensors(t1: Tensor, t2: Tensor) -> None:
        training = _training
        if training is not None:
            try:
                with quiet():
                    training.before_swap(t1, t2)
            except Exception as error:
                training.engine.failed("swap_tensors", error)
        original(t1, t2)

    torch.utils.swap_tensors = swap_tensors


def _is_accumulating(module: nn.Module) -> bool | None:
    """Whether DeepSpeed's engine is between microbatches of one step: it moves gradients away after each.
    None of a model that does not say so."""
    size, number = getattr(module, "gradient_accumulation_steps", None), getattr(module, "micro_steps", None)
    if not callable(size) or not isinstance(number, int):
        return None
    steps = size()
    return number % steps != 0 if isinstance(steps, int) and steps > 0 else None


def _wrap_backward(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        training = _training
        if training is None or _is_compiling() or _graph_task() != -1 or training.engine.local.in_backward:
            return original(*args, **kwargs)  # the last: the function mode calls what was called again
        engine = training.engine
        if not _is_of_the_run(engine):
            return original(*args, **kwargs)
        watch: AbstractContextManager[object] = nullcontext()
        try:
            with quiet():
                tensors = args[0] if args else kwargs.get("tensors")
                first = tensors if isinstance(tensors, Tensor) else next(iter(tensors or ()), None)
                engine.sink.backward_begins()
                training.before_backward()
                if first is not None:
                    training.loss(first)
                watch = engine.watch_collectives()
        except Exception as error:
            engine.failed("loss", error)
        done = False
        engine.local.in_backward = True
        try:
            with watch:
                original(*args, **kwargs)
            done = True
        finally:
            engine.local.in_backward = False
            try:
                with quiet():
                    if done:
                        training.after_backward()
                    else:
                        training.backward_failed()
            except Exception as error:
                engine.failed("backward", error)
        return None

    return backward


def _is_of_the_run(engine: Engine) -> bool:
    """Whether the backward that begins in this thread is the run's."""
    try:
        return not RECORDING.depth and engine.threads.backward()
    except Exception as error:
        engine.failed("backward", error)
        return False


def _of_the_run() -> Training | None:
    """What is trained, where this thread trains it."""
    training = _training
    try:
        if training is None or RECORDING.depth or _is_compiling():
            return None
        return None if training.engine.threads.beside else training
    except Exception as error:
        if training is not None:
            training.engine.failed("the thread that trains", error)
        return None


_Arguments = tuple[tuple[object, ...], dict[str, object]]


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
) -> _Arguments | None:
    training = _of_the_run()
    if training is None:
        return None
    try:
        given = (kwargs.get("closure"), *args[1:])
        closure: Callable[..., object] | None = next(filter(callable, given), None)
        training.in_closure = closure is not None
        training.is_update_noted = False
        if closure is None:
            _enter_update(training, optimizer)
            return None
        watched = _watched_closure(training, optimizer, closure)

        def with_watched(one: object) -> object:
            return watched if one is closure else one

        return tuple(map(with_watched, args)), {name: with_watched(one) for name, one in kwargs.items()}
    except Exception as error:
        training.engine.failed("optimizer", error)
        return None


def _enter_update(training: Training, optimizer: torch.optim.Optimizer) -> None:
    """The gradients are there; what follows is the optimizer's arithmetic."""
    with quiet():
        training.engine.in_optimizer = True
        if not training.is_update_noted:
            training.before_update(optimizer)
            training.is_update_noted = True
        training.engine.leave_thread()


def _watched_closure(
    training: Training, optimizer: torch.optim.Optimizer, closure: Callable[..., object]
) -> Callable[..., object]:
    """The program's closure, which evaluates the loss anew, between parts of the optimizer's arithmetic."""

    @functools.wraps(closure)
    def evaluate(*args: object, **kwargs: object) -> object:
        try:
            training.engine.in_optimizer = False
            training.engine.enter_thread()
        except Exception as error:
            training.engine.failed("closure", error)
        try:
            result = closure(*args, **kwargs)
        except BaseException:
            training.in_closure = False
            raise
        try:
            _enter_update(training, optimizer)
        except Exception as error:
            training.engine.failed("closure", error)
        return result

    return evaluate


def _after_step(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    training = _of_the_run()
    if training is None:
        return
    training.engine.in_optimizer = False
    training.in_closure = False
    try:
        training.engine.enter_thread()
        with quiet():
            training.after_update(optimizer)
    except Exception as error:
        training.engine.failed("optimizer", error)


def _wrap_clipping() -> None:
    from torch.nn.utils import clip_grad

    original = clip_grad.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Tensor:
        norm = original(*args, **kwargs)
        training = _of_the_run()
        if training is not None and type(norm) is Tensor:
            try:
                with quiet():
                    training.engine.summariser.forget()
                    training.engine.sink.scalar("grad_norm", norm.detach().clone())
            except Exception as error:
                training.engine.failed("grad_norm", error)
        return norm

    for home in (clip_grad, torch.nn.utils):
        setattr(home, "clip_grad_norm_", clip_grad_norm_)  # noqa: B010  (mypy: no such attribute to assign)


def _wrap_scaler() -> None:
    scaler = torch.amp.GradScaler
    scale, step, update = scaler.scale, scaler.step, scaler.update

    @functools.wraps(scale)
    def scaling(self: torch.amp.GradScaler, outputs: Any) -> Any:
        result = scale(self, outputs)
        training = _of_the_run()
        if (
            training is not None
            and self.is_enabled()
            and isinstance(result, Tensor)
            and isinstance(outputs, Tensor)
        ):
            try:
                with quiet():
                    training.scaled(outputs, result, getattr(self, "_scale", None))
            except Exception as error:
                training.engine.failed("loss scale", error)
        return result

    @functools.wraps(step)
    def stepping(
        self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object
    ) -> float | None:
        returned = step(self, optimizer, *args, **kwargs)
        training = _of_the_run()
        if training is not None and self.is_enabled():
            try:
                training.engine.sink.scaler_stepped()
            except Exception as error:
                training.engine.failed("loss scale", error)
        return returned

    @functools.wraps(update)
    def updating(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        training = _of_the_run()
        if training is not None and self.is_enabled():
            try:
                training.engine.sink.scaler_updated()
            except Exception as error:
                training.engine.failed("loss scale", error)

    scaler.scale = scaling  # type: ignore[method-assign]
    scaler.step = stepping  # type: ignore[method-assign]
    scaler.update = updating  # type: ignore[method-assign]


def _num_packed(positions: object, ids: Tensor) -> Tensor | None:
    """How many sequences one row holds, by positions that begin again within it; left on the device. None
    where nothing tells that rows may be packed: positions are not given for each token."""
    if not isinstance(positions, Tensor) or positions.ndim < 2 or positions.shape[-1] < 2 or ids.ndim < 2:
        return None
    if positions.shape[-1] != ids.shape[1] or positions.is_floating_point():
        return None
    row = positions.detach().reshape(-1, positions.shape[-1])[0]
    return ((row[1:] == 0) & (row[:-1] > 0)).sum() + 1
