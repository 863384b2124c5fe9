"""Optimizers, schedules, weight-decay groups and the loss scale against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.layouts import configuration, portion, reference, run, start
from trueup_gpt.config import OptimizerConfig, TrainingConfig
from trueup_gpt.data import open_data
from trueup_gpt.optimize import LossScale, Schedules, weight_decay_groups
from trueup_gpt.torch.optimizers import build_optimizer
from trueup_gpt.torch.session import groups_of

pytestmark = pytest.mark.torch


def _rates(num_steps: int, **keys: Any) -> list[float]:
    schedules = Schedules(OptimizerConfig(learning_rate=1.0, **keys), num_steps=num_steps)
    return [schedules.learning_rate(step) for step in range(num_steps + 1)]


def test_the_original_schedule_counts_its_decay_from_the_first_step() -> None:
    kwargs = {"warmup_steps": 2, "decay_steps": 8, "use_cosine": True, "end_learning_rate": 0.2}
    rates = _rates(10, learning_rate_scheduler_kwargs=kwargs)
    assert rates[:2] == [0.0, 0.5]
    expected = [0.2 + 0.4 * (1 + math.cos(math.pi * step / 8)) for step in range(2, 9)]
    assert rates[2:9] == pytest.approx(expected)
    assert rates[9:] == pytest.approx([0.2, 0.2])


def test_linear_of_the_original() -> None:
    kwargs = {"decay_steps": 4, "use_cosine": False, "end_learning_rate": 0.2}
    assert _rates(4, learning_rate_scheduler_kwargs=kwargs) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_megatron_styles() -> None:
    assert _rates(4, lr_decay_style="constant") == [1.0] * 5
    assert _rates(4, lr_decay_style="linear", min_lr=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    cosine = _rates(4, lr_decay_style="cosine", lr_warmup_iters=2, lr_warmup_init=0.5)
    assert cosine == pytest.approx([0.5, 0.75, 1.0, 0.5, 0.0])
    root = _rates(9, lr_decay_style="inverse-square-root", lr_warmup_iters=1)
    assert root[1:] == pytest.approx([1 / math.sqrt(step) for step in range(1, 10)])
    wsd = _rates(6, lr_decay_style="WSD", lr_wsd_decay_iters=2)
    assert wsd == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0])
    exponential = _rates(4, lr_decay_style="WSD", lr_wsd_decay_iters=2, lr_wsd_decay_style="exponential")
    assert exponential[-2:] == pytest.approx([2 * 0.5**0.5 - 1, 0.0])


def test_weight_decay_grows_as_asked() -> None:
    config = OptimizerConfig(weight_decay=0.1, end_weight_decay=0.3, weight_decay_incr_style="linear")
    schedules = Schedules(config, num_steps=4)
    assert [schedules.weight_decay(step) for step in (0, 2, 4)] == pytest.approx([0.1, 0.2, 0.3])


def test_norms_biases_and_vectors_do_not_decay() -> None:
    parallel = start(configuration(model={"normalization": "LayerNorm"}))[2]
    decayed, kept = groups_of(parallel)
    assert all("norm" not in fqn and "bias" not in fqn for fqn in decayed["names"])  # type: ignore[attr-defined]
    assert all("norm" in fqn or "bias" in fqn for fqn in kept["names"])  # type: ignore[attr-defined]
    assert {"word_embeddings.weight", "output.weight"} <= set(decayed["names"])  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "Came", "SpeedAdamW"])
def test_every_optimizer_learns(kind: str) -> None:
    optimizer = {"optimizer_type": kind, "learning_rate": {"SGD": 0.5, "Came": 5e-4}.get(kind, 0.01)}
    losses = run(configuration("float32", optimizer=optimizer), 1, 4).losses
    assert losses[-1] < losses[0] - 0.05


def test_came_is_its_algorithm() -> None:
    """Two steps of algorithm 2 of the paper, written out for one matrix."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    gradients = [torch.randn_like(weight) for _ in range(2)]
    expected, m = weight.detach().clone(), torch.zeros_like(weight)
    r, c, big_r, big_c = (torch.zeros(n, dtype=torch.float64) for n in (3, 4, 3, 4))
    rate, (b1, b2, b3), (e1, e2) = 0.1, (0.9, 0.999, 0.9999), (1e-30, 1e-16)
    for g in gradients:
        square = g**2 + e1
        r, c = b2 * r + (1 - b2) * square.mean(1), b2 * c + (1 - b2) * square.mean(0)
        u = g / (torch.outer(r, c) / r.mean()).sqrt()
        u = u / max(1.0, float((u**2).mean().sqrt()))
        m = b1 * m + (1 - b1) * u
        instability = (u - m) ** 2 + e2
        big_r = b3 * big_r + (1 - b3) * instability.mean(1)
        big_c = b3 * big_c + (1 - b3) * instability.mean(0)
        expected = expected - rate * m / (torch.outer(big_r, big_c) / big_r.mean()).sqrt()
    optimizer = build_optimizer(
        OptimizerConfig(optimizer_type="Came", learning_rate=rate, eps=(e1, e2)),
        weight_decay_groups([("w", weight, 2)], 0.0),
    )
    for g in gradients:
        weight.grad = g
        optimizer.step()
    assert torch.allclose(weight.detach(), expected, rtol=0, atol=1e-12)


