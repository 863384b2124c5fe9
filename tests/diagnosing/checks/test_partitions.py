"""Runs whose optimizer holds flat partitions, and whose buffers are used in part, as DeepSpeed's."""

from __future__ import annotations

import polars as pl
import pytest

from trueup.diagnosing.checks.repeatable import _without_unread
from trueup.diagnosing.checks.replicas import _reduced_only

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("updated", "left"),
    [
        (["a", "b"], {("a", "param"), ("b", "param"), ("a", "accumulated"), ("b", "accumulated")}),
        (["flat.0"], set()),  # its gradients are reduced, not those of the parameters
        (["flat.0", "a"], {("a", "param"), ("a", "accumulated")}),
    ],
)
def test_gradients_that_the_optimizer_does_not_take_await_no_reduction(
    updated: list[str], left: set[tuple[str, str]]
) -> None:
    rows = [*((name, "accumulated") for name in ("a", "b")), *((name, "param") for name in updated)]
    frame = pl.DataFrame(rows, schema=["name", "slot"], orient="row")
    assert set(_reduced_only(frame, {"a", "b"}).rows()) == left


@pytest.mark.parametrize(("result", "kept"), [(7, 0), (8, 1)])
def test_what_a_function_does_not_read_is_no_difference(result: int, kept: int) -> None:
    rows = [
        (0, "api", "forward", "input.0", 1, 2),
        (0, "api", "forward", "output.0", 7, result),
        (1, "module", "forward", "input.0", 5, 5),
    ]
    names = ["call", "kind", "phase", "slot", "digest", "digest_again"]
    joined = pl.DataFrame(rows, schema=names, orient="row")
    apart = joined.filter(pl.col("digest") != pl.col("digest_again"))
    assert _without_unread(joined, apart).filter(pl.col("slot") == "input.0").height == kept
