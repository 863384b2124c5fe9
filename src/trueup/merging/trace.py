"""A trace of many ranks that reads as that of one process: rank 0 has whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trueup.errors import TraceError
from trueup.merging.nodes import Values
from trueup.merging.ranks import RankStep, num_microbatches
from trueup.merging.scalars import merged_scalars
from trueup.merging.step import MergedStep, copies_reason, merge_step
from trueup.merging.tree import Functions
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepTables, StepView, StoredTensor, TraceSource, step_view
from trueup.types.arrays import Ints
from trueup.types.codes import MergingCode
from trueup.types.layout import Layout, bare_name
from trueup.types.reason import Reason, reason
from trueup.types.trace import ParameterFacts, RankFacts, ScalarLine, SummaryRow

_EXAMPLES = 3
_STEPS_HELD = 2
"""an update is read beside the state that the step before left"""


Numbers = Callable[[int], Mapping[int, int] | None]
"""of a step -> its microbatches' numbers"""


class MergedTrace:
    """What comparison asks of a trace, answered for the whole model; two steps are held at a time.

    Args:
        source: with a rank for each process of the layout.
        layout: of the run.
        fold: microbatches of a step that are compared as one.
        functions: of the framework, of which wholes are made.
        numbers: of a step's microbatches, by which they are compared where these are not their own.
    """

    def __init__(
        self,
        source: TraceSource,
        layout: Layout,
        fold: int = 1,
        functions: Functions = Functions.ALL,
        numbers: Numbers = lambda step: None,
    ) -> None:
        self.path, self.layout, self.manifest = source.path, layout, source.manifest
        self._source, self.fold, self._functions, self._numbers = source, fold, functions, numbers
        self._held: dict[int, MergedStep] = {}
        """the step last asked for at the end"""
        self.notes: dict[Reason, None] = {}

    def steps(self) -> dict[int, list[int]]:
        """Steps that every rank has."""
        ranks = set(range(self.layout.size))
        return {step: [0] for step, held in self._source.steps().items() if ranks <= set(held)}

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of the whole.

        Raises:
            TraceError: a rank lacks the step.
        """
        return self.merged(step).tables

    def merged(self, step: int) -> MergedStep:
        """The step with the trees behind its tensors.

        Raises:
            TraceError: a rank lacks the step.
        """
        found = self._held.pop(step, None)
        if found is None:
            while len(self._held) >= _STEPS_HELD:
                del self._held[next(iter(self._held))]
            found = self._merge(step)
        self._held[step] = found
        return found

    def _merge(self, step: int) -> MergedStep:
        if step not in self.steps():
            raise TraceError(
                f"{self.path}: step {step} is not whole: of {self.layout.size} processes "
                f"{len(self._source.steps().get(step, []))} have it"
            )
        numbers = self._numbers(step)
        ranks = [
            RankStep(StepView(self._source, self._source.read(step, rank)), self.layout, self.fold, numbers)
            for rank in range(self.layout.size)
        ]

        def read(rank: int, row: SummaryRow) -> Values | None:
            stored = self._source.tensor(step, rank, row)
            if stored is None or stored.dtype not in DTYPES:
                return None
            return stored.data.view(np.dtype(DTYPES[stored.dtype].storage)).reshape(stored.shape)

        found = merge_step(step, ranks, self.layout, read, self._functions)
        self._note(found)
        return found

    def _note(self, found: MergedStep) -> None:
        notes = list(found.notes)
        if found.unfit:
            examples = found.unfit[:_EXAMPLES]
            notes.append(reason(MergingCode.RECORDS_NOT_MERGED, *examples, records=len(found.unfit)))
        for name, copies in found.copies[:_EXAMPLES]:
            parts = copies_reason(copies).parts
            notes += [reason(MergingCode.COPIES_OF_TENSOR_DIFFER, part, record=name) for part in parts]
        if len(found.copies) > _EXAMPLES:
            notes.append(reason(MergingCode.COPIES_DIFFER, tensors=len(found.copies)))
        self.notes.update(dict.fromkeys(notes))

    def copies_apart(self, step: int, record: int) -> tuple[str, tuple[int, ...]] | None:
        """Axis along which the copies behind a record differ, and the ranks whose copy is not the first's."""
        found = self.merged(step).apart.get(record)
        if found is None:
            return None
        first = found.differing[0].axis
        ranks = {rank for axis, some, _ in found.differing if axis == first for rank in some}
        return first, tuple(sorted(ranks))

    def owners(self, step: int, summary: int) -> Ints | None:
        """The rank that recorded each element of a row of summaries; None where several made it together."""
        node = self.merged(step).nodes.get(summary)
        return None if node is None else node.owners()

    @property
    def parts(self) -> TraceSource:
        """The trace of the ranks as they are."""
        return self._source

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """Put together when asked for."""
        chunk = summary.get("chunk")
        if summary.get("tensor") is None or chunk is None:
            return None
        node = self.merged(step).nodes[chunk]
        values = node.values()
        if values is None:
            return None
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return StoredTensor(dtype=summary["dtype"], shape=tuple(summary["shape"]), data=data)

    def scalars(self, rank: int) -> list[ScalarLine]:
        """Those of the whole run."""
        lines = [self._source.scalars(number) for number in range(self.layout.size)]
        return merged_scalars(lines, self.layout, self.fold, self._numbers)

    def rank_facts(self, rank: int) -> RankFacts:
        """Those of rank 0, with the parameters of all."""
        facts = self._source.rank_facts(0)
        table: dict[str, ParameterFacts] = {}
        for number in range(self.layout.size):
            one = self._source.rank_facts(number)
            roots = one.get("roots") or []
            for entry in one.get("parameters") or []:
                name = bare_name(entry["fqn"], roots)
                tied = entry.get("tied_to")
                bare_tied = None if tied is None else bare_name(tied, roots)
                table.setdefault(name, {**entry, "fqn": name, "tied_to": bare_tied, "content": None})
        return {**facts, "parameters": list(table.values()), "coordinate": {}}

    def missing(self, rank: int) -> list[str]:
        """What is missing of any rank behind the whole."""
        return [sentence for number in range(self.layout.size) for sentence in self._source.missing(number)]


def microbatches_of(source: TraceSource, layout: Layout, step: int) -> int:
    """Microbatches of a step over all ranks that read different samples."""
    return num_microbatches(step_view(source, step, 0).tables, layout) * layout.num_batches