def test_the_loss_scale_grows_and_shrinks() -> None:
    scale = LossScale(TrainingConfig(loss_scale_value=8.0, loss_scale_factor=2, loss_scale_window=2))
    values = []
    for finite in (True, True, False, True, True, False, False, False, False, False):
        scale.update(finite=finite)
        values.append(scale.value)
    assert values == [8.0, 16.0, 8.0, 8.0, 16.0, 8.0, 4.0, 2.0, 1.0, 1.0]


def test_a_static_scale_changes_no_result() -> None:
    plain = reference(configuration())
    scaled = run(configuration(training={"loss_scale": 4096}), 1)
    assert scaled.losses == plain.losses
    assert scaled.norms == plain.norms


def test_clipping_by_value() -> None:
    clip = {"grad_clip_type": "GradClipByValue", "clip_value": 1e-3}
    found = run(configuration(training={"grad_clip_kwargs": clip}), 1, 1)
    largest = max(float(abs(gradient).max()) for gradient in found.gradients.values())
    assert largest == 1e-3


@pytest.mark.parametrize(
    "keys", [{"bf16": True}, {"fp16": True, "loss_scale_value": 65536.0}], ids=["bf16", "fp16"]
)
def test_half_precision_stays_near(keys: dict[str, Any]) -> None:
    plain = configuration("float32", training=keys)
    del plain["model_config"]["compute_dtype"]
    found, expected = run(plain, 1, 3), reference(configuration("float32"), 3)
    assert found.losses != expected.losses
    assert found.losses == pytest.approx(expected.losses, abs=0.02)


@pytest.mark.parametrize("zero", [None, "z1"])
def test_float32_masters_take_steps_that_bfloat16_rounds_away(zero: str | None) -> None:
    """Learning rate 1e-5 moves a weight of 0.05 by less than half of bfloat16's spacing; steps add up."""
    optimizer = {"learning_rate": 1e-5, "weight_decay": 0.0}
    plain = configuration("bfloat16", optimizer=optimizer, parallel={"zero_level": zero})
    _, _, parallel, step = start(plain)
    data, _ = open_data(step.config)
    before = {piece.fqn: piece.parameter.detach().clone() for piece in parallel.engine.pieces}
    for number in range(3):
        step(data.read(portion(step.config, parallel.mesh, number)))
    for piece in parallel.engine.pieces:
        assert piece.parameter.dtype is torch.float32
        assert piece.computed is not None
        assert torch.equal(piece.computed, piece.parameter.bfloat16())
        moved = (piece.parameter.detach() - before[piece.fqn]).abs().max()
        assert 2e-5 < float(moved) < 4e-5, piece.fqn
    assert step.optimizer.state[parallel.engine.pieces[0].parameter]["exp_avg"].dtype is torch.float32


def test_without_masters_small_steps_are_lost() -> None:
    optimizer = {"learning_rate": 1e-5, "weight_decay": 0.0, "fp32_master_weights": False}
    plain = configuration("bfloat16", optimizer=optimizer)
    before = start(plain)[2].parameters["output.weight"].detach().float().numpy()
    after = run(plain, 1, 3).weights["output.weight"]
    large = np.abs(before) > 0.01
    assert np.array_equal(after[large], before[large])
