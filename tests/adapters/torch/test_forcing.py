"""A run replayed with its own values is that run: not one site differs, whatever the model does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.torch.loops import LOOPS, Result
from tests.adapters.torch.odd import odd
from tests.adapters.torch.test_bit_identity import assert_same_bits
from tests.diagnosing.replaying import replay, sites, states

pytestmark = pytest.mark.torch

ALL = {**LOOPS, "odd": odd}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("loop", sorted(ALL))
def test_replaying_a_run_on_itself(loop: str, level: str, tmp_path: Path) -> None:
    expected: Result = ALL[loop]()
    found: list[Result] = []
    made, _, plan = replay(
        tmp_path, ALL[loop], lambda: found.append(ALL[loop]()), level=level, steps="0-1"
    )
    assert list(made.steps()) == [0, 1]
    for step in (0, 1):
        assert set(states(made, step)) == {"equal"}, sites(made, step).filter(state="replaced")
        phases = set(made.forced(step, 0)["phase"])
        assert phases == {"forward", "backward", "param", "param_grad", "loss"}
        planned = next(p for p in plan.steps if p.step == step)
        assert made.forced(step, 0).height >= planned.num_forced
    assert_same_bits(found[-1], expected)
