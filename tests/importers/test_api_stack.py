"""Lists of ptdbg_ascend: text is read, a pickle never."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.importers.dumps import rows
from trueup.comparing.run import compare
from trueup.errors import NothingCompared, TraceError
from trueup.importers import open_trace
from trueup.types.codes import NextCode, NoteCode, VerdictCode
from trueup.types.reason import read_reason

LINES: list[list[Any]] = [
    ["Torch_relu_0_forward_input.0", 1, [], "torch.float32", [2, 2], [3.0, -1.0, 0.5]],
    ["Torch_relu_0_forward_output", 1, [], "torch.float32", [2, 2], [3.0, 0.0, 0.75]],
    ["Torch_relu_0_forward_stack_info", [["train.py", "12", "step", "y = torch.relu(x)"]]],
    ["Tensor___getitem___3_forward_input.1.0", 1, [], "<class 'int'>", "[]", [7, 7, 7]],
    ["Tensor___getitem___3_forward_output", 1, [], "torch.int64", [4], [9.0, 0.0, 4.0]],
    ["Torch_relu_0_backward_input.0", 1, [], "torch.float32", [2, 2], [1.0, 1.0, 1.0]],
    ["Torch_relu_0_backward_output.0", 1, [], "torch.float32", [2, 2], [1.0, 0.0, 0.5]],
    ["Functional_dropout_0_forward_output", 1, [], "torch.bool", [0], [[], [], []]],
]


def write(file: Path, lines: list[Any] = LINES) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return file


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        open_trace(path).read(0, 0)
    return str(caught.value)


def test_calls_tensors_and_lines_of_code(tmp_path: Path) -> None:
    tables = open_trace(write(tmp_path / "api_stack_dump.pkl")).read(0, 0)
    entered, returned = rows(tables, "torch.relu")
    assert (entered["slot"], entered["maximum"], entered["mean"], entered["shape"]) == (
        "input.0",
        3.0,
        0.5,
        [2, 2],
    )
    assert (returned["slot"], returned["l2_norm"]) == ("output.0", None)
    arriving, sent = rows(tables, "torch.relu", phase="backward")
    assert (arriving["slot"], arriving["mean"]) == ("output.0", 1.0)
    assert (sent["slot"], sent["mean"]) == ("input.0", 0.5)
    (empty,) = rows(tables, "torch.nn.functional.dropout")
    assert (empty["maximum"], empty["numel"]) == (None, 0)
    assert json.loads(tables.calls["arguments"].drop_nulls()[0]) == {"input.1.0": 7}
    assert tables.stacks["frames"].to_list() == [["train.py:12 step | y = torch.relu(x)"]]


def test_steps_ranks_and_values(tmp_path: Path) -> None:
    for step, rank in ((0, 0), (0, 1), (4, 0)):
        file = write(tmp_path / f"all_v2.0/step{step}/rank{rank}/api_stack_dump.pkl")
    values = file.with_suffix("")
    values.mkdir()
    np.save(values / "Torch_relu_0_forward_output.npy", np.ones((2, 2), np.float32))
    for path in (tmp_path, tmp_path / "all_v2.0"):
        dump = open_trace(path)
        assert dump.steps() == {0: [0, 1], 4: [0]}
        assert dump.manifest["task"] == "tensor"
    entered, returned = rows(dump.read(4, 0), "torch.relu")
    assert dump.tensor(4, 0, entered) is None
    stored = dump.tensor(4, 0, returned)
    assert stored is not None
    assert stored.shape == (2, 2)
    with pytest.raises(TraceError, match="no step 1 of rank 0"):
        dump.read(1, 0)


class _Hostile:
    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._witness),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    witness = tmp_path / "witness"
    hostile = pickle.dumps([_Hostile(witness)], protocol)
    file = tmp_path / "run/api_stack_dump.pkl"
    file.parent.mkdir()
    file.write_bytes(hostile)
    assert "can execute code" in refusal(file)
    assert "can execute code" in refusal(file.parent)
    file.write_bytes(json.dumps(LINES[0]).encode() + b"\n" + hostile)
    assert "line 2" in refusal(file) or "no line of" in refusal(file)
    assert not witness.exists()
    pickle.loads(hostile)
    assert witness.exists(), "this pickle is one that acts"


def test_a_plain_pickle_is_refused_as_well(tmp_path: Path) -> None:
    file = tmp_path / "api_stack_dump.pkl"
    file.write_bytes(pickle.dumps(LINES))
    assert "can execute code" in refusal(file)
    assert "Pickles are not read" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('["Torch_relu_0_forward_input.0", 1, [], "torch.fl', "not a JSON list"),
        ('["loss", 1.0]', "begins with a name such as"),
        ("[]", "begins with a name such as"),
        ('["Torch_relu_0_forward_input.0", 1]', "a dtype, a shape"),
        (
            '["Torch_relu_0_forward_input.0", 1, [], "torch.float32", "many", [1, 1, 1]]',
            "the shape is 'many'",
        ),
        ("[" * 100_000, "not a JSON list"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    file = write(tmp_path / "api_stack_dump.pkl", LINES[:2])
    file.write_text(f"{file.read_text()}{line}\n")
    message = refusal(file)
    assert f"{file}, line 3" in message
    assert words in message


def test_an_empty_list_and_several_of_one_rank(tmp_path: Path) -> None:
    file = write(tmp_path / "rank0/api_stack_dump.pkl")
    (tmp_path / "rank0/all_dump.pkl").write_text("")
    assert "several dumps of one rank" in refusal(tmp_path)
    file.unlink()
    assert "is empty" in refusal(tmp_path)


def linear_lines(
    *, spoilt: float = 0.0, noise: float = 0.0, mean: bool = True, norm: bool = False, size: int = 64
) -> list[list[Any]]:
    """Three layers; ``spoilt`` moves the largest element of the second layer's output and another one back,
    so that its mean stays."""
    rng, lines = np.random.default_rng(size), []

    def add(name: str, values: Any) -> None:
        numbers = [float(values.max()), float(values.min())]
        numbers += [float(values.mean())] if mean else []
        numbers += [float(np.linalg.norm(values))] if norm else []
        lines.append([name, 1, [], "torch.float32", list(values.shape), numbers])

    x = rng.normal(size=(8, size)).astype(np.float32)
    for layer in range(3):
        weight = (rng.normal(size=(size, size)) / size**0.5).astype(np.float32)
        add(f"Functional_linear_{layer}_forward_input.0", x)
        add(f"Functional_linear_{layer}_forward_input.1", weight)
        x = x @ weight.T
        x = (x * (1 + noise * np.random.default_rng(layer).normal(size=x.shape))).astype(np.float32)
        if layer == 1:
            flat = x.reshape(-1)
            largest, other = int(flat.argmax()), int(np.abs(flat).argmin())
            flat[largest] += spoilt * flat[largest]
            flat[other] -= flat[largest] - flat[largest] / (1 + spoilt)
        add(f"Functional_linear_{layer}_forward_output", x)
    return lines


def compared(tmp_path: Path, target: list[list[Any]], reference: list[list[Any]]) -> dict[str, Any]:
    sides = [
        write(tmp_path / f"{name}/rank0/api_stack_dump.pkl", lines).parents[1]
        for name, lines in (("target", target), ("reference", reference))
    ]
    summary: dict[str, Any] = compare(*sides).summary
    return summary["verdict"]


@pytest.mark.parametrize("size", [16, 200])
def test_extremes_alone_show_a_difference(tmp_path: Path, size: int) -> None:
    found = compared(tmp_path, linear_lines(spoilt=0.1, size=size), linear_lines(size=size))
    assert found["outcome"] == "differ"
    assert found["where"] == "torch.nn.functional.linear[1] · output.0"
    codes = [one["code"] for one in found["evidence_reasons"]]
    assert "evidence.extremes" in codes
    assert "evidence.size" in codes


@pytest.mark.parametrize("form", [{}, {"norm": True}, {"mean": False}])
def test_rounding_is_no_difference_without_a_norm(tmp_path: Path, form: dict[str, bool]) -> None:
    found = compared(tmp_path, linear_lines(noise=6e-8, **form), linear_lines(**form))
    assert found["outcome"] == "agree"


def spoilt_lines(
    shown: float, words: tuple[int, ...], *, from_layer: int, norm: bool = True, mean: bool = True
) -> list[list[Any]]:
    """The layers' lists, with ``shown`` in place of these statistics from the output of one layer on."""
    lines = linear_lines(norm=norm, mean=mean)
    for line in lines:
        layer, is_output = int(line[0].split("_")[2]), line[0].endswith("output")
        is_weight = line[0].endswith("input.1")
        if (layer > from_layer and not is_weight) or (layer == from_layer and is_output):
            line[5] = [shown if at in words else value for at, value in enumerate(line[5])]
    return lines


