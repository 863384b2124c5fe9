"""Every program of the collection, replayed on its own trace: no site differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from bugzoo.bases import bases
from bugzoo.trainer import Trainer

from tests.diagnosing.replaying import capture
from trueup.diagnosing.replay import build_plan, origins

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

WIDE = ("gpt-wide", "gpt-wide-bf16")
"""for threads: the model is another's, more of it"""
ALONE = [name for name, base in bases().items() if base.ranks == 1 and not base.ported and name not in WIDE]


def program(name: str) -> Callable[[], float]:
    return lambda: Trainer(bases()[name]).step()


@pytest.mark.parametrize("name", ALONE)
def test_a_program_differs_nowhere_from_itself(name: str, tmp_path: Path) -> None:
    if bases()[name].library is not None:
        pytest.importorskip("transformers")
    trusted = capture(tmp_path / "reference", program(name), store_values_of={"module", "parameter"})
    plan = build_plan(trusted, trusted, tmp_path / "replay" / "plan", level="L0", inside=(), steps={0})
    again = capture(tmp_path / "replay", program(name), replay=str(plan.folder))
    forced = again.forced(0, 0).with_columns(pl.col("state", "phase").cast(pl.String))
    assert forced.filter(pl.col("state") == "replaced").is_empty()
    apart = forced.filter((pl.col("difference") > 0) | pl.col("difference").is_nan())
    assert apart.is_empty(), apart
    seen = set(forced.filter(pl.col("state") == "equal")["phase"])
    assert {"forward", "backward", "param", "param_grad"} <= seen
    assert origins(tmp_path / "replay", tmp_path / "reference") == []
