"""Real dumps of MindSpore, and small ones made by hand, as traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.importers.dumps import call, rows
from tests.importers.mindspore_dumps import HEADING, LINEAR, iteration, refusal, write_order, write_tensor
from trueup.comparing.run import compare
from trueup.errors import TraceError
from trueup.importers import open_trace
from trueup.importers.mindspore.modules import FOUND
from trueup.importers.mindspore.reader import MindsporeDump
from trueup.importers.mindspore.tables import AS_TAKEN, AS_UPDATED
from trueup.numerics.digest import digest
from trueup.numerics.statistics import statistics
from trueup.store import StepTables


def named_calls(tables: StepTables) -> list[tuple[str, str, str | None]]:
    """Kind, name and enclosing call's name of every call."""
    kinds, names = tables.calls["kind"].cast(pl.String), tables.calls["name"].cast(pl.String)
    parents = [None if p is None else names[p] for p in tables.calls["parent"]]
    return list(zip(kinds, names, parents, strict=True))


_INFERRED = [FOUND, AS_TAKEN, AS_UPDATED]


def dumped(tables: StepTables) -> pl.DataFrame:
    """Records the dump has a file for."""
    return tables.records.filter(pl.col("reason").cast(pl.String).fill_null("").is_in(_INFERRED).not_())


# -- the real dumps ----------------------------------------------------------------------------------------


def test_steps_and_facts(mindspore: Path) -> None:
    dump = open_trace(mindspore / "graph_O0")
    assert isinstance(dump, MindsporeDump)
    assert dump.steps() == {0: [0], 1: [0]}
    assert dump.manifest["framework"] == "mindspore"
    assert dump.manifest["framework_version"] == "2.10.0"
    assert dump.manifest["options"]["common_dump_settings"]["net_name"] == "Net"
    assert dump.manifest["devices"] == ["CPU"]
    assert "in place" in dump.rank_facts(0)["limits"][0]


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ("", {0: [0], 1: [0]}),
        ("rank_0", {0: [0], 1: [0]}),
        ("rank_0/Net", {0: [0], 1: [0]}),
        ("rank_0/Net/0", {0: [0], 1: [0]}),
        ("rank_0/Net/0/1", {1: [0]}),
    ],
)
def test_every_folder_of_a_dump_may_be_given(
    mindspore: Path, given: str, steps: dict[int, list[int]]
) -> None:
    dump = open_trace(mindspore / "graph_O0" / given)
    assert dump.steps() == steps
    tables = dump.read(1, 0)
    assert call(tables, "fc1")["type"] == "Dense", "full names are found from below too"
    assert dumped(tables).height == 107


def test_the_call_tree_has_the_modules_of_the_script(mindspore: Path) -> None:
    tables = open_trace(mindspore / "graph_O0").read(0, 0)
    calls = named_calls(tables)
    modules = [name for kind, name, _ in calls if kind == "module"]
    assert modules == ["", "fc1", "act", "fc2", "sm", "SoftmaxCrossEntropyWithLogits", "Momentum"]
    assert call(tables, "")["type"] == "Net"
    assert [name for _, name, parent in calls if parent == "fc1"] == [
        "mindspore.ops.MatMul",
        "mindspore.ops.BiasAdd",
    ]
    forward = (
        dumped(tables).filter(pl.col("phase") == "forward")["call"].unique(maintain_order=True).to_list()
    )
    order = [calls[row][1].rpartition(".")[2] for row in forward[1:]]
    assert order[:6] == ["MatMul", "BiasAdd", "ReLU", "MatMul", "BiasAdd", "Softmax"]
    assert order[6:] == ["SparseSoftmaxCrossEntropyWithLogits"]
    assert all(p is None or p < row for row, p in enumerate(tables.calls["parent"])), "parents first"


