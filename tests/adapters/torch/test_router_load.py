"""The load of a router, from what routers of several projects return."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trueup.adapters.measures import Wanted
from trueup.adapters.torch.measures import Measures, load_of

pytestmark = pytest.mark.torch

CHOSEN = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 1]])
LOAD = [2.0, 1.5, 0.5, 0.0]
"""tokens of experts 0 to 3 over their mean, 2"""


class Router(nn.Module):
    """Of four experts, two for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = 4, 2
        self.weight = nn.Parameter(torch.zeros(4, 8))


def scores() -> torch.Tensor:
    return torch.zeros(4, 4).scatter(1, CHOSEN, 1.0)


def test_chosen_experts_a_map_and_scores_say_the_same() -> None:
    router, weights = Router(), torch.rand(4, 2)
    for outputs in ([weights, CHOSEN], [scores(), scores().bool()], [scores()]):
        load = load_of(router, outputs)
        assert load is not None
        assert load.tolist() == LOAD


def test_the_number_of_experts_may_be_that_of_the_weight() -> None:
    router = Router()
    del router.num_experts
    load = load_of(router, [CHOSEN])
    assert load is not None
    assert load.tolist() == LOAD


def test_outputs_that_say_nothing_give_nothing() -> None:
    assert load_of(Router(), []) is None
    assert load_of(Router(), [torch.rand(4, 9)]) is None


def test_a_gate_of_a_feed_forward_block_is_no_router() -> None:
    def is_router(name: str, module: nn.Module) -> bool:
        return Measures(None, Wanted())._is_router(name, module)  # type: ignore[arg-type]

    assert is_router("layers.0.mlp.router", Router())
    assert is_router("layers.0.mlp.gate", nn.Linear(64, 8))
    assert not is_router("layers.0.mlp.gate", nn.Linear(64, 256))
    assert not is_router("layers.0.mlp.up", nn.Linear(64, 8))
