"""One or more true cases of every kind on real tensors, and near misses: what looks like it and is not.

A true case must be named first. A near miss must not be named as the kind it resembles, or must lose to
another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.diagnosing.cases import case, known, normal, pair, summary_only
from trueup.diagnosing.evidence import (
    Elsewhere,
    Evidence,
    NeighbourCall,
    ParameterStep,
    RunFacts,
    SlotPair,
    Surroundings,
)

X = normal(4, 16, 32)
SQUARE = normal(32, 32, seed=1)
IDS = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(3))
GRADS = [normal(16, 32, seed=10 + rank) for rank in range(4)]
SCORES = normal(2, 4, 16, 16, seed=5)
VALUES = normal(2, 4, 16, 8, seed=6)
_FLOAT32 = RunFacts(on_cpu=True, dtypes=frozenset({"float32"}))
IN_FLOAT32 = {"target_run": _FLOAT32, "reference_run": _FLOAT32}
GRADIENT = {"phase": "param_grad", "slot": "accumulated", "module": "layers.0.mlp.up.weight"}
UPDATE = {"phase": "optimizer", "slot": "param", "module": "layers.0.mlp.up.weight"}
ATTENTION = Surroundings(module="layers.0.attn", type="Attention")

Case = Callable[[], Evidence]
TRUE: dict[str, list[Case]] = {}
NEAR: dict[str, list[tuple[Case, str | None]]] = {}
"""kind -> (case that is not it, kind that must come first; None: whichever, or none)"""


def true(kind: str) -> Callable[[Case], Case]:
    """A case of a kind."""

    def add(made: Case) -> Case:
        TRUE.setdefault(kind, []).append(made)
        return made

    return add


def near(kind: str, *, instead: str | None = None) -> Callable[[Case], Case]:
    """A case that resembles a kind."""

    def add(made: Case) -> Case:
        NEAR.setdefault(kind, []).append((made, instead))
        return made

    return add


def inputs(*tensors: Tensor, module: str = "layers.0", **more: object) -> Surroundings:
    """A call with these inputs, the same on both sides."""
    given = tuple(pair(f"input.{i}", t) for i, t in enumerate(tensors))
    return Surroundings(inputs=given, module=module, **more)  # type: ignore[arg-type]


def masked(offset: int) -> Tensor:
    """Causally masked scores."""
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(offset)
    return SCORES.masked_fill(hidden, float("-inf"))


def dropped(p: float, seed: int) -> Tensor:
    """X after dropout."""
    torch.manual_seed(seed)
    return F.dropout(X, p)


@true("missing_or_extra_term")
def switched_off() -> Evidence:
    """A branch that returns nothing, whose reference does."""
    return case(torch.zeros_like(X), X)


@near("missing_or_extra_term", instead="wrong_mask")
def rows_hidden() -> Evidence:
    """Nothing but in the last rows."""
    rows = torch.arange(16)[None, :, None] < 12
    return case(X.masked_fill(rows, 0.0), X)


# -- scale and sign ------------------------------------------


@true("wrong_scale")
def halved() -> Evidence:
    return case(X / 2, X)


@true("wrong_scale")
def summed_for_averaged() -> Evidence:
    return case(GRADS[0] * 4, GRADS[0], target_run=RunFacts(world_size=4), **GRADIENT)


@true("wrong_scale")
def small_percent_in_bfloat16() -> Evidence:
    exact = normal(64, 512, seed=2)
    return case((exact * 1.002).bfloat16(), exact.bfloat16())


@true("wrong_scale")
def each_part_scaled_alike_in_float16() -> Evidence:
    exact = F.gelu(normal(64, 512, seed=2) + 0.5)
    return case((exact * 1.002).half(), exact.half())


@true("wrong_scale")
def scaled_by_sketch_alone() -> Evidence:
    return case(X * 3, X, kept="sketch")


@true("wrong_scale")
def scaled_by_statistics_alone() -> Evidence:
    return case(X * 3, X, kept="statistics")


@true("wrong_scale")
def kept_without_being_divided() -> Evidence:
    """A drop path that keeps samples as they are, where the reference divides them."""
    kept = (torch.arange(4) % 2 == 0).float()[:, None, None]
    return case(X * kept, X * kept / 0.8, surroundings=inputs(X))


@near("wrong_scale", instead="missing_or_extra_term")
def scaled_and_moved() -> Evidence:
    return case(X + 1, X)


@near("wrong_scale")
def one_number_of_unknown_ratio() -> Evidence:
    return case(torch.tensor(2.123), torch.tensor(1.0), phase="loss", slot="value")


@near("wrong_scale")
@near("missing_or_extra_term")
def another_approximation_in_float16() -> Evidence:
    """Both nearly agree; on the whole one is 1.0002 times the other, and 7e-5 larger."""
    exact = normal(64, 512, seed=2) + 0.5
    return case(F.gelu(exact.half()), F.gelu(exact.half(), approximate="tanh"))


@near("wrong_scale")
def one_row_weighed_otherwise_in_bfloat16() -> Evidence:
    exact = normal(8, 16, 48, seed=2)
    other = exact.clone()
    other[3] *= 0.98
    return case(other.bfloat16(), exact.bfloat16(), phase="backward")


@near("wrong_scale")
def the_largest_of_each_row_in_place_of_the_mean() -> Evidence:
    """Near five times the mean, with a quarter left over; and 5 is a number that programs hold."""
    mean = normal(16, 32, seed=2).abs()
    return case(mean * (5.05 + normal(16, 32, seed=3)), mean)


@near("wrong_scale", instead="dtype_or_rounding")
def no_scale_but_rounding() -> Evidence:
    exact = normal(64, 512, seed=2).double()
    return case((exact * (1 + 0.002 * normal(64, 512, seed=4))).bfloat16(), exact.bfloat16())


@true("wrong_sign")
def negated() -> Evidence:
    return case(-X, X)


@true("wrong_sign")
def half_of_every_row_negated() -> Evidence:
    other = X.clone()
    other[..., :16] *= -1
    return case(other, X)


@true("wrong_sign")
def negated_by_sketch_alone() -> Evidence:
    return case(-X, X, kept="sketch")


@near("wrong_sign", instead="wrong_scale")
def negated_twice_over() -> Evidence:
    return case(2 * X, X)


@near("wrong_sign")
def negated_unrelated() -> Evidence:
    return case(-normal(4, 16, 32, seed=77), X)


# -- order ------------------------------------------


@true("transposed_or_permuted")
def transposed() -> Evidence:
    return case(SQUARE.T, SQUARE)


@true("transposed_or_permuted")
def heads_not_transposed_back() -> Evidence:
    return case(X.view(4, 16, 4, 8).transpose(1, 2).reshape(4, 16, 32), X)


@true("transposed_or_permuted")
def pairs_for_halves() -> Evidence:
    return case(X.view(4, 16, 2, 16).transpose(2, 3).reshape(4, 16, 32), X)


@true("transposed_or_permuted")
def gate_and_up_swapped() -> Evidence:
    gate, up = normal(4, 16, 32, seed=21), normal(4, 16, 32, seed=22)
    return case(F.silu(up) * gate, F.silu(gate) * up, surroundings=inputs(gate, up))


@true("transposed_or_permuted")
def rotary_pairs() -> Evidence:
    x = normal(2, 4, 16, 8, seed=23)
    frequency = 10000.0 ** (-torch.arange(4) / 4)
    angle = torch.outer(torch.arange(16.0), frequency)
    cos, sin = angle.cos(), angle.sin()
    a, b, even, odd = x[..., :4], x[..., 4:], x[..., 0::2], x[..., 1::2]
    halves = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return case(pairs, halves, surroundings=inputs(x))


@true("transposed_or_permuted")
def other_slices_of_one_tensor() -> Evidence:
    qkv = normal(2, 16, 96, seed=24)
    q = qkv[..., :32].reshape(2, 16, 4, 8).transpose(1, 2)
    other = qkv.view(2, 16, 4, 3, 8)[..., 0, :].transpose(1, 2)
    return case(
        other.contiguous(), q.contiguous(), surroundings=Surroundings(nearby=(pair("output.0", qkv),))
    )


def token_of_each_row(places: list[int], *, same_at: int | None = None) -> Evidence:
    """What a head is given of six rows of twelve tokens; the reference's are the last that are no padding."""
    hidden, rows, last = normal(6, 12, 8, seed=25), torch.arange(6), torch.tensor([4, 8, 10, 6, 9, 3])
    if same_at is not None:
        hidden[:, same_at] = hidden[:, -1]
    taken = hidden[rows, torch.tensor(places)]
    nearby = Surroundings(nearby=(pair("output.0", hidden),))
    return case(taken, hidden[rows, last], slot="input.0", surroundings=nearby)


