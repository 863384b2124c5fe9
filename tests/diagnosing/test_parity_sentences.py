"""Sentences about compiled regions, held against measurements that chance puts together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.checks.test_each_reason import said_by
from tests.diagnosing.made_steps import Array, codes_of, drawn, facts_of, run, step
from trueup.diagnosing.checks.outcome import CheckOutcome, CheckVerdict, Judge
from trueup.diagnosing.parity import _judge_regions, parity
from trueup.store.view import LOCAL, WEIGHT
from trueup.types.codes import CheckCode as Code
from trueup.wording import text

JUDGE = Judge("regions", "Every compiled region computes what its operations compute one by one")


def row(name: str, difference: float, allowed: float = 1.0, norm: float = 10.0) -> dict[str, Any]:
    return {"name": name, "difference": difference, "allowed": allowed, "norm": norm}


def region(
    number: str, *rows: dict[str, Any], module: str = "head", skipped: str = "", **more: Any
) -> dict[str, Any]:
    call = {"module": module, "step": 3, "tensors": list(rows)}
    return {
        "region": number, "module": module, "function": f"forward {number}", "code": [],
        "skipped": skipped, "calls": [call] if rows else [], **more,
    }  # fmt: skip


def facts(outcome: CheckOutcome, code: Code) -> dict[str, Any]:
    found = facts_of(said_by(outcome), code)
    assert found is not None, (code, outcome)
    return found


def test_regions_by_chance() -> None:
    """Up to three regions on one or two ranks, of tensors within rounding, beyond it, or not known."""
    random, seen = np.random.default_rng(1), set[Any]()
    for _ in range(120):
        names = ["output.0", "output.1", "gradient w"]
        plain: list[list[dict[str, Any]]] = []
        for _ in range(int(random.integers(1, 4))):
            kept = [name for name in names if random.random() < 0.7]
            sizes = random.choice([0.0, 0.4, 0.9, 3.0], len(kept), p=[0.4, 0.3, 0.25, 0.05])
            known = [math.inf if random.random() < 0.1 else 1.0 for _ in kept]
            plain.append(
                [
                    row(n, math.inf if k == math.inf else s, k)
                    for n, s, k in zip(kept, sizes, known, strict=True)
                ]
            )
        ranks = int(random.integers(1, 3))
        regions = [(rank, region(f"{at}/0", *rows)) for rank in range(ranks) for at, rows in enumerate(plain)]
        outcome = _judge_regions(JUDGE, regions)
        seen |= codes_of(said_by(outcome))
        told = [[one for one in rows if one["allowed"] < math.inf] for rows in plain]
        beyond = [at for at, rows in enumerate(told) if any(one["difference"] > 1 for one in rows)]
        if beyond:
            assert facts(outcome, Code.REGION_DIFFERS)["num"] == len(beyond)
            said, rows = facts(outcome, Code.REGION_TENSOR), told[beyond[0]]
            worst = max(rows, key=lambda one: one["difference"])
            assert (said["tensor"], said["times"]) == (worst["name"], worst["difference"])
            assert said["rel_l2"] == pytest.approx(worst["difference"] / 10)
            num, total = sum(one["difference"] > 1 for one in rows), len(plain[beyond[0]])
            assert (said["num"], said["total"], said["region"]) == (num, total, f"{beyond[0]}/0")
            only = [one["name"] for one in rows if one["difference"] > 1]
            assert said["phase"] == ("backward" if only == ["gradient w"] else "forward")
            assert outcome.places[0].detail is not None
            line = text(outcome.places[0].detail)
            assert f"{num} of its {total} tensor" in line
            assert ("differs by more" in line) == (num == 1)
            assert Code.COMPILE_OTHERWISE in codes_of(said_by(outcome))
        elif not all(told):
            said = facts(outcome, Code.REGIONS_UNKNOWN)
            assert (said["num"], said["total"]) == (sum(not rows for rows in told), len(plain))
            assert outcome.verdict is CheckVerdict.UNDECIDED
        else:
            said = facts(outcome, Code.REGIONS_AGREE)
            assert (said["regions"], said["num"]) == (len(plain), ranks * sum(map(len, told)))
            assert said["times"] == max(one["difference"] for rows in told for one in rows) <= 1
            grads = any(one["name"] == "gradient w" for rows in told for one in rows)
            assert ("gradients" in text(outcome.sentence)) == grads
    assert {Code.REGIONS_AGREE, Code.REGION_DIFFERS, Code.REGIONS_UNKNOWN, Code.REGION_TENSOR} <= seen


def test_a_tensor_that_should_be_zero() -> None:
    outcome = _judge_regions(JUDGE, [(0, region("0/0", row("output.0", 2.0, norm=0.0)))])
    assert outcome.places[0].detail is not None
    assert "inf" not in text(outcome.places[0].detail)


def written(path: Path, made: Array, grad: Array, **compiled: Any) -> Any:
    one = step({"w": {WEIGHT: drawn(1), LOCAL: grad}}, inputs=[drawn(2)])
    root = one.call("module", "head", 1, "Linear")
    one.record(root, "forward", "output.0", made)
    return run(path, one, facts={"compiled": compiled} if compiled else {})


def test_two_runs_one_of_which_is_compiled(tmp_path: Path) -> None:
    """The module's output is the eager one's, or it is not; a region of the loss is around no module."""
    regions = [
        region("0/0", row("output.0", 0.1), module="head"),
        region("1/0", row("output.0", 0.1), module="", in_module=False),
    ]
    eager = written(tmp_path / "eager", drawn(3), drawn(4))
    for at, (made, around) in enumerate(
        ((drawn(3), regions), (2 * drawn(3), regions), (2 * drawn(3), regions[1:]))
    ):
        compiled = written(
            tmp_path / f"compiled {at}",
            made,
            drawn(4),
            regions=around,
            graph_breaks={"print": 2, "other": 1},
            recompiles=1,
        )
        judged, runs, counted = parity(compiled, eager)
        assert judged.verdict is CheckVerdict.PASSED
        codes = codes_of(said_by(runs))
        assert (Code.RUNS_AGREE in codes) == (at == 0) == (Code.RUNS_DIFFER not in codes)
        assert (Code.IN_REGION in codes) == (at == 1)
        if at == 0:
            num = compiled.read(0, 0).records.height
            assert facts(runs, Code.RUNS_AGREE) == {"num": num}
        if at == 1:
            assert facts(runs, Code.IN_REGION)["region"] == "0/0"
        assert facts(counted, Code.COMPILATIONS) == {"regions": len(around), "breaks": 3, "recompiles": 1}
        breaks = {
            one.place("why"): one.number("num") for one in counted.notes if one.code is Code.GRAPH_BREAK
        }
        assert breaks == {"print": 2, "other": 1}
        assert Code.EAGER_RANDOM_NUMBERS in codes_of(said_by(counted))
    assert {one.sentence.code for one in parity(eager, eager)} == {Code.NOTHING_COMPILED}
