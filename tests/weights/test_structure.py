"""A port that was never converted: a plan by layers and shapes, for a person to edit before a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trueup.cli import app
from trueup.weights.plan_file import read_plan

Shapes = Sequence[tuple[str, tuple[int, ...]]]
LAYERS = 3


def source_shapes(hidden: int, ffn: int, kv: int) -> Shapes:
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (50, hidden))]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found += [
            (f"{at}.input_layernorm.weight", (hidden,)),
            (f"{at}.self_attn.q_proj.weight", (hidden, hidden)),
            (f"{at}.self_attn.k_proj.weight", (kv, hidden)),
            (f"{at}.self_attn.v_proj.weight", (kv, hidden)),
            (f"{at}.self_attn.o_proj.weight", (hidden, hidden)),
            (f"{at}.mlp.gate_proj.weight", (ffn, hidden)),
            (f"{at}.mlp.up_proj.weight", (ffn, hidden)),
            (f"{at}.mlp.down_proj.weight", (hidden, ffn)),
        ]
    return [*found, ("model.norm.weight", (hidden,))]


def target_shapes(hidden: int, ffn: int, kv: int) -> Shapes:
    found: list[tuple[str, tuple[int, ...]]] = [("net.table", (50, hidden))]
    for layer in range(LAYERS):
        at = f"net.block{layer}"
        found += [
            (f"{at}.n1.g", (hidden,)),
            (f"{at}.mix.fused", (hidden + 2 * kv, hidden)),
            (f"{at}.mix.out", (hidden, hidden)),
            (f"{at}.ff.both", (2 * ffn, hidden)),
            (f"{at}.ff.back", (ffn, hidden)),  # transposed
        ]
    return [*found, ("net.last.g", (hidden,))]


def write(path: Path, shapes: Shapes, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    save_file({name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes}, path)
    return path


def convert(folder: Path, *more: str) -> int:
    words = [str(folder / "source.safetensors"), str(folder / "out.safetensors"), "-q"]
    return app.run(["convert-weights", *words, "--like", str(folder / "target.safetensors"), *more])


@pytest.mark.parametrize("sizes", [(8, 12, 4), (16, 40, 8)])
def test_the_plan_is_left_to_a_person(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    write(tmp_path / "source.safetensors", source_shapes(*sizes), 1)
    write(tmp_path / "target.safetensors", target_shapes(*sizes), 2)
    assert convert(tmp_path) == 2
    assert not (tmp_path / "out.safetensors").exists()
    file = tmp_path / "out.safetensors.plan.yaml"
    plan = read_plan(file)
    assert {entry.how for entry in plan.entries} == {"structure"}
    assert max(entry.confidence for entry in plan.entries) <= 0.5
    assert (plan.only_target, plan.only_source) == ((), ())
    made = {entry.target: [piece.source for piece in entry.pieces] for entry in plan.entries}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn"
        assert made[f"net.block{layer}.mix.fused"] == [f"{at}.{one}_proj.weight" for one in "qkv"]
        assert made[f"net.block{layer}.mix.out"] == [f"{at}.o_proj.weight"]
        assert made[f"net.block{layer}.ff.back"] == [f"model.layers.{layer}.mlp.down_proj.weight"]
    assert convert(tmp_path, "--plan", str(file)) == 0
    written, source = load_file(tmp_path / "out.safetensors"), load_file(tmp_path / "source.safetensors")
    assert np.array_equal(written["net.block1.ff.back"], source["model.layers.1.mlp.down_proj.weight"].T)


def test_a_fused_source_is_split(tmp_path: Path) -> None:
    write(tmp_path / "source.safetensors", target_shapes(8, 12, 4), 1)
    write(tmp_path / "target.safetensors", source_shapes(8, 12, 4), 2)
    assert convert(tmp_path) == 2
    plan = read_plan(tmp_path / "out.safetensors.plan.yaml")
    entry = plan.entry_of("model.layers.2.self_attn.v_proj.weight")
    assert entry is not None
    assert [(step.start, step.stop) for step in entry.pieces[0].steps] == [(12, 16)]  # type: ignore[union-attr]


def test_other_numbers_of_layers_propose_nothing(tmp_path: Path) -> None:
    write(tmp_path / "source.safetensors", source_shapes(8, 12, 4), 1)
    write(tmp_path / "target.safetensors", target_shapes(8, 12, 4)[:-6], 2)
    assert convert(tmp_path) == 2
    assert not (tmp_path / "out.safetensors.plan.yaml").exists()


def test_values_that_pair_need_no_proposal(tmp_path: Path) -> None:
    source = write(tmp_path / "source.safetensors", source_shapes(8, 12, 4), 1)
    renamed = {f"port.{name}": value for name, value in load_file(source).items()}
    save_file(renamed, tmp_path / "target.safetensors")
    assert convert(tmp_path) == 0
    assert not (tmp_path / "out.safetensors.plan.yaml").exists()