@true("transposed_or_permuted")
def last_token_though_it_is_padding() -> Evidence:
    return token_of_each_row([11] * 6)


@true("shifted_by_one")
def token_before_the_last() -> Evidence:
    return token_of_each_row([3, 7, 9, 5, 8, 2])


@near("shifted_by_one", instead="transposed_or_permuted")
def token_before_the_last_of_most_rows() -> Evidence:
    return token_of_each_row([3, 7, 9, 5, 8, 1])


@true("transposed_or_permuted")
def transposed_by_summary_alone() -> Evidence:
    return case(SQUARE.T, SQUARE, kept="sketch")


@near("transposed_or_permuted")
def unrelated_of_one_distribution() -> Evidence:
    return case(normal(32, 32, seed=2), SQUARE)


@near("transposed_or_permuted", instead="dtype_or_rounding")
def rounded_in_place() -> Evidence:
    return case((SQUARE.double() * (1 + 3e-7 * normal(32, 32, seed=8))).float(), SQUARE)


@true("shifted_by_one")
def labels_shifted_twice() -> Evidence:
    return case(IDS[:, 1:], IDS[:, :-1], slot="input.1", module="loss")


@true("shifted_by_one")
def positions_one_late() -> Evidence:
    return case(torch.roll(X, 1, 1), X)


