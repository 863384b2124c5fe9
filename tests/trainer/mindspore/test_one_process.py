"""One process on MindSpore against one on PyTorch: the same file, the same weights, the same training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.trainer import layouts
from tests.trainer.layouts import GPT2, MOE, configuration
from tests.trainer.mindspore.runs import session
from trueup.errors import ConfigError
from trueup_gpt.config import config_from
from trueup_gpt.mindspore.limits import check_supported
from trueup_gpt.result import GradientNotFinite

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]

CASES: dict[str, dict[str, Any]] = {
    "rope, RMSNorm, SwiGLU, grouped queries": {},
    "learned positions, LayerNorm, GELU": {"model": GPT2},
    "tied embedding": {"model": {"untie_embeddings_and_output_weights": False}},
    "experts with losses": {"moe": MOE},
    "experts with a capacity": {
        "moe": MOE | {"moe_expert_capacity_factor": 0.8, "moe_token_drop_policy": "position"}
    },
    "part of a head turned, interleaved": {
        "model": {"rotary_config": {"rotary_percent": 0.5, "rotary_interleaved": True}}
    },
    "scaled layers, residual after the norm": {
        "model": {
            "apply_query_key_layer_scaling": True,
            "apply_residual_connection_post_norm": True,
            "hidden_act": "fast_gelu",
        }
    },
    "tokens first": {"dataset": {"data_layout": "SBH"}},
    "recomputed layers": {"parallel": {"recompute": True}},
    "tokens count alike": {
        "training": {"calculate_per_token_loss": True},
        "dataset": {"eod_mask_loss": True, "eos_token_id": 32},
    },
    "clipped by value": {
        "training": {"grad_clip_kwargs": {"grad_clip_type": "GradClipByValue", "clip_value": 0.01}}
    },
    "a scaled loss": {"training": {"loss_scale_value": 1024.0, "loss_scale_window": 1}},
    "Adam": {"optimizer": {"optimizer_type": "Adam"}},
    "SGD": {"optimizer": {"optimizer_type": "SGD", "momentum": 0.9, "nesterov": True}},
    "Came": {"optimizer": {"optimizer_type": "Came", "betas": [0.9, 0.999, 0.9999], "eps": [1e-30, 1e-16]}},
}


def _pair(plain: dict[str, Any]) -> tuple[Any, Any]:
    """The run on MindSpore, and model and step on PyTorch."""
    return session(plain), layouts.start(plain)


@pytest.mark.parametrize("name", CASES)
def test_the_same_mathematics(name: str) -> None:
    here, (config, mesh, parallel, step) = _pair(configuration("float64", **CASES[name]))
    for fqn, parameter in parallel.parameters.items():
        held = here.parallel.parameters[fqn].asnumpy()
        assert held.tobytes() == parameter.detach().numpy().tobytes(), fqn
    for number in range(3):
        batches = here.data.read(layouts.portion(config, mesh, number))
        found, expected = here.step(batches), step(batches)
        assert found.loss == pytest.approx(expected.loss, abs=1e-12)
        assert (found.num_tokens, found.loss_scale) == (expected.num_tokens, expected.loss_scale)
        for fqn, norm in expected.local_norms.items():
            assert found.local_norms[fqn] == pytest.approx(norm, abs=1e-11), fqn
    for fqn, parameter in parallel.parameters.items():
        difference = np.abs(here.parallel.parameters[fqn].asnumpy() - parameter.detach().numpy()).max()
        assert difference < 1e-10, fqn


def test_float32_agrees_to_rounding() -> None:
    here, (config, mesh, _, step) = _pair(configuration("float32"))
    for number in range(3):
        batches = here.data.read(layouts.portion(config, mesh, number))
        assert here.step(batches).loss == pytest.approx(step(batches).loss, abs=1e-5)


def test_half_precision_keeps_float32_copies() -> None:
    plain = configuration(
        "float16",
        optimizer={"eps": 1e-5},
        training={"loss_scale_value": 4096.0},
        model={"softmax_compute_dtype": "float32"},
    )
    here, (config, mesh, _, step) = _pair(plain)
    kept = {str(piece.parameter.dtype) for piece in here.parallel.engine.pieces}
    assert kept == {"Float32"}
    for number in range(2):
        batches = here.data.read(layouts.portion(config, mesh, number))
        assert here.step(batches).loss == pytest.approx(step(batches).loss, rel=5e-3)


def test_a_step_that_is_not_finite_is_skipped_and_the_scale_halved() -> None:
    here = session(configuration("float16", training={"loss_scale_value": 2.0**40}, optimizer={"eps": 1e-5}))
    before = {fqn: one.asnumpy().copy() for fqn, one in here.parallel.parameters.items()}
    result = here.step(here.data.read(here.portion(0)))
    assert (result.finite, here.step.scale.value) == (False, 2.0**39)
    assert all(np.array_equal(before[fqn], one.asnumpy()) for fqn, one in here.parallel.parameters.items())


def test_a_gradient_that_is_not_finite_ends_the_run_where_that_is_asked() -> None:
    plain = configuration(training={"check_for_nan_in_grad": True})
    here = session(plain)
    weight = here.parallel.parameters["final_norm.weight"]
    weight.set_data(weight * float("nan"))
    with pytest.raises(GradientNotFinite, match="step 0: gradients of"):
        here.step(here.data.read(here.portion(0)))


def test_validation_is_the_mean_loss_of_the_same_batches() -> None:
    plain = configuration(dataset={"validation_share": 0.2}, training={"eval_iters": 2})
    here = session(plain)
    losses = here.evaluate()
    assert losses == here.evaluate()
    assert all(stage.training for stage in here.parallel.stages)
    assert losses == pytest.approx(np.log(257), abs=0.5)


@pytest.mark.parametrize(
    ("sections", "key", "instead"),
    [
        ({"parallel": {"zero_level": "z3"}}, "z3", "z1"),
        ({"parallel": {"pipeline_model_parallel_size": 2, "pipeline_schedule": "zbv"}}, "zbv", "1f1b"),
        ({"model": {"use_flash_attention": True}}, "use_flash_attention", "leave it out on a CPU"),
        ({"model": {"compute_dtype": "bfloat16"}}, "compute_dtype", "float16"),
        (
            {"model": {"hidden_dropout": 0.1}, "parallel": {"tensor_model_parallel_size": 2}},
            "dropout",
            "set hidden_dropout",
        ),
    ],
)
def test_what_needs_torch_is_refused_and_says_what_would_do(
    sections: dict[str, Any], key: str, instead: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_supported(config_from(configuration("float32", **sections)), "cpu")
    assert key in str(error.value)
    assert instead in str(error.value)
