"""Labels where a mask hides tokens: padding that counts in the loss is no padding."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy, pad  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode  # noqa: E402
from trueup.types.codes.kinds import CauseCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.reason import reason  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

WORDS = 30
LENGTHS = torch.tensor([12, 9, 7, 10])


class Net(nn.Module):
    """Each token sees the shown ones before it; the loss is of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        x = self.words(input_ids) * attention_mask[..., None]
        logits = self.head(torch.tanh(x.cumsum(1)))
        return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1 : x.shape[1]].flatten())


def trained(folder: Path, *, labels: str, width: int = 12, fill: int = 0) -> Path:
    """``labels``: what padding has there: ``ignored``, ``counted``, or ``same`` for the ids themselves."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shown = torch.arange(width) < LENGTHS[:, None]
    ids = torch.where(shown, pad(torch.randint(3, WORDS, (4, 12)), (0, width - 12)), fill)
    given = {"ignored": torch.where(shown, ids, -100), "counted": ids.clone(), "same": ids}[
        labels if labels != "longer" else "ignored"
    ]
    if labels == "longer":
        given = pad(given, (0, 4), value=-100)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        model(input_ids=ids, attention_mask=shown.long(), labels=given).backward()
        optimizer.step()
    return folder


def diagnosed(tmp_path: Path, target: dict[str, object], reference: dict[str, object]) -> Diagnosis:
    pair = [
        trained(tmp_path / name, **run)  # type: ignore[arg-type]
        for name, run in (("target", target), ("reference", reference))
    ]
    return diagnose(*pair, output=tmp_path / "diagnosis")


@pytest.mark.parametrize("labels", ["counted", "same"])
@pytest.mark.parametrize("fill", [0, 7])
def test_padding_that_counts_is_told(labels: str, fill: int, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, {"labels": labels, "fill": fill}, {"labels": "ignored", "fill": fill})
    first = found.findings[0]
    assert first.stage is Stage.DATA
    assert first.headline == reason(BatchCode.ENDS_COUNTED, side="target", label=fill)


@pytest.mark.parametrize("changed", [{"width": 14}, {"fill": 9}])
def test_padding_that_counts_nowhere_is_no_difference(changed: dict[str, object], tmp_path: Path) -> None:
    found = diagnosed(tmp_path, {"labels": "ignored", **changed}, {"labels": "ignored"})
    assert (found.outcome, found.findings) == (Outcome.AGREE, ())


def test_ignored_labels_that_follow_each_row_are_no_difference(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, {"labels": "longer"}, {"labels": "ignored"})
    assert not [one for one in found.findings if one.stage is Stage.DATA]


def trained_outside(folder: Path, *, ignored: int, padding: int, prompt: int = 0) -> Path:
    """The loss is the program's own, of labels that padding has as well; the model is told of the padding.
    The first ``prompt`` labels of a row do not count."""
    torch.manual_seed(0)
    model = Scores()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shown = torch.arange(12) < LENGTHS[:, None]
    ids = torch.where(shown, torch.randint(3, WORDS, (4, 12)), 0)
    labels = torch.where(shown, ids, padding).masked_fill(torch.arange(12) <= prompt, -100)[:, 1:].flatten()
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        scores = model(input_ids=ids, attention_mask=shown.long())[:, :-1].flatten(0, 1)
        loss = cross_entropy(scores, labels, ignore_index=ignored, reduction="sum") / 44
        loss.backward()
        optimizer.step()
    return folder


class Scores(Net):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        x = self.words(input_ids) * attention_mask[..., None]
        scores: Tensor = self.head(torch.tanh(x.cumsum(1)))
        return scores


def test_padding_that_counts_in_a_loss_outside_the_model(tmp_path: Path) -> None:
    target = trained_outside(tmp_path / "t", ignored=-100, padding=0)
    reference = trained_outside(tmp_path / "r", ignored=-100, padding=-100)
    found = diagnose(target, reference, output=tmp_path / "diagnosis")
    assert found.outcome is Outcome.DIFFER
    assert found.findings[0].stage is Stage.DATA
    assert found.findings[0].headline == reason(BatchCode.ENDS_COUNTED, side="target", label=0)


def test_a_prompt_that_counts_in_a_loss_outside_the_model(tmp_path: Path) -> None:
    target = trained_outside(tmp_path / "t", ignored=-100, padding=-100)
    reference = trained_outside(tmp_path / "r", ignored=-100, padding=-100, prompt=3)
    found = diagnose(target, reference, output=tmp_path / "diagnosis").findings[0]
    assert found.headline == reason(BatchCode.STARTS_COUNTED, side="target")
    assert found.causes[0].code is CauseCode.PROMPT_COUNTED


def test_padding_that_two_losses_ignore_by_other_numbers(tmp_path: Path) -> None:
    target = trained_outside(tmp_path / "t", ignored=0, padding=0)
    reference = trained_outside(tmp_path / "r", ignored=-100, padding=-100)
    found = diagnose(target, reference, output=tmp_path / "diagnosis")
    assert (found.outcome, found.findings) == (Outcome.AGREE, ())
