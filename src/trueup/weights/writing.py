"""Weights written as a file or folder, which appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trueup.errors import ConfigError, WeightsError
from trueup.weights.ckpt_file import write_ckpt
from trueup.weights.megatron_writing import MegatronLayout, write_megatron
from trueup.weights.npy_folder import write_npy_folder
from trueup.weights.safetensors_file import write_folder, write_safetensors
from trueup.weights.torch_file import write_torch
from trueup.weights.weight_set import WeightSet

SHARD_BYTES = 5 << 30
_OF_SUFFIX = {
    ".safetensors": "safetensors",
    ".ckpt": "ckpt",
    ".pth": "pth",
    ".pt": "pth",
    ".bin": "pth",
}
FORMATS = ("safetensors", "ckpt", "pth", "hf", "npy", "megatron")
_FOLDERS = ("hf", "npy", "megatron")


def format_of(path: Path, asked: str | None = None) -> str:
    """The format to write: as asked, else as the suffix says, else a Hugging Face folder.

    Raises:
        ConfigError: no such format, or a suffix that stands for none.

    Example:
        >>> format_of(Path("model.ckpt"))
        'ckpt'
    """
    if asked is not None:
        if asked not in FORMATS:
            raise ConfigError(f"--format {asked!r}: there is {', '.join(FORMATS)}")
        return asked
    if path.suffix in _OF_SUFFIX:
        return _OF_SUFFIX[path.suffix]
    if path.suffix[1:].isalpha() and not path.is_dir():
        raise ConfigError(
            f"{path}: {path.suffix} stands for no format; use {' '.join(_OF_SUFFIX)}, a folder, or --format"
        )
    return "hf"


def write_weights(
    weights: WeightSet,
    path: Path,
    *,
    format: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    made_for: str = "pt",
    layout: MegatronLayout | None = None,
    num_groups: int | None = None,
) -> None:
    """Write all of ``weights``, one tensor at a time but for ``pth``.

    Args:
        weights: what to write; must not be read from ``path`` itself.
        path: a new file, an old one (replaced), or a new or empty folder.
        format: one of ``FORMATS``; default: as the suffix of ``path`` says, else ``hf``.
        shard_bytes: largest size of one file of ``hf``; no effect elsewhere.
        made_for: the mark safetensors files carry, ``pt`` or ``ms``; no effect elsewhere.
        layout: over how many ranks ``megatron`` splits; no effect elsewhere.
        num_groups: query groups of the model, which ``megatron`` must not cut; None: not known.

    Raises:
        ConfigError: an unknown format, a folder that is not empty, or writing over the source.
        WeightsError: nothing to write, or a dtype the format lacks.
        OSError: the disk is full.
    """
    chosen = format_of(path, format)
    if not weights.table:
        raise WeightsError(f"{weights.path} holds no weight to write")
    if path.exists() and weights.path.exists() and path.resolve() == weights.path.resolve():
        raise ConfigError(f"{path} is the source itself; give another destination")
    if chosen in _FOLDERS:
        if chosen == "megatron":
            split = layout or MegatronLayout()
            _whole_folder(path, lambda folder: write_megatron(weights, folder, split, num_groups=num_groups))
        else:
            _whole_folder(path, _folder_writer(weights, chosen, shard_bytes))
    else:
        _whole_file(path, _file_writer(weights, chosen, made_for))


def _folder_writer(weights: WeightSet, chosen: str, shard_bytes: int) -> Callable[[Path], None]:
    if chosen == "npy":
        return lambda folder: write_npy_folder(weights, folder)
    return lambda folder: write_folder(weights, folder, shard_bytes=shard_bytes)


def _file_writer(weights: WeightSet, chosen: str, made_for: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        if chosen == "pth":
            return write_torch(weights, path)
        with path.open("wb") as file:
            if chosen == "ckpt":
                write_ckpt(weights, file)
            else:
                write_safetensors(weights, file, made_for=made_for)
        return None

    return write


def _whole_file(path: Path, write: Callable[[Path], None]) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _whole_folder(path: Path, write: Callable[[Path], None]) -> None:
    if path.is_file():
        raise ConfigError(f"{path} is a file; expected a new or empty folder")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; give a new or empty folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        temporary.mkdir()
        write(temporary)
        if path.is_dir():
            path.rmdir()
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
