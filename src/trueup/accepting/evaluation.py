"""Results of lm-evaluation-harness (0.3 and later): one score a task and metric, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.errors import ConfigError, TraceError
from trueup.store.checked import object_from_cell
from trueup.types.plain import number_from_json

_LOWER = ("perplexity", "bits_per_byte", "ter", "brier_score", "loss", "wer", "edit_distance")
"""metrics that are better when smaller, where the file does not say"""
_NO_METRIC = ("alias", "sample_len", "sample_count", "samples", "name")
_PREFERRED = ("acc_norm", "acc", "exact_match", "pass@1", "mc2")


_Harness = TypedDict(
    "_Harness",
    {
        "results": "Mapping[str, Mapping[str, object]]",
        "group_subtasks": "Mapping[str, list[str] | None] | None",
        "higher_is_better": "Mapping[str, Mapping[str, bool | None] | None] | None",
        "n-samples": "Mapping[str, object] | None",
        "n-shot": "Mapping[str, object] | None",
        "versions": "Mapping[str, object] | None",
        "task_hashes": "Mapping[str, object] | None",
        "config": "Mapping[str, object] | None",
        "chat_template_sha": object,
        "model_name": object,
    },
    total=False,
)
"""what the harness writes, as far as it is read here"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One metric of one task."""

    task: str
    metric: str
    """with its filter, as ``exact_match,strict-match``; the filter ``none`` is left out"""
    value: float
    """NaN or infinite where the file says so: a model that is broken"""
    standard_error: float | None
    higher_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One results file."""

    path: Path
    model: str
    scores: Mapping[tuple[str, str], Score]
    """by task and metric, groups in place of the tasks they sum up"""
    settings: Mapping[str, Mapping[str, object]]
    """task -> what must be alike for scores to be comparable"""

    def primary(self, task: str) -> str | None:
        """The metric a task is usually known by."""
        own = [metric for name, metric in self.scores if name == task]
        known = [m for word in _PREFERRED for m in own if m.partition(",")[0] == word]
        return next(iter([*known, *own]), None)


def read_evaluation(path: Path) -> Evaluation:
    """A results file, or the newest ``results_*.json`` below a folder.

    Raises:
        ConfigError: the file is missing, or not one of lm-evaluation-harness.
    """
    file = _file(path)
    try:
        text = file.read_text(encoding="utf-8")
        content = object_from_cell(text, _Harness, str(file), remedy="evaluate again")
    except (OSError, ValueError, TraceError) as error:
        raise ConfigError(f"{file}: no JSON of lm-evaluation-harness that can be read: {error}") from error
    results = content.get("results")
    if not results:
        raise ConfigError(f"{file}: no results of lm-evaluation-harness: it has no task under `results`")
    summed = _summed_up(content, results)
    scores = {
        (score.task, score.metric): score
        for task, found in results.items()
        if isinstance(found, Mapping) and task not in summed
        for score in _scores(task, found, content)
    }
    if not scores:
        raise ConfigError(f"{file}: none of its {len(results)} tasks has a metric that is a number")
    return Evaluation(
        path=file,
        model=_model(content, file),
        scores=scores,
        settings={task: _settings(content, task) for task, _ in scores},
    )


def _file(path: Path) -> Path:
    if not path.exists():
        raise ConfigError(f"{path}: no such file; expected results of lm-evaluation-harness (--output_path)")
    if not path.is_dir():
        return path
    found = sorted(path.rglob("results*.json"), key=lambda file: file.name)
    if not found:
        raise ConfigError(f"{path}: no results*.json in this folder; name the file")
    return found[-1]


def _summed_up(content: _Harness, results: Mapping[str, Mapping[str, object]]) -> set[str]:
    """Tasks that a group with a score of its own holds."""
    groups = content.get("group_subtasks") or {}
    scored = {
        name for name in groups if groups[name] and any(_scores(name, results.get(name) or {}, content))
    }
    below: set[str] = set()
    todo = [task for name in scored for task in groups[name] or []]
    while todo:
        task = todo.pop()
        if task not in below:
            below.add(task)
            todo += groups.get(task) or []
    return below


def _scores(task: str, found: Mapping[str, object], content: _Harness) -> list[Score]:
    directions = (content.get("higher_is_better") or {}).get(task) or {}
    scores = []
    for key, value in found.items():
        name, _, kind = key.partition(",")
        number = value if isinstance(value, float) else number_from_json(value)
        if name in _NO_METRIC or name.endswith("_stderr") or number is None:
            continue
        error = _number(found.get(f"{name}_stderr,{kind}" if kind else f"{name}_stderr"))
        higher = directions.get(name)
        if higher is None:
            higher = not any(word in name for word in _LOWER)
        scores.append(
            Score(
                task=task,
                metric=name if kind in ("", "none") else key,
                value=number,
                standard_error=error,
                higher_is_better=bool(higher),
            )
        )
    return scores


def _number(value: object) -> float | None:
    number = number_from_json(value)
    return number if number is not None and math.isfinite(number) else None


def _settings(content: _Harness, task: str) -> dict[str, object]:
    """Version of the task, shots, samples: scores of other settings are no comparison."""
    samples = (content.get("n-samples") or {}).get(task) or {}
    found = {
        "version of the task": (content.get("versions") or {}).get(task),
        "shots": (content.get("n-shot") or {}).get(task),
        "samples": samples.get("effective") if isinstance(samples, Mapping) else None,
        "samples' hash": (content.get("task_hashes") or {}).get(task),
        "limit": (content.get("config") or {}).get("limit"),
        "chat template": content.get("chat_template_sha"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _model(content: _Harness, file: Path) -> str:
    config = content.get("config") or {}
    named = content.get("model_name") or config.get("model_args") or config.get("model") or file.name
    return str(named if not isinstance(named, Mapping) else named.get("pretrained", file.name))
