"""Differences no larger than rounding that stand alone, and gradients that one run alone has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tests.comparing.reading import facts
from tests.comparing.test_compare import compared
from tests.comparing.traces import Recorder, network, of_two_ranks, scaled
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare, compare_sources
from trueup.store import StepTables, Trace
from trueup.types.codes import MergingCode, NoteCode, RecordCode, VerdictCode
from trueup.types.confidence import Word
from trueup.types.reason import Reason, reason

NUM_LAYERS = 4


def norms(
    rounded: Collection[int] = (),
    *,
    of: str = "float16",
    differing_before: bool = False,
    types: Sequence[str] = (),
) -> Recorder:
    """Four blocks with a norm each; in those of ``rounded`` half the outputs are rounded the other way."""
    out, rng = Recorder(), np.random.default_rng(0)
    types = types or ["RMSNorm"] * NUM_LAYERS
    root = out.call("module", "", type_="Net")
    for layer in range(NUM_LAYERS):
        call = out.call("module", f"layers.{layer}.ln", parent=root, type_=types[layer])
        given, made = (rng.standard_normal((8, 64)).astype(of) for _ in range(2))
        if differing_before and layer == 0:
            given = np.nextafter(given, np.array(9, of))
        out.record(call, "forward", "input.0", given)
        out.record(call, "forward", "output.0", _rounded(made) if layer in rounded else made)
    return out


def _rounded(array: NDArray[np.floating]) -> NDArray[np.floating]:
    other = np.nextafter(array, np.array(9, array.dtype))
    return np.where(np.arange(array.size).reshape(array.shape) % 2 == 0, other, array)


def origins(comparison: Comparison) -> list[str]:
    """Sites called origins."""
    frame = comparison.frame().filter(pl.col("status").cast(pl.String) == "origin")
    return frame["site"].cast(pl.String).to_list()


def test_the_first_that_rounds_unlike_its_like_is_named(tmp_path: Path) -> None:
    result = compared(tmp_path, norms([2]), norms())
    assert origins(result) == ["layers.2.ln · output.0"]
    assert result.verdict.owner == "layers.2.ln"
    one = reason(RecordCode.ONE_ROUNDING, like="layers.*.ln", num_alike=2)
    assert one in result.verdict.evidence


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (norms(range(NUM_LAYERS)), "all round otherwise: another device or library"),
        (norms([0]), "none of its kind ran before"),
        (norms([2], differing_before=True), "something before it differs already"),
    ],
)
def test_rounding_with_another_reason_is_left_alone(target: Recorder, why: str, tmp_path: Path) -> None:
    assert origins(compared(tmp_path, target, norms())) == [], why


def test_another_class_of_the_same_name_is_not_its_like(tmp_path: Path) -> None:
    types = ["RMSNorm", "LayerNorm", "Identity", "RMSNorm"]
    assert origins(compared(tmp_path, norms([2], types=types), norms(types=types))) == []


def test_a_last_bit_of_float32_may_hang_on_where_a_tensor_lies(tmp_path: Path) -> None:
    assert origins(compared(tmp_path, norms([2], of="float32"), norms(of="float32"))) == []


def weights(without: Collection[str] = (), frozen: Collection[str] = ()) -> Recorder:
    """Four weights with their gradients, but for some; frozen ones are said to require none."""
    out, rng = Recorder(), np.random.default_rng(1)
    root = out.call("module", "", type_="Net")
    calls = {}
    for name in "abcd":
        call = out.call("module", name, parent=root, type_="Linear")
        out.record(call, "forward", "output.0", rng.standard_normal(16).astype(np.float32))
        calls[name] = out.call("parameter", f"{name}.weight")
        value = rng.standard_normal(16).astype(np.float32)
        out.record(calls[name], "param", "value", value, requires_grad=name not in frozen)
    for name in "dcba":
        gradient = rng.standard_normal(16).astype(np.float32)
        if name not in without:
            out.record(calls[name], "param_grad", "local", gradient)
    return out


@pytest.mark.parametrize("frozen_in_target", [True, False])
def test_the_first_gradient_that_one_run_alone_has_is_named(frozen_in_target: bool, tmp_path: Path) -> None:
    sides = weights(without="bc"), weights()
    result = compared(tmp_path, *(sides if frozen_in_target else reversed(sides)))
    verdict = result.verdict
    assert (verdict.owner, verdict.phase) == ("c", "param_grad")
    assert origins(result) == ["c.weight · gradient local"]
    lacking = "target" if frozen_in_target else "reference"
    assert reason(RecordCode.GRADIENT_ABSENT, side=lacking) in verdict.evidence
    assert verdict.confidence is not None
    assert verdict.confidence.word is Word.CERTAIN


@pytest.mark.parametrize("frozen_in_target", [True, False])
@pytest.mark.parametrize(
    ("frozen", "named"),
    [("bc", 2), ("c", 1), ("b", None), ("", None)],
    ids=["both", "first", "a later", "none"],
)
def test_a_weight_that_one_run_alone_trains(
    frozen: str, named: int | None, frozen_in_target: bool, tmp_path: Path
) -> None:
    """A gradient that is missing of a weight which both train has another cause."""
    sides = weights(without="bc", frozen=frozen), weights()
    verdict = compared(tmp_path, *(sides if frozen_in_target else reversed(sides))).verdict
    assert (verdict.headline.code is VerdictCode.TRAINED_BY_ONE) is (named is not None)
    if named is not None:
        target = str(not frozen_in_target)
        sides_shown = {"target": target, "reference": str(frozen_in_target)}
        assert verdict.headline.facts == {"num": named, "weight": "c.weight", **sides_shown}


def test_where_one_run_recorded_hardly_any_gradient_none_is_missing(tmp_path: Path) -> None:
    assert origins(compared(tmp_path, weights(without="bcd"), weights())) == []


@pytest.mark.parametrize(("what_became", "named"), [("of none", []), ("of a", ["d"]), ("of all", [])])
def test_most_gradients_are_absent_only_where_what_became_of_them_is_too(
    what_became: str, named: list[str], tmp_path: Path
) -> None:
    """Adapters below a checkpoint that cuts the graph: the head alone is trained."""
    target, reference = weights(without="bcd"), weights()
    if what_became != "of none":
        for side, names in ((target, "a" if what_became == "of a" else "abcd"), (reference, "abcd")):
            for name in names:
                call = side.step.calls["name"].index(f"{name}.weight")
                side.record(call, "param_grad", "accumulated", np.full(16, ord(name), np.float32))
    assert origins(compared(tmp_path, target, reference)) == [f"{n}.weight · gradient local" for n in named]


def passed_on(slots: Sequence[str], *, updated: bool = False) -> Recorder:
    """Two weights with what became of their gradients, and maybe the update."""
    out = Recorder()
    calls = [out.call("parameter", f"{name}.weight") for name in "ab"]
    places = [("param", "value"), *(("param_grad", slot) for slot in slots)]
    for phase, slot in [*places, ("optimizer", "param")] if updated else places:
        for call in calls:
            out.record(call, phase, slot, np.full(16, len(slot) + call, np.float32))
    return out


@pytest.mark.parametrize(
    ("target", "reference", "outcome"),
    [
        (["local"], ["local", "accumulated"], "undecided"),
        (["accumulated"], ["local", "accumulated"], "agree"),
        (["local", "clipped"], ["local", "accumulated", "clipped"], "agree"),
    ],
)
def test_what_became_of_a_gradient_must_be_compared_somewhere(
    target: list[str], reference: list[str], outcome: str, tmp_path: Path
) -> None:
    sides = [passed_on(slots) for slots in (target, reference)]
    for side, pair in (("a", sides), ("b", sides[::-1])):
        found = compared(tmp_path / side, *pair).summary["verdict"]
        assert found["outcome"] == outcome, found["headline"]


@pytest.mark.parametrize("after", ["the same", "another", None])
def test_gradients_exchanged_in_other_buckets_are_told_by_what_comes_of_them(
    after: str | None, tmp_path: Path
) -> None:
    def exchanged(sizes: Sequence[int], value: float) -> Recorder:
        out = Recorder()
        call = out.call("parameter", "a.weight")
        out.record(call, "param_grad", "local", np.ones(16, np.float32))
        for size in sizes:
            call_of = out.call("collective", "torch.distributed.all_reduce")
            out.record(call_of, "collective", "input.0", np.ones(size, np.float32))
        if after is not None:
            out.record(call, "param_grad", "clipped", np.full(16, value, np.float32))
        return out

    target = exchanged([32], 2.0 if after == "another" else 1.0)
    found = compared(tmp_path, target, exchanged([16, 16], 1.0)).summary["verdict"]
    wanted = {"the same": "agree", "another": "differ", None: "undecided"}
    assert found["outcome"] == wanted[after], found["headline"]


def test_the_update_tells_of_the_gradients_before_it(tmp_path: Path) -> None:
    sides = passed_on(["local"], updated=True), passed_on(["local", "accumulated"], updated=True)
    assert compared(tmp_path, *sides).summary["verdict"]["outcome"] == "agree"


@pytest.mark.parametrize("lacking", ["target", "reference"])
def test_a_run_of_which_a_rank_is_missing_is_compared_rank_by_rank(lacking: str, tmp_path: Path) -> None:
    """What one rank of two holds is no whole: taken for one, its gradients differ from the mean of two."""
    of_two_ranks(network(), tmp_path / "whole", network(scaled("grad.1", 3.0)))
    network().write(tmp_path / "part", world_size=2)
    sides = (tmp_path / "part", tmp_path / "whole")
    found = compare(*(sides if lacking == "target" else sides[::-1]))
    assert found.exit_code == 0, found.summary["verdict"]
    assert found.summary["counts"]["equal"] == found.summary["counts"]["compared"] > 0
    held = {"side": lacking, "found": 1, "expected": 2}
    assert facts(found.content.notes, MergingCode.RANKS_MISSING) == held
    other = "reference" if lacking == "target" else "target"
    left_out = {"what": "rank", "numbers": ("1",), "side": other}
    assert facts(found.content.notes, NoteCode.IN_ONE_ONLY) == left_out


def test_gradients_in_an_order_of_their_own_are_not_judged_by_argument(tmp_path: Path) -> None:
    """As msprobe lists those of a function: another argument's, or turned."""

    def program(*gradients: int) -> Recorder:
        out = Recorder()
        root = out.call("module", "", type_="Net")
        values = {n: np.linspace(n, n + 1, 32, dtype=np.float32).reshape(4, 8) for n in (1, 2)}
        call = out.api(root, "torch.nn.functional.linear", values[1])
        out.record(root, "forward", "output.0", values[1])
        for slot, number in enumerate(gradients):
            out.record(call, "backward", f"input.{slot}", values[number])
        out.record(root, "backward", "input.0", values[1])
        return out

    program(1, 2).write(tmp_path / "target")
    program(2, 1).write(tmp_path / "other")
    target = Trace(tmp_path / "target")
    found = compare_sources(target, _InAutogradOrder(tmp_path / "other"))
    assert found.content.counts.different == 0
    rows = found.frame().filter(pl.col("phase").cast(pl.String) == "backward")
    codes = rows["reason_code"].cast(pl.String).to_list()
    told = codes.count(RecordCode.AUTOGRAD_ORDER_ON_ONE_SIDE.value)
    assert 0 < told <= rows.height  # only of gradients that differ: those that agree are the same argument's
    own = (
        row["bits_equal"]
        for row in rows.to_dicts()
        if row["reason_code"] == RecordCode.AUTOGRAD_ORDER_ON_ONE_SIDE
    )
    assert not any(own)
    assert found.exit_code == 0, found.verdict
    assert compare(tmp_path / "target", tmp_path / "other").exit_code == 1


