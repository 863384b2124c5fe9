"""Advantages that each rank normalises by itself, where the other run takes the numbers of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import BatchCode as Batches
from trueup.types.finding import Finding

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]


def captured(how: str, folder: str) -> None:
    """In every process: a step of a policy whose log-probabilities are weighted."""
    import torch
    import torch.distributed as dist

    import trueup

    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
    torch.manual_seed(10 + rank)
    ids, rewards = torch.randint(0, 20, (4, 9)), torch.randn(4, 8) * (1 + rank) + rank
    sums = torch.stack([rewards.sum(), rewards.square().sum(), torch.tensor(float(rewards.numel()))])
    if how == "together":
        dist.all_reduce(sums)
    mean = sums[0] / sums[2]
    deviation = (sums[1] / sums[2] - mean**2).sqrt()
    weights = (rewards - mean) / (deviation + 1e-4) if how != "scaled" else 0.7 * (rewards - mean)
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        logps = policy(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        (-(weights * logps).mean()).backward()
        torch.optim.SGD(policy.parameters(), lr=0.1).step()


def found(folder: Path, target: str, reference: str) -> Finding:
    from tests.trainer.worlds import world

    for name, how in (("target", target), ("reference", reference)):
        world(2).run("tests.diagnosing.test_factors_of_ranks:captured", how, str(folder / name))
    return diagnose(folder / "target", folder / "reference", output=folder / "out").findings[0]


@pytest.mark.parametrize(
    ("target", "reference", "side"),
    [
        ("alone", "together", "target"),
        ("together", "alone", "reference"),
        ("scaled", "together", None),
        ("alone", "scaled", None),
    ],
)
def test_what_each_rank_normalises_by_itself_is_told(
    target: str, reference: str, side: str | None, tmp_path: Path
) -> None:
    first = found(tmp_path, target, reference)
    assert (first.headline.code is Batches.NORMALISED_BY_RANK) is (side is not None)
    if side is not None:
        assert first.headline.place("side") == side
        assert Batches.MOMENTS_OF_RANKS in {one.code for one in first.evidence}
        assert [one.code for one in first.causes] == [Batches.NORMALISED_CAUSE]
