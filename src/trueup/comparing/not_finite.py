"""NaN and infinities that one run alone has: what they come from in weights and the optimizer's state."""

from __future__ import annotations

import numpy as np

from trueup.comparing.rows import Bools, Rows

_NOT_FINITE = ("num_nan", "num_posinf", "num_neginf")


def apart(rows: Rows) -> Bools:
    """Pairs of which one side holds more NaN, or infinities of one sign."""
    out = np.zeros(len(rows), bool)
    for name in _NOT_FINITE:
        mine, theirs = rows.target.statistics[name], rows.reference.statistics[name]
        out |= (mine != theirs) & ~np.isnan(mine + theirs)
    return np.asarray(out & rows.paired)


def handed_on(rows: Rows, before: Bools) -> Bools:
    """Gradients after clipping, updated weights, optimizer state and weights of the next step that have them
    from a gradient or from the weight; ``before``: by ``Rows.weight``, what the step before left so.

    One such gradient makes the total norm, and with it every clipped gradient, NaN.
    """
    found = apart(rows)
    clipped = rows.phase_is("param_grad") & rows.slot_is("clipped")
    given = found & rows.phase_is("param", "param_grad")
    out = found & clipped & bool((given & ~clipped).any())
    reached = before.copy()
    reached[rows.weight[given]] = True
    out |= found & rows.phase_is("optimizer") & reached[rows.weight]
    return np.asarray(out | (found & rows.phase_is("param") & before[rows.weight]))
