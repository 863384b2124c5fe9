"""Starting the processes of a run on MindSpore: msrun, whose logs are named where one of them fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trueup.errors import ConfigError

LOGS = "msrun_log"
"""folder in ``output_dir``"""
STOP = "TRUEUP_STOP"
"""environment of a process that was launched here: the file that asks it to end"""
HCCL = {"HCCL_BUFFSIZE": "200", "HCCL_EXEC_TIMEOUT": "600"}
"""of Ascend devices, where it is not set: MB of the buffer two share, seconds one waits for another"""
_DONE = "done_"
"""and the rank: the file of a process that has done its work"""
_LAST_WORDS_SECONDS = 5.0
"""how long the scheduler may still run once a process has failed"""


def place_in_world(environment: Mapping[str, str]) -> tuple[int, int]:
    """Rank and number of processes, as torchrun or msrun tells them."""
    if "RANK" in environment:
        return int(environment["RANK"]), int(environment.get("WORLD_SIZE", "1"))
    if "MS_ROLE" in environment:
        return int(environment.get("RANK_ID", "0")), int(environment.get("MS_WORKER_NUM", "1"))
    return 0, 1


def launch(num_processes: int, words: Sequence[str], output: Path, *, quiet: bool) -> int:
    """Run ``python WORDS`` in each of them by msrun; says what the first of them says.

    Returns:
        0, or what a process that failed ended with, after its errors and the names of the logs.
    """
    launcher = shutil.which("msrun", path=_path())
    if launcher is None:
        raise ConfigError("msrun is not there: it comes with MindSpore and lies beside its python")
    folder = output / LOGS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        launcher,
        f"--worker_num={num_processes}",
        f"--local_worker_num={num_processes}",
        f"--master_port={_port()}",
        f"--log_dir={folder}",
        "--join=True",
        "--cluster_time_out=300",
        *("python", *words),
    ]
    environment = os.environ | {"PATH": _path(), STOP: str(folder / "stop")}
    for name, value in HCCL.items():
        environment.setdefault(name, value)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    with (folder / "msrun.log").open("w") as log, _forwarded(folder):
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        errors = _follow(running, folder, quiet=quiet)
    stopped = (folder / "stop").read_text() if (folder / "stop").exists() else ""
    if stopped and not errors:
        return 128 + int(stopped)
    if running.returncode == 0 and not errors:
        return 0
    how = _how_one_ended(folder / "msrun.log")
    if not errors and len(_finished(folder)) == num_processes:
        print(f"note: all processes were done; one then {how}, inside MindSpore's own end", file=sys.stderr)
        return 0
    for line in errors or [f"error: a process {how}, without an error of its own"]:
        print(line, file=sys.stderr)
    print(f"logs of the processes: {folder}/worker_*.log, {folder}/scheduler.log", file=sys.stderr)
    return 1


def schedule(device: str | None) -> int:
    """What msrun's extra process does: it brings the others together, and ends with them."""
    from mindspore.communication import init

    try:
        init("hccl" if device == "npu" else "mccl")
    except RuntimeError as error:  # one of them is gone: its own error is what counts
        print(error, file=sys.stderr)
        return 1
    return 0


def _path() -> str:
    """With this python's folder first: msrun starts ``python``."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def _port() -> int:
    """TRUEUP_PORT, or one that is free.

    Raises:
        ConfigError: the chosen one is taken.
    """
    chosen = os.environ.get("TRUEUP_PORT")
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", int(chosen or 0)))
        except OSError:
            raise ConfigError(
                f"port {chosen} is taken; end what holds it, or set TRUEUP_PORT to another"
            ) from None
        return int(one.getsockname()[1])


@contextmanager
def _forwarded(folder: Path) -> Iterator[None]:
    """A signal that asks to end is left as a file, which the first process looks for after each step."""

    def note(number: int, frame: object) -> None:
        (folder / "stop").write_text(str(number))

    before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def asked_to_stop() -> int:
    """The signal that the launching process got, else 0."""
    path = os.environ.get(STOP)
    try:
        return int(Path(path).read_text()) if path else 0
    except (OSError, ValueError):
        return 0


def finished(rank: int, num_processes: int) -> None:
    """Tell the launching process that this one has done its work; returns when all have told it.

    MindSpore's threads may end a process by a segmentation fault while its cluster is taken down, in 2 of 100
    runs on a busy CPU, and msrun then kills the others: none is to be at work any more.
    """
    path = os.environ.get(STOP)
    if not path:
        return
    folder = Path(path).parent
    (folder / f"{_DONE}{rank}").touch()
    while len(_finished(folder)) < num_processes and not any(folder.glob("error_*")):
        time.sleep(0.01)


def report_to_launcher(rank: int, message: str) -> None:
    """Leave what a process failed by where the launching one finds it."""
    path = os.environ.get(STOP)
    if path:
        Path(path).with_name(f"error_{rank}").write_text(message, encoding="utf-8")


def _finished(folder: Path) -> list[Path]:
    return list(folder.glob(f"{_DONE}*"))


def _how_one_ended(log: Path) -> str:
    """The first process that ended by itself, by what msrun wrote."""
    code = re.search(r"exit with exception. Error code: (-?\d+)", log.read_text(errors="replace"))
    if code is None:
        return "ended"
    number = int(code[1])
    if number >= 0:
        return f"ended with exit status {number}"
    cause = " (out of memory?)" if -number == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-number).name}{cause}"


def _follow(running: subprocess.Popen[bytes], folder: Path, *, quiet: bool) -> list[str]:
    """Until it ends: pass on what the first process says; returns the errors of those that failed."""
    log, failed_at = folder / "worker_0.log", 0.0
    place = 0
    while True:
        ended = running.poll() is not None
        if log.exists() and not quiet:
            with log.open(encoding="utf-8", errors="replace") as file:
                file.seek(place)
                new = file.read()
                whole = new if ended else new[: new.rfind("\n") + 1]
                place += len(whole.encode())
            for line in whole.splitlines():
                if not line.startswith("["):  # MindSpore's own
                    print(line, flush=True)
        if ended:
            break
        failed_at = failed_at or (time.monotonic() if any(folder.glob("error_*")) else 0.0)
        if failed_at and time.monotonic() - failed_at > _LAST_WORDS_SECONDS:
            running.send_signal(signal.SIGINT)  # msrun then ends its processes
            failed_at = time.monotonic() + 1e9
        time.sleep(0.2)
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("error_*"))]
