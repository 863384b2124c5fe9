"""``trueup diagnose``, ``trueup replay --gradients`` and ``trueup export --format grads`` as a person types
them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.capture.programs import TRAIN, python, run_trueup, write

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two programs, the second with another GELU, and their traces."""
    made = tmp_path_factory.mktemp("diagnose")
    write(made / "train.py", TRAIN)
    write(made / "other.py", TRAIN.replace("nn.GELU()", 'nn.GELU(approximate="tanh")'))
    for name, script in (("reference", "train.py"), ("target", "other.py")):
        done = run_trueup(
            "capture", "-q", "-o", name, "--preset", "diagnose", "--", interpreter(made), script, cwd=made
        )
        assert done.returncode == 0, done.stderr
    return made


def interpreter(folder: Path) -> str:
    """The Python that runs the programs."""
    return python("-c", "import sys; print(sys.executable)", cwd=folder).stdout.strip()


def test_from_two_traces_and_a_command_to_one_verdict(folder: Path) -> None:
    command = shlex.join([interpreter(folder), "other.py"])
    done = run_trueup(
        "diagnose", "target", "reference", "-o", "out", "--replay", command, "--json", cwd=folder
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    verdict = document["findings"][0]
    assert verdict["stage"] == "forward"
    assert "GELU" in json.dumps(verdict) or verdict["module"]
    assert verdict["confidence_word"] == "certain"
    assert (folder / "out" / "diagnosis.html").is_file()
    assert json.loads((folder / "out" / "diagnosis.json").read_text())["headline"] == document["headline"]


def test_a_run_agrees_with_itself(folder: Path) -> None:
    done = run_trueup("diagnose", "reference", "reference", "-o", "same", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "The runs are bit-identical" in done.stdout


def test_gradients_alone_are_put_in(folder: Path) -> None:
    program = ["--", interpreter(folder), "other.py"]
    done = run_trueup(
        "replay",
        "--gradients",
        "--reference",
        "reference",
        "--target",
        "target",
        "-o",
        "given",
        *program,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "replaced before clipping" in done.stderr
    done = run_trueup("export", "--format", "grads", "reference", "files", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "files" / "grad_1.npy").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("diagnose",), "TARGET is missing"),
        (("diagnose", "target"), "REFERENCE is missing"),
        (("diagnose", "target", "reference"), "-o is missing"),
        (("diagnose", "target", "nowhere", "-o", "o"), "no such trace"),
        (("diagnose", "target", "reference", "-o", "o", "--replay", " "), "--replay: expected a command"),
        (("diagnose", "target", "reference", "-o", "o", "--replay", "no-such-program"), "no such command"),
        (("diagnose", "target", "reference", "-o", "o", "--tokenizer", "nowhere"), "no such folder"),
        (("replay", "--gradients", "-o", "o", "--", "true"), "--reference is missing"),
        (
            ("replay", "--gradients", "nowhere", "--reference", "reference", "-o", "o", "--", "true"),
            "no such folder",
        ),
    ],
)
def test_bad_use_is_one_clear_line(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run_trueup(*arguments, cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
