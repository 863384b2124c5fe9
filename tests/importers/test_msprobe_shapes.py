"""Entries of every form msprobe writes, and of forms it does not."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from tests.importers.dumps import call, module_entry, rows, tensor, write_dump
from trueup.errors import TraceError
from trueup.importers import open_trace
from trueup.store import StepTables


def read(folder: Path) -> StepTables:
    return open_trace(folder).read(0, 0)


def test_scalars_of_every_type_become_arguments(tmp_path: Path) -> None:
    entry = {
        "input_args": [
            {"type": "slice", "value": [0, None, 2]},
            {"type": "torch.Size", "value": [2, 3]},
            {"type": "ellipsis", "value": "..."},
            [{"type": "int", "value": 4}, {"type": "bool", "value": True}],
            [],
            None,
        ],
        "input_kwargs": {
            "dtype": {"type": "torch.dtype", "value": "torch.float32"},
            "memory_format": {"type": "torch.memory_format", "format": "channels_last"},
            "group": {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "abcd"},
        },
        "output": [tensor()],
    }
    tables = read(write_dump(tmp_path / "d", {"Torch.full.0.forward": entry}))
    found = call(tables, "torch.full")
    assert json.loads(found["arguments"]) == {
        "input.0": "slice(0, None, 2)",
        "input.1": "torch.Size([2, 3])",
        "input.2": "Ellipsis",
        "input.3.0": 4,
        "input.3.1": True,
        "input.4": [],
        "input.dtype": "torch.float32",
        "input.memory_format": "torch.channels_last",
        "input.group": {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "abcd"},
    }
    assert json.loads(found["absent"]) == ["input.5"]


def test_collectives(tmp_path: Path) -> None:
    entry = {"input_args": [tensor()], "input_kwargs": {}, "output": [tensor(Max=3.0)]}
    data = {"Distributed.all_reduce.0.forward": entry, "MintDistributed.all_gather.0.forward": entry}
    tables = read(write_dump(tmp_path / "d", data))
    assert call(tables, "torch.distributed.all_reduce")["kind"] == "collective"
    found = rows(tables, "torch.distributed.all_reduce", "collective")
    assert [(r["slot"], r["maximum"]) for r in found] == [("input.0", 1.5), ("output.0", 3.0)]
    mindspore = read(write_dump(tmp_path / "m", data, framework="mindspore"))
    assert call(mindspore, "mindspore.mint.distributed.all_gather")["kind"] == "collective"


def test_bare_nan_and_infinity(tmp_path: Path) -> None:
    bad = tensor(Max=math.nan, Min=math.nan, Mean=math.nan, Norm=math.inf)
    folder = write_dump(tmp_path / "d", {"Module.fc.Linear.forward.0": module_entry(bad)})
    assert "NaN" in (folder / "dump.json").read_text()
    output = rows(read(folder), "fc")[-1]
    assert math.isnan(output["maximum"])
    assert output["l2_norm"] == math.inf


def test_bool_scalar_and_empty_tensors(tmp_path: Path) -> None:
    leaves = [
        tensor(dtype="torch.bool", Max=True, Min=False, Mean=None, Norm=None),
        tensor(shape=[], Max=-2.0, Min=-2.0, Mean=-2.0, Norm=-2.0),
        tensor(shape=[0, 4], Max=None, Min=None, Mean=None, Norm=None),
    ]
    entry = {"input_args": leaves, "input_kwargs": {}, "output": []}
    truth, scalar, empty = rows(read(write_dump(tmp_path / "d", {"Torch.f.0.forward": entry})), "torch.f")
    assert (truth["dtype"], truth["maximum"], truth["minimum"]) == ("bool", 1.0, 0.0)
    assert (scalar["numel"], scalar["maximum"], scalar["l2_norm"]) == (1, -2.0, 2.0)
    assert (empty["numel"], empty["maximum"], empty["shape"]) == (0, None, [0, 4])


def test_placements_and_other_extras_are_kept(tmp_path: Path) -> None:
    sharded = tensor(type="dist.tensor.DTensor", device_mesh=[0, 1], placements=[{"Shard": {"dim": 0}}])
    output = rows(
        read(write_dump(tmp_path / "d", {"Module.fc.Linear.forward.0": module_entry(sharded)})), "fc"
    )[-1]
    assert json.loads(output["source_extra"]) == {
        "type": "dist.tensor.DTensor",
        "device_mesh": [0, 1],
        "placements": [{"Shard": {"dim": 0}}],
    }


def test_mindspore_hashes_bfloat16_as_float32_so_that_it_is_no_crc_of_the_bytes(tmp_path: Path) -> None:
    leaf = tensor(type="mindspore.Tensor", dtype="BFloat16", md5="0a0b0c0d")
    data = {"Cell.fc.Dense.forward.0": module_entry(leaf)}
    output = rows(read(write_dump(tmp_path / "d", data, framework="mindspore")), "fc")[-1]
    assert (output["dtype"], output["crc32"], output["source_digest"]) == (
        "bfloat16",
        None,
        "crc32-float32:0a0b0c0d",
    )


def test_megatron_parents_carry_the_microbatch(tmp_path: Path) -> None:
    data = {f"Module.b.Block.forward.{n}": module_entry() for n in range(2)}
    construct = {
        "Module.b.Block.forward.0": [None, 0],
        "Module.b.Block.forward.1": [None, 1],
        "megatron_micro_step_number": 1,
    }
    calls = read(write_dump(tmp_path / "d", data, construct=construct)).calls
    assert calls["microbatch"].to_list() == [0, 1]
    assert calls["ordinal"].to_list() == [0, 0]


def test_without_source_lines_only_modules_are_put_into_the_root(tmp_path: Path) -> None:
    data = {
        "Torch.arange.0.forward": {"input_args": [], "input_kwargs": {}, "output": [tensor()]},
        "Module.a.A.forward.0": module_entry(),
        "Module.b.B.forward.0": module_entry(),
    }
    construct = dict.fromkeys(data)
    calls = read(write_dump(tmp_path / "d", data, construct=construct)).calls
    parents = dict(zip(calls["name"].cast(str), calls["parent"], strict=True))
    root = calls["name"].cast(str).to_list().index("")
    assert parents == {"torch.arange": None, "": None, "a": root, "b": root}
    one = write_dump(tmp_path / "e", {"Module.a.A.forward.0": module_entry()}, construct=construct)
    assert read(one).calls["name"].cast(str).to_list() == ["a"], "one outermost module is the root itself"


def test_a_parent_outside_the_dumped_scope_is_still_a_call(tmp_path: Path) -> None:
    data = {"Module.a.fc.Linear.forward.0": module_entry()}
    construct = {"Module.a.fc.Linear.forward.0": "Module.a.Block.forward.0", "Module.a.Block.forward.0": None}
    tables = read(write_dump(tmp_path / "d", data, construct=construct))
    assert call(tables, "a.fc")["parent"] == call(tables, "a")["call"]


def test_a_construct_that_goes_round_in_circles_ends(tmp_path: Path) -> None:
    keys = ["Module.a.A.forward.0", "Module.b.B.forward.0"]
    construct = {keys[0]: keys[1], keys[1]: keys[0]}
    tables = read(write_dump(tmp_path / "d", dict.fromkeys(keys, module_entry()), construct=construct))
    assert tables.calls.height == 2


def test_backward_without_forward(tmp_path: Path) -> None:
    data = {"Module.fc.Linear.backward.0": {"input": [tensor()], "output": [tensor(), None]}}
    tables = read(write_dump(tmp_path / "d", data))
    assert [r["slot"] for r in rows(tables, "fc", "backward")] == ["output.0", "input.0"]


def test_parameters_that_change_within_a_step_are_kept_apart(tmp_path: Path) -> None:
    first, second = module_entry(), module_entry()
    first["parameters"], second["parameters"] = {"weight": tensor()}, {"weight": tensor(Max=9.0)}
    data = {"Module.fc.Linear.forward.0": first, "Module.fc.Linear.forward.1": second}
    values = rows(read(write_dump(tmp_path / "d", data)), "fc.weight", "param")
    assert [(v["slot"], v["maximum"]) for v in values] == [("value", 1.5), ("value.1", 9.0)]


def test_a_gradient_that_never_came_is_a_reason(tmp_path: Path) -> None:
    data = {
        "Module.fc.Linear.parameters_grad.0": {"weight": [None]},
        "Module.e.Emb.parameters_grad": {"w": [tensor()]},
    }
    tables = read(write_dump(tmp_path / "d", data))
    (none,) = rows(tables, "fc.weight", "param_grad")
    assert (none["summary"], none["reason"]) == (None, "msprobe saw no gradient here")
    assert rows(tables, "e.w", "param_grad")[0]["l2_norm"] == 2.0


def test_entries_of_no_known_form_are_kept(tmp_path: Path) -> None:
    data = {"something.else": {"input_args": [tensor()], "input_kwargs": {}, "output": [tensor()]}}
    assert len(rows(read(write_dump(tmp_path / "d", data)), "something.else")) == 2


def test_markup_and_bytes_that_are_no_utf8_in_names(tmp_path: Path) -> None:
    markup = "Module.<script>alert(1)</script>.Linear.forward.0"
    folder = write_dump(
        tmp_path / "d", {markup: module_entry(), "Module.q\udcff.Linear.forward.0": module_entry()}
    )
    raw = (folder / "dump.json").read_bytes().replace(b"alert(1)", b"alert(\xff)")
    (folder / "dump.json").write_bytes(raw)
    names = read(folder).calls["name"].cast(str).to_list()
    assert names == ["<script>alert(\\xff)</script>", "q\\udcff"]


@pytest.mark.parametrize(
    "entry",
    [
        ["not an object"],
        {"input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": "wide"}]},
        {"input_args": [tensor(md5="zzzzzzzz")]},
        {"input_args": [{"type": "torch.Tensor", "shape": [1]}]},
        {"input_kwargs": [1, 2]},
    ],
)
def test_an_entry_that_makes_no_sense_is_named(tmp_path: Path, entry: object) -> None:
    folder = write_dump(tmp_path / "d", {"Module.fc.Linear.forward.0": entry})
    with pytest.raises(
        TraceError, match=r"dump\.json: entry 'Module\.fc\.Linear\.forward\.0' is not of the form"
    ):
        read(folder)


def test_a_microbatch_begins_when_the_first_call_comes_again_after_backward(tmp_path: Path) -> None:
    data = {
        "Module.emb.Emb.forward.0": module_entry(),
        "Module.emb.Emb.forward.1": module_entry(),
        "Module.emb.Emb.backward.1": {"input": [tensor()], "output": []},
        "Module.emb.Emb.forward.2": module_entry(),
    }
    calls = read(write_dump(tmp_path / "d", data)).calls
    assert calls["microbatch"].to_list() == [0, 0, 1]
    assert calls["ordinal"].to_list() == [0, 1, 0]


@pytest.mark.slow
def test_fifty_thousand_entries_in_seconds(tmp_path: Path) -> None:
    entry = {"input_args": [tensor(), tensor()], "input_kwargs": {}, "output": [tensor()]}
    folder = write_dump(tmp_path / "d", {f"Tensor.__add__.{n}.forward": entry for n in range(56_000)})
    begin = time.process_time()
    tables = read(folder)
    assert tables.records.height == 168_000
    assert time.process_time() - begin < 10, "about 2 s"
