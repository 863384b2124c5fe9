"""Real runs with one thing wrong, from capture to verdict: the stage, the place and the kind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bugzoo.models.gpt import loss_of

import trueup
from tests.diagnosing import diagnosed as runs
from tests.diagnosing.diagnosed import REFERENCE, capture, clipped, diagnosed, facts_of
from trueup.diagnosing.diagnosis import Diagnosis, read_diagnosis
from trueup.diagnosing.gradients import VALUES, build_gradient_plan, export_gradients
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages import STAGES, StageOutcome, StageStatus
from trueup.diagnosing.stages.optimizer import same_gradients
from trueup.errors import ConfigError, TraceError
from trueup.reporting.diagnosis import diagnosis_report
from trueup.reporting.render import write
from trueup.store import Trace, layout, step_view
from trueup.store.view import CLIPPED, UPDATED
from trueup.types.codes import BatchCode, StagesCode, WeightsCode
from trueup.types.confidence import Word
from trueup.types.finding import Stage
from trueup.types.reason import given, reason
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The run that is trusted."""
    return capture(tmp_path_factory.mktemp("reference") / "run", REFERENCE)


def status_of(diagnosis: Diagnosis, stage: Stage) -> StageStatus:
    """What came of the first stage of that name."""
    return next(outcome.status for outcome in diagnosis.stages if outcome.stage is stage)


# -- by the runs' own numbers: data, weights, reduction, optimizer ------------------------------------------

BY_NUMBERS: list[tuple[str, dict[str, Any], Stage, str, str]] = [
    ("labels twice", {"data": runs.shifted_twice}, Stage.DATA, "shifted_by_one", "labels.shifted_twice"),
    ("a batch early", {"data": runs.a_step_ahead}, Stage.DATA, "wrong_data", "data.batch_differs"),
    ("transposed", {"change": runs.transposed}, Stage.WEIGHTS, "transposed_or_permuted", "way transposed"),
    ("initialised", {"change": runs.initialised_wider}, Stage.WEIGHTS, "wrong_data", "layers.0.mlp.up"),
    (
        "clipping",
        {"before_step": runs.clipped(0.25)},
        Stage.REDUCTION,
        "wrong_optimizer_setting",
        "clipping.norm_differs",
    ),
    (
        "no clipping",
        {"before_step": lambda m, s: None},
        Stage.REDUCTION,
        "wrong_optimizer_setting",
        "clipping.reference_only",
    ),
    ("never cleared", {"clear": False}, Stage.REDUCTION, "missing_zero_grad", "reduction.carried_over"),
    ("rate", {"optimizer": runs.adam(lr=2e-3)}, Stage.OPTIMIZER, "wrong_optimizer_setting", "key lr"),
    (
        "decay",
        {"optimizer": runs.adam(weight_decay=0.2)},
        Stage.OPTIMIZER,
        "wrong_optimizer_setting",
        "matrices",
    ),
    (
        "decay of biases",
        {"optimizer": runs.adam(everywhere=True)},
        Stage.OPTIMIZER,
        "wrong_optimizer_setting",
        "one-dimensional",
    ),
    (
        "betas",
        {"optimizer": runs.adam(betas=(0.9, 0.95))},
        Stage.OPTIMIZER,
        "wrong_optimizer_setting",
        "beta2",
    ),
    ("eps", {"optimizer": runs.adam(eps=1e-5)}, Stage.OPTIMIZER, "wrong_optimizer_setting", "eps"),
    (
        "L2",
        {"optimizer": runs.adam(kind=torch.optim.Adam)},
        Stage.OPTIMIZER,
        "wrong_optimizer_setting",
        "key decoupled",
    ),
    (
        "no correction",
        {"optimizer": runs.adam(kind=runs.NoBiasCorrection)},
        Stage.OPTIMIZER,
        "wrong_optimizer_setting",
        "key bias_correction",
    ),
    (
        "left out",
        {"optimizer": runs.adam(leave="layers.1.mlp.down.weight")},
        Stage.OPTIMIZER,
        "dropped_update",
        "layers.1.mlp.down.weight",
    ),
    (
        "in no optimizer",
        {"optimizer": lambda model: torch.optim.AdamW([torch.zeros(1, requires_grad=True)])},
        Stage.OPTIMIZER,
        "dropped_update",
        "target not_held · reference stepped",
    ),
    ("put back", {"optimizer": runs.put_back}, Stage.OPTIMIZER, "dropped_update", "weights.update_undone"),
]