@near("shifted_by_one")
def constant_along_the_dimension() -> Evidence:
    return case(torch.ones(4, 16), torch.zeros(4, 16))


@near("shifted_by_one", instead="transposed_or_permuted")
def shifted_by_half() -> Evidence:
    return case(torch.roll(X, 8, 1), X)


# -- numbers ------------------------------------------


@true("dtype_or_rounding")
def computed_in_bfloat16() -> Evidence:
    a, b = normal(64, 64, seed=30), normal(64, 64, seed=31)
    return case((a.bfloat16() @ b.bfloat16()).float(), a @ b)


@true("dtype_or_rounding")
def rounded_to_bfloat16_by_sketch() -> Evidence:
    """Cast back afterwards, and no record of the run is in bfloat16: minimum and maximum tell."""
    exact = normal(64, 64, seed=32)
    return case(exact.bfloat16().float(), exact, kept="sketch", **IN_FLOAT32)


@near("dtype_or_rounding")
def noise_of_the_size_of_bfloat16_by_sketch() -> Evidence:
    exact = normal(64, 64, seed=32)
    noisy = exact * (1 + 0.002 * normal(64, 64, seed=33))
    return case(noisy, exact, kept="sketch", **IN_FLOAT32)


@near("dtype_or_rounding")
def another_tensor_of_bfloat16_by_sketch() -> Evidence:
    """On the grid, but further from the reference than a rounding."""
    exact = normal(64, 64, seed=32)
    other = (exact + 0.1 * normal(64, 64, seed=33)).bfloat16().float()
    return case(other, exact, kept="sketch", **IN_FLOAT32)


@true("dtype_or_rounding")
def kept_in_bfloat16() -> Evidence:
    return case(X.bfloat16(), X)


@true("dtype_or_rounding")
def summed_in_another_order() -> Evidence:
    a = normal(64, 512, seed=32)
    return case(sum(a.unbind(1), torch.zeros(64)), a.double().sum(1).float())


@true("dtype_or_rounding")
def upcast_left_out() -> Evidence:
    calls = (
        NeighbourCall(
            name="torch.Tensor.to",
            kind="api",
            ordinal=0,
            target=None,
            reference={"input.1": "torch.float32"},
            reference_dtypes=("bfloat16", "float32"),
        ),
    )
    noisy = X * (1 + 0.01 * normal(4, 16, 32, seed=33))
    return case(noisy.bfloat16(), X.bfloat16(), surroundings=Surroundings(module="norm", neighbours=calls))


def with_copies_rounded(*dtypes: str) -> Evidence:
    """An update of weights that were rounded to bfloat16 before it, on a CPU: four roundings to tf32."""
    run = RunFacts(on_cpu=True, dtypes=frozenset(dtypes))
    update = 0.01 * normal(32, 32, seed=36)
    runs = {"target_run": run, "reference_run": run}
    return case(SQUARE.bfloat16().float() + update, SQUARE + update, **runs, **UPDATE)


@true("dtype_or_rounding")
def copies_rounded_where_weights_are_in_bfloat16() -> Evidence:
    return with_copies_rounded("float32", "bfloat16")


@near("dtype_or_rounding")
def copies_rounded_where_nothing_is_in_bfloat16() -> Evidence:
    return with_copies_rounded("float32")


def later_off(size: float, earlier: Tensor) -> Evidence:
    """Off by noise of this relative size in bfloat16; an earlier step has the same bits on both sides."""
    seen = ((0, known(earlier.bfloat16())),)
    noisy = (X * (1 + size * normal(4, 16, 32, seed=38))).bfloat16()
    return case(noisy, X.bfloat16(), elsewhere=Elsewhere(target_earlier=seen, reference_earlier=seen))


@true("dtype_or_rounding")
def rounded_from_a_step_on_in_which_a_part_is_no_longer_zero() -> Evidence:
    """One rounding, as an adapter's product in another order makes once its weight is not zero."""
    return later_off(0.003, normal(4, 16, 32, seed=39))


@true("dtype_or_rounding")
def roundings_where_all_was_zero_before() -> Evidence:
    return later_off(0.0045, torch.zeros(4, 16, 32))


@near("dtype_or_rounding")
def more_than_rounding_where_the_same_code_made_the_same_bits() -> Evidence:
    """More than a rounding: dtypes and order had made the same bits of other numbers before."""
    return later_off(0.0045, normal(4, 16, 32, seed=39))


def factors_of_rows_off(*named: str) -> Evidence:
    """Each row of a sum of two has its factors rounded: what is rounded is in no record."""
    a, b = normal(256, 32, seed=37), normal(256, 32, seed=38)
    weights = torch.softmax(normal(256, 2, seed=39), 1)
    low = weights.bfloat16().float()
    sums = [w[:, :1] * a + w[:, 1:] * b for w in (low, weights)]
    run = RunFacts(on_cpu=True, dtypes=frozenset({"float32"}))
    runs = {"target_run": run, "reference_run": run}
    return case(*sums, **runs, dtypes_in_code=frozenset(named))


@true("dtype_or_rounding")
def factors_rounded_as_the_code_says() -> Evidence:
    return factors_of_rows_off("bfloat16", "float32")


