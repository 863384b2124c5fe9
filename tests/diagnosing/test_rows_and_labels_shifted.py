"""Rows that one side begins with one token more, with what follows them, and labels that a loss pairs with
other positions: programs of two kinds, each with its near misses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.batches import edges_follow, put_in_front  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode, StagesCode  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.finding import Finding  # noqa: E402

BEGIN, PAD, IGNORED = 1, 0, -100
Batch = dict[str, Tensor]


class Masked(nn.Module):
    """A language model that is given a mask and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        hidden = (self.emb(input_ids) * attention_mask[..., None]).cumsum(1) / 4
        logits = self.head(torch.tanh(hidden))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


def rows_of(step: int) -> list[Tensor]:
    """Of other lengths, without a begin token."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randint(2, 64, (7 + 2 * row,), generator=generator) for row in range(4)]


def batch_of(
    rows: list[Tensor], *, begins: int = 1, prompt: int = 3, token: Callable[[int], int] = lambda _: BEGIN
) -> Batch:
    """Padded to 18 tokens, each row with so many begin tokens; the first ``prompt`` labels do not count."""
    begun = [torch.cat([torch.full((begins,), token(at)), row]) for at, row in enumerate(rows)]
    ids = torch.stack([F.pad(row, (0, 18 - len(row)), value=PAD) for row in begun])
    mask = (ids != PAD).long()
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, :prompt] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def trained(folder: Path, batches: Callable[[int], Batch]) -> Path:
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            model(**batches(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def found(tmp_path: Path, batches: Callable[[int], Batch], others: Callable[[int], Batch]) -> list[Finding]:
    run, clean = trained(tmp_path / "run", batches), trained(tmp_path / "clean", others)
    return list(diagnose(run, clean, output=tmp_path / "out").findings)


@pytest.mark.parametrize(
    ("begins", "side", "again"),
    [((2, 1), "target", True), ((0, 1), "reference", False), ((1, 0), "target", False)],
)
def test_a_begin_token_twice_or_left_out_is_one_finding(
    begins: tuple[int, int], side: str, again: bool, tmp_path: Path
) -> None:
    own, other = (lambda step, n=n: batch_of(rows_of(step), begins=n) for n in begins)
    (finding,) = found(tmp_path, own, other)
    said = finding.headline
    assert (said.code, said.place("side"), bool(said.facts["again"])) == (BatchCode.FRONT, side, again)
    assert list(said.facts["tokens"]) == [str(BEGIN)]
    follow = [one for one in finding.evidence if one.code is StagesCode.INPUTS_FOLLOW]
    assert [list(one.facts["names"]) for one in follow] == [["attention_mask", "labels"]]


def test_prompts_masked_by_tokens_follow_as_well(tmp_path: Path) -> None:
    (finding,) = found(
        tmp_path,
        lambda step: batch_of(rows_of(step), begins=2, prompt=4),
        lambda step: batch_of(rows_of(step), begins=1, prompt=3),
    )
    assert finding.headline.code is BatchCode.FRONT


def test_another_mask_of_labels_does_not_follow_from_shifted_rows(tmp_path: Path) -> None:
    findings = found(
        tmp_path,
        lambda step: batch_of(rows_of(step), begins=2, prompt=6),
        lambda step: batch_of(rows_of(step), begins=1, prompt=3),
    )
    assert findings[0].headline.code is BatchCode.FRONT
    assert [one.site for one in findings if "labels" in str(one.site)]


def test_rows_with_tokens_of_their_own_in_front_are_shifted(tmp_path: Path) -> None:
    (finding, *_) = found(
        tmp_path,
        lambda step: batch_of(rows_of(step), begins=1, token=lambda at: 5 + at),
        lambda step: batch_of(rows_of(step), begins=0),
    )
    assert finding.headline.code is StagesCode.BATCH
    assert finding.headline.place("relation") == "shift"


def test_what_stands_in_front() -> None:
    rows = np.arange(24).reshape(3, 8) + 2
    begun = np.concatenate([np.ones((3, 1), int), rows[:, :-1]], axis=1)
    assert put_in_front(begun[:1], rows[:1], -1) is None, "one row says nothing of every row"
    assert put_in_front(np.roll(rows, 1, axis=1), rows, -1) is None


@pytest.mark.parametrize(
    ("own", "other", "follows"),
    [
        ("0011100", "0111000", True),
        ("0111100", "0111000", True),
        ("0111110", "0111000", False),
        ("0011010", "0111000", False),
        ("0011111", "0111111", True),
        ("0000000", "0111000", False),
    ],
    ids=["moved", "end moved", "by two", "another run", "to the end", "nothing"],
)
def test_edges_stay_or_move_with_tokens(own: str, other: str, follows: bool) -> None:
    sides = [np.array([[digit == "1" for digit in row]]) for row in (own, other)]
    assert edges_follow(sides[0], sides[1], -1) is follows


# -- labels and logits ------------------------------------------


class Translator(nn.Module):
    """Decodes what stands ahead of each label; makes the decoder's ids itself."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.emb, self.dec = nn.Embedding(words, width), nn.Embedding(words, width)
        self.head = nn.Linear(width, words)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        given = F.pad(labels.clamp(min=0), (1, 0))[:, :-1]
        context = self.emb(input_ids).mean(1, keepdim=True)
        return self.head(torch.tanh(self.dec(given).cumsum(1) / 3 + context))


class Tagger(nn.Module):
    """A class for each frame of a signal."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(3, width), nn.Linear(width, words)

    def forward(self, frames: Tensor) -> Tensor:
        return self.out(torch.tanh(self.into(frames)))


Loss = Callable[[Tensor, Tensor], Tensor]


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def shifted_by(num: int) -> Loss:
    return lambda logits, labels: mean(logits[:, :-num], labels[:, num:])


def first_left_out(logits: Tensor, labels: Tensor) -> Tensor:
    return mean(logits[:, 1:], labels[:, 1:])


def of_translator(folder: Path, loss: Loss) -> Path:
    return _of(folder, Translator(50, 12), loss, rows=3, length=9, words=50, is_text=True)


def of_tagger(folder: Path, loss: Loss) -> Path:
    return _of(folder, Tagger(11, 20), loss, rows=2, length=20, words=11, is_text=False)


def _of(
    folder: Path, model: nn.Module, loss: Loss, *, rows: int, length: int, words: int, is_text: bool
) -> Path:
    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for step in range(2):
            generator = torch.Generator().manual_seed(step)
            labels = torch.randint(1, words, (rows, length), generator=generator)
            labels[1:, length - 3 :] = IGNORED
            if is_text:
                given = (torch.randint(1, words, (rows, 7), generator=generator), labels)
            else:
                given = (torch.randn(rows, length, 3, generator=generator),)
            loss(model(*given), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.mark.parametrize("program", [of_translator, of_tagger])
@pytest.mark.parametrize(
    ("loss", "shift"), [(shifted_by(1), -1), (shifted_by(2), -2), (first_left_out, None)]
)
def test_a_loss_that_pairs_labels_with_other_positions(
    program: Callable[[Path, Loss], Path], loss: Loss, shift: int | None, tmp_path: Path
) -> None:
    run, clean = program(tmp_path / "run", loss), program(tmp_path / "clean", mean)
    findings = diagnose(run, clean, output=tmp_path / "out").findings
    said = [one for finding in findings for one in (finding.headline, *finding.evidence)]
    codes = (BatchCode.SHIFTED_IN_LOSS, KindReason.LABELS_SHIFTED)
    shifts = [one.number("shift") for one in said if one.code in codes]
    assert set(shifts) == (set() if shift is None else {shift}), said
