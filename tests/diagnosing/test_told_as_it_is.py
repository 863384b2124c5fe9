"""What a diagnosis says of changes that look like others: each beside the one it must not be taken for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.ledger import Clipping, clipping  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.runs import is_given_other_shapes  # noqa: E402
from trueup.diagnosing.stages.clipping import _own_norm_difference  # noqa: E402
from trueup.diagnosing.stages.naming import kind_named  # noqa: E402
from trueup.diagnosing.stages.together import together  # noqa: E402
from trueup.importers import open_trace  # noqa: E402
from trueup.store import step_view  # noqa: E402
from trueup.types.codes import ClippingCode, EvidenceCode, StagesCode, VerdictCode, WeightsCode  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.finding import (  # noqa: E402
    Basis,
    EvidenceRank,
    Finding,
    KindCode,
    Origin,
    Stage,
)
from trueup.types.reason import Reason, reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

KEPT = frozenset({"module", "parameter", "labels", "configuration"})
ROWS, WORDS, WIDTH = 6, 40, 16
Change = Callable[["Run"], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.turn = nn.Buffer(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return (self.up(x) * F.silu(self.gate(x))) * self.turn


class Net(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 5)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = x + block(x)
        made: Tensor = self.head(x)
        return made


class Run:
    """One program; changes replace its parts."""

    num_blocks, num_updates = 2, 1

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)

    def model(self) -> Net:
        return Net(self.num_blocks)

    def optimizer(self, model: Net) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(self, model: Net, ids: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), wanted.flatten())

    def clip(self, model: Net) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    def train(self, folder: Path) -> Path:
        model = self.model()
        optimizer = self.optimizer(model)
        with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=KEPT):
            for step in range(2):
                draw = torch.Generator().manual_seed(step)
                ids, wanted = (torch.randint(most, (ROWS, 8), generator=draw) for most in (WORDS, 5))
                self.loss(model, ids, wanted).backward()
                self.clip(model)
                for _ in range(self.num_updates):
                    optimizer.step()
                optimizer.zero_grad()
        return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run().train(tmp_path_factory.mktemp("reference") / "run")


@contextmanager
def changed(folder: Path, reference: Path, **parts: object) -> Iterator[Diagnosis]:
    run = type("Changed", (Run,), parts)()
    yield diagnose(run.train(folder / "run"), reference, output=folder / "out")


def lead(folder: Path, reference: Path, **parts: object) -> Finding:
    with changed(folder, reference, **parts) as diagnosis:
        return diagnosis.findings[0]


# -- weights ------------------------------------------


def exchanged(self: Run) -> Net:
    model = Net(self.num_blocks)
    for block in model.blocks:
        block.up, block.gate = block.gate, block.up
    return model


def drawn_anew(self: Run) -> Net:
    model = Net(self.num_blocks)
    for block in model.blocks:
        block.up = nn.Linear(WIDTH, WIDTH)
    return model


def test_weights_exchanged_are_no_other_draw(reference: Path, tmp_path: Path) -> None:
    found = lead(tmp_path / "a", reference, model=exchanged)
    assert (found.headline.code, found.headline.place("way")) == (WeightsCode.DIFFER, "exchanged")
    found = lead(tmp_path / "b", reference, model=drawn_anew)
    assert found.headline.place("way") in ("other_draw", "other_init")


def test_a_block_that_one_model_lacks(reference: Path, tmp_path: Path) -> None:
    def shorter(self: Run) -> Net:
        model = Net(2)
        del model.blocks[1]
        return model

    found = lead(tmp_path, reference, model=shorter)
    assert (found.headline.code, found.headline.place("side")) == (WeightsCode.ONLY_IN, "reference")
    assert (found.headline.number("num"), found.headline.number("drawn_otherwise")) == (6, False)


def moved_up(self: Run) -> Net:
    model = Net(self.num_blocks)
    with torch.no_grad():
        model.blocks[1].gate.weight.add_(0.25)
    return model


def test_a_number_added_to_a_weight(reference: Path, tmp_path: Path) -> None:
    found = lead(tmp_path, reference, model=moved_up)
    assert (found.headline.code, found.headline.place("way")) == (WeightsCode.DIFFER, "shifted")
    (shifted,) = [one for said in found.evidence for one in said.parts if one.code is WeightsCode.SHIFTED]
    assert shifted.number("offset") == pytest.approx(0.25)


def test_a_norm_left_out_is_told_by_its_class(reference: Path, tmp_path: Path) -> None:
    def without(self: Run) -> Net:
        model = Net(self.num_blocks)
        model.blocks[1].norm = nn.Identity()
        return model

    found = lead(tmp_path, reference, model=without)
    assert found.headline.code is VerdictCode.MODULE_CLASS_DIFFERS
    assert (found.module, found.headline.place("target")) == ("blocks.1.norm", "Identity")


def test_a_norm_left_out_is_no_factor(tmp_path: Path) -> None:
    """Where its weight is one and it does not centre, all it does is to scale each vector."""

    def plain(self: Run) -> Net:
        model = Net(self.num_blocks)
        model.blocks[1].norm = nn.RMSNorm(WIDTH)
        return model

    def without(self: Run) -> Net:
        model = plain(self)
        model.blocks[1].norm = nn.Identity()
        return model

    def halved(self: Run) -> Net:
        model = plain(self)
        model.blocks[1].norm = Halved(WIDTH)
        return model

    reference = type("Plain", (Run,), {"model": plain})().train(tmp_path / "reference")
    found = lead(tmp_path / "a", reference, model=without)
    assert found.headline.code is VerdictCode.MODULE_CLASS_DIFFERS
    assert [kind.name for kind in found.kinds][:2] == [KindCode.MISSING_OR_EXTRA_TERM, KindCode.WRONG_SCALE]
    found = lead(tmp_path / "b", reference, model=halved)
    assert found.kinds[0].name is KindCode.WRONG_SCALE  # a class of another name with the same weights


class Halved(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def configured(**settings: float) -> Callable[[Run], Net]:
    """A model that does something of its own with what its configuration says."""

    def model(self: Run) -> Net:
        made = Net(self.num_blocks)
        rope = {"rope_type": "default", "rope_theta": settings["rope_theta"]}
        eps = settings["rms_norm_eps"]
        made.config = SimpleNamespace(hidden_size=WIDTH, rms_norm_eps=eps, rope_parameters=rope)
        turn = torch.tensor(math.log10(rope["rope_theta"]))
        made.blocks[0].norm.register_forward_hook(lambda _, given, out: out + 0.3 * (turn * given[0]).sin())
        return made

    return model


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"rope_theta": 1e6}, StagesCode.CONFIG_DIFFERS),
        ({"rope_theta": 1e6, "rms_norm_eps": 1e-3}, StagesCode.ORIGIN),
    ],
    ids=["one", "two"],
)
def test_the_only_setting_that_acts_is_told_where_no_kind_is_seen(
    settings: dict[str, float], code: StagesCode, tmp_path: Path
) -> None:
    plain = {"rope_theta": 1e4, "rms_norm_eps": 1e-5}
    reference = type("Plain", (Run,), {"model": configured(**plain)})().train(tmp_path / "reference")
    assert lead(tmp_path, reference, model=configured(**{**plain, **settings})).headline.code is code


def test_a_buffer_of_other_values(reference: Path, tmp_path: Path) -> None:
    def turned(self: Run) -> Net:
        model = Net(self.num_blocks)
        model.blocks[1].turn.sqrt_()
        return model

    found = lead(tmp_path, reference, model=turned)
    assert (found.headline.code, found.headline.place("name")) == (VerdictCode.BUFFER_DIFFERS, "turn")
    assert found.module == "blocks.1"


def test_one_setting_of_several_modules_is_one_finding() -> None:
    findings = tuple(
        Finding(
            stage=Stage.FORWARD,
            headline=reason(
                StagesCode.SETTING_DIFFERS,
                module=module,
                type="LayerNorm",
                name="eps",
                target=eps,
                reference="1e-05",
            ),
            module=module,
            site=module,
            phase="forward",
            step=0,
            rank=0,
            basis=Basis.RECORDED,
        )
        for module, eps in (("a", "0.001"), ("b", "0.001"), ("c", "0.1"), ("d", "0.001"))
    )
    first, other = together(findings)
    assert (first.module, other.module) == ("a", "c")
    assert reason(StagesCode.ALSO_IN, num=2, modules=("b", "d")) in first.evidence
    assert not other.evidence


def scaled(factor: float) -> Reason:
    return reason(KindReason.SCALED, factor=factor)


def of_replay(module: str) -> Origin:
    place = {"module": module, "site": module, "phase": "forward", "slot": "output.0", "step": 0, "rank": 0}
    measured = {"microbatch": 0, "order": 0, "score": 2.0, "rel_l2": 0.1, "tolerance": 0.01}
    records = {"target_record": 0, "reference_record": 0}
    return Origin(stage=Stage.FORWARD, basis=Basis.REPLAY, **place, **measured, **records)


@pytest.mark.parametrize(
    ("factors", "told"), [((1.0028, 1.0013), {"low": 1.0013, "high": 1.0028}), ((2.0, 2.0), {})]
)
def test_places_of_other_factors_are_told_with_them(
    factors: tuple[float, float], told: dict[str, float]
) -> None:
    findings = tuple(
        Finding(
            stage=Stage.FORWARD,
            headline=reason(StagesCode.OF_KIND, scaled(factor), module=module),
            module=module,
            site=module,
            phase="forward",
            step=0,
            rank=0,
            kinds=(replace(kind_named("wrong_scale", EvidenceRank.FITTED, scaled(factor)), factor=factor),),
            basis=Basis.REPLAY,
            origin=of_replay(module),
        )
        for module, factor in zip(("a", "b"), factors, strict=True)
    )
    (first,) = together(findings)
    assert reason(StagesCode.ALSO_IN, num=1, modules=("b",), **told) in first.evidence


def code(function: str) -> tuple[Reason, ...]:
    places = {"target_at": "a.py:1", "reference_at": "a.py:1"}
    return (
        reason(
            EvidenceCode.CODE_DIFFERS, function=function, target="return x", reference="return y", **places
        ),
    )


@pytest.mark.parametrize(
    ("own", "rank", "number"),
    [
        (code("Norm.forward"), EvidenceRank.FITTED, 1),
        (code("MLP.forward"), EvidenceRank.FITTED, 2),
        ((), EvidenceRank.FITTED, 2),
        (code("Norm.forward"), EvidenceRank.STATED, 2),
    ],
    ids=["the same code", "other code", "no code", "a setting that both record"],
)
def test_one_piece_of_code_is_one_cause(own: tuple[Reason, ...], rank: EvidenceRank, number: int) -> None:
    """Whatever its values look like in another place."""
    sentences = reason(KindReason.NORM_EPS, target=1e-5, reference=1e-6), scaled(1.002)
    kinds = (
        kind_named("constant_argument", EvidenceRank.FITTED, sentences[0]),
        kind_named("wrong_scale", rank, sentences[1]),
    )
    findings = tuple(
        Finding(
            stage=Stage.FORWARD,
            headline=reason(StagesCode.OF_KIND, sentence, module=module),
            module=module,
            site=module,
            phase="forward",
            step=0,
            rank=0,
            kinds=(kind,),
            evidence=(sentence, *written),
            basis=Basis.REPLAY,
            origin=of_replay(module),
        )
        for module, sentence, kind, written in zip(
            ("a", "b"), sentences, kinds, (code("Norm.forward"), own), strict=True
        )
    )
    first, *others = together(findings, (code("Norm.forward"), own))
    assert 1 + len(others) == number
    told = reason(StagesCode.SAME_CODE_IN, num=1, modules=("b",))
    assert (told == first.evidence[-1]) is (number == 1)


# -- gradients ------------------------------------------


@pytest.mark.parametrize("limit", [0.02, 0.005])
def test_clipping_by_value_is_no_rounding(limit: float, reference: Path, tmp_path: Path) -> None:
    def by_value(self: Run, model: Net) -> None:
        nn.utils.clip_grad_value_(model.parameters(), limit)

    found = lead(tmp_path, reference, clip=by_value)
    assert found.headline.code is ClippingCode.METHOD_DIFFERS
    clip = clipping(step_view(open_trace(tmp_path / "run"), 0, 0), loss_scale=None, reported=None)
    assert clip is not None
    assert (clip.way, clip.limit) == ("value", pytest.approx(limit))


@pytest.mark.parametrize(("limit", "own"), [(1e-3, True), (1e6, False)])
def test_clipping_each_gradient_by_its_own_norm(
    limit: float, own: bool, reference: Path, tmp_path: Path
) -> None:
    def each(self: Run, model: Net) -> None:
        for parameter in model.parameters():
            nn.utils.clip_grad_norm_([parameter], limit)

    with changed(tmp_path, reference, clip=each) as diagnosis:
        codes = [one.headline.code for one in diagnosis.findings]
        causes = [cause.code for one in diagnosis.findings for cause in one.causes]
    assert (ClippingCode.OWN_NORMS in codes) is (ClippingCode.OWN_NORMS_CAUSE in causes) is own
    assert StagesCode.SCALED not in codes
    clip = clipping(step_view(open_trace(tmp_path / "run"), 0, 0), loss_scale=None, reported=None)
    assert clip is not None
    assert (clip.way, clip.limit) == (("own", pytest.approx(limit, rel=1e-3)) if own else ("none", None))


def test_own_norms_of_both_sides() -> None:
    def of(way: str, limit: float | None, norm: float) -> Clipping:
        return Clipping(
            way=way, norm=norm, clipped_norm=norm, factor=1.0, limit=limit, reported=None, uneven=()
        )

    both = _own_norm_difference(of("own", 0.5, 2.0), of("own", 1.0, 2.0))
    assert both is not None
    assert both[1] == reason(ClippingCode.OWN_NORMS_DIFFER, target=0.5, reference=1.0)
    assert _own_norm_difference(of("own", 0.5, 2.0), of("own", 0.5, 3.0)) is None
    one = _own_norm_difference(of("own", 0.5, 2.0), of("none", None, 2.0))
    assert one is not None
    assert one[2].parts[0] == reason(ClippingCode.TO_OWN_NORM, limit=0.5)
    assert _own_norm_difference(of("own", 0.5, 2.0), of("none", None, 0.4)) is None  # below the limit


def test_clipping_by_norm_is_not_by_value(reference: Path) -> None:
    clip = clipping(step_view(open_trace(reference), 0, 0), loss_scale=None, reported=None)
    assert clip is not None
    assert (clip.way, clip.limit) == ("norm", None)


def test_noise_on_gradients_is_no_mask(reference: Path, tmp_path: Path) -> None:
    """Rows of words that do not occur have no gradient in the reference."""

    def noisy(self: Run, model: Net) -> None:
        for parameter in model.parameters():
            parameter.grad.add_(torch.randn_like(parameter) * 1e-3)
        Run.clip(self, model)

    with changed(tmp_path, reference, clip=noisy) as diagnosis:
        kinds = {kind.name for one in diagnosis.findings for kind in one.kinds[:1]}
    assert KindCode.WRONG_MASK.value not in kinds


# -- the optimizer ------------------------------------------


@pytest.mark.parametrize("rule", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adagrad])
def test_another_update_rule_is_told_by_its_name(
    rule: Callable[..., torch.optim.Optimizer], reference: Path, tmp_path: Path
) -> None:
    found = lead(tmp_path, reference, optimizer=lambda self, model: rule(model.parameters(), lr=0.01))
    assert (found.headline.code, found.headline.place("key")) == (StagesCode.SETTING, "class")


def test_one_rule_of_two_names_is_told_by_its_settings(reference: Path, tmp_path: Path) -> None:
    def coupled(self: Run, model: Net) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)

    assert lead(tmp_path, reference, optimizer=coupled).headline.place("key") != "class"


def test_two_updates_a_step_lose_no_state(reference: Path, tmp_path: Path) -> None:
    found = lead(tmp_path, reference, num_updates=2)
    assert found.headline.place("key") == "updates"
    assert (found.headline.place("target"), found.headline.place("reference")) == ("2", "1")


def test_a_learning_rate_of_zero_goes_before_what_it_does_not_move(reference: Path, tmp_path: Path) -> None:
    found = lead(tmp_path, reference, optimizer=lambda self, m: torch.optim.AdamW(m.parameters(), lr=0.0))
    assert found.headline.place("key") == "lr"


# -- data ------------------------------------------


def test_rows_in_another_order_and_pairs_in_one_call_are_the_same_batch(
    reference: Path, tmp_path: Path
) -> None:
    def in_two_calls(self: Run, model: Net, ids: Tensor, wanted: Tensor) -> Tensor:
        made = torch.cat([model(part) for part in ids.chunk(2)])
        return F.cross_entropy(made.flatten(0, 1), wanted.flatten())

    with changed(tmp_path, reference, loss=in_two_calls) as diagnosis:
        assert diagnosis.outcome is Outcome.AGREE


def test_one_other_word_is_another_batch(reference: Path, tmp_path: Path) -> None:
    def other(self: Run, model: Net, ids: Tensor, wanted: Tensor) -> Tensor:
        ids = ids.clone()
        ids[0, 0] = (ids[0, 0] + 1) % WORDS
        return Run.loss(self, model, ids, wanted)

    with changed(tmp_path, reference, loss=other) as diagnosis:
        assert diagnosis.findings[0].stage.value == "data"


# -- labels ------------------------------------------


def _by_chunks(made: Tensor, index: Tensor) -> Tensor:
    """As RL trainers take log-probs of long sequences: row by row."""
    rows = [one.logsumexp(-1) - one.gather(0, at[None])[0] for one, at in zip(made, index, strict=True)]
    return torch.stack(rows).mean()


def picked(loss: Callable[[Tensor, Tensor], Tensor], folder: Path) -> list[str]:
    """Slots of the loss call of a program."""
    linear = nn.Linear(4, 7)
    x, index = torch.randn(5, 4), torch.arange(5) % 7
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=["labels"]):
        loss(linear(x), index).backward()
        torch.optim.SGD(linear.parameters(), lr=0.1).step()
    view = step_view(open_trace(folder), 0, 0)
    return [view.slot[row] for row, phase in enumerate(view.phase) if phase == "loss"]


@pytest.mark.parametrize(
    ("loss", "labelled"),
    [
        (lambda made, index: -made.log_softmax(-1).gather(1, index[:, None]).mean(), True),
        (lambda made, index: (made.logsumexp(-1) - made.gather(1, index[:, None])[:, 0]).mean(), True),
        (lambda made, index: -(made / 2).float().log_softmax(-1).gather(1, index[:, None]).sum(), True),
        (lambda made, index: F.softplus(made.gather(1, index[:, None])).mean(), False),
        (
            lambda made, index: (
                2 * made[:4].logsumexp(-1) - (2 * made[:4])[range(4)].gather(1, index[:4, None]).squeeze()
            ).mean(),
            False,
        ),
        (lambda made, index: (made.softmax(-1).gather(1, index[:, None]) * made[:, :1]).mean(), False),
        (
            lambda made, index: (made.sigmoid().gather(1, index[:, None]) + made.logsumexp(-1) ** 2).mean(),
            False,
        ),
        (lambda made, index: _by_chunks(made / 2, index), True),
    ],
    ids=[
        "log-softmax",
        "log-sum-exp",
        "scaled logits",
        "last token",
        "another sum",
        "router",
        "router with z-loss",
        "rows",
    ],
)
def test_an_index_is_a_label_where_it_picks_a_probability(
    loss: Callable[[Tensor, Tensor], Tensor], labelled: bool, tmp_path: Path
) -> None:
    assert ("labels" in picked(loss, tmp_path / "run")) is labelled


# -- replays ------------------------------------------


@pytest.mark.parametrize(("words", "fits"), [(8, True), (7, False)])
def test_no_replay_is_made_of_inputs_of_other_shapes(
    words: int, fits: bool, reference: Path, tmp_path: Path
) -> None:
    """Each loss is a number, and each weight's gradient has the weight's shape, whatever the batch."""

    def shorter(self: Run, model: Net, ids: Tensor, wanted: Tensor) -> Tensor:
        return Run.loss(self, model, ids.flip(1)[:, :words], wanted[:, :words])

    run = type("Shorter", (Run,), {"loss": shorter})().train(tmp_path / "run")
    assert is_given_other_shapes(compare(run, reference, output=tmp_path / "out")) is not fits


# -- what is computed ------------------------------------------


def changed_block(forward: Callable[[Block, Tensor], Tensor]) -> Callable[[Run], Net]:
    def model(self: Run) -> Net:
        made = Net(self.num_blocks)
        block = made.blocks[1]
        block.forward = forward.__get__(block)
        return made

    return model


class Gated(Block):
    """With its activation as a module, so that its input is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.act(self.gate(x)) * self.up(x)