@near("dtype_or_rounding")
def factors_off_and_no_code_that_says_so() -> Evidence:
    return factors_of_rows_off()


@true("dtype_or_rounding")
def in_another_dtype() -> Evidence:
    return case(X, X.bfloat16())


@near("dtype_or_rounding")
def another_tensor_in_another_dtype() -> Evidence:
    """What a norm is given, where the one run's residual goes in too: far more than a rounding apart."""
    return case(X + 5 * normal(4, 16, 32, seed=40), X.bfloat16())


@near("dtype_or_rounding")
def far_beyond_rounding() -> Evidence:
    return case(X * (1 + 0.4 * normal(4, 16, 32, seed=34)), X)


@near("dtype_or_rounding", instead="wrong_scale")
def biased_like_bfloat16() -> Evidence:
    return case(X * 1.003, X)


@true("overflow_underflow")
def one_infinity() -> Evidence:
    other = X.clone()
    other[0, 0, 0] = float("inf")
    return case(other, X)


@true("overflow_underflow")
def stopped_at_the_largest_half() -> Evidence:
    large = X * 1e5
    return case(large.clamp(-65504, 65504), large)


@true("overflow_underflow")
def small_ones_gone() -> Evidence:
    spread = torch.rand(4, 16, 32, generator=torch.Generator().manual_seed(1))
    small = X * 10 ** (-6 * spread) * 1e-4
    return case(small.half().float(), small)


@near("overflow_underflow")
def small_ones_gone_where_nothing_computes_in_half() -> Evidence:
    run = RunFacts(on_cpu=True, dtypes=frozenset({"float32"}))
    spread = torch.rand(4, 16, 32, generator=torch.Generator().manual_seed(1))
    small = X * 10 ** (-6 * spread) * 1e-4
    return case(small.half().float(), small, target_run=run, reference_run=run)


@near("overflow_underflow", instead="wrong_mask")
def infinities_of_a_mask() -> Evidence:
    return case(masked(0), masked(1))


@true("bit_flip")
def one_bit() -> Evidence:
    other = X.clone()
    other.view(torch.int32).view(-1)[77] ^= 1 << 28
    return case(other, X)


@near("bit_flip", instead="dtype_or_rounding")
def last_bits_everywhere() -> Evidence:
    other = X.clone()
    other.view(torch.int32).bitwise_xor_(1)
    return case(other, X)


@near("bit_flip")
def one_element_of_another_value() -> Evidence:
    other = X.clone()
    other[0, 0, 0] = 0.123456
    return case(other, X)


@true("non_determinism")
def as_far_as_its_own_repeat() -> Evidence:
    noisy = (X.double() * (1 + 1e-3 * normal(4, 16, 32, seed=40))).float()
    return case(noisy, X, repeat=1e-3)


@near("non_determinism")
def farther_than_its_repeat() -> Evidence:
    return case(X * (1 + 0.1 * normal(4, 16, 32, seed=41)), X, repeat=1e-6)


# -- sums ------------------------------------------


@true("missing_all_reduce")
def mean_over_ranks() -> Evidence:
    ranks = tuple((i, known(g)) for i, g in enumerate(GRADS[:2]))
    return case(GRADS[0], (GRADS[0] + GRADS[1]) / 2, elsewhere=Elsewhere(target_ranks=ranks), **GRADIENT)


@true("missing_all_reduce")
def sum_over_a_group_by_sketch() -> Evidence:
    ranks = tuple((i, summary_only(known(g))) for i, g in enumerate(GRADS))
    return case(
        GRADS[0], GRADS[0] + GRADS[1], kept="sketch", elsewhere=Elsewhere(target_ranks=ranks), **GRADIENT
    )


@near("missing_all_reduce", instead="wrong_scale")
def summed_but_not_averaged() -> Evidence:
    mean = (GRADS[0] + GRADS[1]) / 2
    ranks = tuple((i, known(2 * mean)) for i in range(2))
    return case(2 * mean, mean, elsewhere=Elsewhere(target_ranks=ranks), **GRADIENT)


@near("missing_all_reduce")
def the_mean_on_one_rank_alone() -> Evidence:
    """What is reduced is on every rank: a mean that the reference's other rank does not hold is none."""
    ranks = tuple((i, known(g)) for i, g in enumerate(GRADS[:2]))
    mean = (GRADS[0] + GRADS[1]) / 2
    there = Elsewhere(target_ranks=ranks, reference_ranks=((0, known(mean)), (1, known(GRADS[2]))))
    return case(GRADS[0], mean, elsewhere=there, **GRADIENT)


@true("missing_zero_grad")
def gradient_not_cleared() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, known(GRADS[1])),))
    return case(GRADS[0] + GRADS[1], GRADS[0], elsewhere=earlier, **GRADIENT)


@true("missing_zero_grad")
def gradient_not_cleared_by_sketch() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, summary_only(known(GRADS[1]))),))
    return case(GRADS[0] + GRADS[1], GRADS[0], kept="sketch", elsewhere=earlier, **GRADIENT)


