"""Runs a command as if trueup were not there: same terminal, same signals, same exit status."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from trueup.errors import ConfigError

_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_PATIENCE_SECONDS = 1.0
_SHELL = "/bin/sh"
_ENDING_SECONDS = 0.5
"""between the last step written on the way out and the end"""
_GRACE_SECONDS = 30.0
"""between asking a command to end and ending it"""


def run_command(
    command: Sequence[str],
    *,
    program: str,
    environment: Mapping[str, str],
    enough: Callable[[], bool] | None = None,
) -> int:
    """Run ``command`` to its end and return its exit status, 128 + n when signal n ended it.

    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on, except where the terminal has already
    sent them to the whole foreground group. ``enough`` is asked about every second: once it says so, the
    command is ended by SIGTERM, and its status is 0.

    Raises:
        ConfigError: the system refuses to run it.
    """
    waited = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = _spawn(command, program, environment, mask=before)
        while child.poll() is None:
            _wait_and_forward(child, waited)
            if enough is not None and child.poll() is None and enough():
                if _ended_by_itself(child):
                    break  # what it wrote last it wrote on its way out: its own status counts
                _end(child)
                return 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _ended_by_itself(child: subprocess.Popen[bytes]) -> bool:
    """Whether it is ending anyway: a program that fails writes its last step when it ends."""
    try:
        child.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask it to end; launchers pass that on to their workers."""
    child.send_signal(signal.SIGTERM)
    until = time.monotonic() + _GRACE_SECONDS
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    if child.poll() is None:
        child.kill()
        child.wait()


def _spawn(
    command: Sequence[str], program: str, environment: Mapping[str, str], *, mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def start(words: Sequence[str], executable: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*words], executable=executable, env=dict(environment), preexec_fn=unblock)

    try:
        try:
            return start(command, program)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return start([_SHELL, program, *command[1:]], _SHELL)  # no first line: as every shell runs it
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror or error}") from error


def _wait_and_forward(child: subprocess.Popen[bytes], waited: set[signal.Signals]) -> None:
    """Take one signal, or none for a second. One typed at the terminal (no sender) the child has already."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(waited, _PATIENCE_SECONDS)
        number, typed = (info.si_signo, info.si_pid == 0) if info is not None else (None, False)
    else:  # macOS does not say who sent it
        number = signal.sigwait(waited)
        typed = number == signal.SIGINT and sys.stdin.isatty()
    if number in _FORWARDED and not typed and child.poll() is None:
        child.send_signal(number)
