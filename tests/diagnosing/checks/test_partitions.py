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


NAMES = ["record", "call", "kind", "phase", "name", "slot", "digest", "digest_again"]


def kept_slots(*rows: tuple[int, str, str, str, str, int, int]) -> list[str]:
    """Slots of the records that differ, but for what nobody reads."""
    joined = pl.DataFrame([(at, *row) for at, row in enumerate(rows)], schema=NAMES, orient="row")
    apart = joined.filter(pl.col("digest") != pl.col("digest_again"))
    return _without_unread(joined, apart)["slot"].to_list()


@pytest.mark.parametrize(("result", "kept"), [(7, []), (8, ["input.0", "output.0"])])
def test_what_a_function_does_not_read_is_no_difference(result: int, kept: list[str]) -> None:
    rows = [
        (0, "api", "forward", "torch.add", "input.0", 1, 2),
        (0, "api", "forward", "torch.add", "output.0", 7, result),
        (1, "module", "forward", "layer", "input.0", 5, 5),
    ]
    assert kept_slots(*rows) == kept


@pytest.mark.parametrize(("read", "kept"), [(5, []), (3, ["output.0", "input.0"])])
def test_what_a_view_shows_counts_where_something_reads_it(read: int, kept: list[str]) -> None:
    rows = [
        (0, "api", "forward", "torch.Tensor.narrow", "input.0", 1, 2),
        (0, "api", "forward", "torch.Tensor.narrow", "output.0", 3, 4),
        (1, "module", "forward", "layer", "input.0", read, read + (read == 3)),
    ]
    assert kept_slots(*rows) == kept
