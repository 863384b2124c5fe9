"""Codes of all conclusions: one enum class a room, values are stable and documented in docs/codes.md."""

from trueup.types.codes.base import Code, code_from
from trueup.types.codes.curves import CurvesCode
from trueup.types.codes.given import GivenCode
from trueup.types.codes.replay import LeftFree, ReplayCode
from trueup.types.codes.stages import StagesCode

__all__ = ["Code", "CurvesCode", "GivenCode", "LeftFree", "ReplayCode", "StagesCode", "code_from"]
