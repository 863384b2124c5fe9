"""The screen and the reader behind it, while a run is being written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.monitoring.test_tensorboard import run_of
from tests.reporting.screens import lines_of
from trueup.cli.app import run as command_line
from trueup.errors import ConfigError, TraceError
from trueup.monitoring.reader import open_run
from trueup.reporting.monitor import View, measured_names, monitor_report, watch
from trueup.reporting.render.terminal_text import bars
from trueup.store.layout import scalars_file


def test_whole_lines_are_read_as_they_come(tmp_path: Path) -> None:
    run = open_run(run_of(tmp_path / "run", 3))
    path = scalars_file(tmp_path / "run", 0)
    with path.open("a") as file:
        file.write('{"step": 3, "loss": 0.5}\n{"step": 4, "lo')
    assert run.update()
    assert [line["step"] for line in run.lines] == [0, 1, 2, 3]
    with path.open("a") as file:
        file.write('ss": 0.25}\n')
    assert run.update()
    assert run.numbers("loss")[-1] == 0.25
    assert not run.update()


def test_it_is_drawn_until_interrupted(tmp_path: Path) -> None:
    run = open_run(run_of(tmp_path / "run", 40))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    assert watch(run, console, View(rows=1), every=3.0, wait=wait) == 0
    assert waited == [3.0, 3.0]
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no alarm" in shown
    assert "layers.0.weight" in shown
    assert "and 1 more" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    run = open_run(run_of(tmp_path / "run", 40))
    assert max(map(len, lines_of(monitor_report(run, View()), width))) <= width


def test_a_name_that_nothing_has_is_told(tmp_path: Path) -> None:
    report = monitor_report(open_run(run_of(tmp_path / "run", 3)), View(names="nowhere"))
    assert any("no measured name contains 'nowhere'" in line for line in lines_of(report))


def test_bars_mark_what_is_not_finite() -> None:
    import numpy as np

    assert bars(np.asarray([0.0, 1.0, np.nan, 0.5]), 10).plain == "▁█!▅"
    assert bars(np.asarray([2.0, 2.0]), 10).plain == "▁▁"
    assert bars(np.zeros(0), 10).plain == ""


def test_a_run_of_another_kind_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(TraceError, match="without --monitor"):
        open_run(tmp_path)
    with pytest.raises(ConfigError, match="has ranks 0"):
        open_run(run_of(tmp_path / "run", 3), rank=3)


def test_names_that_nothing_has_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", 3)
    name = measured_names(open_run(run))[0]
    assert command_line(["monitor", str(run), "--once", "--list", name[:-1]]) in (0, 1)
    capsys.readouterr()
    assert command_line(["monitor", str(run), "--once", "--list", name + "x"]) == 2
    assert f"did you mean {name!r}" in capsys.readouterr().err
