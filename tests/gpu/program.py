"""Trains a small Llama on a device in one of many ways: ``python program.py WAY [FAULT] [--device cpu]``.

Prints the losses and a hash of the trained weights: the same bits with capture and without.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

SEQUENCE, ROWS, HIDDEN, STEPS = 64, 2, 128, 3

Step = Callable[[Tensor], Tensor]
"""forward and backward of one batch of ids (ROWS, SEQUENCE); the loss"""


def model_of(*, attention: str = "sdpa", **changed: object) -> LlamaForCausalLM:
    """Two layers, the same weights each time."""
    torch.manual_seed(0)
    values: dict[str, object] = {
        "vocab_size": 512,
        "hidden_size": HIDDEN,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    config = LlamaConfig(**{**values, **changed})
    config._attn_implementation = attention
    return LlamaForCausalLM(config)


def ids_of(step: int, device: torch.device) -> Tensor:
    """Token ids of a step (ROWS, SEQUENCE)."""
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, 512, (ROWS, SEQUENCE), generator=generator)
    return ids.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else ids


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Of the next token."""
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


class Way:
    """How a run trains, and how it differs from the plain one."""

    attention = "sdpa"
    dtype = torch.float32
    optimizer: ClassVar[dict[str, object]] = {}

    def prepared(self, model: nn.Module) -> nn.Module:
        """Once, on the device."""
        return model

    def around(self) -> AbstractContextManager[object]:
        """Each step's forward and backward."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Of a step."""
        loss.backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Of a step."""
        optimizer.step()

    def step(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Forward and backward."""
        with self.around():
            loss = loss_of(model, ids)
            self.backward(loss)
        return loss.detach()


class Eager(Way):
    """Attention written out."""

    attention = "eager"


class Tf32(Way):
    """Products of float32 in TF32."""

    def prepared(self, model: nn.Module) -> nn.Module:
        torch.backends.cuda.matmul.allow_tf32 = True
        return model


class Autocast(Way):
    """Automatic mixed precision in bfloat16."""

    backend: SDPBackend | None = None

    def step(self, model: nn.Module, ids: Tensor) -> Tensor:
        with ExitStack() as stack:
            if self.backend is not None:
                stack.enter_context(sdpa_kernel(self.backend))
            with torch.autocast(ids.device.type, torch.bfloat16):
                loss = loss_of(model, ids)
            loss.backward()
        return loss.detach()


class Flash(Autocast):
    """Attention by the fused kernel of bfloat16."""

    backend = SDPBackend.FLASH_ATTENTION


class Math(Autocast):
    """The same attention by operations."""

    backend = SDPBackend.MATH


