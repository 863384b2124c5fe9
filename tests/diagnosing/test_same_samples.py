"""Another order, seed or resume is no cause where the samples are the same ones; nor are the data a fault
where the model may have generated them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from tests.diagnosing.replaying import replay  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode as Batches  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.codes.kinds import CauseCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402

OF_SAMPLES = {CauseCode.SAMPLE_ORDER, CauseCode.SHARD_OR_SEED, CauseCode.REPLAYED_AFTER_RESUME}
Loop = Callable[[], None]
ROWS, LENGTH = 4, 12


def diagnosed(folder: Path, target: Loop, reference: Loop) -> Diagnosis:
    for name, run in (("target", target), ("reference", reference)):
        with trueup.Tracer(folder / name, level="L0", steps="0", store_values_of=VALUES):
            run()
    return diagnose(folder / "target", folder / "reference", output=folder / "out")


def causes_of(found: Diagnosis) -> set[object]:
    data = [one for one in found.findings if one.stage is Stage.DATA]
    assert data
    return {cause.code for one in data for kind in one.kinds for cause in kind.causes}


class Classifier(nn.Module):
    """Means of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.head = nn.Embedding(60, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, length) to (rows, 2)."""
        return self.head(self.ids(ids).mean(1))  # type: ignore[no-any-return]


def same(ids: Tensor) -> Tensor:
    return ids


def classified(
    ids_of: Callable[[Tensor], Tensor] = same, labels_of: Callable[[Tensor], Tensor] = same
) -> Loop:
    def run() -> None:
        torch.manual_seed(0)
        model = Classifier()
        ids = torch.randint(3, 50, (2 * ROWS, LENGTH))
        ids[:, 4::5] = 55
        labels = torch.arange(2 * ROWS) % 2
        chosen, classes = ids_of(ids)[:ROWS], labels_of(labels)[:ROWS]
        nn.functional.cross_entropy(model(chosen), classes).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()

    return run


def put_in(ids: Tensor) -> Tensor:
    return torch.cat([ids[:, :5], torch.ones_like(ids[:, :1]), ids[:, 5:-1]], 1)


@pytest.mark.parametrize(
    ("ids_of", "labels_of", "is_of_samples"),
    [
        (put_in, same, False),
        (lambda ids: put_in(ids)[:, :-1], same, False),
        (lambda ids: ids.where(ids != 55, torch.tensor(56)), same, False),
        (same, lambda labels: 1 - labels, False),
        (lambda ids: ids.flip(0), same, True),
        (lambda ids: put_in(ids).flip(0), same, True),
        (lambda ids: ids.flip(0), lambda labels: labels.flip(0), True),
    ],
    ids=["put in", "cut off", "other id", "labels", "others", "others, put in", "others with labels"],
)
def test_causes_of_other_samples(
    ids_of: Callable[[Tensor], Tensor],
    labels_of: Callable[[Tensor], Tensor],
    is_of_samples: bool,
    tmp_path: Path,
) -> None:
    found = diagnosed(tmp_path, classified(ids_of, labels_of), classified())
    assert bool(causes_of(found) & OF_SAMPLES) is is_of_samples


def continued(loop_ids: Callable[[Tensor], Tensor], counted: int) -> Loop:
    """A step of an Adam that has made some before."""

    def run() -> None:
        torch.manual_seed(0)
        model = Classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if counted:
            state = {
                at: {"step": torch.tensor(float(counted)), "exp_avg": 0.1 + 0 * p, "exp_avg_sq": 0.1 + 0 * p}
                for at, p in enumerate(model.parameters())
            }
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        ids = torch.randint(3, 50, (2 * ROWS, LENGTH))
        nn.functional.cross_entropy(model(loop_ids(ids)[:ROWS]), torch.arange(ROWS) % 2).backward()
        optimizer.step()

    return run


@pytest.mark.parametrize("counted", [0, 3])
def test_samples_are_first_those_of_a_resume_where_optimizers_count_steps_before(
    counted: int, tmp_path: Path
) -> None:
    found = diagnosed(tmp_path, continued(lambda ids: ids.flip(0), counted), continued(same, counted))
    led = next(one for one in found.findings if one.stage is Stage.DATA)
    told = [one for one in led.evidence if one.code is Stages.COUNTED_BEFORE]
    assert [dict(one.facts) for one in told] == ([{"target": 3, "reference": 3}] if counted else [])
    assert (led.causes[0].code is CauseCode.REPLAYED_AFTER_RESUME) == bool(counted)
    assert {one.code for one in led.causes} == OF_SAMPLES


def pictured(noise: float) -> Loop:
    """A step on numbers to which noise is added before the model takes them."""

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        pictures, added = torch.randn(8, 3, 8, 8), torch.randn(8, 3, 8, 8)
        nn.functional.cross_entropy(model(pictures + noise * added), torch.arange(8) % 2).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()

    return run


def test_samples_that_were_made_otherwise_are_no_other_ones(tmp_path: Path) -> None:
    assert causes_of(diagnosed(tmp_path, pictured(0.2), pictured(0.1))) == {Stages.MADE_BEFORE_CAUSE}


# -- what a model generated ------------------------------------------


class Scaled(nn.Module):
    """A projection; in evaluation, by a scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(8, 8), scale

    def forward(self, x: Tensor) -> Tensor:
        """(rows, length, 8) to the same."""
        return self.inner(x) * (1.0 if self.training else self.scale)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Gives scores of the next id."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.ids, self.mixed, self.head = nn.Embedding(60, 8), Scaled(scale), nn.Linear(8, 60)

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, length) to (rows, length, 60)."""
        x = self.ids(ids)
        return self.head(x + self.mixed(x.cumsum(1)))  # type: ignore[no-any-return]


def on_generated(*, scale: float = 1.0, edit: Callable[[Tensor], Tensor] = same, first: bool = False) -> Loop:
    """Trained on ids and on what the model generates; ``edit``: the program's, of what was generated;
    ``first``: of the ids as well."""

    def run() -> None:
        torch.manual_seed(0)
        model = Decoder(scale)
        ids = torch.randint(0, 60, (ROWS, LENGTH))
        loss = model(edit(ids) if first else ids).square().mean()
        with torch.no_grad():
            model.eval()
            for _ in range(LENGTH):
                ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
            model.train()
        more = edit(ids[:, LENGTH:])
        loss = loss + nn.functional.cross_entropy(model(more).flatten(0, 1), more.flatten())
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()

    return run


def test_ids_behind_another_model_are_no_fault_of_the_data(tmp_path: Path) -> None:
    target, reference = on_generated(scale=30.0), on_generated()
    replay(tmp_path, reference, target)
    with trueup.Tracer(tmp_path / "target", level="L0", steps="0", store_values_of=VALUES):
        target()
    found = diagnose(
        tmp_path / "target", tmp_path / "reference", output=tmp_path / "out", replay=tmp_path / "replay"
    )
    assert found.findings[0].stage is Stage.FORWARD
    assert not causes_of(found) & OF_SAMPLES
    (data,) = [one for one in found.stages if one.stage is Stage.DATA]
    assert not data.confirmed


@pytest.mark.parametrize("way", ["alone", "before"])
def test_ids_that_differ_by_themselves_are(way: str, tmp_path: Path) -> None:
    """Twins: the model is the same; the ids differ before the model's difference."""
    scale = 30.0 if way == "before" else 1.0
    target = on_generated(scale=scale, edit=lambda ids: (ids + 1) % 60, first=way == "before")
    found = diagnosed(tmp_path, target, on_generated())
    assert found.findings[0].stage is Stage.DATA
    (data,) = [one for one in found.stages if one.stage is Stage.DATA]
    assert data.confirmed


