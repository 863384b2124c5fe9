"""The same rows in another order, padded elsewhere or dealt out otherwise are one batch; others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.result import Comparison  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import NoteCode, StagesCode, VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

WIDTH, VOCABULARY, TOKENS = 16, 40, 11
LENGTHS = (11, 7, 9, 4, 8, 10)
Batch = dict[str, Tensor]
Batches = Callable[[int], list[Batch]]


class Model(nn.Module):
    """One layer of masked causal attention, positions looked up, a mean over the labels that count."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor, positions: Tensor | None = None) -> Tensor:
        positions = torch.arange(ids.shape[1])[None] if positions is None else positions
        x = self.emb(ids) + self.pos(positions)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        seen = causal[None] & mask[:, None, :].bool()
        scores = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
        logits = self.head(x + self.made(scores, seen, v))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")

    def made(self, scores: Tensor, seen: Tensor, v: Tensor) -> Tensor:
        return scores.softmax(-1) @ v


class Blind(Model):
    """A query that may see nothing makes nothing, not the mean of all it may not see."""

    def made(self, scores: Tensor, seen: Tensor, v: Tensor) -> Tensor:
        return (scores.softmax(-1) * seen) @ v


class Biased(Blind):
    """What it makes of other queries differs as well."""

    def made(self, scores: Tensor, seen: Tensor, v: Tensor) -> Tensor:
        return 1.001 * super().made(scores, seen, v)


def rows(step: int) -> Batch:
    """Six rows, padded on the right."""
    make = torch.Generator().manual_seed(step)
    ids = torch.randint(1, VOCABULARY, (len(LENGTHS), TOKENS), generator=make)
    mask = (torch.arange(TOKENS)[None] < torch.tensor(LENGTHS)[:, None]).long()
    positions = torch.arange(TOKENS).expand(len(LENGTHS), -1) * mask
    labels = torch.where(mask.bool(), ids.roll(-1, 1), -100)
    return {"ids": ids * mask, "mask": mask, "positions": positions, "labels": labels}


def left(batch: Batch, more: int = 0) -> Batch:
    """The same, padded on the left, to a longer row."""
    found = {}
    for name, values in batch.items():
        fill = -100 if name == "labels" else 0
        laid = torch.full((len(values), TOKENS + more), fill)
        for row, length in enumerate(batch["mask"].sum(1).tolist()):
            laid[row, TOKENS + more - length :] = values[row, :length]
        found[name] = laid
    return found


def pick(batch: Batch, order: list[int]) -> Batch:
    return {name: values[order] for name, values in batch.items()}


def trained(
    folder: Path,
    batches: Batches,
    *,
    factor: float = 1.0,
    bias: float = 0.0,
    make: type[Model] = Model,
    dtype: torch.dtype = torch.float32,
    evaluated: Batches | None = None,
) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make().to(dtype)
    if bias:
        model.norm.register_forward_hook(lambda _module, _args, out: out * (1 + bias))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            with torch.no_grad():
                for batch in () if evaluated is None else evaluated(step):
                    model.eval()(**batch)
            model.train()
            for batch in batches(step):
                (factor * model(**batch) / 40).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def whole(step: int) -> list[Batch]:
    return [rows(step)]


def turned(step: int) -> list[Batch]:
    return [pick(rows(step), [4, 0, 5, 2, 1, 3])]


def on_the_left(step: int) -> list[Batch]:
    return [left(rows(step))]


def longer_and_turned(step: int) -> list[Batch]:
    return [pick(left(rows(step), more=3), [1, 0, 3, 2, 5, 4])]


def in_two(step: int) -> list[Batch]:
    return [pick(rows(step), [0, 1, 2]), pick(rows(step), [3, 4, 5])]


def in_three_and_turned(step: int) -> list[Batch]:
    return [pick(rows(step), [0, 3]), pick(rows(step), [5, 1]), pick(rows(step), [4, 2])]


def dealt_to_others(step: int) -> list[Batch]:
    return [pick(rows(step), [0, 2, 4]), pick(rows(step), [1, 3, 5])]


def in_three(step: int) -> list[Batch]:
    return [pick(rows(step), [0, 1]), pick(rows(step), [2, 3]), pick(rows(step), [4, 5])]


def one_dealt_as_before(step: int) -> list[Batch]:
    return [pick(rows(step), [0, 3]), pick(rows(step), [2, 1]), pick(rows(step), [4, 5])]


def one_row_another(step: int) -> list[Batch]:
    batch = pick(rows(step), [4, 0, 5, 2, 1, 3])
    batch["ids"][2, 1] = batch["ids"][2, 1] % (VOCABULARY - 1) + 1
    return [batch]