@pytest.mark.parametrize("form", [{"norm": True}, {"norm": False}, {"norm": False, "mean": False}])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(
    ("shown", "words", "what"),
    [
        (float("nan"), (0, 1, 2, 3), "NaN"),
        (float("inf"), (0, 2, 3), "+Inf"),
        (float("inf"), (0, 1, 2, 3), "+Inf"),
        (float("-inf"), (1, 2, 3), "-Inf"),
    ],
)
def test_what_is_not_finite_is_named(
    tmp_path: Path, shown: float, words: tuple[int, ...], what: str, layer: int, form: dict[str, bool]
) -> None:
    """Nobody counted it; the extremes show it, beside extremes (and a mean, where there are some) that are
    finite."""
    bad, good = spoilt_lines(shown, words, from_layer=layer, **form), linear_lines(**form)
    for side, pair in (("target", (bad, good)), ("reference", (good, bad))):
        found = compared(tmp_path / side, *pair)
        headline = read_reason(found, "headline")
        assert (found["outcome"], headline.code) == ("differ", VerdictCode.NOT_FINITE)
        assert (headline.place("what"), headline.place("side")) == (what, side)
        assert found["where"].endswith(f"linear[{layer}] · output.0" if layer else "linear · output.0")
    both = compared(tmp_path / "both", bad, bad)
    assert both["outcome"] != "differ", "the same on both sides"


