"""A rate or decay that both programs declare alike and that acts as several numbers is no other setting."""

from __future__ import annotations

import pytest

from trueup.diagnosing.stages.naming import kind_named
from trueup.diagnosing.stages.optimizer import Members, _of_another_rule
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import reason

FACTS = {"key": "weight_decay", "parameters": "a", "target": "0.18", "reference": "0.01"}


def solved() -> Finding:
    sides = reason(Stages.SIDES, **FACTS)
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=reason(Stages.SETTING, **FACTS),
        module="a",
        site="optimizer",
        kinds=(kind_named("wrong_optimizer_setting", EvidenceRank.FITTED, sides),),
        basis=Basis.FITTED,
        evidence=(sides,),
    )


SEVERAL: Members = [(("0.18", "0.01"), ["a"]), (("0.15", "0.01"), ["b"])]


@pytest.mark.parametrize(
    ("key", "members", "said", "code"),
    [
        ("weight_decay", SEVERAL, "0.01", Stages.ACTS_OTHERWISE),
        ("weight_decay", SEVERAL, None, Stages.SETTING),
        ("weight_decay", SEVERAL[:1], "0.01", Stages.SETTING),
        ("weight_decay", [(("0", "0.01"), ["a"]), (("0.1", "0.01"), ["b"])], "0.01", Stages.SETTING),
        ("lr", SEVERAL, "0.01", Stages.ACTS_OTHERWISE),
        ("eps", SEVERAL, "0.01", Stages.SETTING),
    ],
    ids=["several numbers", "not declared alike", "one number", "none on some", "a rate", "another setting"],
)
def test_what_acts_as_several_numbers_is_no_setting(
    key: str, members: Members, said: str | None, code: Stages
) -> None:
    before = solved()
    found = _of_another_rule(before, key, members, said)
    assert found.headline.code is code
    assert (found == before) is (code is Stages.SETTING)
    assert (Stages.DECLARED_ALIKE in [one.code for one in found.evidence]) is (code is not Stages.SETTING)
