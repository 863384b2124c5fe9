"""Megatron checkpoints: parts put together bit for bit, and nothing that a pickle names is run."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from tests.weights import megatron_checkpoints as made
from tests.weights.megatron_checkpoints import Layout
from trueup.errors import ConfigError, WeightsError
from trueup.weights.comparing import PairStatus, compare_weights
from trueup.weights.layouts import Heads
from trueup.weights.megatron_writing import MegatronLayout, layout_from_text, write_megatron
from trueup.weights.model_config import heads_beside
from trueup.weights.opening import open_weights
from trueup.weights.pairing import most_common, renamed_by_map
from trueup.weights.weight_set import MemoryWeights, WeightSet
from trueup.weights.writing import write_weights

pytestmark = pytest.mark.torch
HF_LAYER = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"),
)


def assert_holds(found: WeightSet, model: dict[str, Tensor]) -> None:
    assert set(found.table) == set(model)
    for name, whole in model.items():
        assert np.array_equal(found.read(name), whole.numpy()), name


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("layout", "experts"),
    [
        (Layout(), 0),
        (Layout(tensor=2), 0),
        (Layout(tensor=2, pipeline=2), 0),
        (Layout(pipeline=4), 0),
        (Layout(pipeline=2, chunks=2), 0),
        (Layout(tensor=2, pipeline=2, chunks=2), 0),
        (Layout(), 4),
        (Layout(expert=2), 4),
        (Layout(expert=4, pipeline=2), 4),
        (Layout(tensor=2, expert=2), 4),
        (Layout(tensor=2, pipeline=2, expert=2), 4),
    ],
)
def test_every_layout_is_the_whole_model(layout: Layout, experts: int, gated: bool, tmp_path: Path) -> None:
    model = made.whole_model(experts=experts, gated=gated)
    folder = made.write(tmp_path / "run", model, layout, experts=experts)
    assert_holds(open_weights(folder), model)
    assert_holds(open_weights(folder / "iter_0000100"), model)


@pytest.mark.parametrize("split", ["1", "2", "2,2", "1,4", "2,2,2", "1,1,4"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_is_split_and_put_together_again(split: str, tied: bool, tmp_path: Path) -> None:
    experts = 4 if split.count(",") == 2 else 0
    model = made.whole_model(experts=experts, tied=tied)
    weights = MemoryWeights({name: value.numpy() for name, value in model.items()})
    layout = layout_from_text(split, "--split")
    write_weights(weights, tmp_path / "out", format="megatron", layout=layout, num_groups=made.GROUPS)
    assert_holds(open_weights(tmp_path / "out"), model)
    expected = made.write(
        tmp_path / "as_megatron",
        model,
        Layout(tensor=layout.tensor, pipeline=layout.pipeline, expert=layout.expert),
        experts=experts,
    )
    for file in expected.rglob("*.pt"):
        theirs = torch.load(file, weights_only=False)["model"]
        ours = torch.load(tmp_path / "out/release" / file.parent.name / file.name, weights_only=False)[
            "model"
        ]
        for name, value in theirs.items():
            assert value is None or torch.equal(ours[name], value), (file, name)


@pytest.mark.parametrize(
    ("split", "message"),
    [("1,3", "4 layers do not divide into 3"), ("4", "2 query groups do not divide into 4")],
)
def test_a_split_that_does_not_divide_is_refused(split: str, message: str, tmp_path: Path) -> None:
    weights = MemoryWeights({name: value.numpy() for name, value in made.whole_model().items()})
    layout = layout_from_text(split, "--split")
    with pytest.raises(ConfigError, match=message):
        write_weights(weights, tmp_path / "out", format="megatron", layout=layout, num_groups=made.GROUPS)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="tensor, pipeline and expert"):
        layout_from_text("2,x", "--split")
    with pytest.raises(WeightsError, match="--to megatron"):
        write_weights(MemoryWeights({"lm_head.weight": np.ones(2)}), tmp_path / "out", format="megatron")


def test_tied_embeddings_have_no_output_layer(tmp_path: Path) -> None:
    model = made.whole_model(tied=True)
    found = open_weights(made.write(tmp_path / "run", model, Layout(tensor=2, pipeline=2)))
    assert_holds(found, model)
    assert any("padded to 64" in remark for remark in found.remarks)


def test_one_part_is_read_as_it_is(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", made.whole_model(), Layout(tensor=2, pipeline=2))
    part = open_weights(folder / "iter_0000100/mp_rank_01_001")
    assert part.table["output_layer.weight"].shape == (made.PADDED // 2, made.HIDDEN)
    assert "decoder.layers.2.mlp.linear_fc1.weight" not in part.table


def test_parts_that_are_missing_or_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", made.whole_model(), Layout(tensor=2, pipeline=2))
    file = folder / "iter_0000100/mp_rank_01_001/model_optim_rng.pt"
    kept = torch.load(file, weights_only=False)
    kept["model"]["decoder.final_layernorm.weight"] += 1
    torch.save(kept, file)
    with pytest.raises(WeightsError, match=r"mp_rank_01_001/decoder\.final_layernorm\.weight differ"):
        open_weights(folder)
    file.unlink()
    with pytest.raises(WeightsError, match="tensor rank 1, stage 1"):
        open_weights(folder)
    (folder / "latest_checkpointed_iteration.txt").write_text("200")
    with pytest.raises(WeightsError, match="'200'"):
        open_weights(folder)


_OLD_NAMES = {
    "decoder.layers": "language_model.encoder.layers",
    "linear_qkv": "query_key_value",
    "linear_proj": "dense",
    "linear_fc1": "dense_h_to_4h",
    "linear_fc2": "dense_4h_to_h",
    "embedding.word": "language_model.embedding.word",
    "output_layer": "language_model.output_layer",
    "decoder.final": "language_model.encoder.final",
}


@pytest.mark.parametrize("gated", [True, False])
def test_names_of_megatron_before_core(gated: bool, tmp_path: Path) -> None:
    def old(name: str) -> str:
        for new, one in _OLD_NAMES.items():
            name = name.replace(new, one)
        return name

    model = made.whole_model(gated=gated)
    folder = made.write(tmp_path / "run", model, Layout(tensor=2, pipeline=2))
    for file in folder.rglob("*.pt"):
        kept = torch.load(file, weights_only=False)
        kept["model"] = {old(name): value for name, value in kept["model"].items()}
        torch.save(kept, file)
    assert_holds(open_weights(folder), {old(name): value for name, value in model.items()})


@pytest.mark.parametrize("empty", [io.BytesIO(), io.BytesIO(b"some state"), b"", 1j])
def test_states_beside_the_weights_are_passed_over(empty: object, tmp_path: Path) -> None:
    model = made.whole_model()
    folder = made.write(tmp_path / "run", model, Layout())
    for file in folder.rglob("*.pt"):
        kept = torch.load(file, weights_only=False)
        kept["model"]["decoder.layers.0.self_attention.linear_qkv._extra_state"] = empty
        kept["args"].padding = empty
        torch.save(kept, file)
    assert_holds(open_weights(folder), model)


@pytest.mark.parametrize("counts", [(3, 1), (1, 3), (0, 2, 2), (1, 2, 1, 0)])
def test_stages_may_be_uneven(counts: tuple[int, ...], tmp_path: Path) -> None:
    model = made.whole_model(layers=4)
    folder = made.write(tmp_path / "run", model, Layout(pipeline=len(counts)), layers=4, counts=counts)
    assert_holds(open_weights(folder), model)


def test_layers_that_are_missing_are_told(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", made.whole_model(layers=4), Layout(tensor=2, pipeline=2), layers=4)
    file = folder / "iter_0000100" / "mp_rank_01_001" / "model_optim_rng.pt"
    files = [file] if file.is_file() else sorted(folder.rglob("mp_rank_01_001/*.pt"))
    kept = torch.load(files[0], weights_only=False)
    kept["model"] = {name: value for name, value in kept["model"].items() if ".layers.1." not in name}
    torch.save(kept, files[0])
    with pytest.raises(WeightsError, match=r"holds 2 layers and mp_rank_01_001 1"):
        open_weights(folder)
    for every in folder.rglob("*.pt"):
        kept = torch.load(every, weights_only=False)
        kept["args"].num_layers = 5
        kept["model"] = {name: value for name, value in kept["model"].items() if ".layers.1." not in name}
        torch.save(kept, every)
    with pytest.raises(WeightsError, match=r"say 5 layers, but the parts hold 2 \(1, 1\)"):
        open_weights(folder)


# -- pickles ------------------------------------------


class _Hostile:
    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._witness),)


@pytest.mark.parametrize("where", ["args", "model", "beside"])
def test_a_hostile_checkpoint_does_nothing(where: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    hostile = _Hostile(witness)
    whole: dict[str, Any] = {"args": argparse.Namespace(num_layers=1), "model": {"a.weight": torch.ones(2)}}
    if where == "args":
        whole["args"].hook = hostile
    elif where == "model":
        whole["model"]["b.weight"] = hostile
    else:
        whole["rng_state"] = [hostile]
    folder = tmp_path / "run/iter_0000100/mp_rank_00"
    folder.mkdir(parents=True)
    torch.save(whole, folder / "model_optim_rng.pt")
    with pytest.raises(WeightsError, match=r"posix\.mkdir"):
        open_weights(folder.parent)
    assert not witness.exists()
    torch.load(folder / "model_optim_rng.pt", weights_only=False)
    assert witness.exists(), "this pickle is one that acts"


@pytest.mark.parametrize("name", ["builtins.eval", "builtins.getattr", "torch.load", "megatron.core.enums.x"])
def test_names_outside_the_list_are_refused_by_name(name: str, tmp_path: Path) -> None:
    module, _, word = name.rpartition(".")
    (tmp_path / ".metadata").write_bytes(f"c{module}\n{word}\n.".encode())
    with pytest.raises(WeightsError, match=name.replace(".", r"\.")):
        open_weights(tmp_path)


def test_megatron_s_enums_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = types.ModuleType("megatron.core.enums")
    module.ModelType = made.ModelType  # type: ignore[attr-defined]
    whole = {
        "args": argparse.Namespace(
            num_layers=1, model_type=made.ModelType.encoder_or_decoder, path=Path("x")
        ),
        "model": {"output_layer.weight": torch.ones(2, 2)},
    }
    with monkeypatch.context() as patched:
        for name in ("megatron", "megatron.core"):
            patched.setitem(sys.modules, name, types.ModuleType(name))
        patched.setitem(sys.modules, "megatron.core.enums", module)
        (tmp_path / "mp_rank_00").mkdir()
        torch.save(whole, tmp_path / "mp_rank_00/model_optim_rng.pt")
    assert list(open_weights(tmp_path).table) == ["output_layer.weight"]
    assert "megatron.core.enums" not in sys.modules


# -- distributed checkpoints ------------------------------------------


def distributed(folder: Path, model: dict[str, Tensor], *, experts: int = 0, prefix: str = "") -> Path:
    """As Megatron-core writes it: layers, and experts, stacked; states of an optimizer beside."""
    stacked: dict[str, Any] = {}
    for name, whole in model.items():
        words = name.split(".")
        if "layers" in words:
            del words[2]
        if "local_experts" in words:
            at = words.index("local_experts")
            words[at : at + 2] = ["experts"]
        stacked.setdefault(".".join(words), []).append(whole)
    whole_state = {}
    for name, parts in stacked.items():
        if ".layers." not in name:
            whole_state[prefix + name] = parts[0]
        elif "experts.experts" in name:
            each = [torch.stack(parts[at : at + experts]) for at in range(0, len(parts), experts)]
            whole_state[prefix + name] = torch.stack(each)
        else:
            whole_state[prefix + name] = torch.stack(parts)
    whole_state["optimizer.state.exp_avg.output_layer.weight"] = torch.zeros(3)
    (folder / "iter_0000100").mkdir(parents=True)
    dcp.save(whole_state, checkpoint_id=folder / "iter_0000100", no_dist=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("experts", [0, 4])
def test_a_distributed_checkpoint_is_the_whole_model(experts: int, tmp_path: Path) -> None:
    model = made.whole_model(experts=experts)
    folder = distributed(tmp_path / "dist", model, experts=experts)
    found = open_weights(folder)
    assert_holds(found, model)
    assert any("1 tensors of optimizer" in remark for remark in found.remarks)
    parts = open_weights(made.write(tmp_path / "run", model, Layout(pipeline=2), experts=experts))
    assert compare_weights(found, parts).exit_code() == 0


@pytest.mark.parametrize(
    "layout", [Layout(expert=2), Layout(expert=4, pipeline=2), Layout(tensor=2, expert=2)]
)
def test_experts_are_counted_where_the_arguments_do_not_say_their_number(
    layout: Layout, tmp_path: Path
) -> None:
    model = made.whole_model(experts=4)
    folder = made.write(tmp_path / "run", model, layout, experts=4)
    for file in folder.rglob("model_optim_rng.pt"):
        state = torch.load(file, weights_only=False)
        del state["args"].num_experts
        torch.save(state, file)
    assert_holds(open_weights(folder), model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("experts", [0, 4])
def test_a_wrapper_s_name_is_no_part_of_the_weights_names(experts: int, tmp_path: Path) -> None:
    """NeMo saves the wrapper of the model: ``module.decoder...``; one such module among others stays."""
    model = made.whole_model(experts=experts)
    folder = distributed(tmp_path / "dist", model, experts=experts, prefix="module.")
    assert_holds(open_weights(folder), model)
    state = {"module.weight": torch.ones(2), "head.weight": torch.ones(2)}
    dcp.save(state, checkpoint_id=tmp_path / "other", no_dist=True)
    assert set(open_weights(tmp_path / "other").table) == set(state)


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_distributed_checkpoint_is_named(tmp_path: Path) -> None:
    folder = distributed(tmp_path / "dist", made.whole_model()) / "iter_0000100"
    (file,) = folder.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="cut off"):
        open_weights(folder)
    (folder / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(WeightsError, match="no whole metadata"):
        open_weights(folder)
    (folder / ".metadata").write_bytes(pickle.dumps(_Hostile(tmp_path / "witness")))
    with pytest.raises(WeightsError, match=r"posix\.mkdir"):
        open_weights(folder)
    assert not (tmp_path / "witness").exists()


# -- comparing ------------------------------------------


@pytest.mark.parametrize("experts", [2, 8])
def test_grouped_experts_are_paired_with_single_ones(experts: int, tmp_path: Path) -> None:
    """Most names are on one side alone, and both are of one family."""
    model = made.whole_model(experts=experts)
    grouped = {
        re.sub(r"local_experts\.(\d+)\.(linear_fc[12])\.weight", r"\2.weight\1", name): value
        for name, value in model.items()
    }
    target = open_weights(made.write(tmp_path / "run", model, Layout(expert=2), experts=experts))
    reference = MemoryWeights({name: value.numpy() for name, value in grouped.items()})
    for renamed, _ in (most_common(target, reference, Heads()), renamed_by_map(target, reference, Heads())):
        found = compare_weights(target, renamed)
        assert (found.only_target, found.only_reference, found.exit_code()) == ((), (), 0)


@pytest.mark.parametrize(("grouped", "expected"), [(True, 2), (False, 4)])
def test_heads_are_those_of_the_arguments_in_the_checkpoint(
    grouped: bool, expected: int, tmp_path: Path
) -> None:
    folder = made.write(tmp_path / "run", made.whole_model(), Layout(tensor=2))
    assert heads_beside(folder) == Heads()
    for file in folder.rglob("model_optim_rng.pt"):
        state = torch.load(file, weights_only=False)
        vars(state["args"]).update(num_attention_heads=4, num_query_groups=2, group_query_attention=grouped)
        torch.save(state, file)
    for path in (folder, folder / "iter_0000100", open_weights(folder).path):
        assert heads_beside(path) == Heads(num_heads=4, num_kv_heads=expected)


def test_spellings_of_transformer_engine_are_paired(tmp_path: Path) -> None:
    model = made.whole_model()
    spelled = {
        name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_").replace(
            "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"
        ): value
        for name, value in model.items()
    }
    target = open_weights(made.write(tmp_path / "run", model, Layout()))
    reference = MemoryWeights({name: value.numpy() for name, value in spelled.items()})
    renamed, _ = most_common(target, reference, Heads())
    found = compare_weights(target, renamed)
    assert (found.only_target, found.only_reference, found.exit_code()) == ((), (), 0)


@pytest.mark.parametrize(
    ("rows", "padded", "padding"),
    [
        (50, 64, 14),
        (100, 128, 28),
        (1_000, 1_024, 24),
        (64, 64, 0),
        (30, 64, 34),
        (50, 100, None),
        (64, 96, None),
    ],
)
def test_a_padded_vocabulary_is_compared_up_to_its_padding(
    rows: int, padded: int, padding: int | None
) -> None:
    rng = np.random.default_rng(1)
    plain = rng.standard_normal((rows, 4)).astype(np.float32)
    extended = np.concatenate([plain, rng.standard_normal((padded - rows, 4)).astype(np.float32)])
    for name in ("embedding.word_embeddings.weight", "lm_head.weight"):
        others = {"decoder.final_layernorm.weight": np.ones(4, np.float32)}
        target = MemoryWeights({name: extended, **others})
        reference = MemoryWeights({name: plain, **others})
        for sides in ((target, reference), (reference, target)):
            (pair, _) = compare_weights(*sides).pairs
            if padding is None:
                assert pair.status is PairStatus.UNDECIDED
            else:
                assert (pair.status, pair.padding) == (PairStatus.EQUAL, padding)
        changed = extended.copy()
        changed[rows - 1, 0] += 1
        (pair, _) = compare_weights(MemoryWeights({name: changed, **others}), reference).pairs
        assert pair.status is (PairStatus.UNDECIDED if padding is None else PairStatus.DIFFERENT)


def test_a_matrix_of_another_size_is_not_padded() -> None:
    target = MemoryWeights({"a.linear_fc1.weight": np.ones((64, 4)), "b": np.ones(2)})
    reference = MemoryWeights({"a.linear_fc1.weight": np.ones((50, 4)), "b": np.ones(2)})
    (pair, _) = compare_weights(target, reference).pairs
    assert pair.status is PairStatus.UNDECIDED


def shared_ranks(folder: Path, model: dict[str, Any], *, tensor: int = 2, split: int = 1) -> Path:
    """Written with an ``expert_tensor_parallel_size`` of its own: tensor ranks are expert ranks at once, and
    an expert is in ``split`` parts."""
    size = tensor // split
    made.write(folder, model, Layout(tensor=tensor, expert=size), experts=4)
    for file in sorted(folder.rglob("model_optim_rng.pt")):
        rank, expert = (int(part) for part in file.parent.name.split("_")[2:4])
        if rank // split != expert:
            file.unlink()
            continue
        state = torch.load(file, weights_only=False)
        state["args"].expert_tensor_parallel_size = split
        for name in [one for one in state["model"] if "local_experts" in one and "_extra" not in one]:
            number = int(name.split("local_experts.")[1].partition(".")[0]) + expert * (4 // size)
            local = name.partition("local_experts.")
            whole = model[f"{local[0]}local_experts.{number}.{local[2].partition('.')[2]}"]
            state["model"][name] = made.part_of(name, whole, rank % split, split)
        torch.save(state, file)
    return folder


@pytest.mark.parametrize(("tensor", "split"), [(2, 1), (4, 2), (4, 1)])
def test_tensor_ranks_that_are_expert_ranks_at_once(tensor: int, split: int, tmp_path: Path) -> None:
    model = made.whole_model(experts=4)
    folder = shared_ranks(tmp_path / "run", model, tensor=tensor, split=split)
    assert_holds(open_weights(folder), model)
    last = sorted(folder.rglob("model_optim_rng.pt"))[-1]
    last.unlink()
    with pytest.raises(WeightsError, match=f"tensor rank {tensor - 1}"):
        open_weights(folder)


def test_a_part_that_is_missing_among_expert_ranks(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", made.whole_model(experts=4), Layout(tensor=2, expert=2), experts=4)
    (folder / "iter_0000100/mp_rank_01_001/model_optim_rng.pt").unlink()
    with pytest.raises(WeightsError, match="tensor rank 1, stage 0, expert rank 1"):
        open_weights(folder)


@pytest.mark.parametrize(("tokenizer", "rows"), [("HuggingFaceTokenizer", 50), ("NullTokenizer", 51)])
def test_rows_that_both_sides_call_padding(tokenizer: str, rows: int, tmp_path: Path) -> None:
    """Padding is initialized at random, by tensor rank: nothing of the model."""
    model = made.whole_model()

    def written(name: str, changed: int | None) -> Any:
        own = {key: value.clone() for key, value in model.items()}
        if changed is not None:
            own["output_layer.weight"][changed] += 1
        folder = made.write(tmp_path / name, own, Layout())
        for file in folder.rglob("model_optim_rng.pt"):
            state = torch.load(file, weights_only=False)
            state["args"].tokenizer_type = tokenizer
            torch.save(state, file)
        return open_weights(folder)

    plain = written("plain", None)
    for changed, status, padding in (
        (None, PairStatus.EQUAL, 0),
        (rows, PairStatus.EQUAL, made.PADDED - rows),
        (rows - 1, PairStatus.DIFFERENT, made.PADDED - rows),
    ):
        pairs = {pair.name: pair for pair in compare_weights(written(f"t{changed}", changed), plain).pairs}
        found = pairs["output_layer.weight"]
        assert (found.status, found.padding) == (status, padding)
        assert pairs["embedding.word_embeddings.weight"].padding == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("holder", "states"),
    [
        ("model.", ("optim.state.0.exp_avg", "optim.param_groups.lr")),
        ("app.model.", ("app.optim.state.head.weight.exp_avg",)),
        ("", ("optimizer.state.head.weight.exp_avg", "train_state.step", "dataloader.dp_rank_0")),
        ("state_dict.model.", ("optimizer_states.0.state.0.exp_avg", "lr_schedulers.0.last")),
        ("model.module.", ("optimizers.0.state.x.exp_avg_sq", "rng_state")),
    ],
)
def test_what_is_saved_beside_the_model_is_no_weight(
    holder: str, states: tuple[str, ...], tmp_path: Path
) -> None:
    weights = {
        "emb.weight": torch.ones(3),
        "optimizer_gate.weight": torch.ones(2),
        "head.weight": torch.ones(1),
    }
    saved = {f"{holder}{name}": value for name, value in weights.items()} | dict.fromkeys(
        states, torch.ones(4)
    )
    dcp.save(saved, checkpoint_id=tmp_path / "dist", no_dist=True)
    assert set(open_weights(tmp_path / "dist").table) == set(weights)


@pytest.mark.filterwarnings("ignore")
def test_names_that_a_family_begins_with_model_stay(tmp_path: Path) -> None:
    names = [f"model.layers.{at}.{one}.weight" for at in range(2) for one in HF_LAYER]
    saved = dict.fromkeys(["model.embed_tokens.weight", *names, "model.norm.weight"], torch.ones(2))
    for holder in ("", "model."):
        state = {f"{holder}{name}": value for name, value in saved.items()} | {
            "optim.state.0.exp_avg": torch.ones(1)
        }
        dcp.save(state, checkpoint_id=tmp_path / f"dist{holder}", no_dist=True)
        assert set(open_weights(tmp_path / f"dist{holder}").table) == set(saved)


@pytest.mark.filterwarnings("ignore")
def test_experts_saved_one_by_one_are_paired(tmp_path: Path) -> None:
    name = "decoder.layers.{layer}.mlp.experts.{kind}.{expert}.linear_fc2.weight"
    places = [(layer, expert) for layer in range(2) for expert in range(3)]
    values = {place: torch.full((2, 2), float(number)) for number, place in enumerate(places)}
    saved = {name.format(layer=at, kind="experts", expert=e): value for (at, e), value in values.items()}
    dcp.save(saved, checkpoint_id=tmp_path / "dist", no_dist=True)
    found = open_weights(tmp_path / "dist")
    local = {name.format(layer=at, kind="local_experts", expert=e): v for (at, e), v in values.items()}
    assert_holds(found, local)


def _grouped(experts: int, hidden: int = 6, inner: int = 4) -> dict[str, Tensor]:
    """Experts as the whole model names them."""
    made_of = torch.Generator().manual_seed(3)
    one = "decoder.layers.0.mlp.experts.local_experts"
    found = {}
    for number in range(experts):
        found[f"{one}.{number}.linear_fc1.weight"] = torch.randn(2 * inner, hidden, generator=made_of)
        found[f"{one}.{number}.linear_fc2.weight"] = torch.randn(hidden, inner, generator=made_of)
    return found


def _write_grouped(folder: Path, model: dict[str, Tensor], tensor: int, expert: int, **more: Tensor) -> Path:
    """As Megatron-core's GroupedMLP keeps them: all experts of a rank side by side, each transposed."""
    num = len(model) // 2
    each = num // expert
    names = dict(zip(("tensor", "expert", "expert_tensor"), (tensor, expert, tensor), strict=True))
    arguments = argparse.Namespace(
        num_layers=1, num_experts=num, **{f"{name}_model_parallel_size": size for name, size in names.items()}
    )
    arguments.expert_tensor_parallel_size = tensor
    for rank in range(tensor):
        for own in range(expert):
            first, second = [], []
            for number in range(own * each, (own + 1) * each):
                one, other = (
                    model[f"decoder.layers.0.mlp.experts.local_experts.{number}.linear_fc{at}.weight"]
                    for at in (1, 2)
                )
                halves = [half.chunk(tensor)[rank] for half in one.chunk(2)]
                first.append(torch.cat(halves).T)
                second.append(other.chunk(tensor, dim=1)[rank].T)
            part = {
                "decoder.layers.0.mlp.experts.weight1": torch.stack(first).reshape(first[0].shape[0], -1),
                "decoder.layers.0.mlp.experts.weight2": torch.stack(second).reshape(-1, first[0].shape[0]),
                "decoder.layers.0.self_attention.linear_proj.bias": torch.ones(6) + more.get(f"{own}", 0),
            }
            place = folder / "iter_0000001" / f"mp_rank_{rank:02d}_{own:03d}"
            place.mkdir(parents=True)
            torch.save({"model": part, "args": arguments}, place / "model_optim_rng.pt")
    return folder / "iter_0000001"


