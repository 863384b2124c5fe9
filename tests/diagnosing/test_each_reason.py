"""Each sentence of a kind of fault: said of evidence of which it is true, and not of its near miss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.diagnosing.cases import case, known, normal, pair, tells
from tests.diagnosing.kind_cases import (
    ATTENTION,
    GRADIENT,
    GRADS,
    IDS,
    SCORES,
    UPDATE,
    VALUES,
    X,
    added,
    dropped,
    formulas,
    inputs,
    masked,
    padded_mask,
)
from trueup.diagnosing.evidence import (
    Elsewhere,
    Evidence,
    NeighbourCall,
    ParameterStep,
    RunFacts,
    Surroundings,
)
from trueup.diagnosing.evidence.facts import LossFacts
from trueup.diagnosing.kinds import name_kinds
from trueup.diagnosing.kinds.loss_divisor import divided_otherwise
from trueup.diagnosing.kinds.permutations import described
from trueup.types.codes import Code
from trueup.types.codes.kinds import (
    CauseCode,
    DivisorCode,
    FactorCode,
    OrderCode,
    PlacesCode,
    SettingReason,
)
from trueup.types.codes.kinds import KindReason as Kind
from trueup.types.finding import KindCode, Stage
from trueup.types.reason import Reason, reason

pytestmark = pytest.mark.torch


class Twins(NamedTuple):
    """Evidence that a sentence is true of, and evidence that differs in one thing."""

    code: Code
    holds: Callable[[], Evidence]
    near: Callable[[], Evidence]
    facts: Mapping[str, Any] = MappingProxyType({})


def said_of(evidence: Evidence) -> list[Reason]:
    """All that the kinds say of it."""
    kinds = name_kinds(evidence)
    return [*(kind.sentence for kind in kinds), *(cause for kind in kinds for cause in kind.causes)]


def noisy(x: Tensor, size: float = 0.01) -> Tensor:
    return x * (1 + size * normal(*x.shape, seed=90))


# -- calls around ------------------------------------------


def called(name: str, target: Any, reference: Any, *, dtypes: tuple[Any, Any] = ((), ())) -> Evidence:
    """A tensor of bfloat16 that differs, and one call of its module."""
    call = NeighbourCall(
        name=name,
        kind="api",
        ordinal=0,
        target=target,
        reference=reference,
        target_dtypes=dtypes[0],
        reference_dtypes=dtypes[1],
    )
    around = Surroundings(module="norm", neighbours=(call,))
    return case(noisy(X).bfloat16(), X.bfloat16(), surroundings=around)


CAST, LOW, FULL = {"input.1": "torch.bfloat16"}, ("bfloat16",), ("float32",)
BOTH = ("float32", "bfloat16")

# -- parameters ------------------------------------------


def parameter(target: Tensor, reference: Tensor, *, slot: str = "param", **more: Any) -> Evidence:
    runs = {name: more.pop(name) for name in ("target_run", "reference_run") if name in more}
    facts = ParameterStep(
        fqn="layers.0.mlp.up.weight",
        before=pair("value", more.pop("before", GRADS[0])),
        updated=(pair(slot, target, reference),),
        **more,
    )
    return case(target, reference, parameter=facts, **runs, **{**UPDATE, "slot": slot})


COARSE = GRADS[0].bfloat16().float()
MOVED = GRADS[0] - 0.01 * GRADS[1]


def counted(target: float, reference: float, microbatches: int | None) -> Evidence:
    sides = torch.tensor(target), torch.tensor(reference)
    return parameter(*sides, slot="state.step", target_run=RunFacts(microbatches=microbatches))


def sent_by_the_loss(target: Tensor, *, loss: float = 0.7, other: float = 0.7) -> Evidence:
    """What a loss of the target sends to a model's output, beside that of the reference."""
    runs = {"target_run": RunFacts(loss=loss), "reference_run": RunFacts(loss=other)}
    return case(target, X, phase="backward", stage=Stage.LOSS, slot="output.0", module="", **runs)


ONE, OTHER = (normal(*X.shape, seed=seed) for seed in (51, 52))


def sent_at(loss: float) -> Evidence:
    """1.25 times the gradient at the model's output, where both losses have this value."""
    run = RunFacts(loss=loss, dtypes=frozenset({"float32"}))
    names: dict[str, Any] = {"phase": "backward", "slot": "output", "module": "", "stage": Stage.LOSS}
    return case(1.25 * X, X, target_run=run, reference_run=run, **names)


def kept(*shape: int, seed: int = 7) -> Tensor:
    """Dropout's mask of one in five."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return (drawn > 0.2).float() / 0.8


PADS = torch.arange(18) < torch.tensor([[9], [18], [12], [6]])


def dispatched(target: tuple[int, ...], reference: tuple[int, ...]) -> Evidence:
    """16 rows of tokens in the order of the experts that they go to, which are given with their numbers."""
    rows = normal(16, 24, seed=73)
    rows[3:7, 5] = 0.0  # moves with its row, and hides nothing
    sizes = pair("input.1", torch.tensor(target), torch.tensor(reference))
    around = Surroundings(inputs=(pair("input.0", rows.roll(3, 0), rows), sizes), module="layers.0.moe")
    return case(rows.roll(3, 0), rows, slot="input.0", surroundings=around)


def left_out(kept: Callable[[Tensor], Tensor], *, made: float = 1.3, in_target: bool = True) -> Evidence:
    """16 rows, of which an expert has no room for 5: zeros in one run, what ``kept`` makes of them in the
    other."""
    given = normal(16, 24, seed=76)
    beyond = torch.arange(16) % 3 == 1
    lost = torch.where(beyond[:, None], 0.0, made * given.tanh() if made else given)
    passed = torch.where(beyond[:, None], kept(given), lost)
    around = inputs(given, module="layers.0.moe")
    return case(*((lost, passed) if in_target else (passed, lost)), surroundings=around)


def sampled(deviation: Callable[[Tensor], Tensor]) -> Evidence:
    """mean + noise times a deviation, of which the reference's is exp(log / 2)."""
    mean, noise, log = (normal(8, 24, seed=seed) for seed in (70, 71, 72))
    return case(
        mean + noise * deviation(log),
        mean + noise * (0.5 * log).exp(),
        surroundings=inputs(mean, noise, log),
    )


def taken_in_place(*, alone: bool = False) -> Evidence:
    """A sum in which one tensor is added in place of another: both runs have both, or each one of them."""
    near = pair("input.0", ONE), pair("input.1", OTHER)
    if alone:
        near = replace(near[0], reference=None), replace(near[1], target=None)
    around = Surroundings(module="layers.0", inputs=near)
    return case(X + ONE - OTHER, X, surroundings=around)


def sent_to_call(named: str) -> Evidence:
    """A gradient of an output that the reference has somewhere else."""
    around = Surroundings(module="layers.0", nearby=(pair(named, OTHER),))
    return case(OTHER, X, phase="backward", slot="output.0", surroundings=around)


