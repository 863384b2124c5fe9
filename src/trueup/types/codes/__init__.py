"""Codes of all conclusions: one enum class a room, values are stable and documented in docs/codes.md."""

from trueup.types.codes.accepting import AcceptCode
from trueup.types.codes.base import Code, code_from
from trueup.types.codes.batch import BatchCode
from trueup.types.codes.checklist import ChecklistCode
from trueup.types.codes.checks import CheckCode
from trueup.types.codes.clipping import ClippingCode
from trueup.types.codes.criterion import CriterionCode
from trueup.types.codes.curves import CurvesCode
from trueup.types.codes.evidence import EvidenceCode
from trueup.types.codes.given import GivenCode
from trueup.types.codes.kinds import (
    AdviceCode,
    CauseCode,
    DivisorCode,
    FactorCode,
    KindReason,
    OrderCode,
    PlacesCode,
    SettingReason,
)
from trueup.types.codes.merging import MergingCode
from trueup.types.codes.mismatch import MismatchCode
from trueup.types.codes.monitor import MonitorCode
from trueup.types.codes.note import NoteCode, ToleranceCode
from trueup.types.codes.record import RecordCode
from trueup.types.codes.replay import LeftFree, ReplayCode
from trueup.types.codes.rl import RLCode
from trueup.types.codes.stages import StagesCode
from trueup.types.codes.suspect import SuspectCode
from trueup.types.codes.verdict import NextCode, VerdictCode
from trueup.types.codes.weights import WeightsCode

__all__ = [
    "AcceptCode",
    "AdviceCode",
    "BatchCode",
    "CauseCode",
    "CheckCode",
    "ChecklistCode",
    "ClippingCode",
    "Code",
    "CriterionCode",
    "CurvesCode",
    "DivisorCode",
    "EvidenceCode",
    "FactorCode",
    "GivenCode",
    "KindReason",
    "LeftFree",
    "MergingCode",
    "MismatchCode",
    "MonitorCode",
    "NextCode",
    "NoteCode",
    "OrderCode",
    "PlacesCode",
    "RLCode",
    "RecordCode",
    "ReplayCode",
    "SettingReason",
    "StagesCode",
    "SuspectCode",
    "ToleranceCode",
    "VerdictCode",
    "WeightsCode",
    "code_from",
]
