"""The first record that exceeds its tolerance, with what was seen before it in its step and rank."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.makers import made_by_one
from trueup.comparing.metrics import Metrics
from trueup.comparing.owner import (
    argument_differences,
    argument_of_owner,
    arguments_at,
    class_of_owner,
    dtype_differences,
    owner_around,
    owner_of_row,
)
from trueup.comparing.pairing import StepPair
from trueup.comparing.record_row import JudgedRow
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.sites import module_column
from trueup.matching.codes import Codes
from trueup.matching.operands import OPERANDS, has_two_operands
from trueup.numerics.dtypes import unit_roundoffs
from trueup.store.same_rows import MASK, POSITION
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import EvidenceCode
from trueup.types.reason import Reason, reason

_EMBEDS = re.compile(r"(^|[._])(emb|embed\w*|wte|\w*embeddings?)$", re.IGNORECASE)
"""names of modules that look ids up, whatever their class is called"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preceding:
    """How the preceding records of a step agree."""

    equal: int
    within: int
    exceeding: int
    worst_score: float | None = None
    """of those within tolerance"""
    worst_site: str | None = None


@dataclass(slots=True, kw_only=True)
class First:
    """The first record of a phase that exceeds its tolerance, or the likeliest origin."""

    step: int
    rank: int
    order: int
    row: JudgedRow
    owner: str | None
    before: Preceding
    arguments: list[Reason]
    """calls up to it with arguments that differ"""
    argument: Reason | None
    """the argument that is the cause"""
    dtypes: list[Reason]
    """records up to it with dtypes that differ"""
    unpaired_inputs: list[Reason] = field(default_factory=list)
    """inputs of its call, or of the module call around it, that one run alone has"""
    given_apart: list[str] = field(default_factory=list)
    """inputs of the model's call that differ, where it is one of them: tensors before single numbers"""
    ids: list[Reason] = field(default_factory=list)
    """ids of one run beyond the rows of an embedding, where the first difference is an input"""
    classes: Reason | None = None
    """the class of the module charged with it, where the two runs use one class in another's place"""
    made: Reason | None = None
    """the call of one run alone that made it, or the functions that stand in each other's place"""
    why: list[Reason] = field(default_factory=list)
    """why it is called an origin"""
    likelihood: tuple[bool, int, int] = (True, 0, 0)
    weight: str | None = None
    """of a collective that no module called: the first weight whose gradient differs with it; of another call
    outside of the model: the weight whose gradient it took"""

    def name_weight(self, rows: StepRows, origins: Codes) -> None:
        """Find ``weight`` for a record outside every module; ``origins`` are rows."""
        if self.owner is not None:
            return
        if self.row.phase == "collective":
            self._name_carried(rows, origins)
        elif self.row.kind == "api":
            self._name_held(rows)

    def _name_carried(self, rows: StepRows, origins: Codes) -> None:
        """What a collective of the training step carried: the first weight whose gradient differs after
        it."""
        gradients = origins[rows.phase_is("param_grad")[origins] & (origins > self.order)]
        if len(gradients):
            self._take_weight(rows, int(gradients[0]))

    def _name_held(self, rows: StepRows) -> None:
        """The weight whose gradient, as backward left it in the reference, a call outside of the model took
        (clipping, a norm)."""
        summary = rows.reference.summary[self.order]
        same = rows.phase_is("param_grad") & (rows.reference.summary == summary)
        held = np.flatnonzero(same & (rows.target.call >= 0)) if summary >= 0 else np.zeros(0, np.int64)
        if len(held):
            self._take_weight(rows, int(held[0]))

    def _take_weight(self, rows: StepRows, row: int) -> None:
        self.weight = rows.match.words.name[rows.match.target.plain[rows.target.call[row]]]
        self.owner = owner_of_row(rows, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStep:
    """One step of one rank, compared."""

    pair: StepPair
    rows: StepRows
    metrics: Metrics
    judgement: Judgement
    table: pa.Table
    """what is written of it"""

    @property
    def at(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Step and rank on both sides."""
        pair = self.pair
        return (pair.step, pair.rank), (pair.reference_step, pair.reference_rank)


def first_of_rows(judged: JudgedStep, row: int) -> First:
    """One row with its causes."""
    rows, table = judged.rows, judged.table
    owner = owner_around(rows, row)
    outside = owner is None and bool(rows.kind_is("api")[row])  # a function's input is none of the model
    arguments = argument_differences(rows, row)
    columns = {column: table[column][row].as_py() for column in table.column_names}
    return First(
        step=judged.pair.step,
        rank=judged.pair.rank,
        order=row,
        row=JudgedRow.from_columns(columns, judged.judgement.reasons.get(row)),
        owner=owner,
        before=_preceding(judged.judgement, table, row),
        arguments=[arguments_at(rows, call, found) for call, found in arguments.items()],
        argument=argument_of_owner(rows, row, owner, arguments),
        dtypes=dtype_differences(rows, row),
        unpaired_inputs=[] if outside else _inputs_of_one_side(rows, row, owner),
        given_apart=_given_apart(judged, row),
        classes=class_of_owner(rows, row, owner),
        made=made_by_one(rows, row, owner),
        ids=_ids_beyond(rows) if _is_input(rows, row) else [],
    )


def _is_input(rows: StepRows, row: int) -> bool:
    return bool((rows.phase_is("forward") & rows.slot_starts("input"))[row])


def _given_apart(judged: JudgedStep, row: int) -> list[str]:
    """Inputs of the same call that differ, or have another shape."""
    rows = judged.rows
    same = rows.paired & (rows.target.call == rows.target.call[row])
    given = same & rows.phase_is("forward") & rows.slot_starts("input")
    if not given[row]:
        return []
    given &= ~np.isin(judged.judgement.status, (EQUAL, WITHIN))
    given &= (judged.judgement.status != UNDECIDED) | (rows.target.shape != rows.reference.shape)
    apart = np.flatnonzero(given).tolist()
    apart.sort(key=lambda one: int(rows.target.numel[one]) == 1)
    return [rows.match.words.slot[rows.slot[one]].partition(".")[2] for one in apart]


def _ids_beyond(rows: StepRows) -> list[Reason]:
    """Whole numbers given to an embedding that has fewer rows, or negative ones, by one run alone: where both
    give larger ones each rank holds a part of the vocabulary."""
    codes, names = module_column(rows)
    words, types = rows.match.words, rows.of_call("type")
    embeds = np.array(["emb" in word.lower() for word in words.type] + [False])[types]
    embeds |= np.array([_EMBEDS.search(name) is not None for name in names] + [False])[codes]
    whole = np.array([word.startswith(("int", "uint")) for word in words.dtype] + [False])
    given = rows.paired & rows.phase_is("forward") & rows.slot_starts("input") & embeds
    given &= rows.kind_is("module") & whole[rows.target.dtype] & whole[rows.reference.dtype]
    tables = rows.paired & rows.phase_is("param")
    found = []
    for row in np.flatnonzero(given).tolist():
        shapes = [words.shape[code] for code in rows.target.shape[tables & (codes == codes[row])].tolist()]
        sizes = [int(shape[0]) for shape in shapes if len(shape) == 2]
        over = {
            side: int(value)
            for side, half in (("target", rows.target), ("reference", rows.reference))
            for word in ("minimum", "maximum")
            if sizes and ((value := float(half.statistics[word][row])) < 0 or value >= sizes[0])
        }
        if len(over) == 1:
            ((side, value),) = over.items()
            module = names[codes[row]]
            found.append(reason(EvidenceCode.ID_BEYOND, side=side, value=value, module=module, size=sizes[0]))
    return found


# In one piece: one condition an input that is none of one side.
def _inputs_of_one_side(rows: StepRows, row: int, owner: str | None) -> list[Reason]:
    """What the model is given in one run alone, or ``owner``, a module inside it."""
    if rows.match.bridge is not None or not rows.paired[row]:
        return []
    parents = rows.match.target.parent, rows.match.reference.parent
    calls = int(rows.target.call[row]), int(rows.reference.call[row])
    if min(calls) < 0:
        return []
    around = [(call, int(parent[call])) for call, parent in zip(calls, parents, strict=True)]
    inputs = rows.phase_is("forward") & rows.slot_starts("input") & ~rows.paired
    found = []
    halves = rows.target, rows.reference
    for side, half, other, own, others in zip(
        ("target", "reference"), halves, halves[::-1], around, around[::-1], strict=True
    ):
        at = inputs & (half.record >= 0) & np.isin(half.call, [call for call in own if call >= 0])
        at &= ~_of_other_loss(rows) & ~_counting_positions(rows, half) & ~_beside_a_number(rows, half)
        if _hides_nothing(rows, other, row):
            at &= ~(_named_mask(rows) & ~_of_model(rows, half))
        if rows.reference.numel[row] > 1:  # a single number, a count say, is what a loss is made with
            at &= half.numel != 1
        beside = inputs & (other.record >= 0) & np.isin(other.call, [call for call in others if call >= 0])
        at &= ~_passed_otherwise(rows, half, other, at, beside)
        names = [rows.match.words.slot[code].partition(".")[2] for code in rows.slot[at].tolist()]
        masks = _masks_given(rows, side, half, inputs)
        if len(masks) == 1:  # what a module inside gets by place, or as a mask, was made of it
            names = [masks[0] if name.isdecimal() or MASK in name else name for name in names]
        of_model = rows.slot[inputs & (half.record >= 0) & _of_model(rows, half)].tolist()
        given = {rows.match.words.slot[code].partition(".")[2] for code in of_model}
        found += [
            reason(
                EvidenceCode.INPUT_OF_ONE_SIDE,
                side=side,
                name=name,
                module="" if name in given else owner or "",
            )
            for name in dict.fromkeys(names)
        ]
    return found


def _beside_a_number(rows: StepRows, half: Half) -> Bools:
    """Operands in whose place the other side has a number: an argument, which is a finding of its own."""
    names = np.array([has_two_operands(word) for word in rows.match.words.name] + [False])
    operands = rows.slot_is(OPERANDS[0]) | rows.slot_is(OPERANDS[1])
    return np.asarray(rows.kind_is("api") & operands & names[half.side.name[half.call]])


def _passed_otherwise(rows: StepRows, half: Half, other: Half, at: Bools, beside: Bools) -> Bools:
    """Rows ``at`` of one side whose content the other side has under another name among the inputs
    ``beside``: given by its place or in a tuple instead of by name, once instead of for every row of a batch.

    Content is smallest, largest, mean and mean square, to four roundings of the coarser dtype; numbers that
    are all alike are of the same content where they are as many.
    """
    roundoffs = unit_roundoffs(rows.match.words.dtype)
    found = np.zeros(len(rows), bool)
    for row in np.flatnonzero(at).tolist():
        for held in np.flatnonzero(beside).tolist():
            own, its = _content(half, row), _content(other, held)
            times = np.divide(*sorted((half.numel[row], other.numel[held]), reverse=True))
            if not times.is_integer() or (own[0] == own[1] and times != 1):
                continue
            each = np.nan_to_num([roundoffs[half.dtype[row]], roundoffs[other.dtype[held]]])
            if np.allclose(own, its, rtol=0, atol=4 * each.max() * np.abs(its).max()):
                found[row] = True
    return found


def _content(half: Half, row: int) -> Floats:
    """Smallest, largest, mean and root of the mean square of a tensor."""
    held = half.statistics
    each = [held[name][row] for name in ("minimum", "maximum", "mean", "l2_norm")]
    return np.array([*each[:3], each[3] / np.sqrt(half.numel[row])])


def _named_mask(rows: StepRows) -> Bools:
    return np.array([MASK in word for word in rows.match.words.slot] + [False])[rows.slot]


def _of_model(rows: StepRows, half: Half) -> Bools:
    """Of the outermost modules."""
    parent = (rows.match.target if half is rows.target else rows.match.reference).parent
    found: Bools = (half.call >= 0) & (parent[half.call] < 0) & rows.kind_is("module")
    return found


def _hides_nothing(rows: StepRows, half: Half, row: int) -> bool:
    """Whether the masks given to a model in a microbatch show every token: models make none of them for what
    is inside."""
    at = rows.phase_is("forward") & rows.slot_starts("input") & _named_mask(rows) & (half.record >= 0)
    at &= _of_model(rows, half) & (rows.microbatch == rows.microbatch[row])
    shown = np.isclose(half.statistics["l2_norm"][at] ** 2, half.numel[at])  # of ones
    return bool(at.any()) and bool(shown.all())


def _counting_positions(rows: StepRows, half: Half) -> Bools:
    """Positions that count from 0 along the last dim: what a model takes by itself where it is given none."""
    words = rows.match.words
    named = np.array([POSITION in word for word in words.slot] + [False])[rows.slot]
    widths = np.array([shape[-1] if shape else 1 for shape in words.shape] + [1], float)[half.shape]
    held, times = half.statistics, np.nan_to_num(half.numel) / np.maximum(widths, 1)
    counting = (held["minimum"] == 0) & (held["maximum"] == widths - 1)
    counting &= np.isclose(held["mean"], (widths - 1) / 2)
    squares = times * (widths - 1) * widths * (2 * widths - 1) / 6
    return np.asarray(named & counting & np.isclose(held["l2_norm"] ** 2, squares))


def _masks_given(rows: StepRows, side: str, half: Half, inputs: Bools) -> list[str]:
    """Masks that one run alone gives the model itself, by name."""
    match = rows.match
    parent = (match.target if side == "target" else match.reference).parent
    at = inputs & (half.record >= 0) & (parent[half.call] < 0)
    names = [match.words.slot[code].partition(".")[2] for code in rows.slot[at].tolist()]
    return [name for name in dict.fromkeys(names) if MASK in name]


def _of_other_loss(rows: StepRows) -> Bools:
    """Labels that one model is given and the other run's loss takes outside its model."""
    made = rows.paired & rows.phase_is("loss") & ~rows.slot_is("value")
    labels = np.array(["label" in word for word in rows.match.words.slot] + [False])[rows.slot]
    return np.asarray(labels & made.any())


def _preceding(verdict: Judgement, table: pa.Table, row: int) -> Preceding:
    status, score = verdict.status[:row], verdict.score[:row]
    within = np.flatnonzero(status == WITHIN)
    worst = int(within[np.argmax(np.nan_to_num(score[within]))]) if len(within) else None
    return Preceding(
        equal=int((status == EQUAL).sum()),
        within=len(within),
        exceeding=int((status == DIFFERENT).sum()),
        worst_score=None if worst is None else float(score[worst]),
        worst_site=None if worst is None else table["site"][worst].as_py(),
    )
