"""The browser the page is tested in: what is said where there is none."""

from __future__ import annotations

import pytest

from tests.reporting import browser


def test_a_machine_without_chromium_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert browser.missing() == "chromium is not installed (Debian: apt-get install chromium chromium-driver)"
