"""Trains in graph mode, by a gradient function or by a training cell: ``graph_mode.py function|cell``."""

from __future__ import annotations

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((4, 4), np.float32)), name="weight")
        self.matmul = ops.MatMul()

    def construct(self, x, y):  # type: ignore[no-untyped-def]
        difference = self.matmul(x, self.weight) - y
        return (difference * difference).mean()


net = Net()
net.set_train()
optimizer = nn.SGD(net.trainable_params(), 0.1)
x, y = Tensor(np.eye(4, dtype=np.float32)), Tensor(np.full((4, 4), 0.5, np.float32))
if sys.argv[1] == "function":
    gradient = ms.value_and_grad(net, None, optimizer.parameters)
    for _ in range(2):
        loss, found = gradient(x, y)
        optimizer(found if isinstance(found, tuple) else (found,))
        print(float(loss.asnumpy()))
else:
    step = nn.TrainOneStepCell(net, optimizer)
    step.set_train()
    for _ in range(2):
        print(float(step(x, y).asnumpy()))
