"""What a trainer computes from recorded numbers, in float64: advantages, KL, policy, value and total loss.

Definitions are those of verl 0.9.1 (``core_algos.py``, ``ray_trainer.py``). Arrays are (sequences, tokens),
and zero where the mask is. A formula gives None for an estimator or form that is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trueup.store.rollouts import Setting
from trueup.types.arrays import Array, Floats

_WHITEN = 1e-8
"""verl adds it to the variance"""
_MOST_LOG_RATIO = 20.0
_MOST_OF_SEQUENCES = 10.0
_MOST_KL = 10.0
"""verl clamps to these"""


def number(settings: Mapping[str, Setting], name: str, default: float) -> float:
    """A setting as a number; booleans are 0 and 1."""
    value = settings.get(name)
    return default if value is None or isinstance(value, str) else float(value)


def short(value: float) -> float:
    """A constant as a person would have written it."""
    return float(f"{value:.3g}")


Rounding = Callable[[Floats], Floats]


def exact(values: Floats) -> Floats:
    """Nothing is rounded."""
    return values


def to_bfloat16(values: Floats) -> Floats:
    """To the nearest bfloat16, ties to even.

    Example:
        >>> to_bfloat16(np.array([1.001, 1.01, -3.0])).tolist()
        [1.0, 1.0078125, -3.0]
    """
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    found: Floats = rounded.view(np.float32).astype(np.float64)
    return found


def to_float16(values: Floats) -> Floats:
    """To the nearest float16."""
    return values.astype(np.float16).astype(np.float64)


NARROW: Mapping[str, Rounding] = {"bfloat16": to_bfloat16, "float16": to_float16}


# -- advantages ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """What advantages are made from."""

    estimator: str
    rewards: Floats
    """per token"""
    mask: Floats
    group: Array
    """number of the prompt of each sequence"""
    values: Floats | None = None
    gamma: float = 1.0
    lam: float = 1.0
    by_std: bool = True
    ddof: int = 1
    epsilon: float = 1e-6
    batch_std: bool = False
    """divided by the standard deviation of the batch, not of the group"""
    whitens: bool = True
    """gae and reinforce++ bring advantages to mean 0 and variance 1"""
    whitens_over: Floats | None = None
    """other than ``mask``"""
    whitens_groups: bool = False
    """normalised groups are whitened over the batch, too"""
    by_length: bool = False
    """divided by the number of tokens of the response"""
    bootstraps: bool = False
    """the value of its last token follows a response, not 0"""
    skips: bool = True
    """tokens that do not count are passed over"""
    centers: bool = True
    """a group's mean is taken off (reinforce++ with a baseline)"""
    rounded: Rounding = exact
    """follows operations on values alone"""

    def computed(self) -> Floats | None:
        """The advantages."""
        estimators = {
            "grpo": self._grouped,
            "rloo": self._leave_one_out,
            "gae": self._gae,
            "reinforce_plus_plus": self._reinforce,
            "reinforce_plus_plus_baseline": self._centered,
        }
        known = estimators.get(self.estimator)
        return None if known is None else known()

    def _scores(self) -> Floats:
        scores: Floats = self.rewards.sum(axis=1)
        return scores

    def _grouped(self) -> Floats:
        scores, found = self._scores(), np.zeros(len(self.rewards))
        for one in np.unique(self.group):
            rows = self.group == one
            mean, std = (scores[rows].mean(), scores[rows].std(ddof=self.ddof)) if rows.sum() > 1 else (0, 1)
            std = scores.std(ddof=self.ddof) if self.batch_std else std
            found[rows] = (scores[rows] - mean) / ((std + self.epsilon) if self.by_std else 1.0)
        if self.by_length:
            found /= np.maximum(self.mask.sum(axis=1), 1)
        advantages: Floats = found[:, None] * self.mask
        return self._whitened(advantages) * self.mask if self.whitens_groups else advantages

    def _leave_one_out(self) -> Floats:
        scores, found = self._scores(), self._scores().copy()
        for one in np.unique(self.group):
            rows = self.group == one
            size = int(rows.sum())
            if size > 1:
                found[rows] = (scores[rows] - scores[rows].mean()) * size / (size - 1)
        return np.asarray(found[:, None] * self.mask)

    def _centered(self) -> Floats:
        scores, found = self._scores(), self._scores().copy()
        for one in np.unique(self.group) if self.centers else ():
            rows = self.group == one
            found[rows] -= scores[rows].mean() if rows.sum() > 1 else 0.0
        raw: Floats = found[:, None] * self.mask
        return (self._whitened(raw) if self.whitens else raw) * self.mask

    def _gae(self) -> Floats | None:
        if self.values is None:
            return None
        values, mask = self.values, self.mask
        following, last = self._after_the_end(values), np.zeros(len(values))
        found = np.zeros_like(values)
        for at in range(values.shape[1] - 1, -1, -1):
            counts = mask[:, at] if self.skips else np.ones(len(mask))
            step = self.rewards[:, at] + self.rounded(self.gamma * following) - values[:, at]
            following = np.where(counts > 0, values[:, at], following)
            last = np.where(counts > 0, step + self.gamma * self.lam * last, last)
            found[:, at] = last
        return self._whitened(found) if self.whitens else found

    def _after_the_end(self, values: Floats) -> Floats:
        if not self.bootstraps:
            return np.zeros(len(values))
        last = self.mask.shape[1] - 1 - (self.mask[:, ::-1] > 0).argmax(axis=1)
        following: Floats = values[np.arange(len(values)), last]
        return following

    def returns(self) -> Floats | None:
        """What a critic is trained to give: of GAE before whitening, and with the values; of groups the
        advantages."""
        if self.estimator == "reinforce_plus_plus_baseline":
            return self.computed()
        raw = replace(self, whitens=False).computed()
        return (
            raw + self.values
            if self.estimator == "gae" and raw is not None and self.values is not None
            else raw
        )

    def _reinforce(self) -> Floats:
        last, found = np.zeros(len(self.rewards)), np.zeros_like(self.rewards)
        for at in range(self.rewards.shape[1] - 1, -1, -1):
            last = self.rewards[:, at] + self.gamma * last
            found[:, at] = last
            last = last * self.mask[:, at]
        return (self._whitened(found) if self.whitens else found) * self.mask

    def _whitened(self, values: Floats) -> Floats:
        counts = self.mask if self.whitens_over is None else self.whitens_over
        size = counts.sum()
        mean = (values * counts).sum() / size
        variance = ((values - mean) ** 2 * counts).sum() / max(size - 1, 1)
        whitened: Floats = (values - mean) / np.sqrt(variance + _WHITEN)
        return whitened


