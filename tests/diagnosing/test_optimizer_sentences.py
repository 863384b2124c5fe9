"""What is said of two optimizers, checked of Adam with any settings from the settings themselves, and of
what an optimizer makes of the reference's gradients from the tensors alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosing.made_steps import Array, context_of, drawn, facts_of, passed, run, step
from tests.diagnosing.usual_causes import check_finding
from trueup.diagnosing.stages.naming import described
from trueup.diagnosing.stages.optimizer import OptimizerStage
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.store import Trace
from trueup.store.view import ACCUMULATED, CLIPPED, LOCAL, UPDATED, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Finding, Stage
from trueup.types.reason import reason

SHAPES = {"a.weight": (20, 15), "b.weight": (15, 10), "b.bias": (80,), "norm.weight": (90,), "c.bias": (100,)}
SMALL = {name for name, shape in SHAPES.items() if len(shape) == 1}


@dataclass(frozen=True, kw_only=True)
class Adam:
    """An optimizer as its code is, not as it says it is."""

    lr: float = 1e-3
    decay: float = 0.1
    decay_of_small: float | None = None
    beta1: float = 0.9
    eps: float = 1e-8
    bias_correction: bool = True
    decoupled: bool = True
    dtype: type[np.floating[Any]] = np.float32

    def of(self, name: str, key: str) -> float:
        if key == "weight_decay" and name in SMALL and self.decay_of_small is not None:
            return self.decay_of_small
        return {"lr": self.lr, "weight_decay": self.decay, "beta1": self.beta1, "eps": self.eps}[key]

    def group(self, small: bool) -> dict[str, Any]:
        some = next(name for name in SHAPES if (name in SMALL) is small)
        sides = {key: self.of(some, key) for key in ("lr", "weight_decay", "eps")}
        return {**sides, "betas": [self.beta1, 0.999], "num_params": 1}

    def trace(self, folder: Path, *, declares: bool = True, steps: int = 1, scale: float = 1e-3) -> Trace:
        """A run of as many updates."""
        made, weights, moments = [], {n: 0.5 + drawn(at, *s) for at, (n, s) in enumerate(SHAPES.items())}, {}
        for number in range(1, steps + 1):
            parts = {}
            for at, name in enumerate(SHAPES):
                weight, given = weights[name], drawn(100 * number + at, *SHAPES[name]) * np.float32(scale)
                gradient, decay = given.astype(np.float64), self.of(name, "weight_decay")
                if not self.decoupled:
                    gradient = gradient + decay * weight
                first, second = moments.get(name, (0.0, 0.0))
                first = self.beta1 * first + (1 - self.beta1) * gradient
                second = 0.999 * second + 1e-3 * gradient**2
                moments[name] = first, second
                fix = (1 - self.beta1**number, 1 - 0.999**number) if self.bias_correction else (1.0, 1.0)
                moved = self.lr * first / fix[0] / (np.sqrt(second / fix[1]) + self.eps)
                moved = moved + (self.lr * decay * weight if self.decoupled else 0.0)
                weights[name] = (weight - moved).astype(self.dtype).astype(np.float32)
                parts[name] = {
                    WEIGHT: weight.astype(self.dtype),
                    **dict.fromkeys((LOCAL, ACCUMULATED, CLIPPED), given.astype(self.dtype)),
                    UPDATED: weights[name].astype(self.dtype),
                    ("optimizer", "state.exp_avg"): first.astype(np.float32),
                    ("optimizer", "state.exp_avg_sq"): second.astype(np.float32),
                    ("optimizer", "state.step"): np.array(number, np.float32),
                }
            made.append(step(parts))
        facts: dict[str, Any] = {"parameters": [self._row(name) for name in SHAPES]}
        if declares:
            name = "AdamW" if self.decoupled else "Adam"
            facts["optimizers"] = [{"class": name, "groups": [self.group(False), self.group(True)]}]
        return run(folder, *made, facts=facts)

    def _row(self, name: str) -> dict[str, Any]:
        row = {
            "fqn": name,
            "shape": list(SHAPES[name]),
            "dtype": np.dtype(self.dtype).name,
            "requires_grad": True,
        }
        return {**row, "optimizer_group": [0, int(name in SMALL)]}


USUAL = Adam()
KEYS = ("lr", "weight_decay", "beta1", "eps")


def check(finding: Finding, sides: Mapping[str, Adam], declares: tuple[bool, bool]) -> None:
    """Each sentence of a finding, from the settings of both sides alone."""
    said = [finding.headline, *finding.evidence]
    named: set[str] = set()
    for one in said:
        if one.code is Stages.SIDES and one.facts["key"] in KEYS:
            names, key = meant(str(one.facts["parameters"])), str(one.facts["key"])
            named |= names
            for side, adam in sides.items():
                for name in names:
                    assert float(one.facts[side]) == pytest.approx(
                        adam.of(name, key), rel=0.05, abs=2e-3 if key == "weight_decay" else 0
                    ), one
            assert len({one.facts[side] for side in sides}) == 2
        if one.code is Stages.SIDES and one.facts["key"] == "bias_correction":
            assert {side: one.facts[side] for side in sides} == {
                s: str(a.bias_correction) for s, a in sides.items()
            }
        if one.code is Stages.SIDES and one.facts["key"] == "decoupled":
            assert {side: one.facts[side] for side in sides} == {
                s: str(a.decoupled) for s, a in sides.items()
            }
        if one.code is Stages.MEASURED_PAIR:
            key = str(next(of.facts["key"] for of in said if of.code is Stages.SIDES))
            for side, adam in sides.items():
                assert one.facts[side] == pytest.approx(
                    adam.of(str(one.facts["parameter"]), key), rel=0.05, abs=1e-3
                )
        if one.code in (Stages.DECAY_TARGET, Stages.DECAY_REFERENCE):
            has, lacks = (
                ("target", "reference") if one.code is Stages.DECAY_TARGET else ("reference", "target")
            )
            for name in meant(str(one.facts["parameters"])):
                assert sides[lacks].of(name, "weight_decay") == 0 < sides[has].of(name, "weight_decay")
                assert float(one.facts[has]) == pytest.approx(sides[has].of(name, "weight_decay"), rel=0.05)
        if one.code is Stages.DECLARED:
            assert all(declares)
    measured = {one.code for one in finding.counter_evidence} == {Stages.MEASURED_COUNTER}
    assert not measured or finding.headline.facts.get("key") != "class"
    for cause in finding.causes:
        if cause.code is Stages.OTHER_GROUPS:
            pairs = {tuple(one.of(name, "weight_decay") for one in sides.values()) for name in SHAPES}
            assert len(pairs) == 2
        if cause.code is Stages.NO_BIAS_CORRECTION:
            assert {one.bias_correction for one in sides.values()} == {True, False}
        if cause.code is Stages.COUPLED_DECAY:
            assert {one.decoupled for one in sides.values()} == {True, False}
        if cause.code is Stages.DEFAULT_EPS:
            assert sides["target"].eps != sides["reference"].eps


def meant(words: str) -> set[str]:
    """The parameters that the words of a finding stand for."""
    known = {
        "all 5 parameters": set(SHAPES),
        "the 3 one-dimensional parameters": SMALL,
    }
    return known.get(words) or {name for name in SHAPES if name in re.split(r", | and |[ ()]", words)}


OTHERS = {
    "lr": replace(USUAL, lr=2e-3),
    "decay": replace(USUAL, decay=0.01),
    "decay of some": replace(USUAL, decay_of_small=0.0),
    "no decay": replace(USUAL, decay=0.0),
    "beta1": replace(USUAL, beta1=0.8),
    "eps": replace(USUAL, eps=1e-5),
    "bias": replace(USUAL, bias_correction=False),
    "coupled": replace(USUAL, decoupled=False),
    "two": replace(USUAL, lr=2e-3, decay=0.3),
    "the same": USUAL,
}


@pytest.mark.parametrize(
    "declares", [(True, True), (False, False), (True, False)], ids=["both", "none", "target"]
)
def test_settings_of_adam(tmp_path: Path, declares: tuple[bool, bool]) -> None:
    seen: set[Any] = set()
    usual = [USUAL.trace(tmp_path / f"usual{at}", declares=on) for at, on in enumerate(declares)]
    for name, other in OTHERS.items():
        if name in ("beta1", "two") and declares != (False, False):
            continue
        ways = [(False, other)] if declares[0] is not declares[1] else [(False, other), (True, other)]
        if name == "bias" and not any(declares):
            continue  # of one update, it is another learning rate
        trace = other.trace(tmp_path / name, declares=declares[0])
        for turned, adam in ways:
            sides = {"target": USUAL, "reference": adam} if turned else {"target": adam, "reference": USUAL}
            traces = (usual[0], trace) if turned else (trace, usual[1])
            outcome = OptimizerStage().check(context_of(*traces, earlier=[passed(Stage.DATA)]))
            for one in outcome.evidence:
                if one.code is Stages.MEASURED:
                    for key, value in zip(one.facts["keys"], one.facts["values"], strict=True):
                        expected = (
                            sides["target"].of(str(one.facts["parameter"]), key) if key in KEYS else None
                        )
                        assert expected is None or float(value) == pytest.approx(expected, rel=0.05, abs=1e-3)
                    seen.add(one.code)
            assert bool(outcome.findings) is (adam is not USUAL), name
            for finding in outcome.findings:
                check(finding, sides, declares)
                if declares == (True, False) and name == "bias":  # the reference's may have any learning rate
                    assert finding.headline.code is Stages.UNNAMED
                    assert facts_of(finding.evidence, Stages.EQUAL_BEFORE) == {
                        "num": 5,
                        "names": tuple(SHAPES),
                    }
                seen |= {
                    one.code
                    for one in (
                        finding.headline,
                        *finding.evidence,
                        *finding.causes,
                        *finding.counter_evidence,
                    )
                }
    told = {Stages.SIDES, Stages.MEASURED, Stages.MEASURED_PAIR, Stages.MEASURED_COUNTER, Stages.DECAY_TARGET}
    told |= {
        Stages.DECAY_REFERENCE,
        Stages.OTHER_GROUPS,
        Stages.DEFAULT_EPS,
        Stages.NO_BIAS_CORRECTION,
        Stages.COUPLED_DECAY,
    }
    if all(declares):
        assert seen >= told | {Stages.DECLARED}, told - seen
    assert seen >= {
        Stages.SIDES,
        Stages.MEASURED,
        Stages.MEASURED_PAIR,
        Stages.MEASURED_COUNTER,
        Stages.OTHER_GROUPS,
    }


def outcome_of(folder: Path, target: Trace, reference: Trace, **more: Any) -> StageOutcome:
    return OptimizerStage().check(context_of(target, reference, **more))


def given_run(
    folder: Path, changed: Mapping[str, Callable[[str, Array], Array]], *, updates: bool = True
) -> Trace:
    """What the usual optimizer makes of the reference's gradients, but for some slots, or without updates."""
    from trueup.store.view import step_view

    book, parts = step_view(USUAL.trace(folder / "plain"), 0, 0), {}
    for name in SHAPES:
        held = {}
        for phase, slot in (WEIGHT, LOCAL, ACCUMULATED, CLIPPED, *((UPDATED, *STATES) if updates else ())):
            value = book.value(book.parameter(name, phase, slot))
            held[phase, slot] = changed.get(slot, lambda _, same: same)(name, np.asarray(value, np.float32))
        parts[name] = held
    return run(folder / "given", step(parts))


