"""Errors are charged to where they were made: by hand-made traces, one property each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.comparing.traces import Change, Recorder, network, of_two_ranks
from trueup.comparing.origins import origins
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare
from trueup.types.finding import Basis, Stage


def scaled_at(**factors: float) -> Change:
    """Multiply the tensors at some sites (``out_1`` for ``out.1``)."""
    wanted = {name.replace("_", "."): factor for name, factor in factors.items()}

    def change(site: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return (array * np.float32(wanted.get(site, 1.0))).astype(np.float32)

    return change


def compared(folder: Path, target: Recorder, reference: Recorder) -> Comparison:
    """Both written and compared, the result in ``folder / "out"``."""
    target.write(folder / "target")
    reference.write(folder / "reference")
    return compare(folder / "target", folder / "reference", output=folder / "out")


def statuses(result: Comparison) -> dict[str, str]:
    """Site -> status of everything beyond tolerance."""
    rows = result.frame().select(pl.col("site"), pl.col("status").cast(pl.String))
    return {site: status for site, status in rows.iter_rows() if status not in ("equal", "within_noise")}


def test_what_follows_from_an_error_is_propagated(tmp_path: Path) -> None:
    downstream = {"output": 1.01, "loss": 1.01, "gout_2": 1.01, "gin_2": 1.01, "grad_2": 1.01}
    change = scaled_at(out_1=1.01, in_2=1.01, linear_2=1.01, out_2=1.01, **downstream)
    result = compared(tmp_path, network(change), network())
    found = statuses(result)
    assert found.pop("layers.1 · output.0") == "origin"
    assert found
    assert set(found.values()) == {"propagated"}
    assert result.summary["counts"]["different"] == len(found) + 1
    only = origins(tmp_path / "out")
    assert [(o.module, o.stage, o.basis) for o in only] == [("layers.1", Stage.FORWARD, Basis.BOUND)]
    assert only[0].score > 100


def test_independent_errors_are_all_origins(tmp_path: Path) -> None:
    change = scaled_at(param_0=1.1, gin_0=3.0, grad_2=2.0, new_1=1.3)
    compared(tmp_path, network(change), network())
    found = {(o.stage, o.module) for o in origins(tmp_path / "out")}
    assert {
        (Stage.WEIGHTS, "layers.0"),
        (Stage.BACKWARD, "layers.0"),
        (Stage.BACKWARD, "layers.2"),
        (Stage.OPTIMIZER, "layers.1.weight"),
    } == found


def test_more_than_what_came_in_explains_is_an_origin_too(tmp_path: Path) -> None:
    result = compared(
        tmp_path, network(scaled_at(out_0=1.001, in_1=1.001, linear_1=1.5), loss=False), network(loss=False)
    )
    found = statuses(result)
    assert found["layers.0 · output.0"] == "origin"
    assert found["layers.1 · input.0"] == "propagated"
    assert found["layers.1 · torch.nn.functional.linear · output.0"] == "origin"


def test_the_same_contents_handed_on_are_never_an_origin(tmp_path: Path) -> None:
    def made(factor: float) -> Recorder:
        out = Recorder()
        array = (np.arange(1, 65, dtype=np.float32) * np.float32(factor)).reshape(8, 8)
        root = out.call("module", "", type_="Net")
        for name in ("a", "b"):
            module = out.call("module", name, root, "Block")
            out.record(module, "forward", "input.0", array)
            out.record(module, "forward", "output.0", np.ones((8, 8), np.float32))
        return out

    found = statuses(compared(tmp_path, made(1.01), made(1.0)))
    assert found == {"a · input.0": "origin", "b · input.0": "propagated"}


def test_whole_numbers_in_explain_what_comes_out(tmp_path: Path) -> None:
    def embedding(ids: list[int]) -> Recorder:
        out, table = Recorder(), np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
        root = out.call("module", "", type_="Net")
        out.record(root, "forward", "input.0", np.array(ids))
        module = out.call("module", "emb", root, "Embedding")
        out.record(module, "forward", "input.0", np.array(ids))
        out.record(module, "forward", "output.0", table[ids])
        return out

    result = compared(tmp_path, embedding([1, 2, 3]), embedding([1, 2, 4]))
    assert statuses(result) == {
        "(root) · input.0": "origin",
        "emb · input.0": "propagated",
        "emb · output.0": "propagated",
    }
    assert origins(tmp_path / "out")[0].stage is Stage.DATA


def test_an_embedding_that_differs_with_equal_ids_is_an_origin(tmp_path: Path) -> None:
    def embedding(factor: float) -> Recorder:
        out = Recorder()
        root = out.call("module", "", type_="Net")
        module = out.call("module", "emb", root, "Embedding")
        out.record(module, "forward", "input.0", np.arange(8))
        rows = np.random.default_rng(0).standard_normal((8, 4)) * factor
        out.record(module, "forward", "output.0", rows.astype(np.float32))
        return out

    assert statuses(compared(tmp_path, embedding(1.001), embedding(1.0))) == {"emb · output.0": "origin"}


def test_a_gradient_reduced_from_another_ranks_is_not_this_ranks_fault(tmp_path: Path) -> None:
    whole = scaled_at(gin_1=1.01, grad_1=1.01)
    for name, changes in (("target", (scaled_at(grad_1=1.01), whole)), ("reference", (scaled_at(),) * 2)):
        ranks = []
        for rank, change in enumerate(changes):
            recorder = network(change)
            records = recorder.step.records
            for at in [i for i, phase in enumerate(records["phase"]) if phase == "param_grad"]:
                summary = records["summary"][at]
                own = network(change if rank else scaled_at()).values[summary]
                recorder.record(records["call"][at], "param_grad", "local", own)
            ranks.append(recorder)
        of_two_ranks(ranks[0], tmp_path / name, ranks[1])
    result = compare(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    rows = result.frame().filter((pl.col("rank") == 0) & (pl.col("status").cast(pl.String) == "origin"))
    assert rows["site"].to_list() == ["layers.1.weight · gradient accumulated"]
    assert {origin.rank for origin in origins(tmp_path / "out")} == {1}


def test_a_step_after_a_wrong_update_is_propagated(tmp_path: Path) -> None:
    later = scaled_at(**{f"{site}_1": 1.05 for site in ("param", "linear", "out")})
    for name, changes in (("target", (scaled_at(new_1=1.05), later)), ("reference", (scaled_at(),) * 2)):
        for step, change in enumerate(changes):
            network(change).write(tmp_path / name, step=step)
    result = compare(tmp_path / "target", tmp_path / "reference")
    rows = result.frame().filter(pl.col("status").cast(pl.String).is_in(["origin", "propagated"]))
    by_step = {step: set(part["status"].cast(pl.String)) for (step,), part in rows.group_by("step")}
    assert by_step == {0: {"origin"}, 1: {"propagated"}}
    assert result.summary["verdict"]["phase"] == "optimizer"


@pytest.mark.parametrize("name", ["gain", "error_in", "floor", "owner", "target_record", "reference_record"])
def test_the_numbers_behind_a_status_are_in_the_table(tmp_path: Path, name: str) -> None:
    result = compared(tmp_path, network(scaled_at(out_1=1.01, in_2=1.01, linear_2=1.01)), network())
    row = result.frame().filter(pl.col("site") == "layers.2 · torch.nn.functional.linear · output.0")
    assert row[name][0] is not None


@pytest.mark.parametrize("sums_wrongly", [False, True])
def test_what_a_collective_brings_from_another_rank_was_made_there(
    tmp_path: Path, sums_wrongly: bool
) -> None:
    def rank(own: float, total: float) -> Recorder:
        out = Recorder()
        module = out.call("module", "up", out.call("module", "", type_="Net"), "Linear")
        out.record(module, "forward", "input.0", np.arange(4, dtype=np.float32) * np.float32(own))
        call = out.call("collective", "torch.distributed.all_reduce", module)
        out.record(call, "collective", "input.0", np.arange(8, dtype=np.float32) * np.float32(own))
        out.record(call, "collective", "output.0", np.arange(8, dtype=np.float32) * np.float32(total))
        out.record(module, "forward", "output.0", np.arange(9, dtype=np.float32) * np.float32(total))
        return out

    changed, total = (2.0, 6.0) if sums_wrongly else (2.5, 5.5)
    of_two_ranks(rank(3.0, total), tmp_path / "target", rank(changed, total))
    of_two_ranks(rank(3.0, 5.0), tmp_path / "reference", rank(2.0, 5.0))
    compare(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    found = {(origin.module, origin.rank, origin.phase) for origin in origins(tmp_path / "out")}
    own = {("", 1, "forward")}  # the input of "up" on the second rank: the root's own code made it
    everywhere = {("up", rank, "forward") for rank in (0, 1)}
    assert {one for one in found if one[2] == "forward"} == (everywhere if sums_wrongly else own)


@pytest.mark.parametrize("clip_differs", [False, True])
def test_gradients_clipped_by_a_norm_follow_from_every_gradient(tmp_path: Path, clip_differs: bool) -> None:
    def clipped(grads: Sequence[float], factor: float = 1.0) -> Recorder:
        out, norm = Recorder(), math.hypot(*grads) * factor
        weights = [out.call("parameter", f"{name}.weight") for name in "abc"]
        for weight, grad in zip(weights, grads, strict=True):
            out.record(weight, "param_grad", "accumulated", np.full(16, grad, np.float32))
        for weight, grad in zip(weights, grads, strict=True):
            out.record(weight, "param_grad", "clipped", np.full(16, grad / norm, np.float32))
        return out

    target = clipped((1.0, 2.0, 3.0), 3.0) if clip_differs else clipped((1.0, 2.0, 3.6))
    found = statuses(compared(tmp_path, target, clipped((1.0, 2.0, 3.0))))
    made = {site for site, status in found.items() if status == "origin"}
    after = {f"{name}.weight · gradient clipped" for name in "abc"}
    assert made == (after if clip_differs else {"c.weight · gradient accumulated"})


def two_steps(folder: Path, *, grown: float, later: float = 1.0, unpaired: bool = False) -> Path:
    """One module in two steps: the rounding that comes in grows beyond its bound in the first, and the second
    has a factor of its own."""
    array = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    for step, (entered, made) in enumerate(((grown / 2, grown), (0.0, later - 1.0))):
        out = Recorder()
        call = out.call("module", "a", type_="Linear")
        out.record(call, "forward", "input.0", (array * np.float64(1 + entered)).astype(np.float32))
        out.record(call, "forward", "output.0", (array * np.float64(1 + made)).astype(np.float32))
        if unpaired and step == 0:
            out.record(out.call("module", "b"), "forward", "output.0", array)
        out.write(folder, step=step)
    return folder


@pytest.mark.parametrize(
    ("later", "unpaired", "status", "step"),
    [(1.01, False, "origin", 1), (1.01, True, "amplified", 0), (1.0, False, "amplified", 0)],
)
def test_a_step_after_noise_that_grew_may_have_an_error_of_its_own(
    later: float, unpaired: bool, status: str, step: int, tmp_path: Path
) -> None:
    target = two_steps(tmp_path / "target", grown=4e-7, later=later, unpaired=unpaired)
    result = compare(target, two_steps(tmp_path / "reference", grown=0.0))
    beyond = result.frame().filter(pl.col("step") == step, pl.col("score") > 1)
    assert (result.verdict.step, beyond["status"].to_list()) == (step, [status])
