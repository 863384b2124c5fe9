"""What goes wrong in a parallel trainer on MindSpore, planted into the reference trainer's MindSpore half."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, _Function, mint, nn

from bugzoo.entries import plant
from bugzoo.half.trainer import MindSporeTrainer
from bugzoo.layout_changes import change_call, place, reducing
from trueup import Invariant, Partial, Placement, Replicate, gradient_of
from trueup_gpt.mindspore import step
from trueup_gpt.mindspore.model import attention
from trueup_gpt.mindspore.parallel import apply, collectives, moving, pieces, pipeline, rules, stages
from trueup_gpt.mindspore.parallel.mesh import Group, Mesh
from trueup_gpt.mindspore.session import Session
from trueup_gpt.parallel.layout import Call, Change
from trueup_gpt.parallel.schedules import Action

# -- tensor and sequence parallelism


@plant("ms-norms-not-reduced")
def norms_not_reduced(trainer: MindSporeTrainer) -> None:
    """Gradients of the norms, which see a part of the sequence each, are not summed over tp."""
    place(trainer, "*norm.*", "tp", Invariant())


@plant("ms-group-reversed")
def group_reversed(trainer: MindSporeTrainer) -> None:
    """The tensor-parallel group was made of its ranks in another order: parts are gathered the wrong way."""

    def reversed_parts(x: Tensor, group: Group) -> list[Tensor]:
        return collectives.all_gather(x, group)[::-1]

    trainer.replace(moving, "all_gather", reversed_parts)


@plant("ms-vocabulary-of-first")
def vocabulary_of_first(trainer: MindSporeTrainer) -> None:
    """Every process looks up the rows of the vocabulary that the first one has."""

    def first(cell: nn.Cell, inner: rules.Function, mesh: Mesh, axis: str) -> rules.Function:
        def construct(ids_BT: Tensor) -> Tensor:
            own = ids_BT < cell.weight.shape[0]
            rows = inner(ids_BT * own.astype(ids_BT.dtype))
            return rows * own.expand_dims(-1).astype(rows.dtype)

        return construct

    trainer.replace(apply, "RULES", {**rules.RULES, "vocabulary_rows": first})


@plant("ms-output-not-summed")
def output_not_summed(trainer: MindSporeTrainer, layer: int) -> None:
    """The product of a row-cut weight is cut along the sequence without its sum over tp."""

    def cut(call: Call) -> Call:
        assert call.output is not None
        return dataclasses.replace(call, output=Change(have=Replicate(), need=call.output.need))

    change_call(trainer, "layers.*.mlp.down.multiply", cut, layer=layer)


@plant("ms-exponents-not-summed")
def exponents_not_summed(trainer: MindSporeTrainer) -> None:
    """The cross entropy of a cut vocabulary sums over the process's own part."""

    def largest_alone(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
        return collectives.all_reduce(x, group, largest=True) if largest else x

    trainer.replace(rules, "all_reduce", largest_alone)


@plant("ms-backward-not-summed")
def backward_not_summed(trainer: MindSporeTrainer) -> None:
    """The gradient of what was gathered is cut, not summed: its all_reduce is the identity there."""

    class Move(_Function):
        @staticmethod
        def forward(ctx: _Function, x: Tensor, have: Placement, need: Placement, group: Group) -> Tensor:
            ctx.moved = have, need, group
            return moving.moved(x, have, need, group)

        @staticmethod
        def backward(ctx: _Function, gradient: Tensor) -> tuple[Tensor | None, ...]:
            have, need, group = ctx.moved
            arrives = gradient_of(need)
            given: Placement = Replicate() if isinstance(arrives, Partial) else arrives
            return moving.moved(gradient, given, gradient_of(have), group), None, None, None

    trainer.replace(moving, "_Move", Move)


@plant("ms-split-gradient")
def split_gradient(trainer: MindSporeTrainer) -> None:
    """Channels are parted by ``mint.split``, whose gradient mixes the parts up in MindSpore 2.10."""

    def rotate(x_BTND: Tensor, turn: attention.Rotation, *, interleaved: bool) -> Tensor:
        dims = 2 * turn[0].shape[-1]
        x, rest = mint.split(x_BTND, [dims, x_BTND.shape[-1] - dims], -1)
        return mint.cat((whole(x, turn, interleaved=interleaved), rest), -1)

    whole = trainer.replace(attention, "rotate", rotate)


@plant("ms-replicas-in-norm")
def replicas_in_norm(trainer: MindSporeTrainer) -> None:
    """The gradient norm counts what tensor-parallel processes share once for each."""
    norms = step.gradient_norms

    def counted(given: Sequence[pieces.Piece], *rest: Any, **more: Any) -> Any:
        return norms([dataclasses.replace(one, copies=()) for one in given], *rest, **more)

    trainer.replace(step, "gradient_norms", counted)


# -- pipeline stages


@plant("ms-tied-not-summed")
def tied_not_summed(trainer: MindSporeTrainer) -> None:
    """First and last stage each keep their own gradient of the weight they share."""
    trainer.replace(stages, "_tie", lambda parallel: None)


@plant("ms-stage-scaled-again")
def stage_scaled_again(trainer: MindSporeTrainer) -> None:
    """What is sent back to the stage before is divided by the number of microbatches once more."""
    send = pipeline._Step._send

    def scaled(self: Any, action: Action, x: Tensor, stage: int) -> None:
        number = trainer.config.dataset.micro_batch_num
        send(self, action, x if action.forward else x / number, stage)

    trainer.replace(pipeline._Step, "_send", scaled)


@plant("ms-labels-of-another")
def labels_of_another(trainer: MindSporeTrainer) -> None:
    """The last stage takes the labels of its microbatches in another order than the stream arrives in."""
    begin = pipeline._Step.__init__

    def turned(self: Any, runner: Any, own: list[Any], named: list[dict[str, Tensor]]) -> None:
        begin(self, runner, own, named[::-1])

    trainer.replace(pipeline._Step, "__init__", turned)


# -- experts


@plant("ms-expert-times-processes")
def expert_times_processes(trainer: MindSporeTrainer) -> None:
    """Expert gradients, which hold the tokens of all processes already, are scaled by their number."""

    def scale(parallel: stages.Parallel) -> None:
        for piece in parallel.engine.pieces:
            if ".experts." in piece.fqn and piece.gradient is not None:
                piece.gradient = piece.gradient * float(parallel.mesh.size("ep"))

    reducing(trainer, scale, first=False)


@plant("ms-tokens-by-sender")
def tokens_by_sender(trainer: MindSporeTrainer) -> None:
    """Rows that arrive from several processes are taken to be sorted by expert; they lie by sender."""
    trainer.replace(rules, "_by_expert", lambda counts: np.arange(counts.sum()))


# -- data parallelism, ZeRO-1


@plant("ms-parts-not-gathered")
def parts_not_gathered(trainer: MindSporeTrainer) -> None:
    """Each process keeps the others' parts of the weights as they were before the update."""

    def publish(bucket: Any) -> None:
        whole = {name: bucket._parameters[name].reshape(-1).copy() for name in bucket._names}
        for piece in bucket.pieces:
            whole[piece.fqn][piece.flat[0] : piece.flat[1]] = piece.parameter
        for name, values in whole.items():
            bucket._parameters[name].set_data(values.reshape(bucket._parameters[name].shape))

    trainer.replace(pieces._Bucket, "publish", publish)


@plant("ms-averaged-again")
def averaged_again(trainer: MindSporeTrainer) -> None:
    """Gradients of norms are averaged over data-parallel processes, though losses have their share."""

    def average(parallel: stages.Parallel) -> None:
        for piece in parallel.engine.pieces:
            if "norm" in piece.fqn and piece.gradient is not None:
                piece.gradient = piece.gradient / parallel.mesh.size("edp", "ep")

    reducing(trainer, average, first=False)


@plant("ms-first-shard-for-all")
def first_shard_for_all(trainer: MindSporeTrainer) -> None:
    """Every data-parallel process reads the rows of the first."""
    portion = Session.portion

    def first(run: Session, number: int) -> Any:
        return dataclasses.replace(portion(run, number), dp_rank=0)

    trainer.replace(Session, "portion", first)


# -- half precision


@plant("ms-masters-rounded")
def masters_rounded(trainer: MindSporeTrainer) -> None:
    """The optimizer's float32 copies are made anew from the float16 weights after each step."""
    publish = pieces.Copies.publish

    def rounded(engine: pieces.Copies) -> None:
        publish(engine)
        engine.adopt()

    trainer.replace(pieces.Copies, "publish", rounded)


@plant("ms-masters-not-published")
def masters_not_published(trainer: MindSporeTrainer) -> None:
    """The float16 weights are never rounded from the updated float32 copies."""
    trainer.replace(pieces.Copies, "publish", lambda engine: None)


@plant("ms-clipped-before-unscaled")
def clipped_before_unscaled(trainer: MindSporeTrainer) -> None:
    """Gradients are clipped with the loss scale in them, and divided by it afterwards."""
    scale, clip = step.scale_gradients, step.clip_gradients
    trainer.replace(step, "scale_gradients", lambda given, factor: None)

    def clipped(given: Sequence[pieces.Piece], *rest: Any) -> None:
        clip(given, *rest)
        scale(given, 1.0 / trainer.session.step.scale.value)

    trainer.replace(step, "clip_gradients", clipped)


# -- no faults


@plant("ms-as-it-is")
def as_it_is(trainer: MindSporeTrainer) -> None:
    """The same file on the other framework."""


@plant("ms-summed-one-by-one")
def summed_one_by_one(trainer: MindSporeTrainer) -> None:
    """Gradients are summed over processes one by one, not as one flat tensor: the same sums."""

    def one_by_one(gradients: dict[str, Tensor], names: Sequence[str], group: Group) -> None:
        for name in names:
            gradients[name] = collectives.all_reduce(gradients[name], group)

    trainer.replace(pieces, "sum_over", one_by_one)


@plant("ms-norm-by-root")
def norm_by_root(trainer: MindSporeTrainer) -> None:
    """Norms by a quotient in place of a reciprocal root."""
    from trueup_gpt.mindspore.model import parts

    def construct(self: parts.Norm, x_BTH: Tensor) -> Tensor:
        return x_BTH / mint.sqrt(mint.mean(x_BTH * x_BTH, -1, keepdim=True) + self.eps) * self.weight

    trainer.replace(parts.Norm, "construct", construct)
