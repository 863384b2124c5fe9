"""Every call and record finds its own counterpart, whatever was inserted, removed, renamed or moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.comparing.traces import Recorder, network
from trueup.matching import StepMatch, match_step
from trueup.matching.names import common_wrappers, family, normalised
from trueup.matching.step import PASSES
from trueup.types.codes import RecordCode
from trueup.types.reason import reason


def matched(tmp_path: Path, target: Recorder, reference: Recorder) -> StepMatch:
    """Both written, read back and paired."""
    sides = [
        r.write(tmp_path / name).read(0, 0) for name, r in (("target", target), ("reference", reference))
    ]
    return match_step(*sides)


def sequence(sizes: list[int]) -> Recorder:
    """Calls of few names inside one module, told apart by their shapes."""
    out = Recorder()
    root = out.call("module", "", type_="Net")
    for size in sizes:
        out.api(root, f"torch.op{size % 3}", np.arange(size, dtype=np.float32))
    return out


def pairs(match: StepMatch) -> dict[int, int]:
    """Target call -> reference call."""
    partner = match.calls.reference_of
    return {int(t): int(partner[t]) for t in np.flatnonzero(partner >= 0)}


def passes(match: StepMatch) -> list[str | None]:
    """Pass of each target call."""
    return [PASSES[code] if code >= 0 else None for code in match.calls.pass_code.tolist()]


def test_a_trace_matches_itself_by_site(tmp_path: Path) -> None:
    match = matched(tmp_path, network(), network())
    assert set(passes(match)) == {"site"}
    assert all(t == r for t, r in pairs(match).items())
    assert not len(match.records.only_target)
    assert not len(match.records.only_reference)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_inserted_and_removed_calls_leave_the_others_paired(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    size = data.draw(st.integers(1, 30))
    kept_t = data.draw(st.sets(st.integers(1, size)))
    kept_r = data.draw(st.sets(st.integers(1, size)))
    assume(2 * len(kept_t & kept_r) >= min(len(kept_t), len(kept_r)))  # else it looks like another batch size
    target, reference = sorted(kept_t), sorted(kept_r)
    match = matched(tmp_path_factory.mktemp("m"), sequence(target), sequence(reference))
    found = pairs(match)
    for position, value in enumerate(target):
        if value in kept_r:
            assert found[position + 1] == reference.index(value) + 1


def test_moved_calls_are_found_again(tmp_path: Path) -> None:
    match = matched(tmp_path, sequence([1, 2, 3, 4, 5, 6, 7, 8]), sequence([7, 1, 2, 3, 4, 5, 6, 8]))
    assert pairs(match)[7] == 1
    assert passes(match)[7] == "reordered"


def test_other_spellings_are_paired_as_renamed(tmp_path: Path) -> None:
    target, reference = Recorder(), Recorder()
    for recorder, name in ((target, "torch.Tensor.__add__"), (reference, "torch.add")):
        root = recorder.call("module", "", type_="Net")
        recorder.api(root, "torch.relu", np.ones(3, np.float32))
        recorder.api(root, name, np.ones(4, np.float32))
    match = matched(tmp_path, target, reference)
    assert passes(match) == ["site", "aligned", "renamed"]


def test_a_module_of_another_name_but_the_same_class_is_paired_with_what_is_inside(tmp_path: Path) -> None:
    target, reference = Recorder(), Recorder()
    for recorder, name in ((target, "decoder"), (reference, "layers")):
        weight = recorder.call("parameter", f"{name}.weight")
        recorder.record(weight, "param", "value", np.ones((2, 2), np.float32))
        root = recorder.call("module", "", type_="Net")
        block = recorder.call("module", name, root, "Block")
        recorder.record(block, "forward", "output.0", np.ones(3, np.float32))
        recorder.api(block, "torch.relu", np.ones(3, np.float32))
    match = matched(tmp_path, target, reference)
    assert pairs(match) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert passes(match)[:3] == ["renamed", "site", "renamed"]


def test_wrappers_are_seen_through(tmp_path: Path) -> None:
    match = matched(tmp_path, network(prefix="module."), network())
    found = pairs(match)
    assert len(found) == match.reference.num_calls
    assert match.why_only_target() == []
    both = matched(tmp_path / "both", network(prefix="module."), network(prefix="module."))
    assert len(pairs(both)) == both.target.num_calls


@pytest.mark.parametrize("known", [True, False])
def test_weights_of_other_names_are_told_by_their_bits(tmp_path: Path, known: bool) -> None:
    """An adapter around the first of two in one run, around the second in the other."""
    drawn = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    first, second = drawn if known else np.ones((2, 8, 8), np.float32)
    sides = []
    for names in (("k.base.weight", "v.weight"), ("k.weight", "v.base.weight")):
        recorder = Recorder()
        recorder.call("module", "", type_="Net")
        order = list(zip(names, (first, second), strict=True))
        for name, weight in order if names[0] == "k.weight" else order[::-1]:
            recorder.record(recorder.call("parameter", name), "param", "value", weight)
        sides.append(recorder)
    match = matched(tmp_path, *sides)
    target, reference = (one.step.calls["name"] for one in sides)
    named = {target[t]: reference[r] for t, r in pairs(match).items()}
    assert (named["k.base.weight"] == "k.weight" and named["v.weight"] == "v.base.weight") is known


def test_what_has_no_counterpart_says_what_is_there_instead(tmp_path: Path) -> None:
    target, reference = Recorder(), Recorder()
    for recorder, name in ((target, "torch.sort"), (reference, "torch.topk")):
        root = recorder.call("module", "", type_="Net")
        recorder.api(root, "torch.relu", np.ones(3, np.float32))
        recorder.api(root, name, np.ones(4 if recorder is target else 5, np.float32))
    match = matched(tmp_path, target, reference)
    there = {"side": "reference", "calls": ["torch.topk"]}
    here = {"side": "target", "calls": ["torch.sort"]}
    assert match.why_only_target() == [reason(RecordCode.OTHER_CALLS, **there)]
    assert match.why_only_reference() == [reason(RecordCode.OTHER_CALLS, **here)]


def test_a_call_without_a_name_is_not_named(tmp_path: Path) -> None:
    """The root's name is empty: where it alone stands in the place of a call, nothing is listed."""
    target, reference = Recorder(), Recorder()
    for recorder, names in ((target, ["torch.sort"]), (reference, ["", "torch.topk"])):
        root = recorder.call("module", "", type_="Net")
        recorder.api(root, "torch.relu", np.ones(3, np.float32))
        for at, name in enumerate(names):
            recorder.api(root, name, np.ones(4 + at + (recorder is target), np.float32))
    reasons = matched(tmp_path, target, reference).why_only_target()
    assert reasons == [reason(RecordCode.OTHER_CALLS, side="reference", calls=["torch.topk"])]