def gated(forward: Callable[[Block, Tensor], Tensor] | None) -> Callable[[Run], Net]:
    def model(self: Run) -> Net:
        made = Net(self.num_blocks)
        for number, block in enumerate(made.blocks):
            block.__class__, block.act = Gated, nn.SiLU()
            if forward is not None and number == 1:
                block.forward = forward.__get__(block)
        return made

    return model


def gate_of_up(self: Block, x: Tensor) -> Tensor:
    x = self.norm(x)
    return self.act(self.up(x)) * self.gate(x)


def up_before_gate(self: Block, x: Tensor) -> Tensor:
    x = self.norm(x)
    up, gate = self.up(x), self.gate(x)
    return self.act(up) * gate


def without_gate(self: Block, x: Tensor) -> Tensor:
    x = self.norm(x)
    self.gate(x)
    return self.act(x) * self.up(x)


@pytest.mark.parametrize("forward", [gate_of_up, up_before_gate])
def test_an_exchange_of_two_outputs_skips_no_step(forward: Callable[..., Tensor], tmp_path: Path) -> None:
    plain = type("Plain", (Run,), {"model": gated(None)})().train(tmp_path / "reference")
    found = lead(tmp_path, plain, model=gated(forward))
    assert found.kinds[0].name == KindCode.TRANSPOSED_OR_PERMUTED
    sentence = found.kinds[0].sentence
    assert sentence.code is KindReason.OF_ANOTHER_CALL
    assert (sentence.place("target"), sentence.place("reference")) == (
        "blocks.1.up",
        "blocks.1.gate",
    )


