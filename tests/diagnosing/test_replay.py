"""Faults in real models, alone and several at once: each charged to the module whose own code made it, and
nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.diagnosing.replay_faults import GPT, LLAMA, Plant
from tests.diagnosing.replaying import replay
from tests.models import gpt
from trueup.diagnosing.replay import origins
from trueup.types.codes import ReplayCode
from trueup.types.finding import Stage
from trueup.types.reason import reason

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SMALL = gpt.GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16)


def small_gpt() -> nn.Module:
    torch.manual_seed(0)
    return gpt.GPT(SMALL)


def llama(num_layers: int = 3) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model.train()


def gpt_loss(model: Any, step: int) -> Any:
    return gpt.loss_of(model, *gpt.batch(SMALL, step=step, size=2))


def llama_loss(model: Any, step: int) -> Any:
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))
    return model(input_ids=ids, labels=ids).loss


def loop(
    make: Callable[[], Any], loss: Callable[[Any, int], Any], plants: Iterable[Plant] = (), steps: int = 2
) -> Callable[[], None]:
    def train() -> None:
        model = make()
        for plant in plants:
            plant(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for step in range(steps):
            loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


MODELS = {"llama": (llama, llama_loss, LLAMA), "gpt": (small_gpt, gpt_loss, GPT)}
EACH = [(model, fault) for model, (_, _, faults) in MODELS.items() for fault in faults]


def charged(folder: Path, model: str, faults: Iterable[str]) -> list[str]:
    make, loss, known = MODELS[model]
    plants = [known[name][0] for name in faults]
    replay(folder, loop(make, loss), loop(make, loss, plants))
    return [origin.module for origin in origins(folder / "replay", folder / "reference")]


@pytest.mark.parametrize(("model", "fault"), EACH)
def test_a_fault_alone_is_charged_to_its_owner(model: str, fault: str, tmp_path: Path) -> None:
    assert charged(tmp_path, model, [fault]) == [MODELS[model][2][fault][1]]


FIVE = {
    "llama": [
        ["norm-eps", "attention-scale", "residual", "rope-frequency", "weight-gradient"],
        ["gate-and-up-swapped", "activation", "backward-of-activation", "detached", "norm-weight-gradient"],
    ],
    "gpt": [
        ["norm-eps", "attention-scale", "gelu-tanh", "weight-gradient", "head"],
        ["mask-off-by-one", "rope-bfloat16", "residual", "hook-in-the-middle", "embedding-scale"],
    ],
}


@pytest.mark.parametrize(("model", "half"), [(m, h) for m in FIVE for h in (0, 1)])
def test_five_at_once(model: str, half: int, tmp_path: Path) -> None:
    names = FIVE[model][half]
    assert set(charged(tmp_path, model, names)) == {MODELS[model][2][name][1] for name in names}


class Tied(nn.Module):
    """One weight in two modules; the second may compute something else."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.emb = nn.Embedding(64, 8)
        self.head = Head(factor)
        self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.emb(ids))


class Head(nn.Linear):
    def __init__(self, factor: float) -> None:
        super().__init__(8, 64, bias=False)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


def test_a_shared_weight_s_gradient_goes_to_the_module_that_errs(tmp_path: Path) -> None:
    def train(factor: float) -> Callable[[], None]:
        def make() -> nn.Module:
            torch.manual_seed(0)
            return Tied(factor)

        ids = torch.arange(12).reshape(2, 6)
        return loop(make, lambda model, _: model(ids).square().mean())

    replay(tmp_path, train(1.0), train(1.01))
    (found,) = origins(tmp_path / "replay", tmp_path / "reference")
    assert found.module == "head"
    assert any(one.place("phase") == "param_grad" for one in found.evidence)


