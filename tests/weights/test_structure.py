"""A port that was never converted: a plan by layers and shapes, for a person to edit before a conversion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trueup.cli import app
from trueup.cli.inferring import infer_plan
from trueup.weights.applying import apply_plan
from trueup.weights.plan_file import read_plan
from trueup.weights.weight_set import MemoryWeights

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


def grouped_port(folder: Path, heads: int, groups: int, size: int, name: str) -> dict[str, np.ndarray]:
    """Source and target of q, k and v under Megatron's name; what the right conversion makes."""
    rng, hidden = np.random.default_rng(heads), heads * size
    source: dict[str, np.ndarray] = {}
    made: dict[str, np.ndarray] = {}
    for layer in range(2):
        for part, width in (("weight", (hidden,)), ("bias", ())):
            one = [rng.normal(size=(rows, *width)) for rows in (hidden, groups * size, groups * size)]
            parts = {role: values.astype(np.float32) for role, values in zip("qkv", one, strict=True)}
            source |= {f"m.{layer}.self.{role}_proj.{part}": values for role, values in parts.items()}
            lines = [values.reshape(groups, -1, *width) for values in parts.values()]
            made[f"port.{layer}.core.{name}.{part}"] = np.concatenate(lines, axis=1).reshape(-1, *width)
    save_file(source, folder / "source.safetensors")
    other = {one: rng.normal(size=values.shape).astype(np.float32) for one, values in made.items()}
    save_file(other, folder / "target.safetensors")
    return made