def test_every_file_is_one_record_with_our_own_statistics(mindspore: Path) -> None:
    folder = mindspore / "graph_O0/rank_0/Net/0/0"
    tables = open_trace(mindspore / "graph_O0").read(0, 0)
    assert dumped(tables).height == tables.summaries.height == len(list(folder.glob("*.npy"))) == 107
    assert dumped(tables)["reason"].null_count() == 107
    for summary in tables.summaries.to_dicts():
        array = np.load(folder / summary["tensor"])
        wanted = statistics(array)
        assert summary["shape"] == list(array.shape)
        assert summary["dtype"] == array.dtype.name
        assert summary["digest"] == digest(array)
        assert summary["num_zero"] == wanted["num_zero"]
        assert summary["l2_norm"] == pytest.approx(float(wanted["l2_norm"]), rel=1e-6)
        assert summary["maximum"] == wanted["maximum"]


def test_what_goes_into_cells_and_comes_out_is_found_by_content(mindspore: Path) -> None:
    """The script runs fc1, act, fc2, sm one after the other; all in its place between their operators."""
    tables = open_trace(mindspore / "graph_O0").read(0, 0)
    found = {name: rows(tables, name) for name in ("", "fc1", "act", "fc2", "sm")}
    assert all([r["slot"] for r in records] == ["input.0", "output.0"] for records in found.values())
    outputs = {name: records[1]["digest"] for name, records in found.items()}
    inputs = {name: records[0]["digest"] for name, records in found.items()}
    assert [inputs[n] for n in ("act", "fc2", "sm")] == [outputs[n] for n in ("fc1", "act", "fc2")]
    assert (inputs[""], outputs[""]) == (inputs["fc1"], outputs["sm"])
    assert inputs[""] == rows(tables, "mindspore.graph_inputs")[0]["digest"]
    forward = tables.records.filter(pl.col("phase") == "forward")
    sites = [tables.calls["name"].cast(pl.String)[row] for row in forward["call"][2:20]]
    assert sites[:3] == ["", "fc1", "mindspore.ops.MatMul"]
    assert sites[sites.index("act") - 1] == "fc1"


def test_of_several_tensors_none_is_called_the_input(tmp_path: Path) -> None:
    """Which of two a cell was given first is not known; one element tells nothing."""
    folder = iteration(tmp_path)
    a, b, one = np.arange(2.0), np.arange(3.0), np.ones(1)
    for time, (name, taken, given) in enumerate(
        [
            ("Default/network-Net/x-X/A-op0", [], [a]),
            ("Default/network-Net/y-Y/B-op0", [], [b, one]),
            ("Default/network-Net/z-Z/C-op0", [a, b, one], [a + 1, b + 1]),
            ("Default/network-Net/w-W/D-op0", [a + 1, b + 1], []),
            ("Default/network-Net/v-V/E-op0", [one], []),
        ]
    ):
        for side, arrays in (("input", taken), ("output", given)):
            for slot, array in enumerate(arrays):
                write_tensor(folder, name, f"{side}.{slot}", array, timestamp=time + 1)
    tables = open_trace(tmp_path).read(0, 0)
    assert [r["slot"] for r in rows(tables, "x")] == ["output.0"]
    assert [r["slot"] for r in rows(tables, "y")] == ["output.0"]
    assert [rows(tables, name) for name in ("z", "w", "v")] == [[], [], []]


def test_values_come_back_bit_for_bit(mindspore: Path) -> None:
    dump = open_trace(mindspore / "graph_O0")
    tables = dump.read(1, 0)
    (row,) = [r for r in rows(tables, "mindspore.ops.MatMul", global_ordinal=0) if r["slot"] == "output.0"]
    stored = dump.tensor(1, 0, row)
    assert stored is not None
    (file,) = (mindspore / "graph_O0/rank_0/Net/0/1").glob("MatMul.Default_*fc1*output.0*")
    assert stored.data.tobytes() == np.load(file).tobytes()


def test_phases_of_backward_and_optimizer(mindspore: Path) -> None:
    tables = open_trace(mindspore / "graph_O0").read(0, 0)
    slots = [r["slot"] for r in rows(tables, "mindspore.ops.Grad_ReLU.ReluGrad", phase="backward")]
    assert slots == ["output.0", "output.1", "input.0"], "what arrives, then what is sent on"
    updates = rows(tables, "mindspore.ops.ApplyMomentum", phase="optimizer", ordinal=0)
    assert [r["slot"] for r in updates] == [*(f"input.{n}" for n in range(5)), "output.0"]


