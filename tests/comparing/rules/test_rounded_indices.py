"""What a top-k chooses of values that differ by rounding already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.comparing.rules.judging import step_of
from tests.comparing.traces import Recorder
from trueup.comparing.rules import judge_step
from trueup.comparing.run import compare_sources
from trueup.types.codes import RecordCode
from trueup.types.status import Status

HIDDEN = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
VALUES = np.linspace(0.1, 0.9, 32, dtype=np.float32).reshape(16, 2)
CHOSEN = np.arange(32).reshape(16, 2) % 4
OTHERS = np.where(np.arange(32).reshape(16, 2) == 5, 3, CHOSEN)


def routed(hidden: np.ndarray, values: np.ndarray | None, chosen: np.ndarray) -> Recorder:
    out = Recorder()
    norm = out.call("module", "norm", type_="LayerNorm")
    out.record(norm, "forward", "output.0", hidden)
    router = out.call("module", "router", type_="Router")
    if values is not None:
        out.record(router, "forward", "output.0", values)
    out.record(router, "forward", "output.1", chosen)
    return out


@pytest.mark.parametrize(
    ("hidden", "values", "is_tie", "may_follow"),
    [
        (HIDDEN * (1 + 1e-7), VALUES, True, True),
        (HIDDEN * (1 + 1e-7), VALUES * 1.5, False, True),
        (HIDDEN * (1 + 1e-7), None, False, True),
        (HIDDEN, VALUES, False, False),
    ],
    ids=["a near tie", "other values", "values not known", "of equal values"],
)
def test_a_choice_between_values_that_agree_is_a_tie(
    hidden: np.ndarray, values: np.ndarray | None, is_tie: bool, may_follow: bool, tmp_path: Path
) -> None:
    target = routed(hidden.astype(np.float32), None if values is None else values.astype(np.float32), OTHERS)
    reference = routed(HIDDEN, None if values is None else VALUES, CHOSEN)
    context, metrics = step_of(tmp_path, target, reference)
    judgement = judge_step(context, metrics)
    row = int(np.flatnonzero(context.rows.slot_is("output.1"))[0])
    why = judgement.reasons.get(row)
    assert (why is not None and why.code is RecordCode.MAY_FOLLOW_ROUNDING) is may_follow
    assert bool(judgement.bracketable[row]) is is_tie


def worked(hidden: np.ndarray, chosen: np.ndarray, sent: np.ndarray) -> Recorder:
    """The chosen experts are given what the router chose; ``sent`` is the gradient of its values."""
    out = routed(hidden.astype(np.float32), VALUES, chosen)
    experts = out.call("module", "experts", type_="Experts")
    out.record(experts, "forward", "input.1", chosen)
    out.record(experts, "forward", "input.2", VALUES)
    out.record(experts, "backward", "input.2", sent.astype(np.float32))
    return out


@pytest.mark.parametrize(
    ("moved", "others", "follows"),
    [(1.5, OTHERS, True), (4.0, OTHERS, False), (1.5, CHOSEN, False)],
    ids=["of another value", "more than another value's", "of the same values"],
)
def test_the_gradient_of_a_value_that_was_chosen_otherwise(
    moved: float, others: np.ndarray, follows: bool, tmp_path: Path
) -> None:
    sent = np.where(np.arange(32).reshape(16, 2) % 2, 1.0, -1.0)
    changed = np.where(np.arange(32).reshape(16, 2) == 5, sent - moved, sent)
    if moved > 2:
        changed = changed * np.linspace(-1, 1, 32).reshape(16, 2)
    sides = worked(HIDDEN * (1 + 1e-7), others, changed), worked(HIDDEN, CHOSEN, sent)
    context, metrics = step_of(tmp_path, *sides)
    judgement = judge_step(context, metrics)
    rows = context.rows
    row = int(np.flatnonzero(rows.phase_is("backward") & rows.slot_is("input.2"))[0])
    why = judgement.reasons.get(row)
    assert (why is not None and why.code is RecordCode.MAY_FOLLOW_ROUNDING) is follows
    given = int(np.flatnonzero(rows.slot_is("input.1"))[0])
    assert judgement.bracketable[given]


IDS = np.arange(16).reshape(2, 8)


def trained(ids: np.ndarray, *, rounding: float, before: str) -> Recorder:
    """Two microbatches; the second is given ``ids``, after something of it, of the first, or no gradients."""
    out = Recorder()
    hidden = (HIDDEN * (1 + rounding)).astype(np.float32)
    first = out.call("module", "", type_="Model")
    out.record(first, "forward", "input.0", IDS)
    out.record(first, "forward", "output.0", hidden if before != "nothing" else HIDDEN)
    if before == "generation":
        sampled = out.call("module", "", type_="Model", mode="eval", microbatch=1)
        out.record(sampled, "forward", "output.0", hidden, microbatch=1)
    if before == "an encoder of the same microbatch":
        encoder = out.call("module", "encoder", type_="Encoder", microbatch=1)
        out.record(encoder, "forward", "output.0", hidden, microbatch=1)
    second = out.call("module", "", type_="Model", microbatch=1)
    out.record(second, "forward", "input.0", ids, microbatch=1)
    return out


@pytest.mark.parametrize(
    ("before", "follows"),
    [
        ("nothing", False),
        ("the first microbatch", False),
        ("generation", True),
        ("an encoder of the same microbatch", True),
    ],
)
def test_what_a_model_is_given_first_was_read(before: str, follows: bool, tmp_path: Path) -> None:
    sides = [trained(ids, rounding=size, before=before) for ids, size in ((IDS + 1, 1e-7), (IDS, 0.0))]
    context, metrics = step_of(tmp_path, *sides)
    judgement = judge_step(context, metrics)
    row = int(np.flatnonzero(context.rows.slot_is("input.0") & (context.rows.microbatch == 1))[0])
    why = judgement.reasons.get(row)
    assert (why is not None and why.code is RecordCode.MAY_FOLLOW_ROUNDING) is follows


def masked(labels: np.ndarray, *, rounding: float, felt: float) -> Recorder:
    """A loss with labels, after an activation that differs by rounding, and what it sends back."""
    out = Recorder()
    root = out.call("module", "", type_="Model")
    out.record(root, "forward", "output.0", (HIDDEN * (1 + rounding)).astype(np.float32))
    loss = out.call("loss", "loss")
    out.record(loss, "loss", "labels", labels)
    out.record(loss, "loss", "value", np.array(1.5, np.float32))
    out.record(root, "backward", "output.0", (HIDDEN * (1 + felt)).astype(np.float32))
    return out


@pytest.mark.parametrize(
    ("felt", "code"), [(0.0, RecordCode.UNCOUNTED_LABELS), (0.3, RecordCode.MAY_FOLLOW_ROUNDING)]
)
def test_labels_after_rounding_are_asked_for_what_comes_of_them(
    felt: float, code: RecordCode, tmp_path: Path
) -> None:
    """Ignored in one run, 0 under a mask in the other: beside a gradient that is another they stay open."""
    ignored = np.where(np.arange(16) % 4 == 0, -100, np.arange(16))
    sides = [
        masked(labels, rounding=size, felt=apart)
        for labels, size, apart in ((ignored, 1e-7, felt), (ignored.clip(min=0), 0.0, 0.0))
    ]
    context, metrics = step_of(tmp_path, *sides)
    judgement = judge_step(context, metrics)
    row = int(np.flatnonzero(context.rows.slot_is("labels"))[0])
    assert judgement.reasons[row].code is code


def experts(chosen: np.ndarray, *, inside: float = 2.0, together: float = 1.0) -> Recorder:
    """Tokens that choose two of four experts each; inside, every expert is given those which chose it."""
    out = Recorder()
    block = out.call("module", "", type_="Block")
    layer = out.call("module", "experts", block, type_="Experts")
    out.record(layer, "forward", "input.0", HIDDEN)
    out.record(layer, "forward", "input.1", chosen)
    for number in range(4):
        given = HIDDEN[(chosen == number).any(axis=1)]
        expert = out.call("module", f"experts.{number}", layer, type_="Linear")
        out.record(expert, "forward", "input.0", given)
        out.record(expert, "forward", "output.0", (inside * given).astype(np.float32))
    out.record(layer, "forward", "output.0", (together * HIDDEN).astype(np.float32))
    return out


@pytest.mark.parametrize(
    ("target", "num", "whole"),
    [
        (experts(CHOSEN[::-1]), 8, Status.EQUAL),
        (experts(CHOSEN[::-1], together=1.5), 8, Status.PROPAGATED),
        (experts(CHOSEN[:, ::-1]), 0, Status.EQUAL),
        (experts(CHOSEN, inside=3.0), 0, Status.EQUAL),
    ],
    ids=["other tokens", "and another sum", "the same in another order", "another expert"],
)
def test_rows_of_tokens_that_were_chosen_otherwise(
    target: Recorder, num: int, whole: Status, tmp_path: Path
) -> None:
    """What an expert inside is given then is of other tokens; what comes of all of them is compared."""
    sides = target.write(tmp_path / "t"), experts(CHOSEN).write(tmp_path / "r")
    frame = compare_sources(*sides).frame().cast({"reason_code": pl.String, "status": pl.String})
    found = frame.filter(reason_code=RecordCode.TOKENS_CHOSEN_OTHERWISE.value)
    assert found.height == num
    assert set(found["status"]) <= {Status.UNDECIDED.value}
    assert all(name.startswith("experts.") for name in found["module"])
    (status,) = frame.filter(module="experts", slot="output.0")["status"]
    assert status == whole.value


def flattened(mask: np.ndarray, scale: float) -> Recorder:
    """A layer that is given a mask, and works on all tokens in one row inside."""
    out = Recorder()
    block = out.call("module", "", type_="Block")
    layer = out.call("module", "layer", block, type_="Layer")
    tokens = np.arange(32, dtype=np.float32).reshape(2, 4, 4) + 1
    made = (scale * tokens).astype(np.float32)
    out.record(layer, "forward", "input.0", tokens)
    out.record(layer, "forward", "input.attention_mask", mask)
    inner = out.call("module", "layer.out", layer, type_="Linear")
    out.record(inner, "forward", "input.0", made.reshape(8, 4))
    out.record(inner, "forward", "output.0", (2 * made).reshape(8, 4))
    out.record(layer, "forward", "output.0", 2 * made)
    return out


@pytest.mark.parametrize("experts_of", [0, 2], ids=["a mask", "indices"])
def test_a_mask_chooses_no_tokens(experts_of: int, tmp_path: Path) -> None:
    """What is made inside follows from a mask that differs, and is compared. Indices from 0 to 2 are none."""
    masks = [np.array([[0, 1, 1, 1], [first, 1, 1, experts_of or 1]]) for first in (0, 1)]
    sides = [
        flattened(mask, scale).write(tmp_path / str(scale))
        for mask, scale in zip(masks, (1.5, 1.0), strict=True)
    ]
    frame = compare_sources(*sides).frame().cast({"reason_code": pl.String, "status": pl.String})
    inside = frame.filter(module="layer.out")
    assert set(inside["status"]) == {(Status.UNDECIDED if experts_of else Status.PROPAGATED).value}
