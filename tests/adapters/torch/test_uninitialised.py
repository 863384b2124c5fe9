"""A program that reserves memory agrees with itself, whatever was in it; what is written there counts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from trueup.comparing.run import compare

pytestmark = pytest.mark.torch

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Work = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """A weight, memory that holds ``garbage``, and what a test does with both."""

    def __init__(self, work: Work, garbage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.1, 1.0, 6))
        self.work = work
        self.garbage = garbage
        self.buffer: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self, x * self.weight)

    def reserved(self, *shape: int) -> Tensor:
        """Memory as an allocator gives it: with what was there before."""
        room = torch.empty(*shape)
        ctypes.memset(room.data_ptr(), self.garbage, room.numel() * room.element_size())
        return room


def trained(folder: Path, work: Work, garbage: int, *, steps: str = "0-2") -> Path:
    model = Model(work, garbage)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="mix", steps=steps):
        for _ in range(3):
            model(X).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def scores_into_a_buffer(model: Model, x: Tensor) -> Tensor:
    """As Megatron does: one buffer for all steps, a view of which baddbmm is given and told not to read."""
    if model.buffer is None:
        model.buffer = model.reserved(64)
    room = model.buffer[:16].view(1, 4, 4)
    scores = torch.baddbmm(room, x[None], x.t()[None], beta=0.0, alpha=0.5)
    return scores.softmax(-1)[0] @ x


def pieces_put_together(model: Model, x: Tensor) -> Tensor:
    """Chunks written one after the other, each into a view of its own."""
    room = model.reserved(4, 6)
    for at, part in enumerate(x.detach().chunk(2)):
        torch.narrow(room, 0, 2 * at, 2).copy_(part * 2)
    return x + room


def written_twice(model: Model, x: Tensor) -> Tensor:
    """The first half is written twice, the second never, and nothing is computed with that."""
    room = model.reserved(4, 6)
    room[:2] = 1.0
    room[:2] = 2.0
    left, _ = torch.split(room, 2)
    room.unsqueeze_(0)
    return x + torch.cat([left, left])


def flat_with_padding(model: Model, x: Tensor) -> Tensor:
    """A flat buffer longer than what is in it; all of it is copied, the start of the copy is used."""
    flat = model.reserved(32)
    flat[:24].copy_(x.detach().flatten())
    return x + flat.clone()[:24].view(4, 6)


def columns(model: Model, x: Tensor) -> Tensor:
    """Written column by column, turned, copied into another shape."""
    room = model.reserved(4, 12)
    for at in range(6):
        room[:, at] = x[:, at].detach()
    room.t().reshape(-1)
    return x + room[:, :6]


def like_it(model: Model, x: Tensor) -> Tensor:
    """Asked for its shape alone."""
    room = model.reserved(4, 6)
    return x + torch.zeros_like(room) + room.new_ones(6)


def into_out(model: Model, x: Tensor) -> Tensor:
    room = model.reserved(4, 12)
    torch.mul(x.detach(), 2.0, out=room[:, :6])
    return x + room[:, :6]


def reserved_in_a_hook(model: Model, x: Tensor) -> Tensor:
    """As DeepSpeed's buckets: reserved while backward runs, where no call is seen, and shown before it is
    written."""
    flat = model.buffer
    if x.requires_grad:
        x.register_hook(lambda gradient: setattr(model, "buffer", model.reserved(32)))
    if flat is None:
        return x
    part = flat.narrow(0, 4, 24)
    part.copy_(x.detach().flatten())
    return x + flat.narrow(0, 4, 24).view(4, 6)


BENIGN = (
    reserved_in_a_hook,
    scores_into_a_buffer,
    pieces_put_together,
    written_twice,
    columns,
    like_it,
    into_out,
)


@pytest.mark.parametrize("work", BENIGN)
@pytest.mark.parametrize("steps", ["0-2", "1-2"])
def test_what_was_in_reserved_memory_is_no_difference(tmp_path: Path, work: Work, steps: str) -> None:
    runs = [trained(tmp_path / str(garbage), work, garbage, steps=steps) for garbage in (0x11, 0x43)]
    comparison = compare(*runs)
    assert comparison.exit_code == 0, comparison.verdict
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    assert {row["status"] for row in rows} <= {"equal", "undecided"}


def test_a_part_that_was_never_written_is_left_out_of_what_is_read(tmp_path: Path) -> None:
    """But what is computed with it is a difference, and a true one."""
    runs = [trained(tmp_path / str(garbage), flat_with_padding, garbage) for garbage in (0x11, 0x43)]
    comparison = compare(*runs)
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    copies = [row for row in rows if row["name"] == "torch.Tensor.clone" and row["phase"] == "forward"]
    assert {row["status"] for row in copies if row["slot"] == "input.0"} == {"undecided"}


def other(factor: float) -> Work:
    def work(model: Model, x: Tensor) -> Tensor:
        room = model.reserved(4, 6)
        for at, part in enumerate(x.detach().chunk(2)):
            room[2 * at : 2 * at + 2] = part * factor
        return x + room

    return work


def test_what_was_written_there_is_a_difference(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(factor), other(factor), 0x11) for factor in (2.0, 2.001)]
    comparison = compare(*runs)
    assert comparison.exit_code == 1
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    read = [row for row in rows if row["name"] == "torch.Tensor.add" and row["slot"] == "input.1"]
    assert {row["status"] for row in read if row["step"] == 0} <= {"propagated", "origin", "amplified"}


def written_out_of_sight(model: Model, x: Tensor) -> Tensor:
    """A kernel of the program's own fills the memory."""
    return F.relu(model.reserved(4, 6)) + x


