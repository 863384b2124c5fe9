"""Seeds and determinism, each in a process of its own: they are global."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.programs import python
from trueup.capture import seeds
from trueup.errors import ConfigError

pytestmark = pytest.mark.torch

DRAW = """
import os, random, numpy, torch, trueup
def draw():
    dropped = torch.nn.functional.dropout(torch.ones(64)).sum().item()
    return (random.random(), numpy.random.rand(), torch.rand(1).item(), dropped)
"""


def lines(body: str, tmp_path: Path, *flags: str) -> list[str]:
    result = python(*flags, "-c", DRAW + body, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_the_same_seed_draws_the_same_everywhere(tmp_path: Path) -> None:
    body = """
trueup.seed_all(); first = draw()
trueup.seed_all(1234); print(draw() == first, os.environ["PYTHONHASHSEED"], torch.initial_seed())
trueup.seed_all(1235); other = draw()
print([a == b for a, b in zip(first[:3], other)])
"""
    assert lines(body, tmp_path) == ["True 1234 1234", "[False, False, False]"]


def test_mode_asks_for_deterministic_algorithms_and_takes_it_back(tmp_path: Path) -> None:
    body = """
def state():
    c = torch.backends.cudnn
    return torch.are_deterministic_algorithms_enabled(), c.deterministic, c.benchmark, c.enabled
torch.backends.cudnn.benchmark = True
trueup.seed_all(1); print(*state(), "CUBLAS_WORKSPACE_CONFIG" in os.environ)
trueup.seed_all(1, mode=True); print(*state(), os.environ["CUBLAS_WORKSPACE_CONFIG"])
trueup.seed_all(1, False); print(*state())
"""
    assert lines(body, tmp_path) == [
        "False True False True False",
        "True True False False :4096:8",
        "False True False True",
    ]


def test_dropout_is_removed_from_functions_and_modules(tmp_path: Path) -> None:
    body = """
ones, nn = torch.ones(2, 9, 9), torch.nn
def kept():
    return [torch.equal(f(ones), ones) for f in (nn.functional.dropout, nn.Dropout(0.5), nn.Dropout1d(0.9))]
print(kept())
trueup.seed_all(rm_dropout=True); trueup.seed_all(rm_dropout=True)
print(kept())
try: torch.nn.functional.dropout(torch.ones(1), 1.5)
except ValueError as error: print(error)
"""
    said = lines(body, tmp_path)
    assert said[0] == "[False, False, False]"
    assert said[1] == "[True, True, True]"
    assert "between 0 and 1" in said[2]


def test_what_has_no_effect_warns(tmp_path: Path) -> None:
    result = python("-c", "import trueup; trueup.seed_all(is_enhanced=True)", cwd=tmp_path)
    assert "is_enhanced has no effect" in result.stderr


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "7", True, None])
def test_a_wrong_seed_is_named(seed: object) -> None:
    with pytest.raises(ConfigError, match="an integer from 0 to 4294967295"):
        seeds.seed_all(seed)  # type: ignore[arg-type]


def test_a_wrong_switch_is_named() -> None:
    with pytest.raises(ConfigError, match="mode: expected True or False"):
        seeds.seed_all(1, mode=1)  # type: ignore[arg-type]


def test_apply_leaves_alone_what_was_not_asked_for(tmp_path: Path) -> None:
    body = """
from trueup.capture import seeds
torch.manual_seed(5); before = torch.get_rng_state().sum().item(), random.getstate()
seeds.apply(None, None, framework="torch")
print((torch.get_rng_state().sum().item(), random.getstate()) == before)
seeds.apply(None, True, framework="torch")
print((torch.get_rng_state().sum().item(), random.getstate()) == before)
print(torch.are_deterministic_algorithms_enabled())
seeds.apply(3, None, framework="torch")
print(torch.initial_seed(), torch.are_deterministic_algorithms_enabled())
"""
    assert lines(body, tmp_path) == ["True", "True", "True", "3 True"]
