"""Each sentence of a check of one run: said of a run of which it is true, and not of its near miss.

The runs are made by hand, so that each differs in one thing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparing.traces import Recorder
from tests.diagnosing.made_steps import Array, codes_of, drawn, facts_of, gradients, run, step
from trueup.diagnosing.checks import (
    finite,
    grad_norm,
    labels,
    master_weights,
    own_batches,
    repeatable,
    replicas,
    streams,
    updates,
)
from trueup.diagnosing.checks import (
    gradients as gradients_check,
)
from trueup.diagnosing.checks import (
    range as range_check,
)
from trueup.diagnosing.checks.alignment import labelled_padding
from trueup.diagnosing.checks.outcome import Check, CheckOutcome
from trueup.diagnosing.checks.run import CheckedRun
from trueup.diagnosing.parity import parity
from trueup.numerics.summary import HAS_STATISTICS
from trueup.store import RunWriter, Trace
from trueup.store.view import CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason

Made = Callable[[Path], Trace]


class Twins(NamedTuple):
    """A run that a sentence is true of, and one that differs in one thing."""

    code: Code
    check: Check
    holds: Made
    near: Made
    facts: Mapping[str, Any] = MappingProxyType({})


def said_by(outcome: CheckOutcome) -> list[Reason]:
    """All that a check says."""
    details = [place.detail for place in outcome.places if place.detail is not None]
    last = () if outcome.next is None else (outcome.next,)
    return [outcome.sentence, *outcome.notes, *details, *last]


def made(*steps: Any, **told: Any) -> Made:
    return lambda path: run(path, *steps, **told)


def told(*parameters: tuple[str, bool], dtype: str = "float32", **more: Any) -> dict[str, Any]:
    table = [
        {"fqn": name, "shape": [8, 8], "dtype": dtype, "requires_grad": trained}
        for name, trained in parameters
    ]
    return {"parameters": table, **more}


def nothing(path: Path) -> Trace:
    """A run that ended before its first step was over."""
    writer = RunWriter(path, rank=0)
    writer.begin_run({"framework": "pytorch", "level": "mix", "task": "statistics", "world_size": 1})
    writer.write_rank({"rank": 0, **told(("w", True))})
    return Trace(path)


W = drawn(0)
TRAINED = told(("w", True))
ONE = step({"w": {**gradients(1), UPDATED: W}})


def given_nothing() -> Recorder:
    """A record of which no summary was made."""
    out = Recorder()
    out.record(out.call("module", "", type_="Net"), "forward", "output.0", None, reason="not kept")
    return out


def of_integers() -> Recorder:
    out = Recorder()
    out.record(out.call("module", "", type_="Net"), "forward", "input.0", np.arange(8))
    return out


# -- gradient norms ------------------------------------------

NORM = float(np.linalg.norm(gradients(1)[CLIPPED]))


def reporting(norm: float, *, ranks: int = 1, **facts: Any) -> Made:
    one = step({"w": gradients(1)})
    return made([one] * ranks if ranks > 1 else one, lines=[{"grad_norm": norm}], facts={**TRAINED, **facts})


TWO = {"optimizers": [{"class": "SGD", "groups": []}] * 2}
SAME = {"wrapped_by": ["DistributedDataParallel"]}

# -- losses and updates ------------------------------------------


def losing(*losses: float) -> Made:
    return made(ONE, lines=[{"loss": loss} for loss in losses], facts=TRAINED)


def overflowing(*, skipped: bool, ranks: int = 1) -> Made:
    grads = gradients(1)
    one = step({"w": {**grads, LOCAL: np.full((8, 8), np.inf, np.float32)}})
    return made([one] * ranks, lines=[{"skipped": skipped, "loss": 1.0}], facts=TRAINED)


def without_gradients(*, trained: bool) -> Made:
    return made(step({"w": {WEIGHT: W}}), facts=told(("w", trained)))


def routed(name: str) -> Made:
    parts = {"a.w": gradients(1), name: {WEIGHT: W}}
    return made(step(parts), facts=told(("a.w", True), (name, True)))


def half(steps: int) -> Made:
    one = step({"w": {WEIGHT: W.astype(np.float16), LOCAL: W.astype(np.float16)}})
    return made(*[one] * steps, facts=told(("w", True), dtype="float16"))


# -- labels ------------------------------------------

IDS = np.random.default_rng(3).integers(0, 50, (4, 12))


def labelled(wanted: Array | None, *, kept: bool = True, mask: Array | None = None) -> Made:
    out = Recorder()
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", IDS)
    if mask is not None:
        out.record(root, "forward", "input.attention_mask", mask)
    emb = out.call("module", "emb", root, "Embedding")
    out.record(emb, "forward", "input.0", IDS)
    loss = out.call("loss", "loss")
    if wanted is not None:
        out.record(loss, "loss", "labels.0", wanted)
    out.record(loss, "loss", "value", np.array(math.log(50), np.float32))
    table = {
        "parameters": [
            {"fqn": "emb.weight", "shape": [50, 8], "dtype": "float32", "requires_grad": True},
        ]
    }
    options = {"store_values_of": ["labels"] if kept else []}
    return made(out, facts=table, options=options)


NEXT = np.roll(IDS, -1, axis=1)
PADDED = (np.arange(12) < 8) & np.ones((4, 1), bool)

# -- ranks ------------------------------------------


PLACED = json.dumps(
    {"mesh": {"dp": 2}, "placements": ["shard(0)"], "global_shape": [16, 8], "offset": [0, 0]}
)


def on_ranks(*shapes: Any, name: str = "w", slot: tuple[str, str] = WEIGHT, **more: Any) -> Made:
    """What each rank holds of a parameter; all else is the same."""
    steps = [
        step({name: {**gradients(1), UPDATED: W, slot: array}, "other": gradients(2)}) for array in shapes
    ]
    sharded = more.pop("sharded", False)
    for one in steps if sharded else ():
        one.step.kinds[:] = [(*kind[:3], PLACED) for kind in one.step.kinds]
    return made(steps, facts={**told((name, True), ("other", True)), **more})


def without_digests() -> Recorder:
    out = Recorder(want=HAS_STATISTICS)
    out.record(out.call("parameter", "w"), "param", "value", W)
    return out


def one_of_two(path: Path) -> Trace:
    """The trace of one rank of a run of two."""
    ONE.write(path, values=True, world_size=2)
    return Trace(path)


def reading(*digests: str | None, **facts: Any) -> Made:
    lines = [
        {"step": 0, "rank": rank, **({} if digest is None else {"batch_digest": digest})}
        for rank, digest in enumerate(digests)
    ]
    return made([ONE] * len(digests), lines=lines, facts=facts)


# -- dropout ------------------------------------------


def dropping(*seeds: int, **facts: Any) -> Made:
    """A sample of what dropout did on each rank: 1 dropped, 2 kept."""
    steps = []
    for seed in seeds:
        out = Recorder()
        root = out.call("module", "", type_="Net")
        call = out.call("api", "torch.nn.functional.dropout", root, arguments='{"input.1": 0.5}')
        kept = np.random.default_rng(seed).integers(1, 3, 256).astype(np.uint8)
        out.record(call, "forward", "kept.0", kept)
        steps.append(out)
    return made(steps, facts=facts)


def not_sampled(arguments: str) -> Made:
    out = Recorder()
    root = out.call("module", "", type_="Net")
    call = out.call("api", "torch.nn.functional.dropout", root, arguments=arguments)
    out.record(call, "forward", "output.0", W)
    return made(out)


TWINS = [
    *(
        Twins(Code.NO_STEP, check, nothing, made(ONE, facts=TRAINED))
        for check in (finite.CHECK, updates.CHECK, gradients_check.CHECK, master_weights.CHECK)
    ),
    Twins(Code.NO_STATISTICS, finite.CHECK, made(given_nothing()), made(ONE)),
    Twins(Code.NO_STATISTICS, range_check.CHECK, made(of_integers()), made(ONE)),
    Twins(Code.ALSO, grad_norm.CHECK, reporting(2 * NORM, **TWO), reporting(NORM, **TWO)),
    Twins(Code.SEVERAL_OPTIMIZERS, grad_norm.CHECK, reporting(2 * NORM, **TWO), reporting(2 * NORM)),
    Twins(
        Code.MAYBE_SHARDS,
        grad_norm.CHECK,
        reporting(2 * NORM, ranks=2),
        reporting(2 * NORM, ranks=2, **SAME),
    ),
    Twins(
        Code.NOT_FINITE_LOSS,
        finite.CHECK,
        losing(1.0, 1.0, math.nan),
        losing(1.0, 1.0, 1.0),
        {"step": 2, "is_captured": 0},
    ),
    Twins(Code.NOT_FINITE_LOSS, finite.CHECK, losing(math.inf), losing(1.0), {"step": 0, "is_captured": 1}),
    Twins(Code.FIND_CALL, finite.CHECK, losing(1.0, math.nan), losing(1.0, 2.0)),
    Twins(
        Code.STEPS_SKIPPED,
        finite.CHECK,
        overflowing(skipped=True),
        overflowing(skipped=False),
        {"step": 0, "more": 0},
    ),
    Twins(  # two ranks skip one step
        Code.STEPS_SKIPPED,
        finite.CHECK,
        overflowing(skipped=True, ranks=2),
        overflowing(skipped=False, ranks=2),
        {"step": 0, "more": 0},
    ),
    Twins(
        Code.STEP_SKIPPED,
        updates.CHECK,
        made(ONE, lines=[{"skipped": True}], facts=TRAINED),
        made(ONE, lines=[{"skipped": False}], facts=TRAINED),
        {"step": 0},
    ),
    Twins(
        Code.NONE_TRAINABLE,
        gradients_check.CHECK,
        without_gradients(trained=False),
        without_gradients(trained=True),
    ),
    Twins(
        Code.NONE_CAPTURED,
        gradients_check.CHECK,
        without_gradients(trained=True),
        without_gradients(trained=False),
    ),
    Twins(Code.EXPERTS, gradients_check.CHECK, routed("moe.experts.3.w"), routed("moe.router.w"), {"num": 1}),
    Twins(Code.TWO_STEPS, master_weights.CHECK, half(1), half(2)),
    Twins(
        Code.LABELS_OUT_OF_RANGE,
        labels.CHECK,
        labelled(np.where(NEXT[0, 0] == NEXT, 50, NEXT)),
        labelled(NEXT),
        {"maximum": 50, "size": 50},
    ),
    Twins(
        Code.PADDING_COUNTS,
        labels.CHECK,
        labelled(NEXT, mask=PADDED.astype(np.int64)),
        labelled(np.where(np.roll(PADDED, -1, axis=1), NEXT, -100), mask=PADDED.astype(np.int64)),
        {"num": 16},
    ),
    Twins(Code.NO_INTEGERS, labels.CHECK, labelled(None), labelled(None, kept=False)),
    Twins(Code.SHARED_MASKS, streams.CHECK, dropping(1, 1), dropping(1, 2), {"num": 1}),
    Twins(
        Code.NO_SAMPLES,
        streams.CHECK,
        not_sampled('{"input.1": 0.5, "input.2": true}'),
        not_sampled('{"input.1": 0.5, "input.2": false}'),
    ),
    Twins(Code.NO_BATCH_DIGEST, own_batches.CHECK, reading("a", None), reading("a", "b")),
    Twins(Code.MAYBE_TENSOR_PARALLEL, own_batches.CHECK, reading("a", "a"), reading("a", "a", **SAME)),
    Twins(Code.ONE_RANK_CAPTURED, replicas.CHECK, one_of_two, on_ranks(W, W)),
    Twins(
        Code.NO_WEIGHT_DIGESTS,
        replicas.CHECK,
        made([without_digests(), without_digests()], facts=TRAINED),
        on_ranks(W, W),
    ),
    Twins(Code.REPLICA_DIFFERS, replicas.CHECK, on_ranks(W, 2 * W), on_ranks(W, W), {"parameter": "w"}),
    Twins(Code.ARE_SHARDS, replicas.CHECK, on_ranks(W, 2 * W, sharded=True), on_ranks(W, 2 * W)),
    Twins(Code.SHAPES_DIFFER, replicas.CHECK, on_ranks(W, W[:4]), on_ranks(W, 2 * W)),
    Twins(
        Code.OTHER_EXPERTS,
        replicas.CHECK,
        on_ranks(W, 2 * W, name="moe.experts.w"),
        on_ranks(W, 2 * W, name="moe.router.w"),
    ),
    Twins(Code.MAYBE_SHARDED, replicas.CHECK, on_ranks(W, 2 * W), on_ranks(W, 2 * W, **SAME)),
    Twins(
        Code.CHECK_OPTIMIZERS,
        replicas.CHECK,
        on_ranks(W, 2 * W, slot=UPDATED, **SAME),
        on_ranks(W, 2 * W, slot=CLIPPED, **SAME),
    ),
]


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins.code.value)
def test_a_sentence_is_said_where_it_is_true_and_not_beside(twins: Twins, tmp_path: Path) -> None:
    said = said_by(twins.check.check(CheckedRun(twins.holds(tmp_path / "holds"))))
    facts = facts_of(said, twins.code)
    assert facts is not None, said
    assert {name: facts.get(name) for name in twins.facts} == twins.facts
    said = said_by(twins.check.check(CheckedRun(twins.near(tmp_path / "near"))))
    assert twins.code not in codes_of(said), said


@given(
    st.lists(st.integers(0, 12), min_size=4, max_size=4), st.lists(st.booleans(), min_size=48, max_size=48)
)
def test_padding_that_counts_is_counted(lengths: list[int], counts: list[bool]) -> None:
    mask = np.arange(12) < np.array(lengths)[:, None]
    wanted = np.where(np.array(counts).reshape(4, 12), 7, -100)
    num = sum(counts[12 * row + at] for row in range(4) for at in range(11) if at + 1 >= lengths[row])
    found = labelled_padding(mask, wanted, -100)
    assert (None if found is None else found.number("num")) == (num if num > 4 else None)


# -- a second run ------------------------------------------


def called(*calls: tuple[str, str, int], ids: int = 1) -> Recorder:
    """Functions of a model; of each the phase and the seed of what it gives."""
    out = Recorder()
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", drawn(ids))
    made = [(out.call("api", name, root), phase, seed) for name, phase, seed in calls]
    for phase in ("forward", "backward"):
        for call, at, seed in made:
            if at == phase:
                out.record(call, phase, "output.0" if phase == "forward" else "input.0", drawn(seed))
    return out


def again(path: Path, first: Made, second: Made) -> list[Reason]:
    runs = CheckedRun(first(path / "first"), again=second(path / "second"))
    return said_by(repeatable.CHECK.check(runs))


PLAIN = called(("torch.relu", "forward", 2))


def second_step_alone(path: Path) -> Trace:
    PLAIN.write(path, step=1)
    return Trace(path)


@pytest.mark.parametrize(
    ("code", "first", "second", "near"),
    [
        (Code.NO_COMMON_STEP, made(PLAIN), second_step_alone, made(PLAIN)),
        (Code.NO_DIGESTS, made(without_digests()), made(without_digests()), made(PLAIN)),
        (
            Code.OTHER_CALLS,
            made(called(("torch.relu", "forward", 2), ("torch.tanh", "forward", 3))),
            made(PLAIN),
            made(called(("torch.relu", "forward", 2), ("torch.tanh", "forward", 3))),
        ),
        (
            Code.FIRST_ONLY,
            made(called(("torch.relu", "forward", 2), ("torch.tanh", "forward", 3))),
            made(PLAIN),
            made(called(*[("torch.relu", "forward", 2), ("torch.tanh", "forward", 3)])),
        ),
        (Code.OTHER_BATCHES, made(PLAIN), made(called(("torch.relu", "forward", 2), ids=9)), made(PLAIN)),
    ],
)
def test_a_second_run(tmp_path: Path, code: Code, first: Made, second: Made, near: Made) -> None:
    assert code in codes_of(again(tmp_path / "holds", first, second))
    assert code not in codes_of(again(tmp_path / "near", first, near))


@pytest.mark.parametrize(
    ("name", "phase", "code"),
    [
        ("torch.empty_like", "forward", Code.UNWRITTEN_MEMORY),
        ("torch.nn.functional.scaled_dot_product_attention", "backward", Code.FUSED_ATTENTION),
        ("torch.nn.functional.scaled_dot_product_attention", "forward", Code.ATTENTION_DROPOUT),
        ("torch.nn.functional.embedding", "backward", Code.ATOMIC_ROWS),
        ("torch.nn.functional.embedding", "forward", None),
        ("torch.Tensor.index_add_", "forward", Code.ATOMIC_SUMS),
        ("torch.cumsum", "forward", Code.NO_FIXED_ORDER),
        ("torch.nn.functional.interpolate", "backward", Code.ATOMIC_BACKWARD),
        ("torch.nn.functional.interpolate", "forward", None),
        ("torch.nn.functional.conv2d", "forward", Code.CUDNN_BENCHMARK),
        ("torch.matmul", "forward", Code.SPLIT_PRODUCT),
        ("torch.distributed.all_reduce", "forward", Code.RANK_ORDER),
        ("torch.relu", "forward", None),
    ],
)
def test_what_is_known_of_a_call_that_does_not_repeat(
    tmp_path: Path, name: str, phase: str, code: Code | None
) -> None:
    sides = (made(called((name, phase, seed))) for seed in (2, 3))
    known = {one for one in Code if one.value.startswith("check.nondeterministic.")}
    said = again(tmp_path, *sides)
    assert Code.NOT_REPEATED in codes_of(said)
    assert codes_of(said) & known == ({code} if code else set())


# -- compiled regions ------------------------------------------


def region(skipped: str = "", *, num: int = 1, allowed: float = 1e-6) -> dict[str, Any]:
    row = {"name": "output.0", "difference": 1e-7, "allowed": allowed, "norm": 1.0}
    call = {"module": "head", "step": 0, "tensors": [row] * num}
    return {
        "region": "1/0",
        "module": "head",
        "function": "forward",
        "code": [],
        "skipped": skipped,
        "calls": [] if skipped else [call],
    }


@pytest.mark.parametrize(
    ("regions", "skipped", "unknown"),
    [
        ([region(), region("it communicates")], True, (1, 2)),
        ([region(), region()], False, None),
        ([region(num=0)], False, (1, 1)),
    ],
    ids=["one skipped", "all measured", "without a tensor"],
)
def test_regions_that_were_not_measured(
    tmp_path: Path, regions: list[Any], skipped: bool, unknown: tuple[int, int] | None
) -> None:
    trace = run(tmp_path / "compiled", ONE, facts={"compiled": {"regions": regions}})
    said = said_by(parity(trace, run(tmp_path / "eager", ONE))[0])
    facts = facts_of(said, Code.REGIONS_UNKNOWN)
    assert (None if facts is None else (facts["num"], facts["total"])) == unknown
    assert (facts_of(said, Code.REGION_SKIPPED) is not None) is skipped


@pytest.mark.parametrize("eager", [True, False])
def test_a_compiled_run_that_has_nothing_to_be_compared_with(tmp_path: Path, eager: bool) -> None:
    trace = run(tmp_path / "compiled", ONE, facts={"compiled": {"regions": [region()]}})
    said = said_by(parity(trace, run(tmp_path / "eager", ONE if eager else given_nothing()))[1])
    assert (Code.RUNS_NOT_COMPARED in codes_of(said)) is not eager