@pytest.mark.parametrize(
    ("change", "stage", "kind", "words"), [c[1:] for c in BY_NUMBERS], ids=[c[0] for c in BY_NUMBERS]
)
def test_what_the_runs_own_numbers_tell(
    tmp_path: Path, reference: Trace, change: dict[str, Any], stage: Stage, kind: str, words: str
) -> None:
    found = diagnosed(tmp_path, reference, {**REFERENCE, **change})
    assert found.outcome is Outcome.DIFFER
    assert found.verdict is not None
    assert found.verdict.stage is stage, found.headline
    assert found.verdict.kinds[0].name == kind
    assert words in facts_of(found.headline)
    failed = [o.stage for o in found.stages if o.status is StageStatus.FAILED and o.stage is not Stage.CONFIG]
    assert failed == [stage], found.headline
    assert Stage.CONFIG not in {f.stage for f in found.findings}
    assert len({f.headline for f in found.findings}) == len(found.findings)
    begun = min(f.step for f in found.findings if f.step is not None)
    before = [o.stage for o in found.stages if o.conclusion.code is StagesCode.AGREED_BEFORE]
    behind = [Stage.OPTIMIZER, Stage.LOSS] if begun == 1 and stage is Stage.REDUCTION else []
    assert before == behind, "what is of a time before the difference does not show that it had no effect"