@pytest.mark.parametrize("name", ["linear_qkv", "query_key_value"])
@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 8), (6, 2, 4), (8, 1, 6)])
def test_query_groups_of_megatron_lie_together(
    heads: int, groups: int, size: int, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = grouped_port(tmp_path, heads, groups, size, name)
    file = tmp_path / "out.safetensors.plan.yaml"
    assert convert(tmp_path) == 2
    assert "--num-heads" in capsys.readouterr().err
    assert not file.exists(), "three plain slices would be another model"
    assert convert(tmp_path, "--num-heads", str(heads)) == 2
    assert convert(tmp_path, "--plan", str(file)) == 0
    written = load_file(tmp_path / "out.safetensors")
    assert all(np.array_equal(written[one], values) for one, values in made.items())
    source = load_file(tmp_path / "source.safetensors")
    save_file(made, tmp_path / "source.safetensors")
    save_file({one: values * values + 1 for one, values in source.items()}, tmp_path / "target.safetensors")
    assert convert(tmp_path, "--num-heads", str(heads)) == 2
    assert convert(tmp_path, "--plan", str(file)) == 0
    back = load_file(tmp_path / "out.safetensors")
    assert all(np.array_equal(back[one], values) for one, values in source.items())


CHATGLM = "transformer.encoder.layers.{layer}.self_attention.query_key_value"
LAID = [  # name, whether by groups of heads, whether its name leaves that open
    (CHATGLM, False, False),
    ("language_model.encoder.layers.{layer}.self_attention.query_key_value", True, False),
    ("transformer.h.{layer}.self_attention.query_key_value", True, False),
    ("model.layers.{layer}.attention.wqkv", True, False),
    ("encoder.layers.{layer}.self_attention.query_key_value", True, True),
    ("decoder.{layer}.self_attention.linear_qkv", True, True),
    ("net.{layer}.attention.w_qkv", True, True),
    ("net.{layer}.mix.in_proj", False, True),
]


@pytest.mark.parametrize(("name", "by_groups", "is_open"), LAID)
@pytest.mark.parametrize("reverse", [False, True])
def test_how_a_fused_weight_lies_is_told_by_its_name_or_left_open(
    name: str,
    by_groups: bool,
    is_open: bool,
    reverse: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heads, groups, size = 6, 2, 4
    rng = np.random.default_rng(7)
    apart = {
        f"m.{layer}.self.{role}_proj.weight": rng.normal(size=(rows * size, 24)).astype(np.float32)
        for layer in range(2)
        for role, rows in zip("qkv", (heads, groups, groups), strict=True)
    }

    def fused(grouped: bool) -> dict[str, np.ndarray]:
        made = {}
        for layer in range(2):
            parts = [apart[f"m.{layer}.self.{role}_proj.weight"] for role in "qkv"]
            lines = [part.reshape(groups, -1, 24) for part in parts] if grouped else parts
            whole = np.concatenate(lines, axis=1 if grouped else 0).reshape(-1, 24)
            made[f"{name.format(layer=layer)}.weight"] = whole
        return made

    for second in (False, True)[: 1 + is_open]:
        made = fused(by_groups != second)
        source, target = (made, apart) if reverse else (apart, made)
        save_file(source, tmp_path / "source.safetensors")
        save_file({one: values + 1 for one, values in target.items()}, tmp_path / "target.safetensors")
        assert convert(tmp_path, "--num-heads", "6") == 2
        plans = sorted(path.name for path in tmp_path.glob("*.yaml"))
        assert plans == (["out.safetensors.plan.other.yaml"] if is_open else []) + [
            "out.safetensors.plan.yaml"
        ]
        assert ("leave open" in capsys.readouterr().err) == is_open
        assert convert(tmp_path, "--plan", str(tmp_path / plans[-2 if second else -1])) == 0
        written = load_file(tmp_path / "out.safetensors")
        assert all(np.array_equal(written[one], values) for one, values in target.items())


def test_heads_of_chatglm_are_groups_of_one(tmp_path: Path) -> None:
    made = grouped_port(tmp_path, 4, 4, 8, "x")
    renamed = {
        re.sub(r"port\.(\d)\.core\.x", lambda at: CHATGLM.format(layer=at[1]), one): one for one in made
    }
    save_file({one: made[other] + 1 for one, other in renamed.items()}, tmp_path / "target.safetensors")
    assert convert(tmp_path, "--num-heads", "4") == 2
    assert convert(tmp_path, "--plan", str(tmp_path / "out.safetensors.plan.yaml")) == 0
    assert not (tmp_path / "out.safetensors.plan.other.yaml").exists()
    written = load_file(tmp_path / "out.safetensors")
    assert all(np.array_equal(written[one], made[other]) for one, other in renamed.items())


def test_gate_and_up_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    gate, up = (rng.normal(size=(5, 4)).astype(np.float32) for _ in range(2))
    save_file(
        {"m.0.mlp.gate_proj.weight": gate, "m.0.mlp.up_proj.weight": up}, tmp_path / "source.safetensors"
    )
    rows = np.stack((gate, up), axis=1).reshape(10, 4)
    save_file({"n.0.ff.w_gate_hidden.weight": rows + 1}, tmp_path / "target.safetensors")
    assert convert(tmp_path) == 2
    assert "a row of each part in turn" in capsys.readouterr().err
    for plan, made in (("", rows), (".other", np.concatenate((gate, up)))):
        assert convert(tmp_path, "--plan", str(tmp_path / f"out.safetensors.plan{plan}.yaml")) == 0
        written = load_file(tmp_path / "out.safetensors")
        assert np.array_equal(written["n.0.ff.w_gate_hidden.weight"], made)


def test_an_edited_plan_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grouped_port(tmp_path, 6, 2, 4, "linear_qkv")
    plan = tmp_path / "out.safetensors.plan.yaml"
    assert convert(tmp_path) == 2
    assert convert(tmp_path, "--num-heads", "6", "--num-kv-heads", "2") == 2
    assert "is there already" not in capsys.readouterr().err
    plan.write_text(plan.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    edited = plan.read_bytes()
    assert convert(tmp_path, "--num-heads", "6", "--num-kv-heads", "2") == 2
    assert "is there already" in capsys.readouterr().err
    assert plan.read_bytes() == edited


def test_heads_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grouped_port(tmp_path, 6, 2, 4, "linear_qkv")
    assert convert(tmp_path, "--num-heads", "5") == 2
    assert "24 rows of queries and 8 of keys are not those of 5 heads" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"num_attention_heads": 6, "num_key_value_heads": 2}')
    assert convert(tmp_path) == 2
    assert (tmp_path / "out.safetensors.plan.yaml").exists()


ROLES = {
    "self_attn.q_proj": ("att.wq", "mixer.query", "attn.to_q"),
    "self_attn.k_proj": ("att.wk", "mixer.key", "attn.to_k"),
    "self_attn.v_proj": ("att.wv", "mixer.value", "attn.to_v"),
    "self_attn.o_proj": ("att.wo", "mixer.out", "attn.to_out"),
    "mlp.gate_proj": ("ff.w1", "ffn.w_gate", "ff.gate"),
    "mlp.up_proj": ("ff.w3", "ffn.w_up", "ff.up"),
    "mlp.down_proj": ("ff.w2", "ffn.w_down", "ff.down"),
    "input_layernorm": ("n1", "ln_1", "attention_norm"),
    "post_attention_layernorm": ("n2", "ln_2", "ffn_norm"),
}


@pytest.mark.parametrize("port", range(3))
def test_equal_shapes_are_paired_by_what_they_are_for(port: int, tmp_path: Path) -> None:
    """All matrices of a layer are square here; words tell them apart, however they are spelled."""
    names = {"model.embed_tokens.weight": ("tok.table", "wte.w", "word_embeddings.w")[port]}
    names["lm_head.weight"] = ("out.kernel", "head.w", "output_layer.w")[port]
    for layer in range(2):
        for role, others in ROLES.items():
            names[f"model.layers.{layer}.{role}.weight"] = f"stack.{layer}.{others[port]}.w"
    shapes = {name: (6,) if "norm" in name else (6, 6) if "layers" in name else (9, 6) for name in names}
    write(tmp_path / "source.safetensors", list(shapes.items()), 1)
    write(tmp_path / "target.safetensors", [(names[name], shapes[name]) for name in shapes], 2)
    assert convert(tmp_path) == 2
    plan = read_plan(tmp_path / "out.safetensors.plan.yaml")
    assert {entry.pieces[0].source: entry.target for entry in plan.entries} == names


# each scheme: towers and layers, self attention, attention to the encoder, MLP, norms of these, last norm
SPELLINGS = {
    "t5": (
        "{tower}coder.block.{layer}.layer.",
        "0.SelfAttention.{role}",
        "1.EncDecAttention.{role}",
        ("{mlp}.DenseReluDense.wi", "{mlp}.DenseReluDense.wo"),
        ("0.layer_norm", "1.layer_norm", "{mlp}.layer_norm"),
        "{tower}coder.final_layer_norm",
    ),
    "bart": (
        "{tower}coder.layers.{layer}.",
        "self_attn.{role}_proj",
        "encoder_attn.{role}_proj",
        ("fc1", "fc2"),
        ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
        "{tower}coder.layer_norm",
    ),
    "whisper": (
        "{tower}coder.blocks.{layer}.",
        "attn.{word}",
        "cross_attn.{word}",
        ("mlp.0", "mlp.2"),
        ("attn_ln", "cross_attn_ln", "mlp_ln"),
        "{tower}coder.ln_post",
    ),
    "t5x": (
        "{tower}coder.layers_{layer}.",
        "self_attention.{word}",
        "encoder_decoder_attention.{word}",
        ("mlp.wi", "mlp.wo"),
        ("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"),
        "{tower}coder.{tower}coder_norm",
    ),
    "torch": (
        "{tower}coder.layers.{layer}.",
        "self_attn.w{role}",
        "multihead_attn.w{role}",
        ("linear1", "linear2"),
        ("norm1", "norm2", "norm3"),
        "{tower}coder.norm",
    ),
    "own": (
        "{tower}.h.{layer}.",
        "attn.w{role}",
        "cross.w{role}",
        ("mlp.up", "mlp.down"),
        ("ln_self", "ln_cross", "ln_ff"),
        "{tower}.ln_f",
    ),
}
WORDS = {"q": "query", "k": "key", "v": "value", "o": "out"}


def encoder_decoder(scheme: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of two layers a tower, always in one order."""
    layers, own, other, mlp, norms, last = SPELLINGS[scheme]
    found: list[tuple[str, tuple[int, ...]]] = [("table.weight", (30, 8))]
    for tower in ("en", "de"):
        is_decoder = tower == "de"
        if scheme == "torch" and not is_decoder:  # two norms in an encoder's layer
            norms = (norms[0], norms[1], norms[1])
        elif scheme == "torch":
            norms = SPELLINGS[scheme][4]
        for layer in range(2):
            parts = (own, other) if is_decoder else (own,)
            names = [(part.format(role=r, word=word), (8, 8)) for part in parts for r, word in WORDS.items()]
            names += [(mlp[0], (12, 8)), (mlp[1], (8, 12))]
            names += [(one, (8,)) for one in (norms if is_decoder else (norms[0], norms[2]))]
            place = {"tower": tower, "layer": layer, "mlp": 2 if is_decoder else 1}
            found += [(f"{(layers + one).format(**place)}.weight", shape) for one, shape in names]
        found.append((f"{last.format(tower=tower)}.weight", (8,)))
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("scheme", [one for one in SPELLINGS if one != "t5"])
def test_norms_and_attentions_of_an_encoder_and_decoder(scheme: str, reverse: bool, tmp_path: Path) -> None:
    """All norms are of one shape; what stands beside a norm tells what it is of."""
    sides = [encoder_decoder("t5"), encoder_decoder(scheme)]
    source, target = reversed(sides) if reverse else sides
    rng = np.random.default_rng(5)
    write(tmp_path / "source.safetensors", source, 1)
    write(tmp_path / "target.safetensors", [target[at] for at in rng.permutation(len(target))], 2)
    assert convert(tmp_path) == 2
    plan = read_plan(tmp_path / "out.safetensors.plan.yaml")
    wanted = {one: other for (one, _), (other, _) in zip(target, source, strict=True)}
    assert {entry.target: entry.pieces[0].source for entry in plan.entries} == wanted


# -- whole models in other arrangements ------------------------------------------

Arrays = dict[str, np.ndarray]
H, KV, F, V, NUM, EXPERTS = 12, 6, 20, 40, 3, 4


def own_model(port: str) -> tuple[Arrays, Arrays]:
    """Weights by Hugging Face's names, and the same numbers as ``port`` arranges them."""
    rng = np.random.default_rng(len(port))

    def made(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    source = {"model.embed_tokens.weight": made(V, H), "lm_head.weight": made(V, H)}
    target = {"tok.weight": source["model.embed_tokens.weight"], "head.weight": source["lm_head.weight"]}
    layers = []
    for layer in range(NUM):
        one = {
            "n1": made(H),
            "n2": made(H),
            "q": made(H, H),
            "k": made(KV, H),
            "v": made(KV, H),
            "o": made(H, H),
        }
        names = (
            "input_layernorm",
            "post_attention_layernorm",
            *(f"self_attn.{role}_proj" for role in "qkvo"),
        )
        at = f"model.layers.{layer}"
        source |= {f"{at}.{name}.weight": one[key] for name, key in zip(names, one, strict=True)}
        one["experts"] = [(made(F, H), made(F, H), made(H, F)) for _ in range(EXPERTS)]
        one["router"] = source[f"{at}.mlp.gate.weight"] = made(EXPERTS, H)
        for expert, parts in enumerate(one["experts"]):
            roles = zip(("gate", "up", "down"), parts, strict=True)
            source |= {f"{at}.mlp.experts.{expert}.{role}_proj.weight": part for role, part in roles}
        layers.append(one)
    return source, target | PORTS[port](layers)


def apart(layers: list[dict[str, object]], beginning: str, **names: str) -> Arrays:
    """The weights of attention and norms, and the router."""
    usual = {"n1": "ln_1.weight", "n2": "ln_2.weight", "router": "moe.router.weight"}
    usual |= {role: f"attn.w{role}.weight" for role in "qkvo"}
    return {
        f"{beginning.format(at=at, stage=at // 2, inner=at % 2)}{name}": one[key]
        for at, one in enumerate(layers)
        for key, name in (usual | names).items()
        if name
    }


def each_expert(
    layers: list[dict[str, object]], name: str, make: object, beginning: str = "blk.{at}."
) -> Arrays:
    return {
        beginning.format(at=at, stage=at // 2, inner=at % 2) + name.format(expert=expert, part=part): values
        for at, one in enumerate(layers)
        for expert, parts in enumerate(one["experts"])  # type: ignore[arg-type, var-annotated]
        for part, values in make(*parts).items()  # type: ignore[operator]
    }


def single(gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> Arrays:
    return {"w1": gate, "w3": up, "w2": down}


def _stacked(layers: list[dict[str, object]], *, turned: bool, fused: bool) -> Arrays:
    found = apart(layers, "blk.{at}.")
    for at, one in enumerate(layers):
        parts = [np.stack(those) for those in zip(*one["experts"], strict=True)]  # type: ignore[call-overload]
        named = {"gate_up": np.concatenate(parts[:2], axis=1), "down": parts[2]}
        named = named if fused else dict(zip(("w1", "w3", "w2"), parts, strict=True))
        found |= {f"blk.{at}.moe.{name}": v.swapaxes(1, 2) if turned else v for name, v in named.items()}
    return found


def _scanned(layers: list[dict[str, object]]) -> Arrays:
    """All layers in one weight, (in, out) as Flax has it, experts one by one in it."""
    by_layer = apart(layers, "{at}.", **{role: f"attn.w{role}.kernel" for role in "qkvo"})
    by_layer |= {
        name: values.T for name, values in each_expert(layers, "moe.{part}.kernel", single, "{at}.").items()
    }
    names = dict.fromkeys(name.partition(".")[2] for name in by_layer)
    found = {}
    for name in names:
        whole = [by_layer[f"{at}.{name}"] for at in range(NUM)]
        found[f"scan.{name}"] = np.stack([one.T if "attn" in name else one for one in whole])
    for part, number in (("w1", 0), ("w3", 1), ("w2", 2)):
        experts = [[parts[number].T for parts in one["experts"]] for one in layers]  # type: ignore[attr-defined]
        found[f"scan.moe.{part}.kernel"] = np.array(experts)
    return found


def _fused_turned(layers: list[dict[str, object]]) -> Arrays:
    found = apart(layers, "h.{at}.", q="", k="", v="", o="")
    for at, one in enumerate(layers):
        found[f"h.{at}.attn.c_attn.weight"] = np.concatenate([one[role] for role in "qkv"]).T  # type: ignore[misc]
        found[f"h.{at}.attn.c_proj.weight"] = one["o"].T  # type: ignore[attr-defined]
    turned = each_expert(layers, "moe.experts.{expert}.{part}.weight", single, "h.{at}.")
    return found | {name: values.T for name, values in turned.items()}


def _two_of_one(layers: list[dict[str, object]]) -> Arrays:
    """Keys above values: as many rows as queries have."""
    found = apart(layers, "blk.{at}.", k="", v="")
    for at, one in enumerate(layers):
        found[f"blk.{at}.attn.wkv.weight"] = np.concatenate([one["k"], one["v"]])  # type: ignore[arg-type]
    return found | each_expert(
        layers,
        "moe.experts.{expert}.{part}.weight",
        lambda gate, up, down: {"fc1": np.concatenate([gate, up]), "fc2": down},
    )


PORTS = {
    "stages": lambda layers: (
        apart(layers, "stages.{stage}.layers.{inner}.")
        | each_expert(layers, "moe.{part}.{expert}.weight", single, "stages.{stage}.layers.{inner}.")
    ),
    "numbers beside": lambda layers: {
        f"model.0.{name}": values
        for name, values in (
            apart(layers, "blk{at}.", n1="ln_attn.scale", n2="ln_mlp.scale")
            | each_expert(layers, "moe.experts.{expert}.{part}.weight", single, "blk{at}.")
        ).items()
    },
    "stacked": lambda layers: _stacked(layers, turned=False, fused=False),
    "stacked, turned": lambda layers: _stacked(layers, turned=True, fused=False),
    "stacked, fused": lambda layers: _stacked(layers, turned=False, fused=True),
    "stacked, fused, turned": lambda layers: _stacked(layers, turned=True, fused=True),
    "scanned": _scanned,
    "fused, turned": _fused_turned,
    "two of one": _two_of_one,
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("port", PORTS)
def test_each_arrangement_of_a_model_is_proposed_whole(port: str, reverse: bool) -> None:
    source, target = own_model(port)
    source, target = (target, source) if reverse else (source, target)
    assert proposed(source, target) == target.keys()


@pytest.mark.parametrize(("port", "other"), [("stacked", "scanned"), ("stages", "stacked, fused, turned")])
def test_two_ports_are_paired_with_each_other(port: str, other: str) -> None:
    layers = [{**one} for one in _layers_of(11)]
    assert proposed(PORTS[port](layers), PORTS[other](layers)) == PORTS[other](layers).keys()


def _layers_of(seed: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    shapes = {
        "n1": (H,),
        "n2": (H,),
        "q": (H, H),
        "k": (KV, H),
        "v": (KV, H),
        "o": (H, H),
        "router": (EXPERTS, H),
    }
    return [
        {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        | {
            "experts": [
                tuple(rng.standard_normal(s) for s in ((F, H), (F, H), (H, F))) for _ in range(EXPERTS)
            ]
        }
        for _ in range(NUM)
    ]


def proposed(source: Arrays, target: Arrays) -> set[str]:
    """The weights of ``target`` that the proposal makes right, of ``target`` without its numbers."""
    weights = MemoryWeights(source)
    blank = MemoryWeights(
        {name: np.cos(np.arange(values.size)).reshape(values.shape) for name, values in target.items()}
    )
    plan = infer_plan(blank, weights, by_structure=True, num_heads=2)
    made = apply_plan(plan, weights)
    return {name for name in made.table if np.array_equal(made.read(name), target[name])}