def mixed(scale: float, *, labelled: bool, given: bool) -> Loop:
    """Pictures and noise, mixed by the times that the model is given, too."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.net = nn.Embedding(6, 192), nn.Linear(192, 192)

        def forward(self, x: Tensor, times: Tensor, kinds: Tensor | None = None) -> Tensor:
            h = x.flatten(1) + times[:, None]
            made: Tensor = self.net(h if kinds is None else h + self.kinds(kinds))
            return made

    def run() -> None:
        torch.manual_seed(0)
        model = Denoiser()
        pictures, noise = torch.randn(8, 3, 8, 8), torch.randn(8, 3, 8, 8)
        times = scale * torch.rand(8)
        x = pictures + times[:, None, None, None] * noise
        kinds = (torch.arange(8) % 6,) if labelled else ()
        made = model(x, times if given else torch.zeros(8), *kinds)
        (made - noise.flatten(1)).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()

    return run


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_the_times_that_samples_are_made_with_are_named(labelled: bool, given: bool, tmp_path: Path) -> None:
    sides = (mixed(scale, labelled=labelled, given=given) for scale in (0.6, 0.4))
    first = next(one for one in diagnosed(tmp_path, *sides).findings if one.stage is Stage.DATA)
    codes = [one.code for one in first.evidence]
    assert (first.headline.place("name"), Batches.ONE_FOR_EACH_SAMPLE in codes) == (
        ("1", True) if given else ("0", False)
    )
    assert Batches.SAME_SAMPLES in codes
    expected = CauseCode.LEVELS_DRAWN_OTHERWISE if given else Stages.MADE_BEFORE_CAUSE
    assert {one.code for one in first.causes} == {expected}
