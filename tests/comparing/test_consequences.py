"""Real captures where one cause has many consequences: the cause heads the verdict, they are no origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trueup.comparing.call_arguments import lacking
from trueup.comparing.run import compare
from trueup.comparing.scalars import compare_scalars
from trueup.diagnosing.gradients import VALUES
from trueup.diagnosing.pipeline import diagnose
from trueup.store.code import ProgramCode, ProgramFunction
from trueup.types.codes import EvidenceCode, VerdictCode, WeightsCode
from trueup.types.reason import reason
from trueup.types.status import Outcome

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trueup import Tracer  # noqa: E402


class Times(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """An identity that multiplies the gradient."""

    @staticmethod
    def forward(ctx: Any, made: Any, factor: float) -> Any:
        ctx.factor = factor
        return made.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.factor * gradients[0], None


def captured(
    path: Path,
    *,
    without_bias: bool = False,
    makes_nan: bool = False,
    zeros: int = 0,
    trained: bool = True,
    sent_back: float = 1.0,
    level: str = "mix",
) -> Path:
    """Three steps of four residual blocks; the second without a bias, or the third with NaN; or with some
    biases more, which begin at 0; or with a loss that sends back another multiple of its gradient."""

    class Block(torch.nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.up = torch.nn.Linear(16, 32, bias=not (without_bias and at == 1))
            self.down, self.spoils = torch.nn.Linear(32, 16), makes_nan and at == 2
            self.norm = torch.nn.LayerNorm(16, bias=at < zeros)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.up(x))
            return self.norm(x + self.down(y / (y - y) if self.spoils else y))

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(at) for at in range(4)))
    for block in model[:zeros]:
        block.norm.bias.requires_grad_(trained)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with Tracer(path, level=level, steps="0-2"):
        for step in range(3):
            made = model(torch.linspace(-1, 1 + step, 64).view(4, 16))
            loss = Times.apply(made, sent_back).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is trusted."""
    return captured(tmp_path_factory.mktemp("reference") / "run")


def test_a_parameter_that_one_run_lacks(reference: Path, tmp_path: Path) -> None:
    lacking = captured(tmp_path / "run", without_bias=True)
    for target, other, side in ((lacking, reference, "target"), (reference, lacking, "reference")):
        verdict = compare(target, other).verdict
        names = {"parameter": "1.up.bias", "weight": "1.down.weight"}
        assert verdict.headline == reason(VerdictCode.PARAMETER_ABSENT, side=side, **names)
        assert (verdict.where, verdict.owner, verdict.step) == ("1.up.bias · value", "1.up", 0)
        first = verdict.evidence[0]
        assert (first.code, first.place("name")) == (EvidenceCode.SIZE_OF, "1.down.weight")
        assert first.parts[0].code is EvidenceCode.SIZE
        assert verdict.exit_code == 1


@pytest.mark.parametrize("num", [1, 3])
def test_biases_that_begin_at_zero(num: int, reference: Path, tmp_path: Path) -> None:
    """Nothing that is computed in the first step shows them but the norm of all gradients. Twin: frozen, they
    change nothing."""
    more = captured(tmp_path / "more", zeros=num)
    for target, other, side in ((more, reference, "target"), (reference, more, "reference")):
        verdict = compare(target, other).verdict
        facts = {"side": side, "num": num, "parameter": "0.norm.bias"}
        assert verdict.headline == reason(VerdictCode.PARAMETERS_OF_ONE, **facts)
        assert verdict.where == "0.norm.bias · value"
        (finding, *_) = diagnose(target, other, output=tmp_path / f"{side}-report").findings
        assert (finding.headline.code, finding.headline.place("side")) == (WeightsCode.ONLY_IN, side)
    frozen = captured(tmp_path / "frozen", zeros=num, trained=False)
    assert compare(frozen, reference).verdict.outcome is not Outcome.DIFFER


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("factor", [-1.0, 1.1])
def test_a_gradient_that_the_loss_sends_back(
    factor: float, level: str, reference: Path, tmp_path: Path
) -> None:
    """What the model returns is what its last module does, and that module's inner one: the gradient comes to
    the innermost first. It is made outside of all of them."""
    reference = reference if level == "mix" else captured(tmp_path / "other", level=level)
    verdict = compare(captured(tmp_path / "run", sent_back=factor, level=level), reference).verdict
    assert (verdict.phase, verdict.where) == ("backward", "3.norm · gradient of output.0")


