"""Real dumps, unpacked once, and the real msprobe in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import OF_MSPROBE, warm_python

_ROOT = Path(__file__).parents[2]
_ARCHIVE = _ROOT / "tests/fixtures/msprobe/msprobe-26.2.0.tar.xz"
_MINDSPORE = _ROOT / "tests/fixtures/mindspore/mindspore-2.10.tar.xz"
_REQUIREMENTS = ["mindstudio-probe==26.2.0", "torch==2.13.0"]


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the dumps that msprobe 26.2.0 wrote, to be left as it is."""
    return _unpacked(_ARCHIVE, tmp_path_factory.mktemp("msprobe")) / "msprobe-26.2.0"


@pytest.fixture(scope="session")
def mindspore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the dumps that MindSpore 2.10 wrote by itself, to be left as it is."""
    return _unpacked(_MINDSPORE, tmp_path_factory.mktemp("mindspore")) / "mindspore-2.10"


@pytest.fixture(scope="session")
def graph_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of one step of a GPT in graph mode, to be left as it is."""
    packed = _MINDSPORE.with_name("graph-mode-gpt.tar.xz")
    return _unpacked(packed, tmp_path_factory.mktemp("graph_gpt")) / "graph_gpt"


def _unpacked(packed: Path, folder: Path) -> Path:
    with tarfile.open(packed) as archive:
        if sys.version_info >= (3, 12):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def msprobe_command() -> Iterator[list[str]]:
    """The real msprobe, imported once: of ``TRUEUP_MSPROBE_VENV``, or ``.cache/msprobe-venv``, CI's own."""
    home = Path(os.environ.get("TRUEUP_MSPROBE_VENV") or _ROOT / ".cache/msprobe-venv")
    program = home / "bin" / "msprobe"
    if not program.exists():
        if os.environ.get("CI") != "true":
            pytest.skip(
                f"msprobe is not installed in {home}; set TRUEUP_MSPROBE_VENV, or CI=true to install it"
            )
        _install(home)
    with warm_python(f"{home}/bin/python", *OF_MSPROBE) as python:
        yield [python, "-m", "msprobe.msprobe"]


def _install(home: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *_REQUIREMENTS]
    if subprocess.run([*pip, *index], check=False).returncode:
        subprocess.run(pip, check=True)
