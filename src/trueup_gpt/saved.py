"""What a checkpoint is on either framework: its folder, and the facts beside its tensors.

    output_dir/checkpoints/network_00000010/
        run.json               step, scale of the loss, configuration, layout table
        part_N.ckpt            what process N holds, or part_N.safetensors: see ``parts.py``

A folder gets its name when it is whole, so that none is ever half there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TypedDict

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.optimize import LossScale
from trueup_gpt.parallel.layout import layout_for
from trueup_gpt.parallel.mesh import Mesh
from trueup_gpt.parallel.stages import parameter_shapes

RUN_FILE = "run.json"
BEST = "best"


class RunFacts(TypedDict, total=False):
    """What stands beside the tensors of a checkpoint."""

    format: int
    step: int
    loss_scale: dict[str, float]
    best: float | None
    num_processes: int
    mesh: dict[str, int]
    parameters: dict[str, list[int]]
    configuration: dict[str, object]
    layout: dict[str, object]


def run_facts(config: Config, mesh: Mesh, *, step: int, scale: LossScale, best: float | None) -> RunFacts:
    """Of a run after ``step`` steps."""
    return {
        "format": 1,
        "step": step,
        "loss_scale": scale.state_dict(),
        "best": best,
        "num_processes": mesh.size(*mesh.sizes),
        "mesh": mesh.sizes,
        "parameters": {fqn: list(shape) for fqn, shape in parameter_shapes(config).items()},
        "configuration": config.to_dict(),
        "layout": layout_for(config).to_dict(),
    }


def checkpoint_name(prefix: str, step: int, *, best: bool) -> str:
    """Of the folder."""
    return f"{prefix}_{BEST if best else f'{step:08d}'}"


def numbered(folder: Path, prefix: str) -> list[Path]:
    """Whole checkpoints of a folder, in the order of their steps."""
    return sorted(path for path in folder.glob(f"{prefix}_[0-9]*") if (path / RUN_FILE).exists())


def find_checkpoint(given: Path | None, own: Path, prefix: str) -> Path | None:
    """The one that is meant: a checkpoint, or the latest of a folder; None where a run has none of its own.

    Raises:
        ConfigError: there is none where ``load_checkpoint`` says.
    """
    folder = given or own
    if (folder / RUN_FILE).exists():
        return folder
    found = numbered(folder, prefix)
    if found:
        return found[-1]
    if given is None or given == own:
        return None
    raise ConfigError(f"load_checkpoint {given}: no checkpoint there; one holds {RUN_FILE}")


def check_model(path: Path, facts: RunFacts, config: Config) -> None:
    """Whether the checkpoint is of this model.

    Raises:
        ConfigError: naming the first parameter that it has not, or has in another shape.
    """
    saved = facts["parameters"]
    for fqn, whole in parameter_shapes(config).items():
        shape = list(whole)
        if fqn not in saved:
            raise ConfigError(f"{path} holds no {fqn}: it is of another model")
        if saved[fqn] != shape:
            raise ConfigError(f"{path}: {fqn} is {saved[fqn]}, here {shape}: it is of another model")


def begin_folder(path: Path, facts: RunFacts) -> Path:
    """The folder under way, hidden until ``name_folder`` gives it its name."""
    unfinished = path.with_name(f".{path.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / RUN_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return unfinished


def name_folder(path: Path) -> None:
    """Give the folder its name; what was there under it is replaced."""
    old = path.with_name(f".old_{path.name}")
    if path.exists():
        path.rename(old)
    path.with_name(f".{path.name}").rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_old(folder: Path, prefix: str, keep: int) -> None:
    """All numbered ones but the last."""
    for old in numbered(folder, prefix)[:-keep]:
        shutil.rmtree(old)
