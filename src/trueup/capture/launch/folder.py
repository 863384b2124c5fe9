"""The output folder before a run: there, writable, and free of another run."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from trueup.errors import ConfigError
from trueup.store.layout import MANIFEST, is_own


def prepare(output: Path, *, overwrite: bool) -> None:
    """Make ``output`` a folder ready for a new trace; ``overwrite`` removes an older trace, and nothing else.

    Raises:
        ConfigError: it holds a trace already, is not a folder, or cannot be written.
    """
    with _explaining(output):
        if (output / MANIFEST).exists():
            if not overwrite:
                raise ConfigError(
                    f"{output} already holds a trace. Choose another folder with -o, or add --overwrite."
                )
            _remove_trace(output)
    make_writable(output)


def make_writable(output: Path) -> None:
    """Make ``output`` a folder that can be written to; what is in it stays.

    Raises:
        ConfigError: it is not a folder, or cannot be made or written.
    """
    with _explaining(output):
        output.mkdir(parents=True, exist_ok=True)
        probe = output / ".trueup-can-write"
        probe.touch()
        probe.unlink()


@contextlib.contextmanager
def _explaining(output: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise ConfigError(f"{output} is a file; give a folder") from error
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror or error}. Give another folder."
        ) from error


def _remove_trace(output: Path) -> None:
    for entry in output.iterdir():
        if is_own(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
