"""What differs beside equal batches, and after the first step, told as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.ledger import Clipping  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.stages.clipping import _norm_difference  # noqa: E402
from trueup.types.codes import BatchCode, ClippingCode, StagesCode, WeightsCode  # noqa: E402
from trueup.types.finding import KindCode, Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

WORDS, WIDTH, LENGTH, ROWS = 30, 16, 10, 4
KEPT = frozenset({"module", "parameter", "labels", "configuration"})
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 6, [0] * 7 + [1] * 3, [0] * 2 + [1] * 8, [0] * 10])
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
INSIDE = CAUSAL & (DOCUMENTS[:, :, None] == DOCUMENTS[:, None, :])
Mask = Callable[[], Tensor]
Loss = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.norm, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WORDS)
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        if attention_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        else:
            scores = scores + attention_mask
        x = x + scores.softmax(-1) @ v
        return self.head(self.norm(x.flatten(0, 1)).view_as(x)) / self.temperature


def additive(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def documents() -> Tensor:
    return additive(INSIDE)


def written_otherwise() -> Tensor:
    return INSIDE


def across() -> Tensor:
    return additive(CAUSAL.expand(ROWS, -1, -1))


def plain(model: Net, ids: Tensor) -> Tensor:
    made = model(ids, documents())
    return F.cross_entropy(made[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def preference(second: Tensor, model: Net, ids: Tensor) -> Tensor:
    """Two answers, each weighed by its mask."""
    first = torch.arange(LENGTH - 1) < torch.tensor([[9], [5], [7], [3]])
    sums = []
    for rows, mask in ((ids, first), (ids.flip(0), second)):
        logits = model(rows, documents())[:, :-1].log_softmax(-1)
        sums.append((logits.gather(2, rows[:, 1:, None])[..., 0] * mask.float()).sum(-1))
    return -F.logsigmoid(sums[0] - sums[1]).mean()


OF_FIRST = torch.arange(LENGTH - 1) < torch.tensor([[9], [5], [7], [3]])
OF_SECOND = torch.arange(LENGTH - 1) < torch.tensor([[4], [9], [6], [8]])


def trained(
    folder: Path,
    *,
    mask: Mask | None = None,
    loss: Loss = plain,
    temperature: float = 2.0,
    momentum: float = 0.1,
) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net(temperature)
    model.norm.momentum = momentum
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=KEPT):
        for step in range(2):
            ids = torch.randint(1, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))
            if mask is None:
                made = loss(model, ids)
            else:
                made = F.cross_entropy(
                    model(ids, attention_mask=mask())[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
                )
            made.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model.eval()(ids, documents())
            model.train()
    return folder


def compared(folder: Path, target: dict[str, object], reference: dict[str, object]) -> Diagnosis:
    runs = [trained(folder / name, **of) for name, of in (("run", target), ("reference", reference))]  # type: ignore[arg-type]
    return diagnose(*runs, output=folder / "out")


def test_a_mask_that_joins_documents_is_another_input_of_the_first_step(tmp_path: Path) -> None:
    diagnosis = compared(tmp_path, {"mask": across}, {"mask": documents})
    first = diagnosis.findings[0]
    assert (first.stage, first.step, first.headline.code) == (Stage.DATA, 0, StagesCode.INPUT_DIFFERS)
    assert (first.headline.place("name"), first.kinds[0].name) == ("attention_mask", KindCode.WRONG_MASK)


def test_a_mask_in_another_form_is_none(tmp_path: Path) -> None:
    assert compared(tmp_path, {"mask": written_otherwise}, {"mask": documents}).outcome is Outcome.AGREE


def of_masks(second: Tensor) -> dict[str, object]:
    return {"loss": lambda model, ids: preference(second, model, ids)}


def test_the_mask_of_another_answer_is_told_as_a_mask(tmp_path: Path) -> None:
    first = compared(tmp_path, of_masks(OF_FIRST), of_masks(OF_SECOND)).findings[0]
    assert (first.step, first.headline.code) == (0, BatchCode.MASK_WEIGHTS)
    (said,) = [one for one in first.evidence if one.code is BatchCode.NUM_WEIGHTS]
    assert said.number("num") == int((OF_FIRST != OF_SECOND).sum())


def test_the_mask_of_the_answer_as_numbers_is_none(tmp_path: Path) -> None:
    other = of_masks(OF_SECOND.double().float())
    assert compared(tmp_path, other, of_masks(OF_SECOND)).outcome is Outcome.AGREE


def test_a_single_number_among_the_weights_is_told_by_its_value(tmp_path: Path) -> None:
    first = compared(tmp_path, {"temperature": 1.0}, {}).findings[0]
    assert (first.headline.code, first.headline.place("way")) == (WeightsCode.DIFFER, "number")
    (number,) = first.headline.parts
    assert (number.number("target"), number.number("reference")) == (1.0, 2.0)


class Guided(nn.Module):
    """Is given how strongly to follow the text beside each picture."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.strength = nn.Linear(WIDTH, WIDTH), nn.Linear(1, WIDTH)

    def forward(self, picture: Tensor, guidance: Tensor) -> Tensor:
        made: Tensor = self.picture(picture) * self.strength(guidance[:, None])
        return made


