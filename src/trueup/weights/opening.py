"""Tells what kind of weights a path is, by its content; the suffix is only a hint in messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trueup.errors import WeightsError
from trueup.store import layout
from trueup.weights import ckpt_file, megatron, npy_folder, safetensors_file, torch_dist, torch_file
from trueup.weights.plan import Values
from trueup.weights.weight_set import Table, WeightSet, known, same_bits


class SeveralFiles:
    """A ``WeightSet`` over the weights of all ``parts``.

    A name that several parts have is taken once if the bits are the same (replicas). If they are not, each
    part holds a shard of it, and how they are joined only the training program's layout says.

    Raises:
        WeightsError: parts hold different values under one name.
    """

    def __init__(self, path: Path, parts: Sequence[WeightSet]) -> None:
        self.path = path
        self.remarks: tuple[str, ...] = tuple(dict.fromkeys(s for part in parts for s in part.remarks))
        self._home: dict[str, WeightSet] = {}
        for part in parts:
            for name in part.table:
                other = self._home.setdefault(name, part)
                if other is not part:
                    _check_same(name, other, part)
        self.table: Table = {name: part.table[name] for name, part in self._home.items()}

    def read(self, name: str) -> Values:
        """Values of one weight, from the part that has it."""
        return self._home[known(self, name)].read(name)


_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_SUFFIXES = (("*.safetensors",), ("*.ckpt",), ("*.bin", "*.pth", "*.pt"))
"""of files that make a folder of weights; the first kind that is there is taken"""
_BELOW = ("", "rank_*/")
_NO_WEIGHTS = ("optimizer*", "scheduler*", "training_args*", "rng_state*")
_KINDS = (
    "safetensors, a MindSpore .ckpt, a file of torch.save, .npy files, a Hugging Face folder, a Megatron or "
    "distributed checkpoint, a trueup trace"
)


def open_weights(path: Path) -> WeightSet:
    """The weights at ``path``, of any format.

    Args:
        path: a safetensors, .ckpt, .pth, .pt or .bin file; a folder of them (Hugging Face, shards, one a
            rank); a folder of .npy files; or a trueup trace, which gives its initial weights.

    Example:
        >>> open_weights(Path("model.ckpt")).table          # doctest: +SKIP
        {'embedding.weight': WeightInfo(...), ...}

    Raises:
        WeightsError: nothing there, nothing that is read here, or damaged; says which.
        TraceError: a trace that cannot be read.
        ConfigError: the file needs PyTorch, which is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise WeightsError(f"no such file or folder: {path}")
    if path.is_dir():
        return _open_folder(path)
    if path.name == layout.MANIFEST or path.name.endswith(".index.json"):
        return _open_folder(path.parent)
    return _open_file(path)


def _open_file(path: Path) -> WeightSet:
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    if not start:
        raise WeightsError(f"{path} is empty; was it written to the end?")
    if start.startswith((_ZIP, _PICKLE)):
        return torch_file.TorchFile(path)
    if safetensors_file.looks_like_safetensors(start):
        return safetensors_file.read_safetensors(path)
    if ckpt_file.looks_like_ckpt(start):
        return ckpt_file.read_ckpt(path)
    if start.startswith(b"\x93NUMPY"):
        raise WeightsError(f"{path} is one array without a name; give its folder")
    raise WeightsError(f"{path} is not a file of weights that trueup reads ({_KINDS})")


def _open_folder(path: Path) -> WeightSet:
    if (path / layout.MANIFEST).is_file():
        from trueup.weights.trace_weights import TraceWeights

        return TraceWeights(path)
    if (found := _open_megatron(path)) is not None:
        return found
    if (path / safetensors_file.INDEX).is_file():
        return safetensors_file.read_folder(path)
    if (path / torch_file.INDEX).is_file():
        names = dict.fromkeys(safetensors_file.read_index(path / torch_file.INDEX).values())
        return _several(path, [path / name for name in names], torch_file.TorchFile)
    for suffixes in _SUFFIXES:
        if files := _files(path, suffixes):
            return _several(path, files, _open_file)
    if any(path.rglob("*.npy")):
        return npy_folder.NpyFolder(path)
    there = ", ".join(sorted(child.name for child in path.iterdir())[:8]) or "nothing"
    raise WeightsError(f"{path} holds no weights that are read here ({_KINDS}); found {there}")


def _open_megatron(path: Path) -> WeightSet | None:
    """A checkpoint of Megatron, or a distributed one; None of any other folder."""
    if _is_part(path) and (own := megatron.part_files(path.parent).get(path.name)) is not None:
        return torch_file.TorchFile(own)
    folder = megatron.iteration_folder(path)
    if (folder / torch_dist.METADATA).is_file():
        return torch_dist.read_distributed(folder)
    parts = megatron.part_files(folder)
    return megatron.read_megatron(folder, parts) if parts else None


def _is_part(path: Path) -> bool:
    return path.name.startswith("mp_rank_")


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    found = {p for below in _BELOW for suffix in suffixes for p in folder.glob(below + suffix) if p.is_file()}
    return sorted(p for p in found if not any(p.match(pattern) for pattern in _NO_WEIGHTS))


def _several(path: Path, files: Sequence[Path], read: Callable[[Path], WeightSet]) -> WeightSet:
    parts = [read(file) for file in files]
    return parts[0] if len(parts) == 1 else SeveralFiles(path, parts)


def _check_same(name: str, one: WeightSet, other: WeightSet) -> None:
    if one.table[name] == other.table[name] and same_bits(one.read(name), other.read(name)):
        return
    raise WeightsError(
        f"{one.path} and {other.path} hold different values of {name}. Of different steps? Give one of them. "
        "Are they shards? Merge them first (MindSpore: transform_checkpoints; Megatron: its converter)."
    )