def labels_in_place(step: int) -> list[Batch]:
    """A fault: the rows are turned, their labels are not."""
    return [{**pick(rows(step), [4, 0, 5, 2, 1, 3]), "labels": rows(step)["labels"]}]


def positions_of_padding(step: int) -> list[Batch]:
    """A fault: padding on the left, and positions count it."""
    batch = left(rows(step))
    return [{**batch, "positions": torch.arange(TOKENS).expand(len(LENGTHS), -1).clone()}]


def by_default(step: int) -> list[Batch]:
    """Positions are the model's own."""
    batch = rows(step)
    del batch["positions"]
    return [batch]


def by_default_longer(step: int) -> list[Batch]:
    """The same, every row padded to a multiple of eight."""
    more = 16 - TOKENS
    fill = {"ids": 0, "mask": 0, "labels": -100}
    return [{k: F.pad(v, (0, more), value=fill[k]) for k, v in batch.items()} for batch in by_default(step)]


def by_default_on_the_left(step: int) -> list[Batch]:
    """A fault: padding on the left, and the model's own positions count it."""
    batch = left(rows(step))
    del batch["positions"]
    return [batch]


def padding_seen(step: int) -> list[Batch]:
    """A fault: padding on the left, which the mask shows."""
    batch = left(rows(step))
    return [{**batch, "mask": torch.ones_like(batch["mask"])}]


def left_and_counted(step: int) -> list[Batch]:
    """Padding on the left has labels: somebody looks at what it makes."""
    batch = left(rows(step))
    return [{**batch, "labels": batch["labels"].masked_fill(batch["mask"] == 0, 0)}]


def padding_counted(step: int) -> list[Batch]:
    """A fault: longer rows, whose padding has labels."""
    (batch,) = by_default_longer(step)
    return [{**batch, "labels": batch["labels"].masked_fill(batch["mask"] == 0, 0)}]


def padding_counted_in_place(step: int) -> list[Batch]:
    """A fault: padding has labels, and nothing else differs."""
    (batch,) = by_default(step)
    return [{**batch, "labels": batch["labels"].masked_fill(batch["mask"] == 0, 0)}]


def other_padding_in_place(step: int) -> list[Batch]:
    """Padding is another id, which the mask hides and no label names."""
    (batch,) = by_default(step)
    return [{**batch, "ids": batch["ids"].masked_fill(batch["mask"] == 0, 3)}]


def trimmed_in_two(step: int) -> list[Batch]:
    """Each microbatch as wide as its longest row."""
    found = []
    for batch in in_two(step):
        width = int(batch["mask"].sum(1).max())
        found.append({name: values[:, :width].clone() for name, values in batch.items()})
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clean")
    return {
        batches.__name__: trained(folder / batches.__name__, batches)
        for batches in (whole, in_two, by_default)
    }


def is_noted(comparison: Comparison) -> bool:
    return any(note.code is NoteCode.ROWS_LAID_OTHERWISE for note in comparison.content.notes)


