"""Looks like ``python``: asks the server for a fork, passes signals on, ends as the fork ends."""

import os
import signal
import socket
import sys
import time

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NEEDS_A_NEW_ONE = ("PYTHONOPTIMIZE", "PYTHONDEVMODE", "PYTHONSAFEPATH", "PYTHONHOME")


def plain(words: list[str]) -> bool:
    """A script, ``-c`` or ``-m``, maybe behind ``-u`` and ``-W``: what a fork can run."""
    while words and words[0] in ("-u", "-W"):
        words = words[1 if words[0] == "-u" else 2 :]
    return bool(words) and (not words[0].startswith("-") or words[0] in ("-c", "-m"))


def main() -> None:
    """Ask for a fork, or become a new Python."""
    cold, path, hash_seed, *words = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    fits = plain(words) and os.environ.get("OMP_NUM_THREADS") == "1"
    fits = fits and os.environ.get("PYTHONHASHSEED", "") == hash_seed
    if not fits or any(name in os.environ for name in NEEDS_A_NEW_ONE):
        os.execv(cold, [cold, *words])
    connect(connection, path)
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in files if number != connection.fileno() and _is_open(number)]
    asked = [os.getcwd(), str(os.getpgrp()), ",".join(map(str, files)), str(len(words)), *words]
    asked += [f"{name}={value}" for name, value in os.environ.items()]
    text = "\0".join(asked).encode("utf-8", "surrogateescape")
    socket.send_fds(connection, [len(text).to_bytes(8, "little")], files)
    connection.sendall(text)
    child = int.from_bytes(connection.recv(8), "little")
    for number in PASSED_ON:
        signal.signal(number, lambda sent, _: os.kill(child, sent))
    status = int.from_bytes(connection.recv(8), "little", signed=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def connect(connection: socket.socket, path: str) -> None:
    """The server may have just been started."""
    for _ in range(600):
        try:
            return connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.1)
    raise SystemExit("no warm Python answers")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


main()
