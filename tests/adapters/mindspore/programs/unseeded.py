"""Trains two steps with dropout and no seed of its own."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn
from mindspore.experimental import optim

ms.set_device("CPU")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.random.standard_normal((8, 8)).astype(np.float32)), name="weight")
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, x: Tensor) -> Tensor:
        return self.dropout(mint.matmul(x, self.weight))


net = Net()
net.set_train()
optimizer = optim.SGD(list(net.trainable_params()), lr=0.1)
gradient = ms.value_and_grad(lambda x: mint.mean(net(x) * net(x)), None, optimizer.parameters)
for _ in range(2):
    optimizer(gradient(Tensor(np.ones((4, 8), np.float32)))[1])
