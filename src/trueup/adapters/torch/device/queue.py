"""Rows whose numbers are still on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from trueup.adapters.base import Recorder
from trueup.adapters.placing import Place
from trueup.adapters.torch.device.chunks import Chunks, Numbers
from trueup.adapters.torch.device.parts import Whole, summaries_from_parts
from trueup.adapters.torch.device.transfer import parts_from_numbers


class Queue:
    """The rows of one step, by device."""

    def __init__(self) -> None:
        self._chunks: dict[torch.device, Chunks] = {}
        self._waiting: dict[torch.device, tuple[list[Whole], list[Numbers]]] = {}

    def add(
        self,
        recorder: Recorder,
        tensor: Tensor,
        dtype: str,
        shape: tuple[int, ...],
        placement: str | None,
        want: int,
        place: Place | None = None,
    ) -> int:
        """Reserve a row and queue its computation."""
        device = tensor.device
        chunks = self._chunks.get(device)
        if chunks is None:
            chunks = self._chunks[device] = Chunks(device)
        with torch.no_grad():
            numbers = chunks.numbers_of(tensor.detach(), dtype, want, place)
        row = recorder.keep(0, dtype, shape, str(device), placement)
        numel = tensor.numel()
        whole = Whole(
            row=row,
            numel=numel,
            num_real=numel * (2 if tensor.is_complex() else 1),
            want=want,
            num_parts=len(numbers),
        )
        wholes, waiting = self._waiting.setdefault(device, ([], []))
        wholes.append(whole)
        waiting += numbers
        return row

    def flush(self, recorder: Recorder) -> None:
        """Fill the rows: one transfer a device and kind of number."""
        for device, (wholes, numbers) in self._waiting.items():
            parts = parts_from_numbers(numbers, wide=self._chunks[device].wide) if numbers else None
            for whole, summary in zip(wholes, summaries_from_parts(parts, wholes), strict=True):
                recorder.view(whole.row)[...] = summary
        self._waiting = {}

    def forget(self) -> None:
        """The step is over: what was not brought to the host is not wanted."""
        self._waiting = {}

    def paths(self) -> dict[str, str]:
        """What summarised the tensors of each device."""
        return {
            str(device): "torch operations" if chunks.wide else "torch operations without float64"
            for device, chunks in self._chunks.items()
        }
