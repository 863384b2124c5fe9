"""Commands of the story, run as a person would type them, and what they say kept for the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = Path("out") / "migration"
PAGE = ROOT / "docs" / "migration.md"
BIN = Path(sys.executable).parent
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def chapter(text: str) -> None:
    """Begin a part of the story."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def environment() -> dict[str, str]:
    """Programs of this Python come first; one thread each, for two of them often run side by side."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    colours = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **colours}


@dataclass
class Started:
    """A command under way, and the file its words go to."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        """Wait for it; a failure ends the story with its words."""
        status = self.process.wait()
        if status:
            failed(self.words, status, f"; what it said is in {self.log}")


def start(*words: str, log: str) -> Started:
    """Start a command; what it prints goes to ``log`` in the story's folder."""
    print(f"$ {shlex.join(words)}", flush=True)
    path = OUT / log
    with (ROOT / path).open("wb") as file:
        process = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=file, stderr=subprocess.STDOUT)
    return Started(words, process, path)


def run(*words: str, log: str) -> None:
    """Run a command that says nothing of interest."""
    start(*words, log=log).end()


def show(*words: str, allowed: Sequence[int] = (0,)) -> str:
    """Run a command and print what it says; returns it without colours."""
    print(f"$ {shlex.join(words)}", flush=True)
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        print(line, end="", flush=True)
        said.append(_COLOURS.sub("", line))
    if process.wait() not in allowed:
        failed(words, process.returncode, "")
    return "".join(said)


def failed(words: Sequence[str], status: int, where: str) -> None:
    """End the story."""
    sys.exit(f"\nthis command failed with exit status {status}{where}: {shlex.join(words)}")


def put_into_page(said: dict[str, str]) -> None:
    """Replace what the page shows of each command by what the command said now."""
    text = PAGE.read_text(encoding="utf-8")
    for name, output in said.items():
        block = re.compile(rf"(<!-- shown: {name} -->\n```text\n).*?(\n```)", re.DOTALL)
        lines = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
        text, found = block.subn(lambda at, lines=lines: at[1] + lines + at[2], text)
        if not found:
            sys.exit(f"{PAGE} has no place for {name}")
    PAGE.write_text(text, encoding="utf-8")
