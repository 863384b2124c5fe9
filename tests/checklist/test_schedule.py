"""Learning rates as the frameworks compute them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trueup.checklist import check
from trueup.checklist.document import training_headline
from trueup.checklist.schedule import learning_rate, weight_decay
from trueup.types.codes import ChecklistCode

STEPS = np.arange(100)
BASE: dict[str, Any] = {"learning_rate": 1e-3, "train_steps": 100, "decay_steps": 100}


def _megatron(
    step: int, *, peak: float, low: float, warmup: int, total: int, style: str, last: int = 0
) -> float:
    """The rule of Megatron's OptimizerParamScheduler, written down anew."""
    if warmup and step <= warmup:
        return peak * step / warmup
    if style == "constant":
        return peak
    done = (step - warmup) / (total - warmup)
    if style == "WSD":
        late = max(0.0, (step - (total - last)) / last)
        return low + (peak - low) * (2.0 * 0.5**late - 1.0)
    return low + (peak - low) * {"linear": 1 - done, "cosine": 0.5 * (math.cos(math.pi * done) + 1)}[style]


@pytest.mark.parametrize(
    ("style", "canonical"),
    [("linear", "linear"), ("cosine", "cosine"), ("constant", "constant"), ("WSD", "wsd")],
)
@pytest.mark.parametrize("warmup", [0, 10])
def test_megatron(style: str, canonical: str, warmup: int) -> None:
    values = BASE | {
        "lr_schedule": canonical,
        "min_lr": 1e-4,
        "warmup_steps": warmup,
        "stable_decay_steps": 20,
        "stable_decay_style": "exponential",
    }
    wanted = [
        _megatron(int(s), peak=1e-3, low=1e-4, warmup=warmup, total=100, style=style, last=20) for s in STEPS
    ]
    np.testing.assert_allclose(learning_rate(values, STEPS), wanted, rtol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "canonical", "keywords"),
    [
        ("constant_with_warmup", "constant", {}),
        ("linear", "linear", {}),
        ("cosine", "cosine", {}),
        ("cosine_with_min_lr", "cosine", {"min_lr": 1e-4}),
        ("inverse_sqrt", "inverse_sqrt", {}),
    ],
)
def test_transformers(name: str, canonical: str, keywords: dict[str, float]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule = transformers.get_scheduler(
        name,
        optimizer,
        num_warmup_steps=10,
        num_training_steps=100,
        scheduler_specific_kwargs=keywords or None,
    )
    wanted = []
    for _ in STEPS:
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    values = BASE | {"lr_schedule": canonical, "warmup_steps": 10, "min_lr": 0.0} | keywords
    np.testing.assert_allclose(learning_rate(values, STEPS), wanted, rtol=1e-9)


@pytest.mark.parametrize("warmup", [0, 10])
def test_torchtitan_is_one_part_of_the_warmup_ahead(warmup: int) -> None:
    """Its rule: (step + 1) / warmup, then 1 - (step + 1 - warmup - 1) / decay with one virtual step more."""
    decay = 100 - warmup
    factors = [
        (s + 1) / warmup if s < warmup else 1.0 if s < warmup + 1 else 1 - (s + 1 - warmup - 1) / decay
        for s in STEPS
    ]
    values = BASE | {"lr_schedule": "linear", "warmup_steps": warmup, "warmup_offset": 1, "min_lr": 0.0}
    np.testing.assert_allclose(learning_rate(values, STEPS), 1e-3 * np.array(factors), rtol=1e-12)


def test_weight_decay_rises() -> None:
    values = {"weight_decay": 0.0, "weight_decay_end": 0.2, "weight_decay_schedule": "linear"}
    curve = weight_decay(values, STEPS, 100)
    assert curve is not None
    np.testing.assert_allclose(curve, 0.2 * STEPS / 100)
    cosine = weight_decay(values | {"weight_decay_schedule": "cosine"}, STEPS, 100)
    assert cosine is not None
    assert cosine[0] == pytest.approx(0.0)
    assert cosine[50] == pytest.approx(0.1)


def test_two_schedules_of_other_names_may_be_one(tmp_path: Path) -> None:
    """A warmup as a share and one as steps; the rates are computed and compared, not their names."""
    (tmp_path / "a.json").write_text(
        '{"optim": "adamw_torch", "learning_rate": 1e-3, '
        '"lr_scheduler_type": "linear", "warmup_ratio": 0.1, "max_steps": 100}'
    )
    (tmp_path / "b.json").write_text(
        '{"optim": "adamw_torch", "learning_rate": 1e-3, '
        '"lr_scheduler_type": "linear", "warmup_steps": 10, "max_steps": 100}'
    )
    found = check([str(tmp_path / "a.json")], [str(tmp_path / "b.json")]).schedules
    assert found.same
    (tmp_path / "b.json").write_text(
        (tmp_path / "b.json").read_text().replace('"warmup_steps": 10', '"warmup_steps": 11')
    )
    found = check([str(tmp_path / "a.json")], [str(tmp_path / "b.json")]).schedules
    assert found.same is False
    assert found.first_step_apart == 1


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"optim": "adamw_torch", "lr_scheduler_type": "linear"}')
    found = check([str(tmp_path / "a.json")], [str(tmp_path / "a.json")]).schedules
    assert found.same is None
    assert found.target.missing == "train_steps"


@pytest.mark.parametrize(("low", "apart"), [(1e-4, True), (0.0, False)])
def test_rates_that_differ_by_a_setting_that_is_left_out(tmp_path: Path, low: float, apart: bool) -> None:
    values = {**BASE, "lr_schedule": "cosine", "num_layers": 2}
    for name, lowest in (("a", low), ("b", 0.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**values, "min_lr": lowest}))
    sides = ([str(tmp_path / f"{name}.json")] for name in "ab")
    found = training_headline(check(*sides, ignore=["min_lr"]))
    assert (found.code is ChecklistCode.RATES_DIFFER) is apart
