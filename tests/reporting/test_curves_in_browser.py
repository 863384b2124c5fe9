"""The page of compared curves in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.curves.simulating import Truth, simulate
from tests.reporting.browser import Browser
from trueup.curves.comparison import compare_curves
from trueup.reporting.curves import write_reports

pytestmark = pytest.mark.browser

LEFT = "document.querySelectorAll('.plot')[{}].layout.xaxis.range[0]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    truth = Truth(num_steps=1500, change_step=900, end_sigmas=30)
    found = [compare_curves(*simulate(truth, seed)) for seed in (1, 2)]
    return write_reports(found, folder, {"html"})["html"]


def test_every_plot_is_drawn_without_a_complaint(chromium: Browser, page: Path) -> None:
    chromium.console()
    chromium.open(page)
    assert chromium.console() == []
    assert chromium.run("document.querySelectorAll('.plot').length") == 12
    assert chromium.run("document.querySelectorAll('.plot .main-svg').length") >= 12
    assert chromium.run("document.querySelectorAll('.plot .barlayer path').length") > 20


def test_zooming_one_plot_zooms_those_of_its_run(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    other = chromium.run(LEFT.format(6))
    dragged = "{'xaxis.range[0]': 200, 'xaxis.range[1]': 400}"  # what dragging over a plot sends
    chromium.run(f"Plotly.relayout(document.querySelectorAll('.plot')[0], {dragged}) && 1")
    chromium.wait(f"{LEFT.format(1)} === 200")
    assert chromium.run(LEFT.format(6)) == other


def test_dark_colours_reach_the_plots(chromium: Browser, page: Path) -> None:
    colour = "document.querySelectorAll('.plot')[0].layout.font.color"
    chromium.open(page)
    light = chromium.run(colour)
    chromium.run("document.getElementById('theme').click()")
    chromium.wait(f"{colour} !== '{light}'")
