"""The same program with its weights sharded by FSDP2: ``sharded_program.py FAULT DTYPE [JSON]``."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from same_program import GPT, WORDS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    """Two steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = GPT(fault=sys.argv[1] == "fault")
    mesh = init_device_mesh("cpu", (size,))
    dtype = getattr(torch, sys.argv[2])
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = None
    if len(sys.argv) > 3:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=sys.argv[3])
    draw = torch.Generator().manual_seed(7)
    for _ in range(2):
        if debugger is not None:
            debugger.start(model=model)
        tokens = torch.randint(0, WORDS, (2 * size, 17), generator=draw).chunk(size)[rank]
        loss = model(tokens=tokens[:, :-1], labels=tokens[:, 1:])["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
