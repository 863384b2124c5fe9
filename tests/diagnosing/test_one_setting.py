"""One setting of an optimizer is one finding, however many parameters it moves."""

from __future__ import annotations

from trueup.diagnosing.stages.one_setting import one_a_setting
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import KindReason, SettingReason
from trueup.types.finding import Basis, EvidenceRank, Finding, Kind, KindClass, KindCode, Stage
from trueup.types.reason import reason

SHAPES = {name: [4, 4] for name in ("a", "b", "c", "d")}


def finding(parameter: str, beta2: float | None, rank: int = 0) -> Finding:
    solved = (
        ()
        if beta2 is None
        else (reason(SettingReason.SOLVED, setting="beta2", target=beta2, reference=0.95),)
    )
    sentence = reason(KindReason.SETTINGS_SOLVED, *solved, parameter=parameter, one_dimensional=0)
    kind = Kind(
        name=KindCode.WRONG_OPTIMIZER_SETTING,
        family=KindClass.MODEL,
        rank=EvidenceRank.EVERY_ELEMENT,
        measure=1.0,
        sentence=sentence,
        causes=(),
        next=None,
    )
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=reason(Stages.OF_KIND, kind="wrong_optimizer_setting", module=parameter, stage="optimizer"),
        module=parameter,
        site=parameter,
        rank=rank,
        kinds=(kind,),
        basis=Basis.BOUND,
    )


def test_the_same_values_are_one_finding_and_what_follows_from_them_none() -> None:
    given = [finding(name, 0.99 + 1e-9 * at, at % 2) for at, name in enumerate("abc")] + [finding("a", None)]
    (one,) = one_a_setting(given, SHAPES)
    assert one.headline.code is Stages.SETTING
    assert (one.headline.place("target"), one.headline.place("reference")) == ("0.99", "0.95")
    assert one.rank is None


def test_other_values_and_other_parameters_stay() -> None:
    given = [finding("a", 0.99), finding("b", 0.99), finding("c", 0.9), finding("d", None)]
    assert [one.module for one in one_a_setting(given, SHAPES)] == ["a", "c", "d"]


def test_a_single_finding_is_left_as_it_is() -> None:
    given = [finding("a", 0.99), finding("b", None)]
    assert one_a_setting(given, SHAPES) == given
