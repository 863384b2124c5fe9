"""Faults planted in an unmodified verl, by ``RL_FAULT``: one function of its algorithms is replaced."""

from __future__ import annotations

import os

import numpy as np


def over_batch(algos):
    """Advantages are normalised over the whole batch."""
    inner = algos.compute_grpo_outcome_advantage
    algos.compute_grpo_outcome_advantage = lambda *a, index, **k: inner(
        *a, index=np.zeros(len(index), int), **k
    )


def k1(algos):
    """The KL term is estimated by k1, whatever the configuration says."""
    inner = algos.kl_penalty_forward
    algos.kl_penalty_forward = lambda now, reference, kind: inner(now, reference, "k1")


def sequence_mean(algos):
    """Losses are means over sequences, not over tokens."""
    inner = algos.agg_loss
    algos.agg_loss = lambda *a, loss_agg_mode, **k: inner(*a, loss_agg_mode="seq-mean-token-mean", **k)


def not_clipped(algos):
    """The value loss is not clipped."""
    inner = algos.compute_value_loss

    def compute_value_loss(**given):
        return inner(**{**given, "cliprange_value": 1e9})

    algos.compute_value_loss = compute_value_loss


def lam_one(algos):
    """Lambda of the advantages is 1."""
    inner = algos.compute_gae_advantage_return
    algos.compute_gae_advantage_return = lambda *a, lam, **k: inner(*a, lam=1.0, **k)


def plant(algos) -> None:
    """Put the fault that is asked for in place."""
    name = os.environ.get("RL_FAULT")
    if name:
        globals()[name](algos)
