"""What ``result.json`` and the rows of ``result.parquet`` hold, by key (docs/result-format.md).

Reasons that stand beside texts (``KEY_reason``) are read by ``types.reason.read_reason``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import NotRequired, Required, TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.types.trace import Manifest

Written = float | Literal["inf", "-inf"] | None
"""a number in a document: NaN is null"""


class SideDocument(TypedDict, total=False):
    """One of the two runs."""

    path: str
    manifest: Manifest


class VerdictDocument(TypedDict, total=False):
    """``verdict``; its text is read as reasons."""

    outcome: Literal["agree", "differ", "undecided"]
    exit_code: int
    headline: str
    where: str | None
    owner: str | None
    step: int | None
    rank: int | None
    phase: str | None
    confidence: float | None
    confidence_word: Literal["certain", "likely", "possible"] | None
    next: str | None
    next_note: str | None


class UnmatchedDocument(TypedDict):
    """Unmatched records of one call."""

    side: str
    module: str | None
    name: str
    count: int


class CountsDocument(TypedDict, total=False):
    """``counts``: numbers of records by status."""

    compared: int
    equal: int
    within_noise: int
    propagated: int
    amplified: int
    origin: int
    num_unmatched: int
    undecided: int
    different: int
    by_phase: Mapping[str, Mapping[str, int]]
    unmatched: Sequence[UnmatchedDocument] | int
    """of some documents of version 1 how many there are; then the groups lie beside ``counts``"""
    num_groups: int


class ToleranceDocument(TypedDict, total=False):
    """``tolerance``."""

    formula: str | None
    origin: str | None
    constants: Mapping[str, float]


class ScalarDocument(TypedDict, total=False):
    """One entry of ``scalars``."""

    rank: int
    step: Required[int]
    name: Required[str]
    target: object
    """a number, a truth, a digest as text: as the program gave it"""
    reference: object
    abs_diff: Written
    rel_diff: Written
    beyond: bool | None


class ModuleDocument(TypedDict):
    """One entry of ``modules``."""

    fqn: str
    type: str | None
    order: int
    depth: NotRequired[int]
    worst_forward: NotRequired[Written]
    worst_backward: NotRequired[Written]
    worst_grad: NotRequired[Written]
    status: NotRequired[str]


class PathDocument(TypedDict):
    """A module output in execution order, and how far it is off."""

    order: int
    module: str
    type: str | None
    phase: str
    rel_l2: Written
    tolerance: Written


class DepthDocument(PathDocument):
    """One entry of ``depth``."""

    step: int
    rank: int


class NormDocument(TypedDict):
    """One entry of ``local_norms``."""

    fqn: str
    target: Written
    reference: Written
    rel_diff: Written
    rel_l2: Written


class ResultRow(TypedDict, total=False):
    """One row of ``result.parquet``, as far as reports read it by name."""

    step: int
    rank: int
    order: int
    status: str
    evidence: str
    phase: str
    slot: str
    kind: str | None
    module: str | None
    name: str
    type: str | None
    site: str
    rel_l2: Written
    tolerance: Written
    score: Written
    target_stack: int | None
    reference_stack: int | None


class ResultDocument(TypedDict, total=False):
    """``result.json``, of version 2 or 1."""

    schema_version: int
    target: SideDocument
    reference: SideDocument
    options: Mapping[str, object]
    verdict: VerdictDocument
    firsts: Mapping[str, ResultRow | None]
    counts: CountsDocument
    bracketed: bool
    tolerance: ToleranceDocument
    arbiter: Mapping[str, object] | None
    scalars: Sequence[ScalarDocument]
    modules: Sequence[ModuleDocument]
    depth: Sequence[DepthDocument]
    local_norms: Sequence[NormDocument]
    stacks: Mapping[str, Sequence[Sequence[str]]]
    layouts: Sequence[str]
    notes: Sequence[str]
    by_phase: Mapping[str, Mapping[str, int]]
    """of some documents of version 1, as the next two"""
    unmatched: Sequence[UnmatchedDocument]
    num_groups: int
