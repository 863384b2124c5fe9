"""Calls and records of two implementations of other trees and names, paired by what flows through them."""

from __future__ import annotations

from trueup.matching.across.match import match_across

__all__ = ["match_across"]