def kl(log_probs: Floats, reference: Floats, kind: str, rounded: Rounding = exact) -> Floats | None:
    """Per token; kinds by verl's and Schulman's names. verl bounds k3, TRL does not (``k3_unbounded``).
    ``rounded`` follows each operation."""
    apart = rounded(log_probs - reference)
    kind = kind.removesuffix("+")
    if kind in ("kl", "k1"):
        return apart
    if kind == "abs":
        return np.abs(apart)
    if kind in ("mse", "k2"):
        return rounded(0.5 * rounded(apart * apart))
    if kind in ("low_var_kl", "k3"):
        log = np.clip(-apart, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
        return np.clip(rounded(rounded(rounded(np.exp(log)) - log) - 1), -_MOST_KL, _MOST_KL)
    if kind == "k3_unbounded":
        return rounded(rounded(rounded(np.exp(-apart)) + apart) - 1)
    return None


# -- losses ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How a loss of each token becomes one number."""

    mode: str
    mask: Floats
    num_tokens: float | None = None
    """of the whole mini-batch, None: of this call"""
    num_sequences: float | None = None
    num_replicas: float = 1.0
    """which average the gradients: each multiplies by them"""
    horizon: float | None = None

    def total(self, values: Floats) -> float | None:
        """The aggregated loss."""
        mask = self.mask
        summed, counts = (values * mask).sum(axis=1), mask.sum(axis=1)
        sequences = self.num_sequences if self.num_sequences is not None else float((counts > 0).sum())
        if self.mode in ("token-mean", "token-sum"):
            tokens = self.num_tokens if self.num_tokens is not None else float(mask.sum())
            divisor = tokens if self.mode == "token-mean" else 1.0
        elif self.mode == "seq-mean-token-mean":
            summed, divisor = summed / np.maximum(counts, 1), sequences
        elif self.mode == "seq-mean-token-sum":
            divisor = sequences
        elif self.mode == "seq-mean-token-sum-norm":
            divisor = sequences * (self.horizon or mask.shape[1])
        else:
            return None
        return float(summed.sum() / divisor * self.num_replicas) if divisor else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The clipped objective."""

    log_probs: Floats
    old: Floats
    advantages: Floats
    low: float | None
    """the ratio is not below 1 - low; None: not clipped"""
    high: float | None
    dual: float | None
    """bound of the loss of negative advantages, None: there is none"""
    weights: Floats | None = None
    """of the rollout's correction"""
    larger: bool = True
    """of the losses with and without clipping the larger counts; else the smaller"""
    only_clipped: bool = False
    """the clipped loss counts, whichever is larger"""
    of_sequences: Floats | None = None
    """mask: the ratio is that of whole sequences, brought to their number of tokens (GSPO); None: of
    tokens"""
    by_length: bool = True
    """whether it is"""
    dual_of_all: bool = False
    """the dual bound holds for positive advantages, too"""
    rounded: Rounding = exact
    """follows the operations on log-probs"""

    @property
    def ratio(self) -> Floats:
        """New policy to old, of each token."""
        apart = self.rounded(self.log_probs - self.old)
        if self.of_sequences is not None:
            counts = np.maximum(self.of_sequences.sum(axis=1), 1) if self.by_length else 1.0
            mean = (apart * self.of_sequences).sum(axis=1) / counts
            apart = np.broadcast_to(np.minimum(mean, _MOST_OF_SEQUENCES)[:, None], apart.shape)
        return self.rounded(np.exp(np.clip(apart, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)))

    def computed(self) -> Floats:
        """Of each token."""
        ratio = self.ratio
        low, high = (np.inf if bound is None else bound for bound in (self.low, self.high))
        clipped = self.rounded(np.clip(ratio, 1 - low, 1 + high))
        loss = -self.advantages * clipped
        if not self.only_clipped:
            loss = (np.maximum if self.larger else np.minimum)(-self.advantages * ratio, loss)
        if self.dual is not None:
            bounded = np.minimum(-self.advantages * self.dual, loss)
            loss = np.where((self.advantages < 0) | self.dual_of_all, bounded, loss)
        return loss if self.weights is None else loss * self.weights


Choice = Callable[[Floats, Floats], Floats]


def value_loss(
    predictions: Floats,
    values: Floats,
    returns: Floats,
    clip: float | None,
    rounded: Rounding = exact,
    chosen: Choice = np.maximum,
) -> Floats:
    """Of each token: the larger of both squared errors, clipped around the old value; halved."""
    loss = (predictions - returns) ** 2
    if clip is not None:
        clipped = np.clip(predictions, rounded(values - clip), rounded(values + clip))
        loss = chosen(loss, (clipped - returns) ** 2)
    return np.asarray(0.5 * loss)
