"""``trueup seed-all``: what it prints does what ``trueup.seed_all`` does, in each framework."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import trueup.adapters.seeding as seeding
from tests.capture.programs import python, run_trueup
from trueup.capture.seed_recipe import python_lines, seed_recipe, shell_lines
from trueup.cli import app

SHOWN = {
    "torch": """
c = torch.backends.cudnn
print(torch.rand(1).item(), torch.are_deterministic_algorithms_enabled(), c.deterministic, c.benchmark)
print(c.enabled, os.environ.get("CUBLAS_WORKSPACE_CONFIG"), torch.initial_seed())
""",
    "mindspore": """
from mindspore import ops
print(mindspore.get_seed(), mindspore.get_context("deterministic"), ops.standard_normal((2,)).asnumpy())
print(os.environ.get("HCCL_DETERMINISTIC"), os.environ.get("TE_PARALLEL_COMPILER"))
""",
}
COMMON = 'print(random.random(), numpy.random.rand(), os.environ["PYTHONHASHSEED"])'


def state(framework: str, lines: list[str], tmp_path: Path, **env: str) -> str:
    """What a program prints that has these variables from its first line on, and then these lines."""
    begin = f"import os; os.environ.update({env}); import random, numpy"
    body = "\n".join([begin, *lines, COMMON, SHOWN[framework]])
    done = python("-c", body, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(framework: str, *, seed: int, mode: bool) -> dict[str, str]:
    """Variables of the shell's lines, but for those only another device reads and those left to a person."""
    found = {}
    for line in shell_lines(framework, seed=seed, mode=mode):
        if line.startswith("# and"):
            break
        if "torch.npu" not in line:
            name, _, value = line.removeprefix("export ").partition("#")[0].strip().partition("=")
            found[name] = value
    return found


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("torch", marks=pytest.mark.torch),
        pytest.param("mindspore", marks=pytest.mark.mindspore),
    ],
)
def test_the_recipe_does_what_seed_all_does(framework: str, mode: bool, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    call = [f"import {framework}, trueup", f"trueup.seed_all(77, mode={mode})"]
    printed = python_lines(framework, seed=77, mode=mode)
    env = exported(framework, seed=77, mode=mode)
    expected = state(framework, call, tmp_path)
    assert state(framework, printed, tmp_path, **env) == expected
    other = python_lines(framework, seed=78, mode=mode)
    assert mode or state(framework, other, tmp_path, **env) != expected


def test_every_step_of_the_table_is_printed_with_its_reason() -> None:
    told = yaml.safe_load(seeding._FILE.read_text(encoding="utf-8"))
    assert told.pop("version") == 1
    text = seed_recipe(seed=5, mode=True)
    for groups in told.values():
        for steps in groups.values():
            for step in [step for step in steps if isinstance(step, dict)]:
                name = step.get("call") or step.get("set") or step["environment"]
                line = next(line for line in text.splitlines() if name in line)
                assert step["why"] in line


def test_a_choice_of_the_person_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    call = ["import torch, trueup", "trueup.seed_all(1, mode=True)"]
    assert ":16:8" in state("torch", call, tmp_path, CUBLAS_WORKSPACE_CONFIG=":16:8")


def test_the_verb_prints_one_framework_or_both(tmp_path: Path) -> None:
    both = run_trueup("seed-all", cwd=tmp_path)
    assert both.returncode == 0
    assert both.stdout == seed_recipe()
    assert "use_deterministic_algorithms" not in both.stdout
    assert "trueup.seed_all(1234)" in both.stderr
    one = run_trueup("seed-all", "--framework", "torch", "--seed", "7", "--mode", "-q", cwd=tmp_path)
    assert one.stdout == seed_recipe(["torch"], seed=7, mode=True)
    assert one.stderr == ""
    assert "mindspore" not in one.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--framework", "jax"], "--framework: expected one of: torch, mindspore (got 'jax')"),
        (["--seed", "-1"], "--seed: expected a number from 0 to 4294967295"),
        (["--seed", "4294967296"], "--seed: expected a number from 0 to 4294967295"),
    ],
)
def test_a_mistake_is_named(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["seed-all", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