def test_nan_that_was_handed_on(reference: Path, tmp_path: Path) -> None:
    result = compare(captured(tmp_path / "run", makes_nan=True), reference)
    place = {"phase": "forward", "slot": "input.0", "step": 0, "module": "2"}
    assert result.verdict.headline == reason(VerdictCode.NOT_FINITE, **place, what="NaN", side="target")
    rows = result.frame()
    origins = rows.filter(status="origin")
    assert origins.height == 1, origins["site"].to_list()
    optimizer = rows.filter(rows["target_num_nan"] > 0, phase="optimizer")
    assert set(optimizer["status"].cast(str)) == {"propagated"}


def downsampled(path: Path, *strides: int) -> Path:
    """A step of two convolutions of these strides, and a norm."""
    torch.manual_seed(0)
    first, second = (torch.nn.Conv2d(3, 3, 3, stride=stride, padding=1) for stride in strides)
    model = torch.nn.Sequential(first, second, torch.nn.BatchNorm2d(3))
    with Tracer(path, level="L0", steps="0", store_values_of=VALUES):
        model(torch.randn(2, 3, 12, 12)).square().mul(0.3).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return path


def test_a_setting_that_gives_another_shape(tmp_path: Path) -> None:
    verdict = compare(downsampled(tmp_path / "t", 2, 1), downsampled(tmp_path / "r", 1, 2)).verdict
    facts = {"what": "Conv2d", "name": "stride", "module": "0", "target": "[2, 2]", "reference": "[1, 1]"}
    assert verdict.headline == reason(VerdictCode.ARGUMENT_DIFFERS, **facts)
    assert (verdict.where, verdict.exit_code) == ("0 · output.0", 1)


