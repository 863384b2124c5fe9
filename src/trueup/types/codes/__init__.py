"""Codes of all conclusions: one enum class a room, values are stable and documented in docs/codes.md."""

from trueup.types.codes.base import Code, code_from
from trueup.types.codes.curves import CurvesCode
from trueup.types.codes.given import GivenCode
from trueup.types.codes.kinds import (
    AdviceCode,
    CauseCode,
    FactorCode,
    KindReason,
    OrderCode,
    PlacesCode,
    SettingReason,
)
from trueup.types.codes.replay import LeftFree, ReplayCode
from trueup.types.codes.stages import StagesCode

__all__ = [
    "AdviceCode",
    "CauseCode",
    "Code",
    "CurvesCode",
    "FactorCode",
    "GivenCode",
    "KindReason",
    "LeftFree",
    "OrderCode",
    "PlacesCode",
    "ReplayCode",
    "SettingReason",
    "StagesCode",
    "code_from",
]