def test_modules_called_in_another_order_keep_their_names(tmp_path: Path) -> None:
    def in_turn(self: Block, x: Tensor) -> Tensor:
        x = self.norm(x)
        up = self.up(x)
        return self.act(self.gate(x)) * up

    plain = type("Plain", (Run,), {"model": gated(None)})().train(tmp_path / "reference")
    with changed(tmp_path, plain, model=gated(in_turn)) as diagnosis:
        assert not diagnosis.findings
        assert diagnosis.outcome is Outcome.AGREE


def test_a_step_that_is_skipped_is_told_as_one(tmp_path: Path) -> None:
    plain = type("Plain", (Run,), {"model": gated(None)})().train(tmp_path / "reference")
    found = lead(tmp_path, plain, model=gated(without_gate))
    sentence = found.kinds[0].sentence
    assert sentence.code is KindReason.MODULE_LEFT_OUT
    assert (sentence.place("skipped"), sentence.place("side")) == ("blocks.1.gate", "target")


def drops(kept: Tensor) -> Callable[[Block, Tensor], Tensor]:
    def forward(self: Block, x: Tensor) -> Tensor:
        x = self.norm(x)
        return x + (self.up(x) * F.silu(self.gate(x)) - x) * kept[: len(x), None, None].to(x) * 2

    return forward


