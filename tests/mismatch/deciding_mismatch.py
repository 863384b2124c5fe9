"""Cases whose measured quantity is a number at will, for every entry of ``mismatch/thresholds.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.deciding import decides
from trueup.mismatch.judging import judge
from trueup.mismatch.layers import LayerError, first_beyond
from trueup.mismatch.measuring import measure
from trueup.mismatch.tokens import Tokens
from trueup.types.codes import MismatchCode as M

EPS = 2.0**-8


def tokens(rollout, training, *, length=None, noise=None):
    """One sequence, or sequences of a length."""
    rollout, training = np.asarray(rollout, float), np.asarray(training, float)
    length = length or len(rollout)
    at = np.arange(len(rollout))
    return Tokens(
        rollout=rollout,
        training=training,
        equal=rollout == training,
        sequence=at // length,
        position=at % length,
        step=np.zeros_like(at),
        noise=noise,
    )


def concluded(case: Tokens, layers: Sequence[LayerError] = ()) -> set[M]:
    found = judge(case, measure(case), layers)
    return {one.code for one in (*found.reasons, *found.remarks)}


def spread_out(count, seed=0):
    """Log-probs of mean -6 and variance 1, with differences of mean 0 and variance 1 that are unrelated."""
    rng = np.random.default_rng(seed)
    plain, other = (rng.normal(size=count) for _ in range(2))
    plain = (plain - plain.mean()) / plain.std()
    other -= other.mean() + plain * (plain @ (other - other.mean())) / (plain @ plain)
    return plain - 6, other / other.std()


def layer(rel_l2, *, noise=None, name="a"):
    return LayerError(
        name=name,
        num_tokens=9,
        num_equal=0,
        rel_l2=rel_l2,
        max_rel_l2=rel_l2,
        noise=noise,
        dtype="bfloat16",
    )


@decides("mismatch.enough")
def enough(count: float) -> object:
    plain, _ = spread_out(int(count))
    return M.NOT_SAMPLED in concluded(tokens(plain, plain - 0.5))


@decides("mismatch.standard_errors")
def standard_errors(z: float) -> object:
    """exp(r) - 1 of +-s about its mean: its sum over its root of squares is z."""
    count = 900
    share = z / np.sqrt(count)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0) * np.sqrt(1 - share**2)
    return M.NOT_SAMPLED in concluded(tokens(np.full(count, -3.0), -3 + np.log1p(0.01 * (share + sign))))


@decides("mismatch.not_sampled_share")
def not_sampled_share(share: float) -> object:
    sign = np.where(np.arange(10_000) % 2, 1.0, -1.0) * np.sqrt(1 - share**2)
    return M.NOT_SAMPLED in concluded(tokens(np.full(10_000, -3.0), -3 + np.log1p(0.01 * (share + sign))))


@decides("mismatch.moved")
def moved(share: float) -> object:
    """Log-probs of the next token, but for a difference of this size."""
    plain, _ = spread_out(4001)
    own = np.sqrt(np.mean((plain[1:] - plain[:-1]) ** 2))
    error = share * own * np.where(np.arange(4000) % 2, 1.0, -1.0)
    return M.SHIFTED in concluded(tokens(plain[1:], plain[:-1] + error), ())


@decides("mismatch.moved_rows", margin=0.05)
def moved_rows(share: float) -> object:
    plain, _ = spread_out(100 * 16)
    rows = plain.reshape(100, 16)
    order = np.arange(100)
    order[: round(100 * share)] = np.roll(order[: round(100 * share)], 1)
    return M.REORDERED in concluded(tokens(rows.ravel(), rows[order].ravel() + 1e-6, length=16))


@decides("mismatch.spread")
def spread(share: float) -> object:
    plain, _ = spread_out(40_000)
    return M.SPREAD in concluded(tokens(plain, plain * (1 + share)))


@decides("mismatch.spread_correlation")
def spread_correlation(alike: float) -> object:
    plain, other = spread_out(40_000)
    return M.SPREAD in concluded(tokens(plain, 1.5 * (alike * plain + np.sqrt(1 - alike**2) * other)))


@decides("mismatch.noise")
def noise(times: float) -> object:
    return (M.WITHIN_NOISE in concluded(with_noise(times)), first_beyond([layer(0.01 * times, noise=0.01)]))


def with_noise(times):
    """Log-probs that differ by so many times the noise."""
    plain, other = spread_out(1000)
    return tokens(plain, plain + 0.01 * times * other, noise=plain + 0.01 * (times + 1) * other)


@decides("mismatch.roundings")
def roundings(count: float) -> object:
    return first_beyond([layer(count * EPS)]) is None


@decides("mismatch.amplification")
def amplification(times: float) -> object:
    return first_beyond([layer(0.01), layer(4 * EPS + 0.01 * times)]) is None


@decides("mismatch.doubt")
def doubt(times: float) -> object:
    plain, other = spread_out(1000)
    of_layers = concluded(tokens(plain, plain + 0.001 * other), [layer(times * 4 * EPS)])
    return (M.LAYER in of_layers, M.BEYOND_NOISE in concluded(with_noise(2 * times)))


@decides("mismatch.head")
def head(times: float) -> object:
    plain, other = spread_out(1000)
    size = np.sqrt(np.mean(plain**2)) * (8 * EPS + 0.01 * times)
    return M.HEAD in concluded(tokens(plain, plain + size * other), [layer(0.01)])


@decides("mismatch.most_in_few")
def most_in_few(share: float) -> object:
    """One of ten sequences of ten tokens holds this share of the squared difference."""
    squares = np.full(100, (1 - share) / 90)
    squares[:10] = share / 10
    plain, _ = spread_out(100)
    return M.FEW_SEQUENCES in concluded(tokens(plain, plain + 0.01 * np.sqrt(squares), length=10))


@decides("mismatch.few")
def few(share: float) -> object:
    """This share of 1000 sequences holds 90 %, each as much as the others."""
    num = round(1000 * share)
    squares = np.full(1000, 0.1 / (1000 - num))
    squares[:num] = 0.9 / num * (1 + 1e-9)
    plain, _ = spread_out(1000)
    return M.FEW_SEQUENCES in concluded(tokens(plain, plain + 0.01 * np.sqrt(squares), length=1))


@decides("mismatch.grows")
def grows(times: float) -> object:
    plain, _ = spread_out(2 * 200)
    size = np.tile([1.0, times], 200)
    return M.GROWS_POSITION in concluded(tokens(plain, plain + 0.01 * size, length=2))
