"""Names of files and operators taken apart, and put together again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.importers.mindspore.names import (
    dtype_from_mindspore,
    file_name,
    full_name_from_mangled,
    mangled,
    operator_name,
)

words = st.text("abcxyzABZ019", min_size=1, max_size=8)
classes = st.builds(str.__add__, st.sampled_from(["", "_"]), st.builds(str.__add__, st.just("C"), words))
attributes = st.builds(str.__add__, st.sampled_from(["", "_", "in_"]), words)
cells = st.lists(st.builds("{}-{}".format, attributes, classes), max_size=5)
heads = st.sampled_from([["Default"], ["Gradients", "Default"], ["recompute_Default"]])


@given(heads=heads, cells=cells, op=words, number=st.integers(0, 99))
def test_a_guess_from_a_file_name_is_the_full_name(
    heads: list[str], cells: list[str], op: str, number: int
) -> None:
    full = "/".join([*heads, *cells, f"{op}-op{number}"])
    assert full_name_from_mangled(mangled(full)) == full
    found = operator_name(full)
    assert [f"{n}-{c}" for n, c in (*found.wrappers, *found.modules)] == cells
    assert found.op == op


def test_every_name_of_a_real_dump_is_guessed_right(mindspore: Path) -> None:
    order = mindspore / "graph_O0/rank_0/execution_order/ms_execution_order_graph_0.csv"
    names = order.read_text().split()[1:]
    assert len(names) == 23
    assert [full_name_from_mangled(mangled(name)) for name in names] == names


@given(
    op=words,
    name=st.text("abcAZ_-0", min_size=1, max_size=20),
    numbers=st.tuples(*[st.integers(0, 10**17)] * 3),
    slot=st.integers(0, 30),
    side=st.sampled_from(["input", "output"]),
    rest=st.sampled_from(["", ".DefaultFormat", ".NCHW.Float32", ".32x256x13x13"]),
)
def test_file_names(
    op: str, name: str, numbers: tuple[int, int, int], slot: int, side: str, rest: str
) -> None:
    stem = f"{op}.{name}.{'.'.join(map(str, numbers))}"
    found = file_name(f"{stem}.{side}.{slot}{rest}.npy")
    assert found is not None
    assert (found.op_type, found.op_name, found.side, found.slot) == (op, name, side, slot)
    assert found.timestamp == numbers[2]
    whole = file_name(stem)
    assert whole is not None
    assert (whole.op_type, whole.op_name, whole.side) == (op, name, None)


@pytest.mark.parametrize(
    "name",
    [
        "statistic.csv",
        "mapping.csv",
        "x.npy",
        "a.b.c.d.e.npy",
        "a.b.0.0.1.input.x.npy",
        "notes.txt",
        ".npy",
        "",
    ],
)
def test_other_files_are_no_tensors(name: str) -> None:
    assert file_name(name) is None


@pytest.mark.parametrize(
    ("full", "phase", "mode", "path", "group"),
    [
        ("Default/network-A/_backbone-N/fc1-Dense/MatMul-op0", "forward", "train", ["fc1"], None),
        ("Default/fc1/MatMul-op0", "forward", "train", ["fc1"], None),
        ("Gradients/Default/network-A/fc2-D/Grad_Mul/Mul-op2", "backward", "train", ["fc2"], "Grad_Mul"),
        ("recompute_Default/network-A/b-Block/Add-op1", "forward", "recompute", ["b"], None),
        ("Gradients/recompute_Default/b-Block/Grad_Add/Add-op1", "backward", "train", ["b"], "Grad_Add"),
        ("Expand/_SoftmaxBackward/Mul-op0", "backward", "train", [], "_SoftmaxBackward"),
        ("Expand/_Gelu/Mul-op0", "forward", "train", [], "_Gelu"),
        ("Default/optimizer-Momentum/AssignAdd-op0", "optimizer", "train", ["optimizer"], None),
        ("Default/ApplyMomentum-op0", "optimizer", "train", [], None),
        ("Default/a-Attention/ApplyRotaryPosEmb-op0", "forward", "train", ["a"], None),
        ("odd", "forward", "train", [], None),
    ],
)  # fmt: skip
def test_scopes(full: str, phase: str, mode: str, path: list[str], group: str | None) -> None:
    found = operator_name(full)
    assert (found.phase, found.mode, found.group) == (phase, mode, group)
    assert [name for name, _ in found.modules] == path


def test_wrappers_of_a_large_model_lead_to_its_root() -> None:
    found = operator_name(
        "Default/network-MFPipelineWithLossScaleCell/network-_VirtualDatasetCell/"
        "_backbone-GradAccumulationCell/network-LlamaForCausalLM/model-LlamaModel/layers-CellList/"
        "0-LLamaDecodeLayer/attention-LLamaAttention/MatMul-op3"
    )
    assert found.wrappers[-1] == ("network", "LlamaForCausalLM")
    assert [name for name, _ in found.modules] == ["model", "layers", "0", "attention"]


def test_dtypes() -> None:
    spelled = ["Float32", "BFloat16", "BF16", "Int64", "Bool", "float", "DT_INT8", "Complex64"]
    assert [dtype_from_mindspore(word) for word in spelled] == [
        "float32", "bfloat16", "bfloat16", "int64", "bool", "float32", "int8", "complex64",
    ]  # fmt: skip
