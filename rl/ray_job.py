"""A driver and three Ray actors: two of one process group, one alone; each trains a small model.

RAY_ADDRESS says on which cluster.
"""

import os
import socket

import ray


@ray.remote
class Trainer:
    def __init__(self, rank, world, port):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        import torch
        import torch.distributed as dist

        torch.manual_seed(0)
        self.world = world
        if world > 1:
            dist.init_process_group("gloo", rank=rank, world_size=world)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, x):
        import torch.distributed as dist

        self.optimizer.zero_grad()
        loss = self.model(x).pow(2).mean()
        loss.backward()
        if self.world > 1:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.item()


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    import torch

    ray.init()
    port = free_port()
    actors = [Trainer.remote(rank, 2, port) for rank in range(2)] + [Trainer.remote(0, 1, 0)]
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(3):
        print(step, ray.get([actor.train.remote(x + step) for actor in actors]))
    ray.shutdown()