@near("missing_zero_grad")
def another_gradient_added() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, known(GRADS[2])),))
    return case(GRADS[0] + GRADS[1], GRADS[0], elsewhere=earlier, **GRADIENT)


@true("missing_or_extra_term")
def bias_left_out() -> Evidence:
    bias = normal(32, seed=50)
    return case(X - bias, X, surroundings=Surroundings(parameters=(pair("bias", bias),)))


@true("missing_or_extra_term")
def residual_left_out() -> Evidence:
    residual = normal(4, 16, 32, seed=51)
    return case(X, X + residual, surroundings=inputs(residual))


@true("missing_or_extra_term")
def residual_left_out_by_sketch() -> Evidence:
    residual = normal(4, 16, 32, seed=51)
    kept = Surroundings(inputs=(pair("input.0", residual),))
    return case(X, X + residual, kept="sketch", surroundings=kept)


@true("missing_or_extra_term")
def table_added_in_bfloat16() -> Evidence:
    exact, table = normal(4, 18, 32, seed=54), 0.05 * normal(32, seed=55)
    return case((exact + table).bfloat16(), exact.bfloat16())


def residuals(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a block is given, the same normalised, and what the block makes of it."""
    given = 0.1 * normal(4, 16, 32, seed=seed)
    return given, F.layer_norm(given, (32,)), normal(4, 16, 32, seed=seed + 1)


@true("missing_or_extra_term")
def residual_taken_after_the_norm_in_bfloat16() -> Evidence:
    given, normed, made = residuals(60)
    around = inputs(given.bfloat16(), normed.bfloat16())
    return case((normed + made).bfloat16(), (given + made).bfloat16(), surroundings=around)


@near("missing_or_extra_term")
def residual_and_something_else() -> Evidence:
    """What is left of one tensor in place of another is no rounding."""
    given, normed, made = residuals(60)
    around = inputs(given.bfloat16(), normed.bfloat16())
    other = made + 0.3 * normal(4, 16, 32, seed=62)
    return case((normed + other).bfloat16(), (given + made).bfloat16(), surroundings=around)


@near("missing_or_extra_term")
def an_input_that_differs_by_as_much() -> Evidence:
    """What came in with a tensor is no other tensor in its place."""
    given, _, made = residuals(63)
    other = given + 0.05 * normal(4, 16, 32, seed=65)
    pair = SlotPair(
        slot="input.0",
        target=known(other.bfloat16(), name="blocks.0, input.0"),
        reference=known(given.bfloat16(), name="layers.0, input.0"),
    )
    around = Surroundings(inputs=(pair,))
    return case((other + made).bfloat16(), (given + made).bfloat16(), surroundings=around)


@near("missing_or_extra_term")
def columns_with_means_scaled_below_rounding() -> Evidence:
    """Each column by a factor of its own: the columns' means move with them, by less than bfloat16 rounds."""
    exact = normal(4, 18, 32, seed=56) + 6 * normal(32, seed=57)
    return case((exact * (1 + 0.001 * normal(32, seed=58))).bfloat16(), exact.bfloat16())


@near("missing_or_extra_term")
def difference_unlike_anything_nearby() -> Evidence:
    return case(X + normal(4, 16, 32, seed=52), X, surroundings=inputs(normal(4, 16, 32, seed=53)))


# -- masks and random numbers ------------------------------------------


@true("wrong_mask")
def causal_mask_off_by_one() -> Evidence:
    return case(masked(2), masked(1))


@true("wrong_mask")
def probabilities_unmasked() -> Evidence:
    return case(SCORES.softmax(-1), masked(1).softmax(-1))


@true("wrong_mask")
def leak_seen_in_the_output() -> Evidence:
    return case(masked(2).softmax(-1) @ VALUES, masked(1).softmax(-1) @ VALUES, surroundings=ATTENTION)


@true("wrong_mask")
def padding_not_hidden() -> Evidence:
    padded = SCORES.clone()
    padded[0, :, :, 12:] = float("-inf")
    return case(SCORES, padded)


@true("wrong_mask")
def documents_not_parted() -> Evidence:
    document = torch.arange(16) // 6
    parted = masked(1).masked_fill(document[:, None] != document[None, :], float("-inf"))
    return case(masked(1).softmax(-1), parted.softmax(-1))


def padded_mask(*, window: int | None = None, padding: int = 0) -> Tensor:
    """What two samples let be seen, the second one's end being padding."""
    seen = torch.ones(16, 16).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    seen = seen.bool().expand(2, 1, 16, 16).clone()
    seen[1, ..., 16 - padding :] = False
    return seen


def added(seen: Tensor) -> Tensor:
    """As it is added to scores."""
    return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))


@true("wrong_mask")
def padding_not_hidden_in_the_mask() -> Evidence:
    return case(added(padded_mask()), added(padded_mask(padding=4)))


@true("wrong_mask")
def another_window_beside_padding() -> Evidence:
    return case(added(padded_mask(window=5, padding=4)), added(padded_mask(window=6, padding=4)))


