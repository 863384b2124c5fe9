"""One wrong setting of an optimizer moves every parameter: it is one finding, solved for however many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trueup.diagnosing.stages.naming import described, names_listed
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import SettingReason
from trueup.types.finding import Finding
from trueup.types.reason import reason

Setting = tuple[str, str, str]
"""its name, and what was solved for the target and the reference"""


def one_a_setting(findings: Sequence[Finding], shapes: Mapping[str, Sequence[int]]) -> list[Finding]:
    """The same findings, those that solved for the same two values of one setting put together at the first.

    Other values are another finding. What else an update leaves of a parameter whose setting was solved for
    follows from that setting; of another parameter it stays. ``shapes`` are those of all parameters.
    """
    solved_for = {finding.module for finding in findings if _solved(finding) is not None}
    groups: dict[Setting | int, list[Finding]] = {}
    for number, finding in enumerate(findings):
        setting = _solved(finding)
        if setting is not None or finding.module not in solved_for:
            groups.setdefault(setting or number, []).append(finding)
    return [
        _together(setting, some, shapes) if isinstance(setting, tuple) and len(some) > 1 else some[0]
        for setting, some in groups.items()
    ]


def _solved(finding: Finding) -> Setting | None:
    """The setting that the likeliest kind solved for, where it is a single one."""
    parts = finding.kinds[0].sentence.parts if finding.kinds else ()
    solved = [part for part in parts if part.code is SettingReason.SOLVED]
    if len(solved) != 1:
        return None
    target, reference = solved[0].number("target"), solved[0].number("reference")
    if target is None or reference is None:
        return None
    return str(solved[0].place("setting")), f"{target:.3g}", f"{reference:.3g}"


def _together(setting: Setting, some: Sequence[Finding], shapes: Mapping[str, Sequence[int]]) -> Finding:
    key, target, reference = setting
    names = list(dict.fromkeys(one.module for one in some if one.module is not None))
    who = described(names, shapes)
    ranks = {one.rank for one in some}
    return replace(
        some[0],
        headline=reason(Stages.SETTING, key=key, parameters=who, target=target, reference=reference),
        site=f"optimizer · {key} · {who}",
        rank=some[0].rank if len(ranks) == 1 else None,
        evidence=(*some[0].evidence, *names_listed(names)),
    )
