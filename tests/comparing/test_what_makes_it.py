"""Which call made what differs first: operands followed back, another result given, a call of the step
before, an optimizer that steps without gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import EvidenceCode, VerdictCode  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402
from trueup.types.verdict import Verdict  # noqa: E402
from trueup.wording import headline  # noqa: E402

DRAW = torch.Generator().manual_seed(8)
X, SEEN = torch.randn(3, 6, 8, generator=DRAW), (torch.rand(3, 6, 1, generator=DRAW) > 0.3).float()


def said(verdict: Verdict) -> str:
    """The headline without what is said of the code."""
    found: Reason = verdict.headline
    return headline(found.parts[0] if found.code is VerdictCode.OTHER_CODE else found)


# -- inside a model, and outside of it ------------------------------------------


class Scaled(nn.Module):
    """Rows less their mean over what is seen, normed, and added to what came in."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.norm, self.left, self.right = form, nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        count = seen.sum(1, keepdim=True)
        if self.form == "no sum":
            mean = 1 / count
        elif self.form == "unseen too":
            mean = x.sum(1, keepdim=True) / count
        else:
            mean = (x * seen).sum(1, keepdim=True) / count
        x = x - mean
        if self.form == "by a function":
            a = torch.nn.functional.linear(x, 0.5 * self.left.weight, self.left.bias)
        else:
            a = self.left(x)
        b = self.right(x)
        if self.form == "swapped":
            a = b
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.norm(x if self.form == "not the gate" else y)


def captured(path: Path, form: str, loss: str = "usual") -> Path:
    torch.manual_seed(2)
    model = Scaled(form)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(path, level="mix", steps="all"):
        y = model(X, SEEN)
        size, sharp = y.square().mean(), (y * SEEN).abs().mean()
        ratio = (size / (sharp + 1e-4)).clamp(max=100.0).detach()
        weighed = 0.1 * (sharp if loss == "not weighed" else ratio * sharp)
        (size + weighed).backward()
        optimizer.step()
    return path


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("no sum", "Only the reference calls Tensor.sum here, in the root module"),
        ("unseen too", "Only the reference calls Tensor.mul here, in the root module"),
        ("swapped", "tanh is given the result of right (target), of left (reference)"),
        ("by a function", "Only the target calls Tensor.mul here, in the root module"),
        ("not the gate", "norm is given the result of Tensor.sub (target), of Tensor.mul[1] (reference)"),
    ],
)
def test_the_call_behind_an_operand_is_named(form: str, words: str, tmp_path: Path) -> None:
    found = compare(captured(tmp_path / "target", form), captured(tmp_path / "reference", "usual"))
    assert said(found.verdict) == words
    is_other_result = found.verdict.headline.code is VerdictCode.GIVEN_ANOTHER
    assert is_other_result is ("given the result" in words)


def test_one_number_outside_the_model_is_followed_too(tmp_path: Path) -> None:
    target = captured(tmp_path / "target", "usual", "not weighed")
    reference = captured(tmp_path / "reference", "usual")
    text = said(compare(target, reference).verdict)
    assert "Tensor.mul" in text or "is given the result of" in text
    found = diagnose(target, reference, output=tmp_path / "out")
    assert "though its recorded inputs agree" not in headline(found.findings[0].headline)


