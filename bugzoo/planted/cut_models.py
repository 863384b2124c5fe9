"""What goes wrong in the reference trainer where weights are cut, and where processes exchange tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bugzoo.entries import plant
from bugzoo.layout_changes import before_wrapping, change_call, when_built
from bugzoo.reference_trainer import ReferenceTrainer
from trueup import Replicate, Shard
from trueup_gpt.config import Config
from trueup_gpt.parallel.layout import Call, Change
from trueup_gpt.torch import session, step
from trueup_gpt.torch.model.parts import CrossEntropy, Linear
from trueup_gpt.torch.parallel import apply, rules, stages
from trueup_gpt.torch.parallel.mesh import Mesh

# -- weights


@plant("cut-in-reverse")
def cut_in_reverse(trainer: ReferenceTrainer, fqn: str) -> None:
    """The first process has the last part of one weight, the last the first."""
    cut = apply.ParameterShare.cut

    def reversed_cut(one: apply.ParameterShare, whole: Tensor) -> Tensor:
        if one.fqn != fqn:
            return cut(one, whole)
        return whole.narrow(0, len(whole) - one.offset[0] - one.size[0], one.size[0])

    trainer.replace(apply.ParameterShare, "cut", reversed_cut)


@plant("cut-by-turns")
def cut_by_turns(trainer: ReferenceTrainer, fqn: str) -> None:
    """Rows of one weight are dealt out in turn, where each process should have whole heads."""
    cut = apply.ParameterShare.cut

    def dealt(one: apply.ParameterShare, whole: Tensor) -> Tensor:
        if one.fqn != fqn:
            return cut(one, whole)
        return whole[one.offset[0] // one.size[0] :: len(whole) // one.size[0]]

    trainer.replace(apply.ParameterShare, "cut", dealt)


# -- forward


@plant("output-not-summed")
def output_not_summed(trainer: ReferenceTrainer, product: str, layer: int) -> None:
    """The product of a row-parallel weight is taken for the whole: the sum over processes is left out."""

    def kept(call: Call) -> Call | None:
        assert call.output is not None
        if not isinstance(call.output.need, Shard):
            return None
        return dataclasses.replace(call, output=Change(have=Replicate(), need=call.output.need))

    change_call(trainer, f"layers.*.{product}.multiply", kept, layer=layer)


@plant("bias-on-every-process")
def bias_on_every_process(trainer: ReferenceTrainer, product: str, layer: int) -> None:
    """The bias is added before the sum over processes, once by each."""

    def inside(linear: Linear) -> None:
        multiply = linear.multiply
        object.__setattr__(linear, "multiply", lambda x: multiply(x) + linear.bias)
        object.__setattr__(linear, "forward", lambda x: linear.multiply(x))

    change_call(trainer, f"layers.*.{product}.multiply", lambda call: call, layer=layer)
    before_wrapping(trainer, f"layers.{layer}.{product}.multiply", inside)


@plant("keys-of-own-part")
def keys_of_own_part(trainer: ReferenceTrainer, layer: int) -> None:
    """Attention of one layer sees the keys of its own part of the sequence alone."""
    change_call(trainer, "layers.*.attention.core", lambda call: None, layer=layer)


@plant("dropout-of-own-stream")
def dropout_of_own_stream(trainer: ReferenceTrainer) -> None:
    """Processes that hold the same values draw each from a stream of its own."""
    seed = session.seed_streams

    def seeded(config: Config, mesh: Mesh) -> None:
        seed(config, mesh)
        torch.manual_seed(torch.initial_seed() + mesh.coordinate("tp"))

    trainer.replace(session, "seed_streams", seeded)


@plant("layer-norm-eps")
def layer_norm_eps(trainer: ReferenceTrainer, layer: int, eps: float) -> None:
    """Another eps in one norm, in every process alike."""

    def change(parallel: stages.Parallel) -> None:
        for stage in parallel.stages:
            if str(layer) in stage.model.layers:
                stage.model.get_submodule(f"layers.{layer}.input_norm").eps = eps  # type: ignore[assignment]

    when_built(trainer, change)


# -- loss


def rule_replaced(trainer: ReferenceTrainer, name: str, rule: Any) -> None:
    """One of the computations that differ where tensors are cut is another."""
    trainer.replace(apply, "RULES", {**rules.RULES, name: rule})


@plant("vocabulary-evenly-cut")
def vocabulary_evenly_cut(trainer: ReferenceTrainer) -> None:
    """The loss takes an uneven vocabulary for evenly cut: labels of later processes are shifted."""

    def even(module: CrossEntropy, inner: Any, mesh: Mesh, axis: str) -> Any:
        start = mesh.coordinate(axis) * (module.vocab_size // mesh.size(axis))

        def forward(logits: Tensor, labels: Tensor) -> Tensor:
            wide, group = module.widened(logits), mesh.group(axis)
            loss: Tensor = rules.VocabParallelCrossEntropy.apply(wide, labels, start, group)
            return loss

        return forward

    rule_replaced(trainer, "vocabulary_loss", even)


class _WithoutMaximum:
    """torch.distributed, but that the largest value is not found over processes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, **more: Any) -> Any:
        return None if op == dist.ReduceOp.MAX else dist.all_reduce(tensor, op, **more)


@plant("largest-logit-of-own-part")
def largest_logit_of_own_part(trainer: ReferenceTrainer) -> None:
    """Each process subtracts the largest logit of its own part of the vocabulary."""
    trainer.replace(rules, "dist", _WithoutMaximum())


@plant("router-loss-of-every-process")
def router_loss_of_every_process(trainer: ReferenceTrainer) -> None:
    """Each tensor-parallel process adds the whole of the router's loss."""
    rule_replaced(trainer, "shared_loss", lambda module, inner, mesh, axis: inner)


@plant("own-tokens-counted")
def own_tokens_counted(trainer: ReferenceTrainer) -> None:
    """The loss of a sequence part is divided by that part's tokens alone."""
    change_call(trainer, "*over_tokens", lambda call: None)


@plant("microbatches-not-divided")
def microbatches_not_divided(trainer: ReferenceTrainer) -> None:
    """The losses of a pipeline's microbatches are added up, not averaged."""
    trainer.replace(step.TrainStep, "_weights", lambda run, batches: [1.0] * len(batches))


@plant("logits-gathered")
def logits_gathered(trainer: ReferenceTrainer) -> None:
    """The loss gathers the logits of all processes first: the same loss."""
    training = trainer.config.training
    loss = training.loss_func_kwargs.model_copy(update={"loss_func_type": "CrossEntropyLoss"})
    training = training.model_copy(update={"loss_func_kwargs": loss})
    trainer.config = trainer.config.model_copy(update={"training": training})
