"""Whether a file has changed since it was last looked at."""

from __future__ import annotations

from pathlib import Path


class FileWatch:
    """Compares time and size of one file; None is a file that never changes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = self._look()

    def changed(self) -> bool:
        """True once after each change. A file that is away for a moment, being rewritten, has not changed."""
        now = self._look()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return True

    def _look(self) -> tuple[int, int] | None:
        try:
            facts = self._path.stat() if self._path is not None else None
        except OSError:
            return None
        return None if facts is None else (facts.st_mtime_ns, facts.st_size)
