"""Codes of all conclusions: one enum class a room, values are stable and documented in docs/codes.md."""

from trueup.types.codes.base import Code, code_from
from trueup.types.codes.curves import CurvesCode
from trueup.types.codes.evidence import EvidenceCode
from trueup.types.codes.given import GivenCode
from trueup.types.codes.merging import MergingCode
from trueup.types.codes.note import NoteCode, ToleranceCode
from trueup.types.codes.record import RecordCode
from trueup.types.codes.replay import LeftFree, ReplayCode
from trueup.types.codes.verdict import NextCode, VerdictCode

__all__ = [
    "Code",
    "CurvesCode",
    "EvidenceCode",
    "GivenCode",
    "LeftFree",
    "MergingCode",
    "NextCode",
    "NoteCode",
    "RecordCode",
    "ReplayCode",
    "ToleranceCode",
    "VerdictCode",
    "code_from",
]
