"""Runs the microbatches of a step: one after the other, or through torch's pipeline schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from trueup.types.arrays import Array
from trueup_gpt.data import Batch, sequence_part
from trueup_gpt.parallel.running import Runner, check_shape, stream_shape, tokens_shape
from trueup_gpt.parallel.schedules import schedule_of
from trueup_gpt.torch.parallel.stages import Parallel, Stage

_SCHEDULES: dict[str, Callable[..., PipelineScheduleSingle | PipelineScheduleMulti]] = {
    "1f1b": Schedule1F1B,
    "gpipe": ScheduleGPipe,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


def runner_for(parallel: Parallel) -> Runner[Tensor]:
    """The one that fits the mesh."""
    return Plain(parallel) if parallel.num_stages == 1 else Pipelined(parallel)


def _on(device: torch.device) -> Callable[[Array], Tensor]:
    return lambda array: torch.as_tensor(array).to(device, non_blocking=True)


def _weight(value: float, device: torch.device) -> Tensor:
    return torch.tensor(
        [value], dtype=torch.float64 if device.type != "npu" else torch.float32, device=device
    )


class Plain:
    """Without pipeline stages: forward and backward, microbatch by microbatch."""

    def __init__(self, parallel: Parallel) -> None:
        self._stage, self._mesh = parallel.stages[0], parallel.mesh

    def run(
        self, batches: Sequence[Batch[Array]], weights: Sequence[float], *, backward: bool
    ) -> list[Tensor]:
        """See ``Runner``."""
        self._stage.losses.clear()
        for batch, weight in zip(batches, weights, strict=True):
            own = sequence_part(batch, self._mesh).map(_on(self._mesh.device))
            loss = self._stage(own.tokens, loss_weight=_weight(weight, self._mesh.device), **own.named())
            if backward:
                loss.backward()
        return list(self._stage.losses)


class Pipelined:
    """With torch.distributed.pipelining. Shapes between stages are told: no forward runs to find them."""

    def __init__(self, parallel: Parallel) -> None:
        self._parallel, self._mesh = parallel, parallel.mesh
        config = parallel.config
        self._shape = tokens_shape(config, self._mesh)
        stages = [self._torch_stage(stage) for stage in parallel.stages]
        chosen = schedule_of(config)
        single = chosen in ("1f1b", "gpipe")
        self._schedule = _SCHEDULES[chosen](
            stages[0] if single else stages,
            n_microbatches=config.dataset.micro_batch_num,
            loss_fn=lambda weighted, target: weighted,
            scale_grads=False,
        )

    def _torch_stage(self, stage: Stage) -> PipelineStage:
        config, mesh, last = self._parallel.config, self._mesh, self._parallel.num_stages - 1
        ids = torch.empty(self._shape, dtype=torch.int64, device="meta")
        shape, dtype = stream_shape(config, mesh), stage.model.residual_dtype
        stream = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        wide = torch.promote_types(getattr(torch, config.model.compute_dtype), torch.float32)
        if config.model.fp16_lm_cross_entropy:
            wide = torch.float16
        loss = torch.empty((), dtype=wide, device="meta", requires_grad=True)
        return PipelineStage(
            stage,
            stage.number,
            last + 1,
            mesh.device,
            input_args=ids if stage.number == 0 else stream,
            output_args=loss if stage.number == last else stream,
            input_grads=None if stage.number == 0 else stream.detach(),
            output_grads=None if stage.number == last else stream.detach(),
            group=mesh.group("pp"),
        )

    def run(
        self, batches: Sequence[Batch[Array]], weights: Sequence[float], *, backward: bool
    ) -> list[Tensor]:
        """See ``Runner``."""
        own = [sequence_part(batch, self._mesh).map(_on(self._mesh.device)) for batch in batches]
        for batch in own:  # torch would reuse the buffers of another shape, and say nothing
            check_shape(tuple(batch.tokens.shape), self._shape)
        for stage in self._parallel.stages:
            stage.losses.clear()
        given = {name: torch.cat([batch.named()[name] for batch in own]) for name in own[0].named()}
        given["loss_weight"] = torch.cat([_weight(weight, self._mesh.device) for weight in weights])
        tokens = [torch.cat([batch.tokens for batch in own])] if self._parallel.stages[0].number == 0 else []
        last = self._parallel.stages[-1].model.post_process
        target = given["labels_BT"] if last else None
        call: Callable[..., object] = self._schedule.step if backward else self._schedule.eval
        call(*tokens, target=target, losses=[] if last else None, return_outputs=False, **given)
        return list(self._parallel.stages[-1].losses) if last else []
