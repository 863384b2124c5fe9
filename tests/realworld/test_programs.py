"""Programs that people train with: capture changes none, the same run twice agrees, no
check fails, a fault is named.

``make realworld`` asks all of it of all programs; here the light ones and verl's SFT trainer, each with one
fault and no replay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from realworld.entries import SCRIPTS, Program, programs
from realworld.run import unknown_lines
from realworld.trial import LEVELS, REFERENCE, Asked, Trial, faults_of

from tests.warm import OF_TRUEUP, warm_python

WITH_VALUES = ("nanogpt", "hf-trainer")
IN_CI = [one for one in programs().values() if one.in_ci is not None]


@pytest.fixture(scope="module")
def python_of() -> Iterator[Callable[[Program], str]]:
    """A program's environment, warmed once."""
    with ExitStack() as stack:
        known: dict[tuple[object, ...], str] = {}

        def python(program: Program) -> str:
            found = program.python
            if not found.exists():
                why = f"{found} is not there: bash realworld/setup.sh {program.environment} makes it"
                if os.environ.get("CI") == "true":
                    pytest.fail(why)
                pytest.skip(why)
            key = (program.environment, *program.settings.items())
            if key not in known:
                warm = warm_python(str(found), *OF_TRUEUP, settings=program.settings)
                known[key] = stack.enter_context(warm)
            return known[key]

        yield python


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.realworld
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("realworld")
@pytest.mark.parametrize("name", [one.name for one in IN_CI])
def test_a_real_program(name: str, python_of: Callable[[Program], str], tmp_path: Path) -> None:
    program = programs()[name]
    python = python_of(program)
    levels = Asked.levels if name in WITH_VALUES else (REFERENCE,)  # each is one more start
    asked = Asked(faults=(program.in_ci or "",), replay=False, seed=False, levels=levels)
    program = replace(program, processes=program.processes_in_ci or program.processes)
    results = Trial(program, tmp_path, python).run(asked)
    assert not unknown_lines(program, faults_of(results))
    assert set(results["capture"]) == {"mix", *levels} <= set(LEVELS)
    assert results["again"]["outcome"] == "agree"
    assert set(results["faults"]) == {program.in_ci}


def test_every_stage_has_a_fault_in_ci() -> None:
    assert {one.in_ci for one in IN_CI} == {"data", "forward", "loss", "backward", "optimizer"}


def test_every_program_has_a_script_and_a_fault_of_every_stage() -> None:
    for program in programs().values():
        assert (SCRIPTS / program.script).exists()
        stages = set() if program.parity else {"data", "forward", "loss", "backward", "optimizer"}
        assert set(program.faults) == stages, program.name
        assert program.alone is None or program.alone in programs()
