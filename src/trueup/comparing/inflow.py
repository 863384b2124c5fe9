"""What every record was made from, as far as a trace tells, and the largest error among it.

=====================  ==========================================================================
record                 made from
=====================  ==========================================================================
same contents before   the record that had them first: a tensor passed on is not a new one
input of a call        what entered the enclosing call, what its earlier calls returned, its own
                       parameters (the enclosing module's own code made it)
output of a call       the call's inputs and parameters; of a module, also what its calls returned;
                       where its inputs were not captured, what an input may be made from
gradient at an output  gradients at the enclosing call's outputs, gradients its later calls sent
                       back, the activations of all of them; of what the enclosing call returns as
                       it is, what the gradient at that call's output is made from
gradient at an input   gradients at the call's outputs, its activations and parameters, and what
                       the calls inside sent back
parameter's gradient   gradients and activations of the modules that use it; accumulated: those of
                       the microbatches; clipped: the accumulated one
loss                   what the roots returned, labels and mask
=====================  ==========================================================================

At top level the "enclosing call" is the microbatch. Where no module's tensors were captured (level L1) it is
everything before in the microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from trueup.comparing.rows import Half, StepRows
from trueup.matching.codes import Codes
from trueup.types.arrays import Bools, Floats

_Owners = tuple[Codes, Codes]
"""rows, and for each the name of a module that owns its parameter"""
_STATISTICS = ("minimum", "maximum", "mean", "l2_norm")


@dataclass(slots=True)
class Inflow:
    """The structure of one step's rows, worked out once; ``largest`` then takes any column."""

    rows: StepRows
    tied: Mapping[str, str] = field(default_factory=dict)
    """parameter -> the name its tensor is recorded under, for parameters that share one"""
    first: Codes = field(init=False)
    """row that had the same contents first"""
    _call: Codes = field(init=False)
    _parent: Codes = field(init=False)
    _grouped: tuple[Codes, Codes] = field(init=False)
    """rows by the call that encloses their calls, and for each where the rows of that call begin"""
    _module: Codes = field(init=False)
    """per call, and at the end: the name of a module, -1 of what is none"""
    _owners: tuple[_Owners, _Owners] = field(init=False)
    _returned: tuple[Codes, Codes] = field(init=False)
    """rows of gradients at outputs that an enclosing call returns as they are, and its rows for them"""
    _composite: Bools = field(init=False)
    """per call: calls inside it were captured"""

    def __post_init__(self) -> None:
        rows = self.rows
        side = rows.match.target
        self.first = first_seen(rows)
        num = side.num_calls
        self._call = np.where(rows.target.call >= 0, rows.target.call, num)
        parent = np.append(side.parent, -1)
        modules = rows.kind_is("module") & rows.phase_is("forward")
        known = np.zeros(num + 1, bool)
        known[self._call[modules]] = True
        if not modules.any():
            parent = np.full(num + 1, -1)
        self._parent = np.where(parent >= 0, parent, num)
        around = np.where(self._parent[self._call] < num, self._parent[self._call], -2 - rows.microbatch)
        order = np.argsort(around, kind="stable")
        place = np.arange(len(order))
        begins = np.diff(around[order], prepend=around[order[:1]]) != 0
        self._grouped = (order, np.maximum.accumulate(np.where(begins, place, 0)))
        self._composite = np.zeros(num + 1, bool)
        returned = rows.phase_is("forward") & rows.slot_starts("output")
        self._composite[np.append(side.parent, -1)[self._call[returned]]] = True
        self._composite[num] = False
        self._module = np.append(np.where(self._is_module(), side.plain, -1), -1)
        self._owners = self._owners_of_parameters()
        self._returned = self._gradients_returned()

    def _gradients_returned(self) -> tuple[Codes, Codes]:
        """One tensor is the output of a call and of those around it: its gradient comes to the one inside
        first. Each row of such a call, with that of the outermost. None in a process without a loss: a stage
        of a pipeline receives them from the next, whose trace has what they are made of."""
        if not self.rows.phase_is("loss").any():
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        at = self.rows.phase_is("backward") & self.rows.slot_starts("output")
        again = np.flatnonzero(at & (self.first < np.arange(len(self.rows))) & at[self.first])
        outermost: dict[int, int] = {}
        for row in again.tolist():
            inside, around = int(self.first[row]), int(self._call[row])
            call = int(self._parent[self._call[inside]])
            while call not in (around, len(self._parent) - 1):
                call = int(self._parent[call])
            if call == around:
                outermost[inside] = row
        return np.array([*outermost], np.int64), np.array([*outermost.values()], np.int64)

    def largest(self, values: Floats) -> Floats:
        """The largest of ``values`` among what each row was made from; 0 where nothing is known of it."""
        rows = self.rows
        given = np.where(np.isnan(values), 0.0, values)
        forward, backward = rows.phase_is("forward", "collective"), rows.phase_is("backward")
        inputs, outputs = rows.slot_starts("input"), rows.slot_starts("output")
        entered = self._by_call(forward & inputs, given)
        returned = self._by_call(forward & outputs, given)
        arriving = self._by_call(backward & outputs, given)
        leaving = self._by_call(backward & inputs, given)
        own, below = self._parameters(given)
        inside = np.maximum(self._of_children(entered), self._of_children(returned))
        inside_back = self._of_children(leaving)
        call, parent = self._call, self._parent[self._call]
        top = parent == len(entered) - 1
        activations = np.maximum(entered, inside)
        made = np.zeros(len(rows))

        at = forward & inputs
        before = self._running(forward & outputs, given)
        around = np.where(top, 0.0, np.maximum(entered, own)[parent])
        made[at] = np.maximum(before, around)[at]

        unseen = ~self._has(forward & inputs)
        entered = np.where(unseen, self._around(forward & outputs, before, around), entered)
        at = forward & outputs
        from_parts = np.maximum(np.maximum(entered, own), inside)
        made[at] = np.where(self._composite, from_parts, np.maximum(entered, below))[call[at]]

        at = rows.phase_is("loss")
        made[at] = self._running(at | (forward & outputs), given)[at]

        at = backward & outputs
        sent = self._running(backward & inputs, given)
        outside = np.maximum(self._running(rows.phase_is("loss") | (forward & outputs), given), sent)
        around = np.maximum(np.maximum(arriving, activations), own)[parent]
        made[at] = np.where(top, outside, np.maximum(sent, around))[at]

        at = backward & inputs
        within = np.where(self._composite, np.maximum(inside, inside_back), 0.0)
        parts = [arriving, entered, returned, within, below]
        made[at] = np.maximum.reduce(parts)[call[at]]

        used = np.maximum.reduce([arriving, entered, within])
        seen = self._has(rows.paired & (forward | backward))
        self._of_gradients(made, given, used, seen)
        inside, outermost = self._returned
        made[inside] = made[outermost]
        again = self.first < np.arange(len(rows))
        made[again] = given[self.first[again]]
        return made

    def _has(self, chosen: Bools) -> Bools:
        """Per call: whether it has chosen rows."""
        has = np.zeros(len(self._parent), bool)
        has[self._call[chosen]] = True
        has[-1] = True
        return has

    def _around(self, chosen: Bools, before: Floats, around: Floats) -> Floats:
        """Per call whose inputs were not captured: what may have gone into it."""
        return self._by_call(chosen, np.maximum(before, around))

    def _by_call(self, chosen: Bools, values: Floats) -> Floats:
        """Per call, and 0 for none at the end."""
        largest = np.zeros(len(self._parent))
        np.maximum.at(largest, self._call[chosen], values[chosen])
        largest[-1] = 0.0
        return largest

    def _of_children(self, by_call: Floats) -> Floats:
        largest = np.zeros(len(by_call))
        parents = np.append(self.rows.match.target.parent, -1)
        np.maximum.at(largest, parents, by_call)
        largest[-1] = 0.0
        return largest

    def _running(self, chosen: Bools, values: Floats) -> Floats:
        """For every row the largest of the chosen ones before it in its group: of 1, 2, 4, ... rows."""
        order, begin = self._grouped
        place = np.arange(len(order))
        reached = np.where(chosen, values, 0.0)[order]
        reached[1:] = np.where(place[1:] > begin[1:], reached[:-1], 0.0)
        reached[:1] = 0.0
        width, longest = 1, int((place - begin).max(initial=0))
        while width < longest:
            of_group = place[width:] - width >= begin[width:]
            reached[width:] = np.maximum(reached[width:], np.where(of_group, reached[:-width], 0.0))
            width *= 2
        before = np.zeros(len(order))
        before[order] = reached
        return before

    def _parameters(self, values: Floats) -> tuple[Floats, Floats]:
        """Per call the largest over the parameters its module owns, and over all below it."""
        found = []
        for row, word in self._owners:
            largest = np.zeros(len(self.rows.match.words.name) + 1)
            np.maximum.at(largest, word, np.maximum(values[row], 0.0))
            found.append(largest[self._module])
        return found[0], found[1]

    def _owners_of_parameters(self) -> tuple[_Owners, _Owners]:
        """Rows of parameters, each with the name of the module that owns it, and with those above it too."""
        rows, words = self.rows, self.rows.match.words.name
        known = {word: at for at, word in enumerate(words)}
        own: list[tuple[int, int]] = []
        below: list[tuple[int, int]] = []
        chosen = rows.phase_is("param") & (rows.target.call >= 0)
        names = rows.match.target.plain
        for row in np.flatnonzero(chosen).tolist():
            for name in self._names(words[names[rows.target.call[row]]]):
                owner = name.rpartition(".")[0]
                own.append((row, known.get(owner, -1)))
                while True:
                    below.append((row, known.get(owner, -1)))
                    if not owner:
                        break
                    owner = owner.rpartition(".")[0]
        pairs = (np.array(one, np.int64).reshape(-1, 2) for one in (own, below))
        first, second = ((one[one[:, 1] >= 0, 0], one[one[:, 1] >= 0, 1]) for one in pairs)
        return first, second

    def _is_module(self) -> Bools:
        words = np.array([word == "module" for word in self.rows.match.words.kind] + [False])
        return np.asarray(words[self.rows.match.target.kind])

    def _names(self, recorded: str) -> list[str]:
        return [recorded, *(name for name, first in self.tied.items() if first == recorded)]

    def _of_gradients(self, made: Floats, given: Floats, used: Floats, seen: Bools) -> None:
        """Parameter gradients: by the modules that own the parameter, then from slot to slot.

        A module without a compared record (a fused one that the other side has in parts) tells nothing:
        the one around it does.
        """
        rows, words = self.rows, self.rows.match.words
        gradients = rows.phase_is("param_grad") & (rows.target.call >= 0)
        if not gradients.any():
            return
        by_name: dict[str, float] = {}
        names = rows.match.target.plain
        for at in np.flatnonzero(self._is_module() & seen[:-1]).tolist():
            name = words.name[names[at]]
            by_name[name] = max(by_name.get(name, 0.0), float(used[at]))
        earlier: dict[tuple[int, str], float] = {}
        parts = ("local", "accumulated", "clipped")
        for row in np.flatnonzero(gradients).tolist():
            call, slot = int(rows.target.call[row]), words.slot[rows.slot[row]]
            known = parts[: parts.index(slot)][::-1] if slot in parts else ()
            from_slot = next((earlier[call, part] for part in known if (call, part) in earlier), None)
            if from_slot is None:
                from_slot = max(
                    self._of_owner(name, by_name) for name in self._names(words.name[names[call]])
                )
            made[row] = from_slot
            earlier[call, slot] = max(earlier.get((call, slot), 0.0), float(given[row]))

    @staticmethod
    def _of_owner(parameter: str, by_name: dict[str, float]) -> float:
        """What the module that owns a parameter worked on; of one that is never called, the one around it."""
        owner = parameter.rpartition(".")[0]
        while owner not in by_name:
            if not owner:
                return 0.0
            owner = owner.rpartition(".")[0]
        return by_name[owner]


