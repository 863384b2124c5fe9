"""``trueup alias``: trueup under msprobe's name, where it is asked for, and never before the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trueup.capture.alias import add_alias, alias_file, remove_alias
from trueup.errors import ConfigError

IMPORTED = """
import site, sys
site.addsitedir(sys.argv[1])
import msprobe.pytorch as one
print(one.PrecisionDebugger.__module__, one.__file__)
"""


def imported(packages: Path) -> subprocess.CompletedProcess[str]:
    """What a program of an environment with this folder of packages finds under the name."""
    command = [sys.executable, "-c", IMPORTED, str(packages)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_program_that_imports_msprobe_finds_trueup(tmp_path: Path) -> None:
    assert "No module named 'msprobe'" in imported(tmp_path).stderr
    assert add_alias("msprobe", tmp_path) == alias_file("msprobe", tmp_path)
    assert imported(tmp_path).stdout.startswith("trueup.capture.debugger ")
    remove_alias("msprobe", tmp_path)
    assert "No module named 'msprobe'" in imported(tmp_path).stderr


def test_a_real_one_is_never_shadowed(tmp_path: Path) -> None:
    """Neither one that is there nor one that comes later."""
    add_alias("msprobe", tmp_path)
    real = tmp_path / "msprobe" / "pytorch"
    real.mkdir(parents=True)
    (real.parent / "__init__.py").write_text("")
    (real / "__init__.py").write_text("class PrecisionDebugger: pass\n")
    out = imported(tmp_path).stdout
    assert out.startswith("msprobe.pytorch ")
    assert str(real) in out
    with pytest.raises(ConfigError, match="is installed in"):
        add_alias("msprobe", tmp_path)


def test_what_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no alias of msprobe"):
        remove_alias("msprobe", tmp_path)
