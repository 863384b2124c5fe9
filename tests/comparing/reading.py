"""What tests look for in conclusions: codes, and the facts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.types.codes import Code
from trueup.types.reason import Reason


def coded(reasons: Sequence[Reason], code: Code) -> list[Reason]:
    """Those of a code."""
    return [one for one in reasons if one.code is code]


def facts(reasons: Sequence[Reason], code: Code) -> dict[str, Any]:
    """Facts of the only one of a code."""
    (found,) = coded(reasons, code)
    return found.facts


def nested(reasons: Sequence[Reason], code: Code) -> list[Reason]:
    """Those of a code, also where they are parts of others."""
    below = [one for reason in reasons for one in nested(reason.parts, code)]
    return [*coded(reasons, code), *below]
