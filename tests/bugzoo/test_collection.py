"""Every fault changes what is computed, nothing benign by more than rounding; names are judged fairly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from bugzoo.catalogue import Change  # noqa: E402
from bugzoo.models.gpt import GPT, GPTConfig  # noqa: E402
from bugzoo.train import CHANGES, build, train_step  # noqa: E402

pytestmark = pytest.mark.torch
SMALL = GPTConfig(vocab_size=50, hidden_size=32, num_heads=4, seq_length=16)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def weights_after(change: str | None, steps: int = 2) -> torch.Tensor:
    """All weights after some steps, as one vector."""
    training = build(SMALL, change=change)
    for step in range(steps):
        train_step(training, step)
    return torch.cat([p.detach().flatten() for p in training.model.parameters()])


@pytest.mark.parametrize("name", [name for name, change in CHANGES.items() if change.phase is not None])
def test_a_fault_changes_the_weights(name: str) -> None:
    assert not torch.equal(weights_after(name), weights_after(None))


@pytest.mark.parametrize("name", [name for name, change in CHANGES.items() if change.phase is None])
def test_what_is_no_fault_stays_within_rounding(name: str) -> None:
    torch.testing.assert_close(weights_after(name), weights_after(None))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_owners_are_modules(change: Change) -> None:
    if change.owner is not None:
        assert change.owner in dict(GPT(SMALL).named_modules())


def test_a_name_must_have_the_right_phase_and_place() -> None:
    change = CHANGES["attention-scale"]
    assert change.is_named_by(phase="forward", owner="layers.1.attn", where="somewhere")
    assert change.is_named_by(phase="forward", owner="layers.1.attn.drop", where="somewhere")
    assert not change.is_named_by(phase="backward", owner="layers.1.attn", where="somewhere")
    assert not change.is_named_by(phase="forward", owner="layers.1", where="somewhere")
    assert not change.is_named_by(phase="forward", owner="layers.1.attention", where="somewhere")
    assert not change.is_named_by(phase="forward", owner=None, where=None)
