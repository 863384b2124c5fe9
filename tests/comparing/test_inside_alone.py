"""What differs inside a model and comes out nowhere is no fault; what comes out is one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import StagesCode, VerdictCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

LENGTHS = torch.tensor([9, 6, 8, 5])
IDS = torch.randint(1, 30, (4, 9), generator=torch.Generator().manual_seed(1))
SEEN = torch.arange(9)[None] < LENGTHS[:, None]
VALUES = frozenset({"module", "parameter", "labels", "configuration"})
LABELS = IDS.roll(-1, 1).masked_fill(~SEEN, -100)


class Adapter(nn.Module):
    """Adds a product of two small matrices, times 2."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.down, self.up, self.form = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False), form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "scale first":
            return x + self.up(self.down(2 * x))
        if self.form == "scale wrong":
            return x + self.up(self.down(2.02 * x))
        return x + 2 * self.up(self.down(x))


class Model(nn.Module):
    """An embedding, an adapter, a recurrent layer over rows with padding, and experts."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16, padding_idx=0 if form == "padding row" else None)
        self.adapter, self.layers, self.head = (
            Adapter(form),
            nn.LSTM(16, 16, batch_first=True),
            nn.Linear(16, 30),
        )
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.form = form

    def forward(self, ids: Tensor | None = None, x: Tensor | None = None) -> Tensor:
        x = self.adapter(self.embedding(ids) if x is None else x)
        if self.form in ("packed", "packed short"):
            lengths = LENGTHS - int(self.form == "packed short")
            rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x = nn.utils.rnn.pad_packed_sequence(self.layers(rows)[0], batch_first=True, total_length=9)[0]
        elif self.form == "step by step":
            parts, state = [], None
            for at in range(9):
                part, state = self.layers(x[:, at : at + 1], state)
                parts.append(part)
            x = torch.cat(parts, 1)
        else:
            x = self.layers(x)[0]
        first = (torch.arange(36).view(4, 9, 1) % 3 == 0).expand_as(x)
        if self.form == "all tokens":
            x = torch.where(first, self.experts[0](x), self.experts[1](x))
        else:
            own, others = (
                expert(x[at].view(-1, 16)) for expert, at in zip(self.experts, (first, ~first), strict=True)
            )
            x = x.masked_scatter(first, own).masked_scatter(~first, others)
        return self.head(x)


def trained(folder: Path, form: str) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trueup.Tracer(
        folder,
        level="L0",
        steps="0-1",
        store_values_of=frozenset({"module", "parameter", "labels", "configuration"}),
    ):
        for _ in range(2):
            logits = model(x=model.embedding(IDS)) if form == "embedded before" else model(IDS)
            F.cross_entropy(logits.flatten(0, 1), LABELS.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run", "plain")


@pytest.mark.parametrize("form", ["scale first", "packed", "step by step", "all tokens", "embedded before"])
def test_another_form_agrees(form: str, reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", form)
    for sides in ((run, reference), (reference, run)):
        assert compare(*sides).exit_code == 0
        assert diagnose(*sides, output=tmp_path / "out").outcome is Outcome.AGREE


@pytest.mark.parametrize("form", ["scale wrong", "packed short"])
def test_what_comes_out_differs(form: str, reference: Path, tmp_path: Path) -> None:
    """Twins: a scale that is a hundredth too large, and rows packed one token too short."""
    assert compare(trained(tmp_path / "run", form), reference).exit_code == 1


def test_it_is_said(reference: Path, tmp_path: Path) -> None:
    comparison = compare(trained(tmp_path / "run", "scale first"), reference)
    assert comparison.verdict.headline.code is VerdictCode.AGREE_BUT_INSIDE
    assert comparison.verdict.headline.number("num") == 16  # of two parts in two steps


def test_an_embedding_called_first_is_a_part_of_its_model(reference: Path, tmp_path: Path) -> None:
    traces = [Trace(trained(tmp_path / "run", "embedded before")), Trace(reference)]
    names = [set(trace.read(0, 0).calls["name"].to_list()) for trace in traces]
    assert names[0] == names[1]
    sizes = [[line["batch_size"] for line in trace.scalars(0)] for trace in traces]
    assert sizes == [[4, 4], [4, 4]]


def test_a_row_of_padding_is_named(reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "padding row")
    verdict = compare(run, reference).verdict
    assert (verdict.headline.code, verdict.headline.place("name")) == (
        VerdictCode.ARGUMENT_DIFFERS,
        "padding_idx",
    )
    finding = diagnose(run, reference, output=tmp_path / "out").findings[0]
    assert (finding.headline.code, finding.headline.place("name")) == (
        StagesCode.SETTING_DIFFERS,
        "padding_idx",
    )


class Placed(nn.Module):
    """Sees of its positions how far apart they are, and of its mask what is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        apart = (positions - positions[:, :1])[..., None] / 9
        return self.head(torch.tanh(self.embedding(ids) + apart) * (mask != 0)[..., None])


