"""Answers to inputs that never change are as they were; ``python -m tests.goldens`` lists what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens.cases import CASES, answer, golden, unpack
from tests.goldens.reading import differences


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All inputs, unpacked once, to be left as they are."""
    return unpack(tmp_path_factory.mktemp("goldens"))


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, cases in CASES.items() for name in cases])
def test_the_answer_is_as_it_was(verb: str, name: str, inputs: Path, tmp_path: Path) -> None:
    assert differences(answer(verb, name, inputs, tmp_path / "out"), golden(verb)[name]) == []


@pytest.mark.parametrize("verb", list(CASES))
def test_every_golden_answer_is_asked_for(verb: str) -> None:
    assert list(golden(verb)) == list(CASES[verb])


def test_a_difference_is_seen_and_rounding_is_none() -> None:
    then = {"outcome": "differ", "sites": ["a"], "beyond": [["origin", 1.0]], "status": 1}
    assert differences(then | {"sites": ["b"], "beyond": [["origin", 1.000001]]}, then) == []
    for other in ({"beyond": [["origin", 1.00001]]}, {"beyond": []}, {"status": True}, {"more": 1}):
        assert len(differences(then | other, then)) == (other != {"status": True}), other
    assert differences({}, then) != []
    assert differences(then, None) != []
