"""Gradients that two modules may have made go to the one whose own code errs in forward too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.diagnosing.replaying import replay
from trueup.diagnosing.replay.charge import origins
from trueup.types.codes import ReplayCode
from trueup.types.finding import Origin, Stage


class Router(nn.Module):
    """Returns scores and what it makes of them, as routers of experts do."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.score, self.power = nn.Parameter(torch.randn(4, 6)), power

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and the weights of the experts."""
        scores = x @ self.score.t()
        return scores, scores.softmax(-1).pow(self.power)


class Mixed(nn.Module):
    """Experts weighed by a router; the scores may enter the sum too."""

    def __init__(self, power: float, beside: float) -> None:
        super().__init__()
        self.router, self.experts, self.beside = Router(power), nn.Linear(6, 24), beside

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        scores, weights = self.router(x)
        out = (self.experts(x).view(-1, 4, 6) * weights[..., None]).sum(1)
        return out + self.beside * scores.mean(-1, keepdim=True)


class Scaled(nn.Module):
    """A module that reads the parameters of a container which is never called."""

    def __init__(self, shift: int, factor: float) -> None:
        super().__init__()
        self.mix = nn.ParameterDict({"a": nn.Parameter(torch.rand(6)), "b": nn.Parameter(torch.rand(6))})
        self.inner, self.shift = nn.Linear(6, 6), shift
        if factor != 1.0:
            self.mix["a"].register_hook(lambda gradient: gradient * factor)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        y = self.inner(x * self.mix["a"])
        return y + x.roll(self.shift, 0) * self.mix["b"]


class Beside(nn.Module):
    """A projection, and a second one beside it behind a dropout, which hands on its input where it is off."""

    def __init__(self, p: float = 0.0, *, is_cut: bool = False, sign: float = 1.0) -> None:
        super().__init__()
        self.base, self.drop, self.low = nn.Linear(6, 6), nn.Dropout(p), nn.Linear(6, 6, bias=False)
        self.is_cut, self.sign = is_cut, sign

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        y = self.base(x)
        return y + self.sign * self.low(self.drop(x.detach() if self.is_cut else x))


def _loop(middle: Callable[[], nn.Module]) -> Callable[[], None]:
    def train() -> None:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 6), middle(), nn.Linear(6, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(7, 6)).square().mean().backward()
        optimizer.step()

    return train


def _found(
    folder: Path, reference: Callable[[], nn.Module], target: Callable[[], nn.Module]
) -> dict[str, Stage]:
    replay(folder, _loop(reference), _loop(target))
    found: list[Origin] = origins(folder / "replay", folder / "reference")
    return {one.module: one.stage for one in found}


def test_a_router_s_error_is_no_other_gradient_of_its_scores(tmp_path: Path) -> None:
    """The gradient of the scores comes through the weights, which the router makes of them."""
    found = _found(tmp_path, lambda: Mixed(1.0, 0.1), lambda: Mixed(1.5, 0.1))
    assert found == {"1.router": Stage.FORWARD}


def test_a_use_of_the_scores_is_the_module_s_around(tmp_path: Path) -> None:
    found = _found(tmp_path, lambda: Mixed(1.0, 0.1), lambda: Mixed(1.0, 0.3))
    assert set(found) == {"1"}


def test_gradients_of_a_container_s_weights_are_its_reader_s(tmp_path: Path) -> None:
    assert _found(tmp_path, lambda: Scaled(1, 1.0), lambda: Scaled(2, 1.0)) == {"1": Stage.FORWARD}


def test_gradients_alone_keep_the_name_of_the_container(tmp_path: Path) -> None:
    assert _found(tmp_path, lambda: Scaled(1, 1.0), lambda: Scaled(1, 3.0)) == {"1.mix": Stage.BACKWARD}


def test_a_dropout_of_one_run_changes_no_gradient_of_another_path(tmp_path: Path) -> None:
    """Where it is off, its output is the input, whose gradient is that of both paths."""
    assert _found(tmp_path, Beside, lambda: Beside(0.5)) == {"1.drop": Stage.FORWARD}


def test_what_is_detached_for_one_path_is_told_once(tmp_path: Path) -> None:
    assert list(_found(tmp_path, Beside, lambda: Beside(is_cut=True)).values()) == [Stage.BACKWARD]


def test_a_path_with_the_other_sign_is_the_module_s(tmp_path: Path) -> None:
    assert set(_found(tmp_path, lambda: Beside(0.0), lambda: Beside(0.0, sign=-1.0))) == {"1"}


class Tempered(nn.Module):
    """Returns a weight beside its result, or what it makes of it."""

    def __init__(self, *, is_raw: bool) -> None:
        super().__init__()
        self.inner, self.scale, self.is_raw = nn.Linear(6, 6), nn.Parameter(torch.tensor(0.4)), is_raw

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, 6) to (rows, 6), and a number."""
        return self.inner(x), self.scale if self.is_raw else self.scale.exp()


def _tempered(*, is_raw: bool, is_cut: bool = False) -> Callable[[], None]:
    def train() -> None:
        torch.manual_seed(5)
        model = Tempered(is_raw=is_raw)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out, scale = model(torch.randn(7, 6))
        (out * (scale.detach() if is_cut else scale)).square().mean().backward()
        optimizer.step()

    return train