@pytest.mark.parametrize(
    ("shown", "words"),
    [(float("inf"), (3,)), (float("nan"), (3,)), ("Nan", (0, 1, 2, 3)), (float("inf"), (2,))],
    ids=["norm_overflows", "norm_is_nan", "no_statistics", "mean_overflows"],
)
def test_what_shows_no_infinity_is_none(tmp_path: Path, shown: Any, words: tuple[int, ...]) -> None:
    """A norm or mean overflows by itself; a word is no number."""
    found = compared(tmp_path, spoilt_lines(shown, words, from_layer=1), linear_lines(norm=True))
    assert found["outcome"] != "differ"


@pytest.mark.parametrize("hides", [-1e9, -3.4028234663852886e38])
def test_minus_infinity_beside_another_mask_is_none(tmp_path: Path, hides: float) -> None:
    def lines(low: float) -> list[list[Any]]:
        mask = ["Functional_softmax_0_forward_input.0", 1, [], "torch.float32", [8, 8], [2.0, low, low / 2]]
        return [
            mask,
            ["Functional_softmax_0_forward_output", 1, [], "torch.float32", [8, 8], [0.5, 0.0, 0.125]],
        ]

    assert compared(tmp_path, lines(float("-inf")), lines(hides))["outcome"] != "differ"
    assert compared(tmp_path, lines(float("-inf")), lines(-4.0))["outcome"] == "differ"


def test_norms_and_digests_of_later_versions(tmp_path: Path) -> None:
    line = ["Torch_relu_0_forward_input.0", 1, [], "torch.float32", [2, 2]]
    of_four = [*line, [3.0, -1.0, 0.5, 3.5]]
    of_eight = [*line, [3.0, -1.0, 0.5], "0123456789abcdef0123456789abcdef", 3.5]
    of_integers = [*line[:3], "torch.int64", [2, 2], [3.0, 1.0, 2.0, "Nan"]]
    for lines, norm in ((of_four, 3.5), (of_eight, 3.5), (of_integers, None)):
        (row,) = rows(open_trace(write(tmp_path / "api_stack_dump.pkl", [lines])).read(0, 0), "torch.relu")
        assert row["l2_norm"] == norm
    other = [*of_eight[:6], "f" * 32, 3.5]
    assert compared(tmp_path, [of_eight], [of_eight])["headline_reason"]["code"] == "verdict.bit_identical"
    assert compared(tmp_path, [other], [of_eight])["headline_reason"]["code"] == "verdict.agree"


@pytest.mark.parametrize(
    ("base", "site"),
    [
        ("Aten_native_layer_norm.default_0", "torch.ops.aten.native_layer_norm.default"),
        (
            "Aten__native_batch_norm_legit_functional.default_12",
            "_native_batch_norm_legit_functional.default",
        ),
        ("MyModule_0", "Module.MyModule"),
        ("decoder.norm2_3", "Module.decoder.norm2"),
        ("My_net_v2_1", "Module.My_net_v2"),
        ("Module_Linear_4", "Module.Linear"),
        ("NPU_npu_rms_norm_0", "torch_npu.npu_rms_norm"),
    ],
)
def test_names_of_operators_and_of_modules_dumped_whole(tmp_path: Path, base: str, site: str) -> None:
    leaf = [1, [], "torch.float32", [2], [1.0, 0.0, 0.5]]
    lines: list[list[Any]] = [[f"{base}_forward_input.0", *leaf], [f"{base}_backward_output.0", *leaf]]
    tables = open_trace(write(tmp_path / "api_stack_dump.pkl", lines)).read(0, 0)
    assert {name.endswith(site) for name in tables.calls["name"]} == {True}
    assert [len(rows(tables, tables.calls["name"][0], phase=p)) for p in ("forward", "backward")] == [1, 1]


