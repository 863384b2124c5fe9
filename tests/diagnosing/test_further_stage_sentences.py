"""Further sentences of stages, each held against the inputs that the test has made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.comparing.traces import Recorder
from tests.diagnosing.cases import origin
from tests.diagnosing.made_steps import (
    Array,
    codes_of,
    context_of,
    drawn,
    facts_of,
    gradients,
    passed,
    run,
    said_by,
    step,
)
from tests.diagnosing.usual_causes import check_finding
from trueup.diagnosing.stages.clipping_ranks import clipping_over_ranks
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.data import DataStage
from trueup.diagnosing.stages.forward import BackwardStage, ForwardStage, explained_by
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.diagnosing.stages.reduction import ReductionStage
from trueup.diagnosing.stages.weight_change import held_whole
from trueup.diagnosing.stages.weights import WeightsStage
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, WEIGHT
from trueup.types.codes import BatchCode as Batches
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import NoteCode, VerdictCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import WeightsCode as Weights
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Stage
from trueup.types.reason import reason
from trueup.wording import text

PLAIN, W = {"w": gradients(1)}, drawn(1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """Two runs that are one."""
    trace = run(tmp_path_factory.mktemp("plain"), step(PLAIN))
    return context_of(trace, trace)


# -- clipping ------------------------------------------


def times(factors: dict[str, float], *, seed: int = 0, size: float = 1.0) -> Recorder:
    """Weights whose gradients are multiplied each by a factor on their way to the optimizer."""
    parts = {}
    for at, (name, factor) in enumerate(factors.items()):
        made = drawn(seed + at) * np.float32(size)
        parts[name] = {
            WEIGHT: drawn(100 + at),
            LOCAL: made,
            ACCUMULATED: made,
            CLIPPED: made * np.float32(factor),
        }
    return step(parts)


def most(factor: float, odd: float) -> dict[str, float]:
    return {**dict.fromkeys("abc", factor), "d": odd}


@pytest.mark.parametrize(
    ("target", "reference", "more", "seen"),
    [
        (most(0.4, 0.9), most(0.5, 0.9), {}, True),
        (most(0.5, 0.25), most(0.5, 0.3), {}, False),
        (most(0.5, 0.25), most(0.4, 0.2), {"size": 1.5}, False),
    ],
    ids=["most by another", "one by another", "larger ones"],
)
def test_factors_of_most_gradients(
    tmp_path: Path, target: dict[str, float], reference: dict[str, float], more: Any, seen: bool
) -> None:
    context = context_of(run(tmp_path / "t", times(target, **more)), run(tmp_path / "r", times(reference)))
    findings = ReductionStage().check(context).findings
    facts = facts_of(said_by(findings), Clip.FACTOR_DIFFERS)
    assert (facts is not None) is seen
    if facts is not None:
        assert facts == {"target": pytest.approx(target["a"]), "reference": pytest.approx(reference["a"])}


def on_ranks(*factors: float) -> list[Recorder]:
    """What the optimizers of four ranks get: the sum over all ranks, times a factor of each rank."""
    parts = [drawn(10 * rank) for rank in range(4)]
    return [
        step({"a": {WEIGHT: W, LOCAL: own, ACCUMULATED: own, CLIPPED: sum(parts) * np.float32(factor)}})
        for own, factor in zip(parts, factors, strict=True)
    ]


MESH = {
    "version": 1,
    "mesh": {"dp": 2, "tp": 2},
    "parameters": [{"name": "*", "dp": "invariant", "tp": "invariant"}],
    "tensors": [],
    "batch": ["dp"],
}


def test_factors_that_differ_between_ranks(tmp_path: Path, plain: Context) -> None:
    """Along an axis of the target alone; in both runs, or the reference alone, it is not said."""
    ways = {
        "dp": (0.5, 0.5, 1.0, 1.0),
        "tp": (0.5, 1.0, 0.5, 1.0),
        "turned": (1.0, 1.0, 0.5, 0.5),
        "even": (0.7,) * 4,
    }
    traces = {name: run(tmp_path / name, on_ranks(*of), layout=MESH) for name, of in ways.items()}
    for target, reference, axis in (
        ("dp", "even", "dp"),
        ("tp", "even", "tp"),
        ("dp", "turned", None),
        ("even", "even", None),
        ("even", "dp", None),
    ):
        context = Context(target=traces[target], reference=traces[reference], comparison=plain.comparison)
        found = [one for one in clipping_over_ranks(context) if one.headline.code is Clip.RANKS_DIFFER]
        assert [one.axis for one in found] == ([] if axis is None else [axis]), (target, reference)
        for one in found:
            check_finding(one)
            assert one.next_note == reason(Clip.COMPARE_NORMS)


# -- inputs ------------------------------------------

IDS = np.random.default_rng(1).integers(0, 50, (4, 12))
PIXELS = drawn(5, 4, 12)


def given_to(
    inputs: dict[str, Array], *, digest: str = "0a", factor: float = 1.0, values: bool = True
) -> tuple[Recorder, dict[str, Any]]:
    out = step({"w": gradients(1, before=factor)})
    root = out.call("module", "", type_="Net")
    for name, one in inputs.items():
        out.record(root, "forward", f"input.{name}", one)
    out.record(root, "forward", "output.0", drawn(8, 4, 12))
    out.record(out.call("loss", "loss"), "loss", "value", np.array(2.0, np.float32))
    return out, {"digest": digest, "values": values}


def traced(folder: Path, made: tuple[Recorder, dict[str, Any]]) -> Any:
    from trueup.store import RunWriter, Trace

    out, told = made
    out.write(folder, values=told["values"])
    writer = RunWriter(folder, rank=0)
    writer.write_rank({"rank": 0})
    writer.append_scalars({"step": 0, "batch_digest": told["digest"]})
    return Trace(folder)


@pytest.mark.parametrize(
    ("changed", "kept"), [("scaled", True), ("scaled", False), ("drawn", True), ("the same", False)]
)
def test_inputs_that_are_no_ids(tmp_path: Path, changed: str, kept: bool) -> None:
    """Pixels that are scaled, others, and the same, whose values the runs kept or did not."""
    other = {"scaled": 2 * PIXELS - 1, "drawn": drawn(6, 4, 12), "the same": PIXELS}[changed]
    digests = ("0a", "0a" if changed == "the same" else "0b")
    sides = [
        traced(tmp_path / name, given_to({"pixels": one}, digest=digest, values=kept))
        for name, one, digest in (("t", other, digests[1]), ("r", PIXELS, digests[0]))
    ]
    findings = DataStage().check(context_of(*sides)).findings
    said = said_by(findings)
    assert bool(findings) is (changed != "the same")
    if not findings:
        return
    told = facts_of(said, Stages.DIGESTS)
    explained = kept and changed == "scaled"
    assert (told is None) is explained
    assert told in (None, {"target": "0b", "reference": "0a"})
    (finding,) = findings
    assert finding.next_note is not None
    assert (finding.next_note.code is Stages.CAPTURE_IDS) is not kept
    causes = {one.code for one in finding.causes}
    assert (causes == {CauseCode.PREPROCESSING}) is explained
    if explained:
        assert facts_of(said, Batches.SCALED) == {
            "scale": pytest.approx(2.0),
            "offset": pytest.approx(-1.0),
        }


@pytest.mark.parametrize(
    ("positions", "factor", "seen"),
    [(np.arange(12) + 5, 1.0, True), (np.arange(12), 1.0, False), (np.arange(12) + 5, 1.5, False)],
    ids=["nothing comes of it", "the same", "other gradients"],
)
def test_an_input_of_which_nothing_comes(tmp_path: Path, positions: Array, factor: float, seen: bool) -> None:
    rows = np.ones((4, 1), np.int64)
    sides = [
        traced(
            tmp_path / name,
            given_to({"input_ids": IDS, "position_ids": at * rows}, factor=times_),
        )
        for name, at, times_ in (("t", positions, factor), ("r", np.arange(12), 1.0))
    ]
    context = context_of(*sides)
    outcome = DataStage().check(context)
    told = facts_of([outcome.conclusion, *outcome.evidence], Stages.INPUT_WITHOUT_EFFECT)
    assert told == ({"names": ("position_ids",)} if seen else None), context.comparison.verdict.headline
    if seen:
        assert outcome.status is StageStatus.PASSED
        assert "differs" in text(reason(Stages.INPUT_WITHOUT_EFFECT, names=("position_ids",)))
        assert not np.array_equal(positions, np.arange(12))


# -- what follows from something else ------------------------------------------


def beside(context: Context, **more: Any) -> Context:
    """The same runs, after other stages."""
    return Context(target=context.target, reference=context.reference, comparison=context.comparison, **more)


def test_what_weights_explain(tmp_path: Path) -> None:
    """A weight of the module, of one around it, or one tied to it, that differs; and none of another."""
    row = {"fqn": "head.w", "tied_to": "emb.w", "shape": [8, 8], "dtype": "float32", "requires_grad": True}
    trace = run(tmp_path / "t", step(PLAIN), facts={"parameters": [row]})
    context = context_of(trace, trace)
    for module, apart, named in (
        ("inner", ["inner.w"], "inner.w"),
        ("inner", ["other.w"], None),
        ("inner", [], None),
        ("inner.deep.er", ["inner.w"], "inner.w"),
        ("head", ["emb.w"], "head.w"),
        ("head", ["inner.w"], None),
    ):
        failed = replace(passed(Stage.WEIGHTS, StageStatus.FAILED), details={"apart": apart})
        said = explained_by(origin(module=module, step=0), beside(context, earlier=[failed]))
        assert said == (None if named is None else reason(Stages.WEIGHT_DIFFERS, parameter=named))


@pytest.mark.parametrize("data", [StageStatus.FAILED, StageStatus.PASSED])
@pytest.mark.parametrize(
    ("at", "fed"),
    [
        ({"module": "", "slot": "input.0"}, True),
        ({"module": "", "slot": "value", "phase": "loss"}, True),
        ({"module": "inner", "slot": "output.0"}, False),
    ],
)
def test_what_the_batch_explains(plain: Context, data: StageStatus, at: Any, fed: bool) -> None:
    context = beside(plain, earlier=[passed(Stage.DATA, data)])
    said = explained_by(origin(step=0, **at), context)
    assert said == (reason(Stages.BATCH_DIFFERS) if fed and data is StageStatus.FAILED else None)
    if said is not None:  # and the stage says so
        outcome = replace_origins(context, origin(step=0, **at))
        assert outcome is None or outcome.conclusion in (
            reason(Stages.EXPLAINED, said),
            reason(Stages.FOLLOWS, stage="data"),
        )


def replace_origins(context: Context, one: Any) -> Any:
    context.origins = (one,)
    outcome = ForwardStage().check(context)
    return outcome if outcome.status is StageStatus.CONSEQUENCE else None


def of_modules(folder: Path, *, inner: float = 1.0, loss: float = 2.0, back: float = 1.0) -> Any:
    """A module inside, whose output is multiplied, and a loss."""
    out = step({"w": gradients(1, before=back)}, loss=loss)
    root = out.call("module", "", type_="Net")
    out.record(root, "forward", "input.0", drawn(60, 4, 8))
    call = out.call("module", "inner", root, "Linear")
    out.record(call, "forward", "input.0", drawn(60, 4, 8))
    out.record(call, "forward", "output.0", drawn(61, 4, 8) * np.float32(inner))
    out.record(root, "forward", "output.0", drawn(62, 4, 8))
    return run(folder, out)


@pytest.mark.parametrize(("inner", "back", "alone"), [(1.01, 1.0, True), (1.01, 1.2, False)])
def test_differences_inside_alone(tmp_path: Path, inner: float, back: float, alone: bool) -> None:
    sides = of_modules(tmp_path / "t", inner=inner, back=back), of_modules(tmp_path / "r")
    context = context_of(*sides)
    outcome = ForwardStage().check(context)
    inside = reason(Stages.INSIDE_ONLY)
    assert (outcome.conclusion == inside) is alone, outcome.conclusion
    said = explained_by(origin(module="inner", step=0), context)
    assert (said == inside) is alone
    if alone:  # it says that loss and gradients agree, and they do
        assert BackwardStage().check(context).status is StageStatus.PASSED


@pytest.mark.parametrize("coarse", [True, False])
def test_what_another_dtype_explains(plain: Context, coarse: bool) -> None:
    context = beside(plain)
    if coarse:
        headline = reason(VerdictCode.COMPUTES_IN, target="bfloat16", reference="float32")
        context.precision = replace(context.comparison.verdict, headline=headline)
    said = explained_by(origin(module="inner", step=0), context)
    assert said == (reason(Stages.OTHER_DTYPE) if coarse else None)


@pytest.mark.parametrize(
    ("scale", "after", "undone"),
    [(0.5, 2.0, True), (0.5, 1.0, False)],
    ids=["taken out", "left in"],
)
def test_a_loss_whose_factor_is_taken_out(tmp_path: Path, scale: float, after: float, undone: bool) -> None:
    """Losses and gradients times a factor, which the target takes out of the gradients before its update."""
    sides = []
    for name, factor, then in (("t", scale, after), ("r", 1.0, 1.0)):
        made = {f"w{at}": gradients(at, then, before=factor) for at in range(4)}
        sides.append(run(tmp_path / name, step(made, loss=2.0 * factor)))
    context = context_of(*sides)
    notes = [note for note in context.comparison.content.notes if note.code is NoteCode.LOSS_SCALE_UNDONE]
    assert bool(notes) is undone
    for stage in (ForwardStage(), BackwardStage()):
        said = stage.check(context).conclusion
        assert (said.code is Stages.SCALE_UNDONE) is undone, said
        if undone:
            assert said.number("factor") == pytest.approx(scale)
            assert said.number("factor") * after == pytest.approx(1.0)  # type: ignore[operator]


# -- origins ------------------------------------------


def test_several_places_of_a_module_are_one_finding(tmp_path: Path) -> None:
    """The others are named with it; those of other modules are findings of their own."""
    trace = of_modules(tmp_path / "t", inner=1.5, loss=2.5, back=1.2)
    made = (
        origin(module="inner", step=0, site="inner · output.0", order=1),
        origin(module="inner", step=0, site="inner · output.1", order=2, score=5.0, slot="output.1"),
        origin(module="", step=0, site="(root) · output.0", order=3),
    )
    context = context_of(trace, of_modules(tmp_path / "r"), origins=made)
    context.replayed = trace
    findings = ForwardStage().check(context).findings
    assert sorted(one.module or "" for one in findings) == ["", "inner"]
    for one in findings:
        check_finding(one)
        also = [said for said in one.evidence if said.code is Stages.ALSO_AT]
        others = {of.site for of in made if of.module == one.module and of.site != one.site}
        assert {said.facts["site"] for said in also} == others
        assert all(said.facts["phase"] == "forward" for said in also)


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_what_to_do_about_an_origin(tmp_path: Path, eps: float) -> None:
    """A setting of the module that differs is to be aligned; where nothing is known, code is compared."""
    sides = []
    for name, value in (("t", eps), ("r", 1e-5)):
        out = step(PLAIN, loss=2.0)
        root = out.call("module", "", type_="Net")
        call = out.call("module", "norm", root, "RMSNorm")
        out.record(call, "forward", "output.0", drawn(61, 4, 8) * np.float32(1 + value))
        sides.append(run(tmp_path / name, out, facts={"settings": {"norm": {"eps": value}}}))
    finding = finding_from_origin(origin(module="norm", step=0), context_of(*sides))
    check_finding(finding)
    differs = eps != 1e-5
    assert finding.next_note == (
        reason(Stages.ALIGN_SETTING, module="norm", name="eps") if differs else reason(Stages.COMPARE_CODE)
    )
    assert (Stages.SETTING_DIFFERS in codes_of([finding.headline])) is differs


# -- weights of one side ------------------------------------------


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(0, 1),
    st.sampled_from(["target", "reference"]),
    st.sampled_from(["whole", "part", "one differs", "other order", "summed"]),
)
def test_weights_held_whole_on_each_rank(num: int, dim: int, side: str, how: str) -> None:
    whole = drawn(num, 4 * num, 4 * num).astype(np.float64)
    parts = np.split(whole, num, axis=dim)
    held = {
        "whole": [whole] * num,
        "part": parts,
        "one differs": [*[whole] * (num - 1), whole + 1],
        "other order": [np.roll(whole, 1, axis=dim)] * num,
        "summed": [whole * num] * num,
    }[how]
    found = held_whole(held, parts) if side == "target" else held_whole(parts, held)
    assert (found is not None) is (how == "whole")
    if found is not None:
        assert found.evidence == reason(Weights.WHOLE_ON_EACH, side=side, num=num, dim=dim)


@pytest.mark.parametrize("side", ["target", "reference", None])
def test_a_layer_that_one_run_splits_over_ranks(tmp_path: Path, side: str | None) -> None:
    whole = drawn(3, 8, 8)
    alike = {WEIGHT: drawn(4), LOCAL: drawn(5)}
    split = [step({"v": alike, "w": {WEIGHT: part, LOCAL: part}}) for part in np.split(whole, 2)]
    full = [step({"v": alike, "w": {WEIGHT: whole, LOCAL: whole}}) for _ in range(2)]
    made = {"target": (full, split), "reference": (split, full), None: (split, split)}[side]
    context = context_of(*(run(tmp_path / name, one) for name, one in zip("tr", made, strict=True)))
    findings = WeightsStage().check(context).findings
    said = said_by(findings)
    assert (Weights.CUT_CAUSE in codes_of(said)) is (side is not None)
    told = facts_of(said, Weights.WHOLE_ON_EACH)
    assert told == (None if side is None else {"side": side, "num": 2, "dim": 0})


@pytest.mark.parametrize("side", ["target", "reference", None])
def test_weights_that_one_run_makes_of_others(tmp_path: Path, side: str | None) -> None:
    plain = {"conv.weight": drawn(1), "conv.bias": drawn(2, 8), "head.weight": drawn(3)}
    made = {
        "conv.bias": plain["conv.bias"],
        "conv.parametrizations.weight.original0": drawn(4, 8, 1),
        "conv.parametrizations.weight.original1": drawn(5),
        "head.weight": plain["head.weight"],
    }
    sides = []
    for name in ("target", "reference"):
        parts = made if name == side else plain
        sides.append(run(tmp_path / name, step({n: {WEIGHT: w, LOCAL: 0.1 * w} for n, w in parts.items()})))
    findings = WeightsStage().check(context_of(*sides)).findings
    told = [one for one in findings if one.headline.code is Weights.PARAMETRIZED]
    assert bool(told) is (side is not None)
    for one in told:
        check_finding(one)
        other = {"target": "reference", "reference": "target"}[str(side)]
        assert one.headline.facts == {"side": side, "num": 1, "parameter": "conv.weight"}
        assert facts_of(one.evidence, Weights.NAMES) == {"side": other, "names": ("conv.weight",)}
        assert one.causes == (reason(Weights.PARAMETRIZED_CAUSE),)
        assert one.next_note == reason(Weights.BUILD_BOTH, parameter="conv.weight")