def test_memory_that_was_written_out_of_sight_is_recorded_when_it_is_computed_with(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(byte), written_out_of_sight, byte) for byte in (0x3F, 0x40)]
    comparison = compare(*runs)
    assert comparison.exit_code == 1
    assert comparison.verdict.where is not None
    assert "relu" in comparison.verdict.where


def shown_from(start: int) -> Work:
    def work(model: Model, x: Tensor) -> Tensor:
        return x + F.relu(x.detach().flatten().repeat(2).narrow(0, start, 24).view(4, 6))

    return work


def test_a_view_of_something_else_that_is_read_is_a_difference(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(start), shown_from(start), 0x11) for start in (1, 0)]
    verdict = compare(*runs).verdict
    assert verdict.exit_code == 1
    assert "narrow" in (verdict.where or "")


def gathered(folder: str, garbage: int, factor: float) -> None:
    """In every process: memory that a collective under way will fill is shown before it is waited for."""
    import torch.distributed as dist

    def work(model: Model, x: Tensor) -> Tensor:
        flat = model.reserved(48)
        part = x.detach().flatten() * factor
        handle = dist.all_gather_into_tensor(flat, part, async_op=True)
        shown = flat.narrow(0, 24, 24).view(4, 6).to(flat.device)
        handle.wait()
        return x + F.relu(shown)

    trained(Path(folder), work, garbage)


@pytest.mark.distributed
@pytest.mark.xdist_group("worlds")
def test_what_a_collective_is_to_fill_means_nothing_before(tmp_path: Path) -> None:
    from tests.trainer.worlds import world

    place = "tests.adapters.torch.test_uninitialised:gathered"
    for name, garbage, factor in (("a", 0x11, 2.0), ("b", 0x43, 2.0), ("other", 0x11, 2.01)):
        world(2).run(place, str(tmp_path / name), garbage, factor)
    same = compare(tmp_path / "a", tmp_path / "b")
    assert same.exit_code == 0, same.verdict
    rows = [row for table in same.tables for row in table.to_pylist()]
    shown = [row for row in rows if row["name"] == "torch.Tensor.narrow"]
    assert {row["status"] for row in shown} == {"undecided"}
    read = [row for row in rows if row["name"].endswith("relu") and row["phase"] == "forward"]
    assert {row["status"] for row in read} == {"equal"}
    assert compare(tmp_path / "other", tmp_path / "a").exit_code == 1


def written_as_lists(model: Model, x: Tensor) -> Tensor:
    """As FSDP2 does: several pieces of memory are written by one call, by a list and by ``out``."""
    flat = [model.reserved(12) for _ in range(2)]
    torch._foreach_copy_(flat, list(x.detach().flatten().split(12)))
    parts = [model.reserved(2, 6) for _ in range(2)]
    torch.split_with_sizes_copy(x.detach(), [2, 2], 0, out=parts)
    return x + torch.cat(parts) + torch.cat(flat).view(4, 6)


@pytest.mark.parametrize("seen", [True, False])
def test_memory_that_one_call_writes_as_a_list_is_not_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Also where it was reserved out of sight."""
    if not seen:
        monkeypatch.setattr("trueup.adapters.torch.uninitialised.Uninitialised.made", lambda *_: None)
    runs = [trained(tmp_path / str(garbage), written_as_lists, garbage) for garbage in (0x11, 0x43)]
    comparison = compare(*runs)
    assert comparison.exit_code == 0, comparison.verdict
