"""One training in two dialects is found to be one, and any single change to it is found."""

from __future__ import annotations

import pytest

from tests.checklist.changing import changes, changes_nothing, found
from tests.checklist.pairs import pairs, side
from trueup.checklist import check
from trueup.checklist.check import compared
from trueup.checklist.configuration import configured
from trueup.checklist.judging import DemandStatus
from trueup.checklist.readers import read_side

NOT_FOLLOWED = {"aux_loss_factor", "optimizer_parallel", "adam_beta2", "rotary_dtype", "embedding_dtype"}
"""recommendations of the guide that these full-size jobs do not follow"""
EVERY = 13
"""of the changes; all of them in benchmarks/checklist.py"""


@pytest.mark.parametrize(("target", "reference"), pairs())
def test_the_same_training_is_found_to_be_the_same(target: str, reference: str) -> None:
    checklist = check([side(target)], [side(reference)])
    loud = (DemandStatus.DIFFERENT, DemandStatus.NOT_COMPARABLE)
    wrong = [row.key for row in checklist.rows if row.status in loud and row.severity != "note"]
    assert not wrong
    assert checklist.schedules.same
    assert checklist.training == "agree", [row.key for row in checklist.undecided]
    assert {one.key for one in checklist.unmet if one.counts} <= NOT_FOLLOWED


@pytest.mark.parametrize(("number", "pair"), list(enumerate(pairs())))
def test_every_single_change_is_found(number: int, pair: tuple[str, str]) -> None:
    target, reference = (configured(read_side([side(name)])) for name in pair)
    before = set(found(compared(target, reference)))
    tried = 0
    for index, (field, key, value, changed) in enumerate(changes(target, reference)):
        if (index + number) % EVERY:
            continue
        tried += 1
        after = set(found(compared(changed, reference))) - before
        assert after or changes_nothing(key, value, changed), (field, key, value)
    assert tried
