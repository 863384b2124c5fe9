"""What is said of replays and of what was tried in them: the numbers, and when it is said."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trueup.diagnosing.replay.trials import Tried, closing
from trueup.diagnosing.replay.words import MAX_REASONS, first_of
from trueup.types.codes import GivenCode, ReplayCode
from trueup.types.reason import reason

LOSSES = st.floats(0.1, 10.0)


@given(LOSSES, LOSSES, LOSSES)
def test_how_much_of_a_gap_is_closed(target: float, reference: float, between: float) -> None:
    assume(target != reference)
    said = closing(["a"], target=target, reference=reference, given=between)
    assert (said.code is ReplayCode.LOSS_EXPLAINED) is (between == reference)
    if said.code is ReplayCode.LOSS_WITH:
        closed = said.number("closed")
        assert closed is not None
        assert (closed > 0) is (abs(between - reference) / abs(target - reference) < 1)
    assert closing(["a"], target=target, reference=reference, given=reference).code is (
        ReplayCode.LOSS_EXPLAINED
    )


@pytest.mark.parametrize(
    ("left", "unchanged", "code"),
    [
        (0.3, False, ReplayCode.TRIED),
        (0.0, False, ReplayCode.TRIED_AND_EQUAL),
        (1.0, True, ReplayCode.TRIED_WITHOUT_EFFECT),
    ],
)
def test_what_a_trial_leaves(left: float, unchanged: bool, code: ReplayCode) -> None:
    said = Tried(module="a", change=(), left=left, is_unchanged=unchanged).evidence
    assert (said.code, said.number("left")) == (code, left if code is ReplayCode.TRIED else None)


@given(st.integers(0, 3 * MAX_REASONS))
def test_tensors_that_are_left_out_are_counted(num: int) -> None:
    every = tuple(reason(GivenCode.TEXT, text=str(at)) for at in range(num))
    shown = first_of(every)
    more = [one.number("num_tensors") for one in shown if one.code is ReplayCode.MORE_TENSORS]
    assert len(shown) - len(more) + sum(more) == num
    assert bool(more) is (num > MAX_REASONS)
