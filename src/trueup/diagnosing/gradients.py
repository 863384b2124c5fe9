"""Gradient replay: the reference's gradients enter the target's clipping and optimizer, which are then judged
alone. Also the ``grad_{id}.npy`` files that carry gradients from one framework to another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from trueup.capture.launch import launch
from trueup.capture.options import CaptureOptions
from trueup.diagnosing.translated import TranslatedView, reference_book
from trueup.errors import ConfigError, TraceError
from trueup.importers.npy import read_array
from trueup.matching import match_step
from trueup.matching.bridge import bridge_between
from trueup.store import StepView, TraceSource, step_view
from trueup.store.view import ACCUMULATED, CLIPPED, WEIGHT
from trueup.types.arrays import Array
from trueup.types.trace import OfTheProgram, ScalarLine

PLAN = "plan.json"
_FILE = re.compile(r"grad_(\d+)\.npy$")

_OF_THE_PROGRAM = ("seed", "deterministic", "manual_steps", "first_step", "tracer")
"""options that shape the run itself, taken over from the run that is repeated"""

VALUES = frozenset({"module", "parameter", "labels", "configuration"})
"""what a capture for a diagnosis keeps"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPlan:
    """What was put together for a gradient replay."""

    folder: Path
    step: int
    """of the reference"""
    num_given: int
    unmatched: tuple[str, ...]
    """parameters of the target that have no counterpart with a gradient"""


