"""Sentences about layers, held against the arrays of the token file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.mismatch.batches import sampled, write
from tests.mismatch.test_judging import layers
from trueup.mismatch.analysis import analyse
from trueup.mismatch.judging import MismatchJudgement
from trueup.types.codes import MismatchCode as M
from trueup.wording import text


def remark(found: MismatchJudgement, code: M) -> dict[str, Any] | None:
    return next((dict(one.facts) for one in (*found.remarks, *found.advice) if one.code is code), None)


def test_layers_that_are_bit_identical_up_to_one(tmp_path: Path) -> None:
    """Four layers, each with an error or none: the last before the first that is not equal, and that one."""
    arrays = sampled(rows=8, length=24)
    random = np.random.default_rng(3)
    for at in range(8):
        errors = [float(random.random() < 0.3) * 0.004 for _ in range(4)]
        found = analyse([write(tmp_path / f"{at}.npz", arrays | layers(arrays, errors))]).judgement
        first = next((at for at, error in enumerate(errors) if error), None)
        said = remark(found, M.LAYERS_EQUAL)
        if not first:
            assert said is None
        else:
            assert said == {"last": f"layers.{first - 1}", "first": f"layers.{first}"}


def test_layers_of_some_tokens(tmp_path: Path) -> None:
    """Of two files, one whose layers have another shape on one side: of its tokens no layer is known."""
    sides = [sampled(rows=8, length=24, seed=seed) for seed in (1, 2)]
    tokens = [int(one["mask"].sum()) for one in sides]
    for is_whole in (True, False):
        held = [one | layers(one, [0.004]) for one in sides]
        if not is_whole:
            held[1]["rollout/layers.0"] = held[1]["rollout/layers.0"][..., :8]
        paths = [write(tmp_path / f"{is_whole}-{at}.npz", one) for at, one in enumerate(held)]
        said = remark(analyse(paths).judgement, M.LAYERS_OF)
        assert said == (None if is_whole else {"num": tokens[0], "total": sum(tokens)})


def test_what_would_tell_more_is_asked_for(tmp_path: Path) -> None:
    """Layers where none are given; a benign variant where none is."""
    plain = sampled(rows=8, length=24)
    noise = {"noise_log_probs": plain["training_log_probs"] + np.float32(1e-4)}
    for arrays, bounds, layered, noisy in (
        (plain, {}, True, True),
        (plain | noise, {}, True, False),
        (plain | layers(plain, [0.9]), {"max_abs_diff": 1e-9}, False, False),
        (plain, {"max_abs_diff": 1e-9}, True, True),
    ):
        said = remark(
            analyse([write(tmp_path / "tokens.npz", arrays)], bounds=bounds).judgement, M.GIVE_LAYERS
        )
        assert (said is not None) is layered
        if said is not None:
            asked = text(
                next(one for one in judged_advice(tmp_path, arrays, bounds) if one.code is M.GIVE_LAYERS)
            )
            assert ("benign variant" in asked) is noisy


def judged_advice(folder: Path, arrays: Any, bounds: dict[str, float]) -> tuple[Any, ...]:
    return analyse([write(folder / "again.npz", arrays)], bounds=bounds).judgement.advice
