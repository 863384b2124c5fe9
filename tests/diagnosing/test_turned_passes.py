"""Backward passes of one step in another order than their forwards, as schedules of pipelines run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.losses.inputs import LossInputs  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.store import Trace, step_view  # noqa: E402
from trueup.store.pipelined import by_backward  # noqa: E402
from trueup.types.codes import RecordCode  # noqa: E402
from trueup.types.codes.kinds import FactorCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(2))


def trained(
    folder: Path,
    order: Sequence[int] = (0, 1, 2, 3),
    *,
    labels: Tensor = LABELS,
    weights: Sequence[float] = (0.25, 0.25, 0.25, 0.25),
    left_out: int | None = None,
    ahead: int = 4,
) -> Path:
    """Of so many forwards more than backwards the first of these in order; one microbatch may be left out of
    the sum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            losses = list[Tensor]()
            batches = list(zip(X, labels, weights, strict=True))
            done = list[int]()
            for at in order:
                for x, y, weight in batches[len(losses) : len(done) + ahead]:
                    losses.append(F.cross_entropy(model(x), y) * weight)
                losses[at].backward()
                done.append(at)
                if at == left_out:
                    optimizer.zero_grad(set_to_none=False)
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("passes") / "run")


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 0, 3, 2)])
def test_another_order_is_the_same_training(order: tuple[int, ...], reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", order)
    for target, other in ((run, reference), (reference, run)):
        assert compare(target, other).exit_code == 0
        assert diagnose(target, other, output=tmp_path / "out").outcome is Outcome.AGREE


def test_sums_of_other_parts_are_left_out_and_the_last_is_compared(reference: Path, tmp_path: Path) -> None:
    frame = compare(trained(tmp_path / "run", (3, 2, 1, 0)), reference).frame()
    sums = frame.filter(slot="accumulated", step=0)
    left = sums.filter(reason_code=RecordCode.SUMMED_IN_ANOTHER_ORDER.value)
    assert (left.height, sums.height - left.height) == (4 * 3 * 2, 4)


def test_labels_stand_with_the_forwards(reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", (2, 3, 1, 0))
    first = [LossInputs.of(step_view(Trace(path), 0, 0)).labels[0] for path in (run, reference)]
    assert (first[0] == first[1]).all()


def test_other_labels_of_one_microbatch_differ(reference: Path, tmp_path: Path) -> None:
    labels = LABELS.clone()
    labels[0] = labels[0].flip(0)
    run = trained(tmp_path / "run", (3, 2, 1, 0), labels=labels)
    comparison = compare(run, reference)
    assert (comparison.exit_code, comparison.verdict.phase) == (1, "loss")


def test_a_microbatch_that_counts_otherwise_differs(reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", (3, 2, 1, 0), weights=(0.25, 0.25, 0.26, 0.25))
    assert compare(run, reference).exit_code == 1


def test_a_microbatch_that_is_not_added_up_differs(reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", (3, 2, 1, 0), left_out=2)
    comparison = compare(run, reference)
    assert (comparison.exit_code, comparison.verdict.phase) == (1, "param_grad")


def test_losses_that_are_not_divided_are_off_by_the_number_of_microbatches(
    reference: Path, tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", weights=(1.0, 1.0, 1.0, 1.0))
    first, *_ = diagnose(run, reference, output=tmp_path / "out").findings
    assert FactorCode.MICROBATCHES in {part.code for part in first.kinds[0].sentence.parts}


@pytest.mark.parametrize(
    ("ahead", "order"),
    [(1, (0, 1, 2, 3)), (2, (0, 1, 2, 3)), (3, (0, 1, 2, 3)), (2, (1, 0, 3, 2)), (3, (2, 0, 1, 3))],
)
def test_a_schedule_that_counts_other_microbatches_is_the_same_training(
    ahead: int, order: tuple[int, ...], reference: Path, tmp_path: Path
) -> None:
    """One forward, one backward; two ahead; and not in order: all but sums of other parts are compared."""
    run = trained(tmp_path / "run", order, ahead=ahead)
    in_order = order == (0, 1, 2, 3)
    for target, other in ((run, reference), (reference, run)):
        comparison = compare(target, other)
        left = comparison.frame().filter(status="unmatched")
        assert (comparison.exit_code, left.height) == (0, 0 if in_order else 2 * 4 * 3 * 2)
        assert diagnose(target, other, output=tmp_path / "out").outcome is Outcome.AGREE


@pytest.mark.parametrize("ahead", [1, 2])
def test_another_microbatch_under_such_a_schedule_is_found_where_it_is(
    ahead: int, reference: Path, tmp_path: Path
) -> None:
    labels = LABELS.clone()
    labels[2] = labels[2].flip(0)
    comparison = compare(trained(tmp_path / "run", labels=labels, ahead=ahead), reference)
    assert (comparison.exit_code, comparison.verdict.phase) == (1, "loss")
    frame = comparison.frame().filter(step=0, phase="loss", slot="labels")
    assert frame.filter(bits_equal=False)["microbatch"].to_list() == [2]


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_wrong_gradient_under_such_a_schedule_differs(ahead: int, reference: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", left_out=2, ahead=ahead)
    assert compare(run, reference).exit_code == 1


def test_one_backward_of_several_forwards_is_one_microbatch(reference: Path, tmp_path: Path) -> None:
    """Chosen and rejected, say: four forwards of one loss are no four microbatches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5))
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0", task="tensor"):
        sum(F.cross_entropy(model(x), y) / 4 for x, y in zip(X, LABELS, strict=True)).backward()  # type: ignore[union-attr]
    tables = Trace(tmp_path / "run").read(0, 0)
    assert by_backward(tables, Trace(reference).read(0, 0)) is None
