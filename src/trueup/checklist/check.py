"""``trueup check``'s one call: two sides, or one, read, judged and summed up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.data_ids import IGNORED, INPUT_IDS, DataIds, ids_of, ignored_label, judge_ids
from trueup.checklist.dialect import ValueOrigin
from trueup.checklist.fields import dtype_name, fields
from trueup.checklist.judging import DemandRow, DemandStatus, judged
from trueup.checklist.readers import read_side
from trueup.checklist.recommendations import VERSIONS, Unmet, recommendations
from trueup.checklist.rules import SECTIONS, rules
from trueup.checklist.schedule import Schedules, schedules
from trueup.checklist.settings import member
from trueup.checklist.templates import FIELD as TEMPLATE
from trueup.checklist.templates import INFERENCE, is_shown_same, judge_inference
from trueup.checklist.versions import VersionVerdict, judge_versions, versions_of
from trueup.errors import ConfigError

_OPTIMIZER = "optimizer"
_BY_HAND = "template_by_hand"
EXTRA_ROWS = frozenset({VERSIONS, INPUT_IDS, INFERENCE})
"""rows of recommendations that are no rule of rules/*.yaml"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """A setting that differs and that no rule reads; None where a side does not set it."""

    key: str
    target: object
    reference: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """The outcome of one check."""

    target: Configuration
    reference: Configuration | None
    rows: tuple[DemandRow, ...]
    schedules: Schedules
    weighs_schedules: bool
    """whether the optimizer's section is looked at, so that computed learning rates that part count"""
    limited: bool = False
    """whether only some of the sections or fields were looked at"""
    versions: dict[str, VersionVerdict]
    """by side, where two or more versions of the Ascend stack are stated"""
    unmet: tuple[Unmet, ...] = ()
    """recommendations of the guide that are not followed, in the order of the rows"""
    recommends: bool = True
    """whether the guide's recommendations are part of the verdict"""

    @property
    def outcome(self) -> str:
        """``differ`` where either part of the verdict does, else that of the same training."""
        return "differ" if self.advised == "unmet" else self.training

    @property
    def training(self) -> str:
        """Whether both sides describe the same training: ``agree differ undecided``; of one ``agree``.

        ``undecided`` too where no rule reads anything that a file sets.
        """
        if self.reference is None:
            return "agree" if self.limited or self.read_on_all_sides else "undecided"
        if any(row.matters for row in self.rows) or self.rates_part:
            return "differ"
        nothing = not self.limited and not self.read_on_all_sides
        return "undecided" if nothing or self.undecided or self.not_judged else "agree"

    @property
    def read_on_all_sides(self) -> frozenset[str]:
        """Sections of rows that have a value on every side, of which a file sets one."""
        num = 1 if self.reference is None else 2
        stated = (ValueOrigin.SET, ValueOrigin.DERIVED)
        held = (
            (row.section, [c for c in (row.target, row.reference) if c is not None and c.value is not None])
            for row in self.rows
        )
        return frozenset(
            section
            for section, cells in held
            if len(cells) == num and any(cell.origin in stated for cell in cells)
        )

    @property
    def not_judged(self) -> list[NotJudged]:
        """Settings of files of one dialect that differ and that no rule reads; none where only some sections
        are looked at.

        A log or a checkpoint lists every argument, whether a person set it or not: what it alone has is the
        default of the other side, or an argument that its version has not.
        """
        if self.reference is None or self.limited:
            return []
        sides = [_unread_values(side) for side in (self.target, self.reference)]
        listing = [_lists_all(side) for side in (self.target, self.reference)]
        both = [dialect for dialect in sides[0] if dialect in sides[1]]
        return [
            NotJudged(key=key, target=left.get(key), reference=right.get(key))
            for left, right in ((sides[0][dialect], sides[1][dialect]) for dialect in both)
            for key in sorted({*left, *right})
            if _one(key, left.get(key)) != _one(key, right.get(key))
            and not (key not in right and listing[0])
            and not (key not in left and listing[1])
        ]

    @property
    def advised(self) -> str:
        """Whether the guide's recommendations are followed: ``met unmet``, or ``off``."""
        if not self.recommends:
            return "off"
        return "unmet" if any(one.counts for one in self.unmet) else "met"

    @property
    def rates_part(self) -> bool:
        """Whether the computed learning rates part, and that is looked at."""
        return self.weighs_schedules and self.schedules.same is False

    @property
    def exit_code(self) -> int:
        """0 agree, 1 differ, 2 undecided."""
        return {"agree": 0, "differ": 1}.get(self.outcome, 2)

    @property
    def undecided(self) -> list[DemandRow]:
        """Rows that could not be compared though they decide what is trained."""
        open_ = (DemandStatus.NOT_SET, DemandStatus.NOT_COMPARABLE)
        return [row for row in self.rows if row.status in open_ and row.severity == "error" and _stated(row)]

    @property
    def suspects(self) -> list[DemandRow]:
        """Rows in which the frameworks' code computes in two dtypes, as far as it is known: to verify."""
        return [row for row in self.rows if row.status is DemandStatus.SUSPECT]

    def unread(self) -> list[str]:
        """``key (file)`` of settings no canonical field reads."""
        return [f"{key} ({place})" for key, place in self._unread()]

    def unread_by_file(self) -> dict[str, list[str]]:
        """File -> keys of its settings that no canonical field reads."""
        found: dict[str, list[str]] = {}
        for key, place in self._unread():
            found.setdefault(place, []).append(key)
        return {place: list(dict.fromkeys(keys)) for place, keys in found.items()}

    def unread_keys(self) -> set[str]:
        """Keys of settings no canonical field reads."""
        return {key for key, _ in self._unread()}

    def _unread(self) -> list[tuple[str, str]]:
        sides = [self.target] if self.reference is None else [self.target, self.reference]
        every = [translation for side in sides for translation in side.translations]
        return [(key, one.document.path) for one in every for key in one.unread()]


def _unread_values(side: Configuration) -> dict[str, dict[str, object]]:
    """Dialect -> key and value of the settings that no field reads."""
    found: dict[str, dict[str, object]] = {}
    for translation in side.translations:
        values = found.setdefault(translation.document.dialect, {})
        for key in translation.unread():
            values.setdefault(key, translation.document.settings[key].value)
    return found


def _one(key: str, value: object) -> object:
    """The item of a list of one: a log prints ``['local']`` where the command says ``local``; and of a dtype
    its name: ``torch.float32`` and ``fp32`` are one."""
    value = member(value[0] if isinstance(value, list) and len(value) == 1 else value)
    return dtype_name(value) if key.endswith("dtype") else value


def _lists_all(side: Configuration) -> bool:
    """Whether the side was read from what lists every argument."""
    return any(document.kind in ("log", "checkpoint") for document in side.documents)


def _stated(row: DemandRow) -> bool:
    """Whether a person set the field on the side that has it."""
    cells = [cell for cell in (row.target, row.reference) if cell is not None]
    return row.status is DemandStatus.NOT_COMPARABLE or any(
        c.origin in (ValueOrigin.SET, ValueOrigin.DERIVED) for c in cells
    )


def check(
    target: Sequence[str],
    reference: Sequence[str] | None = None,
    *,
    only: Collection[str] = (),
    ignore: Collection[str] = (),
    recommend: bool = True,
    data: Sequence[str] = (),
    inference: Sequence[str] = (),
) -> Checklist:
    """Hold one configuration against another, or against the recommendations.

    Args:
        target: files, folders or a command line that together describe the run under question.
        reference: the same for the trusted run; None applies the recommendations alone.
        only: sections or fields to look at; all by default.
        ignore: sections or fields to leave out.
        recommend: whether the guide's recommendations are part of the verdict.
        data: data sets, saved batches or traces whose ids are held against the special ids; traces among
            the sides are looked at in any case.
        inference: what the target is used for inference with, for its template of conversations.

    Raises:
        ConfigError: a file that cannot be read, a section or field that there is not, or nothing to hold
            one side against.
    """
    if reference is None and not recommend:
        raise ConfigError(
            "one side alone is compared with the recommendations: give REFERENCE, or leave out "
            "--no-recommendations"
        )
    for names in (only, ignore):
        _check_names(names)
    left = configured(read_side(target))
    right = None if reference is None else configured(read_side(reference))
    found = compared(left, right, only=only, ignore=ignore, recommend=recommend)
    ids = [ids_of(Path(one)) for one in data] + _ids_of_traces(left, right)
    return _with_more(found, ids, configured(read_side(inference)) if inference else None, only, ignore)


def _ids_of_traces(*sides: Configuration | None) -> list[DataIds]:
    """Of the traces among the sides; one that kept no batches says nothing."""
    found = []
    documents = [document for side in sides if side is not None for document in side.documents]
    for document in documents:
        if document.dialect == "trace":
            with suppress(ConfigError):
                found.append(ids_of(Path(document.path)))
    return found


def _with_more(
    found: Checklist,
    ids: Sequence[DataIds],
    inference: Configuration | None,
    only: Collection[str],
    ignore: Collection[str],
) -> Checklist:
    """The check with what data and inference say of it."""
    rows = tuple(ignored_label(row, ids) if row.key == IGNORED else row for row in found.rows)
    found = replace(found, rows=rows)
    if not found.recommends or not (ids or inference):
        return found
    more = list(judge_ids(ids, found.target, found.reference))
    if inference is not None:
        if TEMPLATE not in inference.values:
            raise ConfigError(
                f"--inference {inference.name}: no chat template there; expected tokenizer_config.json or "
                "chat_template.jinja of a tokenizer, its folder, or a configuration of MindFormers with one"
            )
        unlike = judge_inference(found.target, inference)
        more += [unlike] if unlike is not None else []
        if unlike is not None or is_shown_same(found.target, inference):
            rows = tuple(row for row in rows if row.key != _BY_HAND)
    kept = [one for one in more if _chosen(one.section, one.key, only, ignore)]
    return replace(found, rows=rows, unmet=(*found.unmet, *kept))


def compared(
    left: Configuration,
    right: Configuration | None,
    *,
    only: Collection[str] = (),
    ignore: Collection[str] = (),
    recommend: bool = True,
) -> Checklist:
    """``check`` of configurations that are read already."""
    rows = [
        row
        for row in judged(left, right)
        if _chosen(row.section, row.key, only, ignore)
        and (recommend or row.status is not DemandStatus.BROKEN)
    ]
    sides = {"target": left} if right is None else {"target": left, "reference": right}
    found = {name: judge_versions(versions_of(side)) for name, side in sides.items()}
    verdicts = {name: verdict for name, verdict in found.items() if verdict is not None}
    judged_versions = verdicts if _chosen("environment", VERSIONS, only, ignore) else {}
    return Checklist(
        target=left,
        reference=right,
        rows=tuple(rows),
        schedules=schedules(left, right),
        limited=bool(only or ignore),
        weighs_schedules=_OPTIMIZER not in ignore and (not only or _OPTIMIZER in only),
        versions=verdicts,
        unmet=recommendations(rows, left, right, judged_versions) if recommend else (),
        recommends=recommend,
    )


def _chosen(section: str, key: str, only: Collection[str], ignore: Collection[str]) -> bool:
    wanted = not only or section in only or key in only
    return wanted and section not in ignore and key not in ignore


def _check_names(names: Collection[str]) -> None:
    keys = {*EXTRA_ROWS, *(rule.key for file in rules().values() for rule in file)}
    for name in names:
        if name not in SECTIONS and name not in keys and name not in fields().all:
            raise ConfigError(
                f"{name!r} is neither a section ({', '.join(SECTIONS)}) nor a field (listed in docs/check.md)"
            )