def test_what_chance_drops_for_a_sample_is_no_step_that_is_skipped(tmp_path: Path) -> None:
    """Stochastic depth: the target's one draw for all samples came out as none; a program that never drops
    any is the twin."""
    some, none = torch.arange(16) % 2, torch.zeros(16)
    for number, (kept, code) in enumerate([(some, None), (torch.ones(16) / 2, KindReason.STEP_LEFT_OUT)]):
        plain = type("Plain", (Run,), {"model": changed_block(drops(kept))})().train(
            tmp_path / f"ref{number}"
        )
        found = lead(tmp_path / str(number), plain, model=changed_block(drops(none)))
        told = {kind.sentence.code for kind in found.kinds}
        assert (KindReason.STEP_LEFT_OUT in told) is (code is not None)


def masked(model: Net, ids: Tensor, wanted: Tensor, *, smooth_padding: bool) -> Tensor:
    """Smoothed by a tenth; padding counts in the smoothing, or in nothing."""
    made = model(ids).flatten(0, 1).log_softmax(-1)
    keep = (torch.arange(len(made)) % 4 != 3).float()
    nll = -made.gather(-1, wanted.flatten()[:, None])[:, 0]
    smooth = -made.mean(-1)
    spread = smooth.mean() if smooth_padding else (smooth * keep).sum() / keep.sum()
    return 0.9 * (nll * keep).sum() / keep.sum() + 0.1 * spread


