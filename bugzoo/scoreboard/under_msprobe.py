"""One base program under msprobe, in msprobe's environment: ``under_msprobe.py SPECIFICATION`` (JSON)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])


def main(spec: dict[str, Any]) -> None:
    """Two steps, level L0, statistics."""
    sys.path += spec["libraries"]  # transformers of the environment the collection runs in
    import torch
    from msprobe.pytorch import PrecisionDebugger

    from bugzoo.bases import bases
    from bugzoo.entries import entries
    from bugzoo.trainer import make_trainer, processes

    base, out = bases()[spec["base"]], Path(spec["output"])
    of_task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "statistics", "dump_path": str(out), "rank": [], "step": [], "level": "L0"}
    path = out.parent / f"{out.name}.{spec['base']}.config.json"
    path.write_text(json.dumps({**config, "statistics": of_task}))
    torch.set_num_threads(1)
    with processes(base):
        trainer = make_trainer(base)
        if spec["entry"]:
            entries()[spec["entry"]].plant(trainer)
        if spec["checkpoint"]:
            trainer.restore(Path(spec["checkpoint"]))
        debugger = PrecisionDebugger(config_path=str(path))
        for _ in range(2):
            debugger.start(model=trainer.model)
            trainer.step()
            debugger.stop()
            debugger.step()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
