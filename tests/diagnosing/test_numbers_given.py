"""One number that a model is given is no batch: it is told by its value, and by what of the step that is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import DivisorCode, StagesCode  # noqa: E402
from trueup.types.codes.kinds import KindReason  # noqa: E402
from trueup.types.finding import KindCode, Stage  # noqa: E402

KEPT = frozenset({"module", "labels"})
MICROBATCHES, ROWS, WIDTH, WORDS = 2, 3, 10, 23
Divide = Callable[[int, int], float]
"""tokens of the microbatch, tokens of the step -> what the model is to divide by"""


class Net(nn.Module):
    """Makes its loss itself, as models with ``num_items_in_batch`` do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, ids: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        logits = self.head(self.words(ids)).flatten(0, 1)
        return F.cross_entropy(logits, labels.flatten(), reduction="sum") / items


def of_step(own: int, step: int) -> float:
    return step


def of_microbatch_times(own: int, step: int) -> float:
    return own * MICROBATCHES


def of_microbatch(own: int, step: int) -> float:
    return own


def of_nothing(own: int, step: int) -> float:
    return 77.5


def train(folder: Path, divide: Divide, seed: int) -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=KEPT):
        for step in range(2):
            draw = torch.Generator().manual_seed(step + 10 * seed)
            batches = []
            for _ in range(MICROBATCHES):
                ids = torch.randint(WORDS, (ROWS, WIDTH), generator=draw)
                kept = torch.arange(WIDTH) >= torch.randint(1, WIDTH - 3, (ROWS, 1), generator=draw)
                batches.append((ids, torch.where(kept, ids.roll(-1, 1), -100)))
            counts = [int((labels != -100).sum()) for _, labels in batches]
            for (ids, labels), own in zip(batches, counts, strict=True):
                model(ids, labels, items=torch.tensor(divide(own, sum(counts)))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Divide, Divide, int], Diagnosis]:
    @cache
    def run(divide: Divide, seed: int) -> Path:
        return train(tmp_path_factory.mktemp("run") / "trace", divide, seed)

    def pair(target: Divide, reference: Divide, seed: int) -> Diagnosis:
        return diagnose(run(target, seed), run(reference, seed), output=tmp_path_factory.mktemp("out"))

    return pair


WAYS = {
    of_step: DivisorCode.COUNTED_OF_STEP,
    of_microbatch_times: DivisorCode.COUNTED_TIMES,
    of_microbatch: DivisorCode.COUNTED,
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("target", "reference"), [(of_microbatch, of_step), (of_step, of_microbatch_times)])
def test_both_numbers_are_named(
    target: Divide, reference: Divide, seed: int, diagnosed: Callable[..., Diagnosis]
) -> None:
    diagnosis = diagnosed(target, reference, seed)
    data = next(one for one in diagnosis.stages if one.stage is Stage.DATA)
    finding = diagnosis.findings[0]
    assert not data.findings
    assert finding.headline.code is StagesCode.NUMBER_GIVEN
    assert finding.headline.place("name") == "items"
    assert (finding.step, finding.kinds[0].name) == (0, KindCode.WRONG_SCALE)
    assert [part.code for part in finding.kinds[0].sentence.parts] == [WAYS[target], WAYS[reference]]


def test_a_number_of_no_known_meaning_is_told_as_it_is(diagnosed: Callable[..., Diagnosis]) -> None:
    kind = diagnosed(of_nothing, of_step, 0).findings[0].kinds[0]
    assert (kind.name, kind.sentence.code) == (KindCode.CONSTANT_ARGUMENT, KindReason.NUMBER_GIVEN)
    assert kind.sentence.number("target") == 77.5


def test_the_same_numbers_are_no_finding(diagnosed: Callable[..., Diagnosis]) -> None:
    assert diagnosed(of_step, of_step, 0).exit_code == 0