class Scores(torch.nn.Module):
    """A loss of more words than the other run has: the first rows of the head are the other's."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.body, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, words, bias=False)
        with torch.no_grad():
            rows = torch.randn(40, 16, generator=torch.Generator().manual_seed(3))
            self.head.weight.copy_(0.1 * rows[:words])

    def forward(self, x: Any, labels: Any) -> Any:
        scores = self.head(self.norm(torch.tanh(self.body(x))))
        return torch.nn.functional.cross_entropy(scores, labels)


def scored(path: Path, words: int) -> Path:
    torch.manual_seed(0)
    x, labels = torch.randn(2048, 16), torch.randint(0, 24, (2048,))
    model = Scores(words)
    with Tracer(path, level="L0", steps="0", store_values_of=VALUES):
        model(x, labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return path


def test_more_words_come_before_what_they_make_of_gradients(tmp_path: Path) -> None:
    """Sums over many tokens cancel: of gradients that are no more than scaled they differ by far more."""
    verdict = compare(scored(tmp_path / "t", 32), scored(tmp_path / "r", 24)).verdict
    facts = {"what": "Linear", "name": "out_features", "module": "head", "target": "32", "reference": "24"}
    assert verdict.headline == reason(VerdictCode.ARGUMENT_DIFFERS, **facts)
    assert (verdict.where, verdict.exit_code) == ("head · output.0", 1)


def hidden(path: Path, *, inside: bool) -> Path:
    """A step of a block that gives its inner module a mask, or does not; the model is given it always."""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(8, 8)

        def forward(self, x: Any, mask: Any = None) -> Any:
            return self.out(x if mask is None else x * mask)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Any, mask: Any) -> Any:
            return self.inner(x, mask=mask) if inside else self.inner(x)

    torch.manual_seed(0)
    model, x = Outer(), torch.randn(4, 8)
    with Tracer(path, level="L0", steps="0"):
        model(x, torch.arange(8.0)).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return path


def test_an_input_of_a_module_inside_is_none_of_the_model(tmp_path: Path) -> None:
    given, not_given = hidden(tmp_path / "given", inside=True), hidden(tmp_path / "not", inside=False)
    for target, other, side in ((given, not_given, "target"), (not_given, given, "reference")):
        facts = {"side": side, "name": "mask", "module": "inner"}
        assert compare(target, other).verdict.headline == reason(VerdictCode.INPUT_OF_ONE_SIDE, **facts)


@pytest.mark.parametrize(
    ("target", "reference", "pairs"),
    [
        ([1e-3, 2e-3], [1e-3, 2e-3, 2e-3], []),  # the same rates in other groups
        ([1e-3, 2e-3], [1e-3, 3e-3, 2e-3], [("learning_rate", "0.001, 0.002", "0.001, 0.002, 0.003")]),
    ],
)
def test_rates_of_other_numbers_of_groups_are_compared_as_sets(
    target: Any, reference: Any, pairs: Any
) -> None:
    lines = [[{"step": 0, "learning_rate": rates}] for rates in (target, reference)]
    found = compare_scalars(lines[0], lines[1], {}, {})
    assert [(one.name, one.target, one.reference) for one in found] == pairs
    assert all(one.beyond for one in found)


@pytest.mark.parametrize(
    ("own", "other", "name"),
    [
        (["conv(a)"], ["conv(a, stride=2)"], "stride"),
        (["x = conv(a, stride=2)", "y = conv(b)"], ["x = conv(a)", "y = conv(b, stride=2)"], None),  # moved
    ],
)
def test_an_argument_that_another_call_has_in_exchange_is_not_lacking(
    own: Any, other: Any, name: Any
) -> None:
    of = {"name": "f", "file": "f.py", "line": 1, "source": "def f(): pass", "digest": ""}
    function = ProgramFunction(**of, values={}, calls={})  # type: ignore[arg-type]
    code = ProgramCode(functions=(function,), types={}, classes={}, modules={}, frames={})
    found = lacking(own, other, function, code)
    assert (None if found is None else found.name) == name


class Heads(torch.nn.Module):
    """A head over what is left of a row without its last tokens, pooled to one vector or kept."""

    def __init__(self, cut: Any, pool: Any) -> None:
        super().__init__()
        self.body, self.pool = torch.nn.Linear(16, 16), Pool(pool)
        self.head, self.cut = torch.nn.Linear(16, 4), cut

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.cut(torch.tanh(self.body(x)))))


class Pool(torch.nn.Module):
    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Any) -> Any:
        return self.made(x)


def of_heads(path: Path, left_out: int, keep: bool) -> Path:
    torch.manual_seed(0)
    model = Heads(
        lambda x: x[:, :-left_out], (lambda x: x.cumsum(1)) if keep else (lambda x: x.cumsum(1)[:, -1])
    )
    x = torch.randn(8, 6, 16)
    with Tracer(path, level="L0", steps="0", store_values_of=VALUES):
        model(x).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return path


@pytest.mark.parametrize(
    ("target", "reference", "facts"),
    [
        (
            (1, True),
            (2, True),
            {"module": "pool", "given": 1, "target": "[8, 5, 16]", "reference": "[8, 4, 16]"},
        ),
        (
            (1, True),
            (1, False),
            {"module": "pool", "given": 0, "target": "[8, 5, 16]", "reference": "[8, 16]"},
        ),
    ],
    ids=["given", "returned"],
)
def test_the_first_other_shape(
    tmp_path: Path, target: tuple[int, bool], reference: tuple[int, bool], facts: dict[str, Any]
) -> None:
    verdict = compare(of_heads(tmp_path / "t", *target), of_heads(tmp_path / "r", *reference)).verdict
    assert verdict.headline == reason(VerdictCode.OTHER_SHAPE, **facts)
