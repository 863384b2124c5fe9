"""What two traces are said to prove, checked of any two from what was written into them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import codes_of, gradients, run, step
from trueup.curves.conditions import ASSUMABLE, conditions, proofs
from trueup.curves.standard import Criterion, Met
from trueup.types.codes import CriterionCode as Code
from trueup.wording import text

RANDOM = np.random.default_rng(8)
GROUPS: list[dict[str, Any]] = [
    {"lr": 0.1, "weight_decay": 0.0},
    {"lr": 0.1, "weight_decay": 0.1},
    {"lr": 0.1 * (1 + 1e-9), "weight_decay": 0.0},
    {"momentum": 0.9},
]


def drawn_side() -> dict[str, Any]:
    some = lambda *of: of[int(RANDOM.integers(len(of)))]  # noqa: E731
    return {
        "contents": [some("1", "2", "3", "") if at else "1" for at in range(int(RANDOM.integers(1, 4)))],
        "groups": [some(*GROUPS[:3]) for _ in range(2)] if RANDOM.random() < 0.8 else [GROUPS[3]],
        "deterministic": some(True, False, None, True),
        "dropout": some(0.0, 0.0, 0.1),
        "batches": [some("a", "b") for _ in range(2)] if RANDOM.random() < 0.8 else [],
        "framework": some("pytorch", "pytorch", "mindspore"),
        "dtype": some("bfloat16", "float32"),
    }


def trace(folder: Path, of: dict[str, Any]) -> Path:
    table = [
        {"fqn": f"w{at}", "shape": [8, 8], "dtype": of["dtype"], "requires_grad": True, "content": content}
        for at, content in enumerate(of["contents"])
    ]
    facts = {
        "parameters": table,
        "optimizers": [{"class": "SGD", "groups": of["groups"]}],
        "settings": {"drop": {"p": of["dropout"]}},
    }
    manifest = {} if of["deterministic"] is None else {"deterministic": of["deterministic"]}
    lines = [{"batch_digest": one} for one in of["batches"]]
    return run(
        folder, step({"w": gradients(1)}), lines=lines, facts=facts, framework=of["framework"], **manifest
    ).path


def is_on(of: dict[str, Any]) -> bool:
    return of["deterministic"] is True


def check_weights(found: Criterion, own: list[str], other: list[str]) -> None:
    if not all(own) or not all(other):
        assert found.value.code is Code.UNPROVED
    elif sorted(own) == sorted(other):
        assert (found.value.code, found.value.facts, found.status) == (
            Code.TENSORS_EQUAL,
            {"num": len(own)},
            Met.MET,
        )
        assert found.note is not None
        assert found.note.code is Code.BY_CONTENT
    elif sum(map(int, own)) != sum(map(int, other)):
        shared = sum((Counter(own) & Counter(other)).values())
        assert (found.value.code, found.status) == (Code.SOME_TENSORS, Met.NOT_MET)
        assert found.value.facts == {"num": shared, "total": max(len(own), len(other))}
        assert found.note is not None
        assert found.note.code is Code.COMPARE_WEIGHTS


def check_settings(found: Criterion, own: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    values = [{key: sorted(one[key] for one in side) for key in side[0]} for side in (own, other)]
    keys = [key for key in values[0] if key in values[1]]
    apart = [key for key in keys if values[0][key] != values[1][key]]
    if not keys:
        assert found.value.code is Code.UNPROVED
    elif apart:
        facts = found.value.facts
        assert (found.status, facts["keys"]) == (Met.NOT_MET, tuple(apart))
        assert all(a != b for a, b in zip(facts["target"], facts["reference"], strict=True)), text(
            found.value
        )
        assert found.note is not None
        assert found.note.code is Code.CHECK_CONFIGS
    else:
        assert (found.value.code, found.value.facts) == (Code.SETTINGS_EQUAL, {"num": len(keys)})
        assert found.note is not None
        assert (found.note.code, found.note.facts["keys"]) == (Code.COMPARED_SETTINGS, tuple(keys))


def check_randomness(found: Criterion, own: dict[str, Any], other: dict[str, Any]) -> None:
    sides = {"target": own, "reference": other}
    off = [side for side, of in sides.items() if not is_on(of)]
    if None in (own["deterministic"], other["deterministic"]):
        assert found.value.code is Code.UNPROVED
    elif off:
        assert (found.value.code, found.value.facts["sides"]) == (Code.NOT_DETERMINISTIC, tuple(off))
        assert found.note is not None
        assert found.note.code is Code.CAPTURE_DETERMINISTIC
    elif own["dropout"] or other["dropout"]:
        assert (found.value.code, found.value.facts["value"]) == (Code.DROPOUT_ON, 0.1)
        assert found.note is not None
        assert found.note.code is Code.DROPOUT_OFF
    else:
        assert (found.value.code, found.status) == (Code.DETERMINISTIC, Met.MET)
        assert found.note is not None
        assert found.note.code is Code.FROM_TRACES


def check_data(found: Criterion, own: dict[str, Any], other: dict[str, Any]) -> None:
    if not own["batches"] or not other["batches"]:
        assert found.value.code is Code.UNPROVED
    elif own["batches"] == other["batches"]:
        assert (found.value.code, found.value.facts) == (Code.BATCHES_EQUAL, {"num": 2})
        assert found.note is not None
        assert found.note.code is Code.BY_DIGEST
    elif own["framework"] == other["framework"]:
        assert found.value.code is Code.BATCHES_DIFFER


def test_what_two_traces_prove(tmp_path: Path) -> None:
    seen: set[Any] = set()
    sides = [drawn_side() for _ in range(40)]
    sides[0] = {**sides[0], "groups": [GROUPS[0], GROUPS[0], GROUPS[1]]}
    sides[1] = {**sides[1], "groups": [GROUPS[0], GROUPS[1], GROUPS[1]]}
    paths = [trace(tmp_path / f"{at}", of) for at, of in enumerate(sides)]
    for one in range(0, len(sides), 2):
        for own, other in ((one, one + 1), (one, one)):
            found = dict(zip(ASSUMABLE, proofs(paths[own], paths[other]), strict=True))
            values = {key: next(c for c in found.values() if c.key == key) for key in ASSUMABLE}
            check_weights(values["weights"], sides[own]["contents"], sides[other]["contents"])
            check_settings(values["settings"], sides[own]["groups"], sides[other]["groups"])
            check_randomness(values["randomness"], sides[own], sides[other])
            check_data(values["data"], sides[own], sides[other])
            for each in found.values():
                seen |= codes_of([each.value, each.threshold, *([each.note] if each.note else [])])
                assert each.threshold.code is (Code.OFF if each.key == "randomness" else Code.THE_SAME)
    assert seen >= {
        Code.UNPROVED,
        Code.GIVE_TRACES,
        Code.DETERMINISTIC,
        Code.BATCHES_EQUAL,
        Code.NOT_DETERMINISTIC,
    }


@pytest.mark.parametrize("assumed", [(), ("data",), ASSUMABLE])
def test_what_a_person_vouches_for(assumed: Any) -> None:
    for one in proofs(None, None, assumed=assumed):
        told = (Code.STATED, Code.STATED_ONLY) if one.key in assumed else (Code.UNPROVED, Code.GIVE_TRACES)
        assert one.note is not None
        assert (one.value.code, one.note.code) == told
        assert (one.status is Met.MET) is (one.key in assumed)


def test_what_is_known_of_the_default_configuration(tmp_path: Path) -> None:
    for at in range(8):
        of = drawn_side()
        found = {
            one.key: one
            for one in conditions(trace(tmp_path / f"{at}", of), {"parallelism": "default"} if at % 2 else {})
        }
        told = of["deterministic"] is not None
        assert (found["determinism"].actual.code is Code.DETERMINISM) is told
        if told:
            assert bool(found["determinism"].actual.facts["is_on"]) is is_on(of)
        else:
            assert found["determinism"].actual.code is Code.UNKNOWN
        assert found["accuracy_mode"].actual.code is Code.DTYPE
        assert found["accuracy_mode"].actual.facts == {"dtype": of["dtype"]}
        assert found["parallelism"].actual.code is (Code.DEFAULT if at % 2 else Code.AXES)
        assert at % 2 or found["parallelism"].actual.facts == {"axes": ()}
