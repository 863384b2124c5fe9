"""Initial weights: the same bits on either framework, and the shapes that need no framework."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.layouts import GPT2, MOE, configuration
from trueup_gpt.config import config_from
from trueup_gpt.initial import initial_value
from trueup_gpt.normal import _fused, draw_normal
from trueup_gpt.parallel.stages import parameter_shapes, stage_parameters
from trueup_gpt.torch.parallel.apply import initial_tensor
from trueup_gpt.torch.parallel.stages import model_on_meta

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(3,), (15,), (16,), (17,), (7, 9), (31, 33), (257, 129), (1000, 1024)])
def test_numbers_are_those_of_torch_bit_by_bit(shape: tuple[int, ...]) -> None:
    for seed in (0, 7, 2**31 + 5, 2**62 + 12345):
        expected = torch.empty(shape).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed))
        assert draw_normal(shape, 0.02, seed).tobytes() == expected.numpy().tobytes()


def test_another_seed_draws_other_numbers() -> None:
    assert not np.array_equal(draw_normal((4, 16), 1.0, 1), draw_normal((4, 16), 1.0, 2))


def test_a_sum_is_rounded_once() -> None:
    """1 + 2^-23 + 2^-24 - 2^-70 is just below half way between two float32; in float64 it is half way."""
    small, near = np.array([(1.0 - 2.0**-23) * 2.0**-24], np.float32), np.array([1.0 + 2.0**-23], np.float32)
    assert (small.astype(np.float64) * near + near).astype(np.float32)[0] == 1.0 + 2.0**-22
    assert _fused(small, near, near)[0] == 1.0 + 2.0**-23


@pytest.mark.parametrize(
    "fqn", ["word_embeddings.weight", "layers.0.mlp.experts.up", "layers.1.mlp.down.bias"]
)
def test_a_parameter_is_the_same_without_torch(fqn: str) -> None:
    config = config_from(configuration("float32", model={"bias_init": "normal"}, moe=MOE)).model
    shape = (4, 48, 32) if "experts" in fqn else (32,) if fqn.endswith("bias") else (257, 32)
    value = initial_value(fqn, shape, config, 7, draw_normal)
    assert value.tobytes() == initial_tensor(fqn, shape, config, 7).numpy().tobytes()


@pytest.mark.parametrize(
    ("model", "moe", "first", "last"),
    [
        (model, moe, *ends)
        for model, moe in itertools.product(
            (
                {},
                GPT2,
                {"untie_embeddings_and_output_weights": False, "qkv_has_bias": False},
                {"use_final_norm": False},
            ),
            ({}, MOE | {"num_experts_from_layer": 1}),
        )
        for ends in ((True, True), (True, False), (False, True))
    ],
)
def test_shapes_are_those_of_the_model(
    model: dict[str, Any], moe: dict[str, Any], first: bool, last: bool
) -> None:
    config = config_from(configuration(model=model, moe=moe))
    made = model_on_meta(config, [0, 1], first=first, last=last)
    expected = [(fqn, tuple(parameter.shape)) for fqn, parameter in made.named_parameters()]
    assert list(stage_parameters(config, [0, 1], first=first, last=last)) == expected
    if first and last:
        assert list(parameter_shapes(config).items()) == expected
