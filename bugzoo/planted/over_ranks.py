"""What goes wrong in the reference trainer between the processes' gradients and the optimizer, and in what
each process reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from bugzoo.entries import plant
from bugzoo.layout_changes import place, reducing, when_built
from bugzoo.reference_trainer import ReferenceTrainer
from trueup import Invariant
from trueup_gpt.data.batch import Batch
from trueup_gpt.torch import session, step
from trueup_gpt.torch.parallel import pieces, pipeline, stages
from trueup_gpt.torch.parallel.mesh import Mesh

# -- gradients


@plant("part-not-reduced")
def part_not_reduced(trainer: ReferenceTrainer, pattern: str) -> None:
    """Weights that sequence parts share keep each process's own gradient (Megatron-LM #599, #1446)."""
    place(trainer, pattern, "tp", Invariant())


@plant("weight-left-out-of-data")
def weight_left_out_of_data(trainer: ReferenceTrainer, fqn: str) -> None:
    """One weight is not reduced over data-parallel processes."""
    by_axes = pieces._by_axes

    def grouped(places: Any, mesh: Mesh, among: tuple[str, ...]) -> Any:
        kept = [one for one in places if among != pieces.DATA_AXES or one.fqn != fqn]
        return by_axes(kept, mesh, among)

    trainer.replace(pieces, "_by_axes", grouped)


@plant("embedding-of-own-stage")
def embedding_of_own_stage(trainer: ReferenceTrainer) -> None:
    """First and last stage each keep their own gradient of the weight they share (Megatron-LM #656)."""
    trainer.replace(stages, "_tie", lambda parallel: None)


def _experts(parallel: stages.Parallel) -> list[torch.Tensor]:
    return [pieces.gradient_of(one) for fqn, one in parallel.parameters.items() if ".experts." in fqn]


@plant("expert-times-processes")
def expert_times_processes(trainer: ReferenceTrainer) -> None:
    """Expert gradients, which hold the tokens of all processes already, are scaled by their number."""

    def scale(parallel: stages.Parallel) -> None:
        torch._foreach_mul_(_experts(parallel), float(parallel.mesh.size("ep")))

    reducing(trainer, scale, first=False)


@plant("experts-added-up")
def experts_added_up(trainer: ReferenceTrainer) -> None:
    """Gradients of different experts are summed over the processes that hold them."""

    def add(parallel: stages.Parallel) -> None:
        for gradient in _experts(parallel):
            dist.all_reduce(gradient, group=parallel.mesh.group("ep"))

    reducing(trainer, add, first=True)


@plant("averaged-again")
def averaged_again(trainer: ReferenceTrainer) -> None:
    """Gradients are averaged over data-parallel processes though every loss has its share already."""

    def average(parallel: stages.Parallel) -> None:
        for piece in parallel.engine.pieces:
            pieces.gradient_of(piece.parameter).div_(parallel.mesh.size("edp", "ep"))

    reducing(trainer, average, first=False)


@plant("summed-one-by-one")
def summed_one_by_one(trainer: ReferenceTrainer) -> None:
    """Gradients are summed over processes one by one, not as one flat tensor: the same sums."""

    def one_by_one(tensors: Any, group: Any) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)

    trainer.replace(pieces, "sum_over", one_by_one)


# -- norm and clipping


@plant("replicas-in-norm")
def replicas_in_norm(trainer: ReferenceTrainer, axis: str) -> None:
    """The norm counts a gradient once for each process along one axis that has it whole."""
    norms = step.gradient_norms

    def counted(given: Sequence[pieces.Piece], *rest: Any, **more: Any) -> Any:
        kept = [tuple(other for other in one.copies if other != axis) for one in given]
        pairs = zip(given, kept, strict=True)
        return norms([dataclasses.replace(one, copies=axes) for one, axes in pairs], *rest, **more)

    trainer.replace(step, "gradient_norms", counted)


@plant("norm-of-own-parts")
def norm_of_own_parts(trainer: ReferenceTrainer, rank: int) -> None:
    """One process clips by the norm of what it holds alone (DeepSpeed #1801)."""
    norms = step.gradient_norms

    def own(given: Sequence[pieces.Piece], names: Sequence[str], mesh: Mesh, **more: Any) -> Any:
        found = norms(given, names, mesh, **more)
        if mesh.rank != rank:
            return found
        squares = sum(float(g.square().sum()) for one in given if (g := one.gradient()) is not None)
        return dataclasses.replace(found, total=squares**0.5)

    trainer.replace(step, "gradient_norms", own)


# -- weights that every process updates in part


@plant("parts-not-gathered")
def parts_not_gathered(trainer: ReferenceTrainer) -> None:
    """Each process keeps the others' parts of the weights as they were before the update."""
    trainer.replace(pieces.ZeroOne, "publish", lambda engine: None)


@plant("part-stale")
def part_stale(trainer: ReferenceTrainer, rank: int) -> None:
    """One process updates copies of its parts: what it hands to all stays as it was."""

    def detach(parallel: stages.Parallel) -> None:
        if parallel.mesh.rank == rank:
            for piece in parallel.engine.pieces:
                piece.parameter.data = piece.parameter.data.clone()

    when_built(trainer, detach)


# -- data


@plant("first-shard-for-all")
def first_shard_for_all(trainer: ReferenceTrainer) -> None:
    """Every data-parallel process reads the rows of the first."""
    portion = session.Session.portion

    def first(run: session.Session, number: int) -> Any:
        return dataclasses.replace(portion(run, number), dp_rank=0)

    trainer.replace(session.Session, "portion", first)


@plant("positions-of-own-part")
def positions_of_own_part(trainer: ReferenceTrainer) -> None:
    """Each context-parallel process counts the positions of its tokens from zero."""
    part = pipeline.sequence_part

    def counted(batch: Batch, mesh: Mesh) -> Batch:
        own = part(batch, mesh)
        return dataclasses.replace(own, positions=torch.arange(own.tokens.shape[1])[None])

    trainer.replace(pipeline, "sequence_part", counted)