@pytest.mark.parametrize("batches", [turned, on_the_left, longer_and_turned])
def test_the_same_rows_agree(batches: Batches, runs: dict[str, Path], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", batches)
    comparison = compare(run, runs["whole"])
    assert (comparison.exit_code, is_noted(comparison)) == (0, True)
    assert diagnose(run, runs["whole"], output=tmp_path / "out").outcome is Outcome.AGREE


@pytest.mark.parametrize("batches", [dealt_to_others, in_three_and_turned, turned])
def test_rows_dealt_to_other_microbatches_agree(
    batches: Batches, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", batches)
    assert compare(run, runs["in_two"]).exit_code == 0
    assert diagnose(run, runs["in_two"], output=tmp_path / "out").outcome is Outcome.AGREE


def test_what_is_made_of_other_rows_is_left_open_call_by_call(tmp_path: Path) -> None:
    """An evaluation deals out the rows of the step otherwise; a call with the same rows is compared."""
    for name, evaluated in {"target": one_dealt_as_before, "reference": in_three}.items():
        trained(tmp_path / name, whole, evaluated=evaluated)
    comparison = compare(tmp_path / "target", tmp_path / "reference")
    dealt = pl.col("reason_code").cast(pl.String).eq_missing("record.rows_dealt_otherwise")
    frame = comparison.frame().with_columns(dealt.alias("dealt"))
    evaluated = frame.filter((pl.col("mode") == "eval") & (pl.col("phase") == "forward"))
    model = evaluated.filter(pl.col("module").cast(pl.String) == "")
    share = dict(model.group_by("ordinal").agg(pl.col("dealt").mean()).iter_rows())
    assert comparison.exit_code == 0
    assert share == {0: 1, 1: 1, 2: 0, 3: 1, 4: 1, 5: 0}
    assert frame["dealt"].sum() == evaluated["dealt"].sum()


@pytest.mark.parametrize("batches", [one_row_another, labels_in_place, positions_of_padding])
def test_other_rows_differ(batches: Batches, runs: dict[str, Path], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", batches)
    comparison = compare(run, runs["whole"])
    assert (comparison.exit_code, is_noted(comparison)) == (1, False)
    assert diagnose(run, runs["whole"], output=tmp_path / "out").findings[0].stage is Stage.DATA


@pytest.mark.parametrize("batches", [turned, on_the_left])
def test_a_fault_behind_rows_in_another_order_is_found_where_it_is(
    batches: Batches, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", batches, bias=1e-3)
    comparison = compare(run, runs["whole"])
    assert (comparison.exit_code, comparison.verdict.owner, comparison.verdict.phase) == (
        1,
        "norm",
        "forward",
    )


def test_a_loss_of_another_size_differs_in_any_order(runs: dict[str, Path], tmp_path: Path) -> None:
    comparison = compare(trained(tmp_path / "run", turned, factor=1.01), runs["whole"])
    assert (comparison.exit_code, comparison.verdict.phase) == (1, "loss")


def test_positions_that_count_from_0_are_those_of_the_model(runs: dict[str, Path], tmp_path: Path) -> None:
    """Also where they are given row by row on one side, since rows are padded on the left there."""
    for batches in (on_the_left, by_default_longer):
        run = trained(tmp_path / batches.__name__, batches)
        comparison = compare(run, runs["by_default"])
        assert comparison.verdict.outcome is Outcome.AGREE, comparison.verdict
        assert diagnose(run, runs["by_default"], output=tmp_path / "out").outcome is Outcome.AGREE


@pytest.mark.parametrize("batches", [by_default_on_the_left, padding_seen, padding_counted])
def test_padding_that_counts_differs(batches: Batches, runs: dict[str, Path], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", batches)
    assert compare(run, runs["by_default"]).exit_code == 1
    assert diagnose(run, runs["by_default"], output=tmp_path / "out").exit_code == 1


def test_labels_of_padding_are_what_differs_first(runs: dict[str, Path], tmp_path: Path) -> None:
    """Though the mask hides these tokens; another id of padding there is no difference."""
    verdict = compare(trained(tmp_path / "counted", padding_counted_in_place), runs["by_default"]).verdict
    assert verdict.headline == reason(VerdictCode.DATA_DIFFERS, step=0, name="labels")
    same = compare(trained(tmp_path / "other", other_padding_in_place), runs["by_default"])
    assert same.verdict.outcome is Outcome.AGREE


def test_microbatches_of_other_widths_are_no_fault(runs: dict[str, Path], tmp_path: Path) -> None:
    """What they compute is not put together; their losses and gradients are."""
    run = trained(tmp_path / "run", trimmed_in_two)
    assert compare(run, runs["whole"]).verdict.outcome is Outcome.AGREE
    diagnosis = diagnose(run, runs["whole"], output=tmp_path / "out")
    assert diagnosis.outcome is Outcome.AGREE
    data = next(stage for stage in diagnosis.stages if stage.stage is Stage.DATA)
    assert data.conclusion.code is StagesCode.BATCH_IN_PARTS


def test_a_wrong_gradient_in_microbatches_of_other_widths_differs(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", trimmed_in_two, bias=1e-3)
    assert compare(run, runs["whole"]).exit_code == 1


@pytest.mark.parametrize(
    ("batches", "make", "dtype", "exit_code"),
    [
        (on_the_left, Blind, torch.float32, 0),
        (on_the_left, Biased, torch.float32, 1),
        (left_and_counted, Blind, torch.float32, 1),
        (on_the_left, Blind, torch.bfloat16, 0),
        (left_and_counted, Blind, torch.bfloat16, 1),
    ],
    ids=["hidden", "shown too", "counted", "hidden, bfloat16", "counted, bfloat16"],
)
def test_what_padding_makes_is_no_difference_where_nobody_looks(
    batches: Batches, make: type[Model], dtype: torch.dtype, exit_code: int, tmp_path: Path
) -> None:
    """Padding on the left sees nothing: attention makes of it what the kernel happens to make."""
    reference = trained(tmp_path / "reference", batches, dtype=dtype)
    run = trained(tmp_path / "run", batches, make=make, dtype=dtype)
    comparison = compare(run, reference)
    assert comparison.exit_code == exit_code
    noted = any(note.code is NoteCode.HIDDEN_TOKENS_LEFT_OUT for note in comparison.content.notes)
    assert noted or exit_code
