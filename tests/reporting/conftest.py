"""Results every reporting test reads, written once a session, and the browser some of them need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reporting import browser
from tests.reporting.synthetic import Fault, write_result


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A four-layer GPT whose third layer's first norm differs."""
    return write_result(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, every bit equal."""
    return write_result(tmp_path_factory.mktemp("agreeing"), agree=True)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names that are markup or formulas, NaN, infinities, rows of one side, rows nobody could compare."""
    return write_result(tmp_path_factory.mktemp("hostile"), hostile=True)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150,000 records over several steps and four ranks."""
    folder = tmp_path_factory.mktemp("large")
    return write_result(folder, layers=24, rows_at_least=150_000, fault=Fault(layer=9))


@pytest.fixture(scope="session")
def chromium() -> Iterator[browser.Browser]:
    """Headless Chromium; skipped where a person has none, a failure in CI."""
    lacking = browser.missing()
    if lacking and os.environ.get("CI"):
        pytest.fail(f"CI must have a browser: {lacking}")
    if lacking:
        pytest.skip(lacking)
    with browser.Browser() as running:
        yield running
