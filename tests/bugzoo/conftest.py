"""Processes started by the tests of this folder end with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.worlds import worlds_closed


@pytest.fixture(scope="package", autouse=True)
def _worlds() -> Iterator[None]:
    with worlds_closed():
        yield