class Norms(nn.Module):
    """Norms and linears under autocast; those of ``coarse`` compute the mean square in bfloat16."""

    def __init__(self, coarse: Iterable[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Norm(i in coarse), nn.Linear(32, 32)) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            for layer in self.layers:
                x = layer(x)
        return x.float()


class Norm(nn.Module):
    def __init__(self, coarse: bool) -> None:
        super().__init__()
        self.coarse = coarse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.bfloat16() if self.coarse else x.float()
        return (kept * torch.rsqrt(kept.square().mean(-1, keepdim=True) + 1e-5)).float()


@pytest.mark.parametrize(("coarse", "owners"), [([2], ["layers.2.0"]), (range(4), [])])
def test_a_missing_upcast_is_told_by_the_others_of_its_kind(
    coarse: Iterable[int], owners: list[str], tmp_path: Path
) -> None:
    def train(chosen: Iterable[int]) -> Callable[[], None]:
        def make() -> nn.Module:
            torch.manual_seed(0)
            return Norms(chosen)

        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
        return loop(make, lambda model, _: model(x).square().mean())

    replay(tmp_path, train([]), train(coarse))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert [one.module for one in found] == owners
    for one in found:
        peers = reason(ReplayCode.PEERS_AGREE, num_peers=3)
        assert any(peers in said.parts for said in one.evidence), one.evidence


@pytest.mark.parametrize("model", sorted(MODELS))
def test_no_fault_no_origin(model: str, tmp_path: Path) -> None:
    assert charged(tmp_path, model, []) == []


class Halved(torch.autograd.Function):
    """Gives what it is given, and back 0.9 of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * 0.9


class Headed(nn.Module):
    """Returns what its last part returned; the root's own code may stand between them."""

    def __init__(self, *, halved: bool = False, auxiliary: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 8)
        self.halved, self.auxiliary = halved, auxiliary

    def forward(self, x: torch.Tensor) -> Any:
        out = self.head(torch.tanh(self.body(x)))
        if self.halved:
            out = Halved.apply(out)
        return (out, 1e-3 * out.square().mean()) if self.auxiliary else out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("auxiliary", "factor", "halved", "module", "stage"),
    [
        (False, 1.01, False, "", Stage.LOSS),  # what reaches the only output comes from outside
        (False, 1.0, True, "", Stage.BACKWARD),  # other code of the root before it returns the same values
        (True, 1.01, False, "", Stage.LOSS),  # the root sends a gradient of its own too: two are outside it
    ],
)
def test_a_gradient_of_what_the_model_returns_comes_from_outside(
    auxiliary: bool,
    factor: float,
    halved: bool,
    module: str,
    stage: Stage,
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    def loss(scale: float) -> Callable[[Any, int], Any]:
        def of(model: Any, step: int) -> Any:
            given = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
            out = model(given.to(dtype))
            out, more = out if auxiliary else (out, 0.0)
            return (nn.functional.cross_entropy(out.float(), torch.arange(64) % 8) + more) * scale

        return of

    replayed, known, _ = replay(
        tmp_path,
        loop(lambda: Headed(auxiliary=auxiliary).to(dtype), loss(1.0)),
        loop(lambda: Headed(auxiliary=auxiliary, halved=halved).to(dtype), loss(factor)),
    )
    found = origins(replayed.path, known.path)
    assert [(one.module, one.stage) for one in found[:1]] == [(module, stage)], found


class Part(nn.Module):
    """Two layers with a factor between them."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.second, self.factor = nn.Linear(16, 16), nn.Linear(16, 16), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)) * self.factor)


@pytest.mark.parametrize(
    ("factor", "halved", "expected"),
    [
        (1.05, False, [("part", Stage.FORWARD)]),  # its weights' gradients follow
        (1.0, True, [("part.first", Stage.BACKWARD)]),  # what it returned agrees: the gradient is a fault
    ],
)
def test_a_module_that_shows_nothing_of_its_inside_is_one_place(
    factor: float, halved: bool, expected: list[tuple[str, Stage]], tmp_path: Path
) -> None:
    def train(factor: float, halved: bool) -> Callable[[], None]:
        def make() -> nn.Module:
            torch.manual_seed(0)
            model = nn.Sequential()
            model.add_module("part", Part(factor))
            model.add_module("head", nn.Linear(16, 4))
            model.part.compile(backend="eager")
            if halved:
                model.part.first.weight.register_hook(lambda gradient: gradient * 0.9)
            return model

        given = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
        return loop(make, lambda model, _: model(given).square().mean())

    replay(tmp_path, train(1.0, False), train(factor, halved))
    found = origins(tmp_path / "replay", tmp_path / "reference")
    assert [(one.module, one.stage) for one in found] == expected