FIRST_ROWS = torch.arange(len(X)).reshape(-1, *(1,) * (X.ndim - 1)) < len(X) // 2


# -- random numbers, masks ------------------------------------------

KEPT = (torch.arange(64).reshape(4, 16, 1) % 3 > 0).float()
DROPOUT = Surroundings(kind="api", name="torch.nn.functional.dropout", module="drop")


def of_two_ranks(
    target: tuple[int, int],
    reference: tuple[int, int],
    *,
    rate: float = 0.1,
    surroundings: Surroundings = DROPOUT,
) -> Evidence:
    """What the second rank drops; the seeds of both ranks of both runs, and the target's rate."""
    sides = [[dropped(rate, seed) for seed in target], [dropped(0.1, seed) for seed in reference]]
    ranks = [tuple(enumerate(map(known, side))) for side in sides]
    elsewhere = Elsewhere(target_ranks=ranks[0], reference_ranks=ranks[1])
    return case(sides[0][1], sides[1][1], surroundings=surroundings, elsewhere=elsewhere)


def attended(hidden: Tensor) -> Tensor:
    return SCORES.masked_fill(hidden, float("-inf")).softmax(-1) @ VALUES


CAUSAL = torch.ones(16, 16, dtype=torch.bool).triu(1)
WINDOW = CAUSAL | torch.ones(16, 16, dtype=torch.bool).tril(-5)
NO_KEY = CAUSAL | (torch.arange(16) == 3)[:, None]


def one_number_missing() -> Evidence:
    other = attended(CAUSAL)
    other[..., 3, 0] = float("nan")
    return case(other, attended(CAUSAL), surroundings=ATTENTION)


def hidden(where: Tensor) -> Evidence:
    """Two rows' masks, of which the target's hides more."""
    seen = torch.ones(2, 1, 16, 16, dtype=torch.bool)
    return case(added(seen & ~where), added(seen))


def of_rows(*places: tuple[int, int]) -> Tensor:
    rows = torch.zeros(2, 1, 16, 16, dtype=torch.bool)
    for sample, row in places:
        rows[sample, 0, row] = True
    return rows


def below(*distances: int) -> Tensor:
    """Whole diagonals that far below the main one."""
    place = torch.arange(16)
    return torch.isin(place[:, None] - place[None, :], torch.tensor(distances)).expand(2, 1, 16, 16)


def within(rows: slice, columns: slice) -> Tensor:
    block = torch.zeros(2, 1, 16, 16, dtype=torch.bool)
    block[:, :, rows, columns] = True
    return block


ALL = slice(None)

# -- rotations ------------------------------------------


def turned(theta: float, direction: int, positions: Tensor | None = None) -> Tensor:
    """A rotary embedding of halves."""
    place = torch.arange(16.0) if positions is None else positions
    angle = direction * torch.outer(place, theta ** (-torch.arange(4) / 4))
    a, b = SHORT[..., :4], SHORT[..., 4:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


SHORT = normal(2, 4, 16, 8, seed=23)
SIGNS = normal(*X.shape, seed=8).sign()
RESIDUAL = normal(*X.shape, seed=51)

SHUFFLED = torch.randperm(X.numel(), generator=torch.Generator().manual_seed(11))
POSITIONS = torch.arange(16).expand(4, 16)
CUBE = normal(8, 8, 8, seed=24)
SMALL = 2.4e-7 * X
WIDE = normal(7, 33, seed=25)


def shuffled(x: Tensor) -> Tensor:
    order = SHUFFLED[x.numel() > SHUFFLED]
    return x.ravel()[order].view(x.shape)


def masking(argument: str, target: object, reference: object) -> Evidence:
    """Attention that is called with an argument."""
    call = NeighbourCall(
        name="torch.nn.functional.scaled_dot_product_attention",
        kind="api",
        ordinal=0,
        target={argument: target},  # type: ignore[dict-item]
        reference={argument: reference},  # type: ignore[dict-item]
        own=True,
    )
    around = Surroundings(kind="api", name=call.name, neighbours=(call,))
    return case(noisy(X), X, surroundings=around)


def of_rank_0(reference: Any, **more: Any) -> Evidence:
    """A gradient of the first of four ranks beside what the reference holds."""
    ranks = Elsewhere(target_ranks=tuple(enumerate(map(known, GRADS))))
    run = RunFacts(collectives={"all_reduce": 2})
    return case(GRADS[0], reference, elsewhere=ranks, reference_run=run, **{**GRADIENT, **more})


def recomputed(again: Tensor) -> Evidence:
    first = dropped(0.1, 1)
    apart = replace(pair("output.0", again, first), target=known(again, "layers.0.drop, output.0"))
    sides = noisy(GRADS[0], 0.2), GRADS[0]
    return case(*sides, elsewhere=Elsewhere(recomputed=(apart,)), phase="param_grad", slot="local")


def of_microbatch(there: int, here: int) -> Evidence:
    """What another microbatch of the target held."""
    held = Elsewhere(target_microbatches=((there, known(GRADS[0])),))
    return case(GRADS[0], GRADS[1], elsewhere=held, surroundings=Surroundings(microbatch=here))


def sent_to_microbatch(there: Tensor) -> Evidence:
    """What the reference sends to microbatch 3, where the target sends its own to microbatch 0."""
    held = Elsewhere(reference_microbatches=((3, known(there)),))
    return case(
        GRADS[0],
        GRADS[1],
        phase="backward",
        slot="output.0",
        elsewhere=held,
        surroundings=Surroundings(microbatch=0),
    )


def normed(target: float, reference: float, **at: Any) -> Evidence:
    """A tensor 2.9 / 1.7 times the reference's, and the norms of all gradients."""
    runs = {"target_run": RunFacts(grad_norm=target), "reference_run": RunFacts(grad_norm=reference)}
    return case(2.9 / 1.7 * X, X, **runs, **at)


def rated(target: float, reference: float) -> Evidence:
    runs = {
        "target_run": RunFacts(learning_rate=(target,)),
        "reference_run": RunFacts(learning_rate=(reference,)),
    }
    return case(2.9 / 1.7 * X, X, phase="optimizer", slot="state.momentum_buffer", **runs)


# -- batches and times ------------------------------------------

OTHER_IDS = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(9))


def batch(**held: Any) -> Evidence:
    return case(OTHER_IDS, IDS, slot="input.0", module="", elsewhere=Elsewhere(**held))


def swapped(other_slot: Tensor) -> Evidence:
    """The target's first output is the reference's second; what the target's second is, is given."""
    around = Surroundings(outputs=(pair("output.1", other_slot, GRADS[1]),))
    return case(GRADS[1], GRADS[0], surroundings=around)


def drawn_at(target: Mapping[str, int], reference: Mapping[str, int]) -> Evidence:
    """A module whose output differs in no way that is known, and where the generators stood."""
    runs = [
        RunFacts(draws={(0, name): (at,) for name, at in side.items()}, modules=frozenset("am"))
        for side in (target, reference)
    ]
    return case(X, X.roll(1, 0) * X, module="m", target_run=runs[0], reference_run=runs[1])


