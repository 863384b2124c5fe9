"""Rounding is not taken for a fault, and a fault smaller than rounding is told by its leaning to one side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diagnosing.replaying import Loop, capture, replay, sites
from trueup.diagnosing.replay import ReplayNoise, origins
from trueup.errors import ConfigError
from trueup.store import Trace

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

DTYPES = [torch.float32, torch.bfloat16]


def loop(dtype: torch.dtype, attention: str, plant: Callable[[Any], Any] = lambda m: None) -> Loop:
    def train() -> None:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation=attention,
            use_cache=False,
        )
        model = transformers.LlamaForCausalLM(config).train().to(dtype)
        plant(model)
        ids = torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(0))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return train


def activation(model: Any) -> None:
    """Less than the rounding of bfloat16."""
    act = model.model.layers[1].mlp.act_fn
    forward = act.forward
    act.forward = lambda x: forward(x) * 1.002


def scale(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 1.01


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference with eager attention, and the replay of another kernel against it."""
    found = tmp_path_factory.mktemp(str(request.param).removeprefix("torch."))
    replay(found, loop(request.param, "eager"), loop(request.param, "sdpa"))
    return found


def dtype_of(folder: Path) -> torch.dtype:
    return torch.bfloat16 if folder.name.startswith("bfloat16") else torch.float32


def test_another_kernel_is_no_origin(folder: Path) -> None:
    made = Trace(folder / "replay")
    assert "replaced" in set(sites(made)["state"])
    assert origins(folder / "replay", folder / "reference") == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("plant", "owner"), [(activation, "model.layers.1.mlp.act_fn"), (scale, "model.layers.0.self_attn")]
)
def test_a_fault_among_rounding(
    folder: Path, plant: Callable[[Any], None], owner: str, attention: str, tmp_path: Path
) -> None:
    (tmp_path / "reference").symlink_to(folder / "reference")
    replay(tmp_path, loop(dtype_of(folder), "eager"), loop(dtype_of(folder), attention, plant))
    noise = ReplayNoise.measured([folder / "replay"], Trace(folder / "reference"))
    for known in (None, noise):
        (found,) = origins(tmp_path / "replay", folder / "reference", noise=known)
        assert found.module == owner
        if plant is activation and dtype_of(folder) is torch.bfloat16:
            assert found.rel_l2 is not None
            assert found.tolerance is not None
            assert found.bias_z is not None
            assert found.rel_l2 < found.tolerance  # only its leaning gives it away
            assert abs(found.bias_z) > 15


def test_noise_of_another_reference_is_refused(folder: Path, tmp_path: Path) -> None:
    other = capture(tmp_path / "other", loop(torch.float32, "eager"), task="tensor")
    with pytest.raises(ConfigError, match="was made against"):
        ReplayNoise.measured([folder / "replay"], other)
