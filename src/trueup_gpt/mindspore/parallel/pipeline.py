"""Runs the microbatches of a step: one after the other, or by the table of a pipeline schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore.ops.composite import base

from trueup.types.arrays import Array
from trueup_gpt.data import Batch, sequence_part
from trueup_gpt.mindspore.parallel.apply import named_parameters
from trueup_gpt.mindspore.parallel.collectives import receive, send
from trueup_gpt.mindspore.parallel.pieces import Gradients
from trueup_gpt.mindspore.parallel.stages import Parallel, Stage
from trueup_gpt.parallel import running
from trueup_gpt.parallel.running import check_shape, stream_shape, tokens_shape
from trueup_gpt.parallel.schedules import Action, actions_of, messages
from trueup_gpt.parallel.stages import rank_of_stage


class Runner(running.Runner[Tensor], Protocol):
    """Forward and backward of all microbatches of a step; gradients are handed over."""

    gradients: Gradients
    """of the last step's microbatches, summed"""


def runner_for(parallel: Parallel) -> Runner:
    """The one that fits the mesh."""
    return Plain(parallel) if parallel.num_stages == 1 else Pipelined(parallel)


def _named(batch: Batch[Tensor], weight: float, device: str) -> dict[str, Tensor]:
    """What a stage takes beside its input."""
    dtype = mindspore.float64 if device == "cpu" else mindspore.float32
    return {"loss_weight": Tensor(np.array([weight]), dtype), **batch.named()}


def _add(gradients: Gradients, names: Sequence[str], new: Sequence[Tensor]) -> None:
    for name, gradient in zip(names, new, strict=True):
        gradients[name] = gradients[name] + gradient if name in gradients else gradient


class Plain:
    """Without pipeline stages: forward and backward, microbatch by microbatch."""

    def __init__(self, parallel: Parallel) -> None:
        self._stage, self._mesh = parallel.stages[0], parallel.mesh
        self._names = list(parallel.parameters)
        self._gradient_of = mindspore.value_and_grad(self._forward, None, list(parallel.parameters.values()))
        self.gradients: Gradients = {}

    def _forward(self, tokens: Tensor, named: dict[str, Tensor]) -> Tensor:
        return self._stage(tokens, **named)

    def run(
        self, batches: Sequence[Batch[Array]], weights: Sequence[float], *, backward: bool
    ) -> list[Tensor]:
        """See ``Runner``."""
        self._stage.losses.clear()
        self.gradients = {}
        for batch, weight in zip(batches, weights, strict=True):
            own = sequence_part(batch, self._mesh).map(Tensor)
            named = _named(own, weight, self._mesh.device)
            if backward:
                _, new = self._gradient_of(own.tokens, named)
                _add(self.gradients, self._names, new)
            else:
                self._forward(own.tokens, named)
        return list(self._stage.losses)


class Pipelined:
    """By the table. A stage's forward and backward are apart: what it gave leads back to what made it."""

    def __init__(self, parallel: Parallel) -> None:
        self._parallel, self._mesh, config = parallel, parallel.mesh, parallel.config
        self._stages = {stage.number: stage for stage in parallel.stages}
        self._weights = {number: named_parameters(stage.model) for number, stage in self._stages.items()}
        self._rank, self._ranks = parallel.mesh.coordinate("pp"), parallel.mesh.peers("pp")
        self._actions = actions_of(config, self._rank)
        self._shape, self._stream = tokens_shape(config, self._mesh), stream_shape(config, self._mesh)
        self.gradients: Gradients = {}

    def run(
        self, batches: Sequence[Batch[Array]], weights: Sequence[float], *, backward: bool
    ) -> list[Tensor]:
        """See ``Runner``."""
        own = [sequence_part(batch, self._mesh).map(Tensor) for batch in batches]
        for batch in own:
            check_shape(batch.tokens.shape, self._shape)
        for stage in self._parallel.stages:
            stage.losses.clear()
        self.gradients = {}
        step = _Step(self, own, [_named(b, w, self._mesh.device) for b, w in zip(own, weights, strict=True)])
        for action in self._actions:
            if action.forward:
                step.forward(action, recording=backward)
            elif backward:
                step.backward(action)
        for number, parameters in self._weights.items():
            assert number in self._stages
            for fqn, parameter in parameters.items() if backward else ():
                if fqn not in self.gradients:
                    self.gradients[fqn] = ops.zeros_like(parameter)
        return list(self._parallel.stages[-1].losses)


class _Step:
    """What lies between the actions of one step."""

    def __init__(self, runner: Pipelined, own: list[Batch[Tensor]], named: list[dict[str, Tensor]]) -> None:
        self._runner, self._own, self._named = runner, own, named
        self._held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """stage and microbatch -> what went in, what came out"""
        self._sent_back: dict[tuple[int, int], Tensor] = {}
        self._arrived: dict[Action, Tensor] = {}
        self._expected: dict[int, list[Action]] = {}
        """pipeline rank -> what it will send, in order"""

    def forward(self, action: Action, *, recording: bool) -> None:
        stage, number = self._runner._stages[action.stage], action.microbatch
        first, last = stage.model.pre_process, stage.model.post_process
        x = (
            self._own[number].tokens
            if first
            else self._receive(Action(True, action.stage - 1, number), recording)
        )

        def run(given: Tensor) -> Tensor:
            return stage(given, **self._named[number])

        if not recording:
            y = run(x)
        elif last:
            gradient_of = mindspore.value_and_grad(run, 0, list(self._parameters(stage)))
            y, (to_input, new) = gradient_of(x)
            _add(self._runner.gradients, list(self._runner._weights[stage.number]), new)
            self._sent_back[action.stage, number] = to_input
        else:
            y = base._pynative_func_grad_forward(run, x)
            self._held[action.stage, number] = x, y
        if not last:
            self._send(action, ops.stop_gradient(y), action.stage + 1)

    def backward(self, action: Action) -> None:
        stage, key = self._runner._stages[action.stage], (action.stage, action.microbatch)
        if stage.model.post_process:
            to_input = self._sent_back.pop(key)
        else:
            arrived = self._receive(Action(False, action.stage + 1, action.microbatch), True)
            x, y = self._held.pop(key)
            whole = ops.GradOperation(get_all=not stage.model.pre_process, get_by_list=True, sens_param=True)
            found = whole(lambda given: y, list(self._parameters(stage)))(x, arrived)
            (to_input,), new = ((None,), found) if stage.model.pre_process else found
            _add(self._runner.gradients, list(self._runner._weights[stage.number]), new)
        if not stage.model.pre_process:
            self._send(action, to_input, action.stage - 1)

    def _parameters(self, stage: Stage) -> Sequence[Parameter]:
        return list(self._runner._weights[stage.number].values())

    def _send(self, action: Action, x: Tensor, stage: int) -> None:
        send(x, self._runner._ranks[rank_of_stage(self._runner._parallel.config, stage)])

    def _receive(self, wanted: Action, recording: bool) -> Tensor:
        """From the process that makes it: it comes in the order of that one's table, not of ours."""
        runner, config = self._runner, self._runner._parallel.config
        sender = rank_of_stage(config, wanted.stage)
        if sender not in self._expected:
            sent = messages(config, sender, runner._rank)
            self._expected[sender] = [one for one in sent if one.forward or recording]
        while wanted not in self._arrived:
            dtype = runner._parallel.stages[0].model.residual_dtype
            arrived = receive(runner._stream, dtype, runner._ranks[sender])
            self._arrived[self._expected[sender].pop(0)] = arrived
        return self._arrived.pop(wanted)
