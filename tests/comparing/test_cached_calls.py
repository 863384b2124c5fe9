"""A model that generates with a cache makes the same of the last tokens as without one; a cache that is wrong
does not."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.cached_calls import LAST_TOKENS  # noqa: E402
from trueup.comparing.result import Comparison  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402

Cache = list[Tensor]
PROMPT, LENGTH = 3, 4


class Decoder(nn.Module):
    """One causal attention over ids and their positions.

    ``flat``: a part of it sees batch and tokens as one dim. ``keeps``: all in the cache, not the last call's
    alone. ``counts``: positions go on behind those in the cache.
    """

    def __init__(self, *, flat: bool = False, keeps: bool = True, counts: bool = True) -> None:
        super().__init__()
        self.ids, self.places, self.head = nn.Embedding(20, 8), nn.Embedding(12, 8), nn.Linear(8, 20)
        self.keys, self.flat, self.keeps, self.counts = nn.Linear(8, 8), flat, keeps, counts

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits of ``ids``, which follow those in the cache."""
        before = int(cache[1]) if cache else 0
        first = before if self.counts else 0
        x = self.ids(ids) + self.places(torch.arange(first, first + ids.shape[1]))
        keys = self.keys(x.flatten(0, 1)).view_as(x) if self.flat else self.keys(x)
        every = torch.cat([cache[0], keys], 1) if cache else keys
        if cache is not None:
            cache[:] = [every if self.keeps else keys, torch.tensor(before + ids.shape[1])]
        hidden = torch.ones(ids.shape[1], every.shape[1]).triu(every.shape[1] - ids.shape[1] + 1).bool()
        scores = (4 * x @ every.mT).masked_fill(hidden, -torch.inf)
        return self.head(x + scores.softmax(-1) @ every)  # type: ignore[no-any-return]


@torch.no_grad()
def generated(model: Decoder, ids: Tensor, *, cached: bool) -> Tensor:
    """The ids, and those that the model gives behind them."""
    model.eval()
    cache: Cache = []
    for at in range(LENGTH):
        new = ids[:, -1:] if cached and at else ids
        chosen = model(new, cache if cached else None)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, chosen], 1)
    model.train()
    return ids


def trained(
    folder: Path, *, cached: bool = False, values: bool = True, other: bool = False, **how: bool
) -> Path:
    """A step on a prompt, and on what the model generates; ``other``: from a shorter prompt."""
    torch.manual_seed(0)
    model = Decoder(**how)
    ids = torch.randint(0, 20, (3, PROMPT))
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=VALUES if values else frozenset()):
        loss = model(ids).square().mean()
        more = generated(model, ids[:, 1:] if other else ids, cached=cached)
        logits = model(more[:, -LENGTH:])
        loss = loss + nn.functional.cross_entropy(logits.flatten(0, 1), more[:, -LENGTH:].flatten())
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return folder


def both_ways(run: Path, other: Path) -> list[Comparison]:
    return [compare(run, other), compare(other, run)]


@pytest.mark.parametrize("flat", [False, True])
def test_with_a_cache_and_without_is_the_same(flat: bool, tmp_path: Path) -> None:
    sides = [trained(tmp_path / str(cached), cached=cached, flat=flat) for cached in (True, False)]
    for found in both_ways(sides[0], sides[1]):
        assert found.exit_code == 0
        layouts = found.frame()["layout"].drop_nulls().unique().to_list()
        assert layouts
        assert all(one.endswith(LAST_TOKENS) for one in layouts)


@pytest.mark.parametrize(("fault", "at"), [("counts", "places"), ("keeps", "head")])
def test_a_cache_that_is_wrong_is_no_other_data(fault: str, at: str, tmp_path: Path) -> None:
    """Twins: positions that begin anew behind the cache; a cache that holds the last call's tokens alone."""
    sides = [trained(tmp_path / str(cached), cached=cached, **{fault: False}) for cached in (True, False)]
    for found in both_ways(sides[0], sides[1]):
        assert found.exit_code == 1
        assert str(found.verdict.where).startswith(f"{at} (eval)")


def test_ids_that_no_call_before_was_given_are_others(tmp_path: Path) -> None:
    sides = [trained(tmp_path / str(other), other=other) for other in (True, False)]
    for found in both_ways(sides[0], sides[1]):
        assert found.exit_code == 1
        assert not any(
            str(one).endswith(LAST_TOKENS) for one in found.frame()["layout"].drop_nulls().unique()
        )


def test_without_values_it_is_open(tmp_path: Path) -> None:
    sides = [trained(tmp_path / str(cached), cached=cached, values=False) for cached in (True, False)]
    assert [found.exit_code for found in both_ways(sides[0], sides[1])] == [2, 2]
