"""A plan inferred from two sets of weights, which are given to ``matching`` as it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import ConfigError
from trueup.numerics.dtypes import DTYPES, float64_from_array

if TYPE_CHECKING:
    from trueup.weights.plan import ConversionPlan, Values
    from trueup.weights.weight_set import WeightSet


def infer_plan(
    target: WeightSet, source: WeightSet, *, by_structure: bool = False, num_heads: int | None = None
) -> ConversionPlan:
    """The plan that values, names and shapes of both sides suggest; with ``by_structure``, where no values
    are equal, also proposals (``matching.weights.structure``).

    Raises:
        ConfigError: nothing of the target was found in the source, or this version cannot infer.
    """
    try:
        matching = import_module("trueup.matching.weights")
    except ModuleNotFoundError as error:
        raise ConfigError("plans cannot be inferred yet; give --to NAME or --plan FILE") from error
    target_weights, source_weights = _Weights(target, matching), _Weights(source, matching)
    plan: ConversionPlan = matching.infer_plan(target_weights, source_weights)
    converted = any(entry.how == "values" for entry in plan.entries)  # then what is left really differs
    if by_structure and plan.only_target and not converted:
        likelier, other = (
            _with_proposals(
                plan, matching, (target_weights, source_weights), num_heads=num_heads, second=second
            )
            for second in (False, True)
        )
        plan = replace(likelier, other=None if other == likelier else other)
    if not plan.entries:
        raise ConfigError(
            f"nothing of {target.path} was found in {source.path}, neither by values nor by names; "
            "give --to or --plan"
        )
    return plan


def _with_proposals(
    plan: ConversionPlan,
    matching: Any,
    tables: tuple[_Weights, _Weights],
    *,
    num_heads: int | None,
    second: bool,
) -> ConversionPlan:
    proposed = matching.by_structure(
        *tables, plan.only_target, plan.only_source, num_heads=num_heads, second=second
    )
    made = {entry.target for entry in proposed}
    used = {piece.source for entry in proposed for piece in entry.pieces}
    return replace(
        plan,
        entries=(*plan.entries, *proposed),
        only_target=tuple(name for name in plan.only_target if name not in made),
        only_source=tuple(name for name in plan.only_source if name not in used),
    )


class _Weights:
    """A ``WeightSet`` as ``matching.weights.WeightTable`` wants it: values as float32 or float64."""

    def __init__(self, weights: WeightSet, matching: Any) -> None:
        self._weights = weights
        self._matching = matching
        self._facts: dict[str, object] = {}

    def names(self) -> Sequence[str]:
        """In the order of the file."""
        return list(self._weights.table)

    def facts(self, name: str) -> Any:
        """What is known of one weight, from its values."""
        if name not in self._facts:
            info, values = self._weights.table[name], self.read(name)
            first = values.reshape(-1)[0] if values.size else None
            uniform = float(first) if first is not None and bool((values == first).all()) else None
            self._facts[name] = self._matching.WeightFacts(
                shape=info.shape,
                dtype=info.dtype,
                content=import_module("trueup.numerics.content").content_hash(values),
                uniform=uniform,
            )
        return self._facts[name]

    def read(self, name: str) -> Values:
        """Values of one weight; integers and complex numbers as they are."""
        dtype, values = self._weights.table[name].dtype, self._weights.read(name)
        if DTYPES[dtype].kind != "float" or dtype in ("float32", "float64"):
            return values
        return float64_from_array(values, dtype).astype(np.float32)
