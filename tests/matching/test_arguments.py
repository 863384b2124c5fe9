"""What two calls were given: spellings of one call are equal, and what was not recorded is unknown."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from trueup.matching.arguments import NOT_GIVEN, arguments_apart

GELU, ENTROPY = "torch.nn.functional.gelu", "torch.nn.functional.cross_entropy"
SDPA, SOFTMAX = "torch.nn.functional.scaled_dot_product_attention", "torch.nn.functional.softmax"


def apart(call: str, target: dict[str, Any], reference: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.target, one.reference) for one in arguments_apart(call, target, reference)]


@pytest.mark.parametrize(
    ("call", "one", "other"),
    [
        (GELU, {}, {"input.approximate": "none"}),
        (ENTROPY, {}, {"input.ignore_index": -100, "input.reduction": "mean"}),
        (ENTROPY, {"input.4": -100}, {"input.label_smoothing": 0.0}),
        (SDPA, {"input.dropout_p": 0.0}, {"input.is_causal": False}),
        (SOFTMAX, {"input.1": -1, "input._stacklevel": 5}, {"input.dim": -1}),
        ("torch.Tensor.softmax", {"input.1": -1}, {"input.dim": -1}),
        ("flash_attn.flash_attn_func", {}, {"input.causal": False}),
        ("model.Attention", {"input.1": 7}, {"input.window": 7}),
    ],
)
def test_spellings_of_one_call(call: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert apart(call, one, other) == apart(call, other, one) == []


@pytest.mark.parametrize(
    ("call", "one", "other", "found"),
    [
        (GELU, {}, {"input.approximate": "tanh"}, ("input.approximate", "none", "tanh")),
        (ENTROPY, {}, {"input.ignore_index": 0}, ("input.ignore_index", -100, 0)),
        (ENTROPY, {"input.7": 0.1}, {}, ("input.label_smoothing", 0.1, 0.0)),
        (SDPA, {"input.is_causal": True}, {}, ("input.is_causal", True, False)),
        (SOFTMAX, {"input.1": 1}, {"input.dim": -1}, ("input.dim", 1, -1)),
        ("torch.nn.functional.layer_norm", {"input.eps": 1e-6}, {}, ("input.eps", 1e-6, 1e-5)),
        ("flash_attn.flash_attn_func", {"input.causal": True}, {}, ("input.causal", True, NOT_GIVEN)),
        ("torch.Tensor.leaky_relu", {}, {"input.1": 0.2}, ("input.negative_slope", 0.01, 0.2)),
    ],
)
def test_other_calls(
    call: str, one: dict[str, Any], other: dict[str, Any], found: tuple[str, Any, Any]
) -> None:
    name, target, reference = found
    assert apart(call, one, other) == [(name, target, reference)]
    assert apart(call, other, one) == [(name, reference, target)]


def test_a_function_of_another_library_has_its_own_defaults() -> None:
    assert apart("mindspore.ops.gelu", {}, {"input.approximate": "tanh"}) == [
        ("input.approximate", NOT_GIVEN, "tanh")
    ]
    assert repr(NOT_GIVEN) == "not given"


def test_rows_that_are_sent_to_each_rank_are_no_constants() -> None:
    """They are counts of tokens; an operation or a root of another collective is one."""
    call = "torch.distributed.all_to_all_single"
    assert apart(call, {"input.2.0": 16, "input.3.1": 20}, {"input.2.0": 15, "input.3.1": 21}) == []
    assert apart("torch.distributed.broadcast", {"input.1": 0}, {"input.1": 1}) == [("input.1", 0, 1)]


def test_a_collective_sums_where_it_is_not_told() -> None:
    """Captures before the operation's name was kept hold its type alone."""
    call = "torch.distributed.all_reduce"
    for spelling in ("RedOpType.SUM", "<RedOpType>"):
        assert apart(call, {}, {"input.op": spelling}) == []
        assert apart(call, {"input.op": spelling}, {}) == []
    assert apart(call, {}, {"input.op": "RedOpType.MAX"}) == [("input.op", NOT_GIVEN, "RedOpType.MAX")]


@pytest.mark.torch
def test_the_name_of_what_a_collective_does_is_kept() -> None:
    from torch.distributed import ReduceOp

    from trueup.adapters.torch.trees import split_call

    assert split_call((), {"op": ReduceOp.MAX})[1] == '{"input.op": "RedOpType.MAX"}'


@pytest.mark.torch
def test_the_table_is_what_this_torch_says() -> None:
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("make_defaults", root / "scripts" / "make_defaults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made, kept = json.loads(module.text()), json.loads(module.TARGET.read_text())
    for name in ("functional.cross_entropy", "functional.layer_norm", "gelu", "scaled_dot_product_attention"):
        assert made[name] == kept[name]


@pytest.mark.parametrize(
    ("call", "other", "one", "two"),
    [
        (
            "mindspore.Tensor.transpose",
            "torch.Tensor.transpose",
            {"input.1": 0, "input.2": 2},
            {"input.1": 1},
        ),
        ("mindspore.Tensor.reshape", "torch.Tensor.view", {"input.1": -1, "input.2": 1}, {"input.1": 4}),
        ("torch.Tensor.permute", "torch.Tensor.transpose", {"input.1": 0, "input.2": 2}, {"input.1": 1}),
        ("torch.square", "torch.Tensor.pow", {}, {"input.1": 2}),
        ("mindspore.mint.softmax", "torch.Tensor.softmax", {"input.dim": -1}, {"input.1": -1}),
        ("mindspore.mint.nn.functional.gelu", GELU, {}, {"input.approximate": "none"}),
        ("torch.Tensor.__mul__", "torch.Tensor.__truediv__", {"input.1": 1 / 3}, {"input.1": 3}),
        ("torch.Tensor.add", "torch.Tensor.sub", {"input.1": -1}, {"input.1": 1}),
    ],
)
def test_two_functions_that_do_the_same(
    call: str, other: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    assert list(arguments_apart(call, one, two, other)) == []
    assert list(arguments_apart(other, two, one, call)) == []


@pytest.mark.parametrize(
    ("call", "other", "one", "two"),
    [
        ("mindspore.Tensor.__mul__", "torch.Tensor.__mul__", {"input.1": 0.5}, {"input.1": 0.25}),
        ("mindspore.mint.softmax", "torch.Tensor.softmax", {"input.dim": 1}, {"input.1": -1}),
        ("mindspore.mint.nn.functional.gelu", GELU, {}, {"input.approximate": "tanh"}),
        ("torch.Tensor.transpose", "torch.transpose", {"input.1": 0}, {"input.1": 1}),
    ],
)
def test_two_functions_that_are_given_something_else(
    call: str, other: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    (found,) = arguments_apart(call, one, two, other)
    assert found.is_known


def test_an_operand_of_an_inverse_function_is_shown_as_its_inverse() -> None:
    call, other = "torch.Tensor.mul", "torch.Tensor.div"
    found = [
        (one.target, one.reference) for one in arguments_apart(call, {"input.1": 0.1}, {"input.1": 8}, other)
    ]
    assert found == [(0.1, 0.125)]
    assert [one.reference for one in arguments_apart(call, {"input.1": 0.1}, {"input.1": 8}, call)] == [8]
