"""Sampled tokens with log-probs of two softmaxes, as two engines give them."""

from __future__ import annotations

import numpy as np


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def sampled(
    *,
    rows=32,
    length=40,
    vocabulary=50,
    noise=0.01,
    seed=0,
    temperature=1.0,
    training_temperature=1.0,
    keep=None,
):
    """Arrays of a token file: tokens drawn from the rollout's softmax, both sides' float32 log-probs of them.

    Args:
        noise: standard deviation of what each side adds to the logits.
        temperature: of the rollout, for sampling and in its log-probs.
        training_temperature: in the trainer's.
        keep: the rollout samples among so many most likely tokens, and renormalises (top-k).
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (rows, length, vocabulary))
    served = (logits + rng.normal(0, noise, logits.shape)) / temperature
    if keep is not None:
        served = np.where(served < np.sort(served, axis=-1)[..., -keep][..., None], -np.inf, served)
    rollout = log_softmax(served)
    training = log_softmax((logits + rng.normal(0, noise, logits.shape)) / training_temperature)
    tokens = (rollout + rng.gumbel(size=rollout.shape)).argmax(-1)

    def pick(log_probs):
        return np.take_along_axis(log_probs, tokens[..., None], -1)[..., 0].astype(np.float32)

    lengths = rng.integers(length // 2, length + 1, rows)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {
        "rollout_log_probs": pick(rollout),
        "training_log_probs": pick(training),
        "mask": mask,
        "tokens": tokens,
    }


def write(path, arrays, **more):
    """A token file."""
    np.savez(path, **arrays, **more)
    return path
