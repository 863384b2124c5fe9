"""Which folder a process writes to, where several write to one output: nothing is lost to a name.

A job may hold several process groups (a critic beside an actor), each with a rank 0. The first group in a
folder keeps it; another writes to ``processes/NAME`` below it, a trace of its own. Two kinds of locks, held
until a process ends, show who is there: ``ranks/.group``, which the ranks of a group share and which holds
the group's name, and ``ranks/.rank_NNNNN``.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from trueup.store.layout import PROCESSES, rank_file
from trueup.store.layout import ranks as ranks_in

_ROLES = ("TRUEUP_ROLE", "WG_PREFIX", "ROLE_NAME")
"""environment variables that say what a group of processes is for: ours, verl's, torchelastic's"""
_TRIES = 50
_PAUSE_SECONDS = 0.01
_held: list[int] = []
"""process-wide: descriptors of the locks this process holds, open until it ends"""


def group_of(world_size: int, environment: Mapping[str, str]) -> str:
    """The same for the ranks of one process group and no other; of a process alone its own."""
    for host, port in (("MASTER_ADDR", "MASTER_PORT"), ("MS_SCHED_HOST", "MS_SCHED_PORT")):
        if environment.get(port):
            prefix = environment.get("WG_PREFIX", "")
            return f"{environment.get(host, '')}:{environment[port]}:{prefix}:{world_size}"
    if world_size > 1:
        launch = environment.get("TRUEUP_LAUNCH_ID") or os.getppid()
        return f"{environment.get('TORCHELASTIC_RUN_ID', '')}:{launch}:{world_size}"
    return f"{socket.gethostname()}:{os.getpid()}"


def role_of(environment: Mapping[str, str]) -> str:
    """What the processes of this group are for, where that is known; else nothing."""
    return next((environment[name] for name in _ROLES if environment.get(name, "default") != "default"), "")


def places(output: Path, rank: int, group: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Folders for this process, best first: the output, the group's own in it, and this process's own."""
    yield output
    role = re.sub(r"[^\w.-]+", "-", role_of(environment)).strip("-") or "group"
    name = f"{role}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"
    yield output / PROCESSES / name
    yield output / PROCESSES / f"{name}-rank{rank}-{socket.gethostname()}-{os.getpid()}"


def claim(folder: Path, rank: int, group: str, *, may_continue: bool) -> bool:
    """Take the place of ``rank`` in ``folder`` for ``group``; False where it is another process's.

    ``may_continue``: what processes that have ended have left there may be added to or replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    if not _join(folder, group, may_continue=may_continue):
        return False
    if not may_continue and rank_file(folder, rank).exists():
        return False
    lock = _open(folder / "ranks" / f".rank_{rank:05d}")
    if not _lock(lock, exclusive=True):
        os.close(lock)
        return False
    _held.append(lock)
    return True


def _join(folder: Path, group: str, *, may_continue: bool) -> bool:
    """Whether the folder is this group's; it becomes so where no process of another is in it."""
    descriptor = _open(folder / "ranks" / ".group")
    owner = ""
    for _ in range(_TRIES):
        if _lock(descriptor, exclusive=True):
            owner = _content(descriptor)
            if ranks_in(folder) and owner != group and not may_continue:
                break
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, group.encode(), 0)
        _lock(descriptor, exclusive=False)
        owner = _content(descriptor)
        if owner:
            break
        time.sleep(_PAUSE_SECONDS)  # another process only looked whether anyone is here
    if owner == group:
        _held.append(descriptor)
        return True
    os.close(descriptor)
    return False


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _content(descriptor: int) -> str:
    return os.pread(descriptor, 4096, 0).decode("utf-8", "replace")


def is_in_use(folder: Path) -> bool:
    """Whether a process that has not ended writes there; never raises."""
    try:
        descriptor = os.open(folder / "ranks" / ".group", os.O_RDWR)
    except OSError:
        return False
    try:
        return not _lock(descriptor, exclusive=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    """Whether the lock is ours now; where the system or the file system has none, it always is."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        # a shared lock waits: whoever holds the exclusive one is just writing the group's name
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system
        return True
    return True


def release() -> None:
    """The session is over: its folder is free for another of this process or of others."""
    while _held:
        os.close(_held.pop())
