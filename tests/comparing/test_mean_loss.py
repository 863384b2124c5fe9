"""Losses made from the same logits: what rounding makes stays quiet, a factor of all of them does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trueup.comparing.losses.mean import MicrobatchLosses
from trueup.numerics.dtypes import unit_roundoffs

BFLOAT16 = float(unit_roundoffs(["bfloat16"])[0])
FLOAT32 = float(unit_roundoffs(["float32"])[0])


def losses(
    *, tokens: int, microbatches: int, size: float, factor: float, seed: int, dtype: torch.dtype
) -> MicrobatchLosses:
    """Cross-entropy of bfloat16 logits: the reference's in float32, the target's log-probs in bfloat16."""
    torch.manual_seed(seed)
    target, reference, largest = [], [], []
    for _ in range(microbatches):
        logits = (size * torch.randn(tokens, 64)).bfloat16()
        labels = torch.where(torch.rand(tokens) < 0.7, logits.argmax(-1), torch.randint(64, (tokens,)))
        exact = torch.nn.functional.cross_entropy(logits.float(), labels)
        coarse = logits.logsumexp(-1) - logits.gather(1, labels[:, None])[:, 0]  # both rounded to bfloat16
        target.append(float((coarse.float().mean() * factor).to(dtype)))
        reference.append(float(exact.to(dtype)))
        largest.append(float(logits.abs().max()))
    return MicrobatchLosses(
        target=np.array(target),
        reference=np.array(reference),
        tokens=np.full(microbatches, float(tokens)),
        largest=np.array(largest),
        coarsest=BFLOAT16,
        own=BFLOAT16 if dtype is torch.bfloat16 else FLOAT32,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(("tokens", "microbatches"), [(8, 1), (37, 2), (512, 4)])
def test_log_probs_in_a_coarse_dtype_are_rounding(
    tokens: int, microbatches: int, size: float, dtype: torch.dtype
) -> None:
    for seed in range(20):
        one = losses(tokens=tokens, microbatches=microbatches, size=size, factor=1.0, seed=seed, dtype=dtype)
        assert one.error < one.tolerance, seed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_percent_of_a_mean_of_many_tokens_is_not(dtype: torch.dtype) -> None:
    for seed in range(20):
        one = losses(tokens=512, microbatches=4, size=0.5, factor=1.02, seed=seed, dtype=dtype)
        assert one.error > one.tolerance, seed


def test_more_microbatches_tell_what_one_does_not() -> None:
    def of(number: int) -> MicrobatchLosses:
        every = np.full(number, 1.0)
        return MicrobatchLosses(
            target=3.5 * every,
            reference=3.46875 * every,
            tokens=37 * every,
            largest=4.0 * every,
            coarsest=BFLOAT16,
            own=BFLOAT16,
        )

    assert of(1).error < of(1).tolerance
    assert of(2).error > of(2).tolerance


def test_a_small_loss_of_large_logits_is_known_less_well() -> None:
    def of(largest: float) -> MicrobatchLosses:
        held = {"tokens": np.array([1024.0]), "largest": np.array([largest])}
        return MicrobatchLosses(
            target=np.array([0.108]), reference=np.array([0.1]), coarsest=BFLOAT16, own=FLOAT32, **held
        )

    assert of(0.2).error > of(0.2).tolerance
    assert of(20.0).error < of(20.0).tolerance
