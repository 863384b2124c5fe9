"""What a checkpoint is on either framework: its folder, the facts beside its tensors, and its parts.

    output_dir/checkpoints/network_00000010/
        run.json               step, scale of the loss, configuration, layout table
        part_N.safetensors     what process N holds: boxes of whole tensors, ``NAME@OFFSET``

A name is ``model.FQN``, ``optimizer.FQN.STATE``, ``master.FQN`` or ``random.RANK``. A folder gets its name
when it is whole, so that none is ever half there. Each process writes the boxes it holds, and reads those it
needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup_gpt.config import Config
from trueup_gpt.optimize import LossScale
from trueup_gpt.parallel.layout import layout_for
from trueup_gpt.parallel.mesh import Mesh
from trueup_gpt.parallel.places import Place, ranges
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


def boxes_of_part(
    place: Place, part: Array, flat: tuple[int, int] | None = None
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Offset and elements of the boxes of the whole parameter that a part is.

    Args:
        place: of the parameter in this process.
        part: this process's part, or with ``flat`` those elements of it.
        flat: which elements of the flattened part.
    """
    if flat is None:
        yield place.offset, part
        return
    for inner, size, (low, high) in ranges(place.size, *flat):
        offset = tuple(a + b for a, b in zip(place.offset, inner, strict=True))
        yield offset, part[low - flat[0] : high - flat[0]].reshape(size)


Parts = Mapping[str, Sequence[tuple[tuple[int, ...], Array]]]
"""name -> boxes: offset and elements"""


def write_part(folder: Path, number: int, parts: Parts) -> None:
    """What process ``number`` holds."""
    tensors = {
        f"{name}@{','.join(map(str, offset))}": np.require(values, requirements="C")
        for name, boxes in parts.items()
        for offset, values in boxes
    }
    save_file(tensors, folder / f"part_{number}.safetensors")


class PartReader:
    """The tensors of a checkpoint, read box by box from whatever boxes were written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._opened = folder, ExitStack()
        self._boxes: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], str, object]]] = {}
        for path in sorted(folder.glob("part_*.safetensors")):
            file = self._opened.enter_context(safe_open(path, "np"))
            for key in file.keys():  # noqa: SIM118
                name, _, at = key.rpartition("@")
                offset = tuple(int(one) for one in at.split(",") if one)
                shape = tuple(file.get_slice(key).get_shape())
                self._boxes.setdefault(name, []).append((offset, shape, key, file))

    def __enter__(self) -> PartReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    @property
    def names(self) -> frozenset[str]:
        """Of all tensors."""
        return frozenset(self._boxes)

    def read(self, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> Array:
        """A box of the whole tensor.

        Raises:
            ConfigError: some of its elements were not saved.
        """
        found: Array | None = None
        missing = np.ones(shape, bool)
        for start, size, key, file in self._boxes.get(name, []):
            low = [max(a, b) for a, b in zip(start, offset, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, size, offset, shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            inside = tuple(slice(a - b, c - b) for a, b, c in zip(low, start, high, strict=True))
            here = tuple(slice(a - b, c - b) for a, b, c in zip(low, offset, high, strict=True))
            values = file.get_tensor(key)[inside]  # type: ignore[attr-defined]
            found = np.zeros(shape, values.dtype) if found is None else found
            found[here], missing[here] = values, False
        if found is None or missing.any():
            raise ConfigError(
                f"{self._folder} lacks {int(missing.sum())} elements of {name}: a part is not there"
            )
        return found


def is_in_parts(folder: Path) -> bool:
    """Whether it was written in safetensors."""
    return next(folder.glob("part_*.safetensors"), None) is not None


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
