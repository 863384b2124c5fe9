"""The report of compared curves, drawn."""

from __future__ import annotations

from rich.console import Console

from tests.curves.simulating import Truth, simulate
from trueup.curves.comparison import compare_curves
from trueup.diagnosing.around import Around, ShownText
from trueup.reporting.curves.report import curves_report
from trueup.reporting.render import show


def test_what_traces_hold_around_the_step_is_shown() -> None:
    found = compare_curves(*simulate(Truth(num_steps=300), 1))
    text = ShownText(step=3, where="step 3, row 0", text="1 2 3")
    around = Around(step=3, scalars={}, said=["target, step 3: loss 2.5"], texts=[text])
    console = Console(width=120, record=True, quiet=False)
    show(curves_report([found], around={found.target.name: around}), console)
    drawn = console.export_text()
    assert "target, step 3: loss 2.5" in drawn
    assert "step 3, row 0: 1 2 3" in drawn
