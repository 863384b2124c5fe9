"""Where a value that is not finite was made: the rule by itself."""

from __future__ import annotations

import pytest

from trueup.numerics.not_finite import Caller, Count, How, Origins

FINE = Count(num_nan=0, num_posinf=0, num_neginf=0)
NAN = Count(num_nan=1, num_posinf=0, num_neginf=0)
INF = Count(num_nan=0, num_posinf=1, num_neginf=0)
MASK = Count(num_nan=0, num_posinf=0, num_neginf=4)
LOW = Count(num_nan=0, num_posinf=0, num_neginf=0, lowest=-3.4e38)


def origins(*, parents: dict[int, int] | None = None, arguments: dict[int, str] | None = None) -> Origins:
    known, told = parents or {}, arguments or {}
    return Origins(lambda call: Caller(parent=known.get(call), arguments=told.get(call)))


@pytest.mark.parametrize("bad", [NAN, INF])
def test_made_by_the_call_whose_inputs_are_finite(bad: Count) -> None:
    seen = origins()
    assert seen.see(0, "forward", "input.0", FINE) is None
    assert seen.see(0, "forward", "output.0", bad) is How.MADE
    assert seen.see(1, "forward", "input.0", bad) is None
    assert seen.see(1, "forward", "output.0", bad) is None


def test_nan_from_infinity_is_a_new_origin() -> None:
    seen = origins()
    seen.see(0, "forward", "output.0", INF)
    seen.see(1, "forward", "input.0", INF)
    assert seen.see(1, "forward", "output.0", NAN) is How.MADE


def test_the_innermost_call_is_named_and_not_those_around_it() -> None:
    seen = origins(parents={2: 1, 1: 0})
    assert seen.see(2, "forward", "output.0", NAN) is How.MADE
    assert seen.see(1, "forward", "output.0", NAN) is None
    assert seen.see(0, "forward", "output.0", NAN) is None


@pytest.mark.parametrize("how", ["argument", "buffer", "cast", "sum"])
def test_a_mask_is_no_origin(how: str) -> None:
    seen = origins(arguments={0: '{"input.2": -Infinity}'} if how == "argument" else None)
    if how == "buffer":
        assert seen.see(0, "forward", "input.1", MASK) is None
    if how in ("cast", "sum"):
        assert seen.see(0, "forward", "input.0", LOW) is None
    assert seen.see(0, "forward", "output.0", MASK) is None
    assert seen.see(1, "forward", "input.0", MASK) is None
    assert seen.see(1, "forward", "output.0", FINE) is None
    assert seen.see(2, "forward", "output.0", INF) is How.MADE


def test_a_row_that_is_masked_whole_is_one() -> None:
    seen = origins(arguments={0: '{"input.2": -Infinity}'})
    seen.see(0, "forward", "output.0", MASK)
    seen.see(1, "forward", "input.0", MASK)
    assert seen.see(1, "forward", "output.0", NAN) is How.MADE


def test_minus_infinity_that_nobody_asked_for_is_one() -> None:
    assert origins().see(0, "forward", "output.0", MASK) is How.MADE


def test_buffers_handed_to_a_collective_mean_nothing() -> None:
    seen = origins()
    assert seen.see(0, "collective", "input.0.1", NAN) is None
    assert seen.see(0, "collective", "output.0.1", NAN) is How.ARRIVED


def test_in_backward_it_goes_the_other_way() -> None:
    seen = origins()
    assert seen.see(0, "backward", "output.0", FINE) is None
    assert seen.see(0, "backward", "input.0", INF) is How.MADE
    assert seen.see(1, "backward", "output.0", INF) is None
    assert seen.see(1, "backward", "input.0", INF) is None


def test_backward_of_a_call_that_had_nan_is_no_new_origin() -> None:
    seen = origins()
    assert seen.see(0, "forward", "output.0", NAN) is How.MADE
    assert seen.see(0, "backward", "input.0", NAN) is None


@pytest.mark.parametrize(("phase", "slot"), [("param", "value"), ("loss", "value"), ("forward", "input.0")])
def test_what_comes_from_elsewhere_has_arrived(phase: str, slot: str) -> None:
    seen = origins()
    assert seen.see(0, phase, slot, NAN) is How.ARRIVED
    assert seen.see(1, "param_grad", "local", NAN) is None
