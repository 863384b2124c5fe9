"""A module whose result is not used, gates of channels, dropout that another output shows, starts of one
number: each with its near miss."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.diagnosing.cases import case, known, pair
from trueup.diagnosing.batches import relation
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.evidence.facts import Elsewhere, Maker, SlotPair
from trueup.diagnosing.kinds import gated, missing_or_extra_term, randomness
from trueup.diagnosing.stages.batch import StepBatch
from trueup.diagnosing.stages.counted import (
    _ends_counted,
    _ids_counted,
    _starts_counted,
    counted_in_one_run,
)
from trueup.diagnosing.stages.data import _batch_finding, _not_counted_alike
from trueup.diagnosing.stages.weight_change import change_of
from trueup.diagnosing.stages.weights import _loaded_in_one
from trueup.store import StepView
from trueup.types.codes import BatchCode, WeightsCode
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import Finding
from trueup.types.reason import Reason, reason

DRAW = np.random.default_rng(9)
STREAM = DRAW.normal(size=(3, 8, 16)).astype(np.float32)
NORMED = (STREAM / np.sqrt((STREAM**2).mean(-1, keepdims=True))).astype(np.float32)


def made(side: str, given: Any, kind: str = "RMSNorm") -> Surroundings:
    maker = Maker(side=side, module="model.norm", type=kind, given=(known(given, "model.norm, input.0"),))
    return Surroundings(module="", makers=(maker,))


@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_module_whose_input_is_used_in_place_of_its_result(side: str) -> None:
    values = (STREAM, NORMED) if side == "target" else (NORMED, STREAM)
    maker = "reference" if side == "target" else "target"
    evidence = case(*values, slot="input.0", module="", surroundings=made(maker, STREAM))
    found = missing_or_extra_term._module_left_out(evidence)
    assert found is not None
    assert found.sentence.code is KindReason.MODULE_LEFT_OUT
    assert (found.sentence.place("side"), found.sentence.place("skipped")) == (side, "model.norm")


def test_what_is_no_module_left_out() -> None:
    other = STREAM + np.float32(1e-6)
    for target, kind, given in (
        (other, "RMSNorm", STREAM),
        (STREAM, "Dropout", STREAM),
        (STREAM, "DropPath", STREAM),
    ):
        evidence = case(
            target, NORMED, slot="input.0", module="", surroundings=made("reference", given, kind)
        )
        assert missing_or_extra_term._module_left_out(evidence) is None
    kept = NORMED.copy()
    kept[1] = STREAM[1]  # some samples pass, as in stochastic depth
    evidence = case(STREAM, kept, slot="input.0", module="", surroundings=made("reference", STREAM, "Block"))
    assert missing_or_extra_term._module_left_out(evidence) is None


GATES = {
    "sigmoid": lambda u: 1 / (1 + np.exp(-u)),
    "hard sigmoid": lambda u: np.clip(u + 3, 0, 6) / 6,
    "hard sigmoid of 0.2 x + 0.5": lambda u: np.clip(0.2 * u + 0.5, 0, 1),
}


@pytest.mark.parametrize("target", GATES)
@pytest.mark.parametrize("reference", GATES)
def test_gates_of_channels(target: str, reference: str) -> None:
    x, u = DRAW.normal(size=(4, 6, 5, 5)), DRAW.normal(size=(4, 6, 1, 1)) * 2
    around = Surroundings(
        module="se",
        inputs=(SlotPair(slot="input.0", target=known(x, "se, input.0"), reference=known(x, "se, input.0")),),
        nearby=(pair("output.0", None, u),),
    )
    values = [(x * GATES[name](u)).astype(np.float32) for name in (target, reference)]
    found = gated._other_gate(case(*values, module="se", surroundings=around), *map(np.float64, values))
    if target == reference:
        assert found is None
    else:
        assert found is not None
        sentence = found.found.sentence
        assert (sentence.place("target"), sentence.place("reference")) == (target, reference)


def dropped(values: Any, rate: float, *, scaled: bool = True) -> Any:
    keep = np.random.default_rng(4).random(values.shape) >= rate
    return values * keep / (1 - rate if scaled else 1.0)


@pytest.mark.parametrize("scaled", [True, False], ids=["dropout", "a mask"])
def test_dropout_that_another_output_shows(scaled: bool) -> None:
    weights, value = DRAW.random((2, 4, 12, 12)), DRAW.normal(size=(2, 4, 12, 8))
    other = dropped(weights, 0.1, scaled=scaled)
    outputs = pair("output.0", weights @ value, other @ value), pair("output.1", weights, other)
    evidence = case(weights @ value, other @ value, surroundings=Surroundings(outputs=outputs))
    found = randomness._dropout_of_one_side(evidence)
    assert (found is not None) is scaled
    if found is not None:
        assert found.sentence.place("side") == "reference"
        assert found.sentence.number("rate") == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("target", "reference", "name"),
    [
        (np.ones(8), np.full(8, 0.2), "constant"),
        (np.zeros(8), np.full(8, 0.2), "zero"),
        (DRAW.normal(size=8) * 2, np.full(8, 0.2), None),
    ],
)
def test_weights_of_one_number(target: Any, reference: Any, name: str | None) -> None:
    change = change_of(target, reference, "float32", "float32")
    assert change is not None
    assert (change.name == name) if name else (change.name != "constant")
    assert (change.evidence.code is WeightsCode.ONE_NUMBER) is (name == "constant")


def test_one_id_at_one_position_of_all_rows() -> None:
    ids = DRAW.integers(5, 90, (6, 12))
    ids[:, 0], ids[2, 5], ids[3, 4] = 0, 0, 1
    for at, name in ((0, "first_token"), (7, "one_token")):
        base, other = ids.copy(), ids.copy()
        base[:, at], other[:, at] = 0, 1
        found = relation(other, base)
        assert (found.name, found.evidence.code) == (name, BatchCode.ONE_POSITION)
        told = {"position": at, "rows": 6, "target": 1, "reference": 0}
        assert dict(found.evidence.facts) == told
    varied = ids.copy()
    varied[:, 0] = np.arange(1, 7)
    assert relation(varied, ids).name not in ("first_token", "one_token")
    two = ids.copy()
    two[:, :2] = 1
    assert relation(two, ids).name not in ("first_token", "one_token")


@pytest.mark.parametrize("side", ["later", "earlier"])
def test_rows_that_are_another_part_of_the_same_text(side: str) -> None:
    texts = [DRAW.integers(5, 90, size) for size in (20, 24, 16)]
    ends = np.array([row[-16:] for row in texts]), np.array([row[:16] for row in texts])
    found = relation(*(ends if side == "later" else ends[::-1]))
    assert (found.name, found.evidence.code) == (f"cut_{side}", BatchCode.CUT)
    told = {"num": 2, "total": 3, "rows": ("0", "1"), "by": ("4", "8"), "side": side}
    assert dict(found.evidence.facts) == told
    other = ends[0].copy()
    other[1] = DRAW.integers(5, 90, 16)  # one row is another text
    assert not relation(other, ends[1]).name.startswith("cut")
    short = [np.array([row[-16:], row[-16:]]) for row in (np.arange(40) % 2, 1 - np.arange(40) % 2)]
    assert not relation(*short).name.startswith("cut")  # of two ids any row holds the other's


def test_padding_of_labels_that_counts() -> None:
    labels = DRAW.integers(5, 90, (3, 8))
    ignored, kept = labels.copy(), labels.copy()
    for row, length in enumerate((5, 6, 8)):
        ignored[row, length:], kept[row, length:] = -100, 0
    counts = [kept != -100, ignored != -100]
    found = _ends_counted(kept, ignored, counts)
    assert found is not None
    assert (found.code, dict(found.facts)) == (BatchCode.ENDS_COUNTED, {"side": "target", "label": 0})
    back = _ends_counted(ignored, kept, counts[::-1])
    assert back is not None
    assert back.place("side") == "reference"
    end, masked = labels.copy(), labels.copy()
    end[:, 7], masked[:, 7] = 2, -100  # an end token, once a row
    assert _ends_counted(end, masked, [end != -100, masked != -100]) is None
    kept[0, 6] = 7  # two ids are no padding
    assert _ends_counted(kept, ignored, counts) is None


def test_prompts_that_count() -> None:
    labels = DRAW.integers(5, 90, (4, 9))
    ignored = labels.copy()
    for row, length in enumerate((3, 5, 0, 2)):
        ignored[row, :length] = -100
    sides = [labels != -100, ignored != -100]
    headline, causes = counted_in_one_run(labels, ignored, sides)
    assert headline == reason(BatchCode.STARTS_COUNTED, side="target")
    assert causes == (reason(CauseCode.PROMPT_COUNTED),)
    back = _starts_counted(sides[::-1])
    assert back is not None
    assert back[0] == reason(BatchCode.STARTS_COUNTED, side="reference")
    first = labels.copy()
    first[:, 0] = -100  # a token that rows begin with
    of_first = counted_in_one_run(labels, first, [labels != -100, first != -100])
    assert of_first[1] == (reason(CauseCode.LABELS_COUNTED),)
    answer = ignored.copy()
    answer[0, 6] = -100  # in the midst of what counts
    assert _starts_counted([sides[0], answer != -100]) is None
    of_answer = counted_in_one_run(labels, answer, [sides[0], answer != -100])
    assert of_answer == (reason(BatchCode.MASK_DIFFERS), None)
    whole = ignored.copy()
    whole[1] = -100  # nothing of a row counts
    assert _starts_counted([sides[0], whole != -100]) is None
    both = labels.copy()
    both[0, 8] = -100  # each side counts what the other does not
    assert _starts_counted([both != -100, ignored != -100]) is None
    one = labels.copy()
    one[0, :4] = -100  # one row may be anything
    assert _starts_counted([sides[0], one != -100]) is None


def test_labels_that_a_rule_leaves_out_by_their_id() -> None:
    labels = DRAW.integers(5, 90, (4, 8))
    labels[:, 7] = 2
    labels[1, 3] = 2
    ignored = np.where(labels == 2, -100, labels)
    counts = [ignored != -100, labels != -100]
    found = _ids_counted(ignored, labels, counts)
    assert found is not None
    assert (found.code, dict(found.facts)) == (BatchCode.IDS_COUNTED, {"side": "reference", "ids": ("2",)})
    batch = cast(StepBatch, SimpleNamespace(ignore_index=-100, book=SimpleNamespace(step=0, rank=0)))
    finding = _not_counted_alike(ignored, labels, "0, input.labels", batch)
    assert finding is not None
    assert (finding.headline, finding.causes[0].code) == (found, CauseCode.ID_TAKEN_FOR_PADDING)
    back = _ids_counted(labels, ignored, counts[::-1])
    assert back is not None
    assert back.place("side") == "target"
    two = np.where(labels == labels[0, 0], -100, ignored)
    assert _ids_counted(two, labels, [two != -100, counts[1]]) is not None
    one = labels.copy()
    one[2, 5] = -100  # a single label has one id in any case
    assert _ids_counted(one, labels, [one != -100, counts[1]]) is None
    some = ignored.copy()
    some[0, 7] = 2  # a label with that id counts on both sides
    assert _ids_counted(some, labels, [some != -100, counts[1]]) is None
    other = labels.copy()
    other[0, :4] = -100  # a prompt: many ids
    assert _ids_counted(other, labels, [other != -100, counts[1]]) is None
    both = ignored.copy()
    both[3, 7] = 2
    assert _ids_counted(both, np.where(labels == 2, -100, labels), [both != -100, counts[0]]) is None


@pytest.mark.parametrize(
    ("name", "cause"), [("cut_later", CauseCode.CUT_ELSEWHERE), ("some_tokens", CauseCode.PADDING_COUNTED)]
)
def test_causes_of_rows_cut_elsewhere(name: str, cause: CauseCode) -> None:
    cut = reason(BatchCode.CUT, num=1, total=2, rows=("0",), by=("4",), side="later")
    found = _batch_finding(
        name,
        cut,
        [],
        "0, input.input_ids",
        cast(StepView, SimpleNamespace(step=0, rank=0)),
        same_samples=True,
    )
    assert ([one.code for one in found.causes] == [cause]) is (name == "cut_later")


def test_recomputation_beside_is_of_random_functions_alone() -> None:
    again, first = DRAW.normal(size=64), DRAW.normal(size=64)
    beside = Elsewhere(recomputed=(pair("output.0", again, first),))
    for name, tells in (("Dropout", True), ("Linear", False)):
        surroundings = Surroundings(name="layers.9.drop", kind="module", type=name)
        evidence = case(
            again,
            first,
            elsewhere=beside,
            phase="backward",
            surroundings=surroundings,
            module="layers.9.drop",
        )
        found = randomness._recomputed(evidence)
        assert (found is not None) is tells
        assert found is None or found.advice is AdviceCode.RESTORE_STATE


@pytest.mark.parametrize(("apart", "loaded"), [(4, True), (3, False)])
def test_a_part_of_the_model_that_one_run_loaded(apart: int, loaded: bool) -> None:
    names = [f"body.{at}.weight" for at in range(4)]
    rows = {**dict.fromkeys([*names, "head.weight"], (0.0, 1.0)), "body.norm": (1.0, 1.0)}
    book = SimpleNamespace(
        parameters=list(rows),
        parameter=lambda fqn, *_: fqn,
        summary=lambda fqn: dict(zip(("minimum", "maximum"), rows[fqn], strict=True)),
    )
    change = change_of(DRAW.normal(size=64), 3 * DRAW.normal(size=64), "float32", "float32")
    assert change is not None
    finding = SimpleFinding(
        headline=reason(WeightsCode.DIFFER, parameters="", way="other_init"), evidence=(), causes=(), kinds=()
    )
    shown = _loaded_in_one(
        cast(Finding, finding), [(name, name, change) for name in names[:apart]], cast(StepView, book)
    )
    assert [one.code for one in shown.causes] == [WeightsCode.PART_LOADED_CAUSE] * loaded
    assert [one.code for one in shown.evidence] == [WeightsCode.PART_UNRELATED] * loaded


@dataclass(frozen=True)
class SimpleFinding:
    headline: Reason
    evidence: tuple[Reason, ...]
    causes: tuple[Reason, ...]
    kinds: tuple[Any, ...]