STATES = (("optimizer", "state.exp_avg"), ("optimizer", "state.exp_avg_sq"))


def off(*names: str, by: float = 1.01) -> Callable[[str, Array], Array]:
    return lambda name, of: of * np.float32(by) if name in names else of


@pytest.mark.parametrize(
    ("changed", "code", "numbers"),
    [
        ({}, Stages.GIVEN_SAME, {"total": 5, "equal": 5, "within": 0}),
        ({"param": off("a.weight", by=1 + 2**-23)}, Stages.GIVEN_SAME, {"total": 5, "equal": 4, "within": 1}),
        (
            {"param": off("a.weight", "b.bias")},
            Stages.GIVEN_DIFFER,
            {"num": 2, "total": 5, "names": ("a.weight", "b.bias")},
        ),
        (
            {"state.exp_avg": off("a.weight"), "state.exp_avg_sq": off("b.bias", "c.bias")},
            Stages.GIVEN_STATE_DIFFER,
            {"num": 3, "total": 5, "names": ("exp_avg", "exp_avg_sq")},
        ),
        (
            {"state.exp_avg": off("a.weight"), "clipped": off("a.weight", by=1.5)},
            Stages.GIVEN_SAME,
            {"total": 4, "equal": 4, "within": 0},
        ),
    ],
    ids=["the same", "rounding", "updates", "states of several", "a gradient of its own"],
)
def test_what_is_made_of_the_reference_s_gradients(
    tmp_path: Path, changed: Any, code: Stages, numbers: dict[str, Any]
) -> None:
    sides = [USUAL.trace(tmp_path / name) for name in ("t", "r")]
    outcome = OptimizerStage().check(context_of(*sides, given=given_run(tmp_path, changed)))
    said = next(one for one in outcome.evidence if one.code in GIVEN)
    assert (said.code, said.facts) == (code, numbers)