def overflowed(scale: float, phase: str) -> Evidence:
    other = X.clone()
    other[0, 0, 0] = float("inf")
    return case(other, X, phase=phase, slot="output.0", target_run=RunFacts(loss_scale=scale))


def filled(number: float, padding: int) -> Tensor:
    """A causal mask of three rows of tokens, of which the first begins with padding."""
    hidden = torch.ones(3, 8, 8).triu(1).bool()
    hidden[0, :, :padding] = True
    return torch.zeros(3, 8, 8).masked_fill(hidden, number)


def sliced(bounds: str) -> dict[str, Any]:
    return {"input.1.0": "slice(None, None, None)", "input.1.1": f"slice({bounds})"}


TWINS = [
    Twins(
        Kind.EXTRA_CALL,
        lambda: called("torch.Tensor.to", CAST, None, dtypes=(BOTH, ())),
        lambda: called("torch.Tensor.to", CAST, CAST, dtypes=(BOTH, BOTH)),
        {"call": "to(bfloat16)"},
    ),
    Twins(
        Kind.WORKS_ON,
        lambda: called("torch.matmul", {}, {}, dtypes=(LOW, FULL)),
        lambda: called("torch.matmul", {}, {}, dtypes=(LOW, LOW)),
        {"call": "matmul", "target": "bfloat16", "reference": "float32"},
    ),
    Twins(
        Kind.OTHER_LAYOUT_CALLS,
        lambda: called("torch.Tensor.transpose", None, {"input.1": 1}),
        lambda: called("torch.Tensor.softmax", None, {"input.1": 1}),
        {"module": "norm"},
    ),
    Twins(
        Kind.OTHER_RANGE,
        lambda: called("torch.Tensor.__getitem__", sliced("0, None, None"), sliced("1, None, None")),
        lambda: called("torch.Tensor.__getitem__", sliced("0, None, 2"), sliced("None, 4, None")),
        {"module": "norm", "target": "0:", "reference": "1:"},
    ),
    Twins(
        Kind.NOT_TRAINABLE,
        lambda: parameter(GRADS[0], MOVED, target_trainable=False, reference_trainable=True),
        lambda: parameter(GRADS[0], MOVED, target_trainable=True, reference_trainable=True),
        {"parameter": "layers.0.mlp.up.weight"},
    ),
    Twins(
        CauseCode.STEP_SKIPPED,
        lambda: parameter(GRADS[0], MOVED, target_run=RunFacts(skipped=True)),
        lambda: parameter(GRADS[0], MOVED, target_run=RunFacts(skipped=False)),
    ),
    Twins(
        Kind.UPDATES_COUNTED,
        lambda: counted(5.0, 2.0, 2),
        lambda: counted(2.0, 2.0, 2),
        {"target": 5.0, "reference": 2.0},
    ),
    Twins(
        Kind.UPDATES_PER_MICROBATCH,
        lambda: counted(4.0, 2.0, 2),
        lambda: counted(4.0, 2.0, 3),
        {"target": 4.0, "reference": 2.0},
    ),
    Twins(Kind.UPDATES_PER_MICROBATCH, lambda: counted(6.0, 2.0, 3), lambda: counted(0.0, 5.0, None)),
    Twins(CauseCode.STATE_ON_RESUME, lambda: counted(5.0, 2.0, 2), lambda: counted(4.0, 2.0, 2)),
    Twins(
        Kind.OFFSET_BY_ROW,
        lambda: case(X - X.mean(-1, keepdim=True), X),
        lambda: case(X - X.mean(-1, keepdim=True) + 0.1 * normal(*X.shape, seed=7), X),
    ),
    Twins(
        Kind.TERM_EXTRA,
        lambda: case(X + RESIDUAL, X, surroundings=inputs(RESIDUAL)),
        lambda: case(X - RESIDUAL, X, surroundings=inputs(RESIDUAL)),
        {"factor": 1.0},
    ),
    Twins(
        Kind.RATES_AGREE,
        lambda: case(dropped(0.1, 1), dropped(0.1, 2), kept="sketch", surroundings=DROPOUT),
        lambda: case(dropped(0.3, 1), dropped(0.1, 2), kept="sketch", surroundings=DROPOUT),
        {"call": "torch.nn.functional.dropout"},
    ),
    Twins(
        Kind.RANKS_DROP_THE_SAME, lambda: of_two_ranks((1, 1), (1, 2)), lambda: of_two_ranks((3, 4), (1, 2))
    ),
    Twins(
        Kind.RANKS_DROP_THE_SAME, lambda: of_two_ranks((1, 1), (1, 2)), lambda: of_two_ranks((1, 1), (2, 2))
    ),
    Twins(  # a module of the program's own drops
        Kind.RANKS_DROP_THE_SAME,
        lambda: of_two_ranks((1, 1), (1, 2), surroundings=Surroundings()),
        lambda: of_two_ranks((3, 4), (1, 2), surroundings=Surroundings()),
    ),
    Twins(  # where nothing is dropped, no rank drops what another does
        Kind.RANKS_DROP_THE_SAME,
        lambda: of_two_ranks((1, 1), (1, 2)),
        lambda: of_two_ranks((1, 1), (1, 2), rate=0.0),
    ),
    Twins(
        Kind.ROWS_EMPTY,
        lambda: case(attended(NO_KEY), attended(CAUSAL), surroundings=ATTENTION),
        one_number_missing,
        {"rows": 8, "size": 128},
    ),
    Twins(
        Kind.HIDES_ALL_BY_INFINITY,
        lambda: case(filled(-math.inf, 3), filled(-1e9, 3)),
        lambda: case(filled(-math.inf, 0), filled(-1e9, 0)),
        {"rows": 3, "size": 24, "side": "target", "number": -1e9},
    ),
    Twins(
        Kind.HIDES_ALL_BY_INFINITY,
        lambda: case(filled(-1e9, 2), filled(-math.inf, 2)),
        lambda: case(filled(-1e9, 2), filled(-math.inf, 3)),
        {"rows": 2, "side": "reference"},
    ),
    Twins(
        Kind.POSITIONS_AGREE_UP_TO,
        lambda: case(attended(WINDOW), attended(CAUSAL), surroundings=ATTENTION),
        lambda: case(noisy(attended(CAUSAL)), attended(CAUSAL), surroundings=ATTENTION),
        {"positions": ("5",)},
    ),
    Twins(
        Kind.SIGNS_DIFFER,
        lambda: case(X * SIGNS, X),
        lambda: case(noisy(X * SIGNS), X),
        {"share": float((SIGNS < 0).float().mean())},
    ),
    Twins(
        Kind.ROTATED_BACKWARD,
        lambda: case(turned(1e4, -1), turned(1e4, 1), surroundings=inputs(SHORT)),
        lambda: case(turned(2e4, 1), turned(1e4, 1), surroundings=inputs(SHORT)),
    ),
    Twins(  # where nothing is rotated, either direction is the same
        Kind.ROTATED_BACKWARD,
        lambda: case(turned(1e4, -1), turned(1e4, 1), surroundings=inputs(SHORT)),
        lambda: case(SHORT.bfloat16(), SHORT, surroundings=inputs(SHORT)),
    ),
    Twins(
        Kind.OF_REFERENCE_STEP,
        lambda: case(GRADS[0], GRADS[1], elsewhere=Elsewhere(reference_earlier=((3, known(GRADS[0])),))),
        lambda: case(GRADS[0], GRADS[1], elsewhere=Elsewhere(reference_earlier=((3, known(GRADS[2])),))),
        {"earlier": 3},
    ),
    Twins(Kind.SLOTS_SWAPPED, lambda: swapped(GRADS[0]), lambda: swapped(GRADS[1]), {"slot": "output.1"}),
    Twins(Kind.OF_ANOTHER_SLOT, lambda: swapped(GRADS[1]), lambda: swapped(GRADS[0]), {"slot": "output.1"}),
    Twins(
        Kind.BATCH_OF_RANK,
        lambda: batch(reference_ranks=((0, known(IDS)), (1, known(OTHER_IDS)))),
        lambda: batch(reference_ranks=((0, known(IDS)), (1, known(IDS.flip(0))))),
        {"number": 1},
    ),
    Twins(
        Kind.BATCH_OF_MICROBATCH,
        lambda: batch(reference_microbatches=((2, known(OTHER_IDS)),)),
        lambda: batch(reference_microbatches=((2, known(IDS.flip(0))),)),
        {"number": 2},
    ),
    Twins(
        Kind.BATCH_OF_TARGET_STEP,
        lambda: batch(target_earlier=((4, known(OTHER_IDS)),)),
        lambda: batch(target_earlier=((4, known(OTHER_IDS)),), reference_earlier=((4, known(IDS)),)),
        {"number": 4},
    ),
    Twins(
        CauseCode.LOSS_SCALE_TOO_LARGE,
        lambda: overflowed(65536.0, "backward"),
        lambda: overflowed(1.0, "backward"),
    ),
    Twins(  # the loss is scaled after the forward
        CauseCode.LOSS_SCALE_TOO_LARGE,
        lambda: overflowed(65536.0, "param_grad"),
        lambda: overflowed(65536.0, "forward"),
    ),
    Twins(
        FactorCode.DATA_PARALLEL_SIZE,
        lambda: case(7 * X, X, target_run=RunFacts(world_size=14, data_parallel_size=7), **GRADIENT),
        lambda: case(7 * X, X, target_run=RunFacts(world_size=14, data_parallel_size=2), **GRADIENT),
        {"number": 7},
    ),
    Twins(
        FactorCode.LOSS_SCALE,
        lambda: case(X * 1024, X, target_run=RunFacts(loss_scale=1024.0), **GRADIENT),
        lambda: case(X * 1024, X, target_run=RunFacts(loss_scale=512.0), **GRADIENT),
        {"number": 1024.0},
    ),
    Twins(
        PlacesCode.WHOLE_ROWS,
        lambda: hidden(of_rows((0, 3), (0, 4), (1, 7))),
        lambda: hidden(of_rows((0, 3), (0, 4), (1, 7)) & (torch.arange(16) < 9)),
        {"number": 3, "size": 32},
    ),
    Twins(
        PlacesCode.BELOW_DIAGONAL,
        lambda: case(added(padded_mask(window=5)), added(padded_mask())),
        lambda: case(added(padded_mask(window=5)), added(padded_mask(window=8))),
        {"distance": 5},
    ),
    Twins(
        PlacesCode.DIAGONALS,
        lambda: case(added(padded_mask(window=5)), added(padded_mask(window=8))),
        lambda: hidden(below(5, 9)),
        {"first": -7, "last": -5},
    ),
    Twins(
        PlacesCode.INDICES,
        lambda: case(torch.where(torch.arange(32) // 4 == 2, float("-inf"), X[0, 0]), X[0, 0]),
        lambda: case(torch.where(torch.arange(32) % 4 == 2, float("-inf"), X[0, 0]), X[0, 0]),
        {"first": 8, "last": 11},
    ),
    Twins(
        PlacesCode.COLUMNS,
        lambda: hidden(within(ALL, slice(3, 6))),
        lambda: hidden(within(slice(0, 15), slice(3, 6))),
        {"columns": "3 to 5"},
    ),
    Twins(
        PlacesCode.ROWS,
        lambda: hidden(within(slice(3, 6), ALL)),
        lambda: hidden(within(slice(3, 6), slice(0, 15))),
        {"rows": "3 to 5"},
    ),
    Twins(Kind.ALL_ZERO, lambda: case(0 * X, X), lambda: case(X * FIRST_ROWS, X), {"side": "target"}),
    Twins(
        Kind.TERM_IN_PLACE,
        taken_in_place,
        lambda: taken_in_place(alone=True),
        {"term": "input.0", "other": "input.1"},
    ),
    Twins(
        Kind.DROPPED_ALONG,
        lambda: case(X * kept(4, 1, 32), X * kept(4, 16, 32)),
        lambda: case(X * kept(4, 16, 32, seed=8), X * kept(4, 16, 32)),
        {"side": "target", "dims": ("1",)},
    ),
    Twins(
        Kind.DROPPED_ALONG,
        lambda: case(X * kept(4, 16, 32), X * kept(4, 16, 1)),
        lambda: case(X * kept(4, 16, 1, seed=8), X * kept(4, 16, 1)),  # both are locked, and drawn otherwise
        {"side": "reference", "dims": ("2",)},
    ),
    Twins(
        Kind.ZERO_FOR_GIVEN,
        lambda: left_out(lambda given: given),
        lambda: left_out(lambda given: 0.5 * given),
        {"side": "target"},
    ),
    Twins(
        Kind.ZERO_FOR_GIVEN,
        lambda: left_out(lambda given: given, in_target=False),
        lambda: left_out(lambda given: given, made=0.0),  # all is passed through: nothing is left out
        {"side": "reference"},
    ),
    Twins(
        Kind.MASK_INVERTED,
        lambda: case(~PADS, PADS),
        lambda: case(PADS ^ (torch.arange(18) > 2), PADS),
    ),
    Twins(
        Kind.MASK_INVERTED,
        lambda: case(added(~PADS), added(PADS)),
        lambda: case(
            added(~PADS), added(torch.ones_like(PADS))
        ),  # where nothing is hidden, nothing is inverted
    ),
    Twins(
        Kind.GROUPED_OTHERWISE,
        lambda: dispatched((5, 3, 8), (5, 5, 6)),
        lambda: dispatched((5, 5, 6), (5, 5, 6)),
        {"sizes": "input.1", "num": 2, "total": 16},
    ),
    Twins(
        Kind.GROUPED_OTHERWISE,
        lambda: dispatched((0, 10, 6), (1, 9, 6)),
        lambda: dispatched((0, 10, 5), (1, 9, 6)),  # another number of tokens: no sizes of these groups
        {"num": 1},
    ),
    Twins(
        Kind.RAISED,
        lambda: sampled(lambda log: log.exp()),
        lambda: sampled(F.softplus),
        {"power": 2.0, "less": "input.0", "over": "input.1"},
    ),
    Twins(
        Kind.RAISED,
        lambda: case(X.abs().add(0.2).sqrt(), X.abs().add(0.2)),
        lambda: case(3 * X.abs().add(0.2), X.abs().add(0.2)),
        {"power": 0.5, "less": "", "over": ""},
    ),
    Twins(
        Kind.PART_DETACHED,
        lambda: sent_by_the_loss(X * FIRST_ROWS),
        lambda: sent_by_the_loss(X * FIRST_ROWS, other=0.71),
        {"side": "target", "num": X.numel() // 2, "size": X.numel()},
    ),
    Twins(
        Kind.PART_DETACHED,
        lambda: sent_by_the_loss(X * FIRST_ROWS),
        lambda: sent_by_the_loss(1.001 * X * FIRST_ROWS),
    ),
    Twins(
        Kind.TERM,
        lambda: case(X + 0.5 * ONE, X, surroundings=inputs(ONE)),
        lambda: case(X + 0.5 * OTHER, X, surroundings=inputs(ONE)),
        {"factor": 0.5},
    ),
    Twins(
        Kind.OFFSET,
        lambda: case(X + 0.25, X),
        lambda: case(noisy(X + 0.25, 0.3), X),
        {"offset": 0.25},
    ),
    Twins(
        Kind.OFFSET_BY_TABLE,
        lambda: case(X + RESIDUAL[0], X),
        lambda: case(X + RESIDUAL, X),
        {"dims": ("1", "2"), "shape": ("16", "32")},
    ),
    Twins(Kind.NEGATED, lambda: case(-X, X), lambda: case(-X * FIRST_ROWS, X)),
    Twins(
        Kind.SLICES_NEGATED,
        lambda: case(torch.where(torch.arange(32) < 5, -X, X), X),
        lambda: case(torch.where(torch.arange(32) < 5, -2 * X, X), X),
        {"dim": 2, "indices": 5, "first": 0, "last": 4, "share": 5 / 32},
    ),
    Twins(
        Kind.STATISTICS_NEGATED,
        lambda: case(-X - 5, X + 5, kept="statistics"),
        lambda: case(-X - 5, X - 5, kept="statistics"),
    ),
    Twins(
        Kind.SCALED,
        lambda: case(2 * X, X, kept="statistics"),
        lambda: case(2 * X + 1, X, kept="statistics"),
        {"factor": 2.0, "of_statistics": 1},
    ),
    Twins(
        Kind.SCALED_AT_EVEN_SCORES,
        lambda: sent_at(math.log(2)),
        lambda: sent_at(0.694),
        {"factor": 1.25, "smoothing": -0.1},
    ),
    Twins(
        Kind.SAME_STATISTICS,
        lambda: case(X.flip(0), X, kept="statistics"),
        lambda: case(noisy(X).flip(0), X, kept="statistics"),
    ),
    Twins(
        Kind.SAME_NUMBERS,
        lambda: case(shuffled(X), X),
        lambda: case(shuffled(noisy(X)), X),
    ),
    Twins(
        Kind.REORDERED_ALONG,
        lambda: case(X[:, SHUFFLED[:16].argsort()], X),
        lambda: case(noisy(X)[:, SHUFFLED[:16].argsort()], X),
        {"dim": 1},
    ),
    Twins(
        OrderCode.DIMENSIONS,
        lambda: case(CUBE.permute(1, 2, 0).contiguous(), CUBE),
        lambda: case(shuffled(CUBE), CUBE),
        {"order": ("1", "2", "0")},
    ),
    Twins(
        Kind.SHIFTED,
        lambda: case(X.roll(1, 1), X),
        lambda: case(noisy(X).roll(1, 1), X),
        {"shift": 1, "dim": 1},
    ),
    Twins(  # behind padding, the reference's positions stay at the padding id
        Kind.POSITIONS_COUNTED_FROM,
        lambda: case(POSITIONS, torch.where(POSITIONS < 11, POSITIONS + 2, 1), slot="input.position_ids"),
        lambda: case(POSITIONS, (POSITIONS + 2) % 8, slot="input.position_ids"),
        {"offset": -2},
    ),
    Twins(  # a cache that is longer in one row is no other start of all
        Kind.POSITIONS_COUNTED_FROM,
        lambda: case(POSITIONS + 5, POSITIONS, slot="input.position_ids"),
        lambda: case(POSITIONS + torch.arange(4)[:, None], POSITIONS, slot="input.position_ids"),
        {"offset": 5},
    ),
    Twins(
        Kind.ACTIVATION,
        lambda: case(F.gelu(X), F.silu(X), surroundings=inputs(X)),
        lambda: case(F.silu(X) + 0.01, F.silu(X), surroundings=inputs(X)),
        {"target": "gelu", "reference": "silu"},
    ),
    Twins(
        Kind.ACTIVATION_OF_ONE_SIDE,
        lambda: case(X, F.silu(X)),
        lambda: case(X, F.silu(X) + 0.01),
        {"side": "reference", "function": "silu"},
    ),
    Twins(
        Kind.SOFTMAX_FACTOR,
        lambda: case((1.1 * SCORES).softmax(-1), SCORES.softmax(-1)),
        lambda: case((SCORES + 0.1 * SCORES.roll(1, -1)).softmax(-1), SCORES.softmax(-1)),
        {"target": 1.1, "reference": 1.0},
    ),
    Twins(  # a factor that is fitted to what is no factor explains a part
        Kind.SOFTMAX_FACTOR,
        lambda: case((1.01 * SCORES).softmax(-1), SCORES.softmax(-1)),
        lambda: case(SCORES.softmax(-1) + 2e-4, SCORES.softmax(-1)),
        {"target": 1.01},
    ),
    Twins(
        Kind.LAST_POSITION_AGREES,
        lambda: case(attended(CAUSAL & ~CAUSAL), attended(CAUSAL), surroundings=ATTENTION),
        lambda: case(attended(WINDOW), attended(CAUSAL), surroundings=ATTENTION),
        {"differ": 1.0},
    ),
    Twins(
        Kind.DTYPES_DIFFER,
        lambda: case(X.bfloat16(), X),
        lambda: case(2 * X.bfloat16(), X),
        {"target": "bfloat16", "reference": "float32", "rel_l2": float((X.bfloat16() - X).norm() / X.norm())},
    ),
    Twins(
        Kind.KEPT_TIMES,
        lambda: case(X * KEPT, X * KEPT / 0.7, surroundings=inputs(X)),
        lambda: case(F.relu(X), F.relu(X) / 0.7, surroundings=inputs(X)),
        {"target": 1.0, "reference": 1 / 0.7, "share": float(KEPT.double().mean())},
    ),
    Twins(
        Kind.DROPPED_ON_ONE_SIDE,
        lambda: case(dropped(0.25, 1), X),
        lambda: case(0.75 * dropped(0.25, 1), X),
        {"side": "target", "rate": 0.25, "num": int((dropped(0.25, 1) == 0).sum())},
    ),
    Twins(
        Kind.GENERATOR_ELSEWHERE,
        lambda: drawn_at({"a": 1, "m": 2}, {"a": 1, "m": 3}),
        lambda: drawn_at({"a": 1, "m": 2}, {"a": 1, "m": 2}),
        {"after": "a"},
    ),
    Twins(
        Kind.DRAWS_IN_ONE_RUN,
        lambda: drawn_at({"m": 2}, {}),
        lambda: drawn_at({"a": 2}, {}),
        {"side": "target"},
    ),
    Twins(
        Kind.HIDES_OTHER_ELEMENTS,
        lambda: case(added(padded_mask()), added(padded_mask(padding=4))),
        lambda: case(added(padded_mask()) + 1, added(padded_mask())),
        {"more": 0, "fewer": 10},
    ),
    Twins(  # any pattern fits one element
        Kind.HIDES_OTHER_ELEMENTS,
        lambda: case(torch.where(torch.arange(32) < 4, 0, X[0]), X[0]),
        lambda: case(torch.where(torch.arange(512).view(16, 32) == 70, 0, X[0]), X[0]),
    ),
    Twins(  # a large number is not hidden
        Kind.HIDES_OTHER_ELEMENTS,
        lambda: case(X - 1e5 * (torch.arange(32) < 4), X),
        lambda: case(4001 * X - 2e4 * (torch.arange(32) < 4), 4000 * X),
    ),
    Twins(
        PlacesCode.ABOVE_DIAGONAL,
        lambda: case(SCORES, masked(1)),
        lambda: case(masked(2), masked(1)),
    ),
    Twins(
        PlacesCode.BLOCK,
        lambda: hidden(within(slice(0, 4), slice(5, 8))),
        lambda: hidden(within(slice(0, 4), slice(5, 8)) | within(slice(8, 9), slice(0, 1))),
        {"rows": "0 to 3", "columns": "5 to 7"},
    ),
    Twins(
        PlacesCode.BLOCK,
        lambda: hidden(within(slice(0, 9, 4), slice(5, 8))),
        lambda: hidden(within(slice(0, 9, 2), slice(5, 8))),
        {"rows": "0, 4, 8", "columns": "5 to 7"},
    ),
    Twins(
        PlacesCode.SOME_INDICES,
        lambda: case(torch.where(torch.arange(32) % 4 == 2, float("-inf"), X[0, 0]), X[0, 0]),
        lambda: case(torch.where(torch.arange(32) // 4 == 2, float("-inf"), X[0, 0]), X[0, 0]),
        {"number": 8, "size": 32},
    ),
    Twins(
        PlacesCode.SOME_ELEMENTS,
        lambda: hidden(shuffled(within(slice(0, 4), slice(5, 8)))),
        lambda: hidden(within(slice(0, 4), slice(5, 8))),
        {"number": 24, "size": 512},
    ),
    Twins(
        Kind.MASK_ARGUMENTS,
        lambda: masking("input.is_causal", True, False),
        lambda: masking("input.is_causal", True, True),
    ),
    Twins(
        Kind.ARGUMENT,
        lambda: masking("input.is_causal", True, False),
        lambda: masking("input.is_causal", True, True),
        {"argument": "is_causal", "target": "True", "reference": "False"},
    ),
    Twins(
        Kind.OTHER_ARGUMENTS,
        lambda: masking("input.eps", 1e-6, 1e-5),
        lambda: masking("input.eps", 1e-5, 1e-5),
    ),
    Twins(
        Kind.OTHER_FUNCTIONS,
        lambda: formulas({"add": [3.0], "clamp": [0, 1]}, {"add": [3.0], "relu6": []}),
        lambda: formulas({"add": [3.0], "relu6": []}, {"add": [3.0], "relu6": []}),
        {"target": "clamp 0 1", "reference": "relu6"},
    ),
    Twins(
        Kind.MORE_CALLS,
        lambda: formulas({"add": [3.0], "relu6": []}, {"add": [3.0], "relu6": []}, again="add"),
        lambda: formulas({"add": [3.0], "relu6": []}, {"add": [3.0], "relu6": []}),
        {"call": "add", "target": 2, "reference": 1},
    ),
    Twins(
        Kind.MORE_CALLS,
        lambda: formulas({"add": [3.0], "relu6": []}, {"add": [3.0], "relu6": []}, again="add", number=4.0),
        lambda: formulas({"add": [3.0], "relu6": []}, {"add": [3.0], "relu6": []}),
        {"call": "add", "target": 2, "reference": 1, "target_only": "add 4"},
    ),
    Twins(  # of two formulas, which number is the other's is not known
        Kind.OTHER_ARGUMENTS,
        lambda: formulas({"add": [3.0]}, {"add": [2.0]}),
        lambda: formulas({"add": [3.0], "clamp": [0, 1]}, {"add": [2.0], "relu6": []}),
    ),
    Twins(
        Kind.NOT_FINITE,
        lambda: overflowed(1.0, "forward"),
        lambda: case(1e30 * X, X),
        {"num_posinf_target": 1, "num_posinf_reference": 0, "numel": X.numel()},
    ),
    Twins(
        Kind.SATURATED,
        lambda: case((1e5 * X).clamp(-65504, 65504), 1e5 * X),
        lambda: case((1e5 * X).clamp(-65000, 65000), 1e5 * X),
        {"target": 65504.0, "reference": float((1e5 * X).abs().max()), "dtype": "float16"},
    ),
    Twins(
        Kind.UNDERFLOW,
        lambda: case(torch.where(SMALL.abs() < 5.9e-8, 0, SMALL), SMALL),
        lambda: case(torch.where(SMALL.abs() < 5.9e-8, SMALL / 2, SMALL), SMALL),
        {"lost": int((SMALL.abs() < 5.9e-8).sum()), "numel": X.numel(), "dtype": "float16", "normal": 0},
    ),
    Twins(
        Kind.AS_ITS_REPEAT,
        lambda: case(noisy(X, 1e-3), X, repeat=1e-3),
        lambda: case(noisy(X, 1e-1), X, repeat=1e-3),
        {"repeat": 1e-3},
    ),
    Twins(
        Kind.SUM_OVER_RANKS,
        lambda: of_rank_0(sum(GRADS)),
        lambda: of_rank_0(sum(GRADS) + 2 * GRADS[1].roll(1, 0)),
        {"ranks": ("0", "1", "2", "3")},
    ),
    Twins(Kind.MEAN_OVER_RANKS, lambda: of_rank_0(sum(GRADS) / 4), lambda: of_rank_0(sum(GRADS) / 2)),
    Twins(
        Kind.FEWER_COLLECTIVES,
        lambda: of_rank_0(sum(GRADS), target_run=RunFacts(collectives={"all_reduce": 1})),
        lambda: of_rank_0(sum(GRADS), target_run=RunFacts(collectives={"all_reduce": 2})),
        {"target": 1, "reference": 2, "collective": "all_reduce"},
    ),
    Twins(
        Kind.RECOMPUTED_OTHERWISE,
        lambda: recomputed(dropped(0.1, 2)),
        lambda: recomputed(dropped(0.1, 1)),
    ),
    Twins(
        Kind.OF_TARGET_STEP,
        lambda: case(GRADS[0], GRADS[1], elsewhere=Elsewhere(target_earlier=((3, known(GRADS[0])),))),
        lambda: case(GRADS[0], GRADS[1], elsewhere=Elsewhere(target_earlier=((3, known(GRADS[2])),))),
        {"earlier": 3},
    ),
    Twins(
        Kind.SENT_TO_ANOTHER_CALL,
        lambda: sent_to_call("layers.0, output.0"),
        lambda: sent_to_call("layers.1, output.0"),
        {"module": "layers.0"},
    ),
    Twins(
        Kind.OF_ANOTHER_MICROBATCH,
        lambda: sent_to_microbatch(GRADS[0]),
        lambda: sent_to_microbatch(GRADS[2]),
        {"other": 3, "own": 0},
    ),
    Twins(Kind.OF_MICROBATCH, lambda: of_microbatch(0, 1), lambda: of_microbatch(2, 1), {"earlier": 0}),
    Twins(
        Kind.NO_GRADIENT,
        lambda: case(None, X, phase="backward", slot="input.0"),
        lambda: case(X, None, phase="backward", slot="input.0"),
    ),
    Twins(
        Kind.NO_GRADIENT_IN_REFERENCE,
        lambda: case(X, None, phase="backward", slot="input.0"),
        lambda: case(None, X, phase="backward", slot="input.0"),
    ),
    Twins(
        Kind.ZERO_GRADIENT,
        lambda: case(0 * X, X, phase="backward", slot="input.0"),
        lambda: case(1e-30 * X, X, phase="backward", slot="input.0"),
    ),
    Twins(
        Kind.ZERO_GRADIENT_IN_REFERENCE,
        lambda: case(X, 0 * X, phase="backward", slot="input.0"),
        lambda: case(0 * X, X, phase="backward", slot="input.0"),
    ),
    Twins(
        Kind.SAMPLES_SHARED,
        lambda: case(torch.cat((IDS[:3], OTHER_IDS[3:])), IDS, slot="input.0", module=""),
        lambda: case(OTHER_IDS, IDS, slot="input.0", module=""),
        {"shared": 3, "samples": 4},
    ),
    Twins(
        Kind.SAMPLES_REORDERED,
        lambda: case(IDS.flip(0), IDS, slot="input.0", module=""),
        lambda: case(IDS.flip(1), IDS, slot="input.0", module=""),
    ),
    Twins(
        Kind.OTHER_BATCH,
        lambda: case(OTHER_IDS, IDS, slot="input.0", module=""),
        lambda: case(torch.cat((IDS[:3], OTHER_IDS[3:])), IDS, slot="input.0", module=""),
        {"differ": float((OTHER_IDS != IDS).double().mean())},
    ),
    Twins(
        Kind.UPDATE_LOST,
        lambda: parameter((COARSE - 1e-3 * GRADS[1]).bfloat16(), COARSE - 1e-3 * GRADS[1], before=COARSE),
        lambda: parameter((COARSE - GRADS[1]).bfloat16(), COARSE - GRADS[1], before=COARSE),
        {"dtype": "bfloat16"},
    ),
    Twins(
        Kind.ALONG_WEIGHTS,
        lambda: parameter(MOVED - 0.001 * GRADS[0], MOVED),
        lambda: parameter(MOVED - 0.001 * GRADS[2], MOVED),
        {"factor": -0.001},
    ),
    Twins(
        Kind.ALONG_UPDATE,
        lambda: parameter(GRADS[0] - 0.005 * GRADS[1], MOVED),
        lambda: parameter(GRADS[0] - 0.005 * GRADS[2], MOVED),
        {"factor": 0.5},
    ),
    Twins(
        SettingReason.CLASS,
        lambda: parameter(
            0.99 * MOVED, MOVED, target_settings={"class": "Adam"}, reference_settings={"class": "SGD"}
        ),
        lambda: parameter(
            0.99 * MOVED, MOVED, target_settings={"class": "Adam"}, reference_settings={"class": "Adam"}
        ),
        {"target": "Adam", "reference": "SGD"},
    ),
    Twins(FactorCode.SQUARE_ROOT, lambda: case(2**0.5 * X, X), lambda: case(1.5 * X, X), {"number": 2}),
    Twins(FactorCode.LOGARITHM, lambda: case(X * math.log(2), X), lambda: case(0.7 * X, X), {"number": 2}),
    Twins(FactorCode.SIZE, lambda: case(33 * WIDE, WIDE), lambda: case(37 * WIDE, WIDE), {"number": 33}),
    Twins(
        FactorCode.ROOT_OF_SIZE,
        lambda: case(33**0.5 * WIDE, WIDE),
        lambda: case(37**0.5 * WIDE, WIDE),
        {"number": 33},
    ),
    Twins(
        FactorCode.LESS_ONE,
        lambda: case(33 / 32 * WIDE, WIDE),
        lambda: case(31.5 / 30.5 * WIDE, WIDE),
        {"number": 33},
    ),
    Twins(
        FactorCode.ROOT_OF_LESS_ONE,
        lambda: case((32 / 33) ** 0.5 * WIDE, WIDE),
        lambda: case((1 - 1e-3) * (32 / 33) ** 0.5 * WIDE, WIDE),
        {"number": 33, "inverse": True},
    ),
    Twins(
        FactorCode.WORLD_SIZE,
        lambda: case(14 * X, X, target_run=RunFacts(world_size=14), **GRADIENT),
        lambda: case(14 * X, X, target_run=RunFacts(world_size=13), **GRADIENT),
        {"number": 14},
    ),
    Twins(
        FactorCode.TOKENS_OF_RANK,
        lambda: case(90 / 37 * X, X, target_run=RunFacts(tokens=37, rank_tokens=(37, 53)), **GRADIENT),
        lambda: case(90 / 37 * X, X, target_run=RunFacts(tokens=37, rank_tokens=(37, 57)), **GRADIENT),
    ),
    Twins(
        FactorCode.GRADIENT_NORMS,
        lambda: normed(2.9, 1.7, **GRADIENT),
        lambda: normed(2.9, 1.8, **GRADIENT),
    ),
    Twins(  # of what a norm is made of it tells nothing
        FactorCode.GRADIENT_NORMS,
        lambda: normed(2.9, 1.7, **GRADIENT),
        lambda: normed(2.9, 1.7, phase="backward"),
    ),
    Twins(
        FactorCode.LEARNING_RATES,
        lambda: rated(2.9e-3, 1.7e-3),
        lambda: rated(2.9e-3, 1.8e-3),
    ),
    Twins(
        PlacesCode.PART_OF_TRIANGLE,
        lambda: hidden(below(2, 5, 9, 12)),
        lambda: hidden(below(2, 5, 9, -12)),
        {"above": 0},
    ),
]


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins.code.value)
def test_a_sentence_is_said_where_it_is_true_and_not_beside(twins: Twins) -> None:
    said = said_of(twins.holds())
    assert any(tells(one, twins.code, **twins.facts) for one in said), said
    said = said_of(twins.near())
    assert not any(tells(one, twins.code) for one in said), said


# -- orders ------------------------------------------


def order_of(said: Reason, num: int) -> list[int] | None:
    """The order that the facts of a sentence describe; None where they leave it open."""
    count = np.arange(num)
    match said.code:
        case OrderCode.READ_AS_MATRIX:
            return list(count.reshape(int(said.facts["rows"]), int(said.facts["columns"])).T.ravel())  # type: ignore[arg-type]
        case OrderCode.PAIRS_TAKEN_APART:
            return [*count[::2], *count[1::2]]
        case OrderCode.HALVES_INTERLEAVED:
            return list(np.stack(np.split(count, 2), -1).ravel())
        case OrderCode.BLOCKS:
            blocks = count.reshape(-1, int(said.facts["size"]))  # type: ignore[arg-type]
            return list(np.concatenate([blocks[int(at)] for at in said.place("order") or ()]))
        case OrderCode.REVERSED:
            return list(count[::-1])
        case OrderCode.ROLLED:
            return list(np.roll(count, -int(said.facts["shift"])))  # type: ignore[arg-type]
        case OrderCode.HALVES_SWAPPED:
            return list(np.roll(count, num // 2))
        case OrderCode.WITHIN_BLOCKS:
            size = int(said.facts["size"])  # type: ignore[arg-type]
            inner = order_of(said.parts[0], size)
            return None if inner is None else [start + at for start in range(0, num, size) for at in inner]
    return None


def drawn_orders() -> Iterator[st.SearchStrategy[list[int]]]:
    """Orders with a form, and any other."""
    sides = st.tuples(st.integers(2, 5), st.integers(2, 5))
    yield sides.map(lambda both: list(np.arange(both[0] * both[1]).reshape(both).T.ravel()))
    yield sides.flatmap(
        lambda both: st.permutations(range(both[1])).map(
            lambda order: list(np.arange(both[0] * both[1]).reshape(both[1], both[0])[order].ravel())
        )
    )
    yield st.integers(2, 14).flatmap(lambda num: st.permutations(range(num)))


@given(st.one_of(*drawn_orders()).filter(lambda order: order != sorted(order)))
def test_what_is_said_of_an_order_gives_that_order(order: list[int]) -> None:
    said = described(np.array(order))
    told = order_of(said, len(order))
    if told is not None:
        assert told == order
    elif said.code is OrderCode.REORDERED:
        assert said.number("moved") == sum(place != at for at, place in enumerate(order))


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (np.arange(12).reshape(3, 4).T.ravel(), OrderCode.READ_AS_MATRIX),
        (np.arange(12).reshape(6, 2).T.ravel(), OrderCode.PAIRS_TAKEN_APART),
        (np.arange(12).reshape(2, 6).T.ravel(), OrderCode.HALVES_INTERLEAVED),
        (np.arange(12).reshape(4, 3)[[0, 2, 1, 3]].ravel(), OrderCode.BLOCKS),
        (np.array([0, 7, 8, 3, 4, 5, 6, 1, 2, 9, 10, 11]), OrderCode.REORDERED),
    ],
)
def test_orders_with_a_name(order: Any, code: OrderCode) -> None:
    assert described(order).code is code


# -- divisors ------------------------------------------

COUNTED, SUMS, EVERY = (30, 21), (90.0, 70.0), (51, 38)


def divided(by: tuple[float, float], ranks: tuple[int, ...] = ()) -> RunFacts:
    """Two microbatches of a rank, whose sums over tokens are divided by these."""
    losses = {
        m: LossFacts(value=s / d, counted=n, positions=48, rows=5, steepest=None)
        for m, (s, d, n) in enumerate(zip(SUMS, by, COUNTED, strict=True))
    }
    return RunFacts(losses=losses, rank_counted=ranks)


@pytest.mark.parametrize(
    ("code", "by", "ranks"),
    [
        (DivisorCode.COUNTED_OF_RANKS, 89.0, EVERY),
        (DivisorCode.ROWS, 5.0, ()),
        (DivisorCode.MICROBATCHES, 2.0, ()),
    ],
)
@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_what_a_loss_is_divided_by(
    code: DivisorCode, by: float, ranks: tuple[int, ...], apart: float
) -> None:
    target, reference = divided((by + apart,) * 2, ranks), divided((30.0, 21.0), ranks)
    sides = (torch.tensor(run.losses[0].value) for run in (target, reference))
    of_loss = {"phase": "loss", "slot": "value"}
    found = divided_otherwise(case(*sides, target_run=target, reference_run=reference, **of_loss))
    assert (found is not None and tells(found.sentence, code, number=by)) is not apart


def test_zeros_that_move_with_their_rows_are_no_mask() -> None:
    """A column is zero in four of sixteen rows; the rows stand elsewhere. A mask of the same rows takes other
    numbers away."""
    moved = dispatched((5, 5, 6), (5, 5, 6))
    assert KindCode.WRONG_MASK not in [one.name for one in name_kinds(moved)]
    rows = normal(16, 24, seed=73)
    hidden, other = rows.clone(), rows.clone()
    hidden[3:9, 5], other[6:12, 5] = 0.0, 0.0
    assert KindCode.WRONG_MASK in [one.name for one in name_kinds(case(hidden, other))]


def test_stretches_hidden_at_random_are_a_mask() -> None:
    """Another stretch of time in each sample is 0, over all bands. A ReLU, a rescaled rest and single zeros
    are none."""
    x = normal(4, 20, 40, seed=74)
    hidden = x.clone()
    for n, start in enumerate((3, 11, 20, 30)):
        hidden[n, :, start : start + 6] = 0.0
    sentence = next(one.sentence for one in name_kinds(case(hidden, x)) if one.name is KindCode.WRONG_MASK)
    assert sentence.parts == (reason(PlacesCode.COLUMNS_OF_EACH, number=6, size=40),)
    single = torch.where(normal(4, 20, 40, seed=75) > 1, torch.zeros(()), x)
    for other in (x.relu(), 1.2 * hidden, single):
        assert KindCode.WRONG_MASK not in [one.name for one in name_kinds(case(other, x))]