def with_digests(*changed: int) -> list[list[Any]]:
    """The layers' lists as ``summary_mode="md5"`` writes them, some with other bits."""
    lines = linear_lines()
    for at, line in enumerate(lines):
        line[2], line[5] = f"{at + (1000 if at in changed else 0):032x}", []
    return lines


def test_digests_alone(tmp_path: Path) -> None:
    assert compared(tmp_path / "same", with_digests(), with_digests())["headline_reason"]["code"] == (
        "verdict.bit_identical"
    )
    for name, changed, outside in (("last", (7, 8), 2), ("inside", (5,), 1)):
        found = compared(tmp_path / name, with_digests(*changed), with_digests())
        headline = read_reason(found, "headline")
        assert (found["outcome"], headline.code) == ("undecided", VerdictCode.NOT_BRACKETED)
        assert headline.number("digests") == outside
        assert found["evidence_reasons"][0]["parts"][0]["code"] == "record.digests_differ"
        assert read_reason(found, "next").code is NextCode.CAPTURE_STATISTICS


def test_the_step_above_the_version_of_the_tool(tmp_path: Path) -> None:
    for step in (0, 3):
        write(tmp_path / f"step{step}/ptdbg_dump_v2.0/rank0/api_stack_dump.pkl")
    assert open_trace(tmp_path).steps() == {0: [0], 3: [0]}


def test_a_rank_that_is_the_number_of_a_process(tmp_path: Path) -> None:
    def dumped(name: str, *ranks: int) -> Path:
        for rank in ranks:
            write(tmp_path / name / f"ptdbg_dump_v5.0/step0/rank{rank}/api_stack_dump.pkl")
        return tmp_path / name

    cpu, npu, two = dumped("cpu", 24117), dumped("npu", 0), dumped("two", 0, 1)
    found = compare(npu, cpu)
    assert found.verdict.outcome.value == "agree"
    assert NoteCode.ONE_RANK_EACH in {note.code for note in found.content.notes}
    assert NoteCode.ONE_RANK_EACH not in {note.code for note in compare(npu, npu).content.notes}
    with pytest.raises(NothingCompared, match="--target-rank"):
        compare(two, cpu)


def test_one_extreme_alone_decides_nothing(tmp_path: Path) -> None:
    same = ["Torch_exp_0_forward_input.0", 1, [], "torch.float32", [2, 2], [3.0, 1.0, 2.0]]
    line = ["Torch_relu_0_forward_input.0", 1, [], "torch.float32", [2, 2]]
    found = compared(tmp_path, [[*line, [3.5]], same], [[*line, [3.0]], same])
    assert found["outcome"] == "undecided"


@pytest.mark.parametrize("number", ["2147483647", "2147483648", "9" * 25])
def test_a_number_of_a_call_that_no_column_holds(tmp_path: Path, number: str) -> None:
    lines = [[f"Torch_relu_{number}_forward_output", 1, [], "torch.float32", [2], [3.0, 0.0, 0.75]]]
    file = write(tmp_path / "api_stack_dump.pkl", lines)
    if len(number) == 10 and number.endswith("7"):
        assert open_trace(file).read(0, 0).calls.height == 1
    else:
        assert "api_stack_dump.pkl: a value is no" in refusal(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["Torch_relu_0_forward_stack_info", True], "expected the frames of a call"),
        (["Torch_relu_0_forward_output", 1, [], "torch.float32", [True], [0.0]], "the shape is"),
        (["Torch_relu_0_forward_output", 1, [], "torch.float32", [2**70], [0.0]], "the shape is"),
        (
            ["Torch_relu_0_forward_output.999999", 1, [], "torch.float32", [2], [0.0]],
            "no line of an api_stack",
        ),
    ],
)
def test_a_line_of_other_values_is_refused(tmp_path: Path, line: list[Any], said: str) -> None:
    assert said in refusal(write(tmp_path / "api_stack_dump.pkl", [line]))


def test_a_statistic_beyond_every_float_is_none(tmp_path: Path) -> None:
    line = ["Torch_relu_0_forward_output", 1, [], "torch.float32", [2], [10**400, 0.0, 0.75]]
    tables = open_trace(write(tmp_path / "api_stack_dump.pkl", [line])).read(0, 0)
    assert tables.summaries["maximum"].to_list() == [None]