class _InAutogradOrder(Trace):
    """A trace that lists gradients as torch's last node of a call does."""

    def read(self, step: int, rank: int) -> StepTables:
        tables = super().read(step, rank)
        phases = tables.records["phase"].cast(pl.String).to_list()
        in_order = [at for at, phase in enumerate(phases) if phase == "backward"]
        return replace(tables, reasons=dict.fromkeys(in_order, Reason(RecordCode.AUTOGRAD_ORDER)))


def test_a_renamed_container_is_no_other_implementation(tmp_path: Path) -> None:
    renamed = network()
    names = renamed.step.calls["name"]
    renamed.step.calls["name"] = [name.replace("layers.", "blocks.") for name in names]
    network().write(tmp_path / "reference")
    renamed.write(tmp_path / "target")
    found = compare(tmp_path / "target", tmp_path / "reference")
    assert found.exit_code == 0
    assert found.summary["counts"]["num_unmatched"] == 0
    assert found.summary["counts"]["equal"] == found.summary["counts"]["compared"]


def test_a_gradient_changed_after_backward_names_its_weight(tmp_path: Path) -> None:
    """The first to show it is a norm taken outside of the model."""

    def program(factor: float) -> Recorder:
        out = network()
        gradient = out.step.records["phase"].index("param_grad")
        summary = out.step.records["summary"][gradient]
        norm = out.call("api", "torch._foreach_norm", mode="eval")
        if factor == 1:
            out.record(norm, "forward", "input.0.0", None, summary=summary)
        else:
            out.record(norm, "forward", "input.0.0", out.values[summary] * np.float32(factor))
        return out

    program(1.0).write(tmp_path / "reference")
    program(1.01).write(tmp_path / "target")
    verdict = compare(tmp_path / "target", tmp_path / "reference").verdict
    held = reason(VerdictCode.HELD_GRADIENT_CHANGED, weight="layers.2.weight", step=0)
    assert verdict.headline == held
    assert verdict.owner == "layers.2"


