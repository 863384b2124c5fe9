"""Pairs calls and records of two traces, without a mapping file, within one step of one rank."""

from __future__ import annotations

from trueup.matching.step import StepMatch, match_step

__all__ = ["StepMatch", "match_step"]
