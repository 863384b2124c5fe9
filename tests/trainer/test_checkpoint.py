"""A run that was interrupted goes on as if it had not been, in the same layout and in any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.layouts import MOE, configuration, merged
from tests.trainer.resuming import run, with_training
from tests.trainer.worlds import world
from trueup.errors import ConfigError
from trueup_gpt.parallel.places import ranges

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]
TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"
SAVERS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "z1": (2, {"zero_level": "z1"}),
    "tp2 sp": (2, {TP: 2, "sequence_parallel": True}),
    "pp2": (2, {PP: 2}),
    "z3 tp2": (4, {TP: 2, "zero_level": "z3"}),
}
FORMATS = {"tp2 sp": "safetensors", "z1": "torch_dist", "z3 tp2": "torch_dist"}
"""the other savers write the default's"""
LOADERS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "tp2 z1 of four": (4, {TP: 2, "zero_level": "z1"}),
    "z3": (2, {"zero_level": "z3"}),
}
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
STEPS, HALF = 4, 2


def _plain(parallel: dict[str, Any], folder: Path, dtype: str = "float64") -> dict[str, Any]:
    plain = configuration(dtype, parallel=parallel)
    return with_training(plain, training_iters=STEPS, output_dir=folder)


@pytest.mark.parametrize("saver", SAVERS)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(saver: str, tmp_path: Path) -> None:
    """In its own layout with the same bits, in any other within rounding."""
    size, parallel = SAVERS[saver]
    plain = with_training(_plain(parallel, tmp_path / "half"), ckpt_format=FORMATS.get(saver, "ckpt"))
    whole = run(_plain(parallel, tmp_path / "whole"), size)
    first = run(with_training(plain, training_iters=HALF, save_interval=HALF), size)
    second = run(with_training(plain, resume_training=True), size)
    assert first.losses + second.losses == whole.losses
    for fqn, values in whole.weights.items():
        assert np.array_equal(second.weights[fqn], values), fqn
    for name, (other, layout) in LOADERS.items():
        resumed = run(_resuming(layout, tmp_path / name, tmp_path / "half"), other)
        assert np.allclose(resumed.losses, whole.losses[HALF:], rtol=0, atol=1e-10), name
        for fqn, values in whole.weights.items():
            assert np.allclose(resumed.weights[fqn], values, rtol=0, atol=1e-10), (name, fqn)


@pytest.mark.parametrize("parallel", [{"zero_level": "z3"}, {TP: 2, "zero_level": "z1"}], ids=str)
def test_what_fsdp_and_zero1_cut_is_written_in_files_of_either_framework(
    parallel: dict[str, Any], tmp_path: Path
) -> None:
    size = 4 if TP in parallel else 2
    whole = run(_plain(parallel, tmp_path / "whole"), size)
    half = with_training(_plain(parallel, tmp_path / "half"), training_iters=HALF, save_interval=HALF)
    run(half, size)
    assert len(list((tmp_path / "half").glob("checkpoints/*/part_*.ckpt"))) == size
    resumed = run(_resuming({}, tmp_path / "one", tmp_path / "half"), 1)
    assert np.allclose(resumed.losses, whole.losses[HALF:], rtol=0, atol=1e-10)


def _resuming(parallel: dict[str, Any], folder: Path, source: Path) -> dict[str, Any]:
    keys = {"resume_training": True, "load_checkpoint": source / "checkpoints"}
    return with_training(_plain(parallel, folder), **keys)


def test_masters_random_streams_and_scale_are_resumed(tmp_path: Path) -> None:
    keys = {"loss_scale_value": 64.0, "loss_scale_window": 1, "output_dir": tmp_path / "half"}
    plain = configuration("bfloat16", parallel={TP: 2, "zero_level": "z1"}, model=DROPOUT)
    plain = with_training(plain, training_iters=STEPS, **keys)
    whole = run(with_training(plain, output_dir=tmp_path / "whole"), 4)
    first = run(with_training(plain, training_iters=HALF, save_interval=HALF), 4)
    second = run(with_training(plain, resume_training=True), 4)
    assert first.losses + second.losses == whole.losses
    for fqn, values in whole.weights.items():
        assert np.array_equal(second.weights[fqn], values), fqn