@true("wrong_mask")
def padding_not_hidden_booleans_against_numbers() -> Evidence:
    return case(padded_mask(), added(padded_mask(padding=4)))


@true("wrong_mask")
def later_position_seen_where_true_lets_be_seen() -> Evidence:
    return case(torch.ones(2, 1, 16, 16).tril(1).bool(), torch.ones(2, 1, 16, 16).tril().bool())


@true("wrong_mask")
def later_position_seen_where_true_hides() -> Evidence:
    return case(torch.ones(2, 1, 16, 16).triu(2).bool(), torch.ones(2, 1, 16, 16).triu(1).bool())


@near("wrong_mask")
def scores_scaled() -> Evidence:
    return case(
        (masked(1) * 1.3).softmax(-1) @ VALUES, masked(1).softmax(-1) @ VALUES, surroundings=ATTENTION
    )


@near("wrong_mask")
def the_same_elements_hidden_and_others_weighted() -> Evidence:
    """Of two heads the first rows agree, as they do where a window differs."""
    other = normal(2, 4, 16, 16, seed=57)
    apart = torch.where(torch.arange(16)[:, None] < 3, SCORES, other)
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)
    target = apart.masked_fill(hidden, float("-inf")).softmax(-1)
    return case(target, masked(1).softmax(-1), surroundings=ATTENTION)


def beside_padding(shown_alike: int) -> Evidence:
    """Two rows with 4 and 7 tokens of padding: so many shown ones agree, and what follows does not."""
    run = RunFacts(leading={0: (4, 7)})
    target, reference = normal(2, 16, 32, seed=58), normal(2, 16, 32, seed=59)
    at = torch.arange(16)[None, :] < torch.tensor([[4], [7]]) + shown_alike
    target = torch.where(at[..., None], reference, target)
    return case(target, reference, surroundings=ATTENTION, reference_run=run)


@true("wrong_mask")
def another_window_after_padding() -> Evidence:
    return beside_padding(3)


@near("wrong_mask")
def first_shown_tokens_see_themselves_alone() -> Evidence:
    return beside_padding(1)


@near("missing_or_extra_term", instead="dtype_or_rounding")
def even_weights_rounded() -> Evidence:
    """Every row rounds alike, and each by another number: no bias."""
    exact = (0.02 * SCORES).softmax(-1)
    return case(
        exact.bfloat16().float(), exact, surroundings=ATTENTION, dtypes_in_code=frozenset({"bfloat16"})
    )


@near("wrong_mask", instead="randomness")
def zeros_at_random() -> Evidence:
    return case(dropped(0.2, 1), dropped(0.2, 2))


@true("randomness")
def another_dropout_mask() -> Evidence:
    return case(dropped(0.1, 1), dropped(0.1, 2), surroundings=inputs(X))


@true("randomness")
def dropout_in_the_target_alone() -> Evidence:
    return case(dropped(0.1, 1), X)


@true("randomness")
def dropout_in_the_reference_alone() -> Evidence:
    return case(X, dropped(0.25, 1))


@near("randomness")
def zeros_that_nothing_makes_up_for() -> Evidence:
    return case(torch.where(dropped(0.1, 1) == 0, torch.zeros(()), X), X)


@near("randomness")
def more_zeros_than_the_scale_tells() -> Evidence:
    return case(torch.where(dropped(0.4, 1) == 0, torch.zeros(()), X / 0.9), X)


@true("missing_or_extra_term")
def an_activation_left_out() -> Evidence:
    return case(X, F.silu(X))


@true("missing_or_extra_term")
def an_activation_too_many() -> Evidence:
    return case(F.gelu(X), X)


@near("missing_or_extra_term", instead="wrong_scale")
def positive_numbers_scaled() -> Evidence:
    return case(0.5 * X.abs(), X.abs())


@true("randomness")
def another_initialisation() -> Evidence:
    return case(0.02 * normal(64, 64, seed=61), 0.02 * normal(64, 64, seed=62), phase="param", slot="value")


@true("randomness")
def recomputed_with_another_mask() -> Evidence:
    again = pair("output.0", dropped(0.1, 1), dropped(0.1, 2))
    apart = (replace(again, target=known(dropped(0.1, 1), "layers.0.drop, output.0")),)
    noisy = GRADS[0] * (1 + 0.2 * normal(16, 32, seed=63))
    return case(noisy, GRADS[0], elsewhere=Elsewhere(recomputed=apart), phase="param_grad", slot="local")


@near("randomness", instead="constant_argument")
def another_rate() -> Evidence:
    return case(dropped(0.3, 1), dropped(0.1, 2), surroundings=inputs(X))


@near("randomness")
def weights_of_another_spread() -> Evidence:
    return case(0.05 * normal(64, 64, seed=61), 0.02 * normal(64, 64, seed=62), phase="param", slot="value")


# -- constants ------------------------------------------


@true("constant_argument")
def eps_of_a_layer_norm() -> Evidence:
    return case(F.layer_norm(X, (32,), eps=1e-6), F.layer_norm(X, (32,), eps=1e-5), surroundings=inputs(X))


