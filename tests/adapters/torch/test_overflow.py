"""Task overflow_check: nothing until a value that is not finite is made, then the call that made it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import trueup
from tests.adapters.torch.reading import Captured
from tests.diagnosing.checks import trainings
from tests.diagnosing.checks.trainings import Training
from trueup.capture.options import StepSet
from trueup.store import Trace

pytestmark = pytest.mark.torch

AT = 2
"""step in which the fault begins"""


def run(
    output: Path, change: Callable[[Training], None], *, level: str = "mix", nums: int | None = 1
) -> Path:
    options = {"steps": StepSet(), "task": "overflow_check", "digest": False, "sketch": False}
    with trueup.Tracer(output, level=level, overflow_nums=nums, **options):
        training = trainings.build()
        given = training.batch

        def batch(step: int):  # type: ignore[no-untyped-def]
            if step == AT:
                change(training)
            return given(step)

        training.batch = batch
        trainings.train(training, steps=5)
    return output


def overflows(path: Path) -> list[dict[str, object]]:
    return Trace(path).rank_facts(0)["overflows"]


@pytest.mark.parametrize(
    ("change", "site", "num"),
    [
        (trainings.log_of_negative, "layers.1.mlp.act · torch.log · output.0", "num_nan"),
        (trainings.float16_overflow, "layers.1.mlp.act · torch.Tensor.mul[1] · output.0", "num_posinf"),
        (trainings.row_masked_whole, "layers.1.attn · torch.nn.functional.softmax · output.0", "num_nan"),
        (trainings.sqrt_at_zero, "layers.1.mlp.act · torch.sqrt · gradient of input.0", "num_posinf"),
    ],
)
def test_the_first_is_found_with_its_values(
    change: Callable[[Training], None],
    site: str,
    num: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = run(tmp_path / "run", change)
    assert list(Trace(path).steps()) == [AT]
    assert len(Trace(path).scalars(0)) == 5
    (found,) = overflows(path)
    assert (found["step"], found["site"], found["how"]) == (AT, site, "made")
    assert found[num]
    assert f"is made in step {AT} at {site}" in capsys.readouterr().err
    captured = Captured(path, step=AT)
    own = [r for r in captured.records if (r["call"], r["phase"]) == (found["call"], found["phase"])]
    finite = {r["slot"]: bool(np.isfinite(captured.values(r).float().numpy()).all()) for r in own}
    kept = {r["summary"]["tensor"] for r in captured.records if r["summary"] is not None} - {None}
    assert len(kept) == len(own)
    assert finite.pop(str(found["slot"])) is False
    assert finite, "what went in is kept too"
    if change is not trainings.row_masked_whole:
        assert all(finite.values())


def test_at_module_level_the_module_is_named(tmp_path: Path) -> None:
    (found,) = overflows(run(tmp_path / "run", trainings.log_of_negative, level="L0"))
    assert found["site"] == "layers.1.mlp.act · output.0"


@pytest.mark.parametrize("change", [lambda t: None, trainings.log_of_zero_masked_away])
def test_what_does_no_harm_leaves_nothing(change: Callable[[Training], None], tmp_path: Path) -> None:
    path = run(tmp_path / "run", change)
    assert Trace(path).steps() == {}
    assert overflows(path) == []
    assert not list(path.glob("step_*"))


def test_as_many_as_are_asked_for(tmp_path: Path) -> None:
    assert list(Trace(run(tmp_path / "all", trainings.log_of_negative, nums=None)).steps()) == [2, 3, 4]
    assert len(overflows(run(tmp_path / "two", trainings.log_of_negative, nums=2))) == 2


def test_gradients_that_the_scaler_skips_are_its_business(tmp_path: Path) -> None:
    def scaled(training: Training) -> None:
        import torch

        loss = training.loss
        training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
        training.loss = lambda *args: 1000.0 * loss(*args)
        training.clip = False

    path = run(tmp_path / "run", scaled)
    assert True in [line.get("skipped") for line in Trace(path).scalars(0)]
    assert Trace(path).steps() == {}


def test_from_a_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {"task": "overflow_check", "level": "mix", "overflow_check": {"overflow_nums": 2}}
    Path("config.json").write_text(json.dumps(plain))
    debugger = trueup.PrecisionDebugger("config.json", dump_path=tmp_path / "dump")
    training = trainings.build()
    trainings.log_of_negative(training)
    for _ in range(3):
        debugger.start(training.model)
        trainings.train(training, steps=1)
        debugger.stop()
        debugger.step()
    debugger._session.close()
    assert [one["step"] for one in overflows(tmp_path / "dump")] == [0, 1]
