"""Outputs of a model's layers, token by token: of an inference engine, and of the trainer on the same tokens.

Hooks see what the model is given (token ids and positions) and what each decoder layer, its attention and
its feed-forward give. Which tokens are kept is decided by token and position alone, so that two processes
keep the same ones: all while they fit, then every second, every fourth.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trueup.capture.shield import shielded
from trueup.integrations.records import plain
from trueup.store.token_layers import FOLDER
from trueup.types.arrays import Array, Bools, Ints

MOST_BYTES = 128 << 20
"""of one step in one process; costs memory"""
_PARTS = ("attn", "attention", "mlp", "moe", "feed_forward", "ffn")
"""in names of a decoder layer's children"""
_POSITIONS = ("positions", "position_ids", "cache_position")
_MIX = np.uint64(0x9E3779B97F4A7C15)
_QUIET_SECONDS = 1.0
Torch = Any
"""a module or a tensor: torch is not imported here"""
Quiet = Callable[[], AbstractContextManager[object]]


class Kept:
    """Rows of one step, never more than ``most_bytes``."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._halvings = 0
        self._rows: list[dict[str, Array]] = []

    def chosen(self, ids: Ints, positions: Ints) -> Bools:
        """Which tokens are kept, as far as is known."""
        mixed = (positions.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)) * _MIX
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX
        kept: Bools = (mixed >> np.uint64(64 - 16)) < np.uint64(2**16 >> min(self._halvings, 16))
        return kept

    def add(self, rows: dict[str, Array]) -> None:
        """More rows, of tokens that were chosen."""
        self._rows.append(rows)
        while self._num_bytes() > self._most and self._halvings < 16:
            self._halvings += 1
            self._rows = [
                {name: values[self.chosen(one["ids"], one["positions"])] for name, values in one.items()}
                for one in self._rows
            ]

    def arrays(self) -> dict[str, Array]:
        """All of them, token after token; nothing where there are none."""
        names = list(self._rows[0]) if self._rows else []
        return {name: np.concatenate([one[name] for one in self._rows]) for name in names}

    def _num_bytes(self) -> int:
        return sum(values.nbytes for one in self._rows for values in one.values())


class LayerHooks:
    """Forward hooks on a model; ``add`` is called with the rows of each forward while ``active``."""

    def __init__(
        self, model: Torch, add: Callable[[dict[str, Array]], None], kept: Callable[[], Kept]
    ) -> None:
        self.active = True
        self._add, self._kept = add, kept
        self._quiet: Quiet = importlib.import_module("trueup.adapters.torch.quiet").quiet
        self._given: ForwardTokens | None = None
        self._outputs: dict[str, Array] = {}
        owner, layers = decoder_layers(model)
        self.names: list[str] = []
        for module in {id(one): one for one in (model, owner)}.values():
            module.register_forward_pre_hook(self._begin, with_kwargs=True)
        for number, layer in enumerate(layers):
            parts = [n for n, _ in layer.named_children() if _is_part(n.lower())]
            for part in parts:
                self._watch(getattr(layer, part), f"layers.{number}.{part}", last=False)
            self._watch(layer, f"layers.{number}", last=number == len(layers) - 1)

    def _watch(self, module: Torch, name: str, *, last: bool) -> None:
        self.names.append(name)

        @shielded
        def hook(_module: object, _args: object, output: object) -> None:
            if not self.active or self._given is None:
                return
            with self._quiet():
                if not self._given.fits(output):
                    self._given = None  # another order of dimensions, or a part of the tokens
                    return
                self._outputs[name] = self._rows_of(output, self._given)
            if last:
                self._end(self._given)

        module.register_forward_hook(hook)

    @shielded
    def _begin(self, _module: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        self._outputs = {}
        with self._quiet():
            given = _tokens(args, kwargs) if self.active else None
        self._given = given and given.where(self._kept().chosen(given.ids, given.positions))

    def _rows_of(self, output: object, given: ForwardTokens) -> Array:
        """A module's output at the tokens that are kept; of layers that hand on the residual stream in two
        parts their sum."""
        parts: Torch = output if isinstance(output, (tuple, list)) else (output,)
        first, at = parts[0], given.at
        two = len(parts) > 1 and getattr(parts[1], "shape", None) == first.shape
        stream = parts[:2] if two and parts[1].dtype == first.dtype else (first,)
        rows = [plain(one.detach().reshape(-1, one.shape[-1])[at]) for one in stream]
        return rows[0] if len(rows) == 1 else rows[0] + rows[1]

    def _end(self, given: ForwardTokens) -> None:
        if len(given.ids):
            self._add({"ids": given.ids, "positions": given.positions, **self._outputs})
        self._given, self._outputs = None, {}


def _is_part(name: str) -> bool:
    return "norm" not in name and any(word in name for word in _PARTS)


def decoder_layers(model: Torch) -> tuple[Torch, list[Torch]]:
    """The longest list of layers with an attention in a model, and the module that it is of.

    Raises:
        ValueError: there is none.
    """
    found: tuple[Torch, list[Torch]] | None = None
    for module in model.modules():
        for child in module.children():
            layers = list(child.children()) if type(child).__name__ == "ModuleList" else []
            attends = all(any("att" in n.lower() for n, _ in one.named_children()) for one in layers)
            if layers and attends and (found is None or len(layers) > len(found[1])):
                found = module, layers
    if found is None:
        raise ValueError(f"{type(model).__name__} has no list of layers with an attention")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTokens:
    """What a forward is given."""

    ids: Ints
    positions: Ints
    at: Ints
    """places among all rows of the outputs"""
    shape: tuple[int, ...]
    """of the ids"""

    def where(self, keep: Bools) -> ForwardTokens:
        """Some of them."""
        return replace(self, ids=self.ids[keep], positions=self.positions[keep], at=self.at[keep])

    def fits(self, output: Torch) -> bool:
        """Whether a module's output has a row for each, in this order."""
        first = output[0] if isinstance(output, (tuple, list)) else output
        rows = tuple(first.shape[:-1])
        flat = 1 in self.shape or len(self.shape) == 1
        return rows == self.shape or (flat and sorted({1, *rows}) == sorted({1, *self.shape}))