def test_updates_with_the_reference_s_gradients_put_in(tmp_path: Path) -> None:
    """Gradients that differ, and an optimizer that makes the reference's updates of the reference's, or does
    not; an optimizer of another rate, with and without them."""
    reference, other = USUAL.trace(tmp_path / "r"), USUAL.trace(tmp_path / "t", scale=2e-3)
    for name, changed in (("same", {}), ("apart", {"param": off("a.weight", "b.bias")})):
        given = given_run(tmp_path / name, changed)
        outcome = OptimizerStage().check(context_of(other, reference, given=given))
        clears = outcome.conclusion.code is Stages.GIVEN_CLEARS
        assert clears is (name == "same")
        assert (outcome.status is StageStatus.CONSEQUENCE) is clears
    fast = OTHERS["lr"].trace(tmp_path / "fast")
    for put_in in (None, fast):  # of the reference's gradients, as all gradients here are
        outcome = OptimizerStage().check(context_of(fast, reference, given=put_in))
        counters = {one.code for finding in outcome.findings for one in finding.counter_evidence}
        assert outcome.findings
        assert (Stages.GIVEN_COUNTER in counters) is (put_in is not None)


@pytest.mark.parametrize(
    ("dtype", "small", "masters", "code"),
    [
        (np.float16, False, True, Stages.NO_MASTER_WEIGHTS),
        (np.float16, True, False, Stages.ROUNDED_TO_NEAREST),
        (np.float16, False, False, None),
        (np.float32, False, False, None),
    ],
    ids=["copies in float32 on one side", "small updates lost", "neither", "in float32"],
)
def test_causes_of_a_coarse_dtype(
    tmp_path: Path, dtype: Any, small: bool, masters: bool, code: Stages | None
) -> None:
    """``small``: updates below half of what the weights' dtype tells apart, which the target rounds away;
    ``masters``: the reference's optimizer holds copies in float32 of the same weights."""
    made = []
    for side in ("t", "r"):
        parts, copies = {}, []
        for at, name in enumerate(("a", "b")):
            shape = (8, 8 + at)
            weight, gradient = drawn(7 + at, *shape).astype(dtype), drawn(1 + at, *shape).astype(dtype)
            spacing = np.spacing(np.abs(weight)) * np.sign(gradient).astype(dtype)
            after = (weight - dtype(0.01) * gradient).astype(dtype)
            if small and name == "a":
                after = weight if side == "t" else weight - spacing
            parts[name] = {**dict.fromkeys((LOCAL, ACCUMULATED, CLIPPED), gradient), WEIGHT: weight}
            if masters and side == "r":
                copies.append(after.astype(np.float32))
            else:
                parts[name][UPDATED] = after
        out = step(parts)
        for at, copy in enumerate(copies):
            out.record(out.call("parameter", f"AdamW.group0.{at}"), "optimizer", "param", copy)
        table = [
            {"fqn": n, "shape": [8, 8 + at], "dtype": np.dtype(dtype).name, "requires_grad": True}
            for at, n in enumerate(parts)
        ]
        made.append(run(tmp_path / side, out, facts={"parameters": table}))
    findings = OptimizerStage().check(context_of(*made)).findings
    causes = {one.code for finding in findings for one in finding.causes}
    told = {Stages.NO_MASTER_WEIGHTS, Stages.ROUNDED_TO_NEAREST}
    assert causes & told == (set() if code is None else {code}), [one.headline for one in findings]
    for finding in findings:
        check_finding(finding)


