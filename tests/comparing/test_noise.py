"""A noise profile is read, refused where it is not one, and sets the bounds of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.comparing.reading import facts
from tests.comparing.traces import Change, network
from trueup.comparing.noise import SCHEMA, NoiseProfile
from trueup.comparing.options import CompareOptions
from trueup.comparing.run import compare
from trueup.diagnosing.noise_fold import NoiseFold
from trueup.errors import TraceError
from trueup.store import Trace
from trueup.types.codes import NextCode, NoteCode, RecordCode, ToleranceCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.status import Outcome


def noisy(seed: int, size: float) -> Change:
    """Every tensor but the weights off by noise of a given size."""
    generator = np.random.default_rng(seed)

    def change(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if site.startswith(("param", "new")):
            return array
        return (array * (1 + size * generator.standard_normal(array.shape))).astype(np.float32)

    return change


def measured(folder: Path, size: float, *, repeats_move: bool = False) -> Path:
    """A reference whose reruns move by ``size``, with its profile; plain repeats too where asked for."""
    reference = network().write(folder / "reference", run_id="first")
    fold = NoiseFold(reference)
    for seed in range(3):
        fold.add(network(noisy(seed, size)).write(folder / f"rerun{seed}"), perturbed=True)
    repeat = network(noisy(7, size)) if repeats_move else network()
    fold.add(repeat.write(folder / "repeat"), perturbed=False)
    fold.profile(command=["python", "train.py"]).write(folder / "reference")
    return folder / "reference"


def test_a_profile_says_how_far_each_record_moves(tmp_path: Path) -> None:
    profile = NoiseProfile.read(measured(tmp_path, 1e-4))
    assert profile.num_runs == 4
    assert dict(profile.table.schema) == {name: kind() for name, kind in SCHEMA.items()}
    forward = profile.table.filter((pl.col("phase") == "forward") & pl.col("place").str.ends_with("linear#0"))
    assert forward.height == 3
    assert (forward["repeat"] == 0).all()
    assert forward["perturbed"].is_between(0.5e-4, 3e-4).all()
    assert (forward["num_runs"] == 4).all()
    weights = profile.table.filter(pl.col("phase") == "param")
    assert (weights["perturbed"] == 0).all()


def test_gain_is_noise_out_over_noise_in_and_null_for_roots(tmp_path: Path) -> None:
    table = NoiseProfile.read(measured(tmp_path, 1e-4)).table
    outputs = table.filter((pl.col("phase") == "forward") & (pl.col("slot") == "output.0"))
    layer = outputs.filter(pl.col("place").str.ends_with("layers.1#0"))
    root = outputs.filter(pl.col("place") == "0|train|module|#0")
    assert 0.2 < layer["gain"][0] < 5
    assert root["gain"].to_list() == [None]
    leaving = table.filter((pl.col("phase") == "backward") & (pl.col("slot") == "input.0"))
    assert leaving["gain"].null_count() == 0


@pytest.mark.parametrize(("size", "agrees"), [(1e-4, True), (1e-3, False)])
def test_measured_noise_decides(tmp_path: Path, size: float, agrees: bool) -> None:
    reference = measured(tmp_path, 1e-4, repeats_move=True)
    network(noisy(99, size)).write(tmp_path / "target")
    result = compare(tmp_path / "target", reference)
    assert (result.exit_code == 0) is agrees
    assert result.content.tolerance.origin == reason(ToleranceCode.MEASURED_NOISE, reruns=4)
    assert result.summary["options"]["noise"] is True
    without = compare(tmp_path / "target", reference, options=CompareOptions(noise=False))
    assert without.exit_code == 1
    assert without.content.tolerance.origin.code is ToleranceCode.DTYPE_BOUND
    named = compare(tmp_path / "target", reference, options=CompareOptions(noise=reference))
    assert named.summary["verdict"] == result.summary["verdict"]


@pytest.mark.parametrize(
    ("entered", "code"), [(3e-4, VerdictCode.NOISE_GREW), (0.0, VerdictCode.FIRST_DIVERGENCE)]
)
def test_noise_that_grows_in_a_layer_is_told_from_an_error_made_there(
    tmp_path: Path, entered: float, code: VerdictCode
) -> None:
    generator = np.random.default_rng(5)

    def change(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        size = {"in.1": entered, "linear.1": 9e-4, "out.1": 9e-4}.get(site, 0.0)
        return (array * (1 + size * generator.standard_normal(array.shape))).astype(np.float32)

    reference = measured(tmp_path, 1e-4, repeats_move=True)
    network(change, loss=False).write(tmp_path / "target")
    verdict = compare(tmp_path / "target", reference).verdict
    assert verdict.headline.code is code
    assert verdict.next is not None
    assert (verdict.next.code is NextCode.MEASURE_NOISE) is (code is VerdictCode.NOISE_GREW)


@pytest.mark.parametrize(
    ("lone", "size", "code"),
    [
        ("layers.0.delta", 9e-4, VerdictCode.PARAMETER_OF_ONE_SIDE),
        (None, 9e-4, VerdictCode.NOISE_GREW),
        ("layers.0.delta", 5e-2, VerdictCode.FIRST_DIVERGENCE),
    ],
    ids=["small", "no such parameter", "far beyond noise"],
)
def test_what_may_be_noise_is_led_by_a_parameter_of_one_run(
    tmp_path: Path, lone: str | None, size: float, code: VerdictCode
) -> None:
    generator = np.random.default_rng(5)

    def change(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        amount = {"in.1": 3e-4, "linear.1": size, "out.1": size}.get(site, 0.0)
        return (array * (1 + amount * generator.standard_normal(array.shape))).astype(np.float32)

    reference = measured(tmp_path, 1e-4, repeats_move=True)
    network(change, loss=False, lone=lone).write(tmp_path / "target")
    verdict = compare(tmp_path / "target", reference).verdict
    assert verdict.headline.code is code
    if code is VerdictCode.PARAMETER_OF_ONE_SIDE:
        places = verdict.headline.place("side"), verdict.headline.place("parameter")
        assert (places, verdict.outcome) == (("target", lone), Outcome.UNDECIDED)


def test_noise_below_rounding_makes_no_alarm(tmp_path: Path) -> None:
    def rounding(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.nextafter(array, np.float32(9)) if site.startswith(("out", "gin", "linear")) else array

    reference = measured(tmp_path, 0.0)
    assert NoiseProfile.read(reference).table["perturbed"].max() == 0
    network(rounding).write(tmp_path / "target")
    result = compare(tmp_path / "target", reference)
    assert result.exit_code == 0, result.summary["verdict"]
    assert result.summary["counts"]["within_noise"] > 0


def test_a_common_factor_below_the_noise_is_seen(tmp_path: Path) -> None:
    from tests.comparing.traces import Recorder
    from trueup.comparing.origins import origins

    def run(seed: int, factor: float = 1.0) -> Recorder:
        out, draw = Recorder(), np.random.default_rng(seed)
        exact = np.random.default_rng(0).standard_normal((6, 64, 64))
        root = out.call("module", "", type_="Net")
        for layer in range(6):
            module = out.call("module", f"layers.{layer}", root, "Linear")
            array = exact[layer] * (1 + 1e-2 * draw.standard_normal((64, 64)))
            array = array * factor if layer == 3 else array
            out.record(module, "forward", "output.0", array.astype(np.float32))
        return out

    reference = run(0).write(tmp_path / "reference", values=True)
    fold = NoiseFold(reference)
    for seed in (1, 2, 3):
        fold.add(run(seed).write(tmp_path / f"rerun{seed}", values=True), perturbed=seed > 1)
    fold.profile(command=["python"]).write(tmp_path / "reference")
    run(9).write(tmp_path / "benign", values=True)
    assert compare(tmp_path / "benign", tmp_path / "reference").exit_code == 0
    run(9, 1.008).write(tmp_path / "target", values=True)
    compare(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    found = origins(tmp_path / "out")
    assert [origin.module for origin in found] == ["layers.3"]
    factor = facts(found[0].evidence, RecordCode.COMMON_FACTOR)["factor"]
    assert 0 < factor < 0.01
    assert found[0].bias_z is not None
    assert found[0].bias_z > 5


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    reference = measured(tmp_path, 1e-4)
    facts, table = reference / "noise" / "profile.json", reference / "noise" / "profile.parquet"
    network().write(tmp_path / "target")
    good = facts.read_text()
    with pytest.raises(TraceError, match="no noise profile in"):
        NoiseProfile.read(tmp_path / "target")
    for text, said in (("{", "is not JSON"), (json.dumps({"schema_version": 0}), "version 0")):
        facts.write_text(text)
        with pytest.raises(TraceError, match=said):
            compare(tmp_path / "target", reference)
    facts.write_text(good)
    pl.DataFrame({"step": [0]}).write_parquet(table)
    with pytest.raises(TraceError, match="lacks the columns"):
        compare(tmp_path / "target", reference)
    table.write_bytes(b"PAR1")
    with pytest.raises(TraceError, match="measure it again"):
        compare(tmp_path / "target", reference)
    assert compare(tmp_path / "target", reference, options=CompareOptions(noise=False)).exit_code == 0


def test_a_profile_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    reference = measured(tmp_path, 1e-4)
    manifest = reference / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"first"', '"second"'))
    network().write(tmp_path / "target")
    with pytest.raises(TraceError, match="measured on another run"):
        compare(tmp_path / "target", reference)


def test_noise_that_has_not_come_in_does_not_go_out(tmp_path: Path) -> None:
    reference = measured(tmp_path, 1e-4)
    network(noisy(99, 1e-4)).write(tmp_path / "target")
    verdict = compare(tmp_path / "target", reference).summary["verdict"]
    assert verdict["where"] == "(root) · input.0"


def test_steps_the_profile_lacks_are_judged_by_the_dtype_bound(tmp_path: Path) -> None:
    reference = measured(tmp_path, 1e-4, repeats_move=True)
    network().write(reference, step=1, run_id="first")
    for step in (0, 1):
        network(noisy(99, 1e-4)).write(tmp_path / "target", step=step)
    result = compare(tmp_path / "target", reference)
    missing = reason(NoteCode.NOT_IN_NOISE_PROFILE, step=1, rank=0)
    assert missing in result.content.notes
    assert result.summary["verdict"]["step"] == 1
    assert Trace(reference).steps() == {0: [0], 1: [0]}


def test_a_change_that_a_program_undoes_is_no_measurement(tmp_path: Path) -> None:
    """Masters that are written back, of an update by 0: the reruns are the reference again in step 1."""
    reference = measured(tmp_path, 1e-4)
    network().write(reference, step=1, run_id="first")
    profile = NoiseProfile.read(reference)
    later = profile.table.with_columns(step=pl.lit(1, pl.Int32), perturbed=0.0, repeat=0.0)
    for twin, table in ((None, later), (1e-9, later.with_columns(perturbed=1e-9))):
        NoiseProfile(table=pl.concat([profile.table, table]), facts=profile.facts).write(reference)
        network(noisy(99, 1e-4)).write(tmp_path / "target")
        network(noisy(99, 1e-8)).write(tmp_path / "target", step=1)
        notes = compare(tmp_path / "target", reference).content.notes
        missing = reason(NoteCode.NOT_IN_NOISE_PROFILE, step=1, rank=0)
        assert (missing in notes) is (twin is None)
