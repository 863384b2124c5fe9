"""Trains two steps from the same weights on the same batches every time."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn
from mindspore.experimental import optim

ms.set_device("CPU")
random = np.random.default_rng(0)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(random.standard_normal((8, 8)).astype(np.float32)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return mint.tanh(mint.matmul(x, self.weight))


net = Net()
net.set_train()
optimizer = optim.SGD(list(net.trainable_params()), lr=0.1)
gradient = ms.value_and_grad(lambda x: mint.mean(net(x) ** 2), None, optimizer.parameters)
for _ in range(2):
    loss, found = gradient(Tensor(random.standard_normal((4, 8)).astype(np.float32)))
    optimizer(found if isinstance(found, tuple) else (found,))