FAILED = passed(Stage.FORWARD, StageStatus.FAILED)
GIVEN = (Stages.GIVEN_SAME, Stages.GIVEN_DIFFER, Stages.GIVEN_STATE_DIFFER)


def updated_in(*of: bool, numbers: tuple[int, ...] = (0, 1), off: float = 0.0) -> list[Any]:
    """Steps in which an optimizer that nobody knows makes an update, or none."""
    made: list[Any] = []
    for number, updates in enumerate(of):
        weight, gradient = drawn(7), drawn(number)
        new = {UPDATED: np.sign(weight) * np.abs(weight) ** np.float32(1.1 + off)} if updates else {}
        made.append(
            step({"w": {WEIGHT: weight, LOCAL: gradient, ACCUMULATED: gradient, CLIPPED: gradient, **new}})
        )
    return made


@pytest.mark.parametrize(
    ("updates", "code"), [((False, True), Stages.UPDATE_LATER), ((False, False), Stages.NO_UPDATE)]
)
def test_when_the_first_update_is(tmp_path: Path, updates: tuple[bool, bool], code: Stages) -> None:
    traces = [run(tmp_path / name, *updated_in(*updates)) for name in ("t", "r")]
    said = outcome_of(tmp_path, *traces).conclusion
    assert said.code is code
    if code is Stages.UPDATE_LATER:
        assert said.facts == {"step": 0, "next": 1}


