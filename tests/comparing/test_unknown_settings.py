"""A setting of an optimizer that no rule knows is said where the update diverges, and decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trueup import Tracer  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402


class Grown(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """With a setting of its own, which multiplies the update, and one that does nothing."""

    def __init__(self, params: Any, lr: float, growth: float, label: str) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group |= {"growth": growth, "label": label}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.add_(weight.grad, alpha=-group["lr"] * group["growth"])


def grown(path: Path, growth: float, label: str, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = Grown(model.parameters(), 0.1, growth, label)
    with Tracer(path, level="L0", steps="0"):
        (factor * model(torch.ones(3, 4)).square().mean()).backward()
        optimizer.step()
    return path


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((2.0, "a"), VerdictCode.UPDATE_SETTING_DIFFERS),
        ((1.0, "b"), None),
        ((1.0, "b", 1.5), VerdictCode.FIRST_DIVERGENCE),
    ],
    ids=["enters the update", "does nothing", "another gradient"],
)
def test_a_setting_that_no_rule_knows(target: Any, code: VerdictCode | None, tmp_path: Path) -> None:
    """It decides nothing by itself; where the update diverges it is said."""
    verdict = compare(grown(tmp_path / "t", *target), grown(tmp_path / "r", 1.0, "a")).verdict
    assert verdict.exit_code == (0 if code is None else 1)
    assert code is None or verdict.headline.code is code
    if code is VerdictCode.UPDATE_SETTING_DIFFERS:
        assert verdict.headline.place("name") == "growth"
