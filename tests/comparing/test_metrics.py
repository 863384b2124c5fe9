"""What statistics, and those of another tool, can prove."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueup.comparing.metrics import sum_roundoff
from trueup.comparing.thresholds import STATISTICS_ROUNDING
from trueup.numerics.statistics import statistics

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("numel", [10, 1_000, 30_000, 1_000_000, 20_000_000])
def test_a_norm_summed_in_float32_is_off_by_no_more(numel: int) -> None:
    for seed, shift in ((0, 0.0), (1, 1.0)):
        torch.manual_seed(seed)
        x = 0.3 * torch.randn(numel) + shift
        exact = float(np.linalg.norm(x.double().numpy()))
        allowed = float(sum_roundoff(np.array([numel], float))[0])
        assert abs(float(torch.norm(x)) - exact) <= allowed * exact
        assert abs(float(x.mean()) - float(x.double().mean())) * numel**0.5 <= allowed * exact


@pytest.mark.parametrize("numel", [64, 1_000, 16_384, 1_000_000])
@pytest.mark.parametrize("power", [0, 1, 2])
def test_statistics_of_float64_are_off_by_a_quarter_of_what_is_allowed(numel: int, power: int) -> None:
    x = np.random.default_rng(numel).standard_normal(numel) ** power * 0.3
    norm, found = math.sqrt(math.fsum((x * x).tolist())), statistics(x)
    allowed = STATISTICS_ROUNDING * norm / 4
    assert abs(float(found["l2_norm"]) - norm) <= allowed
    assert abs(float(found["mean"]) - math.fsum(x.tolist()) / numel) * numel**0.5 <= allowed