@pytest.mark.parametrize(
    ("name", "size", "parallel"),
    [("raw parts", 2, {TP: 2}), ("parts in the order of ranks", 4, {TP: 2, "zero_level": "z3"})],
)
def test_parts_saved_wrongly_are_seen(name: str, size: int, parallel: dict[str, Any], tmp_path: Path) -> None:
    """As if they were wholes; or FSDP2's in the order of ranks, though tp has cut the same dim before."""
    keys = {"training_iters": 1, "save_interval": 1, "ckpt_format": "torch_dist"}
    plain = with_training(_plain(parallel, tmp_path), **keys)
    weights = world(size).run("tests.trainer.breakages:missaved", plain, name)
    whole = merged([(f, s, o, None, None, v) for part in weights for f, s, o, v in part])
    found = run(with_training(_resuming({}, tmp_path / "other", tmp_path), training_iters=1), 1).weights
    assert max(float(np.abs(found[fqn] - values).max()) for fqn, values in whole.items()) > 1e-3


def test_experts_are_resharded(tmp_path: Path) -> None:
    moe = configuration(moe=MOE)
    whole = run(with_training(moe, training_iters=STEPS, output_dir=tmp_path / "whole"), 1)
    cut = configuration(moe=MOE, parallel={"expert_model_parallel_size": 2})
    half = with_training(cut, training_iters=HALF, save_interval=HALF, output_dir=tmp_path / "half")
    run(half, 2)
    keys = {"load_checkpoint": tmp_path / "half" / "checkpoints", "resume_training": True}
    resumed = run(with_training(moe, training_iters=STEPS, output_dir=tmp_path / "other", **keys), 1)
    assert np.allclose(resumed.losses, whole.losses[HALF:], rtol=0, atol=1e-10)


def test_old_checkpoints_go_and_unfinished_ones_are_not_read(tmp_path: Path) -> None:
    plain = with_training(_plain({}, tmp_path), training_iters=4, save_interval=1, keep_checkpoint_max=2)
    run(plain, 1)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["network_00000003", "network_00000004"]
    (folder / "network_00000009").mkdir()
    resumed = run(with_training(plain, training_iters=5, save_interval=None, resume_training=True), 1)
    assert len(resumed.losses) == 1


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    plain = with_training(_plain({}, tmp_path), training_iters=1, save_interval=1)
    run(plain, 1)
    plain["model_config"]["hidden_size"] = 64
    with pytest.raises(ConfigError, match=r"\[257, 32\], here \[257, 64\]: it is of another model"):
        run(with_training(plain, resume_training=True, training_iters=2), 1)
    with pytest.raises(ConfigError, match=r"no checkpoint there; one holds run\.json"):
        run(with_training(plain, load_checkpoint=tmp_path / "nothing"), 1)


def test_the_layout_table_is_in_the_checkpoint(tmp_path: Path) -> None:
    plain = with_training(_plain({}, tmp_path), training_iters=1, save_interval=1)
    run(plain, 1)
    facts = json.loads((tmp_path / "checkpoints" / "network_00000001" / "run.json").read_text())
    assert facts["layout"]["parameters"]["output.weight"] == {"tp": "shard(0)"}
    assert facts["step"] == 1


@pytest.mark.parametrize(
    ("shape", "start", "stop"), [((3, 4), 2, 9), ((2, 3, 4), 5, 23), ((7,), 2, 5), ((4, 4), 4, 8)]
)
def test_ranges_cover_every_element_once(shape: tuple[int, ...], start: int, stop: int) -> None:
    whole = np.arange(np.prod(shape)).reshape(shape)
    found = []
    for offset, size, (low, high) in ranges(shape, start, stop):
        box = whole[tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))]
        assert box.ravel().tolist() == list(range(low, high))
        found += box.ravel().tolist()
    assert found == list(range(start, stop))
