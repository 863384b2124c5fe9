"""What is measured of the difference between rollout and training log-probs; verl's metrics by verl's
formulas.

Per token, r = log p_training - log p_rollout of a token that the rollout sampled, so that exp(r) is its
importance ratio and E[exp(r)] = 1 where the rollout's log-probs are those of its sampling distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.mismatch.tokens import Tokens
from trueup.types.arrays import Bools, Floats

VERL_BOUND = 2.0
"""verl's default ``rollout_is_threshold``: ratios are truncated above it, and counted below its reciprocal"""
_SAFE = 20.0
"""verl clamps log-ratios to this before exp"""
_TINY = 1e-8
"""verl adds it to divisors"""
QUANTILES = (50, 90, 99, 99.9)
"""per cent"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMeasures:
    """Of some tokens; nan where there are too few. KL is that of rollout to training."""

    num_tokens: int
    num_sequences: int
    num_equal: int
    num_not_finite: int
    max_abs_diff: float
    """of log-probs, as all below without another word"""
    mean_abs_diff: float
    rms_diff: float
    quantiles: tuple[float, ...]
    """of |r|, at ``QUANTILES``"""
    max_prob_diff: float
    mean_prob_diff: float
    pearson: float
    """of probabilities"""
    k1: float
    """mean of -r"""
    k3: float
    """mean of exp(r) - r - 1"""
    chi2_token: float
    """mean of exp(2 r) - 1"""
    chi2_sequence: float
    mean_ratio: float
    max_ratio: float
    min_ratio: float
    ess_token: float
    """effective sample size by importance ratios, as a share of the tokens"""
    mean_ratio_sequence: float
    max_ratio_sequence: float
    min_ratio_sequence: float
    ess_sequence: float
    share_high: float
    """tokens with a ratio above ``VERL_BOUND``"""
    share_low: float
    share_high_sequence: float
    share_low_sequence: float
    mult_prob_error: float
    """mean of exp(|r|): NeMo-RL's token_mult_prob_error"""


def measure(tokens: Tokens) -> TokenMeasures:
    """Everything that is measured of these tokens; log-probs that are not finite are counted and left out."""
    finite = np.isfinite(tokens.log_ratio)
    kept = tokens if finite.all() else tokens.where(finite)
    r, sums = kept.log_ratio, kept.by_sequence(kept.log_ratio)
    size = np.abs(r)
    ratio, whole = np.exp(_clamped(r)), np.exp(_clamped(sums))
    training, rollout = np.exp(kept.training), np.exp(kept.rollout)
    return TokenMeasures(
        num_tokens=len(tokens.rollout),
        num_sequences=len(tokens.starts),
        num_equal=int(tokens.equal.sum()),
        num_not_finite=int((~finite).sum()),
        max_abs_diff=_max(size),
        mean_abs_diff=_mean(size),
        rms_diff=float(np.sqrt(_mean(r * r))),
        quantiles=tuple(float(np.quantile(size, q / 100)) if len(size) else np.nan for q in QUANTILES),
        max_prob_diff=_max(np.abs(training - rollout)),
        mean_prob_diff=_mean(np.abs(training - rollout)),
        pearson=correlation(training, rollout),
        k1=_mean(-r),
        k3=_mean(np.exp(r) - r - 1),
        chi2_token=_mean(ratio**2) - 1,
        chi2_sequence=_mean(whole**2) - 1,
        mean_ratio=_mean(ratio),
        max_ratio=_max(ratio),
        min_ratio=-_max(-ratio),
        ess_token=_effective(ratio),
        mean_ratio_sequence=_mean(whole),
        max_ratio_sequence=_max(whole),
        min_ratio_sequence=-_max(-whole),
        ess_sequence=_effective(whole),
        share_high=_mean(ratio > VERL_BOUND),
        share_low=_mean(ratio < 1 / VERL_BOUND),
        share_high_sequence=_mean(whole > VERL_BOUND),
        share_low_sequence=_mean(whole < 1 / VERL_BOUND),
        mult_prob_error=_mean(np.exp(np.minimum(size, _SAFE))),
    )


