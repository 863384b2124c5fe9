"""Diagnoses where target and reference are of two implementations, with fused weights on one side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.diagnosing.diagnosed import facts_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from tests.matching.implementations.sizes import SIZES  # noqa: E402
from tests.matching.implementations.train import train  # noqa: E402
from trueup import Tracer  # noqa: E402
from trueup.comparing.options import CompareOptions  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.gradients import VALUES, build_gradient_plan  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.translated import TranslatedView, translated_facts  # noqa: E402
from trueup.matching.bridge import bridge_between  # noqa: E402
from trueup.store import StepView, Trace, step_view  # noqa: E402
from trueup.store.layout import rank_file  # noqa: E402
from trueup.store.view import ACCUMULATED, CLIPPED, UPDATED, WEIGHT  # noqa: E402
from trueup.types.codes import StagesCode, WeightsCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402

FUSED = "decoder.layers.0.self_attention.linear_qkv.weight"


def captured(
    path: Path, name: str, *, change: str | None = None, decay_of_vectors: float = 0.01, **more: bool
) -> Path:
    """Two steps as the preset captures them, with the weight decay given for one-dimensional weights."""
    make = torch.optim.AdamW

    def by_shape(parameters: object, **settings: float) -> torch.optim.Optimizer:
        weights = list(parameters)  # type: ignore[call-overload]
        vectors = {"params": [w for w in weights if w.ndim == 1], "weight_decay": decay_of_vectors}
        return make([{"params": [w for w in weights if w.ndim > 1]}, vectors], **settings, **more)

    with pytest.MonkeyPatch.context() as patch, Tracer(path, level="L0", steps="0-1", store_values_of=VALUES):
        patch.setattr(torch.optim, "AdamW", by_shape)
        train(name, sizes=SIZES["plain"], change=change)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: captured(folder / name, name) for name in ("megatron", "hf")}


def books(target: Path, reference: Path) -> tuple[StepView, TranslatedView]:
    mine, theirs = Trace(target), Trace(reference)
    bridge = bridge_between(mine, theirs, (0, 0), (0, 0))
    assert bridge is not None
    return step_view(mine, 0, 0), TranslatedView(theirs, 0, 0, bridge)


@pytest.mark.parametrize(("target", "reference"), [("megatron", "hf"), ("hf", "megatron")])
def test_every_record_of_a_parameter_is_found_under_the_target_s_name(
    runs: dict[str, Path], target: str, reference: str
) -> None:
    mine, theirs = books(runs[target], runs[reference])
    assert set(theirs.parameters) == set(mine.parameters)
    for fqn in mine.parameters:
        for place in (WEIGHT, ACCUMULATED, CLIPPED, UPDATED):
            own, other = mine.parameter(fqn, *place), theirs.parameter(fqn, *place)
            a, b = mine.value(own), theirs.value(other)
            assert a is not None, (fqn, place)
            assert b is not None, (fqn, place)
            assert a.shape == b.shape, (fqn, place)
            assert abs(a - b).max() <= 1e-5 + (2e-3 if place is UPDATED else 0), (fqn, place)
            if place is WEIGHT:
                assert mine.digest(own) == theirs.digest(other), fqn
            norm = theirs.norm(other)
            assert norm == pytest.approx(float((b * b).sum() ** 0.5), rel=1e-6)


def test_settings_are_told_of_fused_weights(runs: dict[str, Path]) -> None:
    trace = Trace(runs["hf"])
    bridge = bridge_between(Trace(runs["megatron"]), trace, (0, 0), (0, 0))
    assert bridge is not None
    rows = {row["fqn"]: row for row in translated_facts(trace.rank_facts(0), bridge)["parameters"]}
    assert rows[FUSED]["optimizer_group"] == [0, 0]
    assert rows["decoder.final_layernorm.weight"]["optimizer_group"] == [0, 1]


def test_equal_runs_agree_stage_by_stage(runs: dict[str, Path], tmp_path: Path) -> None:
    found = diagnose(runs["megatron"], runs["hf"], output=tmp_path)
    assert found.exit_code == 0, found.headline
    weights = next(stage for stage in found.stages if stage.stage is Stage.WEIGHTS)
    assert weights.conclusion.code is WeightsCode.ALL_EQUAL
    assert weights.conclusion.number("num") == 21


def test_a_state_that_one_optimizer_lacks_is_no_agreement(runs: dict[str, Path], tmp_path: Path) -> None:
    """With amsgrad the first step is the same. The declared setting decides; where it is not declared, the
    state tells that later steps are not the same."""
    target = captured(tmp_path / "target", "megatron", amsgrad=True)
    first = CompareOptions(steps=frozenset({0}))
    for sides in ((target, runs["hf"]), (runs["hf"], target)):
        verdict = compare(*sides, options=first).summary["verdict"]
        assert (verdict["exit_code"], verdict["where"]) == (1, "optimizer · amsgrad"), verdict
    facts = rank_file(target, 0)
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "optimizers": []}))
    for sides in ((target, runs["hf"]), (runs["hf"], target)):
        verdict = compare(*sides, options=first).summary["verdict"]
        assert verdict["exit_code"] == 2, verdict
        assert "max_exp_avg_sq" in " ".join(verdict["evidence"])


def test_weight_decay_of_vectors_is_told_from_two_implementations(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    target = captured(tmp_path / "target", "megatron", decay_of_vectors=0.0)
    found = diagnose(target, runs["hf"], output=tmp_path / "out")
    assert [f.stage for f in found.findings] == [Stage.OPTIMIZER]
    assert found.headline.code is StagesCode.DECAY_REFERENCE
    assert "one-dimensional parameters" in facts_of(found.headline)
    assert "0.01" in facts_of(found.headline)


def test_gradients_of_a_fused_weight_are_given(runs: dict[str, Path], tmp_path: Path) -> None:
    plan = build_gradient_plan(Trace(runs["hf"]), Trace(runs["megatron"]), tmp_path)
    assert plan.unmatched == ()
    assert plan.num_given == len(step_view(Trace(runs["megatron"]), 0, 0).parameters)