def placed(folder: Path, *, begins: int = 0, seen: int = 1) -> Path:
    torch.manual_seed(0)
    model = Placed()
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=VALUES):
        positions = (torch.arange(9) + begins).expand(4, 9)
        logits = model(ids=IDS, positions=positions, mask=SEEN.long() * seen)
        F.cross_entropy(logits.flatten(0, 1), LABELS.flatten()).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return folder


def test_positions_without_effect_are_said_and_no_difference(tmp_path: Path) -> None:
    """Positions of which distances alone are taken, and a mask with another number that hides the same."""
    clean = placed(tmp_path / "clean")
    comparison = compare(placed(tmp_path / "positions", begins=5), clean)
    assert comparison.exit_code == 0
    assert comparison.verdict.headline.code is VerdictCode.AGREE_BUT_INPUT
    assert comparison.verdict.headline.facts["names"] == ("positions",)
    assert compare(placed(tmp_path / "mask", seen=2), clean).exit_code == 0


class Packed(nn.Module):
    """Attention with rotary positions, whose documents a mask keeps apart; maybe positions also add."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.table = nn.Embedding(40, 16)
        self.added = added

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.added:
            x = x + self.added * self.table(positions)
        angle = positions[..., None] * 0.3 ** torch.arange(8)
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(y.float().unflatten(-1, (8, 2)).contiguous()) * turn
            ).flatten(-2)
            for y in (self.q(x), self.k(x))
        )
        weights = (q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1)
        return self.head(weights.to(x.dtype) @ self.v(x))


DOCUMENT = (torch.arange(9) >= 4).long().expand(4, 9)
RESTARTED = torch.arange(9) - 4 * DOCUMENT
COUNTED = torch.arange(9).expand(4, 9)
CAUSAL = torch.ones(9, 9, dtype=torch.bool).tril()
APART = (DOCUMENT[:, :, None] == DOCUMENT[:, None]) & CAUSAL


def packed(
    folder: Path, positions: Tensor, mask: Tensor, *, dtype: torch.dtype = torch.float32, added: float = 0.0
) -> Path:
    torch.manual_seed(0)
    model = Packed(added)
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=VALUES):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits = model(ids=IDS, positions=positions, mask=mask)
        F.cross_entropy(logits.float().flatten(0, 1), LABELS.flatten()).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return folder


POSITIONS: dict[str, tuple[Tensor, Tensor, float, int]] = {
    "documents counted on": (COUNTED, APART, 0.0, 0),
    "all counted from 3": (RESTARTED + 3, APART, 0.0, 0),
    "one document moved": (RESTARTED + 7 * DOCUMENT, APART, 0.0, 0),
    "documents see one another": (COUNTED, CAUSAL.expand(4, 9, 9), 0.0, 1),
    "the edge one token early": (torch.where(torch.arange(9) == 3, 0, RESTARTED), APART, 0.0, 1),
    "a table of positions, faint": (COUNTED, APART, 0.05, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("positions", "mask", "added", "status"), POSITIONS.values(), ids=POSITIONS)
def test_positions_of_packed_documents(
    positions: Tensor, mask: Tensor, added: float, status: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Twins: tokens that see other documents, one position that is off by one document, and a use that is not
    of distances, which in bfloat16 is within what rounding may do to gradients."""
    clean = packed(tmp_path / "clean", RESTARTED, mask, dtype=dtype, added=added)
    run = packed(tmp_path / "run", positions, mask, dtype=dtype, added=added)
    assert compare(run, clean).exit_code == status
    assert diagnose(run, clean, output=tmp_path / "out").exit_code == status


def preferred(folder: Path, weights: Tensor, *, dtype: torch.dtype) -> Path:
    """Chosen and rejected rows that begin with the same four tokens; the loss is of the difference of their
    sums, so that what the three labels among these send back cancels in every weight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 30))
    ids = torch.cat((IDS[:2], torch.cat((IDS[:2, :4], IDS[2:4, 4:]), 1)))
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=VALUES):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            logits = model(ids)
        chances = logits[:, :-1].double().log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(-1)
        chosen, rejected = (chances * weights.expand(4, 8)).sum(-1).chunk(2)
        (-F.logsigmoid(chosen - rejected)).mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    return folder


AT = torch.arange(8)
ANSWER = (AT >= 3).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("weights", "status"),
    [(torch.ones(8), 0), ((AT >= 1).float(), 0), ((AT >= 4).float(), 1), (ANSWER + 0.05 * (AT == 3), 1)],
    ids=["all", "two of the prompt", "one of the answer less", "one of the answer counts a little more"],
)
def test_a_mask_of_the_loss_whose_part_cancels(
    weights: Tensor, status: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    clean = preferred(tmp_path / "clean", ANSWER, dtype=dtype)
    run = preferred(tmp_path / "run", weights, dtype=dtype)
    comparison = compare(run, clean)
    assert comparison.exit_code == status
    assert diagnose(run, clean, output=tmp_path / "out").exit_code == status
    if not status:
        assert comparison.verdict.headline.facts["names"] == ("mask of the loss",)