def verl_metrics(tokens: Tokens) -> dict[str, float]:
    """The metrics that verl logs of one step under ``rollout_corr/`` and ``training/``, in float64.

    As verl 0.9.1 defines them; equal but for the rounding of its float32. Those of ``rollout_is`` are with
    its
    default threshold, once for tokens and once for sequences, which verl logs under one name.
    """
    r, lengths = tokens.log_ratio, tokens.lengths
    rows = len(lengths) + sum(count for _, count in tokens.num_empty)

    def by_row(values: Floats) -> Floats:
        means = tokens.by_sequence(values) / (lengths + _TINY)
        return np.concatenate([means, np.zeros(rows - len(means))])

    training, rollout = by_row(tokens.training), by_row(tokens.rollout)
    gap = rollout - training
    sums = np.concatenate([tokens.by_sequence(r), np.zeros(rows - len(lengths))])
    probs = np.abs(np.exp(tokens.training) - np.exp(tokens.rollout))
    values = {
        "rollout_corr/training_ppl": _mean(np.exp(-training)),
        "rollout_corr/training_log_ppl": _mean(-training),
        "rollout_corr/kl": _mean(-r),
        "rollout_corr/k3_kl": _mean(np.exp(r) - r - 1),
        "rollout_corr/rollout_ppl": _mean(np.exp(-rollout)),
        "rollout_corr/rollout_log_ppl": _mean(-rollout),
        "rollout_corr/log_ppl_diff": _mean(gap),
        "rollout_corr/log_ppl_abs_diff": _mean(np.abs(gap)),
        "rollout_corr/log_ppl_diff_max": _max(gap),
        "rollout_corr/log_ppl_diff_min": -_max(-gap),
        "rollout_corr/ppl_ratio": _mean(np.exp(gap)),
        "rollout_corr/chi2_token": _mean(np.exp(2 * _clamped(r))) - 1,
        "rollout_corr/chi2_seq": _mean(np.exp(2 * _clamped(sums))) - 1,
        "training/rollout_probs_diff_max": _max(probs),
        "training/rollout_probs_diff_mean": _mean(probs),
        "training/rollout_probs_diff_std": float(probs.std(ddof=1)) if len(probs) > 1 else np.nan,
        "training/rollout_actor_probs_pearson_corr": correlation(
            np.exp(tokens.training), np.exp(tokens.rollout)
        ),
    }
    of_token = np.repeat(sums[: len(lengths)], lengths)
    for level, ratios, counted in (("token", r, r), ("sequence", of_token, sums)):
        weights = np.exp(_clamped(ratios))
        applied = np.minimum(weights, VERL_BOUND)
        whole = _importance(applied, counted, truncated_maximum=level == "token")
        whole |= _of_rows(by_row(applied), by_row(weights))
        values |= {f"rollout_corr/rollout_is_{name}@{level}": value for name, value in whole.items()}
    return values


def _importance(applied: Floats, counted: Floats, *, truncated_maximum: bool) -> dict[str, float]:
    """Of truncated weights, one a token; of sequences verl's maximum is that before truncation.

    Args:
        applied: weights of tokens; of sequences the sequence's at each of its tokens.
        counted: log-ratios, one a token or one a sequence.
        truncated_maximum: whether the largest is that of the weights as applied.
    """
    high, mean = np.log(VERL_BOUND), _mean(applied)
    largest = _max(applied) if truncated_maximum else float(np.exp(min(_max(counted), _SAFE)))
    return {
        "mean": mean,
        "max": largest,
        "min": float(np.exp(-_max(-counted))),
        "std": float(np.sqrt(max(0.0, _mean(applied**2) - mean**2))),
        "eff_sample_size": 1 / _mean((applied / (mean + _TINY)) ** 2),
        "ratio_fraction_high": _mean(counted > high),
        "ratio_fraction_low": _mean(counted < -high),
    }


def _of_rows(applied: Floats, raw: Floats) -> dict[str, float]:
    """Of the mean weight of each sequence, those without a token included."""
    return {
        "seq_mean": _mean(applied),
        "seq_std": float(applied.std(ddof=1)) if len(applied) > 1 else 0.0,
        "seq_max": _max(applied),
        "seq_min": -_max(-applied),
        "seq_max_deviation": _max(np.abs(applied - 1)),
        "seq_fraction_high": _mean(raw > VERL_BOUND),
        "seq_fraction_low": _mean(raw < 1 / VERL_BOUND),
    }


def correlation(one: Floats, other: Floats) -> float:
    """Pearson; nan where a side does not vary."""
    if len(one) < 2:
        return np.nan
    a, b = one - one.mean(), other - other.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else np.nan


def _effective(weights: Floats) -> float:
    """(sum w)^2 / sum w^2, as a share."""
    return float(weights.sum() ** 2 / (weights @ weights) / len(weights)) if len(weights) else np.nan


def _clamped(values: Floats) -> Floats:
    return np.clip(values, -_SAFE, _SAFE)


def _mean(values: Floats | Bools) -> float:
    return float(values.mean()) if len(values) else np.nan


def _max(values: Floats) -> float:
    return float(values.max()) if len(values) else np.nan
