"""What a module was given and by whom: by the code around it, another model, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from tests.diagnosing.replaying import replay  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay import origins  # noqa: E402
from trueup.diagnosing.stages import StageStatus  # noqa: E402
from trueup.diagnosing.stages.optimizer import near_updates  # noqa: E402
from trueup.types.codes import KindReason, StagesCode, VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

Loop = Callable[[], None]
LENGTH, WIDTH = 6, 8


class Tokens(nn.Module):
    """Embeddings of ids and of their positions, two norms and a dropout."""

    def __init__(self, *, counted: bool = False, one_norm: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.ids, self.positions = nn.Embedding(12, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(WIDTH, 12)
        self.counted, self.one_norm, self.scale = counted, one_norm, scale

    def forward(self, ids: Tensor, shown: Tensor) -> Tensor:
        every = torch.arange(LENGTH).expand_as(ids)
        places = every if self.counted else (shown.cumsum(-1) - 1).clamp(min=0)
        x = self.ids(ids) + self.positions(places) * self.scale
        y = (self.first if self.one_norm else self.second)(x).relu()
        return self.head(self.first(x) + y + self.drop(y))  # type: ignore[no-any-return]


def trained(*, evaluated: bool = False, **how: Any) -> Loop:
    """Two steps; ``evaluated``: with the dropout off."""

    def run() -> None:
        torch.manual_seed(0)
        model = Tokens(**how)
        if evaluated:
            model.eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            torch.manual_seed(step)
            ids = torch.randint(0, 12, (4, LENGTH))
            shown = (torch.arange(LENGTH) >= torch.arange(4)[:, None]).long()
            loss = nn.functional.cross_entropy(model(ids, shown).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def diagnosed(folder: Path, target: Loop, reference: Loop) -> Diagnosis:
    """Both captured as the preset does, and diagnosed without a replay."""
    for name, run in (("target", target), ("reference", reference)):
        with trueup.Tracer(folder / name, level="L0", steps="0,1", store_values_of=VALUES):
            run()
    return diagnose(folder / "target", folder / "reference", output=folder / "out")


def test_positions_that_cannot_be_put_in_are_charged_to_the_code_that_made_them(tmp_path: Path) -> None:
    replay(tmp_path, trained(), trained(counted=True))
    (found,) = origins(tmp_path / "replay", tmp_path / "reference")
    assert (found.module, found.stage) == ("", Stage.FORWARD)
    assert "positions" in found.site


def test_what_such_a_module_does_itself_is_charged_to_it(tmp_path: Path) -> None:
    replay(tmp_path, trained(counted=True), trained(counted=True, scale=1.5))
    assert [one.module for one in origins(tmp_path / "replay", tmp_path / "reference")] == [""]


def test_a_tensor_that_is_only_handed_on_takes_no_gradient_of_its_own(tmp_path: Path) -> None:
    replay(tmp_path, trained(), trained(evaluated=True))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert [(one.module, one.stage) for one in found] == [("drop", Stage.FORWARD)]


def test_weights_that_no_gradient_reaches_are_told_by_that(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, trained(one_norm=True), trained())
    first = found.findings[0]
    assert (first.stage, first.headline.code) == (Stage.BACKWARD, StagesCode.UNREACHED)
    uncalled = next(one for one in first.evidence if one.code is StagesCode.NEVER_CALLED)
    assert uncalled.place("modules") == ("second",)
    assert not any(one.headline.code is StagesCode.NOT_COPIED_BACK for one in found.findings)


def test_weights_that_neither_run_reaches_are_no_difference(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, trained(one_norm=True), trained(one_norm=True))
    assert found.outcome is Outcome.AGREE


def adversarial(*, evaluated: bool = False, noise: int = 0) -> Loop:
    """A generator with a batch norm, and a discriminator that is given what it makes; ``noise``: seed of what
    both begin with."""

    def run() -> None:
        torch.manual_seed(0)
        make = nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        judge = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        if evaluated:
            make.eval()
        updaters = [torch.optim.SGD(one.parameters(), 0.05) for one in (judge, make)]
        for step in range(2):
            torch.manual_seed(step + noise)
            real, drawn = torch.randn(16, WIDTH), torch.randn(16, 4)
            fake = make(drawn)
            (judge(fake.detach()).relu().mean() - judge(real).tanh().mean()).backward()
            updaters[0].step()
            updaters[0].zero_grad()
            (-judge(make(drawn)).mean()).backward()
            updaters[1].step()
            updaters[1].zero_grad()

    return run


def test_what_another_model_made_is_no_batch(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, adversarial(evaluated=True), adversarial())
    data = next(one for one in found.stages if one.stage is Stage.DATA)
    assert data.status is StageStatus.PASSED
    assert found.findings
    assert found.findings[0].stage is not Stage.DATA


def test_what_another_model_was_given_is_a_batch(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, adversarial(noise=7), adversarial())
    assert found.findings[0].stage is Stage.DATA


def followed(*, evaluated: bool) -> Loop:
    """A frozen copy of a model with dropout, which is only looked at."""

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Dropout(0.2), nn.Linear(64, 1))
        frozen = nn.Sequential(nn.Linear(WIDTH, 64), nn.Dropout(0.2), nn.Linear(64, 1)).requires_grad_(False)
        frozen.train(not evaluated)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            torch.manual_seed(step)
            x = torch.randn(32, WIDTH)
            made = model(x)
            with torch.no_grad():
                wanted = frozen(x)
            (made - wanted).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


@pytest.mark.parametrize("evaluated", [False, True])
def test_the_mode_of_a_model_that_never_trains_is_known(tmp_path: Path, evaluated: bool) -> None:
    options = {"level": "L0", "steps": "0,1", "store_values_of": (*VALUES, "configuration")}
    for name, off in (("target", evaluated), ("reference", True)):
        with trueup.Tracer(tmp_path / name, **options):
            followed(evaluated=off)()
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    if evaluated:
        assert found.outcome is Outcome.AGREE
        return
    headline = found.findings[0].headline
    assert headline.code in (StagesCode.SETTING_DIFFERS, VerdictCode.ARGUMENT_DIFFERS)
    assert (headline.place("name"), headline.place("target")) == ("training", "True")
    assert not any(kind.sentence.code is KindReason.DROPOUT_RATE for kind in found.findings[0].kinds[:1])


def dropped(*, turned: bool, rate: float = 0.2) -> Loop:
    """A dropout of rows of tokens; ``turned``: they lie in memory with the last two dimensions exchanged."""

    def run() -> None:
        torch.manual_seed(0)
        first, drop, last = nn.Linear(WIDTH, 24), nn.Dropout(rate), nn.Linear(24, 1)
        model = nn.ModuleList([first, drop, last])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            torch.manual_seed(step)
            x = first(torch.randn(8, 12, WIDTH))
            if turned:
                x = x.transpose(1, 2).contiguous().transpose(1, 2)
            last(drop(x)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def test_the_same_random_numbers_in_another_memory_order_are_no_fault(tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "same", dropped(turned=True), dropped(turned=False))
    assert found.outcome is Outcome.UNDECIDED
    assert found.findings[0].kinds[0].sentence.code is KindReason.DROPPED_IN_OTHER_LAYOUT
    other = diagnosed(tmp_path / "other", dropped(turned=True, rate=0.3), dropped(turned=False))
    assert other.outcome is Outcome.DIFFER


def orthogonal(gradient: Tensor, *, last: float = 2.0315) -> Tensor:
    """Muon's five steps of Newton and Schulz."""
    x = gradient / gradient.norm()
    for _ in range(5):
        m = x @ x.T
        x = 3.4445 * x + (-4.775 * m + last * m @ m) @ x
    return x


@pytest.mark.parametrize(("last", "near"), [(2.0315, True), (2.033, False)])
def test_an_update_of_the_whole_gradient_rounds_by_its_own_size(last: float, near: bool) -> None:
    """A gradient of few tokens, whose small singular values are made 1 with their rounding."""
    torch.manual_seed(0)
    gradient = torch.randn(32, 3) @ torch.randn(3, 48) + 1e-3 * torch.randn(32, 48)
    before, exact = torch.randn(32, 48).double() * 0.05, orthogonal(gradient.double())
    made = [before - 0.01 * one.double() for one in (orthogonal(gradient, last=last), exact)]
    assert near_updates(made[0].numpy(), made[1].numpy(), before.numpy(), 2.0**-24) is near
