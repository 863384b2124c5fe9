"""Write down what each worker would work out for itself in a fresh clone, 16 seconds of a core each: the
modules of tests as pytest compiles them, with their assertions taken apart; what hypothesis keeps of our
modules (their constants, which it likes to try) and of Unicode.

A matter of time alone: where pytest keeps them otherwise, or nothing may be written, workers do as before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Compile what has changed; returns 0."""
    try:
        for path in (*sorted((ROOT / "tests").rglob("test_*.py")), ROOT / "tests" / "conftest.py"):
            compiled(path)
        known_to_hypothesis(ROOT)
    except Exception as error:
        print(f"each worker compiles the tests: {error}")
    return 0


def compiled(path: Path) -> Path:
    """Where pytest finds a module's code, which is that of the file as it is now.

    Raises:
        ImportError, AttributeError: this pytest keeps it otherwise.
        OSError: the file cannot be read.
    """
    from _pytest.assertion import rewrite

    written: Path = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, written) is None and rewrite.try_makedirs(written.parent):
        stamp, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]
        rewrite._write_pyc(SimpleNamespace(trace=print), code, stamp, written)  # type: ignore[arg-type]
    return written


def known_to_hypothesis(root: Path) -> None:
    """Fill the folder that hypothesis reads at its start.

    Raises:
        ImportError, AttributeError: this hypothesis keeps it otherwise.
    """
    from hypothesis.internal.charmap import charmap
    from hypothesis.internal.constants_ast import constants_from_module

    charmap()
    for folder in ("src", "tests", "bugzoo", "benchmarks", "scripts", "docs"):
        for path in (root / folder).rglob("*.py"):
            module = ModuleType(path.stem)
            module.__file__ = str(path)
            constants_from_module(module)


if __name__ == "__main__":
    sys.exit(main())