def test_weights_before_the_update_and_their_gradients_are_what_operators_take(mindspore: Path) -> None:
    dump = open_trace(mindspore / "graph_O0")
    tables = dump.read(1, 0)
    (before,) = rows(tables, "fc1.weight", phase="param")
    assert (before["slot"], before["reason"]) == ("value", AS_TAKEN)
    assert before["digest"] == rows(dump.read(0, 0), "fc1.weight", phase="optimizer")[0]["digest"]
    (gradient,) = rows(tables, "fc1.weight", phase="param_grad")
    assert (gradient["slot"], gradient["shape"]) == ("clipped", [16, 8])
    taken = rows(tables, "mindspore.ops.ApplyMomentum", phase="optimizer")
    assert [r["slot"] for r in taken if r["digest"] == gradient["digest"]] == ["input.3"]


def test_parameters_are_those_after_the_update(mindspore: Path) -> None:
    """A weight dumped with iteration 0 is what iteration 1 multiplies with."""
    dump = open_trace(mindspore / "graph_O0")
    after = rows(dump.read(0, 0), "fc1.weight", phase="optimizer")
    assert [r["slot"] for r in after] == ["param", "state.moments"]
    used = rows(dump.read(1, 0), "mindspore.ops.MatMul", global_ordinal=0)[1]
    assert after[0]["digest"] == used["digest"]
    inputs = rows(dump.read(0, 0), "mindspore.graph_inputs")
    assert [(r["slot"], r["dtype"]) for r in inputs] == [("output.0", "float32"), ("output.1", "int32")]


def test_without_execution_order_timestamps_give_the_order(mindspore: Path, tmp_path: Path) -> None:
    shutil.copytree(mindspore / "graph_O0/rank_0/Net", tmp_path / "rank_0/Net")
    dump = open_trace(tmp_path)
    tables = dump.read(0, 0)
    first = next(name for kind, name, _ in named_calls(tables) if kind == "api")
    assert first == "mindspore.ops.AssignAdd", "which the run did first, though the graph has it late"
    assert {"fc1", "fc2", "act", "sm"} <= set(tables.calls["name"].cast(pl.String))
    assert any("guessed" in limit for limit in dump.rank_facts(0)["limits"])


def test_pynative_dumps_the_optimizer_alone(mindspore: Path) -> None:
    tables = open_trace(mindspore / "pynative").read(0, 0)
    assert tables.records.height == 38
    assert {kind for kind, _, _ in named_calls(tables)} == {"api", "parameter"}
    assert len(rows(tables, "mindspore.ops.ApplyMomentum", phase="optimizer")) == 24


def test_a_dump_is_equal_to_itself_and_a_changed_value_is_found(mindspore: Path, tmp_path: Path) -> None:
    shutil.copytree(mindspore / "graph_O0", tmp_path / "other")
    same = compare(tmp_path / "other", mindspore / "graph_O0")
    assert same.exit_code == 0
    assert same.summary["counts"]["equal"] == same.summary["counts"]["compared"] == 2 * (107 + 10 + 8)
    (file,) = (tmp_path / "other/rank_0/Net/0/0").glob("BiasAdd.Default_*fc2*output.0*")
    file.chmod(0o600)
    np.save(file, np.load(file) * np.float32(1.01))
    verdict = compare(tmp_path / "other", mindspore / "graph_O0").summary["verdict"]
    assert (verdict["outcome"], verdict["owner"], verdict["phase"]) == ("differ", "fc2", "forward")


def test_statistics_of_a_run_compare_with_its_values(mindspore: Path, tmp_path: Path) -> None:
    """What Ascend would write as statistic.csv of the same run: equal as far as statistics tell."""
    folder = mindspore / "graph_O0/rank_0/Net/0/0"
    lines = [f"{HEADING},Max Value,Min Value,L2Norm Value"]
    for file in sorted(folder.glob("*.npy"), key=lambda f: f.name.split(".")[4]):
        op, name, task, stream, time, side, slot, _, dtype, _ = file.name.split(".")
        array = np.load(file).astype(np.float64)
        shape = ",".join(map(str, array.shape))
        numbers = f"{array.max()!r},{array.min()!r},{np.sqrt(np.square(array).sum())!r},".replace(
            "np.float64", ""
        )
        head = f"{op},{name},{task},{stream},{time},{side},{slot},{array.nbytes},{dtype}"
        lines.append(f'{head},"({shape})",{numbers.replace("(", "").replace(")", "")}')
    shutil.copytree(mindspore / "graph_O0/rank_0/execution_order", tmp_path / "rank_0/execution_order")
    shutil.copytree(mindspore / "graph_O0/rank_0/graphs", tmp_path / "rank_0/graphs")
    (iteration(tmp_path) / "statistic.csv").write_text("\n".join(lines) + "\n")
    compared = compare(tmp_path, mindspore / "graph_O0/rank_0/Net/0/0")
    counts = compared.summary["counts"]
    assert counts["num_unmatched"] == counts["different"] == 0
    assert counts["compared"] == 107 + 10 + 8, "what goes into cells is found from three statistics as well"


