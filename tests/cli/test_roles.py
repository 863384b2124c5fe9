"""Jobs of several process groups: each role beside its counterpart, whichever of them keeps the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trueup.cli import app
from trueup.importers.opening import traces_inside
from trueup.store.roles import traces_by_role

pytestmark = pytest.mark.torch


def of_role(trace: Path, role: str) -> Path:
    """The trace with the phases of a role."""
    file = trace / "scalars" / "rank_00000.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["phases"] = [{"role": role, "phase": "update", "number": 0, "calls": [0, 1]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return trace


def job(folder: Path, actor: Path, critic: Path, *, first: str) -> Path:
    """A run of two process groups, the ``first`` of which keeps the folder."""
    other = folder / "processes" / f"{'critic' if first == 'actor' else 'actor'}-0123abcd"
    places = (folder, other) if first == "actor" else (other, folder)
    for source, place, role in zip((actor, critic), places, ("actor", "critic"), strict=True):
        shutil.copytree(source, place, dirs_exist_ok=True)
        of_role(place, role)
    return folder


def test_the_role_is_told_by_the_phases(runs: Path, tmp_path: Path) -> None:
    one = job(tmp_path / "one", runs / "target", runs / "reference", first="critic")
    assert traces_by_role(one) == {"critic": one, "actor": one / "processes" / "actor-0123abcd"}
    assert traces_by_role(runs / "target") == {"": runs / "target"}


@pytest.mark.parametrize(
    "line", ["null", "[]", '{"step": 0, "phases": null}', '{"step": 0, "phases": [{}]}', "{", "7"]
)
def test_a_damaged_line_of_scalars_is_no_crash(
    line: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    shutil.copytree(runs / "target", target)
    (target / "scalars" / "rank_00000.jsonl").write_text(line + "\n")
    assert app.run(["compare", str(target), str(runs / "reference"), "-o", str(tmp_path / "out")]) in (1, 2)
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert ("rank_00000.jsonl" in said) or line.startswith("{")


@pytest.mark.parametrize("first", ["actor", "critic"])
@pytest.mark.parametrize("wrong", ["actor", "critic", None])
def test_a_fault_in_one_role_is_found_there(
    first: str, wrong: str | None, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {role: runs / ("target" if role == wrong else "reference") for role in ("actor", "critic")}
    target = job(tmp_path / "target", held["actor"], held["critic"], first=first)
    reference = job(tmp_path / "reference", runs / "reference", runs / "reference", first="actor")
    out = tmp_path / "out"
    status = app.run(["compare", str(target), str(reference), "-o", str(out)])
    said = capsys.readouterr().out
    assert (status, "gelu" in said) == (0 if wrong is None else 1, wrong is not None)
    folders = {
        first: out,
        "critic" if first == "actor" else "actor": out / ("critic" if first == "actor" else "actor"),
    }
    verdicts = {
        role: json.loads((place / "result.json").read_text())["verdict"] for role, place in folders.items()
    }
    assert {role: one["exit_code"] for role, one in verdicts.items()} == {
        role: int(role == wrong) for role in ("actor", "critic")
    }


def test_a_role_of_one_run_alone_is_no_agreement(runs: Path, tmp_path: Path) -> None:
    both = job(tmp_path / "both", runs / "reference", runs / "reference", first="actor")
    alone = of_role(shutil.copytree(runs / "reference", tmp_path / "alone"), "actor")
    assert app.run(["compare", str(both), str(alone), "-q"]) == 2


def test_diagnose_takes_each_role(runs: Path, tmp_path: Path) -> None:
    target = job(tmp_path / "target", runs / "reference", runs / "target", first="actor")
    reference = job(tmp_path / "reference", runs / "reference", runs / "reference", first="critic")
    out = tmp_path / "out"
    assert app.run(["diagnose", str(target), str(reference), "-o", str(out), "-q"]) == 1
    assert (out / "critic" / "diagnosis.html").exists()


def profiled(folder: Path, **stages: Path) -> Path:
    """What verl's profiler writes: a trace for each step and stage."""
    for place, source in stages.items():
        step, _, stage = place.partition("__")
        shutil.copytree(source, folder / step / stage)
    return folder


def test_traces_of_steps_and_stages_are_compared_place_by_place(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = runs / "reference", runs / "target"
    places = dict.fromkeys(("step_2__actor_update", "step_2__ref", "step_10__actor_update"), same)
    reference = profiled(tmp_path / "reference", **places)
    agrees = profiled(tmp_path / "agrees", **places)
    assert list(traces_inside(agrees)) == ["step_2/actor_update", "step_2/ref", "step_10/actor_update"]
    assert app.run(["compare", str(agrees), str(reference), "-q"]) == 0
    wrong = profiled(tmp_path / "wrong", **{**places, "step_10__actor_update": other})
    out = tmp_path / "out"
    assert app.run(["compare", str(wrong), str(reference), "-o", str(out), "-q"]) == 1
    codes = {
        str(file.parent.relative_to(out)): json.loads(file.read_text())["verdict"]["exit_code"]
        for file in out.rglob("result.json")
    }
    assert codes == {"step_2/actor_update": 0, "step_2/ref": 0, "step_10/actor_update": 1}
    assert app.run(["diagnose", str(wrong), str(reference), "-o", str(tmp_path / "diagnosed"), "-q"]) == 1
    short = profiled(tmp_path / "short", step_2__actor_update=same, step_2__ref=same)
    assert app.run(["compare", str(short), str(reference), "-q"]) == 2
    assert "step_10/actor_update" in capsys.readouterr().err
    assert app.run(["compare", str(agrees), str(same), "-q"]) != 0  # a single trace is no counterpart
