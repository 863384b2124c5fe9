"""Training loops of the kinds programs write, each returning everything a run leaves behind.

The experimental optimizers compile a graph for each of their instances, most of a small loop's time; where
the optimizer is not the point it is one of ``nn``, whose update of a weight is one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn
from mindspore.experimental import optim

from tests.adapters.mindspore.models import GPT, batch, cross_entropy, start

STEPS = 3
Result = tuple[list[bytes], list[bytes], list[bytes]]
"""bytes of the losses, of the last gradients, of the weights"""


def _train(model: nn.Cell, *, microbatches: int = 1, optimizer: Any = None) -> Result:
    model.set_train()
    parameters = list(model.trainable_params())
    optimizer = optimizer or _decaying(model)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(ids), labels) / microbatches

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    losses, total = [], None
    for step in range(STEPS):
        total = None
        for microbatch in range(microbatches):
            loss, found = gradient(*batch(step * microbatches + microbatch))
            losses.append(loss.asnumpy().tobytes())
            total = found if total is None else tuple(a + b for a, b in zip(total, found, strict=True))
        optimizer(total)
    return losses, _bytes(total), _bytes(parameters)


def _decaying(model: nn.Cell) -> nn.Cell:
    return nn.AdamWeightDecay(model.trainable_params(), 1e-2, weight_decay=0.1)


def _bytes(tensors: Any) -> list[bytes]:
    return [tensor.asnumpy().tobytes() for tensor in tensors]


def plain() -> Result:
    start()
    model = GPT()
    return _train(model, optimizer=optim.AdamW(list(model.trainable_params()), lr=1e-2))


def accumulated() -> Result:
    start()
    return _train(GPT(), microbatches=2)


def tied() -> Result:
    start()
    return _train(GPT(tied=True))


def classic_optimizer() -> Result:
    start()
    return _train(GPT())


def with_dropout() -> Result:
    start()
    ms.set_seed(3)
    ms.manual_seed(3)
    return _train(GPT(dropout=0.2))


def loss_scaled() -> Result:
    """A dynamic loss scaler, as a mixed precision program has it."""
    start()
    model = GPT()
    model.set_train()
    optimizer = optim.AdamW(list(model.trainable_params()), lr=1e-2)
    scaler = ms.amp.DynamicLossScaler(scale_value=1024.0, scale_factor=2, scale_window=2)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return scaler.scale(cross_entropy(model(ids), labels))

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    losses, found = [], None
    for step in range(STEPS):
        loss, found = gradient(*batch(step))
        found = scaler.unscale(found)
        losses.append(scaler.unscale(loss).asnumpy().tobytes())
        if bool(ms.amp.all_finite(found)):
            optimizer(found)
        scaler.adjust(ms.amp.all_finite(found))
    return losses, _bytes(found), _bytes(optimizer.parameters)


class _WithLoss(nn.Cell):
    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = model

    def construct(self, ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self._backbone(ids), labels)


def training_cell() -> Result:
    """``nn.TrainOneStepCell`` takes the whole step."""
    start()
    model = GPT()
    optimizer = nn.Momentum(model.trainable_params(), 1e-2, 0.9)
    step_cell = nn.TrainOneStepCell(_WithLoss(model), optimizer)
    step_cell.set_train()
    losses = [step_cell(*batch(step)).asnumpy().tobytes() for step in range(STEPS)]
    return losses, [], _bytes(model.trainable_params())


def evaluated_between() -> Result:
    """A forward without gradients between two steps is no part of either."""
    start()
    model = GPT()
    optimizer = nn.SGD(model.trainable_params(), 1e-2, momentum=0.9)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    losses, found = [], ()
    for step in range(STEPS):
        loss, found = gradient(*batch(step))
        optimizer(found)
        losses += [loss.asnumpy().tobytes(), model(batch(50)[0]).asnumpy().tobytes()]
    return losses, _bytes(found), _bytes(optimizer.parameters)


@ms.jit
def _compiled_loss(logits: Tensor, labels: Tensor) -> Tensor:
    wanted = mint.gather(mint.nn.functional.softmax(logits, dim=-1), 2, labels[..., None].astype(ms.int64))
    return -mint.mean(mint.log(wanted + 1e-9))


def compiled_function() -> Result:
    """A jitted function inside the step: compiled from its source, and never from ours."""
    start()
    model = GPT()
    optimizer = _decaying(model)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return _compiled_loss(model(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    losses, found = [], ()
    for step in range(STEPS):
        loss, found = gradient(*batch(step))
        optimizer(found)
        losses.append(loss.asnumpy().tobytes())
    return losses, _bytes(found), _bytes(optimizer.parameters)


def recomputed() -> Result:
    start()
    model = GPT()
    for layer in model.layers:
        layer.recompute()
    return _train(model)


LOOPS: dict[str, Callable[[], Result]] = {
    loop.__name__: loop
    for loop in (
        plain,
        accumulated,
        tied,
        classic_optimizer,
        with_dropout,
        loss_scaled,
        training_cell,
        evaluated_between,
        compiled_function,
        recomputed,
    )
}


def finite(result: Result) -> bool:
    """Whether the losses are numbers: a loop whose losses are NaN proves nothing."""
    return all(np.isfinite(np.frombuffer(one, np.float32)).all() for one in result[0])