@pytest.mark.parametrize("number", [1, 2])
def test_microbatches_that_one_side_lacks_are_counted(tmp_path: Path, number: int) -> None:
    target, reference = Recorder(), Recorder()
    for recorder, count in ((target, 3), (reference, number)):
        for at in range(count):
            root = recorder.call("module", "", type_="Net", microbatch=at)
            recorder.api(root, "torch.relu", np.ones(3, np.float32), microbatch=at)
    reasons = matched(tmp_path, target, reference).why_only_target()
    fewer = reason(RecordCode.FEWER_MICROBATCHES, side="reference", microbatches=number)
    assert set(reasons) == {fewer}


def test_modules_only_and_both_levels_still_pair_the_modules(tmp_path: Path) -> None:
    target, reference = network(), network()
    bare = Recorder()
    root = bare.call("module", "", type_="Net")
    for layer in range(3):
        module = bare.call("module", f"layers.{layer}", root, "Linear")
        bare.record(module, "forward", "output.0", np.ones((4, 8), np.float32))
    match = matched(tmp_path, bare, reference)
    assert len(pairs(match)) == 4
    assert any(why.code is RecordCode.KIND_NOT_CAPTURED for why in match.why_only_reference())
    assert target is not reference


def test_positional_and_keyword_inputs_are_one(tmp_path: Path) -> None:
    target, reference = Recorder(), Recorder()
    for recorder, slot in ((target, "input.0"), (reference, "input.hidden_states")):
        root = recorder.call("module", "", type_="Net")
        recorder.record(root, "forward", slot, np.ones(3, np.float32))
        recorder.record(root, "forward", "output.0", np.ones(3, np.float32))
    match = matched(tmp_path, target, reference)
    assert match.records.other_slot.tolist() == [True, False]


def test_flat_api_traces_are_aligned_in_linear_time(tmp_path: Path) -> None:
    def flat(extra: bool) -> Recorder:
        out = Recorder()
        ones = np.ones(3, np.float32)
        for turn in range(2_000):
            if extra and turn % 100 == 50:
                out.call("api", "torch.contiguous")
            out.call("api", f"torch.op{turn % 7}")
        out.api(None, "torch.end", ones)
        return out

    match = matched(tmp_path, flat(True), flat(False))
    assert len(pairs(match)) == 2_001
    assert (match.calls.reference_of < 0).sum() == 20


def test_names() -> None:
    assert family("torch.Tensor.__iadd__") == family("torch.add")
    assert family("torch.mul") != family("torch.add")
    assert common_wrappers(["", "module", "module.layers.0"]) == 1
    assert common_wrappers(["", "module", "layers.0"]) == 0
    assert normalised("layers.0._orig_mod.weight", leading=0) == "layers.0.weight"


def test_other_dtypes_do_not_part_a_call_from_its_own(tmp_path: Path) -> None:
    """A linear computed in fp32 with one cast before it, against bf16 with casts around it."""

    def program(*calls: tuple[str, int, type]) -> Recorder:
        out = Recorder()
        root = out.call("module", "", type_="Net")
        for name, size, dtype in calls:
            out.api(root, name, np.arange(size, dtype=dtype))
        return out

    target = program(
        ("torch.embed", 4, np.float16), ("torch.to", 4, np.float32), ("torch.linear", 8, np.float32)
    )
    reference = program(
        ("torch.embed", 4, np.float16),
        ("torch.half", 32, np.float16),
        ("torch.linear", 8, np.float16),
        ("torch.to", 8, np.float32),
    )
    found = pairs(matched(tmp_path, target, reference))
    assert found[3] == 3
