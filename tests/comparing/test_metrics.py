"""What statistics of another tool can prove."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.comparing.metrics import sum_roundoff

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
