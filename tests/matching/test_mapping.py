"""A person's map says what it means, or what is wrong with it; families know their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.errors import ConfigError
from trueup.matching.families import common_weights, family_of, weight_kind
from trueup.matching.mapping import read_mapping
from trueup.matching.names import family


def written(folder: Path, text: str) -> Path:
    path = folder / "map.yaml"
    path.write_text(text)
    return path


def test_a_map_is_read(tmp_path: Path) -> None:
    text = "version: 1\nmodules: {a: b, c: null}\nweights: {w: [x, y], v: z, u: null}\n"
    found = read_mapping(written(tmp_path, text + "calls: {'a · f': 'b · g'}\n"))
    assert found.modules == {"a": "b", "c": None}
    assert found.weights == {"w": ("x", "y"), "v": ("z",), "u": ()}
    assert found.calls == {"a · f": "b · g"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modules: [a]", "target name: reference name"),
        ("modules: {a: [b, c]}", "one name or null"),
        ("weights: {a: 3}", "a name or a list of names"),
        ("module: {a: b}", "module is not known"),
        ("version: 2", "version: 1"),
        ("{", "is not YAML"),
    ],
)
def test_a_wrong_map_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_mapping(written(tmp_path, text))


def test_no_map_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_mapping(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (["model.embed_tokens", "model.layers.3.self_attn.q_proj", "lm_head"], "huggingface"),
        (["embedding.word_embeddings", "decoder.layers.0.mlp.linear_fc1", "output_layer"], "megatron"),
        (["model.tok_embeddings", "model.layers.1.attention.w_qkv", "model.norm_out"], "mindformers"),
        (["tok_embeddings", "layers.11.feed_forward.w1", "output"], "torchtitan"),
        (["emb", "layers.0.ln1", "layers.0.attn.qkv"], "trueup_gpt"),
    ],
)
def test_families(names: list[str], known: str) -> None:
    found = family_of(names)
    assert found is not None
    assert found.name == known


def test_an_unknown_family_is_none() -> None:
    assert family_of(["backbone.stage.1.conv", "backbone.fc", "neck.a"]) is None


def test_fused_weights_name_their_parts() -> None:
    found = common_weights(["decoder.layers.2.self_attention.linear_qkv.weight"])
    common = found["decoder.layers.2.self_attention.linear_qkv.weight"]
    assert common.wholes == tuple(f"layers.2.attention.{x}" for x in ("query", "key", "value"))


def test_mindspore_spellings() -> None:
    assert weight_kind("a.gamma") == weight_kind("a.embedding_table") == "weight"
    assert family("mindspore.ops.MatMul") == family("torch.matmul") == family("mindspore.mint.matmul")
    assert family("mindspore.ops.AddExt") == family("torch.Tensor.__iadd__")
    assert family("mindspore.ops.Cast") == family("torch.Tensor.to")