def guided(folder: Path, guidance: Tensor) -> Path:
    torch.manual_seed(0)
    model = Guided()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=KEPT):
        model(torch.randn(ROWS, WIDTH), guidance=guidance).square().mean().backward()
        optimizer.step()
    return folder


@pytest.mark.parametrize(
    ("target", "code"),
    [(torch.full((ROWS,), 1.0), StagesCode.INPUT_IS), (torch.arange(1.0, 5.0), StagesCode.INPUT_DIFFERS)],
)
def test_one_number_for_all_rows_is_told_as_that(target: Tensor, code: StagesCode, tmp_path: Path) -> None:
    runs = guided(tmp_path / "run", target), guided(tmp_path / "reference", torch.full((ROWS,), 3.5))
    headline = diagnose(*runs, output=tmp_path / "out").findings[0].headline
    assert (headline.code, headline.place("name")) == (code, "guidance")
    if code is StagesCode.INPUT_IS:
        assert (headline.number("target_least"), headline.number("reference_most")) == (1.0, 3.5)


def said_of_the_next_loss(diagnosis: Diagnosis) -> StagesCode:
    (stage,) = [one for one in diagnosis.stages if one.stage is Stage.LOSS]
    return StagesCode(stage.conclusion.code)


def test_the_next_loss_points_to_what_later_steps_show(tmp_path: Path) -> None:
    """Running statistics act in the evaluation alone: every training loss agrees."""
    diagnosis = compared(tmp_path, {"momentum": 0.5}, {})
    assert diagnosis.outcome is Outcome.DIFFER
    assert said_of_the_next_loss(diagnosis) is not StagesCode.NEXT_LOSS_ONLY


def test_a_next_loss_that_differs_follows_from_the_data(tmp_path: Path) -> None:
    diagnosis = compared(tmp_path, {"mask": across}, {"mask": documents})
    assert said_of_the_next_loss(diagnosis) is StagesCode.FOLLOWS


UNCUT = Clipping(way="none", norm=1.36, clipped_norm=1.36, factor=1.0, limit=None, reported=1.36, uneven=())
CUT = replace(UNCUT, way="norm", clipped_norm=1.0, factor=1 / 1.36)


@pytest.mark.parametrize(
    ("reported", "code"),
    [
        (1.36, ClippingCode.SCALED_IN_REFERENCE),
        (1.36 / 2, ClippingCode.REPORTED_NORM),
    ],
    ids=["what backward left", "another number"],
)
def test_a_scale_that_nobody_declares_is_taken_out_before_clipping_in_the_reference_alone(
    reported: float, code: ClippingCode
) -> None:
    """A program's own scaler: its loss scale is in no record."""
    other = replace(CUT, reported=1.36 / 1024, factor=1 / 1024, clipped_norm=1.36 / 1024)
    own = replace(CUT, reported=reported, factor=0.5 / 1024, clipped_norm=1.36 * 0.5 / 1024)
    found = _norm_difference(own, other, 1.0)
    assert found is not None
    assert found[1].code is code


@pytest.mark.parametrize(
    ("reported", "factor", "code"),
    [
        (1.36 / 1024, 1 / 1024, ClippingCode.UNSCALED_TWICE),
        (1.36 / 1000, 1 / 1000, ClippingCode.SCALED_BEFORE),
        (1.36 / 1000, 1 / 900, ClippingCode.REPORTED_NORM),
        (1.36 / 1024, 1 / 1.36, ClippingCode.SCALED_BEFORE),
        (1.36 * 1024, 1 / 1.36 / 1024, ClippingCode.CLIPPED_SCALED),
    ],
    ids=["twice", "by another number", "of others", "reported alone", "clipped before"],
)
def test_a_norm_that_is_the_loss_scale_too_small(reported: float, factor: float, code: ClippingCode) -> None:
    own = replace(CUT, reported=reported, factor=factor, clipped_norm=1.36 * factor)
    found = _norm_difference(own, CUT, 1024.0)
    assert found is not None
    assert found[1].code is code
