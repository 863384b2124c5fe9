"""Writes verl_metrics.json: what verl itself computes of the batches of ``batches.py``.

Run it where verl is installed: ``python -m tests.mismatch.make_verl_metrics``.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.mismatch.batches import sampled

FILE = Path(__file__).with_name("verl_metrics.json")
CASES = {
    "bfloat16": {"noise": 0.01, "seed": 1},
    "far": {"noise": 0.8, "seed": 2, "rows": 24},
    "temperature": {"noise": 0.01, "seed": 3, "temperature": 0.7},
    "few": {"noise": 0.3, "seed": 4, "rows": 3, "length": 8},
}
EMPTY = {"far"}
"""cases whose first row has no token that counts"""


def case(name):
    arrays = sampled(**CASES[name])
    if name in EMPTY:
        arrays["mask"][0] = 0
    return arrays


def metrics_of_verl(arrays):
    import torch
    from verl.trainer.ppo.rollout_corr_helper import (
        compute_offpolicy_metrics,
        compute_rollout_correction_weights,
    )
    from verl.utils.debug.metrics import calculate_debug_metrics

    training, rollout = (torch.tensor(arrays[f"{side}_log_probs"]) for side in ("training", "rollout"))
    mask = torch.tensor(arrays["mask"])
    found = {
        f"rollout_corr/{name}": value
        for name, value in compute_offpolicy_metrics(training, rollout, mask).items()
    }
    for level in ("token", "sequence"):
        _, weights = compute_rollout_correction_weights(training - rollout, mask, rollout_is=level)
        found |= {f"rollout_corr/{name}@{level}": value for name, value in weights.items()}
    batch = {
        "rollout_log_probs": rollout,
        "old_log_probs": training,
        "response_mask": mask,
        "responses": torch.tensor(arrays["tokens"]),
    }
    return found | calculate_debug_metrics(SimpleNamespace(batch=batch))


def main():
    import verl

    plain = {name: {k: float(v) for k, v in metrics_of_verl(case(name)).items()} for name in CASES}
    FILE.write_text(
        json.dumps({"verl": verl.__version__, "numpy": np.__version__, "metrics": plain}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
