"""Optimizer settings that both programs declare decide, also where weights round the difference away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.comparing.optimizer_settings import declared, setting_gaps, update_rule_gaps
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode

BASE = {"class": "AdamW", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1, "fused": None}


def gaps(**more: Any) -> list[str]:
    """Settings that differ where the target's differ from the base's by these."""
    target = {name: {**BASE, **more} for name in ("a", "b")}
    return [one.gap.key for one in update_rule_gaps(target, dict.fromkeys(("a", "b"), BASE))]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"eps": 1e-5}, ["eps"]),
        ({"betas": [0.9, 0.95]}, ["beta2"]),
        ({"weight_decay": 0.0}, ["weight_decay"]),
        ({"weight_decay": 0.01, "betas": [0.8, 0.999]}, ["beta1", "weight_decay"]),
        ({"fused": True}, []),
        ({"foreach": False}, []),
        ({"lr": 2e-3}, []),
        ({"class": "apex.optimizers.FusedAdam"}, []),
        ({"class": "Adam"}, []),
        ({"class": "NAdam"}, ["class"]),
        ({"class": "Adafactor", "eps": (1e-30, 1e-3)}, ["class", "eps"]),
        ({"eps": 9.99999993922529e-09}, []),
        ({"betas": [0.9, [0.95]]}, []),
        ({"betas": {"beta1": 0.9}}, []),
    ],
)
def test_settings_of_the_update_rule(more: dict[str, Any], expected: list[str]) -> None:
    assert sorted(gaps(**more)) == expected


@given(st.floats(1e-12, 1.0), st.floats(2.0**-22, 1.0))
def test_a_number_in_float32_is_the_same_number(value: float, change: float) -> None:
    import numpy as np

    exact, rounded = {"eps": value}, {"eps": float(np.float32(value))}
    assert not list(setting_gaps(exact, rounded))
    assert list(setting_gaps(exact, {"eps": value * (1 + change)}))


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, []), (0.9, ["nesterov"])])
def test_nesterov_without_momentum_has_no_effect(momentum: float, expected: list[str]) -> None:
    sides = ({"momentum": momentum, "nesterov": flag, "dampening": 0} for flag in (True, False))
    assert [gap.key for gap in setting_gaps(*sides)] == expected


def test_another_rule_comes_before_its_settings() -> None:
    assert gaps(**{"class": "Lion", "eps": 1e-5, "weight_decay": 0.0})[0] == "class"


def test_only_the_parameters_of_one_group() -> None:
    target = {"a": BASE, "b": {**BASE, "weight_decay": 0.0}}
    (one,) = update_rule_gaps(target, {"a": BASE, "b": BASE})
    assert one.parameters == ("b",)


def test_other_names_are_compared_by_what_all_have() -> None:
    target = {"x": {**BASE, "eps": 1e-6}, "y": {**BASE, "eps": 1e-6, "weight_decay": 0.0}}
    (one,) = update_rule_gaps(target, {"a": BASE, "b": {**BASE, "weight_decay": 0.0}})
    assert (one.gap.key, one.gap.target_text, one.gap.reference_text) == ("eps", "1e-06", "1e-08")


def test_facts_without_optimizers() -> None:
    assert declared({}) == {}
    assert declared({"parameters": [{"fqn": "a", "optimizer_group": [2, 0]}], "optimizers": []}) == {}


def _facts(*optimizers: dict[str, Any], **places: list[int]) -> dict[str, Any]:
    """Facts of a rank: optimizers of one group each, and the group of each named parameter."""
    return {
        "optimizers": [
            {"class": one["class"], "groups": [{k: v for k, v in one.items() if k != "class"}]}
            for one in optimizers
        ],
        "parameters": [{"fqn": fqn, "optimizer_group": place or None} for fqn, place in places.items()],
    }


def test_what_an_optimizer_updates_in_place_of_parameters_has_its_group_s_settings() -> None:
    found = declared(_facts({**BASE, "num_params": 2}, a=[], b=[]))
    assert found == {"AdamW.group0.0": BASE, "AdamW.group0.1": BASE}


def test_a_group_of_named_parameters_has_no_other_names() -> None:
    assert declared(_facts({**BASE, "num_params": 2}, a=[0, 0], b=[])) == {"a": BASE}
    assert declared(_facts(BASE, a=[])) == {}, "nothing says how many it holds"


def test_a_name_that_two_optimizers_share_has_no_settings() -> None:
    other = {**BASE, "eps": 1e-5, "num_params": 2}
    assert list(declared(_facts({**BASE, "num_params": 1}, other))) == ["AdamW.group0.1"]


def run(folder: Path, name: str, **settings: Any) -> Path:
    """Two bfloat16 steps of a linear layer, whose weights are too coarse to show a small setting."""
    torch = pytest.importorskip("torch")
    from trueup import Tracer

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(64.0)
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-4, "eps": 1e-8, **settings})
    with Tracer(folder / name, level="L0", steps="0-1") as tracer:
        for _ in range(2):
            model(torch.ones(4, 8, dtype=torch.bfloat16)).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracer.step()
    return folder / name


@pytest.mark.torch
@pytest.mark.parametrize(
    ("settings", "exit_code"),
    [({"eps": 1e-5}, 1), ({"weight_decay": 0.02}, 1), ({"foreach": True}, 0), ({}, 0)],
    ids=str,
)
def test_weights_that_agree(settings: dict[str, Any], exit_code: int, tmp_path: Path) -> None:
    result = compare(run(tmp_path, "target", **settings), run(tmp_path, "reference"))
    assert result.exit_code == exit_code
    if exit_code:
        verdict = result.summary["verdict"]
        headline, (evidence, *_) = verdict["headline_reason"], verdict["evidence_reasons"]
        assert (headline["code"], evidence["code"]) == (
            VerdictCode.OPTIMIZER_SETTING_DIFFERS,
            EvidenceCode.OPTIMIZER_SETTING_DIFFERS,
        )
        assert next(iter(settings)) == headline["places"]["name"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"lr": 6e-2}, VerdictCode.LEARNING_RATE_DIFFERS),
        ({"weight_decay": 2.0}, VerdictCode.UPDATE_SETTING_DIFFERS),
        ({"betas": (0.5, 0.999)}, VerdictCode.UPDATE_SETTING_DIFFERS),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_differ(settings: dict[str, Any], code: VerdictCode, dtype: str, tmp_path: Path) -> None:
    """The cause of another update is in the headline, with both values."""
    sides = {"lr": 3e-2, "weight_decay": 0.01, "betas": (0.9, 0.999)}
    result = compare(
        wide(tmp_path, "target", dtype, **{**sides, **settings}), wide(tmp_path, "reference", dtype, **sides)
    )
    assert result.exit_code == 1
    headline = result.verdict.headline
    assert headline.code is code
    assert headline.place("parameter") == "weight"
    ((key, value),) = settings.items()
    if code is VerdictCode.LEARNING_RATE_DIFFERS:
        assert (headline.number("target"), headline.number("reference")) == (value, sides[key])
    else:
        assert headline.place("name") == {"betas": "beta1"}.get(key, key)


def wide(folder: Path, name: str, dtype: str, **settings: Any) -> Path:
    """Two steps of a layer whose weights show every setting."""
    torch = pytest.importorskip("torch")
    from trueup import Tracer

    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, bias=False, dtype=getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    batches = torch.randn(3, 4, 16, dtype=getattr(torch, dtype))
    with Tracer(folder / name, level="L0", steps="0-2") as tracer:
        for batch in batches:
            model(batch).float().pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracer.step()
    return folder / name


@pytest.mark.torch
@pytest.mark.parametrize(("betas", "exit_code"), [((0.9, 0.95), 1), ((0.9, 0.999), 0)], ids=str)
def test_a_flat_copy_of_the_weights_as_zero_updates_it(
    betas: tuple[float, float], exit_code: int, tmp_path: Path
) -> None:
    """No parameter of the model is in an optimizer: its settings are those of what it holds."""
    result = compare(flat_copy(tmp_path, "target", betas), flat_copy(tmp_path, "reference", (0.9, 0.999)))
    assert result.exit_code == exit_code
    if exit_code:
        verdict = result.verdict
        assert verdict.headline.code in (
            VerdictCode.OPTIMIZER_SETTING_DIFFERS,
            VerdictCode.UPDATE_SETTING_DIFFERS,
        )
        assert verdict.headline.place("name") == "beta2"


def flat_copy(folder: Path, name: str, betas: tuple[float, float]) -> Path:
    """Two steps of a layer in bfloat16 whose optimizer holds one flat copy of the weights in float32."""
    torch = pytest.importorskip("torch")
    from trueup import Tracer

    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, bias=False, dtype=torch.bfloat16)
    master = torch.nn.Parameter(model.weight.detach().float().reshape(-1))
    optimizer = torch.optim.AdamW([master], lr=3e-2, betas=betas)
    batches = torch.randn(2, 4, 16, dtype=torch.bfloat16)
    with Tracer(folder / name, level="L0", steps="0-1") as tracer:
        for batch in batches:
            model(batch).float().pow(2).sum().backward()
            master.grad = model.weight.grad.detach().float().reshape(-1)
            optimizer.step()
            with torch.no_grad():
                model.weight.copy_(master.reshape(16, 16))
            model.weight.grad = None
            tracer.step()
    return folder / name
