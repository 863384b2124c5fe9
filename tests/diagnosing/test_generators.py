"""Modules that draw random numbers: from generators that stand alike, or not, or in one run alone."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import trueup  # noqa: E402
from tests.diagnosing.cases import case, normal  # noqa: E402
from trueup.adapters.torch.draws import standing  # noqa: E402
from trueup.diagnosing.evidence.facts import RunFacts  # noqa: E402
from trueup.diagnosing.evidence.run import drawn_by_ranks, run_facts, with_forms_of  # noqa: E402
from trueup.diagnosing.kinds import name_kinds  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.merging.trace import MergedTrace  # noqa: E402
from trueup.store import Trace, step_view  # noqa: E402
from trueup.types.codes.kinds import CauseCode, KindReason  # noqa: E402
from trueup.types.finding import Finding, KindCode  # noqa: E402
from trueup.types.layout import Layout  # noqa: E402

CHOICES: Any = {"level": "L0", "steps": "0", "store_values_of": frozenset({"module", "parameter", "labels"})}


class Attention(nn.Module):
    """Drops attention weights inside the fused function: no zeros show."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.view(4, 12, 2, 8).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scale = 0.5 if self.change == "scale" else None
        y = scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True, scale=scale)
        shown: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return shown


class Words(nn.Embedding):
    change = ""

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return x + 0.1 * torch.rand_like(x) if self.change == "noise" else x


class Net(nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.words, self.drop = Words(30, 16), nn.Dropout(0.1)
        self.words.change = change
        self.blocks = nn.ModuleList(Attention(change if n == 0 else "") for n in range(2))
        self.head = nn.Linear(16, 30)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.words(ids))
        if self.change == "draw":
            torch.rand(3)
        for block in self.blocks:
            x = x + block(x)
        scores: Tensor = self.head(x)
        return scores


def trained(folder: Path, change: str, *, captured: bool = True) -> list[float]:
    torch.manual_seed(0)
    model = Net(change)
    ids = torch.randint(0, 30, (4, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(2 if change == "seed" else 1)
    tracer = trueup.Tracer(folder, **CHOICES) if captured else nullcontext()
    losses = []
    with tracer:
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return [*losses, float(standing())]


def found(tmp_path: Path, change: str) -> list[Finding]:
    for name, one in (("t", change), ("r", "")):
        trained(tmp_path / name, one)
    return list(diagnose(tmp_path / "t", tmp_path / "r", output=tmp_path / "diagnosis").findings)


@pytest.mark.parametrize(
    ("change", "module", "code", "facts", "causes"),
    [
        ("draw", "blocks.0", KindReason.GENERATOR_ELSEWHERE, {"after": "drop"}, [CauseCode.DRAWN_BEFORE]),
        ("noise", "words", KindReason.DRAWS_IN_ONE_RUN, {"side": "target"}, [CauseCode.NOISE_ON_ONE_SIDE]),
    ],
)
def test_where_generators_part(
    tmp_path: Path, change: str, module: str, code: KindReason, facts: dict[str, str], causes: list[CauseCode]
) -> None:
    first = found(tmp_path, change)[0]
    assert first.module == module
    kind = next(one for one in first.kinds if one.name is KindCode.RANDOMNESS)
    assert kind.sentence.code is code
    assert facts.items() <= dict(kind.sentence.facts).items()
    assert [one.code for one in kind.causes] == causes


def test_another_seed_shows_at_the_first_module_that_draws(tmp_path: Path) -> None:
    first = found(tmp_path, "seed")[0]
    assert (first.module, first.kinds[0].name) == ("drop", KindCode.RANDOMNESS)


def test_draws_of_equal_generators_hide_nothing(tmp_path: Path) -> None:
    """A fault in a module that draws alike in both runs is no matter of its draws."""
    first = found(tmp_path, "scale")[0]
    assert first.module == "blocks.0"
    assert all(one.name is not KindCode.RANDOMNESS for one in first.kinds)


def test_looking_at_generators_moves_none(tmp_path: Path) -> None:
    assert trained(tmp_path / "t", "noise") == trained(tmp_path / "t", "noise", captured=False)
    line = Trace(tmp_path / "t").scalars(0)[0]
    assert [(name, moved) for name, _, _, moved in line["draws"]] == [
        ("words", True),
        ("drop", True),
        ("blocks.0", True),
        ("blocks.1", True),
        ("", True),
    ]


def test_draws_are_of_one_rank(tmp_path: Path) -> None:
    """Merged ranks and microbatches have other numbers."""
    trained(tmp_path / "t", "")
    trace = Trace(tmp_path / "t")
    assert "draws" in trace.scalars(0)[0]
    assert "draws" not in MergedTrace(trace, Layout(mesh={})).scalars(0)[0]


def test_a_place_in_the_stream_is_one_number() -> None:
    torch.manual_seed(3)
    first = standing()
    assert standing() == first
    torch.randn(1)  # an odd number of normal numbers keeps one for the next call
    second = standing()
    torch.randn(1)
    assert len({first, second, standing()}) == 3
    torch.manual_seed(3)
    assert standing() == first


@pytest.mark.parametrize(
    ("target", "reference", "shared"),
    [
        ([3, 3], [5, 6], True),
        ([3, 4], [5, 6], False),
        ([3, 3], [5, 5], False),  # of both runs, as tensor-parallel ranks draw
    ],
)
def test_ranks_that_draw_alike(target: list[int], reference: list[int], shared: bool) -> None:
    def run(stood: list[int]) -> RunFacts:
        draws = [{(0, "m"): (one,)} for one in stood]
        ranks = drawn_by_ranks(draws)
        return RunFacts(draws=draws[1], modules=frozenset({"m"}), drawn_by_ranks=ranks, world_size=2)

    x = normal(4, 6)
    evidence = case(x.roll(1, 0), x, module="m", target_run=run(target), reference_run=run(reference))
    kind = next(one for one in name_kinds(evidence) if one.name is KindCode.RANDOMNESS)
    assert kind.sentence.code is KindReason.GENERATOR_ELSEWHERE
    assert ([one.code for one in kind.causes] == [CauseCode.SHARED_STREAM]) is shared


def test_a_replay_takes_generators_from_the_run_by_itself(tmp_path: Path) -> None:
    trained(tmp_path / "t", "")
    free = Trace(tmp_path / "t")
    known = with_forms_of(RunFacts(), free, 0, 0)
    assert known.draws == run_facts(free, 0, 0, step_view(free, 0, 0)).draws
    assert "blocks.0" in known.modules
    assert known.draws
    kept = {(0, "drop"): (1,)}
    assert with_forms_of(RunFacts(draws=kept), free, 0, 0).draws == kept