@true("constant_argument")
def eps_of_an_rms_norm() -> Evidence:
    x = 0.05 * X
    return case(F.rms_norm(x, (32,), eps=1e-5), F.rms_norm(x, (32,), eps=1e-6), surroundings=inputs(x))


@true("constant_argument")
def another_temperature() -> Evidence:
    return case((masked(1) * 1.1).softmax(-1), masked(1).softmax(-1))


@true("constant_argument")
def gelu_by_tanh() -> Evidence:
    return case(F.gelu(X, approximate="tanh"), F.gelu(X), surroundings=inputs(X))


@true("randomness")
def dropout_switched_off() -> Evidence:
    return case(X, dropped(0.1, 1), surroundings=inputs(X))


@true("constant_argument")
def an_argument_differs() -> Evidence:
    call = NeighbourCall(
        name="torch.nn.functional.cross_entropy",
        kind="api",
        ordinal=0,
        target={"input.label_smoothing": 0.1},
        reference={"input.label_smoothing": 0.0},
        own=True,
    )
    around = Surroundings(kind="api", name=call.name, neighbours=(call,))
    return case(torch.tensor(2.31), torch.tensor(2.30), surroundings=around)


def formulas(
    target: dict[str, list[float]],
    reference: dict[str, list[float]],
    again: str | None = None,
    number: float | None = None,
) -> Evidence:
    """A gate whose code calls these functions with these numbers, and the target's one of them ``again``,
    with ``number`` where that is given."""
    shared = [name for name in target if name in reference]
    calls = [
        NeighbourCall(
            name=f"torch.Tensor.{name}",
            kind="api",
            ordinal=0,
            target=_numbered(target.get(name)),
            reference=_numbered(reference.get(name)),
            is_by_name=True,
        )
        for name in (*(n for n in target if n not in shared), *reference)
    ]
    once_more = [replace(one, reference=None) for one in calls if again and one.name.endswith(f".{again}")]
    calls += [one if number is None else replace(one, target=_numbered([number])) for one in once_more]
    gate = (0.2 * X + 0.5).clamp(0, 1), F.relu6(X + 3) / 6
    return case(gate[0] * X.roll(1), gate[1] * X, surroundings=Surroundings(module="gate", neighbours=calls))


def _numbered(numbers: list[float] | None) -> dict[str, float] | None:
    return None if numbers is None else {f"input.{1 + at}": one for at, one in enumerate(numbers)}


@true("other_functions")
def another_formula() -> Evidence:
    target: dict[str, list[float]] = {"mul": [0.2], "add": [0.5], "clamp": [0, 1]}
    return formulas(target, {"add": [3], "relu6": [], "div": [6]})


@near("other_functions", instead="constant_argument")
def the_same_functions_with_another_number() -> Evidence:
    return formulas({"add": [3], "relu6": []}, {"add": [2], "relu6": []})


@near("constant_argument", instead="dtype_or_rounding")
def the_same_eps() -> Evidence:
    exact = F.layer_norm(X.double(), (32,), eps=1e-5)
    return case(F.layer_norm(X, (32,), eps=1e-5), exact.float(), surroundings=inputs(X))


@near("constant_argument", instead="wrong_scale")
def a_norm_scaled() -> Evidence:
    normed = F.layer_norm(X, (32,), eps=1e-5)
    return case(1.5 * normed, normed, surroundings=inputs(X))


# -- time ------------------------------------------


@true("stale_value")
def value_of_the_step_before() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, known(GRADS[0])),), reference_earlier=((0, known(GRADS[0])),))
    return case(GRADS[0], GRADS[1], elsewhere=earlier)


@true("stale_value")
def value_of_the_step_before_by_digest() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, summary_only(known(GRADS[0]))),))
    return case(GRADS[0], GRADS[1], kept="sketch", elsewhere=earlier)


@true("stale_value")
def loss_of_the_step_before() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, known(torch.tensor(4.5849))),))
    return case(torch.tensor(4.5849), torch.tensor(7.4), elsewhere=earlier)


@near("stale_value")
def loss_near_that_of_the_step_before() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, known(torch.tensor(4.6036))),))
    return case(torch.tensor(4.5849), torch.tensor(7.4), elsewhere=earlier)


@near("stale_value")
def both_use_one_value_in_two_steps() -> Evidence:
    """Advantages of several epochs: the reference keeps its own as well."""
    kept = Elsewhere(target_earlier=((0, known(GRADS[0])),), reference_earlier=((0, known(GRADS[1])),))
    return case(GRADS[0], GRADS[1], elsewhere=kept)


@near("stale_value")
def both_unchanged_but_for_noise() -> Evidence:
    earlier = Elsewhere(reference_earlier=((0, known(GRADS[1])),))
    return case(GRADS[1] * 1.5, GRADS[1], elsewhere=earlier)


@near("stale_value", instead="wrong_scale")
def one_that_has_shrunk_as_an_earlier_one_had() -> Evidence:
    earlier = Elsewhere(target_earlier=((0, known(0.1 * GRADS[0])),))
    return case(0.1 * GRADS[1], GRADS[1], elsewhere=earlier)


