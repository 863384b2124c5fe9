"""Naming maps: every family to every other and back, and layouts against their definition in plain numpy."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from tests.weights.made import assert_same, numbered
from trueup.errors import ConfigError
from trueup.weights.applying import apply_plan
from trueup.weights.conventions import plan_to_framework
from trueup.weights.converting import with_padded_vocabulary
from trueup.weights.inverse import inverse
from trueup.weights.layouts import Heads
from trueup.weights.mapping import assumed, families_of, family_of, plan_from_maps
from trueup.weights.name_map import family_names, name_map
from trueup.weights.pairing import renamed_by_map
from trueup.weights.plan import Values
from trueup.weights.weight_set import MemoryWeights, WeightSet

VOCABULARY, WIDTH, INNER, SIZE, EXPERTS = 11, 8, 6, 4, 3
HEADS = Heads(num_heads=4, num_kv_heads=2)
DENSE = ("hf-llama", "megatron", "mindformers-llama", "mindformers-llama-fused", "torchtitan-llama")
VERSIONS = (
    "mindformers-llama-fused-1.4",
    "mindformers-mcore-1.6",
    "mindformers-mcore-1.7",
    "mindformers-mcore-1.7-contiguous",
)
"""which keep other layouts under the names of another family"""
SPARSE = ("hf-mixtral", "hf-qwen-moe", "hf-moe-stacked", "megatron")


def llama() -> MemoryWeights:
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCABULARY, WIDTH),
    }
    for layer in ("model.layers.0", "model.layers.11"):
        shapes |= attention(layer) | {
            f"{layer}.mlp.gate_proj.weight": (INNER, WIDTH),
            f"{layer}.mlp.up_proj.weight": (INNER, WIDTH),
            f"{layer}.mlp.down_proj.weight": (WIDTH, INNER),
        }
    return MemoryWeights(numbered(**shapes))


def attention(layer: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{layer}.self_attn.q_proj.weight": (4 * SIZE, WIDTH),
        f"{layer}.self_attn.q_proj.bias": (4 * SIZE,),
        f"{layer}.self_attn.k_proj.weight": (2 * SIZE, WIDTH),
        f"{layer}.self_attn.k_proj.bias": (2 * SIZE,),
        f"{layer}.self_attn.v_proj.weight": (2 * SIZE, WIDTH),
        f"{layer}.self_attn.v_proj.bias": (2 * SIZE,),
        f"{layer}.self_attn.o_proj.weight": (WIDTH, 4 * SIZE),
        f"{layer}.input_layernorm.weight": (WIDTH,),
        f"{layer}.post_attention_layernorm.weight": (WIDTH,),
    }


def mixtral() -> MemoryWeights:
    moe = "model.layers.0.block_sparse_moe"
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    shapes |= attention("model.layers.0") | {f"{moe}.gate.weight": (EXPERTS, WIDTH)}
    for expert in range(EXPERTS):
        shapes |= {
            f"{moe}.experts.{expert}.w1.weight": (INNER, WIDTH),
            f"{moe}.experts.{expert}.w2.weight": (WIDTH, INNER),
            f"{moe}.experts.{expert}.w3.weight": (INNER, WIDTH),
        }
    return MemoryWeights(numbered(**shapes))


def gpt2() -> MemoryWeights:
    shapes = {"transformer.wte.weight": (VOCABULARY, WIDTH), "transformer.wpe.weight": (5, WIDTH)}
    layer = "transformer.h.0"
    for name, (rows, columns) in {
        "attn.c_attn": (WIDTH, 3 * WIDTH),
        "attn.c_proj": (WIDTH, WIDTH),
        "mlp.c_fc": (WIDTH, 4 * WIDTH),
        "mlp.c_proj": (4 * WIDTH, WIDTH),
    }.items():
        shapes |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (columns,)}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"transformer.{name}.weight": (WIDTH,), f"transformer.{name}.bias": (WIDTH,)}
    return MemoryWeights(numbered(**shapes))


def converted(source: WeightSet, to: str, heads: Heads = HEADS) -> WeightSet:
    return apply_plan(plan_from_maps(source.table, to=to, heads=heads), source)


@pytest.mark.parametrize(("one", "other"), [*permutations(DENSE, 2)])
def test_dense_families_convert_both_ways(one: str, other: str) -> None:
    begun = converted(llama(), one) if one != "hf-llama" else llama()
    assert family_of(begun.table) == one
    there = converted(begun, other)
    assert family_of(there.table) == other
    assert_same_set(converted(there, one), begun)
    assert_same_set(converted(there, "hf-llama"), llama())


@pytest.mark.parametrize("family", VERSIONS)
def test_layouts_of_other_versions(family: str) -> None:
    there = converted(llama(), family)
    alike = family_of(there.table)
    assert alike is not None
    assert alike not in VERSIONS
    assert family in families_of(there.table)
    again = plan_from_maps(there.table, to="hf-llama", source_family=family, heads=HEADS)
    assert_same_set(apply_plan(again, there), llama())
    ours, told = renamed_by_map(llama(), there, HEADS)
    assert family in told
    assert_same_set(ours, llama())
    ours, told = renamed_by_map(there, llama(), HEADS)
    assert family in told
    assert_same_set(ours, there)


def test_mindformers_from_1_4_by_definition() -> None:
    """``qkv_concat_hf2mg`` and ``ffn_concat_hf2mg`` of mindformers/utils/convert_utils.py, written out."""
    one = converted(llama(), "mindformers-llama-fused-1.4").read
    q, k, v = (hf(f"self_attn.{role}_proj.weight").reshape(2, -1, WIDTH) for role in "qkv")
    whole = np.concatenate((q, k, v), axis=1).reshape(-1, WIDTH)
    assert np.array_equal(one("model.layers.0.attention.w_qkv.weight"), whole)
    gate, up = (hf(f"mlp.{role}_proj.weight").reshape(INNER, 1, WIDTH) for role in ("gate", "up"))
    rows = np.concatenate((gate, up), axis=1).reshape(2 * INNER, WIDTH)
    assert np.array_equal(one("model.layers.0.feed_forward.w_gate_hidden.weight"), rows)


@pytest.mark.parametrize(
    ("to", "source_family", "told"),
    [
        ("mindformers-llama-fused", None, ["--to mindformers-llama-fused-1.4"]),
        ("mindformers-llama-fused-1.4", None, []),
        ("megatron", None, []),
        ("hf-gpt2", None, []),
    ],
)
def test_layouts_that_were_taken_for_granted_are_told(
    to: str, source_family: str | None, told: list[str]
) -> None:
    made = converted(llama(), to if to != "hf-gpt2" else "hf-llama")
    said = list(assumed(llama().table, to=to, source_family=source_family, made=made.table))
    assert [any(word in one for one in said) for word in told] == [True] * len(told)
    assert len(said) == len(told)
    back = list(assumed(made.table, to="hf-llama", source_family=None, made=llama().table))
    assert bool(back) == (to in ("megatron", *VERSIONS, "mindformers-llama-fused"))


@pytest.mark.parametrize(("one", "other"), [*permutations(SPARSE, 2)])
def test_expert_families_convert_both_ways(one: str, other: str) -> None:
    begun = converted(mixtral(), one) if one != "hf-mixtral" else mixtral()
    there = converted(begun, other)
    assert_same_set(converted(there, one), begun)
    assert_same_set(converted(there, "hf-mixtral"), mixtral())


@pytest.mark.parametrize("to", [*DENSE[1:], "hf-llama"])
def test_plans_of_maps_can_be_turned_round(to: str) -> None:
    plan = plan_from_maps(llama().table, to=to, heads=HEADS)
    shapes = {name: info.shape for name, info in llama().table.items()}
    assert_same_set(apply_plan(inverse(plan, shapes), apply_plan(plan, llama())), llama())


@pytest.mark.parametrize("to", SPARSE)
def test_plans_of_expert_maps_can_be_turned_round(to: str) -> None:
    for source in (mixtral(), converted(mixtral(), "hf-moe-stacked")):
        plan = plan_from_maps(source.table, to=to, heads=HEADS)
        shapes = {name: info.shape for name, info in source.table.items()}
        assert_same_set(apply_plan(inverse(plan, shapes), apply_plan(plan, source)), source)


def test_gpt2_converts_both_ways() -> None:
    plain = Heads(num_heads=2)
    there = converted(gpt2(), "megatron", plain)
    assert there.table["decoder.layers.0.mlp.linear_fc1.weight"].shape == (4 * WIDTH, WIDTH)
    assert "embedding.position_embeddings.weight" in there.table
    assert_same_set(converted(there, "hf-gpt2", plain), gpt2())


def assert_same_set(actual: WeightSet, expected: WeightSet) -> None:
    """The same weights, in whatever order."""
    assert set(actual.table) == set(expected.table)
    ordered = MemoryWeights({name: actual.read(name) for name in expected.table})
    assert_same(ordered, MemoryWeights({name: expected.read(name) for name in expected.table}))


def hf(name: str) -> Values:
    return llama().read(f"model.layers.0.{name}")


def test_grouped_qkv_by_definition() -> None:
    """Each query group in turn: its query heads, its key, its value."""
    rows = []
    for group in range(2):
        heads = (2 * group, 2 * group + 1)
        rows += [hf("self_attn.q_proj.weight")[head * SIZE : (head + 1) * SIZE] for head in heads]
        rows.append(hf("self_attn.k_proj.weight")[group * SIZE : (group + 1) * SIZE])
        rows.append(hf("self_attn.v_proj.weight")[group * SIZE : (group + 1) * SIZE])
    made = converted(llama(), "megatron").read("decoder.layers.0.self_attention.linear_qkv.weight")
    assert np.array_equal(made, np.concatenate(rows))


def test_interleaved_rotary_by_definition() -> None:
    """Row i of the first half of a head becomes row 2 i, row i of the second half row 2 i + 1."""
    made = converted(llama(), "torchtitan-llama")
    for name, ours, heads in (("wq", "q_proj", 4), ("wk", "k_proj", 2)):
        for part in ("weight", "bias"):
            plain = hf(f"self_attn.{ours}.{part}").reshape(heads, SIZE, -1)
            turned = made.read(f"layers.0.attention.{name}.{part}").reshape(heads, SIZE, -1)
            for i in range(SIZE // 2):
                assert np.array_equal(turned[:, 2 * i], plain[:, i])
                assert np.array_equal(turned[:, 2 * i + 1], plain[:, SIZE // 2 + i])
    assert np.array_equal(made.read("layers.0.attention.wv.weight"), hf("self_attn.v_proj.weight"))


def test_stacked_experts_by_definition() -> None:
    stacked = converted(mixtral(), "hf-moe-stacked").read("model.layers.0.mlp.experts.gate_up_proj")
    experts = "model.layers.0.block_sparse_moe.experts"
    for expert in range(EXPERTS):
        parts = [mixtral().read(f"{experts}.{expert}.{name}.weight") for name in ("w1", "w3")]
        assert np.array_equal(stacked[expert], np.concatenate(parts))


def test_conv1d_of_gpt2_by_definition() -> None:
    made = converted(gpt2(), "megatron", Heads(num_heads=1)).read(
        "decoder.layers.0.self_attention.linear_qkv.weight"
    )
    assert np.array_equal(made, gpt2().read("transformer.h.0.attn.c_attn.weight").T)


def test_megatron_of_local_layers_is_read() -> None:
    there = converted(mixtral(), "megatron")
    renamed = {}
    for name in there.table:
        local = name.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight")
        for fc in ("linear_fc1", "linear_fc2"):
            head, weight, expert = local.partition(f"experts.{fc}.weight")
            local = f"{head}experts.local_experts.{expert}.{fc}.weight" if weight else local
        renamed["module." + local] = there.read(name)
    assert sum("local_experts" in name for name in renamed) == 2 * EXPERTS
    assert_same_set(converted(MemoryWeights(renamed), "hf-mixtral"), mixtral())


def test_what_a_map_cannot_do_is_said() -> None:
    def refusal(weights: WeightSet, to: str, heads: Heads = HEADS, **more: str) -> str:
        with pytest.raises(ConfigError) as caught:
            plan_from_maps(weights.table, to=to, heads=heads, **more)  # type: ignore[arg-type]
        return str(caught.value)

    assert "no naming map reads these weights" in refusal(MemoryWeights(numbered(x=(2,))), "megatron")
    assert "no naming map 'hf-lama'; there is hf-gpt2," in refusal(llama(), "hf-lama")
    assert "add --num-heads" in refusal(llama(), "megatron", Heads())
    assert "4 attention heads do not divide into 3" in refusal(
        llama(), "megatron", Heads(num_heads=4, num_kv_heads=3)
    )
    assert "does not divide into 5 query groups" in refusal(llama(), "megatron", Heads(num_heads=5))
    assert "hf-gpt2 has no place for model.layers.0.mlp.gate_proj.weight" in refusal(llama(), "hf-gpt2")
    odd = MemoryWeights(numbered(**{"model.norm.weight": (2,), "lm_head.weight": (2, 2), "adapter": (1,)}))
    assert "hf-llama has no rule for adapter" in refusal(odd, "megatron", source_family="hf-llama")
    twice = converted(llama(), "megatron")
    arrays = {name: twice.read(name) for name in twice.table}
    arrays["decoder.layers.0.input_layernorm.weight"] = np.ones(WIDTH, np.float32)
    assert "are both layers.0.attention_norm.weight" in refusal(MemoryWeights(arrays), "hf-llama")
    qkv = "decoder.layers.0.self_attention.linear_qkv.weight"
    arrays = {qkv: np.zeros((31, WIDTH), np.float32)}
    assert "31 rows are not heads of one size" in refusal(MemoryWeights(arrays), "hf-llama")


def test_left_over_weights_are_listed_where_that_is_allowed() -> None:
    weights = numbered(**{"model.norm.weight": (2,), "adapter": (1,), "model.rotary_emb.inv_freq": (2,)})
    strict = numbered(**{"model.norm.weight": (2,), "model.rotary_emb.inv_freq": (2,)})
    plan = plan_from_maps(MemoryWeights(strict).table, to="megatron", source_family="hf-llama")
    assert plan.only_source == ("model.rotary_emb.inv_freq",), "a buffer the model computes is no loss"
    plan = plan_from_maps(MemoryWeights(weights).table, to="megatron", source_family="hf-llama", whole=False)
    assert set(plan.only_source) == {"adapter", "model.rotary_emb.inv_freq"}


@pytest.mark.parametrize("family", family_names())
def test_maps_are_sound(family: str) -> None:
    rules = name_map(family)
    assert rules.name == family
    names = [pattern for rule in rules.rules for pattern in (rule.name, *rule.also)]
    assert len(set(names)) == len(names)
    for rule in rules.rules:
        single = rule.layout in ("same", "interleaved_rotary")
        assert (len(rule.parts) == 1) or not single


def test_mindspore_names_of_torch_layers() -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "bn.weight": (3,),
        "bn.bias": (3,),
        "bn.running_mean": (3,),
        "bn.running_var": (3,),
        "bn.num_batches_tracked": (),
        "ln.weight": (4,),
        "ln.bias": (4,),
        "rms.weight": (4,),
        "fc.weight": (4, 3),
        "fc.bias": (4,),
        "tok_embeddings.weight": (9, 4),
        "conv.weight": (2, 3, 3, 3),
    }
    source = MemoryWeights(numbered(**shapes))
    plan = plan_to_framework(source.table, "mindspore")
    names = {entry.pieces[0].source: entry.target for entry in plan.entries}
    assert names == {
        "bn.weight": "bn.gamma",
        "bn.bias": "bn.beta",
        "bn.running_mean": "bn.moving_mean",
        "bn.running_var": "bn.moving_variance",
        "ln.weight": "ln.gamma",
        "ln.bias": "ln.beta",
        "rms.weight": "rms.weight",
        "fc.weight": "fc.weight",
        "fc.bias": "fc.bias",
        "tok_embeddings.weight": "tok_embeddings.embedding_table",
        "conv.weight": "conv.weight",
    }
    assert plan.only_source == ("bn.num_batches_tracked",)
    there = apply_plan(plan, source)
    back = apply_plan(plan_to_framework(there.table, "torch"), there)
    assert set(back.table) == set(shapes) - {"bn.num_batches_tracked"}
    assert all(np.array_equal(back.read(name), source.read(name)) for name in back.table)


def test_a_padded_vocabulary() -> None:
    plan = plan_from_maps(llama().table, to="megatron", heads=HEADS)
    table = apply_plan(plan, llama()).table
    padded = apply_plan(with_padded_vocabulary(plan, table, 16), llama())
    for name, plain in (
        ("embedding.word_embeddings.weight", "model.embed_tokens.weight"),
        ("output_layer.weight", "lm_head.weight"),
    ):
        values = padded.read(name)
        assert values.shape == (16, WIDTH)
        assert np.array_equal(values[:VOCABULARY], llama().read(plain))
        assert not values[VOCABULARY:].any()
    others = [name for name, info in padded.table.items() if info.shape != table[name].shape]
    assert len(others) == 2
    even = with_padded_vocabulary(plan, table, VOCABULARY)
    assert even == plan
    with pytest.raises(ConfigError, match="a number above 0"):
        with_padded_vocabulary(plan, table, 0)


def test_no_embedding_to_pad() -> None:
    weights = MemoryWeights(numbered(**{"fc.weight": (3, 2)}))
    plan = plan_to_framework(weights.table, "torch")
    with pytest.raises(ConfigError, match="--pad-vocab needs one token embedding; found none"):
        with_padded_vocabulary(plan, apply_plan(plan, weights).table, 16)