def test_an_update_that_one_run_skipped_is_no_agreement(tmp_path: Path) -> None:
    """With the reference's gradients the target makes one: nothing was compared of its own step."""
    given, reference = given_run(tmp_path / "given", {}), USUAL.trace(tmp_path / "r")
    skipped = given_run(tmp_path / "t", {"clipped": lambda _, of: of * np.float32(np.nan)}, updates=False)
    outcome = outcome_of(tmp_path, skipped, reference, given=given, earlier=(FAILED,))
    assert outcome.conclusion == reason(Stages.UPDATE_IN_ONE, side="reference", step=0)
    assert outcome.status is StageStatus.CONSEQUENCE


def test_the_first_recorded_update_need_not_be_the_first(tmp_path: Path) -> None:
    traces = []
    for name in ("t", "r"):
        for number, made in zip((0, 5), updated_in(False, True), strict=True):
            traces.append(made.write(tmp_path / name, step=number, values=True))
    assert outcome_of(tmp_path, traces[1], traces[3]).conclusion.code is Stages.NO_UPDATE


@pytest.mark.parametrize("caused", ["nothing", "gradients"])
def test_updates_of_which_nothing_is_measured(tmp_path: Path, caused: str) -> None:
    """An unknown rule; Adam of other gradients is the same rule."""
    first, second = updated_in(True)[0], updated_in(True, off=0.1)[0]
    if caused == "gradients":
        traces = [USUAL.trace(tmp_path / "t", scale=2e-3), USUAL.trace(tmp_path / "r")]
        outcome = outcome_of(tmp_path, *traces, earlier=[passed(Stage.BACKWARD, StageStatus.FAILED)])
        assert outcome.conclusion.code in (Stages.BOTH_SAME, Stages.WITHIN_ROUNDING)
        return
    outcome = outcome_of(tmp_path, run(tmp_path / "t", first), run(tmp_path / "r", second))
    assert outcome.findings[0].headline.code is Stages.UNNAMED
    assert {one.code for one in outcome.findings[0].causes} == {Stages.OTHER_OPTIMIZER}
    note = outcome.findings[0].next_note
    assert note is not None
    assert note.code is Stages.COMPARE_OPTIMIZERS
    failed = outcome_of(
        tmp_path,
        *(Trace(tmp_path / name) for name in ("t", "r")),
        earlier=[passed(Stage.FORWARD, StageStatus.FAILED)],
    )
    assert failed.conclusion.code is Stages.FOLLOWS
    assert Stages.MEASURED not in {
        one.code for one in failed.evidence
    }  # the rule of SGD explains nothing of it
    other = step(
        {"w": {**{of: drawn(9) for of in (LOCAL, ACCUMULATED, CLIPPED)}, WEIGHT: drawn(7), UPDATED: drawn(8)}}
    )
    outcome = outcome_of(tmp_path, run(tmp_path / "o", other), Trace(tmp_path / "r"))
    assert outcome.conclusion.code is Stages.NOT_DISTINGUISHED


