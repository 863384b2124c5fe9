"""Writes a checkpoint during training: copied at once, written by a thread, named when it is whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save

from trueup_gpt.saved import RunFacts, begin_folder, name_folder
from trueup_gpt.torch.boxes import Box, Boxes, SavePlanner


class _Copied(AsyncStager):
    """Copies in the CPU's memory, taken before training continues."""

    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, object]) -> dict[str, object]:
        """See torch."""
        return {name: _copy(value) for name, value in state_dict.items()}

    def synchronize_staging(self) -> None:
        """Nothing is under way when ``stage`` returns."""
        return

    def close(self) -> None:
        """Nothing is kept."""
        return


def _copy(value: object) -> object:
    if isinstance(value, Boxes):
        return Boxes(
            value.shape,
            tuple(Box(box.offset, box.values.detach().to("cpu", copy=True)) for box in value.boxes),
        )
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


class Writer:
    """One checkpoint at a time; the next waits for the one before.

    Args:
        folder: of the checkpoints.
        first: this process names them.
        background: training continues while they are written.
        on_whole: called in the first process with each, from the thread that wrote it.
    """

    def __init__(
        self, folder: Path, *, first: bool, background: bool, on_whole: Callable[[Path], None]
    ) -> None:
        self._folder, self._first, self._background = folder, first, background
        self._on_whole = on_whole
        self._group: dist.ProcessGroup | None = None
        self._whole: Future[object] | None = None

    def begin(self, state: dict[str, object], facts: RunFacts, name: str) -> Path:
        """Start writing ``state`` as the folder ``name``; what is there under that name is replaced."""
        self.wait()
        unfinished, path = self._folder / f".{name}", self._folder / name
        if self._first:
            begin_folder(path, facts)
        barrier()
        whole: Future[object] = Future()
        self._whole = whole
        self._written(state, unfinished).add_done_callback(lambda done: self._name(done, path, whole))
        if not self._background:
            self.wait()
        return path

    def wait(self) -> None:
        """Until the last one is whole and named.

        Raises:
            Exception: what kept it from being written.
        """
        if self._whole is not None:
            whole, self._whole = self._whole, None
            whole.result()
            barrier()

    def _written(self, state: dict[str, object], folder: Path) -> Future[object]:
        planner, is_single_process = SavePlanner(), not dist.is_initialized()
        if not self._background:
            done: Future[object] = Future()
            done.set_result(save(state, checkpoint_id=folder, planner=planner, no_dist=is_single_process))
            return done
        if self._group is None and not is_single_process:
            self._group = dist.new_group(backend="gloo")  # a thread's collectives must not meet training's
        began = async_save(
            state,
            checkpoint_id=folder,
            async_stager=_Copied(),
            planner=planner,
            process_group=self._group,
            no_dist=is_single_process,
        )
        ended = began.upload_completion if isinstance(began, AsyncSaveResponse) else began
        return cast("Future[object]", ended)

    def _name(self, written: Future[object], path: Path, whole: Future[object]) -> None:
        """Give the folder its name: the metadata of all processes are in it."""
        try:
            written.result()
            if self._first:
                name_folder(path)
                self._on_whole(path)
        except BaseException as error:
            whole.set_exception(error)
        else:
            whole.set_result(path)


def barrier() -> None:
    """Until every process is here."""
    if dist.is_initialized():
        dist.barrier()