def _tokens(args: tuple[Torch, ...], kwargs: Mapping[str, Torch]) -> ForwardTokens | None:
    """The tokens that a forward is given; None where it is given none. Of (rows, width) as transformers has
    it, or flat as in engines that batch continuously."""
    given = kwargs.get("input_ids", args[0] if args else None)
    if getattr(given, "is_floating_point", lambda: True)():
        return None
    ids = plain(given).astype(np.int64)
    second = args[1] if len(args) > 1 and ids.ndim == 1 else None
    stated = next((kwargs[n] for n in _POSITIONS if kwargs.get(n) is not None), second)
    if stated is not None:
        positions = plain(stated).astype(np.int64)
    else:
        past = getattr(kwargs.get("past_key_values"), "get_seq_length", lambda: 0)()
        positions = np.arange(ids.shape[-1], dtype=np.int64) + int(past)
    if positions.size == 0 or positions.ndim > 2 or ids.size % positions.size:
        return None
    positions = np.broadcast_to(positions, ids.shape) if positions.size != ids.size else positions
    counts = np.ones(ids.size, np.bool_)
    mask = kwargs.get("attention_mask")
    if ids.ndim == 2 and getattr(mask, "ndim", 0) == 2:
        counts = plain(mask)[:, -ids.shape[1] :].ravel() != 0
    at = np.flatnonzero(counts)
    return ForwardTokens(ids=ids.ravel()[at], positions=positions.ravel()[at], at=at, shape=ids.shape)


class Writing:
    """Rows of one step on their way to a file: once nothing more comes, or the next step begins."""

    def __init__(self, run: Path, side: str) -> None:
        self._folder, self._side = run / FOLDER, side
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._last = 0.0
        self.kept = Kept()
        self._step: int | None = None
        self._number = 0

    def begin(self, step: int) -> None:
        """What follows is of this step; of a number below 0 where the process does not know it."""
        if step != self._step:
            self.flush()
            with self._lock:
                self.kept, self._step = Kept(), step
                self._number += 1

    def add(self, rows: dict[str, Array]) -> None:
        """Rows of one forward."""
        with self._lock:
            self.kept.add({**rows, "times": np.full(len(rows["ids"]), time.time())})
            self._last = time.monotonic()
            if self._timer is None:
                self._timer = threading.Timer(_QUIET_SECONDS, self._when_quiet)
                self._timer.daemon = True
                self._timer.start()

    def _when_quiet(self) -> None:
        with self._lock:
            left = self._last + _QUIET_SECONDS - time.monotonic()
            self._timer = None
            if left > 0.0:
                self._timer = threading.Timer(left, self._when_quiet)
                self._timer.daemon = True
                self._timer.start()
                return
        self.flush()

    @shielded
    def flush(self) -> None:
        """Write what there is, in place of what was written of the step before."""
        with self._lock:
            arrays = self.kept.arrays()
            if not arrays:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{self._side}-{socket.gethostname()}-{os.getpid()}-{self._number:06d}.npz"
            writing = self._folder / f".{name}"
            step = -1 if self._step is None else self._step
            with writing.open("wb") as file:
                np.savez(file, **arrays, step=np.int64(step))  # type: ignore[arg-type]
            writing.rename(self._folder / name)


class TrainerLayers:
    """Layer outputs of a trainer's model: of the forward that computes log-probs, and of its repetition in
    the first update, before any weight has changed, which is the noise."""

    def __init__(self, model: Torch, run: Path) -> None:
        self._writing = {side: Writing(run, side) for side in ("training", "noise")}
        self._side = "training"
        self._hooks = LayerHooks(model, self._add, lambda: self._writing[self._side].kept)
        self._hooks.active = False

    def begin(self, side: str, step: int) -> None:
        """A forward of a captured step begins."""
        self._side, self._hooks.active = side, True
        self._writing[side].begin(step)

    def end(self) -> None:
        """It is over."""
        self._hooks.active = False

    def _add(self, rows: dict[str, Array]) -> None:
        self._writing[self._side].add(rows)