class Half(Way):
    """float16 with a scaled loss."""

    def prepared(self, model: nn.Module) -> nn.Module:
        self.scaler = torch.amp.GradScaler(init_scale=2.0**10)
        return model

    def step(self, model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast(ids.device.type, torch.float16):
            loss = loss_of(model, ids)
        self.scaler.scale(loss).backward()
        return loss.detach()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()


class Whole(Way):
    """All in bfloat16."""

    dtype = torch.bfloat16


class Fused(Way):
    """The optimizer in one kernel."""

    optimizer: ClassVar[dict[str, object]] = {"fused": True}


class Loop(Way):
    """The optimizer one weight at a time."""

    optimizer: ClassVar[dict[str, object]] = {"foreach": False}


class Segments(Way):
    """Memory in segments that grow."""

    def prepared(self, model: nn.Module) -> nn.Module:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        return model


class Offload(Way):
    """What backward needs lies on the host meanwhile."""

    def around(self) -> AbstractContextManager[object]:
        return torch.autograd.graph.save_on_cpu(pin_memory=True)


class Checkpoint(Way):
    """Layers run again in backward."""

    def prepared(self, model: nn.Module) -> nn.Module:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        model.train()
        return model


class Side(Way):
    """Forward and backward on a stream of their own."""

    @contextmanager
    def around(self) -> Iterator[None]:
        main = torch.cuda.current_stream()
        self.stream = getattr(self, "stream", None) or torch.cuda.Stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            yield
        main.wait_stream(self.stream)


class Compiled(Way):
    """The layers compiled."""

    mode = "default"

    def prepared(self, model: nn.Module) -> nn.Module:
        for layer in model.model.layers:  # type: ignore[union-attr]
            layer.compile(mode=self.mode)
        return model


class Reduced(Compiled):
    """Compiled into graphs of the device."""

    mode = "reduce-overhead"

    def step(self, model: nn.Module, ids: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return super().step(model, ids).clone()


class Graph(Way):
    """Forward and backward recorded once into a graph of the device, and replayed."""

    def prepared(self, model: nn.Module) -> nn.Module:
        self.ids = ids_of(0, torch.device("cuda", 0))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                loss_of(model, self.ids).backward()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = loss_of(model, self.ids)
            self.loss.backward()
        return model

    def step(self, model: nn.Module, ids: Tensor) -> Tensor:
        self.ids.copy_(ids)
        self.graph.replay()
        return self.loss.detach().clone()


class Graphed(Way):
    """Layers made callables that replay graphs."""

    def prepared(self, model: nn.Module) -> nn.Module:
        mlps = tuple(layer.mlp for layer in model.model.layers)  # type: ignore[union-attr]
        device = next(model.parameters()).device
        sample = torch.randn(ROWS, SEQUENCE, HIDDEN, device=device)
        samples = tuple((sample.clone().requires_grad_(),) for _ in mlps)
        torch.cuda.make_graphed_callables(mlps, samples)
        return model


class Parallel(Way):
    """One process of data parallelism over NCCL."""

    def prepared(self, model: nn.Module) -> nn.Module:
        begin_process_group()
        return nn.parallel.DistributedDataParallel(model, device_ids=[0])


class Sharded(Way):
    """One process of FSDP2 over NCCL."""

    def prepared(self, model: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        begin_process_group()
        for layer in model.model.layers:  # type: ignore[union-attr]
            fully_shard(layer)
        return fully_shard(model)  # type: ignore[return-value]


def begin_process_group() -> None:
    """Of this process alone."""
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group(
        "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )


WAYS = {
    name.lower(): kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Way) and kind is not Way
} | {"plain": Way}


def eps(model: nn.Module) -> dict[str, object]:
    """The second layer's norm has another epsilon."""
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2  # type: ignore[union-attr,index]
    return {}


def scale(model: nn.Module) -> dict[str, object]:
    """Scores of the first layer are scaled as if heads were smaller."""
    model.model.layers[0].self_attn.scaling *= 2**0.5  # type: ignore[union-attr,index,operator]
    return {}


def rate(model: nn.Module) -> dict[str, object]:
    """Twice the learning rate."""
    return {"lr": 2e-3}


FAULTS = {"none": lambda model: {}, "eps": eps, "scale": scale, "rate": rate}


def train(way: Way, fault: str, device: torch.device) -> dict[str, object]:
    """Losses, and a hash of the weights after the last step."""
    model = model_of(attention=way.attention).to(device, way.dtype)
    options = {"lr": 1e-3, **way.optimizer, **FAULTS[fault](model)}
    trained = way.prepared(model)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    losses = []
    for step in range(STEPS):
        losses.append(way.step(trained, ids_of(step, device)))
        way.update(optimizer)
        optimizer.zero_grad(set_to_none=not isinstance(way, Graph))
    digest = hashlib.sha256()
    for weight in model.parameters():
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        digest.update(whole.detach().cpu().float().numpy().tobytes())
    return {"losses": [float(loss).hex() for loss in losses], "weights": digest.hexdigest()}


def main() -> None:
    """Run one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("fault", choices=sorted(FAULTS), nargs="?", default="none")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for _ in range(options.times):
        print("RESULT", json.dumps(train(WAYS[options.way](), options.fault, device)), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
