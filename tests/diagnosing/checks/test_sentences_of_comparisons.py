"""Sentences of ``trueup check-run`` that compare: labels with ids, a second run, dropout masks and
ranks. What each says is worked out from the arrays of the run, without the rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.comparing.traces import Recorder
from tests.diagnosing.checks.test_each_reason import told
from tests.diagnosing.checks.test_sentences_of_numbers import checked, codes, facts
from tests.diagnosing.held_runs import held
from tests.diagnosing.made_steps import Array, drawn, gradients, step
from trueup.diagnosing.checks import labels, own_batches, repeatable, replicas, streams
from trueup.diagnosing.checks.outcome import CheckOutcome, CheckVerdict
from trueup.diagnosing.checks.run import CheckedRun
from trueup.store.view import ACCUMULATED, CLIPPED, UPDATED, WEIGHT
from trueup.types.codes import CheckCode as Code
from trueup.wording import text

# -- labels ------------------------------------------

ROWS, LENGTH, SIZE = 4, 12, 50


def labelled(*batches: tuple[Array, Array], loss: float = 4.0, embeds: bool = True) -> Recorder:
    """A step of microbatches, each of ids and labels."""
    out = Recorder()
    for at, (ids, wanted) in enumerate(batches):
        root = out.call("module", "", type_="Net", microbatch=at)
        out.record(root, "forward", "input.0", ids, microbatch=at)
        if embeds:
            table = out.call("module", "emb", root, "Embedding", microbatch=at)
            out.record(table, "forward", "input.0", ids, microbatch=at)
        call = out.call("loss", "loss", microbatch=at)
        out.record(call, "loss", "labels.0", wanted, microbatch=at)
        out.record(call, "loss", "value", np.array(loss, np.float32), microbatch=at)
    return out


def of_labels(*steps: Recorder, first: int = 0, options: Any = None) -> CheckOutcome:
    table = {
        "parameters": [{"fqn": "emb.weight", "shape": [SIZE, 8], "dtype": "float32", "requires_grad": True}]
    }
    return checked(
        labels.CHECK, *steps, facts=table, first=first, options=options or {"store_values_of": ["labels"]}
    )


def ahead(ids: Array, by: int, fill: Any) -> Array:
    """What stands so many places on; ``fill`` where that is outside the row."""
    found = np.broadcast_to(fill, ids.shape).copy()
    width = ids.shape[1]
    found[:, max(0, -by) : width - max(0, by)] = ids[:, max(0, by) : width + min(0, by)]
    return found


def test_labels_and_the_inputs_that_they_are() -> None:
    """Labels moved by -1 to 4 places, of another text, or too few; some ignored, some wrong."""
    random, seen = np.random.default_rng(1), set[Any]()
    for _ in range(32):
        ids = random.integers(0, SIZE, (ROWS, LENGTH))
        by = int(random.choice([1, 1, 1, 0, -1, 2, 3, 4]))
        wanted = ahead(ids, by, -100)
        wanted[random.random(wanted.shape) < random.choice([0.0, 0.3, 0.97])] = -100
        at = tuple(random.integers(0, [ROWS, LENGTH]))
        if random.random() < 0.2:
            wanted[at] = random.choice([SIZE, -3])
        if random.random() < 0.1:
            ids[at] = SIZE + 5
        embeds = random.random() < 0.7
        outcome = of_labels(labelled((ids, wanted), embeds=embeds))
        seen |= codes(outcome)
        used = wanted != -100
        moved = {
            n: ((wanted == ahead(ids, n, -1)) & used).sum() / max((used & (ahead(ids, n, -1) >= 0)).sum(), 1)
            for n in range(-1, 4)
        }
        enough = {n: (used & (ahead(ids, n, -1) >= 0)).sum() >= 8 for n in moved}
        size = SIZE if embeds else None
        if size and ids.max() >= size:
            assert {Code.OF_BATCH, Code.ID_OUTSIDE} <= codes(outcome)
            continue
        if not used.any():
            assert Code.ALL_IGNORED in codes(outcome)
            continue
        outside = size is not None and (wanted[used].min() < 0 or wanted[used].max() >= size)
        assert (Code.LABELS_OUT_OF_RANGE in codes(outcome)) == outside
        if outside:
            continue
        fits = [n for n in (1, 0, 2, -1, 3) if enough[n] and moved[n] >= 0.99]
        if not fits:
            told_ = enough[1]
            assert outcome.sentence.code is (Code.NOT_NEXT_TOKEN if told_ else Code.SHIFT_UNKNOWN)
        elif fits[0] == 1:
            said = facts(outcome, Code.LABELS_FIT)
            assert said["ignored"] == pytest.approx((~used).mean())
            assert (said["num"], said["total"], bool(said["is_in_range"])) == (1, 1, embeds)
            assert ("ids are in range" in text(outcome.sentence)) is embeds
            assert ("100%" in text(outcome.sentence)) is False or not used.any()
        else:
            said = facts(outcome, Code.WRONG_SHIFT)
            assert (said["shift"], said["share"]) == (fits[0], pytest.approx(moved[fits[0]]))
            assert outcome.places[0].detail is not None
            assert facts(outcome, Code.OF_BATCH) == {"step": 0, "rank": 0, "microbatch": 0}
            assert Code.THE_INPUTS in codes(outcome)
    assert {Code.LABELS_FIT, Code.WRONG_SHIFT, Code.NOT_NEXT_TOKEN, Code.OF_BATCH, Code.THE_INPUTS} <= seen


def test_labels_of_several_microbatches() -> None:
    """What fits one of three does not fit all; the share that is ignored is the largest of any."""
    random = np.random.default_rng(2)
    batches = []
    for at in range(3):
        ids = random.integers(0, SIZE, (ROWS, LENGTH))
        batches.append((ids, ahead(ids, 1, -100) if at < 2 else random.integers(0, SIZE, (ROWS, LENGTH))))
    outcome = of_labels(labelled(*batches))
    assert (facts(outcome, Code.LABELS_FIT)["num"], facts(outcome, Code.LABELS_FIT)["total"]) == (2, 3)
    assert "2 of 3 microbatches" in text(outcome.sentence)
    assert of_labels(labelled(batches[2])).sentence.code is Code.NOT_NEXT_TOKEN
    turned = of_labels(labelled(*batches[::-1]))
    assert facts(turned, Code.LABELS_FIT)["num"] == 2  # the first alone decided
    later = of_labels(labelled(batches[0]), first=4)
    assert facts(later, Code.LABELS_FIT)["expected"] is None
    assert "first loss" not in text(later.sentence)
    first = facts(of_labels(labelled(batches[0], loss=3.5)), Code.LABELS_FIT)
    assert (first["first_loss"], first["expected"]) == (3.5, pytest.approx(math.log(SIZE)))


def test_labels_that_nobody_kept() -> None:
    ids = np.random.default_rng(3).integers(0, SIZE, (ROWS, LENGTH))
    kept, bare, none = labelled((ids, ahead(ids, 1, -100))), labelled((ids, ids)), Recorder()
    bare.values.clear()
    none.record(none.call("module", "", type_="Net"), "forward", "input.0", ids)
    without = Recorder()
    without.record(without.call("loss", "loss"), "loss", "value", np.array(1.0, np.float32))
    assert of_labels(kept).sentence.code is Code.LABELS_FIT
    assert of_labels(bare).sentence.code is Code.SHIFT_UNKNOWN
    assert of_labels(none).sentence.code is Code.NO_LOSS
    assert of_labels(without, options={"store_values_of": []}).sentence.code is Code.NO_LABELS
    assert of_labels(without).sentence.code is Code.NO_INTEGERS
    wrong = ids.copy()
    wrong[0, 0] = SIZE
    bare = labelled((wrong, ids))
    bare.values.clear()
    said = facts(of_labels(bare), Code.IDS_OUT_OF_RANGE)
    assert said == {"minimum": wrong.min(), "maximum": SIZE, "size": SIZE}


# -- a second run ------------------------------------------


def computed(*values: tuple[str, Array | None, Array], weight: Array | None = None) -> Recorder:
    """Functions of a model, each with an input and an output."""
    out = Recorder()
    if weight is not None:
        out.record(out.call("parameter", "w"), "param", "value", weight)
    root = out.call("module", "", type_="Net")
    for name, given, made in values:
        call = out.call("api", name, root)
        if given is not None:
            out.record(call, "forward", "input.0", given)
        out.record(call, "forward", "output.0", made)
    return out


def twice(one: Recorder, other: Recorder | None, first: int = 0) -> CheckOutcome:
    again = None if other is None else held(other, first=first)
    return repeatable.CHECK.check(CheckedRun(held(one, first=first), again=again))


def test_two_runs_that_do_or_do_not_repeat() -> None:
    random, seen = np.random.default_rng(4), set[Any]()
    for _ in range(40):
        size = int(random.integers(1, 6))
        plain = [
            (f"torch.f{at}", drawn(at) if random.random() < 0.7 else None, drawn(at + 50))
            for at in range(size)
        ]
        other = list(plain)
        for at in range(size):
            if random.random() < 0.25:
                given = (
                    drawn(at + 200) if random.random() < 0.4 and plain[at][1] is not None else plain[at][1]
                )
                made = drawn(at + 100) if random.random() < 0.7 else plain[at][2]
                other[at] = (plain[at][0], given, made)
        outcome = twice(computed(*plain), computed(*other))
        seen |= codes(outcome)
        pairs = [
            [None if a is None else np.array_equal(a, b) for a, b in zip(p[1:], o[1:], strict=True)]
            for p, o in zip(plain, other, strict=True)
        ]
        flat = [same for pair in pairs for same in pair if same is not None]
        # an input that differs where the output does not was read by nobody
        if all(made for _, made in pairs):
            assert facts(outcome, Code.REPEATS) == {"num": sum(flat)}
            continue
        first = facts(outcome, Code.NOT_REPEATED)
        until: list[bool] = []
        for given, made in pairs:
            until += [given] if given is not None else []
            if not made:
                until += [] if given is False else [made]
                break
            until += [made]
        assert first["before"] == sum(until)
        assert Code.DETERMINISTIC in codes(outcome)
        for place in outcome.places[1:]:
            at = int(place.site.split("torch.f")[1][0])
            assert not pairs[at][1]
            assert (place.detail is not None and place.detail.code is Code.EQUAL_INPUTS) == (
                pairs[at][0] is True
            )
    assert {Code.REPEATS, Code.NOT_REPEATED, Code.EQUAL_INPUTS, Code.DETERMINISTIC} <= seen


def test_a_program_that_is_not_seeded() -> None:
    call = ("torch.f", drawn(1), drawn(2))
    for first in (0, 4):
        other = twice(computed(call, weight=drawn(1)), computed(call, weight=drawn(2)), first)
        assert facts(other, Code.OTHER_WEIGHTS) == {"parameter": "w", "step": first}
        assert ("seed" in text(other.sentence)) is (first == 0)
        assert Code.SEED_OUTSIDE in codes(other)
    same = twice(computed(call, weight=drawn(1)), computed(call, weight=drawn(1)))
    assert Code.SEED_OUTSIDE not in codes(same)
    assert twice(computed(call), None).sentence.code is Code.ONE_RUN


def test_what_is_drawn_anew_is_to_be_seeded() -> None:
    for name, code in (("torch.randn", Code.SEED_OUTSIDE), ("torch.matmul", Code.DETERMINISTIC)):
        outcome = twice(computed((name, drawn(1), drawn(2))), computed((name, drawn(1), drawn(3))))
        assert outcome.next is not None
        assert outcome.next.code is code


# -- dropout ------------------------------------------


def dropped(masks: list[Array], microbatches: int = 1) -> Recorder:
    out = Recorder()
    per = len(masks) // microbatches
    for at, mask in enumerate(masks):
        root = out.call("module", "", type_="Net", microbatch=at // per)
        call = out.call("api", "torch.nn.functional.dropout", root, microbatch=at // per)
        out.record(call, "forward", "kept.0", mask, microbatch=at // per)
    return out


def test_masks_of_dropout() -> None:
    """Two ranks, two steps, two microbatches of masks, of which some are drawn again."""
    random, seen = np.random.default_rng(5), set[Any]()
    for _ in range(20):
        steps = []
        every: dict[tuple[int, int, int], Array] = {}
        wrapped = random.random() < 0.5
        for at in range(2):
            ranks = []
            for rank in range(2):
                masks = []
                for microbatch in range(2):
                    again = [one for place, one in every.items() if place[1] != rank or random.random() < 0.3]
                    is_again = again and random.random() < 0.08
                    mask = (
                        again[int(random.integers(len(again)))]
                        if is_again
                        else random.integers(1, 3, 64).astype(np.uint8)
                    )
                    every[at, rank, microbatch] = mask
                    masks.append(mask)
                ranks.append(dropped(masks, 2))
            steps.append(ranks)
        more = {"wrapped_by": ["DistributedDataParallel"]} if wrapped else {}
        outcome = checked(streams.CHECK, *steps, facts=more)
        seen |= codes(outcome)
        same = [(a, b) for a in every for b in every if a < b and np.array_equal(every[a], every[b])]
        within = [(a, b) for a, b in same if a[1] == b[1]]
        across = [(a, b) for a, b in same if a[1] != b[1] and (a[0], a[2]) == (b[0], b[2])]
        bad = bool(within) or (wrapped and bool(across))
        assert (outcome.verdict is CheckVerdict.FAILED) == bad == (Code.FIND_SEED in codes(outcome))
        assert (Code.SAME_MASK in codes(outcome)) == (Code.SAME_AS in codes(outcome)) or len(within) > 4
        if Code.SAME_MASK in codes(outcome):
            said = facts(outcome, Code.SAME_MASK)
            pair = (
                (said["step"], said["rank"], said["microbatch"]),
                (said["other_step"], said["rank"], said["other_microbatch"]),
            )
            assert pair in within
            line = text(outcome.sentence)
            assert f"rank {said['rank']}" in line
            detail = facts(outcome, Code.SAME_AS)
            assert (detail["step"], detail["microbatch"]) == (said["step"], said["microbatch"])
        if not bad:
            said = facts(outcome, Code.MASKS_DIFFER)
            assert (said["num"], said["ranks"], bool(said["is_shared"])) == (8, 2, bool(across))
            assert ("of one rank" in text(outcome.sentence)) == bool(across)
            if across:
                assert facts(outcome, Code.SHARED_MASKS) == {"num": len(across)}
        if wrapped and across and not within:
            assert {Code.SAME_MASK_ON_RANKS, Code.SAME_AS_RANK} <= codes(outcome)
            assert facts(outcome, Code.SAME_AS_RANK) == {"rank": 0}
    assert {Code.MASKS_DIFFER, Code.SAME_MASK, Code.SHARED_MASKS, Code.SAME_MASK_ON_RANKS} <= seen


def test_two_later_ranks_with_one_mask() -> None:
    masks = [drawn(at) > 0 for at in range(3)]
    kept = [(mask + 1).astype(np.uint8) for mask in (masks[0], masks[1], masks[1])]
    outcome = checked(
        streams.CHECK, [dropped([one]) for one in kept], facts={"wrapped_by": ["DistributedDataParallel"]}
    )
    said = facts(outcome, Code.SAME_MASK_ON_RANKS)
    assert (said["first"], said["rank"]) == (1, 2)


def recomputed(given: tuple[Array | None, Array | None], made: tuple[Array, Array]) -> Recorder:
    out = Recorder()
    root = out.call("module", "", type_="Net")
    for mode, one, result in zip(("train", "recompute"), given, made, strict=True):
        call = out.call("module", "layer", root, "Block", mode=mode, ordinal=0)
        if one is not None:
            out.record(call, "forward", "input.0", one)
        out.record(call, "forward", "output.0", result)
    return out


def test_what_is_recomputed() -> None:
    x, y, z = drawn(1), drawn(2), drawn(3)
    for given, made, differs in (
        ((x, x), (y, z), True),
        ((x, x), (y, y), False),
        ((x, z), (y, z), False),
        ((None, None), (y, z), False),  # from inputs that nobody recorded
    ):
        outcome = checked(streams.CHECK, recomputed(given, made))
        assert (Code.RECOMPUTED in codes(outcome)) is differs
        assert ({Code.OTHER_STATE, Code.RESTORE_STATE} <= codes(outcome)) is differs
        assert Code.FIND_SEED not in codes(outcome)


@pytest.mark.parametrize(
    ("name", "arguments", "level", "code"),
    [
        ("torch.relu", "{}", "L0", Code.NEED_MIX),
        ("torch.relu", "{}", "mix", Code.NO_DROPOUT),
        ("torch.nn.functional.dropout", '{"input.1": 0.5, "input.2": true}', "mix", Code.NO_SAMPLES),
        ("torch.nn.functional.dropout2d", '{"input.1": 0.5, "input.2": true}', "mix", Code.NO_SAMPLES),
        ("torch.nn.functional.dropout", '{"input.1": 0, "input.2": true}', "mix", Code.NO_DROPOUT),
        ("torch.nn.functional.dropout", '{"input.1": 0.5, "input.2": false}', "mix", Code.NO_DROPOUT),
    ],
)
def test_dropout_of_which_nothing_was_kept(name: str, arguments: str, level: str, code: Code) -> None:
    out = Recorder()
    call = out.call("api", name, out.call("module", "", type_="Net"), arguments=arguments)
    out.record(call, "forward", "output.0", drawn(1))
    assert checked(streams.CHECK, out, level=level).sentence.code is code


# -- ranks ------------------------------------------

GROUPS = {"weights": [[0, 2], [1, 3]], "batches": [[0, 2], [1, 3]]}


def grouped(run: Any, kind: dict[str, list[list[int]]]) -> Any:
    """Each rank says which group it is in."""
    plain = run.rank_facts

    def facts_of_rank(rank: int) -> Any:
        mine = {name: next(group for group in groups if rank in group) for name, groups in kind.items()}
        return {**plain(rank), "groups": mine}

    object.__setattr__(run, "rank_facts", facts_of_rank)
    return run


SLOTS = {"value": WEIGHT, "accumulated": ACCUMULATED, "clipped": CLIPPED, "param": UPDATED}


def test_replicas() -> None:
    """Four ranks, all one group or two of two; tensors that differ on one of them."""
    random, seen = np.random.default_rng(6), set[Any]()
    order = ["value", "clipped", "param"]
    for _ in range(14):
        two_groups = random.random() < 0.5
        groups = GROUPS["weights"] if two_groups else [[0, 1, 2, 3]]
        apart: set[tuple[int, int, str, str]] = set()
        steps = []
        for at in range(2):
            ranks = []
            for rank in range(4):
                parts: dict[str, Any] = {}
                for number, name in enumerate(("a", "b")):
                    base = {
                        SLOTS[slot]: drawn(number * 10 + index + 100 * two_groups * (rank % 2))
                        for index, slot in enumerate(order)
                    }
                    for slot in order:
                        if random.random() < 0.03:
                            base[SLOTS[slot]] = drawn(1000 + rank)
                            apart.add((at, rank, name, slot))
                    parts[name] = base
                ranks.append(step(parts))
            steps.append(ranks)
        run = grouped(held(*steps, facts=told(("a", True), ("b", True))), {"weights": groups})
        outcome = replicas.CHECK.check(CheckedRun(run))
        seen |= codes(outcome)
        if not apart:
            assert facts(outcome, Code.REPLICAS_EQUAL) == {
                "ranks": 4, "groups": len(groups), "num": 2 * len(groups) * 2 * len(order),
                "kinds": ("weights", "gradients"),
            }  # fmt: skip
            continue
        first = min(at for at, *_ in apart)
        said = facts(outcome, Code.REPLICAS_DIFFER)
        assert said["step"] == first
        there = {(name, slot) for at, _, name, slot in apart if (at, slot) == (first, said["slot"])}
        assert (said["parameter"], said["slot"]) in there
        if not two_groups:
            assert said["slot"] == min((slot for at, *_, slot in apart if at == first), key=order.index)
            assert said["num"] == len(there)
        place = outcome.places[0]
        assert place.detail is not None
        other = place.detail.number("first")
        group = next(one for one in groups if place.rank in one)
        assert other == group[0] != place.rank
        assert (first, place.rank, said["parameter"], said["slot"]) in apart or (
            first,
            other,
            said["parameter"],
            said["slot"],
        ) in apart
        wanted = {"value": Code.BROADCAST, "clipped": Code.REDUCE, "param": Code.CHECK_OPTIMIZERS}
        assert outcome.next is not None
        assert outcome.next.code is wanted[said["slot"]]
    assert {Code.REPLICAS_EQUAL, Code.REPLICAS_DIFFER, Code.FROM_RANK_0, Code.BROADCAST, Code.REDUCE} <= seen
    one = checked(replicas.CHECK, step({"w": gradients(1)}))
    assert one.sentence.code is Code.ONE_RANK
    weights = checked(replicas.CHECK, [step({"w": {WEIGHT: drawn(1)}})] * 2, facts=told(("w", True)))
    assert facts(weights, Code.REPLICAS_EQUAL)["kinds"] == ("weights",)


def test_what_ranks_read() -> None:
    random, seen = np.random.default_rng(7), set[Any]()
    for _ in range(30):
        groups = GROUPS["batches"] if random.random() < 0.5 else [[0, 1, 2, 3]]
        num = int(random.integers(1, 4))
        read = random.integers(0, 20, (num, 4))
        run = held(*[[step({"w": {WEIGHT: drawn(1)}})] * 4] * num)
        run = grouped(run, {"batches": groups, "weights": [[0, 1, 2, 3]]})
        run.lines = {
            rank: [{"step": at, "batch_digest": str(read[at, rank])} for at in range(num)]
            for rank in range(4)
        }
        outcome = own_batches.CHECK.check(CheckedRun(run))
        seen |= codes(outcome)
        same = [at for at in range(num) if any(len({*read[at, group]}) < len(group) for group in groups)]
        if same:
            assert facts(outcome, Code.SAME_BATCH) == {"num": len(same), "total": num, "step": same[0]}
            assert Code.USE_SAMPLER in codes(outcome)
        else:
            assert facts(outcome, Code.BATCHES_DIFFER)["num"] == num
            every = all(len({*read[at]}) == 4 for at in range(num))
            assert ("all ranks" not in text(outcome.sentence)) or every or len(groups) == 1
    assert {Code.BATCHES_DIFFER, Code.SAME_BATCH, Code.USE_SAMPLER} <= seen
    assert checked(own_batches.CHECK, step({"w": {WEIGHT: drawn(1)}})).sentence.code is Code.ONE_RANK
