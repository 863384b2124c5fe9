"""Results files as lm-evaluation-harness writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def results(path: Path, scores: dict[str, tuple[float, float | str]], **changed: Any) -> Path:
    """One file: task -> accuracy and its standard error, with the harness's other sections."""
    content = {
        "results": {
            task: {"alias": task, "acc,none": value, "acc_stderr,none": error, "sample_len": 1000}
            for task, (value, error) in scores.items()
        },
        "group_subtasks": {task: [] for task in scores},
        "versions": dict.fromkeys(scores, 1.0),
        "n-shot": dict.fromkeys(scores, 5),
        "higher_is_better": {task: {"acc": True} for task in scores},
        "n-samples": {task: {"original": 1000, "effective": 1000} for task in scores},
        "config": {"model": "hf", "model_args": f"pretrained={path.stem}", "limit": None},
    }
    path.write_text(json.dumps({**content, **changed}), encoding="utf-8")
    return path