def test_padding_that_is_smoothed_is_told_before_positions_that_count(tmp_path: Path) -> None:
    def loss(smooth_padding: bool) -> Callable[[Run, Net, Tensor, Tensor], Tensor]:
        return lambda self, model, ids, wanted: masked(model, ids, wanted, smooth_padding=smooth_padding)

    plain = type("Plain", (Run,), {"loss": loss(False)})().train(tmp_path / "reference")
    found = lead(tmp_path, plain, loss=loss(True))
    sentence = found.kinds[0].sentence
    assert sentence.code is KindReason.SMOOTHED_IGNORED
    assert sentence.place("side") == "target"
    assert sentence.number("ignored") == pytest.approx(0.075 / 0.975, rel=1e-4)  # 0.1 of 4 in 3 positions


def test_a_bias_left_out_goes_before_what_it_does_not_move(reference: Path, tmp_path: Path) -> None:
    def without_bias(self: Block, x: Tensor) -> Tensor:
        x = self.norm(x)
        return (F.linear(x, self.up.weight) * F.silu(self.gate(x))) * self.turn

    with changed(tmp_path, reference, model=changed_block(without_bias)) as diagnosis:
        assert all(one.stage is not Stage.OPTIMIZER for one in diagnosis.findings)


def test_a_weight_in_no_optimizer_is_its_matter(reference: Path, tmp_path: Path) -> None:
    def of_others(self: Run, model: Net) -> torch.optim.Optimizer:
        left_out = model.blocks[1].up.bias
        return torch.optim.AdamW([one for one in model.parameters() if one is not left_out], lr=0.01)

    found = lead(tmp_path, reference, optimizer=of_others)
    assert found.stage is Stage.OPTIMIZER
    assert "blocks.1.up.bias" in str(found.headline)