# -- made by hand ------------------------------------------------------------------------------------------


def test_ranks_iterations_and_graphs(tmp_path: Path) -> None:
    for rank in (0, 3):
        for step in (0, 5, 100):
            for graph in (0, 1):
                folder = iteration(tmp_path, step, rank=rank, graph=graph)
                name = f"Default/network-Net/fc{graph}-Dense/MatMul-op0"
                write_tensor(folder, name, "output.0", np.full(2, rank + step), timestamp=9 - graph)
    dump = open_trace(tmp_path)
    assert dump.steps() == {0: [0, 3], 5: [0, 3], 100: [0, 3]}
    assert dump.manifest["world_size"] == 2
    tables = dump.read(5, 3)
    modules = [name for kind, name, _ in named_calls(tables) if kind == "module"]
    assert modules == ["", "fc1", "fc0"], "the graph that ran first comes first"
    assert tables.summaries["maximum"].to_list() == [8.0, 8.0]
    with pytest.raises(TraceError, match="no step 6 of rank 0; it has step 0"):
        dump.read(6, 0)


def test_bfloat16_is_narrowed_where_no_bit_is_lost(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    write_tensor(folder, LINEAR, "input.0", np.array([1.5, -2.0], np.float32), dtype="BFloat16")
    write_tensor(folder, LINEAR, "input.1", np.array([0.1], np.float32), dtype="BFloat16")
    assert open_trace(tmp_path).read(0, 0).summaries["dtype"].to_list() == ["bfloat16", "float32"]


def test_a_loop_is_several_calls_in_the_order_of_time(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    other = LINEAR.replace("MatMul", "Add")
    for turn in range(3):
        write_tensor(folder, LINEAR, "input.0", np.full(1, turn), timestamp=10 * turn + 1)
        write_tensor(folder, LINEAR, "output.0", np.full(1, turn), timestamp=10 * turn + 2)
        write_tensor(folder, other, "output.0", np.full(1, turn), timestamp=10 * turn + 3)
    write_order(tmp_path, other, LINEAR)
    tables = open_trace(tmp_path).read(0, 0)
    apis = [name.rpartition(".")[2] for kind, name, _ in named_calls(tables) if kind == "api"]
    assert apis == ["MatMul", "Add"] * 3
    assert [r["maximum"] for r in rows(tables, "mindspore.ops.MatMul")] == [0, 0, 1, 1, 2, 2]


def test_collectives_recomputation_arguments_and_containers(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    block = "network-Net/layers-CellList/0-Block"
    names = [
        f"Default/{block}/AllReduce-op0",
        f"recompute_Default/{block}/Mul-op1",
        f"Default/{block}/Add-op0",
    ]
    for number, name in enumerate(names):
        write_tensor(folder, name, "output.0", np.ones(2), timestamp=number + 1)
    (folder / f"Add.{names[2].replace('/', '_')}.json").write_text('{"transpose_a": "False"}')
    tables = open_trace(tmp_path).read(0, 0)
    assert ("collective", "mindspore.ops.AllReduce", "layers.0") in named_calls(tables)
    assert call(tables, "mindspore.ops.Mul")["mode"] == "recompute"
    assert json.loads(call(tables, "mindspore.ops.Add")["arguments"]) == {"transpose_a": "False"}
    assert "layers" not in [name for _, name, _ in named_calls(tables)], "a list of cells is never called"
    assert call(tables, "layers.0", mode="train")["type"] == "Block"


def test_names_too_long_for_a_file_system(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    file = write_tensor(folder, LINEAR, "output.0", np.ones(2))
    (folder / "mapping.csv").write_text(f"123456.npy,{file.name}\n")
    file.rename(folder / "123456.npy")
    dump = open_trace(folder.parents[2])
    (row,) = rows(dump.read(0, 0), "mindspore.ops.MatMul")
    assert row["tensor"] == "123456.npy"
    assert dump.tensor(0, 0, row) is not None


def test_whole_graph_layouts(tmp_path: Path) -> None:
    """Ascend O2: {step}/{time}/{device}/{model}/{model_id}/{iteration}, and rank_N/{time}/step_N."""
    for step in (0, 2):
        folder = tmp_path / f"plain/{step}/20240101120000/1/kernel_graph_0/1/0"
        folder.mkdir(parents=True)
        write_tensor(folder, LINEAR, "output.0", np.ones(2))
    assert open_trace(tmp_path / "plain").steps() == {0: [1], 2: [1]}
    assert call(open_trace(tmp_path / "plain").read(2, 1), "fc1")["kind"] == "module"
    folder = tmp_path / "msprobe/rank_0/20240101120000/step_7"
    folder.mkdir(parents=True)
    write_tensor(folder, LINEAR, "output.0", np.ones(2))
    assert open_trace(tmp_path / "msprobe").steps() == {7: [0]}
    assert open_trace(folder).steps() == {7: [0]}
    again = tmp_path / "plain/0/20240202120000/1/kernel_graph_0/1/0"
    again.mkdir(parents=True)
    write_tensor(again, LINEAR, "output.0", np.ones(2))
    assert "several runs (20240101120000, 20240202120000)" in refusal(tmp_path / "plain")


# -- what is wrong -----------------------------------------------------------------------------------------


def test_two_nets_in_one_folder(tmp_path: Path) -> None:
    for net in ("Train", "Old"):
        write_tensor(iteration(tmp_path, net=net), LINEAR, "output.0", np.ones(2))
    message = refusal(tmp_path)
    assert "2 runs or nets (Old, Train)" in message
    assert open_trace(tmp_path / "rank_0/Train").steps() == {0: [0]}


def test_damaged_values_say_which_file(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    file = write_tensor(folder, LINEAR, "output.0", np.ones((4, 4)))
    whole = file.read_bytes()
    for content in (b"", whole[:7], whole[:-8], b"\x93NUMPY\x01\x00garbage"):
        file.write_bytes(content)
        message = refusal(tmp_path)
        assert file.name in message
        assert "--steps" in message
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    assert "can execute code" in refusal(tmp_path)


def test_an_empty_iteration_and_a_dump_without_one(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    assert "holds no tensor of a dump, no file" in refusal(tmp_path)
    (folder / "notes.txt").write_text("x")
    assert "only notes.txt" in refusal(tmp_path)
    shutil.rmtree(tmp_path / "rank_0")
    write_order(tmp_path, LINEAR)
    assert "no iteration of one" in refusal(tmp_path)


def test_a_wrong_execution_order(tmp_path: Path) -> None:
    write_tensor(iteration(tmp_path), LINEAR, "output.0", np.ones(2))
    file = write_order(tmp_path, LINEAR)
    file.write_text("")
    assert f"{file} is empty" in refusal(tmp_path)
    file.write_text("step,loss\n0,1\n")
    assert "no execution order" in refusal(tmp_path)


def test_files_that_are_none_of_a_dump_are_named(tmp_path: Path) -> None:
    folder = iteration(tmp_path)
    write_tensor(folder, LINEAR, "output.0", np.ones(2))
    (folder / "core.123").write_bytes(b"x")
    dump = open_trace(tmp_path)
    dump.read(0, 0)
    assert any("core.123" in limit for limit in dump.rank_facts(0)["limits"])


def test_folders_of_numbers_are_no_dump(tmp_path: Path) -> None:
    (tmp_path / "2024/11/3").mkdir(parents=True)
    (tmp_path / "2024/11/3/photo.jpg").write_bytes(b"x")
    assert "is not a trace" in refusal(tmp_path)
    assert "is not a trace" in refusal(tmp_path / "2024")
