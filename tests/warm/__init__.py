"""A Python that has PyTorch, and MindSpore where it is, imported already: programs that tests start run in
forks of it.

Importing PyTorch takes seconds, and hundreds of tests start a program that does. ``sys.executable`` of a
test process becomes a command that looks like ``python``: it sends its words, environment and open files to
a server that has done the imports, which forks; the fork runs the program as Python would, in a process of
its own. Both are hidden until the program imports them, and so is trueup. What a fork cannot be (other flags,
other threads, another hash seed) runs in a new Python; tests of Python's own start take ``COLD``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

COLD = sys.executable
WARM = "WARM_PYTHON"
"""the environment variable that tells the processes of one test run where it is"""
OF_TRUEUP = ("typer", "pydantic", "polars", "pyarrow", "jinja2", "yaml", "rich.table", "numpy.typing")
"""what takes trueup's commands a third of a second each"""
TRUEUP = (
    *(f"trueup.cli.{verb}" for verb in ("app", "capture", "compare", "diagnose")),
    *("trueup.capture.tracer", "trueup.capture.presets", "trueup.adapters.torch", "trueup.monitoring.reader"),
    *("trueup.comparing.run", "trueup.reporting.comparison.report"),
    *("trueup.diagnosing.pipeline", "trueup.reporting.diagnosis.report"),
)
"""trueup itself, which takes them another, where it is the one that is tested"""
OF_MSPROBE = ("msprobe.pytorch", "msprobe.msprobe", "msprobe.core.compare.utils", "pandas")
"""what takes msprobe's commands their time"""
_HERE = Path(__file__).parent


@contextmanager
def warm_python(cold: str = COLD, *imported: str, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """A command that looks like ``python``, as long as it is needed; MindSpore's ``msrun`` lies beside it.

    Args:
        cold: the Python it stands for.
        imported: modules it has imported, besides PyTorch's own.
        settings: environment variables that count when it starts, as ``PYTHONHASHSEED``; a program that sets
            another seed, or none, runs in a new Python.
    """
    settings = settings or {}
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        socket, command = f"{folder}/socket", Path(folder) / "python"
        start = [cold, "-IS", _HERE / "client.py", cold, socket, settings.get("PYTHONHASHSEED", "")]
        words = " ".join(["exec", *(f"'{word}'" for word in start), '"$@"'])
        command.write_text(f"#!/bin/sh\n{words}\n", encoding="utf-8")
        command.chmod(0o755)
        (Path(folder) / "python3").symlink_to(command)
        if (launcher := Path(cold).with_name("msrun")).exists():  # it imports MindSpore, as all it starts do
            (Path(folder) / "msrun").write_text(f"#!/bin/sh\nexec '{command}' '{launcher}' \"$@\"\n", "utf-8")
            (Path(folder) / "msrun").chmod(0o755)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRUEUP_", "PYTHON"))}
        server = subprocess.Popen(
            [cold, str(_HERE / "server.py"), socket, *imported],
            stdin=subprocess.PIPE,
            env={**environment, **settings},
        )
        try:
            yield str(command)
        finally:
            server.kill()
            server.communicate()
