"""Reads token files: numpy archives whose arrays have the names of verl, TRL or our own (docs/rl.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trueup.errors import ConfigError
from trueup.mismatch.pairing import Sides, paired_layers
from trueup.mismatch.tokens import Tokens
from trueup.numerics.dtypes import DTYPES
from trueup.store.npz import NPZ_ERRORS
from trueup.types.arrays import Array, Bools, Ints

NAMES = {
    "rollout": ("rollout_log_probs", "sampling_per_token_logps", "rollout_logprobs"),
    "training": ("training_log_probs", "old_log_probs", "old_per_token_logps", "per_token_logps"),
    "mask": ("mask", "response_mask", "completion_mask", "loss_mask"),
    "ids": ("tokens", "responses", "completion_ids", "token_ids"),
    "lengths": ("lengths", "response_lengths", "completion_lengths"),
    "step": ("step", "global_step", "global_steps"),
    "noise": ("noise_log_probs",),
}
"""what a token file holds -> names of its arrays: ours, verl's and TRL's"""
FOLDER = "tokens"
"""of a trace: its token files"""
SIDES = ("rollout", "training", "noise")
SUFFIX = ".npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """One file, opened: what it says of its tokens, and where its layers are."""

    path: Path
    tokens: Tokens
    mask: Bools
    """of the shape of its log-probs"""
    layers: tuple[str, ...]
    """names in the order of the file that both sides have"""
    paired: Sides = field(default_factory=dict)
    """layers of the same tokens that capture kept beside the file: docs/rl.md"""


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The token files of files, folders and traces.

    Raises:
        ConfigError: nothing there, or no token file in it.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = path / FOLDER if (path / FOLDER).is_dir() else path
            here = sorted(one for one in inside.glob(f"*{SUFFIX}") if _holds_both(one))
            if not here:
                raise ConfigError(
                    f"{path}: no token file in it; expected {FOLDER}/*{SUFFIX}, which trueup capture "
                    f"writes for "
                    f"verl and TRL, or *{SUFFIX} with {NAMES['rollout'][0]} and {NAMES['training'][0]}"
                )
            found += here
        elif path.is_file():
            found.append(path)
        else:
            raise ConfigError(f"{path}: no such file or folder")
    return found


def _holds_both(path: Path) -> bool:
    held = set(opened(path).files)
    return all(held & set(NAMES[side]) for side in ("rollout", "training"))


def opened(path: Path) -> np.lib.npyio.NpzFile:
    """A numpy archive; nothing in it is unpickled.

    Raises:
        ConfigError: another kind of file, or a damaged one.
    """
    try:
        archive = np.load(path, allow_pickle=False)
    except NPZ_ERRORS as error:
        raise ConfigError(f"{path}: expected a numpy archive ({SUFFIX}): {error}") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ConfigError(f"{path}: expected an archive of named arrays: numpy.savez(file, name=array)")
    return archive


def read(path: Path) -> TokenFile:
    """The tokens of one file.

    Raises:
        ConfigError: an array is missing, of another shape than the log-probs, or damaged.
    """
    with opened(path) as archive:
        arrays = {key: _array(archive, path, key) for key in NAMES}
        names = archive.files
    tokens, mask = _checked(path, arrays, names)
    by_side = [[n.partition("/")[2] for n in names if n.startswith(f"{side}/")] for side in SIDES[:2]]
    layers = tuple(name for name in by_side[1] if name in by_side[0])
    paired: Sides = {}
    if not layers and path.parent.name == FOLDER and len(tokens.steps) == 1:
        paired = paired_layers(path.parents[1], tokens.steps[0])
        layers = tuple(paired.get("training", {}))
    return TokenFile(path=path, tokens=tokens, mask=mask, layers=layers, paired=paired)


def tokens_from_arrays(arrays: Mapping[str, Array], place: Path) -> Tokens:
    """The tokens of arrays under the names of a token file; ``place`` is what an error names.

    Raises:
        ConfigError: an array is missing, or of another shape than the log-probs.
    """
    given = {key: next((arrays[n] for n in names if n in arrays), None) for key, names in NAMES.items()}
    return _checked(place, given, list(arrays))[0]


def _checked(path: Path, arrays: Mapping[str, Array | None], names: Sequence[str]) -> tuple[Tokens, Bools]:
    """The tokens and which of them count."""
    for side in ("rollout", "training"):
        if arrays[side] is None:
            raise ConfigError(
                f"{path}: {side} log-probs are missing; expected one of: {', '.join(NAMES[side])} "
                f"(got {', '.join(names) or 'no array'})"
            )
    given = {key: array for key, array in arrays.items() if array is not None}
    mask, rows = _mask(path, given)
    return _tokens(path, given, mask, rows), mask


def layer(file: TokenFile, side: str, name: str) -> Array | None:
    """One layer's output of one side: rows of features, those of the tokens that count where the array has
    the shape of the log-probs."""
    if file.paired:
        return file.paired.get(side, {}).get(name)
    with opened(file.path) as archive:
        key = f"{side}/{name}"
        if key not in archive.files:
            return None
        array = _loaded(archive, file.path, key)
    if array.ndim and array.shape[: file.mask.ndim] == file.mask.shape:
        array = array[file.mask]
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(-1, 1)


def _array(archive: np.lib.npyio.NpzFile, path: Path, key: str) -> Array | None:
    there = [name for name in NAMES[key] if name in archive.files]
    return _loaded(archive, path, there[0]) if there else None


def _loaded(archive: np.lib.npyio.NpzFile, path: Path, name: str) -> Array:
    try:
        array: Array = archive[name]
    except NPZ_ERRORS as error:
        raise ConfigError(f"{path}: {name} cannot be read: {error}") from error
    if array.dtype.name not in DTYPES or DTYPES[array.dtype.name].kind == "complex":
        raise ConfigError(f"{path}: {name}: expected real numbers (got {array.dtype})")
    return array


def _mask(path: Path, arrays: Mapping[str, Array]) -> tuple[Bools, Ints]:
    """Which elements count, and the sequence of each."""
    shape = arrays["rollout"].shape
    for key in ("training", "noise", "ids", "mask"):
        if key in arrays and arrays[key].shape != shape:
            raise ConfigError(
                f"{path}: expected arrays of one shape, {shape} as the rollout's log-probs "
                f"(got {arrays[key].shape} for {key})"
            )
    if len(shape) not in (1, 2):
        raise ConfigError(
            f"{path}: expected log-probs of shape (sequences, tokens), or (tokens,) with lengths (got "
            f"{shape})"
        )
    mask: Bools = arrays["mask"] != 0 if "mask" in arrays else np.ones(shape, np.bool_)
    lengths = arrays.get("lengths")
    if len(shape) == 1:
        sizes = np.asarray(shape if lengths is None else lengths, np.int64).reshape(-1)
        if sizes.min(initial=0) < 0 or sizes.sum() != shape[0]:
            raise ConfigError(
                f"{path}: lengths: expected counts with the sum {shape[0]} (got the sum {sizes.sum()})"
            )
        return mask, np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
    if lengths is not None and "mask" not in arrays:
        if lengths.shape != shape[:1]:
            raise ConfigError(f"{path}: lengths: expected {shape[0]} counts (got the shape {lengths.shape})")
        mask = np.arange(shape[1]) < lengths[:, None]
    return mask, np.broadcast_to(np.arange(shape[0])[:, None], shape).astype(np.int64)


def _tokens(path: Path, arrays: Mapping[str, Array], mask: Bools, rows: Ints) -> Tokens:
    if not mask.any():
        raise ConfigError(f"{path}: the mask leaves no token")
    num_rows = int(rows.max()) + 1
    steps = np.asarray(arrays.get("step", 0), np.int64).reshape(-1)
    if len(steps) not in (1, num_rows):
        raise ConfigError(f"{path}: step: expected one number, or one for each of {num_rows} sequences")
    of_row = np.broadcast_to(steps, (num_rows,))
    sequence = rows[mask]
    counts = np.bincount(sequence, minlength=num_rows)
    empty = np.unique(of_row[counts == 0], return_counts=True)
    rollout, training = arrays["rollout"][mask], arrays["training"][mask]
    begin = np.repeat(np.cumsum(counts) - counts, counts)
    return Tokens(
        rollout=rollout.astype(np.float64),
        training=training.astype(np.float64),
        equal=bit_equal(rollout, training),
        sequence=sequence,
        position=np.arange(len(sequence), dtype=np.int64) - begin,
        step=of_row[sequence].astype(np.int64),
        ids=arrays["ids"][mask].astype(np.int64) if "ids" in arrays else None,
        noise=arrays["noise"][mask].astype(np.float64) if "noise" in arrays else None,
        num_empty=tuple(zip(empty[0].tolist(), empty[1].tolist(), strict=True)),
    )


def bit_equal(one: Array, other: Array) -> Bools:
    """Which elements are the same bits; of two dtypes, the same value."""
    if one.dtype != other.dtype:
        same: Bools = one.astype(np.float64) == other.astype(np.float64)
        return same
    bits = np.dtype(f"u{one.dtype.itemsize}")
    equal: Bools = np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(other).view(bits)
    return equal
