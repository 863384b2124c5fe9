"""Programs that people train with: capture changes none, the same run twice agrees, no
check fails, a fault is named.

``make realworld`` asks all of it of all programs; here the light ones and verl's SFT trainer, each with one
fault and no replay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from realworld.entries import SCRIPTS, programs
from realworld.pythons import Pythons
from realworld.run import unknown_lines
from realworld.trial import LEVELS, REFERENCE, Asked, Trial, faults_of

WITH_VALUES = ("nanogpt", "hf-trainer")
IN_CI = [one for one in programs().values() if one.in_ci is not None]


@pytest.fixture(scope="module")
def pythons() -> Iterator[Pythons]:
    with ExitStack() as closing:
        yield Pythons(closing)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.realworld
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("realworld")
@pytest.mark.parametrize("name", [one.name for one in IN_CI])
def test_a_real_program(name: str, pythons: Pythons, tmp_path: Path) -> None:
    program = programs()[name]
    try:
        python = pythons.of(program)
    except FileNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
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
