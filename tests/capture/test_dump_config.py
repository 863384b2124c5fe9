"""Configurations of MindSpore's own dump: what is written is right, what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.capture.dump_config.build import (
    DeviceTarget,
    DumpKind,
    DumpRequest,
    InputOutput,
    JitLevel,
    dump_settings,
    environment_lines,
)
from trueup.capture.dump_config.check import check_dump_config
from trueup.capture.dump_config.iterations import iterations_from_text, text_from_iterations
from trueup.capture.dump_config.kernels import nearest, operators_of
from trueup.capture.options import StepSet
from trueup.errors import ConfigError

FILE = Path("/jobs/a b/data_dump.json")
OPERATORS = [
    "Default/fc1-Dense/MatMul-op0",
    "Default/fc1-Dense/BiasAdd-op0",
    "Gradients/Default/x/MatMul-op1",
]
ranges = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 50)).map(lambda pair: (pair[0], sum(pair))), min_size=1
)


def request(kind: DumpKind, **more: Any) -> DumpRequest:
    return DumpRequest(kind=kind, path=Path("/dump"), **more)


def written(tmp_path: Path, settings: Any) -> Path:
    file = tmp_path / "data_dump.json"
    file.write_text(json.dumps(settings))
    return file


def said(tmp_path: Path, settings: Any, **more: Any) -> str:
    return "\n".join(
        f"{'error' if m.fatal else 'warning'} {m}"
        for m in check_dump_config(written(tmp_path, settings), **more)
    )


def common(**changed: Any) -> dict[str, Any]:
    """A right file, with some keys changed; None leaves one out."""
    settings = dump_settings(request(DumpKind.FULL))
    settings["common_dump_settings"] |= changed
    for key in [k for k, v in changed.items() if v is None]:
        del settings["common_dump_settings"][key]
    return settings


# -- iterations --------------------------------------------------------------------------------------------


@given(ranges)
def test_iterations_come_back(there: list[tuple[int, int]]) -> None:
    steps = StepSet(tuple(there))
    assert iterations_from_text(text_from_iterations(steps)) == steps
    assert iterations_from_text(text_from_iterations(StepSet())) == StepSet()


def test_iterations_are_what_mindspore_dumps() -> None:
    steps = iterations_from_text("0|5-8|100-120")
    assert [n for n in range(200) if n in steps] == [0, 5, 6, 7, 8, *range(100, 121)]


@pytest.mark.parametrize("text", ["", "0,1", "0 | 5", "5-", "-5", "1-2-3", "0||1", "8-5", "ALL", "x", "²"])
def test_wrong_iterations(text: str) -> None:
    with pytest.raises(ConfigError):
        iterations_from_text(text)


# -- operators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "meant"),
    [
        ("matmul", [0, 2]),
        ("Default/fc1-Dense/BiasAdd-op0", [1]),
        ("name-regex(Default/.+)", [0, 1]),
        ("name-regex(.+/MatMul-op\\d)", [0, 2]),
        ("Conv2D", []),
        ("dense", []),
        ("MatMul-op0", []),
    ],
)
def test_operators_a_kernel_means(kernel: str, meant: list[int]) -> None:
    assert operators_of(kernel, OPERATORS) == [OPERATORS[n] for n in meant]


def test_the_operator_a_person_meant() -> None:
    assert nearest("Default/fc1-dense/matmul-op0", OPERATORS) == OPERATORS[0]
    assert nearest("BiasAdds", OPERATORS) == "BiasAdd"
    assert nearest("name-regex(x)", OPERATORS) is None


# -- what is written ---------------------------------------------------------------------------------------


def test_full() -> None:
    settings = dump_settings(
        request(DumpKind.FULL, net_name="ResNet50", iterations=StepSet(((0, 0), (5, 8))))
    )
    assert settings["common_dump_settings"] == {
        "op_debug_mode": 0,
        "dump_mode": 0,
        "path": "/dump",
        "net_name": "ResNet50",
        "iteration": "0|5-8",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
    }
    assert settings["e2e_dump_settings"] == {"enable": True, "trans_flag": True, "stat_calc_mode": "host"}


def test_partial_is_statistics_or_a_sample() -> None:
    settings = dump_settings(request(DumpKind.PARTIAL, statistics=("max", "md5")))["common_dump_settings"]
    assert (settings["saved_data"], settings["statistic_category"]) == ("statistic", ["max", "md5"])
    settings = dump_settings(request(DumpKind.PARTIAL, sample=50))
    assert settings["common_dump_settings"]["saved_data"] == "tensor"
    assert settings["e2e_dump_settings"]["sample_mode"] == 1
    assert settings["e2e_dump_settings"]["sample_num"] == 50


def test_overflow_and_condition() -> None:
    settings = dump_settings(request(DumpKind.OVERFLOW, overflow_number=3))["common_dump_settings"]
    assert (settings["op_debug_mode"], settings["overflow_number"]) == (3, 3)
    chosen = request(DumpKind.CONDITION, kernels=("MatMul",), input_output=InputOutput.OUTPUT, devices=(0, 2))
    settings = dump_settings(chosen)["common_dump_settings"]
    assert (settings["dump_mode"], settings["kernels"]) == (1, ["MatMul"])
    assert (settings["input_output"], settings["support_device"]) == (2, [0, 2])
    assert dump_settings(request(DumpKind.CONDITION, set_dump=True))["common_dump_settings"]["dump_mode"] == 2


def test_the_environment_of_each_level() -> None:
    lines = environment_lines(FILE, request(DumpKind.FULL, level=JitLevel.O2))
    assert lines[:2] == [
        "export MINDSPORE_DUMP_CONFIG='/jobs/a b/data_dump.json'",
        "export MS_ACL_DUMP_CFG_PATH='/jobs/a b/data_dump.json'",
    ]
    assert '"jit_level": "O2"' in lines[2]
    named = request(DumpKind.CONDITION, level=JitLevel.O2, kernels=("name-regex(.+)",))
    for other in (request(DumpKind.FULL), request(DumpKind.OVERFLOW, level=JitLevel.O2), named):
        assert environment_lines(FILE, other)[1] == "unset MS_ACL_DUMP_CFG_PATH"


@pytest.mark.parametrize(
    "made",
    [
        *(request(DumpKind.FULL, level=level) for level in JitLevel),
        *(request(DumpKind.PARTIAL, level=level) for level in JitLevel),
        *(request(DumpKind.OVERFLOW, level=level, overflow_number=0) for level in JitLevel),
        *(request(DumpKind.CONDITION, level=level, kernels=(OPERATORS[0],)) for level in JitLevel),
        request(DumpKind.PARTIAL, sample=10),
        request(DumpKind.CONDITION, set_dump=True, level=JitLevel.O1),
        request(DumpKind.FULL, saved_data="full", iterations=StepSet(((3, 3),))),
        request(DumpKind.FULL, device_target=DeviceTarget.CPU),
    ],
    ids=str,
)
def test_what_is_written_has_no_mistake(tmp_path: Path, made: DumpRequest) -> None:
    file = written(tmp_path, dump_settings(made))
    found = check_dump_config(file, level=made.level, device_target=made.device_target, operators=OPERATORS)
    assert found == []


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"kind": DumpKind.FULL, "path": Path("dump")}, "not absolute"),
        ({"kind": DumpKind.FULL, "path": Path("/a.b")}, "letters, digits"),
        ({"kind": DumpKind.FULL, "net_name": "my net"}, "net name"),
        ({"kind": DumpKind.FULL, "kernels": ("x",)}, "go with --kind condition"),
        ({"kind": DumpKind.CONDITION}, "needs one"),
        ({"kind": DumpKind.CONDITION, "kernels": ("x",), "set_dump": True}, "exclude each other"),
        ({"kind": DumpKind.CONDITION, "set_dump": True, "level": JitLevel.O2}, "O0 and O1"),
        ({"kind": DumpKind.CONDITION, "kernels": ("MatMul",), "level": JitLevel.O2}, "no type"),
        ({"kind": DumpKind.OVERFLOW, "device_target": DeviceTarget.CPU}, "on Ascend alone"),
        ({"kind": DumpKind.OVERFLOW, "input_output": InputOutput.INPUT}, "inputs and outputs"),
        ({"kind": DumpKind.OVERFLOW, "saved_data": "full"}, "keeps tensors"),
        (
            {"kind": DumpKind.OVERFLOW, "level": JitLevel.O2, "iterations": StepSet(((0, 0),))},
            "every iteration",
        ),
        ({"kind": DumpKind.FULL, "overflow_number": 1}, "--kind overflow"),
        ({"kind": DumpKind.PARTIAL, "device_target": DeviceTarget.CPU}, "no statistics on CPU"),
        ({"kind": DumpKind.PARTIAL, "saved_data": "tensor"}, "--kind full"),
        ({"kind": DumpKind.PARTIAL, "sample": 5, "level": JitLevel.O2}, "--sample"),
        ({"kind": DumpKind.PARTIAL, "level": JitLevel.O2, "file_format": "bin"}, "npy"),
        ({"kind": DumpKind.FULL, "level": JitLevel.O2, "device_target": DeviceTarget.GPU}, "O2 is Ascend's"),
    ],
)
def test_contradictions_are_named(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dump_settings(DumpRequest(**({"path": Path("/dump")} | wish)))


# -- what is wrong -----------------------------------------------------------------------------------------


def test_a_relative_path_and_odd_characters(tmp_path: Path) -> None:
    assert "error path: 'out' is relative" in said(tmp_path, common(path="out"))
    assert "error path: has '.'" in said(tmp_path, common(path="/out.d"))
    assert "warning path: is empty" in said(tmp_path, common(path=""))
    assert "MS_DIAGNOSTIC_DATA_PATH" in said(tmp_path, common(path=None))


def test_unknown_keys_name_the_nearest(tmp_path: Path) -> None:
    assert "did you mean 'iteration'?" in said(tmp_path, common(iterations="0"))
    assert "did you mean 'e2e_dump_settings'?" in said(tmp_path, common() | {"e2e_dump_setting": {}})
    moved = said(tmp_path, common(trans_flag=True))
    assert "e2e_dump_settings.trans_flag" in moved, "a key of the other section"


def test_missing_keys(tmp_path: Path) -> None:
    assert "error common_dump_settings: is missing" in said(tmp_path, {})
    assert "error common_dump_settings.kernels: is missing" in said(tmp_path, common(kernels=None))
    bare = {"common_dump_settings": common()["common_dump_settings"]}
    assert "nothing is written" in said(tmp_path, bare, level=JitLevel.O0)
    del bare["common_dump_settings"]["op_debug_mode"]
    assert "error op_debug_mode: is missing" in said(tmp_path, bare)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dump_mode": 5}, "error common_dump_settings.dump_mode: found 5"),
        ({"dump_mode": "0"}, "error common_dump_settings.dump_mode: found '0'"),
        ({"dump_mode": True}, "error common_dump_settings.dump_mode: found True; expected an integer"),
        ({"input_output": 1.0}, "error common_dump_settings.input_output: found 1.0"),
        ({"iteration": 3}, "error common_dump_settings.iteration: found 3"),
        ({"iteration": "0,1"}, "error iteration: '0,1'"),
        ({"iteration": "8-5"}, "ends before it begins"),
        ({"kernels": "MatMul"}, "error common_dump_settings.kernels"),
        ({"support_device": [0, -1]}, "error common_dump_settings.support_device"),
        ({"support_device": []}, "warning support_device: is empty"),
        ({"support_device": [1, 1]}, "device 1 twice"),
        ({"net_name": "a b"}, "error net_name"),
        ({"overflow_number": 3}, "error overflow_number"),
        ({"op_debug_mode": 1}, "warning op_debug_mode: 1 is taken for 3"),
        ({"op_debug_mode": 3, "input_output": 1}, "warning input_output"),
        ({"op_debug_mode": 3, "saved_data": "full"}, "warning saved_data"),
        ({"op_debug_mode": 4, "iteration": "1"}, "warning iteration"),
        ({"op_debug_mode": 3, "dump_mode": 1, "kernels": ["x"]}, "warning dump_mode"),
        ({"kernels": ["Default/Conv-op12"]}, "warning kernels: has no effect with dump_mode 0"),
        ({"dump_mode": 1}, "warning kernels: is empty"),
        ({"dump_mode": 1, "kernels": ["name-regex(()"]}, "error kernels: 'name-regex(()' is no regular"),
        ({"saved_data": "statistic", "statistic_category": ["maximum"]}, "did you mean 'max'?"),
        ({"file_format": "npy"}, "warning file_format: has no effect"),
        ({"file_format": "txt"}, "error common_dump_settings.file_format"),
    ],
)
def test_wrong_values(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    assert words in said(tmp_path, common(**changed))


def test_settings_of_the_other_section(tmp_path: Path) -> None:
    settings = common(saved_data="statistic", statistic_category=["md5", "max"])
    settings["e2e_dump_settings"] = {"enable": False, "stat_calc_mode": "device", "sample_num": 4}
    found = said(tmp_path, settings)
    assert "warning statistic_category: 'md5' is for stat_calc_mode host" in found
    assert "'max'" not in found
    assert "enable: is not true" in found
    assert "sample_num: has no effect" in found
    settings["e2e_dump_settings"] = {"enable": True, "sample_num": 0, "trans_flag": "yes"}
    found = said(tmp_path, settings)
    assert "error e2e_dump_settings.sample_num" in found
    assert "error e2e_dump_settings.trans_flag" in found


def test_whole_graphs_want_other_things(tmp_path: Path) -> None:
    assert "leave it out at O2" in said(tmp_path, common(), level=JitLevel.O2)
    bare = {"common_dump_settings": common()["common_dump_settings"]}
    assert "warning file_format: is missing, which means bin" in said(tmp_path, bare)
    bare["common_dump_settings"]["saved_data"] = "statistic"
    assert "error file_format" in said(tmp_path, bare)
    bare["common_dump_settings"] |= {"file_format": "npy", "dump_mode": 1, "kernels": ["MatMul"]}
    assert "'MatMul' is a type" in said(tmp_path, bare)


def test_devices_that_cannot(tmp_path: Path) -> None:
    cpu = DeviceTarget.CPU
    assert "error saved_data: 'full' on CPU" in said(tmp_path, common(saved_data="full"), device_target=cpu)
    assert "error dump_mode: 2" in said(tmp_path, common(dump_mode=2), device_target=cpu)
    assert "saved_data" not in said(tmp_path, common(saved_data="full"))


def test_kernels_that_are_not_there(tmp_path: Path) -> None:
    wanted = ["Default/fc1-Dense/Matmul-op0", "biasadd", "name-regex(Nothing.*)"]
    settings = common(dump_mode=1, kernels=wanted)
    found = said(tmp_path, settings, operators=OPERATORS)
    assert f"did you mean '{OPERATORS[0]}'?" in found
    assert "'name-regex(Nothing.*)' matches none of the 3 operators" in found
    assert "biasadd" not in found
    assert said(tmp_path, settings) == "", "without a dump nobody can tell"


def test_a_file_that_is_no_json_object(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with pytest.raises(ConfigError, match="no such file"):
        check_dump_config(file)
    file.write_text('{"a": ')
    with pytest.raises(ConfigError, match="line 1, column"):
        check_dump_config(file)
    file.write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        check_dump_config(file)
    found = said(tmp_path, {"common_dump_settings": 3})
    assert "got a int" in found


def test_a_wrong_key_is_named_once(tmp_path: Path) -> None:
    found = said(tmp_path, common(kernels="MatMul", dump_mode=1, support_device="all"))
    assert found.count("kernels") == found.count("support_device") == 1
    assert said(tmp_path, common() | {"e2e_dump_settings": None}).count("e2e_dump_settings") == 1


def test_the_worst_mistakes_come_first(tmp_path: Path) -> None:
    file = written(tmp_path, common(path="out", op_debug_mode=1, net_name="", support_device=[]))
    fatal = [mistake.fatal for mistake in check_dump_config(file)]
    assert fatal == sorted(fatal, reverse=True)
    assert {True, False} == set(fatal)