def first_seen(rows: StepRows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row the first row of the same two contents; itself where a side has none."""
    width = int(rows.reference.summary.max(initial=0)) + 2
    both = (rows.target.summary >= 0) & (rows.reference.summary >= 0)
    target, reference = (contents(half) for half in (rows.target, rows.reference))
    key = np.where(both, target * width + reference, -1 - np.arange(len(rows)))
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


def given_on(rows: StepRows, made: Bools, given: Bools) -> Bools:
    """Rows of ``given`` that hold on both sides, by digest, what one row of ``made`` does."""
    out = np.zeros(len(rows), bool)
    if made.any():
        digests = list(
            zip(*(half.column("digest").to_list() for half in (rows.target, rows.reference)), strict=True)
        )
        those = {digests[row] for row in np.flatnonzero(made).tolist() if None not in digests[row]}
        out[[row for row in np.flatnonzero(given).tolist() if digests[row] in those]] = True
    return out


def contents(half: Half) -> Codes:
    """The first summary of the same digest and dtype, else of the same statistics: a trace read from
    elsewhere repeats them."""
    table = half.tables.summaries
    if not table.height:
        return half.summary
    number = pl.int_range(pl.len(), dtype=pl.Int64).alias("number")
    numbered = table.select("digest", "dtype", *_STATISTICS, number)
    same_bits = pl.col("number").min().over("digest", "dtype")
    known = pl.when(pl.col("digest").is_not_null()).then(same_bits).otherwise("number")
    if numbered["digest"].null_count():
        alike = pl.col("number").min().over("digest", "dtype", *_STATISTICS)
        known = (
            pl.when(pl.col("digest").is_null() & pl.col("l2_norm").is_not_null()).then(alike).otherwise(known)
        )
    codes = numbered.select(known.alias("first"))["first"].to_numpy()
    return np.where(half.summary >= 0, codes[np.maximum(half.summary, 0)], -1)