def run_gradient_replay(
    command: Sequence[str],
    *,
    reference: TraceSource,
    output: Path,
    target: TraceSource | None = None,
    files: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run ``command`` with the reference's gradients in the first captured step; the trace goes to
    ``output``.

    ``target`` is a free run of the same program, which tells how its parameters are called and in which order
    its optimizer holds them; made below ``output`` when none is given. ``files`` are ``grad_{id}.npy`` to
    give in place of the reference trace's own. Returns the command's exit status.

    Raises:
        ConfigError: the command cannot be run, or the gradients do not fit the target.
        TraceError: the reference holds no gradients with values.
    """
    from trueup.importers import open_trace

    known: Mapping[str, object] = (reference if target is None else target).manifest.get("options") or {}
    same = cast("OfTheProgram", {n: known[n] for n in _OF_THE_PROGRAM if known.get(n) is not None})
    options = CaptureOptions(output=output, store_values_of=VALUES, overwrite=overwrite, **same)
    if target is None:
        free = replace(options, output=output / "free")
        status = launch(free, command, say=lambda _: None)
        if status:
            return status
        target = open_trace(free.output)
    plan = build_gradient_plan(reference, target, output / "gradients", files=files)
    if plan.unmatched:
        say(f"{len(plan.unmatched)} parameters keep their own gradient: {', '.join(plan.unmatched[:5])}")
    return launch(replace(options, gradients_from=plan.folder.absolute()), command, say=say)


def build_gradient_plan(
    reference: TraceSource, target: TraceSource, folder: Path, *, files: Path | None = None
) -> GradientPlan:
    """Write the reference's accumulated gradients under the target's names: ``plan.json`` and one safetensors
    file a rank.

    Raises:
        TraceError: the reference keeps no values of gradients, or not one parameter is matched.
        ConfigError: the files do not fit the target's parameters.
    """
    from safetensors.numpy import save_file

    step, reference_ranks = first_step(reference)
    own_step, own_ranks = first_step(target)
    folder.mkdir(parents=True, exist_ok=True)
    bridge = bridge_between(target, reference, (own_step, step), (own_ranks[0], reference_ranks[0]))
    held, unmatched, num_given = [], [], 0
    for rank in own_ranks:
        own_view = step_view(target, own_step, rank)
        book = reference_book(reference, step, min(rank, reference_ranks[-1]), bridge)
        given, absent = _from_files(files, own_view) if files else _from_trace(book, own_view)
        file = f"rank_{rank:05d}.safetensors"
        save_file(given, folder / file)
        line = scalar_line(reference, book.rank, step)
        microbatches = scalar_line(target, rank, own_step).get("microbatches") or 1
        scale = None if files else line.get("loss_scale")
        held.append({"file": file, "absent": absent, "microbatches": microbatches, "loss_scale": scale})
        num_given = max(num_given, len(given))
        if rank == own_ranks[0]:
            unmatched = [fqn for fqn in own_view.parameters if fqn not in given and fqn not in absent]
    if not num_given:
        raise TraceError(
            f"{reference.path} keeps no values of gradients in step {step}; capture it with "
            "--preset diagnose, or with --task tensor"
        )
    plan = {"source": str(files or reference.path), "step": step, "ranks": held}
    (folder / PLAN).write_text(json.dumps(plan, indent=1), encoding="utf-8")
    return GradientPlan(folder=folder, step=step, num_given=num_given, unmatched=tuple(unmatched))


def first_step(source: TraceSource) -> tuple[int, list[int]]:
    """The first captured step and its ranks.

    Raises:
        TraceError: there is none.
    """
    steps = source.steps()
    if not steps:
        raise TraceError(f"{source.path} holds no whole step; capture at least step 0")
    step = min(steps)
    return step, steps[step]


def scalar_line(source: TraceSource, rank: int, step: int) -> ScalarLine:
    """The scalars of one step, empty where there are none."""
    return next((line for line in source.scalars(rank) if line.get("step") == step), ScalarLine())


def _from_trace(book: StepView, target: StepView) -> tuple[dict[str, Array], list[str]]:
    """Gradients by the target's names, and the target's parameters whose counterpart has none."""
    given: dict[str, Array] = {}
    absent = []
    for fqn, other in matched_parameters(target, book).items():
        record = book.parameter(other, *ACCUMULATED)
        value = book.value(record)
        if value is not None:
            given[fqn] = np.ascontiguousarray(value.astype(_width(book.dtype(record))))
        elif record is None and book.parameter(other, *WEIGHT) is not None:
            absent.append(fqn)
    return given, absent


def _width(dtype: str | None) -> str:
    """float64 where the gradient itself has more than a float32 holds."""
    return "float64" if dtype == "float64" else "float32"


def matched_parameters(target: StepView, reference: StepView) -> dict[str, str]:
    """Target's name -> name in the reference's book of each parameter that has a counterpart."""
    if isinstance(reference, TranslatedView):
        held = set(target.parameters)
        return {fqn: fqn for fqn in reference.parameters if fqn in held}
    partners = match_step(target.tables, reference.tables).calls.reference_of.tolist()
    return {
        target.name[call]: reference.name[partners[call]]
        for call in target.calls_of_kind("parameter")
        if partners[call] >= 0
    }


# -- grad_{id}.npy ------------------------------------------


def gradient_files(folder: Path) -> list[Path]:
    """``grad_{id}.npy`` in the order of their numbers, whether those begin at 0 or at 1.

    Raises:
        ConfigError: no such file, or a number is missing.
    """
    found = {int(m.group(1)): path for path in folder.glob("grad_*.npy") if (m := _FILE.search(path.name))}
    if not found:
        raise ConfigError(
            f"{folder} holds no grad_1.npy, grad_2.npy, ... as trueup export --format grads writes"
        )
    missing = sorted(set(range(min(found), max(found) + 1)) - set(found))
    if missing or min(found) > 1:
        raise ConfigError(
            f"{folder}: grad_{(missing or [1])[0]}.npy is missing; expected one file for each parameter"
        )
    return [found[number] for number in sorted(found)]


def _from_files(folder: Path, target: StepView) -> tuple[dict[str, Array], list[str]]:
    """Files are numbered as the optimizer holds its parameters."""
    files = gradient_files(folder)
    names = target.parameters_with(*CLIPPED) or target.parameters_with(*ACCUMULATED)
    if len(files) != len(names):
        raise ConfigError(
            f"{folder} holds {len(files)} gradients, the target's optimizer {len(names)} parameters with one"
        )
    given = {}
    for fqn, path in zip(names, files, strict=True):
        array = read_array(path)
        shape = target.shape(target.parameter(fqn, *ACCUMULATED))
        if shape not in (None, array.shape):
            raise ConfigError(
                f"{path} has the shape {list(array.shape)}, but parameter {fqn} in its place "
                f"{list(shape or ())}: are the files in the order of the target's optimizer?"
            )
        given[fqn] = np.ascontiguousarray(array)
    return given, []


def export_gradients(source: TraceSource, folder: Path) -> int:
    """Write the first captured step's gradients, before clipping and not scaled, as ``grad_1.npy`` and so on
    in the order of the optimizer, with ``grads.json`` naming each; returns how many.

    Raises:
        TraceError: the trace keeps no values of gradients.
    """
    step, ranks = first_step(source)
    book = step_view(source, step, ranks[0])
    scale = scalar_line(source, ranks[0], step).get("loss_scale") or 1.0
    names = book.parameters_with(*CLIPPED) or book.parameters_with(*ACCUMULATED)
    arrays = {fqn: book.value(book.parameter(fqn, *ACCUMULATED)) for fqn in names}
    lacking = [fqn for fqn, array in arrays.items() if array is None]
    if not names or lacking:
        raise TraceError(
            f"{source.path} keeps no values of the gradient of {(lacking or ['any parameter'])[0]} in step "
            f"{step}; capture it with --preset diagnose"
        )
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, (fqn, array) in enumerate(arrays.items(), start=1):
        assert array is not None
        np.save(folder / f"grad_{number}.npy", (array / scale).astype(np.float32))
        listed.append({"file": f"grad_{number}.npy", "parameter": fqn, "shape": list(array.shape)})
    facts = {"step": step, "rank": ranks[0], "gradients": listed}
    (folder / "grads.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return len(listed)