class Dropping(Block):
    """Drops elements as models of transformers do: with a rate and its own mode."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.up(F.dropout(F.silu(self.gate(x)), self.rate.p, self.training)) * self.turn


def dropping(*, in_evaluation: tuple[str, ...]) -> Callable[[Run], Net]:
    def model(self: Run) -> Net:
        made = Net(self.num_blocks)
        for block in made.blocks:
            block.__class__, block.rate = Dropping, nn.Dropout(0.2)
        for name in in_evaluation:
            made.get_submodule(name).eval()
        return made

    return model


def test_a_module_in_evaluation_is_told_by_its_mode(tmp_path: Path) -> None:
    plain = type("Plain", (Run,), {"model": dropping(in_evaluation=())})().train(tmp_path / "reference")
    found = lead(tmp_path / "a", plain, model=dropping(in_evaluation=("blocks.1",)))
    assert found.headline.code is StagesCode.SETTING_DIFFERS
    assert (found.module, found.headline.place("name")) == ("blocks.1", "training")
    assert (found.headline.place("target"), found.step) == ("False", 0)
    # a norm in evaluation computes the same
    with changed(tmp_path / "b", plain, model=dropping(in_evaluation=("blocks.0.norm", "head"))) as diagnosis:
        assert not diagnosis.findings
