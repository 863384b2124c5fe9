"""Versions that belong together (versions.yaml); what the table does not hold is unknown, not wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypedDict, cast

from trueup.checklist.configuration import Configuration
from trueup.checklist.fields import yaml_of
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import Reason, reason

_FIELDS = {
    "mindformers": "mindformers_version",
    "mindspore": "mindspore_version",
    "cann": "cann_version",
    "driver": "driver_version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionVerdict:
    """``together`` is None where the table says nothing of these versions."""

    together: bool | None
    sentence: Reason
    stated: str = ""
    """the versions, by name"""


class VersionTable(TypedDict):
    """``versions.yaml``."""

    as_of: str
    sets: list[dict[str, str]]
    """versions that belong together, by name"""


def table() -> VersionTable:
    """The dated table."""
    return cast(VersionTable, yaml_of("versions.yaml"))


def versions_of(side: Configuration) -> dict[str, str]:
    """The versions of the Ascend stack a side states."""
    return {name: str(side.values[key].value) for name, key in _FIELDS.items() if key in side.values}


def judge_versions(stated: dict[str, str]) -> VersionVerdict | None:
    """Whether two or more stated versions are in one row of the table; None where fewer are stated."""
    if len(stated) < 2:
        return None
    content = table()
    listed = ", ".join(f"{name} {version}" for name, version in stated.items())
    facts = {"names": tuple(stated), "versions": tuple(stated.values()), "as_of": str(content["as_of"])}
    rows = content["sets"]
    if any(all(_alike(row[name], version) for name, version in stated.items()) for row in rows):
        return VersionVerdict(together=True, sentence=reason(Code.ONE_SET, **facts), stated=listed)
    held = [row for row in rows if any(_alike(row[name], version) for name, version in stated.items())]
    known = all(any(_alike(row[name], version) for row in rows) for name, version in stated.items())
    if not known:
        return VersionVerdict(together=None, sentence=reason(Code.UNKNOWN_VERSIONS, **facts), stated=listed)
    sets = [", ".join(f"{name} {row[name]}" for name in _FIELDS) for row in held[:2]]
    return VersionVerdict(together=False, sentence=reason(Code.NO_SET, **facts, sets=sets), stated=listed)


def _alike(left: object, right: object) -> bool:
    """Equal but for case, a leading v, a suffix such as ``.beta1`` or ``-rc1``'s spelling, and what names a
    build of the same release: ``+cpu``, ``.post1``."""
    return _spelled(left) == _spelled(right)


def _spelled(version: object) -> str:
    text = str(version).lower().removeprefix("v").replace("-", ".")
    return re.sub(r"\.post\d+$", "", text.partition("+")[0]).partition(".beta")[0]