def _missing(folder: Path, reference: Callable[[], None], target: Callable[[], None]) -> set[ReplayCode]:
    replay(folder, reference, target)
    found = origins(folder / "replay", folder / "reference")
    return {r.code for one in found for r in one.evidence if r.code is ReplayCode.MISSING_GRADIENT}


def test_a_weight_that_is_returned_gets_its_gradient_itself(tmp_path: Path) -> None:
    assert _missing(tmp_path, _tempered(is_raw=False), _tempered(is_raw=True)) == set()


def test_what_is_made_of_a_weight_and_cut_off_is_missing(tmp_path: Path) -> None:
    found = _missing(tmp_path, _tempered(is_raw=False), _tempered(is_raw=False, is_cut=True))
    assert found == {ReplayCode.MISSING_GRADIENT}


def _weighed(factor: float, own: float = 1.0) -> Callable[[], None]:
    """A loss times a factor, of a model that returns a weight; a hook may change that weight's gradient."""

    def train() -> None:
        torch.manual_seed(5)
        model = Tempered(is_raw=True)
        if own != 1.0:
            model.scale.register_hook(lambda gradient: gradient * own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out, scale = model(torch.randn(7, 6))
        (torch.nn.functional.mse_loss(out * scale, torch.zeros(7, 6)) * factor).backward()
        optimizer.step()

    return train


def test_a_weight_s_one_number_follows_its_loss(tmp_path: Path) -> None:
    replay(tmp_path, _weighed(1.0), _weighed(0.1))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert [one.stage for one in found] == [Stage.LOSS]


def test_a_weight_s_one_number_with_a_factor_of_its_own_does_not(tmp_path: Path) -> None:
    replay(tmp_path, _weighed(1.0), _weighed(0.1, own=2.0))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert {one.stage for one in found} == {Stage.LOSS, Stage.BACKWARD}


class Attending(nn.Module):
    """Returns what it weighs, and the weights beside it, as attention does."""

    def __init__(self, heat: float) -> None:
        super().__init__()
        self.inner, self.out, self.heat = nn.Linear(6, 6), nn.Linear(6, 6), heat

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, 6) to (rows, 6) and (rows, rows)."""
        weights = (self.inner(x) @ x.t() * self.heat).softmax(-1)
        return self.out(weights @ x), weights


class Layer(nn.Module):
    """Uses both, or hands on what attention gives alone."""

    def __init__(self, heat: float, beside: float) -> None:
        super().__init__()
        self.attention, self.beside = Attending(heat), beside

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        out, weights = self.attention(x)
        return x + out + self.beside * weights.square().sum()


def test_attention_s_error_is_no_other_gradient_of_its_weights(tmp_path: Path) -> None:
    """The weights err themselves, and their gradient comes through what they weigh."""
    found = _found(tmp_path, lambda: Layer(1.0, 0.0), lambda: Layer(1.5, 0.0))
    assert found == {"1.attention": Stage.FORWARD}


def test_a_use_of_attention_s_weights_is_the_layer_s(tmp_path: Path) -> None:
    assert set(_found(tmp_path, lambda: Layer(1.0, 0.0), lambda: Layer(1.0, 0.3))) == {"1"}


class Raw(nn.Module):
    """Returns what a module inside made, and what is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, 6) to (rows, 2) and (rows, 6)."""
        raw = self.inner(x)
        return self.head(raw), raw


def _regularised(share: float) -> Callable[[], None]:
    def train() -> None:
        torch.manual_seed(5)
        model = Raw()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out, raw = model(torch.randn(7, 6))
        (out.square().mean() + share * raw.square().mean()).backward()
        optimizer.step()

    return train


def test_what_the_model_returns_gets_its_gradient_of_the_loss(tmp_path: Path) -> None:
    replay(tmp_path, _regularised(1.0), _regularised(0.0))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert [one.stage for one in found] == [Stage.LOSS]


class Routed(nn.Module):
    """Returns beside its result the scores that a router inside of its mixture made."""

    def __init__(self, power: float = 1.0, beside: float = 0.0) -> None:
        super().__init__()
        self.mixed, self.head = Mixed(power, beside), nn.Linear(6, 2)
        self.scores = torch.empty(0)
        self.mixed.router.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, given: tuple[Tensor, ...], out: tuple[Tensor, Tensor]) -> None:
        self.scores = out[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, 6) to (rows, 2) and (rows, 4)."""
        out = self.head(self.mixed(x))
        return out, self.scores


def _balanced(share: float, **how: float) -> Callable[[], None]:
    def train() -> None:
        torch.manual_seed(5)
        model = Routed(**how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out, scores = model(torch.randn(7, 6))
        balance = scores.softmax(-1).mean(0).square().sum()
        torch.nn.functional.mse_loss(out, torch.zeros(7, 2)).add(balance * share).backward()
        optimizer.step()

    return train


def _modules(folder: Path, target: Callable[[], None]) -> dict[str, Stage]:
    replay(folder, _balanced(0.5), target)
    return {one.module: one.stage for one in origins(folder / "replay", folder / "reference")}


def test_scores_of_a_router_inside_get_their_other_gradient_of_the_balance_loss(tmp_path: Path) -> None:
    assert _modules(tmp_path, _balanced(1.0)) == {"": Stage.LOSS}


def test_a_mixture_that_errs_itself_keeps_the_gradient_of_the_scores(tmp_path: Path) -> None:
    found = _modules(tmp_path, _balanced(1.0, beside=0.3))
    assert found.keys() == {"", "mixed"}
    assert found["mixed"] is Stage.FORWARD
