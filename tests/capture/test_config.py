"""msprobe's config.json, key by key."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from trueup.capture.call_names import name_from_msprobe
from trueup.capture.config import CaptureConfig, read_config, step_set
from trueup.capture.options import Level, StepSet, Task
from trueup.errors import ConfigError


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def reader(content: Any, **arguments: Any) -> CaptureConfig:
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return read_config(path, **arguments)

    return reader


MSPROBE_S_OWN = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
}


def test_the_file_msprobe_ships_is_read_without_a_warning(read: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = read(MSPROBE_S_OWN)
    options = config.options
    assert (options.level, options.task, options.steps, options.ranks) == (
        Level.L1,
        Task.STATISTICS,
        StepSet(),
        StepSet(),
    )
    assert options.output == Path("dump_path").absolute()
    assert (config.dump_enable, config.saved_only) == (None, False)


@pytest.mark.filterwarnings("error")
def test_the_dump_article_s_files_are_read_without_a_warning(read: Any) -> None:
    section = {"scope": [], "list": [], "data_mode": ["all"]}
    common = {"dump_path": "/home/data_dump", "rank": [], "step": [0, 1], "level": "mix"}
    common |= {"enable_dataloader": False}
    statistics = {"task": "statistics", **common, "statistics": {**section, "summary_mode": "statistics"}}
    tensor = {"task": "tensor", **common, "tensor": {**section, "backward_input": []}}
    for content, task in ((statistics, Task.STATISTICS), (tensor, Task.TENSOR)):
        options = read(content).options
        assert (options.task, options.level, options.steps.ranges) == (task, Level.MIX, ((0, 0), (1, 1)))
    assert read({**statistics, "statistics": {**section, "summary_mode": "md5"}}).options.crc32


def test_no_file_is_msprobe_s_defaults() -> None:
    assert read_config(None) == read_config(
        None, task="statistics", level="L1", dump_path="./dump_path", step=[]
    )


def test_every_key_that_counts(read: Any) -> None:
    options = read(
        {
            "task": "tensor",
            "dump_path": "/x",
            "rank": [0, "2-3"],
            "step": "0|5-8",
            "level": "mix",
            "extra_info": False,
            "tensor": {
                "scope": ["Module.layers.0.Block.forward.0", "Module.head.Linear.forward.0"],
                "list": ["relu", "Functional.linear.0.forward"],
                "data_mode": ["forward"],
                "summary_mode": "md5",
            },
        }
    ).options
    assert options.output == Path("/x")
    assert options.task is Task.TENSOR
    assert options.ranks.ranges == ((0, 0), (2, 3))
    assert options.steps.ranges == ((0, 0), (5, 8))
    assert options.level is Level.MIX
    assert not options.stacks
    assert options.scope == ("Module.layers.0.Block.forward.0", "Module.head.Linear.forward.0")
    assert options.names == ("relu", "Functional.linear.0.forward")
    assert options.data_mode == {"forward", "input", "output"}
    assert options.crc32


def test_arguments_win_over_the_file(read: Any) -> None:
    options = read(MSPROBE_S_OWN, task="tensor", dump_path="/y", level="L0", step=[3]).options
    assert (options.task, options.output, options.level, options.steps.ranges) == (
        Task.TENSOR, Path("/y"), Level.L0, ((3, 3),)
    )  # fmt: skip


def test_rank_has_a_second_name(read: Any) -> None:
    assert read({"module_ranks": [1]}).options.ranks.ranges == ((1, 1),)
    assert read({"rank": [], "module_ranks": [0, 2]}).options.ranks.ranges == ((0, 0), (2, 2))
    assert read({"rank": [1], "module_ranks": []}).options.ranks.ranges == ((1, 1),)
    assert read({"rank": [], "module_ranks": []}).options.ranks.ranges is None
    with pytest.raises(ConfigError, match="'rank' and 'module_ranks' are the same key"):
        read({"module_ranks": [1], "rank": [1]})


def test_only_the_section_of_the_task_counts(read: Any) -> None:
    content = {"statistics": {"list": ["a"]}, "tensor": {"list": ["b"], "tensor_list": ["quiet"]}}
    assert read(content).options.names == ("a",)


@pytest.mark.parametrize(
    ("mode", "meant"),
    [
        (["all"], {"forward", "backward", "input", "output"}),
        ("all", {"forward", "backward", "input", "output"}),
        (["backward"], {"backward", "input", "output"}),
        (["output"], {"forward", "backward", "output"}),
        (["forward", "output"], {"forward", "output"}),
    ],
)
def test_data_modes(read: Any, mode: Any, meant: set[str]) -> None:
    assert read({"statistics": {"data_mode": mode}}).options.data_mode == meant


def test_level_debug_keeps_only_what_is_saved(read: Any) -> None:
    config = read({"level": "debug"})
    assert config.saved_only
    kept = (config.options.gradients, config.options.backward, config.options.optimizer)
    assert not any(kept)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"async_dump": True}, "async_dump"),
        ({"precision": "high"}, "precision"),
        ({"risk_level": "CORE"}, "risk_level"),
        ({"enable_dataloader": True}, "enable_dataloader"),
        ({"custom_op_namespaces": ["x"]}, "custom_op_namespaces"),
        ({"load": {"path": "x", "modules": ["Module.a.B.forward.0"]}}, "load"),
        ({"task": "structure"}, "task structure"),
        ({"statistics": {"tensor_list": ["a"]}}, "tensor_list"),
        ({"statistics": {"slice": [{"dim": 0}]}}, "slice"),
        ({"statistics": {"backward_input": ["a.pt"]}}, "backward_input"),
        ({"statistics": {"request_id": "a"}}, "request_id"),
        ({"statistics": {"summary_mode": "xor"}}, "summary_mode xor"),
    ],
)
def test_a_key_without_effect_says_so_and_why(read: Any, content: dict[str, Any], said: str) -> None:
    with pytest.warns(UserWarning, match=rf"config\.json: {said} has no effect: \w+") as warned:
        read(content)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"tsk": 1}, "unknown key 'tsk'; did you mean 'task'"),
        ({"moduleranks": []}, "did you mean 'module_ranks'"),
        ({"xyzzy": 1}, "unknown key 'xyzzy'; known are async_dump, "),
        (
            {"statistics": {"sumary_mode": "md5"}},
            "in 'statistics': unknown key 'sumary_mode'; did you mean 'summary_mode'",
        ),
        ({"statistics": {"names": []}}, "unknown key 'names'"),
        ({"load": {"modules": [], "paths": "x"}}, "in 'load': .* did you mean 'path'"),
        ({"level": "L9"}, 'level: found "L9"'),
        ({"level": "L2"}, 'level: found "L2"'),
        ({"async_dump": "yes"}, 'async_dump: found "yes"'),
        ({"dump_enable": 1}, "dump_enable: found 1"),
        ({"dump_path": 3}, "dump_path: found 3"),
        ({"statistics": []}, "statistics: found"),
        ({"statistics": {"list": "a"}}, r"statistics\.list: found \"a\""),
        ({"statistics": {"list": [1]}}, r"statistics\.list\.0: found 1"),
        ({"statistics": {"summary_mode": "sha"}}, "statistics.summary_mode"),
        (
            {"statistics": {"scope": ["a", "b", "c"]}},
            "scope: expected the names of the first and the last call",
        ),
        ({"statistics": {"data_mode": ["forwards"]}}, r"data_mode: expected .* \(got 'forwards'\)"),
        ({"statistics": {"data_mode": ["all", "input"]}}, r"data_mode: expected .* \(got 'all'\)"),
        ({"statistics": {"list": ["name-regex(.*)"]}}, "regular expressions are not supported"),
        ({"step": [-1]}, r"step: expected .* \(got '-1'\)"),
        ({"step": ["8-5"]}, r"step: expected .* \(got '8-5'\)"),
        ({"step": [True]}, r"step: expected .* \(got True\)"),
        ({"step": {"a": 1}}, "step: "),
        ({"rank": ["a"]}, r"rank: expected .* \(got 'a'\)"),
        (
            {"task": "nan_check"},
            "nan_check' is not supported: .*NPU.* Supported are statistics, tensor and overflow_check",
        ),
        ({"task": "acc_check"}, "not supported"),
        ({"task": "statistic"}, "unknown task 'statistic'; supported are"),
        ('{"task": "tensor",}', r"not JSON: line 1, column \d+"),
        ('{"task":\n  "tensor"\n  "level": 1}', "line 3, column 3"),
        ("[]", "expected a JSON object"),
        ("", "line 1, column 1"),
    ],
)
def test_a_mistake_names_the_file_and_what_is_right(read: Any, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(content)
    assert "config.json" in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"dump_path": "\xe9"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "latin.json")


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="level: expected one of: L0, L1, mix, debug"):
        read_config(None, level="L7")
    with pytest.raises(ConfigError, match="unknown task"):
        read_config(None, task="x")


def test_numbers() -> None:
    assert step_set([0, "5-8", 3], what="step").ranges == ((0, 0), (5, 8), (3, 3))
    assert step_set("0|5-8", what="step").ranges == ((0, 0), (5, 8))
    assert step_set(4, what="step").ranges == ((4, 4),)
    assert step_set([], what="step").ranges is None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Module.layers.0.ln1.LayerNorm.forward.0", "layers.0.ln1"),
        ("Module.layers.0.ln1.LayerNorm.backward.1", "layers.0.ln1"),
        ("Module.layers.0", "layers.0"),
        ("Cell.network.Dense.forward.0", "network"),
        ("Tensor.__add__.0.forward", "torch.Tensor.__add__"),
        ("Torch.matmul.12.backward", "torch.matmul"),
        ("Distributed.all_reduce.0", "torch.distributed.all_reduce"),
        ("relu", "relu"),
        ("layers.0.attn", "layers.0.attn"),
    ],
)
def test_names(theirs: str, ours: str) -> None:
    assert name_from_msprobe(theirs) == ours


def test_a_call_number_needs_no_warning(read: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = read({"statistics": {"list": ["Functional.linear.3.forward"]}}).options
    assert options.names == ("Functional.linear.3.forward",)


@pytest.mark.parametrize(
    ("given", "framework", "expected"),
    [
        ("Cell.layers.0.attn.Attention.forward.0", "mindspore", "layers.0.attn"),
        ("MintFunctional.linear.2.forward", "mindspore", "mindspore.mint.nn.functional.linear"),
        ("Mint.chunk.0.backward", "torch", "mindspore.mint.chunk"),
        ("Tensor.__mul__", "mindspore", "mindspore.Tensor.__mul__"),
        ("Tensor.__mul__", "torch", "torch.Tensor.__mul__"),
        ("Primitive.MatMul.0.forward", "mindspore", "mindspore.ops.Primitive.MatMul"),
        ("MintDistributed.all_reduce", "mindspore", "mindspore.mint.distributed.all_reduce"),
    ],
)
def test_names_of_either_framework(given: str, framework: str, expected: str) -> None:
    assert name_from_msprobe(given, framework) == expected