@pytest.mark.parametrize(
    ("times", "code"), [(0.0, StagesCode.LAST_ONLY), (0.25, StagesCode.WEIGHTED), (1.0, None)]
)
def test_gradients_that_are_cleared_between_microbatches_are_one_finding(
    times: float, code: StagesCode | None, tmp_path: Path
) -> None:
    """The sum is exactly the last gradient, or so much of the first too: nothing is left over that rounding
    could have made."""

    def kept(model: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for weight in model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(times)
        return loss_of(model, ids, labels)

    both = {"optimizer": runs.adam(), "microbatches": 2}
    trusted = capture(tmp_path / "reference", both)
    found = diagnosed(tmp_path / "cleared", trusted, {**both, "loss": kept})
    assert [one.headline.code for one in found.findings] == ([] if code is None else [code])


def test_a_working_copy_of_before_the_update_is_stale(tmp_path: Path) -> None:
    trusted = capture(tmp_path / "reference", runs.mixed())
    again = diagnosed(tmp_path / "again", trusted, runs.mixed())
    assert again.outcome is Outcome.AGREE, again.headline
    found = diagnosed(tmp_path / "late", trusted, runs.mixed(late=True))
    assert found.verdict is not None
    assert found.verdict.stage is Stage.OPTIMIZER
    assert found.verdict.kinds[0].name == "stale_value"
    assert found.headline.code is WeightsCode.STALE
    assert found.verdict.module is None, "all of them"
    assert status_of(found, Stage.LOSS) is StageStatus.CONSEQUENCE


class Judged(torch.nn.Module):
    """A model that makes its loss itself, of the positions that are wanted."""

    def __init__(self, model: torch.nn.Module, *, masked: bool) -> None:
        super().__init__()
        self.model, self.masked = model, masked

    def forward(self, ids: torch.Tensor, labels: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        wrong = torch.nn.functional.cross_entropy(
            self.model(ids).flatten(0, 1), labels.flatten(), reduction="none"
        )
        mask = wanted.flatten() if self.masked else torch.ones(wanted.numel())
        return (wrong * mask).sum() / mask.sum()


@pytest.mark.parametrize("given_alike", [True, False])
def test_a_mask_the_model_was_given_and_does_not_use_is_no_fault_of_the_data(
    tmp_path: Path, given_alike: bool
) -> None:
    def program(*, masked: bool, wanted: torch.Tensor) -> runs.Program:
        judged: list[Judged] = []

        def loss(model: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            judged.append(judged[0] if judged else Judged(model, masked=masked))
            result: torch.Tensor = judged[0](ids, labels, wanted)
            return result

        return {"loss": loss}

    half = (torch.arange(16).expand(2, 16) >= 8).float()
    trusted = capture(tmp_path / "reference", program(masked=True, wanted=half))
    wrong = (
        program(masked=False, wanted=half) if given_alike else program(masked=True, wanted=torch.ones(2, 16))
    )
    found = diagnosed(tmp_path, trusted, wrong)
    assert found.verdict is not None
    assert found.verdict.stage is (Stage.FORWARD if given_alike else Stage.DATA), found.headline
    said = next(o for o in found.stages if o.stage is Stage.DATA)
    assert any(one.code is BatchCode.SAME_INPUTS for one in said.evidence) is given_alike


class Featured(torch.nn.Module):
    """Ids and features of one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.of_features = torch.nn.Embedding(16, 8), torch.nn.Linear(4, 8)

    def forward(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (self.embed(ids) + self.of_features(features)).square().mean()
        return result


def train_on(folder: Path, features: torch.Tensor) -> Path:
    torch.manual_seed(0)
    model, ids = Featured(), torch.arange(12).reshape(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=VALUES):
        model(ids, features).backward()
        optimizer.step()
    return folder


def test_equal_ids_beside_other_features_are_no_equal_batch(tmp_path: Path) -> None:
    features = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))
    trusted = train_on(tmp_path / "reference", features)
    other, rounded = features.clone(), features * (1 + 1e-7)
    other[1, 2, 3] += 0.5
    wrong = diagnose(train_on(tmp_path / "other", other), trusted, output=tmp_path / "out")
    assert wrong.verdict is not None
    assert (wrong.verdict.stage, wrong.verdict.headline.place("name")) == (Stage.DATA, "1")
    assert status_of(wrong, Stage.DATA) is StageStatus.FAILED
    near = diagnose(train_on(tmp_path / "rounded", rounded), trusted, output=tmp_path / "near")
    assert not near.findings
    assert status_of(near, Stage.DATA) is StageStatus.PASSED


def test_a_repeat_agrees_and_passes_every_stage(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, REFERENCE, replay=True, gradients=True)
    assert found.outcome is Outcome.AGREE
    assert not found.findings
    *walked, long_run = found.stages
    assert [o.status for o in walked] == [StageStatus.PASSED] * (len(STAGES) - 1)
    assert long_run.status is StageStatus.SKIPPED


# -- by replay: forward and backward ------------------------------------------


@pytest.mark.parametrize(
    ("change", "stage", "module"),
    [
        (runs.norm_eps, Stage.FORWARD, "layers.1.ln1"),
        (runs.attention_scale, Stage.FORWARD, "layers.1.attn"),
        (runs.gradient_scale, Stage.BACKWARD, "layers.1.mlp.up"),
    ],
)
def test_replay_names_the_module(
    tmp_path: Path, reference: Trace, change: Any, stage: Stage, module: str
) -> None:
    found = diagnosed(tmp_path, reference, {**REFERENCE, "change": change}, replay=True, gradients=True)
    assert found.verdict is not None
    assert (found.verdict.stage, found.verdict.module) == (stage, module), found.headline
    assert found.verdict.confidence.word is Word.CERTAIN
    assert len(found.findings) == 1, [f.headline for f in found.findings]
    assert status_of(found, Stage.DATA) is StageStatus.PASSED
    assert status_of(found, Stage.OPTIMIZER) is not StageStatus.FAILED
    said = next(o for o in found.stages if o.stage is Stage.OPTIMIZER)
    assert said.evidence[0].code is StagesCode.GIVEN_SAME


def test_a_setting_that_is_a_dtype_is_a_matter_of_rounding(tmp_path: Path, reference: Trace) -> None:
    def coarse(model: Any) -> None:
        model.layers[1].attn.rotary.compute_dtype = torch.bfloat16

    found = diagnosed(tmp_path, reference, {**REFERENCE, "change": coarse})
    assert found.verdict is not None
    assert (found.verdict.module, found.verdict.kinds[0].name) == (
        "layers.1.attn.rotary",
        "dtype_or_rounding",
    )
    first = found.verdict.evidence[0]
    assert first.code is StagesCode.SETTING_DIFFERS
    assert (first.place("name"), first.place("target"), first.place("reference")) == (
        "compute_dtype",
        "bfloat16",
        "float32",
    )


@pytest.mark.parametrize("replay", [False, True])
def test_a_frozen_weight_is_said_to_be_frozen(tmp_path: Path, reference: Trace, replay: bool) -> None:
    program = {**REFERENCE, "change": runs.frozen}
    found = diagnosed(tmp_path, reference, program, replay=replay, gradients=replay)
    assert found.verdict is not None
    assert (found.verdict.stage, found.verdict.module) == (Stage.BACKWARD, "layers.1.mlp.down"), (
        found.headline
    )
    assert found.verdict.kinds[0].name == "frozen_or_missing_gradient"
    assert [o.stage for o in found.stages if o.status is StageStatus.FAILED] == [Stage.BACKWARD]


def test_a_target_that_cannot_be_replayed_is_diagnosed_from_its_trace(
    tmp_path: Path, reference: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise TraceError("nothing of it can be forced")

    monkeypatch.setattr("trueup.diagnosing.replay.run_replay", refuse)
    monkeypatch.setattr("trueup.diagnosing.runs.run_gradient_replay", refuse)
    target = runs.capture(tmp_path / "target", {**REFERENCE, "change": runs.attention_scale})
    found = diagnose(target.path, reference.path, output=tmp_path / "out", command=["python", "train.py"])
    assert found.verdict is not None
    assert found.verdict.module == "layers.1.attn"
    assert reason(StagesCode.REPLAY_FAILED, error="nothing of it can be forced") in found.notes


def test_without_replay_no_place_is_certain(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, {**REFERENCE, "change": runs.attention_scale})
    assert found.verdict is not None
    assert found.verdict.confidence.word is not Word.CERTAIN
    assert found.verdict.next is not None
    assert found.verdict.next.code is StagesCode.REPLAY_TO_BE_CERTAIN
    assert "--replay" in str(found.verdict.next.place("command"))


def test_two_faults_are_two_findings(tmp_path: Path, reference: Trace) -> None:
    program = {**REFERENCE, "change": runs.two_at_once, "optimizer": runs.adam(betas=(0.8, 0.999))}
    found = diagnosed(tmp_path, reference, program, replay=True, gradients=True)
    assert [(f.stage, f.module) for f in found.findings[:2]] == [
        (Stage.FORWARD, "layers.0.attn"),
        (Stage.BACKWARD, "layers.1.mlp.up"),
    ]
    assert found.findings[2].stage is Stage.OPTIMIZER
    assert found.findings[2].headline.place("key") == "beta1"


# -- the gradients given ------------------------------------------


def test_given_gradients_reach_the_optimizer_bit_for_bit(tmp_path: Path, reference: Trace) -> None:
    program = {**REFERENCE, "change": runs.attention_scale}
    target = capture(tmp_path / "target", program)
    plan = build_gradient_plan(reference, target, tmp_path / "plan")
    given = capture(tmp_path / "given", program, gradients_from=plan.folder)
    books = step_view(given, 0, 0), step_view(reference, 0, 0), step_view(target, 0, 0)
    assert given.rank_facts(0)["given_gradients"]["free"] == []
    for slot in (CLIPPED, UPDATED):
        digests = [[b.digest(b.parameter(n, *slot)) for n in b.parameters] for b in books]
        assert digests[0] == digests[1] != digests[2]


def _of_given(found: Diagnosis) -> list[StagesCode]:
    """What the optimizer's stage says of the reference's gradients."""
    codes = (StagesCode.GIVEN_SAME, StagesCode.GIVEN_DIFFER)
    (stage,) = (one for one in found.stages if one.stage is Stage.OPTIMIZER)
    return [one.code for one in stage.evidence if one.code in codes]


@pytest.mark.parametrize(("added", "said"), [(0.0, [StagesCode.GIVEN_SAME]), (0.1, [])])
def test_a_program_that_adds_to_what_it_was_given_is_not_said_to_update_otherwise(
    tmp_path: Path, reference: Trace, added: float, said: list[StagesCode]
) -> None:
    """As one that sums the given gradient with those of earlier microbatches: the optimizer got another."""

    def summed(model: Any, step: int) -> None:
        for number, weight in enumerate(model.parameters()):
            weight.grad += added * weight.grad.roll(number + 1, 0)
        clipped(0.5)(model, step)

    program = {**REFERENCE, "change": runs.attention_scale, "before_step": summed}
    assert _of_given(diagnosed(tmp_path, reference, program, gradients=True)) == said


def test_a_program_that_kept_its_own_gradients_was_given_none(tmp_path: Path, reference: Trace) -> None:
    program = {**REFERENCE, "change": runs.attention_scale}
    capture(tmp_path / "target", program)
    again = capture(tmp_path / "given", program)
    path = layout.rank_file(again.path, 0)
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"given_gradients": {"replaced": [], "free": []}}))
    found = diagnose(tmp_path / "target", reference.path, output=tmp_path / "out", gradients=again.path)
    assert _of_given(found) == []
    (stage,) = (one for one in found.stages if one.stage is Stage.OPTIMIZER)
    assert stage.findings == ()


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 9e-5, True), (1 + 2e-4, False), (0.5, False)])
def test_gradients_that_clipping_has_rounded_are_the_same(factor: float, same: bool) -> None:
    gradient = np.random.default_rng(0).standard_normal(10_000)
    assert same_gradients(factor * gradient, gradient) is same


def test_gradient_files_are_written_and_read_in_the_optimizers_order(
    tmp_path: Path, reference: Trace
) -> None:
    number = export_gradients(reference, tmp_path / "files")
    names = [g["parameter"] for g in json.loads((tmp_path / "files" / "grads.json").read_text())["gradients"]]
    book = step_view(reference, 0, 0)
    assert names == book.parameters_with(*CLIPPED)
    assert names != book.parameters  # matrices come first in this optimizer
    target = capture(tmp_path / "target", {**REFERENCE, "change": runs.attention_scale})
    plan = build_gradient_plan(reference, target, tmp_path / "plan", files=tmp_path / "files")
    assert plan.num_given == number == len(names)
    (tmp_path / "files" / "grad_3.npy").unlink()
    with pytest.raises(ConfigError, match=r"grad_3\.npy is missing"):
        build_gradient_plan(reference, target, tmp_path / "plan", files=tmp_path / "files")


def test_files_that_do_not_fit_are_refused(tmp_path: Path, reference: Trace) -> None:
    export_gradients(reference, tmp_path / "files")
    np.save(tmp_path / "files" / "grad_2.npy", np.zeros((3, 3)))
    with pytest.raises(ConfigError, match=r"grad_2\.npy has the shape \[3, 3\]"):
        build_gradient_plan(reference, reference, tmp_path / "plan", files=tmp_path / "files")


def test_a_reference_without_values_cannot_give_gradients(tmp_path: Path) -> None:
    bare = capture(tmp_path / "bare", REFERENCE, store_values_of=frozenset(), steps="0")
    with pytest.raises(TraceError, match="--preset diagnose"):
        build_gradient_plan(bare, bare, tmp_path / "plan")


def test_rows_are_shown_as_text_input_over_label(tmp_path: Path, reference: Trace) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {f"w{number}": number for number in range(64)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(tmp_path / "tokenizer")
    capture(tmp_path / "target", {**REFERENCE, "data": runs.shifted_twice})
    found = diagnose(
        tmp_path / "target", reference.path, output=tmp_path / "out", tokenizer=tmp_path / "tokenizer"
    )
    data = next(stage for stage in found.stages if stage.stage is Stage.DATA)
    row = data.details["texts"][0]
    assert row["target"] == row["reference"]
    assert row["target_encodes_back"]
    inputs, labels = row["reference"].split(), row["reference_labels"].split()
    assert labels[: len(inputs) - 1] == inputs[1:]
    assert row["target_labels"].split()[: len(inputs) - 2] == inputs[2:]
    page = write(diagnosis_report(found), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Batch as text" in page
    assert row["target_labels"] in page


# -- the document, and other stages ------------------------------------------


def test_the_document_is_read_back(tmp_path: Path, reference: Trace) -> None:
    found = diagnosed(tmp_path, reference, {**REFERENCE, "optimizer": runs.adam(lr=2e-3)})
    document = read_diagnosis(tmp_path / "out")
    assert document == found.to_json()
    assert [s["stage"] for s in document["stages"]] == [s.stage.value for s in STAGES]


def test_a_stage_of_ones_own_is_walked_too(tmp_path: Path, reference: Trace) -> None:
    class LongRun:
        stage = Stage.LONG_RUN
        title = given("Long run")

        def check(self, context: Any) -> StageOutcome:
            so_far = given(f"{len(context.earlier)} stages before")
            return StageOutcome(
                stage=self.stage, title=self.title, status=StageStatus.PASSED, conclusion=so_far
            )

    found = diagnose(reference.path, reference.path, output=tmp_path, stages=(*STAGES, LongRun()))
    assert found.stages[-1].conclusion == given(f"{len(STAGES)} stages before")


def test_a_trace_of_statistics_alone_leaves_open_what_it_cannot_tell(
    tmp_path: Path, reference: Trace
) -> None:
    capture(tmp_path / "target", {**REFERENCE, "change": runs.attention_scale}, store_values_of=frozenset())
    found = diagnose(tmp_path / "target", reference.path, output=tmp_path / "out")
    assert found.outcome is Outcome.DIFFER
    assert status_of(found, Stage.OPTIMIZER) is not StageStatus.FAILED
    assert dataclasses.asdict(found)["stages"]


def test_a_parameter_that_one_run_lacks_heads_what_was_drawn_after_it(tmp_path: Path) -> None:
    for name in ("with", "without"):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 8, bias=name == "with" or at != 1) for at in range(3)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with trueup.Tracer(tmp_path / name, steps="0-1"):
            for step in range(2):
                model(torch.full((2, 8), 1.0 + step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    for target, reference, lacks in (("without", "with", "target"), ("with", "without", "reference")):
        out = tmp_path / f"lacking in {lacks}"
        first = diagnose(tmp_path / target, tmp_path / reference, output=out).findings[0]
        has = "reference" if lacks == "target" else "target"
        assert first.headline == reason(WeightsCode.ONE_SIDED, parameter="1.bias", side=has)
        assert (first.stage, first.module, first.site) == (Stage.WEIGHTS, "1", "1.bias · value")
