"""What became of gradients where a framework gives them back: no sum of the microbatches is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.comparing.traces import Recorder, of_two_ranks
from trueup.diagnosing.ledger import Summing, _in_common, clipping, handovers, is_average, summings
from trueup.diagnosing.stages.reduction import _differs
from trueup.store import StepView, Trace
from trueup.store.view import ACCUMULATED
from trueup.types.layout import Layout

Floats = NDArray[np.float32]
ALONE = Layout(mesh={"dp": 1})
HALVES = [np.random.default_rng(seed).standard_normal((16, 16)).astype(np.float32) for seed in (1, 2)]
OTHER = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)


@contextmanager
def step(gradients: Mapping[str, Mapping[str, list[Floats]]]) -> Iterator[StepView]:
    """A step of parameters with their gradients by slot."""
    out = Recorder()
    for name, slots in gradients.items():
        call = out.call("parameter", name)
        for slot, arrays in slots.items():
            for array in arrays:
                out.record(call, "param_grad", slot, array)
    with TemporaryDirectory() as folder:
        trace = out.write(Path(folder) / "run", values=True)
        yield StepView(trace, trace.read(0, 0))


def got(*clipped: Floats) -> dict[str, dict[str, list[Floats]]]:
    return {"w": {"local": HALVES, "clipped": list(clipped)}}


def test_what_the_optimizer_got_is_the_sum_of_all_microbatches() -> None:
    with step(got(np.float32(0.5) * (HALVES[0] + HALVES[1]))) as own:
        found = handovers([own], 0, 0.5, ALONE)["w"]
    assert found.way == "own"
    assert found.factor == pytest.approx(1.0, rel=1e-5)
    assert found.residual < 1e-5


@pytest.mark.parametrize("lost", [0, 1])
def test_a_microbatch_that_does_not_reach_the_optimizer_is_seen(lost: int) -> None:
    with step(got(HALVES[lost])) as own:
        assert handovers([own], 0, 1.0, ALONE)["w"].residual > 0.5


def test_a_sum_that_is_not_recorded_is_unknown_and_a_gradient_that_goes_nowhere_is_missing() -> None:
    with step(got(HALVES[0] + HALVES[1])) as own:
        assert summings([own], 0, None, ALONE)["w"].way == "unknown"
    with step({"w": {"local": HALVES}}) as own:
        assert summings([own], 0, None, ALONE)["w"].way == "none"
    with step({"w": {"local": HALVES, "accumulated": [HALVES[0] + HALVES[1]]}}) as own:
        assert summings([own], 0, None, ALONE)["w"].way == "own"


def test_a_gradient_of_zeros_tells_no_factor_of_its_sum() -> None:
    """A norm's weight that starts at 0 leaves the layers before it without a gradient."""
    zeros, parts = np.zeros_like(HALVES[0]), {"local": HALVES, "accumulated": [HALVES[0] + HALVES[1]]}
    with step({"w": {"local": [zeros, zeros], "accumulated": [zeros]}, "v": parts}) as own:
        found = summings([own], 0, None, ALONE)
    assert found["w"].way == "unknown"
    assert found["v"].way == "own"
    with step({"w": {"local": HALVES, "accumulated": [zeros]}}) as own:  # what is lost on the way is seen
        lost = summings([own], 0, None, ALONE)["w"]
    assert lost.way != "unknown"
    assert lost.residual == 1.0


def clipped(*names: str, factor: float) -> dict[str, dict[str, list[Floats]]]:
    """Two parameters whose gradients were scaled; ``names`` recorded their sum before."""
    arrays = {"w": HALVES[0], "v": OTHER}
    return {
        name: {
            **({"accumulated": [array]} if name in names else {}),
            "clipped": [np.float32(factor) * array],
        }
        for name, array in arrays.items()
    }


@pytest.mark.parametrize("names", [("w", "v"), ("w",), ("v",)])
def test_the_norm_is_that_of_all_gradients_also_where_some_were_not_recorded(names: tuple[str, ...]) -> None:
    whole = float(np.sqrt(np.sum(HALVES[0] ** 2.0) + np.sum(OTHER**2.0)))
    with step(clipped(*names, factor=0.25)) as own:
        found = clipping(own, loss_scale=None, reported=None)
    assert found is not None
    assert found.way == "norm"
    assert found.factor == pytest.approx(0.25, rel=1e-5)
    assert found.norm == pytest.approx(whole, rel=1e-5)
    assert found.clipped_norm == pytest.approx(0.25 * whole, rel=1e-5)