@pytest.mark.parametrize(("tensor", "expert"), [(1, 2), (2, 2), (1, 4), (2, 4)])
def test_experts_held_in_one_weight_are_taken_apart(tensor: int, expert: int, tmp_path: Path) -> None:
    model = _grouped(4)
    found = open_weights(_write_grouped(tmp_path, model, tensor, expert))
    model["decoder.layers.0.self_attention.linear_proj.bias"] = torch.ones(6)
    assert_holds(found, model)


def test_expert_ranks_that_differ_in_what_they_share_are_named(tmp_path: Path) -> None:
    found = open_weights(_write_grouped(tmp_path, _grouped(4), 1, 2, **{"1": torch.tensor(0.5)}))
    with pytest.raises(WeightsError, match=r"mp_rank_00_000/.*linear_proj\.bias and mp_rank_00_001/"):
        found.read("decoder.layers.0.self_attention.linear_proj.bias")


@pytest.mark.parametrize("tensor", [2, 4])
def test_parts_of_linear_attention_are_put_together_and_split(tensor: int, tmp_path: Path) -> None:
    """A gated delta net: each rank has its share of queries, keys, values, gate and heads."""
    random = np.random.default_rng(1)
    keys, values, heads, hidden = 8, 16, 4, 6
    sections = {"in_proj.weight": [keys, keys, values, values, heads, heads]}
    sections["conv1d.weight"] = sections["conv1d.bias"] = [keys, keys, values]
    behind = {"in_proj.weight": (hidden,), "conv1d.weight": (1, 4), "conv1d.bias": ()}
    before = "decoder.layers.0.self_attention."
    whole = {name: random.random((sum(rows), *behind[name])) for name, rows in sections.items()}
    whole |= {name: random.random(heads) for name in ("A_log", "dt_bias")}
    whole |= {"out_norm.weight": random.random(4), "out_proj.weight": random.random((hidden, values))}
    words = random.random((8, hidden))
    arguments = argparse.Namespace(num_layers=1, tensor_model_parallel_size=tensor)
    for rank in range(tensor):
        part = {}
        for name, one in whole.items():
            cuts = np.split(one, np.cumsum(sections[name])[:-1]) if name in sections else [one]
            dim = 1 if name == "out_proj.weight" else 0
            own = np.concatenate([np.split(cut, tensor, axis=dim)[rank] for cut in cuts], axis=dim)
            part[before + name] = torch.from_numpy(one if name == "out_norm.weight" else own)
        part["embedding.word_embeddings.weight"] = torch.from_numpy(np.split(words, tensor)[rank])
        place = tmp_path / "cut" / f"mp_rank_{rank:02d}"
        place.mkdir(parents=True)
        torch.save({"model": part, "args": arguments}, place / "model_optim_rng.pt")
    found = open_weights(tmp_path / "cut")
    assert {before + name for name in whole} < set(found.table)
    for name, one in whole.items():
        assert np.array_equal(found.read(before + name), one), name
    write_megatron(found, tmp_path / "again", MegatronLayout(tensor=tensor))
    again = open_weights(tmp_path / "again")
    for name, one in whole.items():
        assert np.array_equal(again.read(before + name), one), name
    for rank in range(tensor):
        first, second = (
            open_weights(tmp_path / folder / f"mp_rank_{rank:02d}") for folder in ("cut", "again/release")
        )
        for name in whole:
            assert np.array_equal(first.read(before + name), second.read(before + name)), name


