"""msprobe's mapping files: which calls and modules of a step they name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
import yaml

from trueup.cli.words import with_msprobe_s_flags
from trueup.errors import ConfigError
from trueup.matching.mapping import read_mapping
from trueup.matching.msprobe_maps import MsprobePairs, read_msprobe_pairs, resolved
from trueup.store import StepTables

Row = tuple[int, int | None, str, str, str | None, int]
TARGET: list[Row] = [
    (0, None, "module", "", "Net", 0),
    (1, 0, "module", "layers.0", "Mixer", 0),
    (2, 1, "module", "layers.0.dw", "Conv1d", 0),
    (3, 1, "api", "torch.sigmoid", None, 0),
    (4, 0, "module", "layers.1", "Mixer", 0),
    (5, 4, "module", "layers.1.dw", "Conv1d", 0),
    (6, 4, "api", "torch.sigmoid", None, 0),
    (7, None, "api", "torch.nn.functional.gelu", None, 0),
]
REFERENCE: list[Row] = [
    (0, None, "module", "", "Port", 0),
    (1, 0, "module", "stack.0", "Block", 0),
    (2, 1, "module", "stack.0.depth", "Conv1d", 0),
    (3, 1, "api", "torch.Tensor.sigmoid", None, 0),
    (4, 0, "module", "stack.1", "Block", 0),
    (5, 4, "module", "stack.1.depth", "Conv1d", 0),
    (6, 4, "api", "torch.Tensor.sigmoid", None, 0),
    (7, None, "api", "mindspore.ops.gelu", None, 0),
]
SITES = {
    "layers.0 · torch.sigmoid": "stack.0 · torch.Tensor.sigmoid",
    "layers.1 · torch.sigmoid": "stack.1 · torch.Tensor.sigmoid",
}
MODULES = {
    "layers.0": "stack.0",
    "layers.0.dw": "stack.0.depth",
    "layers.1": "stack.1",
    "layers.1.dw": "stack.1.depth",
}


def tables() -> tuple[StepTables, StepTables]:
    columns = ("call", "parent", "kind", "name", "type", "ordinal")
    frames = [pl.DataFrame(rows, schema=columns, orient="row") for rows in (TARGET, REFERENCE)]
    one, other = (SimpleNamespace(calls=frame) for frame in frames)
    return cast(StepTables, one), cast(StepTables, other)


def pairs_of(text: str) -> tuple[dict[str, str], dict[str, str]]:
    found = read_msprobe_pairs(yaml.safe_load(text))
    assert found is not None
    return resolved(found, tables(), Path("map.yaml"))


SECOND = "Torch.sigmoid.1.forward.input.0: Tensor.sigmoid.1.forward.input.0"
FILES: list[tuple[str, dict[str, str], dict[str, str]]] = [
    (SECOND, {}, dict([list(SITES.items())[1]])),
    (SECOND.replace("forward", "backward").replace("input", "output"), {}, dict([list(SITES.items())[1]])),
    (
        "Functional.gelu.0.forward.input.0: Functional.gelu.0.forward.input.0",
        {},
        {"torch.nn.functional.gelu": "mindspore.ops.gelu"},
    ),
    (
        "Module.layers.1.Mixer.forward.0.output.0: Module.stack.1.Block.forward.0.output.0",
        {"layers.1": "stack.1"},
        {},
    ),
    (
        "Module.layers.0.dw.Conv1d.parameters_grad.weight: Cell.stack.0.depth.Conv1d.parameters_grad.weight",
        {"layers.0.dw": "stack.0.depth"},
        {},
    ),
    ("layers.0.dw.Conv1d: stack.0.depth.Conv1d", {"layers.0.dw": "stack.0.depth"}, {}),
    ("Net: {layers: stack}\nMixer: {dw: depth}", MODULES, {}),
    ("Cell: {layers: stack}\nMixer: {dw: depth}", MODULES, {}),
    ("Mixer: {dw: depth}", {}, {}),
    ("ms_api: Torch.sigmoid\npt_api: Tensor.sigmoid\nms_args: [0]\npt_args: [0]", {}, SITES),
    (
        "- {ms_api: Torch.sigmoid, pt_api: Tensor.sigmoid}\n- {ms_api: Torch.abs, pt_api: Torch.abs}",
        {},
        SITES,
    ),
    ("ms_api: Torch.sigmoid\npt_api: Functional.gelu", {}, {}),
]


@pytest.mark.parametrize(("text", "modules", "calls"), FILES)
def test_what_a_file_names(text: str, modules: dict[str, str], calls: dict[str, str]) -> None:
    assert pairs_of(text) == (modules, calls)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SECOND.replace("1.forward", "7.forward"),
            r"target has no 'Torch\.sigmoid\.7'.*Torch\.sigmoid\.[01]",
        ),
        ("layers.0.dw.Conv1d: stack.0.dept.Conv1d", r"reference has no 'stack\.0\.dept'.*stack\.0\.depth"),
    ],
)
def test_a_name_that_is_not_there(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pairs_of(text)


@pytest.mark.parametrize(
    "held", [{"a": "b"}, {"version": 1}, {}, [], [1], "x", None, {"modules": {"a.b": "c.d"}}, {"a.b": None}]
)
def test_what_is_no_mapping_file_of_msprobe(held: Any) -> None:
    assert read_msprobe_pairs(held) is None


def test_a_map_is_told_by_what_it_holds(tmp_path: Path) -> None:
    own, other = tmp_path / "own.yaml", tmp_path / "data.yaml"
    own.write_text("version: 1\nmodules: {a: b}\n")
    other.write_text(SECOND)
    assert (read_mapping(own).msprobe, read_mapping(own).modules) == (None, {"a": "b"})
    assert read_mapping(other).msprobe == MsprobePairs(calls={"Torch.sigmoid.1": "Tensor.sigmoid.1"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("compare -i c.json -o out -s", "compare -i c.json -o out -s"),
        ("compare -f pytorch -i c.json -c", "compare -f pytorch -i c.json --no-advisor"),
        ("compare -f mindspore -i c.json -f -s", "compare -f mindspore -i c.json -s"),
        ("compare --input_path c.json --output_path o", "compare --input c.json --output o"),
        ("compare -am -cm -i c.json", "compare -i c.json"),
        ("compare -lm l.yaml -i c.json --fuzzy_match", "compare --map l.yaml -i c.json"),
        ("curves -c -f", "curves -c -f"),
    ],
)
def test_flags_of_msprobe(words: str, expected: str) -> None:
    assert with_msprobe_s_flags(words.split()) == expected.split()
