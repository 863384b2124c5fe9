"""An optimizer over one flat copy of all weights, for which a program adds up gradients as it likes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.numerics.flat_parts import covers
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch


def trained(how: str = "each", *, part: bool = False) -> None:
    """Gradients are taken away after ``each`` microbatch, at the ``end``, or but the ``last`` are dropped.
    ``part``: the flat copy is of the first weights alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    weights = list(model.parameters())[: 2 if part else None]
    flat = torch.cat([weight.detach().flatten() for weight in weights])
    master = torch.nn.functional.pad(flat, (0, -len(flat) % 16)).requires_grad_()
    optimizer = torch.optim.SGD([master], lr=1e-2)
    for _ in range(3):
        master.grad = torch.zeros_like(master)
        for microbatch in range(2):
            model(torch.randn(5, 6)).square().mean().backward()
            if how != "end" or microbatch == 1:
                gradient = torch.cat([weight.grad.flatten() for weight in weights])  # type: ignore[union-attr]
                if how != "last" or microbatch == 1:
                    master.grad[: len(flat)] += gradient
                for weight in model.parameters():
                    weight.grad = None
        optimizer.step()
        start = 0
        for weight in weights:
            weight.data.copy_(master.detach()[start : start + weight.numel()].view_as(weight))
            start += weight.numel()


def test_gradients_are_those_that_the_flat_copy_is_given(tmp_path: Path) -> None:
    for way in ("each", "end", "last"):
        captured = capture(tmp_path / way, lambda way=way: trained(way), level="L0", steps="0-1")  # type: ignore[misc]
        assert captured.trace.steps() == {0: [0], 1: [0]}
    found = diagnose(tmp_path / "end", tmp_path / "each", output=tmp_path / "diagnosis")
    assert (found.outcome, found.findings) == (Outcome.AGREE, ())
    assert compare(tmp_path / "last", tmp_path / "each").verdict.outcome is Outcome.DIFFER


def test_a_copy_of_some_weights_says_nothing_of_the_others(tmp_path: Path) -> None:
    """Steps then end where gradients are taken away, as ever."""
    capture(tmp_path / "part", lambda: trained(part=True), steps="0-1")
    rows = (tmp_path / "part" / "scalars" / "rank_00000.jsonl").read_text(encoding="utf-8")
    assert '"microbatches": 2' not in rows


def test_parts_of_a_flat_copy() -> None:
    """What ``torch.chunk`` gives any process holds it; a part of fewer weights does not."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        num, ways = int(rng.integers(8, 5000)), int(rng.integers(1, 9))
        for part in torch.arange(num).chunk(ways):
            at_all = len(torch.arange(num).chunk(ways)) == ways
            assert covers([len(part)], num, ways) or not at_all
        assert not covers([num // (2 * ways)], num, ways) or num < 4 * ways * ways
    assert not covers([], 10, 2)