def test_a_parameter_that_no_optimizer_has_counts_as_it_was() -> None:
    """Clipped with the rest and seen by nobody: its norm before is known."""
    gradients = clipped("w", "v", factor=0.25)
    del gradients["v"]["clipped"]
    with step(gradients) as own:
        found = clipping(own, loss_scale=None, reported=None)
    assert found is not None
    whole = float(np.sqrt(np.sum(HALVES[0] ** 2.0) + np.sum(OTHER**2.0)))
    assert found.norm == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("is_reduced", [True, False], ids=["reduced", "by a factor of its own"])
def test_a_gradient_reduced_before_clipping_has_no_factor_of_its_own(is_reduced: bool) -> None:
    """Ranks that hold parts sum up those weights that all hold: the norm is that of what was clipped."""
    arrays = {"w": HALVES[0], "v": OTHER, "u": HALVES[1]}
    after = {**arrays, "u": HALVES[1] + OTHER if is_reduced else 2 * HALVES[1]}
    half = np.float32(0.5)
    given = {
        name: {"accumulated": [array], "clipped": [half * after[name]]} for name, array in arrays.items()
    }
    with step(given) as own:
        found = clipping(own, loss_scale=None, reported=None)
    assert found is not None
    assert found.way == ("norm" if is_reduced else "each")
    assert [name for name, _ in found.uneven] == ([] if is_reduced else ["u"])
    assert found.factor == pytest.approx(0.5, rel=1e-5)
    if is_reduced:
        assert found.norm == pytest.approx(np.linalg.norm(np.stack(list(after.values()))), rel=1e-5)


def test_a_step_without_any_sum_tells_no_clipping() -> None:
    with step(clipped(factor=0.25)) as own:
        assert clipping(own, loss_scale=None, reported=None) is None


def fitted(factor: float, residual: float) -> Summing:
    return Summing(fqn="w", way="own", factor=factor, residual=residual)


@pytest.mark.parametrize(
    ("factor", "residual", "differs"),
    [(0.9977, 0.003, False), (0.5, 0.003, True), (0.9995, 0.0, False), (0.9977, 0.0, True)],
    ids=["rounded in bfloat16", "halved in bfloat16", "near", "exact"],
)
def test_a_factor_is_known_to_what_it_leaves_over(factor: float, residual: float, differs: bool) -> None:
    """One large element holds most of a gradient, and is rounded as all others are."""
    apart = _differs(fitted(factor, residual), fitted(1.001, residual), ACCUMULATED)
    assert apart is differs


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_microbatches_that_count_differently(weight: float) -> None:
    total = (weight * HALVES[0] + HALVES[1]).astype(np.float32)
    with step({"w": {"local": HALVES, "accumulated": [total]}}) as book:
        found = summings([book], 0, None, ALONE)["w"]
    assert (found.way, found.weights) == (("own", ()) if weight == 1.0 else ("weighted", (0.25, 1.0)))


@pytest.mark.parametrize(
    ("weight", "rounding", "way"),
    [(1 / 512, 0.0, "weighted"), (0.0, 0.0, "last"), (0.0, 2e-3, "last"), (1 / 512, 2e-3, "last")],
    ids=["a small share", "none", "none, in bfloat16", "a share that roundings hide"],
)
def test_the_last_microbatch_alone_is_no_small_share_of_the_first(
    weight: float, rounding: float, way: str
) -> None:
    total = (weight * HALVES[0] + HALVES[1] + rounding * OTHER).astype(np.float32)
    with step({"w": {"local": HALVES, "accumulated": [total]}}) as book:
        found = summings([book], 0, None, ALONE)["w"]
    assert (found.way, found.weights) == (way, (0.002, 1.0) if way == "weighted" else ())


def test_a_term_from_elsewhere_is_no_weight_of_a_microbatch() -> None:
    with step({"w": {"local": HALVES, "accumulated": [HALVES[0] + HALVES[1] + OTHER]}}) as book:
        assert summings([book], 0, None, ALONE)["w"].way == "own"


