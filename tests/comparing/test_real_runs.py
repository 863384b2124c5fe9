"""Real captures of the small GPT: every planted fault is named first, no rounding is flagged."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.comparing.run import compare

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from bugzoo.models.gpt import GPTConfig  # noqa: E402
from bugzoo.train import CHANGES, build, train_step  # noqa: E402

from trueup import Tracer  # noqa: E402

STEPS = 3
CONFIG = GPTConfig(vocab_size=256, hidden_size=128, num_heads=4, seq_length=64)


def captured(folder: Path, level: str, change: str | None) -> Path:
    """One run of three steps on one thread, with a change planted or none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = folder / f"{change}.{level}"
    try:
        with Tracer(path, level=level, steps=f"0-{STEPS - 1}"):
            training = build(CONFIG, change=change)
            for step in range(STEPS):
                train_step(training, step)
    finally:
        torch.set_num_threads(threads)
    return path


@pytest.fixture(scope="module", params=["L0", "mix"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run without a change, at both levels."""
    level: str = request.param
    return captured(tmp_path_factory.mktemp("reference"), level, None), level


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_verdict(name: str, reference: tuple[Path, str], tmp_path: Path) -> None:
    trusted, level = reference
    result = compare(captured(tmp_path, level, name), trusted)
    verdict, change = result.summary["verdict"], CHANGES[name]
    if change.phase is None:
        assert result.exit_code == 0, verdict
        assert result.summary["counts"]["different"] == 0
    else:
        assert result.exit_code == 1
        named = change.is_named_by(phase=verdict["phase"], owner=verdict["owner"], where=verdict["where"])
        assert named, verdict
