"""Traces written as dumps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.importers.dumps import module_entry, same, tensor, write_dump
from tests.importers.made_trace import TraceMaker, small_model
from trueup.errors import ConfigError
from trueup.importers import open_trace
from trueup.importers.msprobe.export import export_msprobe

DUMPS = [
    "base/L0_statistics_statistics",
    "base/mix_statistics_statistics",
    "base/mix_statistics_md5",
    "rope_bf16/mix_statistics_statistics",
    "ddp_base",
    "mindspore_cpu/L0_statistics",
    "mindspore_cpu/mix_statistics",
    "mindspore_cpu/mix_tensor",
    "accumulation/statistics",
    "accumulation/md5",
    "accumulation/xor",
    pytest.param("accumulation/tensor", marks=pytest.mark.torch),
]


def load(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@pytest.mark.parametrize("name", DUMPS)
def test_an_imported_dump_is_exported_with_equal_entries(dumps: Path, tmp_path: Path, name: str) -> None:
    folders = export_msprobe(open_trace(dumps / name), tmp_path)
    assert [f.relative_to(tmp_path) for f in folders] == [
        f.parent.relative_to(dumps / name) for f in sorted((dumps / name).glob("step*/*/dump.json"))
    ]
    for folder in folders:
        before = load(dumps / name / folder.relative_to(tmp_path) / "dump.json")
        after = load(folder / "dump.json")
        changed = [k for k in before["data"] if not same(before["data"][k], after["data"].get(k))]
        assert changed == []
        assert len(before["data"]) == len(after["data"])
        assert {k: before[k] for k in ("task", "level", "framework")} == {
            k: after[k] for k in ("task", "level", "framework")
        }
        if not name.startswith(
            "accumulation"
        ):  # there msprobe lost its place when checkpointing stopped a call
            assert list(before["data"]) == list(after["data"])
        stacks = load(dumps / name / folder.relative_to(tmp_path) / "stack.json")
        listed = {n for names, _ in stacks.values() for n in names if n in before["data"]}
        assert listed == {n for names, _ in load(folder / "stack.json").values() for n in names}


@pytest.mark.torch
def test_exported_values_are_bit_equal_and_plain(dumps: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (folder,) = export_msprobe(open_trace(dumps / "accumulation/tensor"), tmp_path)
    (original,) = (dumps / "accumulation/tensor").glob("step0/proc*")
    files = sorted(f.name for f in (original / "dump_tensor_data").iterdir())
    assert sorted(f.name for f in (folder / "dump_tensor_data").iterdir()) == files
    for file in files:
        one = torch.load(original / "dump_tensor_data" / file, weights_only=True)
        other = torch.load(folder / "dump_tensor_data" / file, weights_only=True)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_captured_trace_reads_as_msprobe_would_have_written_it(tmp_path: Path) -> None:
    source = open_trace(small_model(tmp_path / "run"))
    (folder,) = export_msprobe(source, tmp_path / "dump")
    assert folder == tmp_path / "dump/step0/proc4711"
    data = load(folder / "dump.json")["data"]
    assert list(data) == [
        "Module.emb.Embedding.forward.0",
        "Tensor.__add__.0.forward",
        "Module.block.Block.forward.0",
        "Module.head.Linear.forward.0",
        "Module.head.Linear.backward.0",
        "Module.block.Block.backward.0",
        "Module.emb.Embedding.backward.0",
        "Module.emb.Embedding.parameters_grad.0",
        "Module.head.Linear.parameters_grad.0",
    ]
    block = data["Module.block.Block.forward.0"]
    assert block["input_args"] == []
    assert block["input_kwargs"]["causal"] == {"type": "bool", "value": True}
    assert block["input_kwargs"]["hidden_states"]["shape"] == [2, 3, 4]
    assert list(block["output"][0]) == ["hidden", "aux"]
    assert block["output"][0]["aux"][0]["dtype"] == "torch.bfloat16"
    assert [g["shape"] for g in data["Module.block.Block.backward.0"]["input"]] == [[2, 3, 4]]
    assert data["Module.head.Linear.forward.0"]["parameters"].keys() == {"weight"}, (
        "tied, and listed under its own name"
    )
    assert data["Tensor.__add__.0.forward"]["input_args"][1] == {"type": "int", "value": 2}
    construct = load(folder / "construct.json")
    assert construct["Module.block.Block.forward.0"] is None, "msprobe does not list the root"
    assert construct["Tensor.__add__.0.forward"] == "Module.block.Block.forward.0"
    names, frames = load(folder / "stack.json")["0"]
    assert "Module.head.Linear.forward.0" in names
    assert frames == ["File train.py, line 7, in main, \n loss = model(x)"]


def test_counted_infinities_come_back_in_msprobe_s_statistics(tmp_path: Path) -> None:
    (folder,) = export_msprobe(open_trace(small_model(tmp_path / "run")), tmp_path / "dump")
    logits = load(folder / "dump.json")["data"]["Module.head.Linear.forward.0"]["output"][0]
    assert (logits["Min"], logits["Mean"], logits["Norm"]) == (-math.inf, -math.inf, math.inf)
    assert math.isfinite(logits["Max"])


def test_md5_is_there_only_when_a_crc32_was_captured(tmp_path: Path) -> None:
    for crc32 in (True, False):
        source = open_trace(small_model(tmp_path / f"run{crc32}", crc32=crc32))
        (folder,) = export_msprobe(source, tmp_path / f"dump{crc32}")
        leaf = load(folder / "dump.json")["data"]["Module.emb.Embedding.forward.0"]["output"][0]
        assert ("md5" in leaf) == crc32
        if crc32:
            assert len(leaf["md5"]) == 8


@pytest.mark.torch
def test_captured_values_become_pt_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (folder,) = export_msprobe(open_trace(small_model(tmp_path / "run", values=True)), tmp_path / "dump")
    assert load(folder / "dump.json")["task"] == "tensor"
    leaf = load(folder / "dump.json")["data"]["Module.block.Block.forward.0"]["output"][0]["aux"][0]
    assert leaf["data_name"] == "Module.block.Block.forward.0.output.0.aux.0.pt"
    value = torch.load(folder / "dump_tensor_data" / leaf["data_name"], weights_only=True)
    assert value.dtype == torch.bfloat16
    assert torch.equal(value, torch.ones(2, 3, dtype=torch.bfloat16))


def test_steps_and_ranks_are_chosen(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (0, 3):
            small_model(tmp_path / "run", step=step, rank=rank, world_size=2)
    source = open_trace(tmp_path / "run")
    assert [
        str(f.relative_to(tmp_path / "dump")) for f in export_msprobe(source, tmp_path / "dump", steps=[3])
    ] == [
        "step3/rank0",
        "step3/rank1",
    ]
    assert [f.name for f in export_msprobe(source, tmp_path / "dump", steps=[0], ranks=[1])] == ["rank1"]
    with pytest.raises(ConfigError, match=r"nothing to export .* steps 0, 3 and the ranks \[0, 1\]"):
        export_msprobe(source, tmp_path / "dump", steps=[7])
    with pytest.raises(ConfigError, match="already holds a dump"):
        export_msprobe(source, tmp_path / "dump", steps=[3], ranks=[0])


def test_functions_of_one_short_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    made = TraceMaker()
    for name in ("torch.add", "somewhere.add", "torch._C._nn.gelu", "elsewhere.else.add"):
        made.call("api", name, arguments='{"input.0": 1}')
    (folder,) = export_msprobe(open_trace(made.write(tmp_path / "run")), tmp_path / "dump")
    assert list(load(folder / "dump.json")["data"]) == [
        "Torch.add.0.forward",
        "Torch.add.1.forward",
        "Functional.gelu.0.forward",
        "Torch.add.2.forward",
    ]


def test_names_a_file_system_will_not_take(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import numpy as np

    made = TraceMaker(values=True)
    for name in ("a/b", "a_b", "x" * 400):
        made.tensor(made.call("module", name, type="Linear"), "forward", "output.0", np.ones(2, np.float32))
    (folder,) = export_msprobe(open_trace(made.write(tmp_path / "run")), tmp_path / "dump")
    leaves = [entry["output"][0] for entry in load(folder / "dump.json")["data"].values()]
    assert len({leaf["data_name"] for leaf in leaves}) == 3
    assert all((folder / "dump_tensor_data" / leaf["data_name"]).is_file() for leaf in leaves)


def test_extras_and_absent_gradients_survive(tmp_path: Path) -> None:
    entry = module_entry(
        tensor(type="dist.tensor.DTensor", device_mesh=[0, 1], placements=[{"Replicate": {}}])
    )
    data = {
        "Module.fc.Linear.forward.0": entry,
        "Module.fc.Linear.backward.0": {"input": [tensor(requires_grad=False)], "output": [None, None]},
        "Module.fc.Linear.parameters_grad.0": {"weight": [None]},
        "Torch.arange.0.forward": {
            "input_args": [{"type": "int", "value": 4}, None],
            "input_kwargs": {},
            "output": [tensor()],
        },
    }
    before = write_dump(tmp_path / "in", data)
    (after,) = export_msprobe(open_trace(before), tmp_path / "out")
    assert same(load(before / "dump.json")["data"], load(after / "dump.json")["data"])