class Shifted(nn.Module):
    """A shift that begins at zero, added or subtracted: the same, but for its gradient."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.first, self.shift, self.sign = nn.Linear(8, 8), nn.Parameter(torch.zeros(8)), sign

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return (y + self.shift if self.sign > 0 else y - self.shift).tanh()


def shifted(path: Path, sign: int) -> Path:
    torch.manual_seed(7)
    model = Shifted(sign)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trueup.Tracer(path, level="mix", steps="all"):
        model(X).square().mean().backward()
        optimizer.step()
    return path


def test_functions_that_give_the_same_and_send_back_another_gradient(tmp_path: Path) -> None:
    target, reference = shifted(tmp_path / "target", -1), shifted(tmp_path / "reference", 1)
    words = "Other function in the root module: Tensor.sub (target), Tensor.add (reference)"
    assert said(compare(target, reference).verdict) == words
    assert compare(shifted(tmp_path / "twin", 1), reference).verdict.outcome is Outcome.AGREE


# -- state that a program keeps ------------------------------------------


def kept(path: Path, form: str) -> Path:
    """Momentum by hand."""
    torch.manual_seed(3)
    model = nn.Linear(8, 8)
    state = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    draw = torch.Generator().manual_seed(1)
    with trueup.Tracer(path, level="mix", steps="all") as tracer:
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(5, 8, generator=draw)).square().mean().backward()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    update = torch.tanh(0.9 * state[name] + 0.1 * p.grad)
                    p.sub_(0.01 * update)
                    if form == "kept":
                        state[name].mul_(0.99).add_(p.grad, alpha=0.01)
                    elif form == "otherwise":
                        state[name].mul_(0.9).add_(p.grad, alpha=0.1)
                    else:
                        state[name].mul_(0.99)
            tracer.step()
    return path


def test_a_call_of_the_step_before_is_named(tmp_path: Path) -> None:
    target, reference = kept(tmp_path / "target", "left out"), kept(tmp_path / "reference", "kept")
    words = "Only the reference calls Tensor.add_ outside the model in step 0"
    assert said(compare(target, reference).verdict) == words
    found = diagnose(target, reference, output=tmp_path / "out")
    assert headline(found.findings[0].headline) == words


def test_where_both_call_it_no_call_is_missing(tmp_path: Path) -> None:
    target, reference = kept(tmp_path / "target", "otherwise"), kept(tmp_path / "reference", "kept")
    text = said(compare(target, reference).verdict)
    assert text == "Argument alpha of Tensor.add_ differs outside the model: 0.1 (target), 0.01 (reference)"


# -- microbatches ------------------------------------------


def accumulated(path: Path, sizes: tuple[int, ...]) -> Path:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    draw = torch.Generator().manual_seed(1)
    with trueup.Tracer(path, level="L0", steps="all"):
        for _ in range(2):
            rows = torch.randn(8, 8, generator=draw)
            for part in rows[: sum(sizes)].split(sizes):
                (model(part).square().mean(1).sum() / 8).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize(("sizes", "others"), [((4,), (4, 4)), ((2, 2, 2), (2, 2, 2, 2))])
def test_a_step_of_fewer_microbatches_is_named(
    sizes: tuple[int, ...], others: tuple[int, ...], tmp_path: Path
) -> None:
    verdict = compare(accumulated(tmp_path / "t", sizes), accumulated(tmp_path / "r", others)).verdict
    assert verdict.headline.code is VerdictCode.STEP_IS_OF
    assert [verdict.headline.number(side) for side in ("target", "reference")] == [len(sizes), len(others)]


def test_as_many_rows_in_other_microbatches_are_no_other_step(tmp_path: Path) -> None:
    verdict = compare(accumulated(tmp_path / "t", (4, 4)), accumulated(tmp_path / "r", (2, 2, 2, 2))).verdict
    assert verdict.outcome is not Outcome.DIFFER


# -- steps without gradients ------------------------------------------


def stepped(path: Path, form: str) -> Path:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters(), 0.0 if form == "no rate" else 0.01)
    draw = torch.Generator().manual_seed(1)
    if form == "in backward":
        each = {p: torch.optim.Adam([p], 0.01) for p in model.parameters()}

        def update(p: Tensor) -> None:
            each[p].step()
            each[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
    with trueup.Tracer(path, level="L0", steps="all") as tracer:
        for _ in range(2):
            loss = model(torch.randn(5, 8, generator=draw)).square().mean()
            if form == "before":
                optimizer.step()
            loss.backward()
            if form == "cleared":
                optimizer.zero_grad()
            if form not in ("before", "in backward"):
                optimizer.step()
            optimizer.zero_grad()
            tracer.step()
    return path


@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("before", "The {side}'s optimizer steps before the backward pass"),
        ("cleared", "The {side}'s optimizer takes no gradients: they are gone when it steps"),
    ],
)
def test_an_optimizer_that_has_nothing_to_take(form: str, words: str, side: str, tmp_path: Path) -> None:
    empty, usual = stepped(tmp_path / "empty", form), stepped(tmp_path / "usual", "usual")
    pair = (empty, usual) if side == "target" else (usual, empty)
    verdict = compare(*pair).verdict
    assert said(verdict) == words.format(side=side)
    assert not any(one.code is EvidenceCode.PARAMETERS_ABSENT for one in verdict.evidence)
    found = diagnose(*pair, output=tmp_path / "out")
    assert headline(found.findings[0].headline) == words.format(side=side)


@pytest.mark.parametrize("form", ["usual", "in backward", "no rate"])
def test_an_optimizer_that_takes_them_is_not_said_to_take_none(form: str, tmp_path: Path) -> None:
    verdict = compare(stepped(tmp_path / "one", form), stepped(tmp_path / "usual", "usual")).verdict
    assert verdict.headline.code is not VerdictCode.STEPPED_WITHOUT
    assert (verdict.outcome is Outcome.AGREE) == (form != "no rate")
