"""Why a replay did not replace a tensor, as a trace holds it: a reason, or a sentence of version 1."""

from __future__ import annotations

import re

from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason, reason_from_json

_VERSION_1 = (
    (r"a parameter or buffer:", LeftFree.PARAMETER),
    (r"compared, never overwritten", LeftFree.COMPARED_ONLY),
    (r"expanded:", LeftFree.EXPANDED),
    (r"one tensor with", LeftFree.SHARED_GRADIENT),
    (r"the last of its uses", LeftFree.LAST_USE_WITHOUT_GRADIENT),
    (r"made before the program", LeftFree.BEFORE_MODEL),
    (r"the reference has no such tensor", LeftFree.NOT_IN_REFERENCE),
    (r"the reference kept no values", LeftFree.NO_VALUES),
    (r"another shape: (?P<target>.*) against (?P<reference>.*)", LeftFree.SHAPE_DIFFERS),
    (r"layout (?P<layout>.*): not replaced", LeftFree.LAYOUT),
    (r"inside a function transform:", LeftFree.FUNCTION_TRANSFORM),
    (r"dtype (?P<dtype>.*): not replaced", LeftFree.DTYPE),
    (r"(?P<reference>\w+) values cannot be rounded to (?P<target>\w+)", LeftFree.ROUNDING),
    (r"called another number of times", LeftFree.NUM_CALLS_DIFFERS),
    (r"its values lie otherwise", LeftFree.LAYOUT_NOT_INVERTIBLE),
    (r"called in another order:", LeftFree.CALL_ORDER_DIFFERS),
    (r"its place is not unique", LeftFree.PLACE_NOT_UNIQUE),
    (r"the reference has no gradient of this parameter", LeftFree.GRADIENT_NOT_IN_REFERENCE),
    (r"the reference has no gradient of it;", LeftFree.GRADIENT_ALWAYS_THERE),
    (r"it has no gradient here", LeftFree.GRADIENT_NOT_IN_TARGET),
    (r"a (?P<layout>\w+) gradient$", LeftFree.GRADIENT_LAYOUT),
    (r"its shape is (?P<target>.*), the reference's (?P<reference>.*)", LeftFree.GRADIENT_SHAPE_DIFFERS),
)
"""how the sentences of version 1 begin"""
_VALUES = frozenset(code.value for code in LeftFree)


def left_free_from_plain(plain: object) -> Reason:
    """The reason that a trace or plan holds; a sentence that is not known is kept as text.

    Example:
        >>> left_free_from_plain("another shape: [2] against [3]").places
        (('target', '[2]'), ('reference', '[3]'))
    """
    if isinstance(plain, str):
        for beginning, code in _VERSION_1:
            found = re.match(beginning, plain)
            if found is not None:
                return reason(code, **found.groupdict())
    return reason_from_json(plain)


def code_of_cell(cell: str) -> str | None:
    """The value of ``LeftFree`` for a cell of ``forced.reason``; None where a sentence is not known."""
    if cell in _VALUES:
        return cell
    code = left_free_from_plain(cell).code
    return code.value if isinstance(code, LeftFree) else None
