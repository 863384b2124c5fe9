"""Two processes, a batch each: an all-reduce in the forward, one of the gradients, and an all-gather."""

from __future__ import annotations

import mindspore as ms
import mindspore.mint.distributed as dist
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import get_rank, init
from mindspore.experimental import optim

ms.set_device("CPU")
init("mccl")
rank = get_rank()


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(4, np.float32)), name="weight")
        self.all_reduce = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return self.all_reduce(x * self.weight)


net = Net()
net.set_train()
optimizer = optim.SGD(list(net.trainable_params()), lr=0.1)
gradient = ms.value_and_grad(lambda x: mint.mean(net(x)), None, optimizer.parameters)
for _ in range(2):
    loss, found = gradient(Tensor(np.full((2, 4), rank + 1, np.float32)))
    found = found[0] if isinstance(found, tuple) else found
    dist.all_reduce(found)
    parts = [Tensor(np.zeros(2, np.float32)) for _ in range(2)]
    dist.all_gather(parts, Tensor(np.full(2, rank, np.float32)))
    optimizer((found / 2,))