def test_the_words_for_parameters(tmp_path: Path) -> None:
    """Each word holds of the shapes and the names."""
    random = np.random.default_rng(5)
    seen = set()
    for _ in range(600):
        names = [
            f"m{at}.{random.choice(['weight', 'bias', 'A_log', 'norm.weight'])}"
            for at in range(random.integers(3, 9))
        ]
        shapes = {name: (4,) * int(random.choice([0, 1, 1, 1, 2, 2, 4], p=None)) for name in names}
        chosen = (
            [n for n in names if len(shapes[n]) <= 1]
            if random.random() < 0.3
            else [n for n in names if len(shapes[n]) > 1]
        )
        chosen = (
            [n for n in chosen if n.endswith("bias") is bool(random.random() < 0.5)]
            if random.random() < 0.3
            else chosen
        )
        chosen = [n for n in chosen if not n.endswith("bias")] if random.random() < 0.3 else chosen
        if len(chosen) < 3:
            continue
        words, dims = described(chosen, shapes), {len(shapes[n]) for n in chosen}
        of = next((one for one in WORDS if one in words), "other")
        seen.add(of)
        assert WORDS[of](chosen, dims), (words, chosen, shapes)
    assert seen >= set(WORDS) - {"other"}, seen


WORDS: dict[str, Callable[[list[str], set[int]], bool]] = {
    "one-dimensional parameters that are no biases": lambda names, dims: dims <= {0, 1},
    "parameters of one dimension or none": lambda names, dims: dims <= {0, 1},
    "one-dimensional": lambda names, dims: dims == {1},
    "matrices": lambda names, dims: dims == {2},
    "parameters of two dimensions or more": lambda names, dims: min(dims) >= 2,
    "norm weights": lambda names, dims: all("norm" in name for name in names) and dims <= {0, 1},
    "other": lambda names, dims: True,
}


@pytest.mark.parametrize(("decay", "code"), [(0.0005, Stages.SETTING), (0.0, Stages.DECAY_TARGET)])
def test_a_small_decay_that_is_declared_is_no_zero(tmp_path: Path, decay: float, code: Stages) -> None:
    sides = [replace(USUAL, decay=one).trace(tmp_path / str(one)) for one in (0.005, decay)]
    found = OptimizerStage().check(context_of(*sides, earlier=[passed(Stage.DATA)])).findings
    assert [one.headline.code for one in found] == [code]
