"""Whether recorded numbers are what a formula gives of a run's own inputs; if not, which variant is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trueup.diagnosing.rl.steps import Quantity, QuantityCheck
from trueup.diagnosing.rl.tables import Apart
from trueup.diagnosing.rl.thresholds import FORMULA, RESULT
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RLCode
from trueup.types.reason import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaValue:
    """What a formula gives."""

    value: Floats
    magnitude: Floats
    """sum of the magnitudes of its terms: what float32's rounding is relative to"""
    narrow: Floats | None = None
    """the same with every operation rounded to the dtype of its inputs, where that is narrower"""
    summands: Floats | None = None
    """sum of the magnitudes that are added last, in the dtype of the result; None: of ``value``"""

    def at(self, inside: Bools) -> FormulaValue:
        """Some of its elements."""
        held = (self.value, self.magnitude, self.narrow, self.summands)
        value, magnitude, narrow, summands = (None if one is None else one[inside] for one in held)
        assert value is not None
        assert magnitude is not None
        return FormulaValue(value=value, magnitude=magnitude, narrow=narrow, summands=summands)

    def error(self, recorded: Floats, unit: float) -> float:
        """The largest difference, in what rounding allows; ``unit``: unit roundoff of the result's dtype."""
        narrow = self.value if self.narrow is None else self.narrow
        last = np.abs(self.value) if self.summands is None else self.summands
        spread = np.abs(self.value - narrow)
        allowed = FORMULA * SINGLE * self.magnitude + RESULT * unit * last + spread
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(recorded - narrow) / allowed
        off = np.where(recorded == self.value, 0.0, off)
        return float(np.nan_to_num(off, nan=np.inf, posinf=np.inf).max(initial=0.0))


SINGLE = DTYPES["float32"].eps


def scalar(
    value: float, magnitude: float, narrow: float | None = None, summands: float | None = None
) -> FormulaValue:
    """A number as a value."""
    return FormulaValue(
        value=np.array([value]),
        magnitude=np.array([magnitude]),
        narrow=None if narrow is None else np.array([narrow]),
        summands=None if summands is None else np.array([summands]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One array or number that was recorded, what it should be, and what known variants give."""

    recorded: Floats
    expected: FormulaValue
    variants: Iterable[tuple[Reason, FormulaValue]]
    """worked out where the formula does not hold"""
    unit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFit:
    """Of all cases of a quantity on one side."""

    error: float
    """the largest, in what rounding allows"""
    variant: Reason | None
    """that gives what was recorded in every case; None: the formula holds, or no variant does"""

    @property
    def holds(self) -> bool:
        """The formula gives what was recorded."""
        return self.error <= 1


def fitted(cases: Sequence[Case]) -> CaseFit | None:
    """How the formula does, None without a case."""
    if not cases:
        return None
    error = max(case.expected.error(case.recorded, case.unit) for case in cases)
    if error <= 1:
        return CaseFit(error=error, variant=None)
    fits = [
        {_identity(variant): variant for variant, value in case.variants if fits_well(value, case)}
        for case in cases
        if not fits_well(case.expected, case)
    ]
    everywhere = [variant for key, variant in fits[0].items() if all(key in other for other in fits)]
    return CaseFit(error=error, variant=_determined(everywhere) if everywhere else None)


CONSTANTS = ("used", "gamma", "lam")
"""numbers that a program has written: the same in every case"""


def _identity(variant: Reason) -> tuple[object, ...]:
    return variant.code, variant.places, *(variant.number(name) for name in (*CONSTANTS, "by"))


def _determined(variants: Sequence[Reason]) -> Reason:
    """The first; where it fits with several constants, without a constant."""
    first = variants[0]
    if len({_identity(one) for one in variants if (one.code, one.places) == (first.code, first.places)}) == 1:
        return first
    numbers = tuple((name, None if name in CONSTANTS else value) for name, value in first.numbers)
    return replace(first, numbers=numbers)


def fits_well(value: FormulaValue, case: Case) -> bool:
    """Whether it is what was recorded, within rounding."""
    return value.error(case.recorded, case.unit) <= 1


def by_formula(
    quantity: Quantity,
    fits: tuple[CaseFit | None, CaseFit | None],
    settings: Sequence[Reason],
    apart: Apart | None,
    *,
    inputs_agree: bool,
) -> QuantityCheck:
    """A conclusion from both sides' fits.

    Args:
        quantity: what is looked at.
        fits: the target's and the reference's; None where no formula is known.
        settings: those that differ and change the target's numbers.
        apart: the quantity on both sides; None where it cannot be compared.
        inputs_agree: whether what it is made from does.
    """
    target, reference = fits
    if target is not None and reference is not None:
        if target.holds != reference.holds:
            broken = reference if target.holds else target
            side = "reference" if target.holds else "target"
            fails = reason(RLCode.FORMULA_FAILS, quantity=quantity.name, side=side, error=broken.error)
            return quantity.failed(broken.variant or fails, *([fails] if broken.variant else []))
        if target.holds and settings:
            return quantity.failed(settings[0], *settings[1:])
        if target.holds:
            return quantity.passed(RLCode.FORMULA_HOLDS)
        if target.variant != reference.variant and target.variant is not None:
            return quantity.failed(target.variant, confirmed=False)
    if apart is None:
        return quantity.undecided(reason(RLCode.NOT_RECORDED, quantity=quantity.name))
    if apart.agrees:
        if target is not None and reference is not None:
            return quantity.passed(RLCode.BOTH_FAIL)
        return quantity.agreeing(apart)
    if not inputs_agree:
        return quantity.follows()
    if not apart.is_beyond:
        return quantity.undecided(in_doubt(quantity.name, apart))
    return quantity.failed(differs(quantity.name, apart), *settings, confirmed=False)


def differs(name: str, apart: Apart) -> Reason:
    """A quantity differs though what it is made from agrees."""
    if not apart.is_finite:
        return reason(RLCode.NOT_FINITE, quantity=name)
    return reason(
        RLCode.APART,
        quantity=name,
        rms=apart.rms,
        allowed=apart.allowed,
        different=apart.num_different,
        tokens=apart.num_tokens,
    )


def in_doubt(name: str, apart: Apart) -> Reason:
    """More than rounding explains, less than what is called a fault."""
    if not apart.is_finite:
        return reason(RLCode.NOT_FINITE, quantity=name)
    return reason(
        RLCode.IN_DOUBT, quantity=name, rms=apart.rms, allowed=apart.allowed, tokens=apart.num_tokens
    )
