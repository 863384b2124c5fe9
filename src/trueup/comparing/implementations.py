"""Steps of two implementations, matched: what is known of their weights and layouts is kept from step to
step."""

from __future__ import annotations

from pathlib import Path

from trueup.comparing.layouts import LayoutBook
from trueup.comparing.pairing import StepPair
from trueup.matching import StepMatch, match_step
from trueup.matching.bridge import Bridge, build_bridge
from trueup.matching.mapping import read_mapping
from trueup.store import StepTables, TraceSource


class Implementations:
    """Two traces of one model in the code of two hands.

    Raises:
        ConfigError: the map cannot be read.
    """

    def __init__(self, target: TraceSource, reference: TraceSource, mapping: Path | None) -> None:
        self._traces = target, reference
        self._given = None if mapping is None else read_mapping(mapping)
        self._layouts = LayoutBook()
        self._bridges: dict[tuple[int, int], Bridge] = {}

    def match(self, target: StepTables, reference: StepTables, pair: StepPair) -> StepMatch:
        """The pairs of a step, with the layouts of all that need one."""
        ranks = pair.rank, pair.reference_rank
        if ranks not in self._bridges:
            self._bridges[ranks] = build_bridge(
                *self._traces, (target, reference), rank=ranks[0], reference_rank=ranks[1], given=self._given
            )
        match = match_step(target, reference, self._bridges[ranks])
        return self._layouts.applied(match, (target, reference), self._traces, pair)

    def counterparts(self, rank: int) -> dict[str, str]:
        """Modules of the target -> those of the reference that do the same."""
        known = [bridge for (one, _), bridge in self._bridges.items() if one == rank]
        return known[0].modules.reference_of() if known else {}
