"""Steps whose numbers are still on a device: a thread of their own waits for them and writes them.

The training thread starts the copies and continues. At most ``MAX_STEPS`` steps wait: a device or a disk that
is slower than training slows the next step's end, instead of filling memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

MAX_STEPS = 2
"""steps in host memory that are not on disk yet"""


class Later:
    """Writes one step after another, in order; the thread exists from the first of them on."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(MAX_STEPS)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], None]) -> float:
        """Have a step written; waits where ``MAX_STEPS`` are waiting. Returns the seconds of that.

        Raises:
            Exception: what writing an earlier step raised.
        """
        self._check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trueup-writer", daemon=True)
            self._thread.start()
        start = time.monotonic()
        self._queue.put(write)
        return time.monotonic() - start

    def join(self) -> None:
        """Wait until all is written.

        Raises:
            Exception: what writing a step raised.
        """
        if self._thread is not None:
            self._queue.join()
        self._check()

    def _check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            write = self._queue.get()
            try:
                write()
            except Exception as error:  # raised again in the training thread, which knows what to do
                self._error = self._error or error
            finally:
                self._queue.task_done()