def _update(before: Tensor, target: Tensor, reference: Tensor, **more: object) -> Evidence:
    facts = ParameterStep(
        fqn="layers.0.mlp.up.weight",
        before=pair("value", before),
        updated=(pair("param", target, reference),),
        **more,  # type: ignore[arg-type]
    )
    return case(target, reference, parameter=facts, **UPDATE)


@true("dropped_update")
def parameter_not_moved() -> Evidence:
    return _update(GRADS[0], GRADS[0], GRADS[0] - 0.01 * GRADS[1])


@near("dropped_update", instead="wrong_optimizer_setting")
def parameter_moved_half_as_far() -> Evidence:
    return _update(GRADS[0], GRADS[0] - 0.005 * GRADS[1], GRADS[0] - 0.01 * GRADS[1])


@true("wrong_optimizer_setting")
def decay_where_there_is_none() -> Evidence:
    before, step = GRADS[0], 0.01 * GRADS[1].sign()
    return _update(before, before - step - 0.001 * before, before - step)


@true("wrong_optimizer_setting")
def settings_as_recorded() -> Evidence:
    before, step = GRADS[0], 0.01 * GRADS[1].sign()
    mine, theirs = {"class": "AdamW", "eps": 1e-6}, {"class": "AdamW", "eps": 1e-8}
    moved = before - step * (1 - 1e-4 * normal(16, 32, seed=70).abs())
    return _update(before, moved, before - step, target_settings=mine, reference_settings=theirs)


@true("wrong_optimizer_setting")
def updates_lost_in_bfloat16() -> Evidence:
    before = normal(64, 64, seed=71).bfloat16()
    step = 1e-3 * normal(64, 64, seed=72)
    return _update(before, (before.float() - step).bfloat16(), before.float() - step)


@near("wrong_optimizer_setting")
def update_within_rounding() -> Evidence:
    before, step = GRADS[0], 0.01 * GRADS[1]
    exact = (before.double() - step.double()) * (1 + 1e-7 * normal(16, 32, seed=73))
    return _update(before, exact.float(), before - step)


# -- absence and data ------------------------------------------


@true("frozen_or_missing_gradient")
def nothing_arrives() -> Evidence:
    return case(None, X, phase="backward", slot="input.0")


@true("frozen_or_missing_gradient")
def only_zeros_arrive() -> Evidence:
    return case(torch.zeros(16, 32), GRADS[0], phase="param_grad", slot="local")


@near("frozen_or_missing_gradient")
def what_arrives_is_not_finite() -> Evidence:
    overflown = torch.zeros(16, 32).index_fill(0, torch.arange(8), math.inf)
    return case(overflown, GRADS[0], phase="param_grad", slot="local")


@near("frozen_or_missing_gradient", instead="wrong_scale")
def little_arrives() -> Evidence:
    return case(1e-3 * GRADS[0], GRADS[0], phase="param_grad", slot="local")


@true("wrong_data")
def samples_in_another_order() -> Evidence:
    return case(IDS[[1, 0, 3, 2]], IDS, slot="input.0", module="")


@true("wrong_data")
def batch_of_another_step() -> Evidence:
    other = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(9))
    held = Elsewhere(reference_later=((2, known(other)),))
    return case(other, IDS, slot="input.0", module="", elsewhere=held)


@true("wrong_data")
def another_batch() -> Evidence:
    other = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(9))
    return case(other, IDS, slot="input.0", module="")


@true("wrong_scale")
def a_loss_whose_gradients_are_scaled_alike() -> Evidence:
    loss = {"phase": "loss", "slot": "value", "module": "", "sent_back": 0.362}
    return case(torch.tensor(0.362), torch.tensor(1.0), **loss)


@near("wrong_scale")
def a_loss_whose_gradients_are_not() -> Evidence:
    return case(torch.tensor(0.362), torch.tensor(1.0), phase="loss", slot="value", module="")


@near("wrong_data")
def positions_that_the_model_makes_are_no_data() -> Evidence:
    made = Surroundings(kind="module", name="positions", type="Embedding", module="positions")
    counted, kept = torch.arange(14).expand(4, 14), torch.arange(14).repeat(4, 1)
    kept[1:] = (kept[1:] - torch.tensor([[2], [4], [5]])).clamp(min=0)
    return case(counted.contiguous(), kept, slot="input.0", module="", surroundings=made)


@near("wrong_data", instead="wrong_scale")
def activations_are_no_data() -> Evidence:
    return case(2 * X, X, slot="input.0", module="")


# -- masks of booleans that hide where they are True ------------------------------------------

MULTIHEAD = Surroundings(module="layers.0", called_type="MultiheadAttention")


@true("wrong_mask")
def later_position_seen_in_booleans_that_hide() -> Evidence:
    return case(torch.ones(16, 16).triu(2).bool(), added(padded_mask())[0, 0], surroundings=MULTIHEAD)


@near("wrong_mask")
def the_same_mask_in_booleans_that_hide() -> Evidence:
    return case(torch.ones(16, 16).triu(1).bool(), added(padded_mask())[0, 0], surroundings=MULTIHEAD)
