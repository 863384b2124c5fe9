"""The training loop as seen from outside: gradient functions, parameters, optimizers, loss scalers.

MindSpore has no ``backward()``: a gradient function runs a forward under a recording graph and then the graph
backwards. Both halves are plain functions, and those are what is wrapped.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn
from mindspore.experimental import optim as experimental
from mindspore.ops.composite import base as gradient_functions

from trueup.adapters.mindspore.given_gradients import GivenGradients, put_given
from trueup.adapters.mindspore.trees import leaves, split_call

if TYPE_CHECKING:
    from trueup.adapters.mindspore.engine import Engine

OPTIMIZERS = (nn.Optimizer, experimental.Optimizer)

STATE_NAMES = {
    "moments1": "exp_avg",
    "moments2": "exp_avg_sq",
    "moment1": "exp_avg",
    "moment2": "exp_avg_sq",
    "max_moments2": "max_exp_avg_sq",
    "moments": "momentum_buffer",
    "moment": "momentum_buffer",
    "accum": "momentum_buffer",
}
"""what MindSpore's optimizers call their state -> the name torch's have for the same"""
_SETTINGS = ("betas", "beta1", "beta2", "eps", "momentum", "weight_decay", "use_nesterov", "nesterov")

_INTEGERS = (mindspore.int64, mindspore.int32, mindspore.int16, mindspore.int8, mindspore.uint8)

_training: Training | None = None

Weights: TypeAlias = Parameter | Iterable[Parameter] | None
"""what a gradient function was asked for"""


class Training:
    """What one process trains, and the records that belong to parameters rather than calls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.optimizers: dict[int, dict[str, object]] = {}
        self.given: GivenGradients | None = None
        self.loss_scale: float | None = None
        self.recording = 0
        """gradient functions whose forward is under way"""
        self.in_backward = False
        self._recorded: set[int] = set()
        self._local: dict[int, int | None] = {}
        """parameter -> record of its gradient in the first microbatch of the step; None: it came again"""
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._given: set[int] = set()
        """tensors that went into a root in the forward of the gradient function under way"""

    @property
    def mode(self) -> str:
        """Of a call that begins in no other."""
        return "recompute" if self.in_backward else "train" if self.with_gradients else "eval"

    @property
    def with_gradients(self) -> bool:
        """What is called now is recorded for a backward."""
        return self.recording > 0 and bool(gradient_functions._pynative_executor.enable_grad())

    # -- forward ------------------------------------------

    def root(self, module: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """A training forward of a root begins, the session knows already."""
        engine = self.engine
        engine.root_name(module)
        if engine.measures is not None:
            engine.measures.root(module, training=True)
        try:
            self._note_batch(args, kwargs)
        except Exception as error:
            engine.failed("batch", error)
        for reference, fqn in engine.parameters_of(module):
            parameter = reference()
            if parameter is None or id(parameter) in self._recorded:
                continue
            self._recorded.add(id(parameter))
            if engine.sink.active:
                engine.tensor(engine.parameter_call(parameter, fqn), "param", "value", parameter)

    def without_root(self, weights: Weights, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """A compiled step of a plain function begins: its parameters go by MindSpore's own names."""
        engine = self.engine
        self._note_batch(args, kwargs)
        for parameter in [weights] if isinstance(weights, Parameter) else weights or ():
            if id(parameter) not in self._recorded and engine.sink.active:
                self._recorded.add(id(parameter))
                engine.tensor(
                    engine.parameter_call(parameter, self._name(parameter)), "param", "value", parameter
                )

    def _note_batch(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tensors = [tensor for _, tensor in split_call(args, kwargs)[0]]
        self._given |= {id(tensor) for tensor in tensors}
        if not tensors:
            return
        first = next((t for t in tensors if not t.is_floating_point()), tensors[0])
        samples = tensors[0].shape[0] if tensors[0].ndim else 1
        ordered = split_call(args, dict(sorted(kwargs.items())))[0]  # another program's order is another
        digest = self.engine.summariser.digest([tensor for _, tensor in ordered])
        self.engine.sink.batch(tokens=int(first.size), samples=int(samples), digest=digest)

    def loss(self, outputs: Any, args: tuple[object, ...] = ()) -> None:
        """The forward of a gradient function returned this; a scaled loss counts with what it was before.

        Its labels are the first integers among the function's arguments that went into no root.
        """
        given, self._given = self._given, set()
        found = next((leaf for _, leaf in leaves("loss", outputs) if isinstance(leaf, Tensor)), None)
        if found is None:
            return
        if self._scaled is not None and self._scaled[0]() is found:
            found = self._scaled[1]
        if found.size != 1:
            return
        sink = self.engine.sink
        sink.scalar("losses", found, per_microbatch=True)
        if sink.active:
            labels, loss_arguments = (
                ([], {}) if self.engine.labels is None else self.engine.labels.behind(found)
            )
            if not self.engine.api_on and sink.options.with_labels:
                labels = _labels_among(args, given)
            arguments = json.dumps(loss_arguments) if loss_arguments else None
            call = self.engine.add_call("loss", "loss", None, "train", None, arguments=arguments)
            for slot, tensor in labels:
                self.engine.tensor(call, "loss", slot, tensor)
            self.engine.tensor(call, "loss", "value", found)

    def scaled(self, loss: Tensor, scaled: Tensor, scale: Any) -> None:
        """A loss scaler made ``scaled`` from ``loss``."""
        self._scaled = weakref.ref(scaled), loss
        found = _plain(scale)
        self.loss_scale = found if isinstance(found, float) else None
        self.engine.sink.scalar("loss_scale", scale)

    # -- backward ------------------------------------------

    def gradients(self, weights: Weights, found: Any, *, with_inputs: bool) -> None:
        """A gradient function has returned: the gradients of its weights, in their order.

        ``with_inputs``: those of its arguments come before them.
        """
        engine = self.engine
        engine.flush_gradients()
        paired = list(_paired(weights, found, with_inputs=with_inputs))
        if engine.measures is not None:
            engine.measures.local_gradients([(self._name(parameter), g) for parameter, g in paired])
        named: list[tuple[Tensor, str]] = []
        for parameter, gradient in paired if engine.sink.active else ():
            fqn = self._name(parameter)
            named.append((gradient, fqn))
            if not engine.gradients_on:
                continue
            call = engine.parameter_call(parameter, fqn)
            engine.tensor(call, "param_grad", "local", gradient)
            if engine.sink.microbatch == 0:
                again = id(parameter) in self._local
                self._local[id(parameter)] = None if again else len(engine.sink.recorder.records) - 1
        if engine.sink.options.gradients_from is not None and named:
            put_given(self, named)
        engine.sink.backward_ended(gradients_present=bool(paired))

    def clipping(self, gradients: Any) -> None:
        """Gradients are about to be clipped to a norm: MindSpore does not return their norm. One gradient of
        several has a norm of its own, which is not theirs."""
        engine = self.engine
        if isinstance(gradients, Tensor) and len(self._local) > 1:
            return
        listed = [g for g in _listed(gradients) if isinstance(g, Tensor)]
        norm = engine.summariser.norm(listed) if listed else None
        if norm is not None:
            engine.sink.scalar("grad_norm", norm)
        if engine.measures is not None:
            engine.measures.clipping(listed)

    # -- optimizer ------------------------------------------

    def before_update(self, optimizer: nn.Optimizer, args: tuple[object, ...]) -> None:
        """An optimizer is about to be called with the gradients of its parameters."""
        engine = self.engine
        self._note_settings(optimizer)
        gradients = args[0] if args and isinstance(args[0], (tuple, list)) else ()
        if engine.measures is not None:
            engine.measures.before_update(self._updated(optimizer), gradients)
        if not (engine.sink.active and engine.gradients_on):
            return
        for parameter, gradient in zip(optimizer.parameters, gradients, strict=False):
            if not isinstance(gradient, Tensor):
                continue
            call = engine.parameter_call(parameter, self._name(parameter))
            self._accumulated(id(parameter))
            engine.tensor(call, "param_grad", "clipped", gradient)
        for identity in list(self._local):  # an optimizer may update parts of its own in their place
            self._accumulated(identity)

    def _accumulated(self, identity: int) -> None:
        """With one microbatch what was accumulated is what came; sums of the program's own are not seen."""
        found = self._local.pop(identity, None)
        if found is None or self.engine.sink.microbatch > 0:
            return
        records = self.engine.sink.recorder.records
        call, phase, _, microbatch, row, requires_grad, reason = records[found]
        records.append((call, phase, "accumulated", microbatch, row, requires_grad, reason))

    def _note_settings(self, optimizer: nn.Optimizer) -> None:
        engine = self.engine
        if engine.sink.active or engine.measures is not None:
            engine.sink.scalar("learning_rate", _learning_rates(optimizer))
        if not engine.sink.active:
            return
        if id(optimizer) not in self.optimizers:
            groups = _groups(optimizer)
            for g, group in enumerate(groups):
                for parameter in group["params"]:
                    name = engine.parameter_names.get(id(parameter), "")
                    engine.parameter_table.get(name, {})["optimizer_group"] = [len(self.optimizers), g]
            settings = [
                {**{k: v for k, v in group.items() if k != "params"}, "num_params": len(group["params"])}
                for group in groups
            ]
            pieces = {
                self._name(parameter): parameter.trueup_piece
                for parameter in optimizer.parameters
                if hasattr(parameter, "trueup_piece")
            }
            self.optimizers[id(optimizer)] = {"class": type(optimizer).__name__, "groups": settings} | (
                {"pieces": pieces} if pieces else {}
            )

    def after_update(self, optimizer: nn.Optimizer) -> None:
        """An optimizer has returned: parameters and state are new."""
        engine = self.engine
        if engine.measures is not None:
            engine.measures.after_update(self._updated(optimizer), _states(optimizer))
        if engine.sink.active and engine.optimizer_on:
            states = list(_states(optimizer))
            for index, parameter in enumerate(optimizer.parameters):
                call = engine.parameter_call(parameter, self._name(parameter))
                engine.tensor(call, "optimizer", "param", parameter)
                for name, values in states:
                    engine.tensor(call, "optimizer", f"state.{name}", values[index])
        engine.sink.optimizer_stepped()

    def _updated(self, optimizer: nn.Optimizer) -> list[tuple[Parameter, str]]:
        return [(parameter, self._name(parameter)) for parameter in optimizer.parameters]

    def _name(self, parameter: Parameter) -> str:
        return self.engine.parameter_names.get(id(parameter), str(parameter.name))

    def end_step(self) -> None:
        """The step under way is over."""
        self._recorded = set()
        self._local = {}


def _labels_among(args: tuple[object, ...], given: set[int]) -> list[tuple[str, Tensor]]:
    """Labels, and a mask of their size; nothing where no root was given integers of the function's own."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    if not any(id(one) in given for one in tensors):
        return []
    rest = [one for one in tensors if id(one) not in given]
    labels = next((one for one in rest if one.dtype in _INTEGERS), None)
    if labels is None:
        return []
    mask = next((one for one in rest if one is not labels and one.size == labels.size > 1), None)
    return [("labels", labels), *([("mask", mask)] if mask is not None else [])]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _paired(weights: Weights, found: Any, *, with_inputs: bool) -> Iterator[tuple[Parameter, Tensor]]:
    """Weights with their gradients, from the shapes a gradient function may return them in."""
    if weights is None or found is None:
        return
    listed = [weights] if isinstance(weights, Parameter) else list(weights)
    gradients = found
    if with_inputs and isinstance(found, tuple) and len(found) == 2:
        gradients = found[1]
    gradients = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    for parameter, gradient in zip(listed, gradients, strict=False):
        if isinstance(gradient, (tuple, list)) and len(gradient) == 2:  # with its name beside it
            gradient = gradient[1]
        if isinstance(gradient, Tensor):
            yield parameter, gradient


def _states(optimizer: nn.Optimizer) -> Iterator[tuple[str, Any]]:
    """State of an optimizer that has one tensor a parameter, under torch's name where it has one."""
    count, groups = len(optimizer.parameters), _groups(optimizer)
    for name, value in vars(optimizer).items():
        if name in ("parameters", "_parameters", "params") or not isinstance(value, ParameterTuple):
            continue
        if _is_idle(name, groups):
            continue
        if len(value) == count and value is not optimizer.parameters:
            yield STATE_NAMES.get(name, name), value


def _is_idle(name: str, groups: list[dict[str, object]]) -> bool:
    """Whether MindSpore keeps this without using it; torch has no such state then."""
    if name == "max_exp_avg_sq":
        return not any(group.get("amsgrad") for group in groups)
    if name == "accum":
        return all(group.get("momentum") == 0 for group in groups)
    return name == "stat"


def _groups(optimizer: nn.Optimizer) -> list[dict[str, Any]]:
    """Parameter groups with their settings as plain numbers."""
    if hasattr(optimizer, "param_groups"):
        return [
            {
                "params": list(group["params"]),
                **{key: _plain(value) for key, value in group.items() if key != "params"},
            }
            for group in optimizer.param_groups
        ]
    settings = {key: _plain(getattr(optimizer, key)) for key in _SETTINGS if hasattr(optimizer, key)}
    if "beta1" in settings and "beta2" in settings:
        settings["betas"] = [settings.pop("beta1"), settings.pop("beta2")]
    decays, rates = getattr(optimizer, "weight_decay", None), _learning_rates(optimizer)
    count = len(optimizer.parameters)
    if not isinstance(decays, (tuple, list)):
        return [{"params": list(optimizer.parameters), "lr": rates[0], **settings}]
    groups: dict[Any, dict[str, Any]] = {}
    each = rates if len(rates) == count else [rates[0] if rates else None] * count
    for parameter, decay, rate in zip(optimizer.parameters, decays, each, strict=False):
        known = {**settings, "weight_decay": _plain(decay)} | ({} if rate is None else {"lr": rate})
        groups.setdefault((_plain(decay), rate), {"params": [], **known})["params"].append(parameter)
    return list(groups.values())


def _learning_rates(optimizer: nn.Optimizer) -> list[float]:
    if hasattr(optimizer, "param_groups"):
        return [float(_plain(group["lr"])) for group in optimizer.param_groups]
    rate = getattr(optimizer, "learning_rate", None)
    if isinstance(rate, (tuple, list)):
        return [float(_plain(one)) for one in rate if isinstance(one, (Tensor, float, int))]
    return [float(_plain(rate))] if isinstance(rate, (Tensor, float, int)) else []


def _plain(value: Any) -> Any:
    """Numbers out of tensors, as a program wrote them: 0.001, not the float32 next to it; else text."""
    if isinstance(value, Tensor):
        numbers = [float(str(number)) for number in value.asnumpy().reshape(-1)]
        return numbers[0] if len(numbers) == 1 else numbers
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(str(value))


def install(training: Training) -> None:
    """Put the wrappers in place, or hand those in place another ``Training``."""
    global _training
    first = _training is None
    _training = training
    if not first:
        return
    for name, wrap in (
        ("_pynative_func_grad_forward", _wrap_forward),
        ("_pynative_func_grad_backward", _wrap_backward),
    ):
        setattr(gradient_functions, name, wrap(getattr(gradient_functions, name)))
    for scaler in (mindspore.amp.StaticLossScaler, mindspore.amp.DynamicLossScaler):
        _wrap_scaler(scaler)
    for name in ("clip_by_global_norm", "clip_by_norm"):
        _wrap_clipping(name)


def _wrap_clipping(name: str) -> None:
    original = getattr(mindspore.ops, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def clip(*args: object, **kwargs: object) -> object:
        training = _training
        if training is not None and not training.engine.local.opaque:
            try:
                with training.engine.quiet():
                    training.clipping(args[0] if args else kwargs.get("x"))
            except Exception as error:
                training.engine.failed("grad_norm", error)
        return original(*args, **kwargs)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original and not module.__name__.startswith("trueup"):
            setattr(module, name, clip)


def _wrap_forward(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def forward(fn: object, *args: object, **kwargs: object) -> Any:
        training = _training
        if training is None or training.in_backward:
            return original(fn, *args, **kwargs)
        training.recording += 1
        try:
            outputs = original(fn, *args, **kwargs)
        finally:
            training.recording -= 1
        if training.recording == 0:
            engine = training.engine
            try:
                with engine.quiet():
                    engine.sink.backward_begins()
                    training.loss(outputs, args)
            except Exception as error:
                engine.failed("loss", error)
        return outputs

    return forward


def _wrap_backward(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def backward(
        fn: object, grad_op: Any, weights: Weights, grad_position: object, *args: object, **kwargs: object
    ) -> Any:
        training = _training
        if training is None or training.recording or training.in_backward:
            return original(fn, grad_op, weights, grad_position, *args, **kwargs)
        engine = training.engine
        training.in_backward = True
        found = None
        try:
            found = original(fn, grad_op, weights, grad_position, *args, **kwargs)
        finally:
            training.in_backward = False
            try:
                with engine.quiet():
                    with_inputs = getattr(grad_op, "get_by_position", False) or grad_op.get_all
                    training.gradients(weights, found, with_inputs=with_inputs)
            except Exception as error:
                engine.failed("backward", error)
        return found

    return backward


def _wrap_scaler(scaler: Any) -> None:
    scale, adjust = scaler.scale, scaler.adjust

    @functools.wraps(scale)
    def scaling(self: Any, inputs: Any) -> Any:
        result = scale(self, inputs)
        training = _training
        if training is not None and isinstance(inputs, Tensor) and isinstance(result, Tensor):
            try:
                training.scaled(inputs, result, getattr(self, "scale_value", None))
            except Exception as error:
                training.engine.failed("loss scale", error)
        return result

    @functools.wraps(adjust)
    def adjusting(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = adjust(self, *args, **kwargs)
        training = _training
        if training is not None:
            try:
                training.engine.sink.scaler_updated()
            except Exception as error:
                training.engine.failed("loss scale", error)
        return result

    scaler.scale, scaler.adjust = scaling, adjusting
