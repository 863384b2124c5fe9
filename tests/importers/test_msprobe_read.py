"""Dumps that msprobe 26.2.0 wrote, read whole."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.importers.dumps import call, rows
from trueup.importers import open_trace
from trueup.store import StepTables

WHOLE = [
    # dump, entries, calls, records: counted in the JSON by hand
    # (calls: forward entries, parameters, and the root in each microbatch where msprobe leaves it out)
    ("base/L0_statistics_statistics", 105, 92, 259),
    ("base/mix_statistics_statistics", 956, 790, 2408),
    ("base/mix_statistics_md5", 956, 790, 2408),
    ("rope_bf16/mix_statistics_statistics", 968, 798, 2432),
    ("ddp_base", 958, 790, 2411),
    ("mindspore_cpu/L0_statistics", 58, 37, 128),
    ("mindspore_cpu/mix_statistics", 297, 157, 704),
    ("mindspore_cpu/mix_tensor", 297, 157, 704),
    ("accumulation/statistics", 71, 43, 160),
]


def read(path: Path, rank: int = 0) -> StepTables:
    return open_trace(path).read(0, rank)


@pytest.mark.parametrize(("name", "num_entries", "num_calls", "num_records"), WHOLE)
def test_every_tensor_of_every_entry_becomes_one_record(
    dumps: Path, name: str, num_entries: int, num_calls: int, num_records: int
) -> None:
    tables = read(dumps / name)
    (file, *_) = sorted((dumps / name).glob("step0/*/dump.json"))
    data = json.loads(file.read_text())["data"]
    assert len(data) == num_entries
    repeated = sum(
        len(entry.get("parameters", ()))
        for key, entry in data.items()
        if ".forward." in key and not key.endswith(".forward.0")
    )  # parameters are seen again by every further call of their module; they are listed once
    tensors = file.read_text().count('"shape"')
    assert tables.records.height == tables.summaries.height == tensors - repeated
    assert tables.calls.height == num_calls
    assert tables.records.height == num_records


def test_a_linear_layer_spot_checked_against_the_file(dumps: Path) -> None:
    tables = read(dumps / "base/mix_statistics_statistics")
    head = call(tables, "head")
    root = call(tables, "")
    assert (root["kind"], root["parent"], root["type"]) == ("module", None, None)
    assert (head["kind"], head["type"], head["parent"]) == ("module", "Linear", root["call"])
    inside = [c for c in tables.calls.to_dicts() if c["parent"] == head["call"]]
    assert [(c["kind"], c["name"], c["ordinal"], c["global_ordinal"]) for c in inside] == [
        ("api", "torch.nn.functional.linear", 0, 16)
    ]
    forward = {r["slot"]: r for r in rows(tables, "head")}
    assert forward["input.0"]["shape"] == [4, 128, 256]
    assert forward["output.0"]["shape"] == [4, 128, 1000]
    backward = {r["slot"]: r for r in rows(tables, "head", "backward")}
    assert backward["output.0"]["shape"] == [4, 128, 1000], "the gradient that arrives at the output"
    assert backward["input.0"]["shape"] == [4, 128, 256], "the gradient that leaves through the input"


def test_numbers_are_the_file_s_own(dumps: Path) -> None:
    (ids, weight) = rows(read(dumps / "base/mix_statistics_md5"), "torch.nn.functional.embedding")[:2]
    assert (ids["dtype"], ids["minimum"], ids["maximum"], ids["mean"], ids["l2_norm"]) == (
        "int64",
        3,
        996,
        None,
        None,
    )
    assert (ids["numel"], ids["crc32"], ids["requires_grad"]) == (512, 0x364CBCA4, False)
    assert weight["maximum"] == 4.149261951446533
    assert weight["minimum"] == -4.231613636016846
    assert weight["mean"] == 0.004457912407815456
    assert weight["l2_norm"] == 506.6817626953125
    assert weight["crc32"] == 0x0FF18961
    assert (weight["num_nan"], weight["num_posinf"], weight["num_neginf"]) == (0, 0, 0), (
        "a finite norm proves it"
    )
    assert all(weight[name] is None for name in ("num_zero", "smallest_nonzero", "digest", "sketch"))


def test_infinities_stay_infinities(dumps: Path) -> None:
    masked = rows(
        read(dumps / "base/mix_statistics_statistics"), "torch.Tensor.masked_fill", global_ordinal=0
    )
    output = masked[-1]
    assert (output["minimum"], output["mean"], output["l2_norm"]) == (-math.inf, -math.inf, math.inf)
    assert output["maximum"] == 1.4671106338500977
    assert (output["num_nan"], output["num_posinf"], output["num_neginf"]) == (0, 0, None)
    arguments = call(
        read(dumps / "base/mix_statistics_statistics"), "torch.Tensor.masked_fill", global_ordinal=0
    )
    assert json.loads(arguments["arguments"]) == {"input.2": -math.inf}


def test_parameters_are_listed_once_and_their_gradients_with_them(dumps: Path) -> None:
    tables = read(dumps / "base/L0_statistics_statistics")
    parameters = [c for c in tables.calls.to_dicts() if c["kind"] == "parameter"]
    assert len(parameters) == 52
    (value,) = rows(tables, "layers.2.attn.qkv.weight", "param")
    (gradient,) = rows(tables, "layers.2.attn.qkv.weight", "param_grad")
    assert (value["slot"], value["shape"]) == ("value", [768, 256])
    assert (gradient["slot"], gradient["shape"], gradient["microbatch"]) == ("accumulated", [768, 256], 0)


def test_calls_are_in_the_order_they_began_with_parents_first(dumps: Path) -> None:
    tables = read(dumps / "ddp_base")
    calls = tables.calls.to_dicts()
    assert all(c["parent"] is None or c["parent"] < c["call"] for c in calls)
    modules = [c["name"] for c in calls if c["kind"] == "module"]
    assert modules[:4] == ["module", "module.emb", "module.layers.0", "module.layers.0.ln1"]
    first = rows(tables, "module.layers.0")
    attention = rows(tables, "module.layers.0.attn")
    assert first[0]["summary"] < attention[0]["summary"] < attention[-1]["summary"] < first[-1]["summary"]


def test_ordinals_are_local_to_the_enclosing_module(dumps: Path) -> None:
    tables = read(dumps / "base/mix_statistics_statistics")
    attention = call(tables, "layers.2.attn")
    inside = [c for c in tables.calls.to_dicts() if c["parent"] == attention["call"]]
    matmuls = [(c["ordinal"], c["global_ordinal"]) for c in inside if c["name"] == "torch.matmul"]
    assert matmuls == [(0, 4), (1, 5)]


def test_the_root_is_put_back_around_what_it_called(dumps: Path) -> None:
    tables = read(dumps / "base/mix_statistics_statistics")
    root = call(tables, "")["call"]
    inside = [c["name"] for c in tables.calls.to_dicts() if c["parent"] == root]
    assert inside == ["emb", "layers.0", "layers.1", "layers.2", "layers.3", "lnf", "head"]
    assert call(tables, "torch.nn.functional.cross_entropy")["parent"] is None, "the script's own call"
    mindspore = read(dumps / "mindspore_cpu/mix_statistics")
    root = call(mindspore, "")["call"]
    inside = [c["name"] for c in mindspore.calls.to_dicts() if c["parent"] == root]
    assert inside[0] == "mindspore.ops.gather", (
        "before the first module, and still below the same source lines"
    )
    assert inside[-1] == "mindspore.ops.cross_entropy", "there the loss is part of the model"
    assert "" not in read(dumps / "ddp_base").calls["name"].cast(str).to_list(), (
        "the model is called module there"
    )


def test_optimizer_calls_are_top_level(dumps: Path) -> None:
    tables = read(dumps / "base/mix_statistics_statistics")
    updates = [c for c in tables.calls.to_dicts() if c["name"] == "torch.Tensor.addcdiv_"]
    assert len(updates) == 52
    assert {c["parent"] for c in updates} == {None}
    assert {(c["microbatch"], c["mode"]) for c in updates} == {(0, "eval")}, "without gradients"


def test_stacks_name_the_program_s_own_lines(dumps: Path) -> None:
    tables = read(dumps / "base/mix_statistics_statistics")
    number = call(tables, "emb")["stack"]
    frames = dict(zip(tables.stacks["stack"], tables.stacks["frames"], strict=True))[number].to_list()
    assert frames[0] == "gpt_train.py:89 forward | x = s.emb(idx)"
    assert not any("site-packages/torch" in frame for frame in frames)


def test_both_ranks_of_a_distributed_dump(dumps: Path) -> None:
    trace = open_trace(dumps / "ddp_base")
    assert trace.steps() == {0: [0, 1]}
    assert trace.manifest["world_size"] == 2
    ids = [rows(trace.read(0, rank), "module.emb")[0] for rank in (0, 1)]
    losses = [
        rows(trace.read(0, rank), "torch.nn.functional.cross_entropy")[-1]["maximum"] for rank in (0, 1)
    ]
    assert ids[0]["shape"] == ids[1]["shape"] == [4, 128]
    assert losses[0] != losses[1], "each rank has its own batch"


def test_mindspore_spellings(dumps: Path) -> None:
    trace = open_trace(dumps / "mindspore_cpu/mix_statistics")
    tables = trace.read(0, 0)
    assert trace.manifest["framework"] == "mindspore"
    names = set(tables.calls["name"].cast(str).to_list())
    assert {"mindspore.ops.gather", "mindspore.mint.square", "mindspore.mint.nn.functional.linear"} <= names
    assert {"mindspore.Tensor.__mul__", "layers.0.ln1"} <= names
    assert set(tables.summaries["dtype"].cast(str)) == {"float32", "int32", "bool"}
    assert tables.records["requires_grad"].null_count() == tables.records.height
    assert call(tables, "layers.0.ln1")["type"] == "RMSNorm"
    assert json.loads(call(tables, "mindspore.Tensor.to", global_ordinal=0)["arguments"]) == {
        "input.1": "Float32"
    }


def test_values_that_are_there_are_read_and_the_others_are_said_to_be_missing(dumps: Path) -> None:
    trace = open_trace(dumps / "mindspore_cpu/mix_tensor")
    tables = trace.read(0, 0)
    stored = tables.summaries.filter(tables.summaries["tensor"].is_not_null())
    assert stored.height == 4
    for summary in stored.to_dicts():
        tensor = trace.tensor(0, 0, summary)
        assert tensor is not None
        values = tensor.data.view(np.float32)
        assert tensor.shape == tuple(summary["shape"])
        assert values.max() == np.float32(summary["maximum"])
        assert math.isclose(
            float(np.linalg.norm(values.astype(np.float64))), summary["l2_norm"], rel_tol=1e-6
        )
    missing = [
        r for r in tables.records.to_dicts() if r["reason"] and "not in dump_tensor_data" in r["reason"]
    ]
    assert len(missing) == 700
    assert "Functional.gather.0.forward.input.0.npy" in missing[0]["reason"] or missing
    nowhere = tables.summaries.filter(tables.summaries["tensor"].is_null()).to_dicts()[0]
    assert trace.tensor(0, 0, nowhere) is None


def test_accumulation_checkpointing_and_nested_outputs(dumps: Path) -> None:
    tables = read(dumps / "accumulation/statistics")
    blocks = [c for c in tables.calls.to_dicts() if c["name"] == "b1"]
    assert [(c["microbatch"], c["mode"], c["ordinal"]) for c in blocks] == [
        (0, "train", 0),
        (0, "recompute", 0),
        (1, "train", 0),
        (1, "recompute", 0),
    ]
    assert [r["slot"] for r in rows(tables, "b0", global_ordinal=0)] == [
        "input.0",
        "output.hidden",
        "output.aux.0",
    ]
    assert rows(tables, "b0", global_ordinal=0)[2]["dtype"] == "bfloat16"
    assert [r["slot"] for r in rows(tables, "b0", "backward", global_ordinal=0)] == [
        "output.hidden",
        "input.0",
    ]
    gradients = rows(tables, "head.weight", "param_grad")
    assert [g["microbatch"] for g in gradients] == [0, 1]
    assert gradients[0]["l2_norm"] != gradients[1]["l2_norm"], "accumulated, so it grows"
    assert len(rows(tables, "head.weight", "param")) == 1
    unfinished = call(tables, "torch.Tensor.__mul__", global_ordinal=4)
    assert unfinished["mode"] == "recompute", "checkpointing stopped it half way; msprobe gives it no parent"


def test_xor_is_kept_as_text_that_is_equal_where_bits_are(dumps: Path) -> None:
    tables = read(dumps / "accumulation/xor")
    assert tables.summaries["crc32"].null_count() == tables.summaries.height
    (*_, loss) = rows(tables, "torch.nn.functional.cross_entropy", global_ordinal=0)
    assert (loss["maximum"], loss["l2_norm"]) == (2.9443771839141846, 2.9443771839141846), (
        "0-d: the value itself"
    )
    (weight,) = rows(tables, "emb.weight", "param")
    assert weight["source_digest"] == "xor:0x07a17647febc8772"
    (again,) = [r for r in rows(tables, "torch.nn.functional.embedding") if r["slot"] == "input.1"]
    assert again["source_digest"] == weight["source_digest"]


@pytest.mark.torch
def test_pt_values_bit_for_bit(dumps: Path) -> None:
    import zlib

    trace = open_trace(dumps / "accumulation/tensor")
    tables = trace.read(0, 0)
    crc = read(dumps / "accumulation/md5").summaries["crc32"].to_list()
    assert tables.summaries.height == len(crc)
    # Not of gradients: msprobe hashes .grad in a thread while the next microbatch adds to it.
    steady = tables.records.filter(tables.records["phase"].cast(str) != "param_grad")["summary"].to_list()
    summaries = tables.summaries.to_dicts()
    seen = set()
    for row in steady:
        tensor = trace.tensor(0, 0, summaries[row])
        assert tensor is not None
        assert tensor.dtype == summaries[row]["dtype"]
        assert zlib.crc32(tensor.data.tobytes()) == crc[row]
        seen.add(tensor.dtype)
    assert seen == {"float32", "int64", "bfloat16"}


def test_every_spelling_of_the_path(dumps: Path, tmp_path: Path) -> None:
    root = dumps / "base/L0_statistics_statistics"
    spellings = [root, root / "step0", root / "step0/proc1", root / "step0/proc1/dump.json"]
    calls = [open_trace(path).read(0, 0).calls for path in spellings]
    assert all(c.equals(calls[0]) for c in calls)
    renamed = tmp_path / "target"
    shutil.copytree(root / "step0/proc1", renamed)
    assert open_trace(renamed).steps() == {0: [0]}


def test_msprobe_s_own_options_are_in_the_manifest(dumps: Path) -> None:
    manifest = open_trace(dumps / "base/mix_statistics_md5/step0").manifest
    assert (manifest["level"], manifest["task"], manifest["source"]) == ("mix", "statistics", "msprobe")
    assert manifest["options"]["statistics"]["summary_mode"] == "md5"
    assert open_trace(dumps / "base/mix_statistics_md5").rank_facts(0) == {"rank": 0, "pid": 1}