@pytest.mark.parametrize(
    ("factor", "held", "differs"),
    [(1.00063, 2 * 2**-8, False), (1.012, 0.0, True), (1.02, 2 * 2**-8, True)],
    ids=["two sums in bfloat16", "nothing added up", "a factor beyond rounding"],
)
def test_a_factor_is_known_to_a_rounding_of_the_sum(factor: float, held: float, differs: bool) -> None:
    """A norm's weight has few elements: what rounding does to the largest is a factor, and leaves little."""
    apart = _differs(fitted(factor, 0.0011), fitted(0.997714, 0.0015), ACCUMULATED, held=held)
    assert apart is differs


@pytest.mark.parametrize(("copied", "factor"), [(True, 1.0), (False, 0.5)], ids=["both alike", "as averaged"])
def test_a_gradient_that_all_ranks_hold_is_its_own_and_half_the_sum_of_two(
    copied: bool, factor: float
) -> None:
    """Held against what gradients have in common if all came that way, else against that of most."""
    fits = {
        name: [
            Summing(fqn=name, way="own", factor=0.25, residual=0.0 if copied or name == "w" else 0.7),
            Summing(fqn=name, way="ranks", over=("dp",), factor=0.5, residual=0.0),
        ]
        for name in ("w", "v", "u")
    }
    common = _in_common("own", fits) or _in_common("ranks dp", fits)
    assert 0.25 / (common or 0.0) == pytest.approx(factor)


WORLD = Layout(mesh={"world": 2})


def over_two_ranks(counts: tuple[float, float]) -> Summing:
    """What is told of a gradient that holds the microbatches' sums over ranks so often."""
    random = np.random.default_rng(7)
    local = [[random.standard_normal((16, 16)).astype(np.float32) for _ in counts] for _ in range(2)]
    sums = [np.float32(0.5) * (local[0][at] + local[1][at]) for at in range(2)]
    total = np.float32(counts[0]) * sums[0] + np.float32(counts[1]) * sums[1]
    first, second = Recorder(), Recorder()
    for out, parts in zip((first, second), local, strict=True):
        call = out.call("parameter", "w")
        for part in parts:
            out.record(call, "param_grad", "local", part)
        out.record(call, "param_grad", "accumulated", total)
    with TemporaryDirectory() as folder:
        of_two_ranks(first, Path(folder) / "run", second)
        trace = Trace(Path(folder) / "run")
        books = [StepView(trace, trace.read(0, rank)) for rank in (0, 1)]
        return summings(books, 0, None, WORLD)["w"]


def test_a_microbatch_that_is_summed_over_no_ranks_counts_0_times() -> None:
    found = over_two_ranks((1.0, 0.0))
    assert (found.way, found.over, found.weights) == ("weighted", ("world",), (0.5, 0.0))


def test_microbatches_that_all_count_alike_are_one_sum_over_ranks() -> None:
    found = over_two_ranks((1.0, 1.0))
    assert (found.way, found.over, found.weights) == ("ranks", ("world",), ())
    assert found.factor == pytest.approx(0.5, rel=1e-5)


def test_a_microbatch_that_counts_less_is_no_microbatch_that_lacks() -> None:
    assert over_two_ranks((1.0, 0.25)).weights == (0.5, 0.13)


@pytest.mark.parametrize(("is_reduced", "way"), [(False, "own"), (True, "ranks")])
def test_ranks_whose_gradients_are_nearly_the_same(is_reduced: bool, way: str) -> None:
    """A sum over them leaves over what they differ by: no rounding where another way leaves nothing."""
    random = np.random.default_rng(7)
    one = random.standard_normal((16, 16)).astype(np.float32)
    both = [one, one + np.float32(1e-3) * random.standard_normal((16, 16)).astype(np.float32)]
    total = np.float32(0.5) * (both[0] + both[1]) if is_reduced else one
    first, second = Recorder(), Recorder()
    for out, part in zip((first, second), both, strict=True):
        call = out.call("parameter", "w")
        out.record(call, "param_grad", "local", part)
        out.record(call, "param_grad", "accumulated", total)
    with TemporaryDirectory() as folder:
        of_two_ranks(first, Path(folder) / "run", second)
        trace = Trace(Path(folder) / "run")
        books = [StepView(trace, trace.read(0, rank)) for rank in (0, 1)]
        found = summings(books, 0, None, WORLD)["w"]
    assert found.way == way
    assert found.residual < 1e-5


def test_an_average_over_ranks_is_no_clipping_factor() -> None:
    assert [is_average(one, 4) for one in (1.0, 0.25, 0.5, 4.0, 0.2501)] == [True, True, False, False, False]
