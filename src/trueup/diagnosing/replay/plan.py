"""Which reference values belong at which place of the target: paired on a free run of the target, written
for the replayed one to follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.diagnosing.replay.plan_step import (
    StepBuilder,
    StepDocument,
    StepPlan,
    left_as_json,
    step_from_json,
)
from trueup.errors import TraceError
from trueup.store import Trace, TraceSource
from trueup.store.checked import as_written, document_from_file
from trueup.store.layout import rank_dir
from trueup.store.parquet import frame_from_parquet
from trueup.store.writer import write_json, write_table
from trueup.wording import text

VERSION = 1
PLAN = "plan.json"
_AGAIN = "Make the replay again"


class PlanDocument(TypedDict):
    """``plan.json``, as far as it is read here."""

    reference: str
    level: str
    inside: Sequence[str]
    steps: Sequence[StepDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan on disk."""

    folder: Path
    reference: Path
    level: str
    inside: tuple[str, ...]
    steps: tuple[StepPlan, ...]


def build_plan(
    target: Trace,
    reference: Trace,
    folder: Path,
    *,
    level: str = "L0",
    inside: Collection[str] = (),
    outputs_of: Collection[str] = (),
    steps: Collection[int] | None = None,
) -> Plan:
    """Pair a free run of the target with the reference and write the plan into ``folder``.

    Args:
        target: a trace of the target as it runs by itself, at the level that is to be forced.
        reference: a trace that holds values.
        folder: where ``plan.json`` and a Parquet file for each step of each rank go.
        level: ``L0`` forces modules, ``L1`` API calls, ``mix`` both.
        inside: with API calls, force only those in the own code of these modules; empty means all.
        outputs_of: force only the outputs of these modules, and the gradients of their inputs; empty: all.
        steps: steps to force; by default the first that both traces have.

    Raises:
        TraceError: the reference holds no values, or the two have no step and rank in common.
    """
    require_values(reference, level)
    chosen = _steps(target, reference, steps)
    plans = []
    for step in chosen:
        ranks = sorted(set(target.steps()[step]) & set(reference.steps()[step]))
        for rank in ranks:
            converted = _converted(folder, step, rank)
            builder = StepBuilder(target, reference, step, rank, level, tuple(inside), converted)
            found = builder.build(outputs_of=frozenset(outputs_of))
            write_table(found.table(), _file(folder, step, rank))
            plans.append(found.plan())
    if not any(p.num_forced for p in plans):
        reasons = "; ".join(f"{text(left.reason)} ({left.count})" for left in plans[0].left[:3])
        raise TraceError(
            f"nothing of {target.path} can be forced with values of {reference.path}: {reasons or 'no pairs'}"
        )
    plan = Plan(
        folder=folder, reference=reference.path, level=level, inside=tuple(inside), steps=tuple(plans)
    )
    write_json(folder / PLAN, _plain(plan, reference))
    return plan


def read_plan(folder: Path) -> Plan:
    """The plan that ``build_plan`` wrote.

    Raises:
        TraceError: there is none.
    """
    path = folder / PLAN
    if not path.exists():
        raise TraceError(f"{folder} holds no plan of a replay; give the folder that trueup replay -o wrote")
    held = document_from_file(path, PlanDocument, version="version", versions=(VERSION,), remedy=_AGAIN)
    with as_written(path, remedy=_AGAIN):
        return Plan(
            folder=folder,
            reference=Path(held["reference"]),
            level=held["level"],
            inside=tuple(held["inside"]),
            steps=tuple(map(step_from_json, held["steps"])),
        )


def plan_rows(folder: Path, step: int, rank: int) -> pl.DataFrame:
    """The rows of one step of one rank."""
    return frame_from_parquet(_file(folder, step, rank), remedy="make the replay again")


def has_module_values(trace: TraceSource) -> bool:
    """Whether a trace holds the values of what modules get and give."""
    options = trace.manifest.get("options") or {}
    everything = trace.manifest.get("task") == "tensor"
    return everything or "module" in (options.get("store_values_of") or ())


def require_values(reference: Trace, level: str = "L0") -> None:
    """Be sure that the trace holds the values of calls of this level.

    Raises:
        TraceError: it does not; the message says how to capture them.
    """
    if not has_module_values(reference):
        raise TraceError(
            f"{reference.path} holds statistics but no values, and a replay writes values into the target. "
            "Capture the reference again with: trueup capture --preset diagnose (or --task tensor)"
        )
    if level != "L0" and not has_api_values(reference):
        raise TraceError(
            f"{reference.path} holds no values of API calls. Capture the reference again with: "
            "trueup capture --level mix --task tensor"
        )


def has_api_values(reference: Trace) -> bool:
    """Whether API calls can be forced too."""
    manifest = reference.manifest
    return manifest.get("task") == "tensor" and manifest.get("level") in ("L1", "mix")


def _steps(target: Trace, reference: Trace, wanted: Collection[int] | None) -> list[int]:
    have_t, have_r = target.steps(), reference.steps()
    common = [s for s in have_t if s in have_r and set(have_t[s]) & set(have_r[s])]
    chosen = common[:1] if wanted is None else [s for s in common if s in wanted]
    if not chosen:
        asked = "" if wanted is None else f" of those asked for ({_listed(wanted)})"
        raise TraceError(
            f"no step in common{asked}: the target {target.path} has {_listed(have_t)}, the reference "
            f"{reference.path} has {_listed(have_r)}. Capture the same steps on both sides."
        )
    return chosen


def _listed(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return ", ".join(map(str, found[:8])) + (" ..." if len(found) > 8 else "") or "none"


def _converted(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step_{step:06d}_rank_{rank:05d}_values"


def _file(folder: Path, step: int, rank: int) -> Path:
    path = folder / f"step_{step:06d}_rank_{rank:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _plain(plan: Plan, reference: Trace) -> dict[str, object]:
    steps = []
    for one in plan.steps:
        values = rank_dir(reference.path.absolute(), one.reference_step, one.reference_rank) / "tensors"
        plain = {name: getattr(one, name) for name in StepPlan.__dataclass_fields__}
        left = list(map(left_as_json, one.left))
        file = _file(plan.folder, one.step, one.rank).name
        converted = str(_converted(plan.folder.absolute(), one.step, one.rank))
        steps.append({**plain, "left": left, "values": str(values), "converted": converted, "file": file})
    return {
        "version": VERSION,
        "reference": str(reference.path.absolute()),
        "reference_run": reference.manifest.get("run_id"),
        "level": plan.level,
        "inside": list(plan.inside),
        "steps": steps,
    }
