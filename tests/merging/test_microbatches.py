"""The same samples in other microbatches are the same step; other samples, or another loss, are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.comparing.run import compare
from trueup.merging.step import MergedStep
from trueup.merging.trace import MergedTrace
from trueup.store import Trace, step_view
from trueup.types.codes import MergingCode
from trueup.types.layout import Layout

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from trueup import Tracer  # noqa: E402

ROWS, WIDTH, CLASSES = 12, 5, 7


class Net(nn.Module):
    """Positions of no sample are made inside, as rotary embeddings make them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.position, self.out = nn.Linear(WIDTH, 8), nn.Embedding(1, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, count: int | None = None) -> torch.Tensor:
        hidden = torch.tanh(self.inner(x) + self.position(torch.zeros(1, dtype=torch.long)))
        if count is None:
            return F.cross_entropy(self.out(hidden), labels)
        return F.cross_entropy(self.out(hidden), labels, reduction="sum") / count


def trained(
    path: Path, microbatches: int, *, mean: bool = False, rows: int = ROWS, factor: float = 1.0
) -> Path:
    """Two steps; the loss counts samples of the step, or (``mean``) of the microbatch."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Tracer(path, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            x, labels = torch.randn(rows, WIDTH), torch.randint(0, CLASSES, (rows,))
            for part, wanted in zip(x.chunk(microbatches), labels.chunk(microbatches), strict=True):
                loss = model(part, wanted) if mean else model(part, wanted, rows)
                (factor * (loss / microbatches if mean else loss)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize(("target", "reference"), [(3, 2), (1, 3), (4, 2), (2, 1)])
@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_other_microbatches_of_the_same_samples_agree(
    tmp_path: Path, target: int, reference: int, mean: bool
) -> None:
    one = trained(tmp_path / "target", target, mean=mean)
    result = compare(one, trained(tmp_path / "reference", reference, mean=mean))
    assert result.exit_code == 0, result.summary["verdict"]


def test_a_gradient_that_is_not_divided_differs(tmp_path: Path) -> None:
    sides = trained(tmp_path / "target", 3, factor=3.0), trained(tmp_path / "reference", 2)
    assert compare(*sides).exit_code == 1


def test_fewer_samples_are_no_other_microbatches(tmp_path: Path) -> None:
    sides = trained(tmp_path / "target", 2, rows=8), trained(tmp_path / "reference", 3)
    assert compare(*sides).exit_code != 0


class Recurrent(nn.Module):
    """Its states have their samples along the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(CLASSES, WIDTH), nn.LSTM(WIDTH, 8, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, (state, _) = self.layer(self.table(ids))
        return self.out(hidden) + self.out(state[0])[:, None]


def recurrent(path: Path, microbatches: int) -> Path:
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Tracer(path, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            ids = torch.randint(0, CLASSES, (ROWS, 9))
            for part in ids.chunk(microbatches):
                logits = model(part[:, :-1])
                F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


def test_states_of_recurrent_layers_are_put_together_along_their_samples(tmp_path: Path) -> None:
    result = compare(recurrent(tmp_path / "target", 3), recurrent(tmp_path / "reference", 1))
    assert result.exit_code == 0, result.summary["verdict"]
    assert result.summary["counts"].get("undecided", 0) == 0


def test_an_update_is_read_beside_the_step_before_without_merging_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[int] = []
    usual = MergedTrace._merge

    def counted(self: MergedTrace, step: int) -> MergedStep:
        merged.append(step)
        return usual(self, step)

    monkeypatch.setattr(MergedTrace, "_merge", counted)
    trace = MergedTrace(Trace(trained(tmp_path / "run", 2)), Layout(mesh={}), fold=2)
    views = [step_view(trace, step, 0) for step in (0, 1)]
    for fqn in views[1].parameters:
        for view in views:
            assert view.sample(view.parameter(fqn, "optimizer", "state.exp_avg")) is not None
    assert merged == [0, 1]


class Turned(nn.Module):
    """Positions as wide as each microbatch, one row for all samples; a layer makes their angles."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.angles, self.out = nn.Embedding(30, 16), Angles(), nn.Linear(16, 30)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        turned = self.angles(torch.arange(ids.shape[1])[None])
        hidden = (self.table(ids) * turned * mask[..., None]).cumsum(1)
        return self.out(torch.tanh(hidden))


class Angles(nn.Module):
    """Of positions, without a weight."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.cos(positions[..., None] * torch.linspace(0.1, 1.0, 16))


def padded(path: Path, rows: int, *, kind: str = "") -> Path:
    """Six rows a step of other lengths, so many to a microbatch, padded to the longest of each; the loss
    counts tokens of the step. ``mean``: of the microbatch; ``twice``: the first one counts twice; ``turned``:
    the last one comes first."""
    torch.manual_seed(0)
    model = Turned()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Tracer(path, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            make = torch.Generator().manual_seed(step)
            given = [torch.randint(1, 30, (n,), generator=make) for n in (9, 12, 7, 10, 8, 11)]
            total = sum(len(row) - 1 for row in given)
            starts = range(0, len(given), rows)
            for at in reversed(starts) if kind.startswith("turned") else starts:
                part = given[at : at + rows]
                ids = nn.utils.rnn.pad_sequence(part, batch_first=True)
                logits = model(ids, (ids > 0).long())[:, :-1]
                wanted = ids[:, 1:].flatten()
                count = total if kind != "mean" else int((wanted > 0).sum()) * len(given) // rows
                loss = F.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=0, reduction="sum") / count
                (loss * (2 if kind.endswith("twice") and not at else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize(("rows", "kind", "agrees"), [(2, "", True), (2, "mean", False), (2, "twice", False)])
def test_microbatches_that_are_padded_to_other_widths(
    rows: int, kind: str, agrees: bool, tmp_path: Path
) -> None:
    """What cannot be put together is settled by the sums of the step alone."""
    result = compare(padded(tmp_path / "target", rows, kind=kind), padded(tmp_path / "reference", 3))
    assert result.exit_code == (0 if agrees else 1), result.summary["verdict"]


@pytest.mark.parametrize(("kind", "agrees"), [("turned", True), ("turned twice", False)])
def test_microbatches_in_another_order(kind: str, agrees: bool, tmp_path: Path) -> None:
    result = compare(padded(tmp_path / "target", 2, kind=kind), padded(tmp_path / "reference", 2))
    assert result.exit_code == (0 if agrees else 1), result.summary["verdict"]
    assert MergingCode.MICROBATCH_ORDER in str(result.summary["layouts_reasons"])


class Counted(nn.Module):
    """Counts the shown tokens of its microbatch and its rows, and returns a number beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(CLASSES, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor, shown: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = shown.sum() == shown.numel()
        rows = torch.arange(ids.shape[0])[:, None]
        hidden = F.layer_norm(self.table(ids[rows, torch.arange(ids.shape[1])]), (8,), self.norm.weight)
        hidden = hidden if whole else hidden * shown[..., None]
        return self.out(hidden), hidden.square().mean()


def counted(path: Path, microbatches: int, level: str, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = Counted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Tracer(path, level=level, steps="0-1", task="statistics"):
        for _ in range(2):
            ids, shown = torch.randint(0, CLASSES, (ROWS, 9)), (torch.rand(ROWS, 9) < 0.7).float()
            for part, mask in zip(ids.chunk(microbatches), shown.chunk(microbatches), strict=True):
                logits, beside = model(part, mask)
                loss = F.cross_entropy(logits.flatten(0, 1), part.flatten(), reduction="sum")
                (loss / ROWS + scale * beside / microbatches).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(("target", "reference"), [(4, 2), (3, 1)])
def test_what_a_microbatch_counts_of_itself_is_no_copy(
    level: str, target: int, reference: int, tmp_path: Path
) -> None:
    sides = counted(tmp_path / "target", target, level), counted(tmp_path / "reference", reference, level)
    assert compare(*sides).exit_code == 0


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_term_of_another_weight_differs_between_microbatches(level: str, tmp_path: Path) -> None:
    target = counted(tmp_path / "target", 4, level, scale=1.5)
    assert compare(target, counted(tmp_path / "reference", 2, level)).exit_code == 1