# -- the first difference of a later step ------------------------------------------

HOST = {"devices": [], "num_threads": 1, "framework_version": "2.13.0"}


@pytest.mark.parametrize(
    ("first", "later", "machine", "is_named"),
    [
        ((), [0], HOST, True),
        ([3], [0], HOST, False),
        ((), range(NUM_LAYERS), HOST, True),
        ((), [0], HOST | {"devices": ["NVIDIA H100"]}, False),
        ((), (), HOST, False),
    ],
    ids=["equal before", "a step before differs", "of all its like", "kernels vary", "equal"],
)
def test_after_equal_steps_the_first_other_bits_are_told(
    first: Collection[int], later: Collection[int], machine: dict[str, object], is_named: bool, tmp_path: Path
) -> None:
    for side, steps in (("target", (first, later)), ("reference", ((), ()))):
        for step, rounded in enumerate(steps):
            norms(rounded).write(tmp_path / side, step=step, **machine)
    found = compare(tmp_path / "target", tmp_path / "reference")
    told = reason(RecordCode.AFTER_EQUAL_STEPS, step=1)
    assert (told in found.verdict.evidence) is is_named
    assert (origins(found)[:1] == ["layers.0.ln · output.0"]) is is_named


def test_a_last_bit_of_float32_of_a_later_step_is_left_alone(tmp_path: Path) -> None:
    for side, steps in (("target", ((), [0])), ("reference", ((), ()))):
        for step, rounded in enumerate(steps):
            norms(rounded, of="float32").write(tmp_path / side, step=step, **HOST)
    assert origins(compare(tmp_path / "target", tmp_path / "reference")) == []


def test_labels_that_one_run_alone_keeps_are_no_dtype_of_the_loss(tmp_path: Path) -> None:
    for name, labels in (("target", False), ("reference", True)):
        out = network(loss=False)
        call = out.call("loss", "loss")
        out.record(call, "loss", "value", np.array(3.5, np.float32))
        if labels:
            out.record(call, "loss", "labels", np.arange(8))
        out.write(tmp_path / name)
    notes = compare(tmp_path / "target", tmp_path / "reference").content.notes
    assert NoteCode.DTYPES_DIFFER not in {note.code for note in notes}