@pytest.mark.parametrize("conv", ["conv1d.", "conv1d_"])
def test_parts_of_a_mamba_mixer_are_put_together(conv: str, tmp_path: Path) -> None:
    """Each rank has its share of gate, input, B, C and step sizes."""
    random = np.random.default_rng(0)
    inner, state, heads, hidden = 8, 4, 4, 6
    sections = {"in_proj.weight": [inner, inner, state, state, heads], f"{conv}bias": [inner, state, state]}
    sections[f"{conv}weight"] = sections[f"{conv}bias"]
    behind = {"in_proj.weight": (hidden,), f"{conv}weight": (1, 4), f"{conv}bias": ()}
    mixer = "decoder.layers.0.mixer."
    whole = {name: random.random((sum(rows), *behind[name])) for name, rows in sections.items()}
    whole |= {name: random.random(heads) for name in ("A_log", "D", "dt_bias")}
    whole |= {"norm.weight": random.random(inner), "out_proj.weight": random.random((hidden, inner))}
    for rank in range(2):
        part = {}
        for name, values in whole.items():
            cuts = np.split(values, np.cumsum(sections[name])[:-1]) if name in sections else [values]
            dim = 1 if name == "out_proj.weight" else 0
            own = np.concatenate([np.split(cut, 2, axis=dim)[rank] for cut in cuts], axis=0)
            part[mixer + name] = torch.from_numpy(own)
        place = tmp_path / f"mp_rank_{rank:02d}"
        place.mkdir()
        arguments = argparse.Namespace(num_layers=1, tensor_model_parallel_size=2)
        torch.save({"model": part, "args": arguments}, place / "model_optim_rng.pt")
    found = open_weights(tmp_path)
    for name, values in whole.items():
        assert np.array_equal(found.read(mixer + name), values), name
