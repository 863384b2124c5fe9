"""From one program's capture to another run on its batches: the losses are the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import trueup
from tests.batches.made import TRAIN, losses
from tests.capture.programs import python, run_trueup, write

pytestmark = pytest.mark.torch
STEPS = 3


def capture(folder: Path, *command: str, preset: str = "batches") -> list[str]:
    """Run the program's own data under capture; its losses."""
    interpreter = python("-c", "import sys; print(sys.executable)", cwd=folder).stdout.strip()
    write(folder / "train.py", TRAIN)
    words = ("capture", "--preset", preset, "--steps", "0-2", "-o", "run", "--", interpreter, *command)
    made = run_trueup(*words, cwd=folder)
    assert made.returncode == 0, made.stderr
    return losses(made.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["batches", "diagnose"])
def test_a_program_replays_another_run_s_batches_bit_for_bit(tmp_path: Path, preset: str) -> None:
    expected = capture(tmp_path, "train.py", preset=preset)
    assert len(expected) == STEPS * 2
    for number, more in enumerate(((), ("--per", "row"))):
        done = run_trueup("export", "--format", "batches", *more, "run", f"batches{number}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "wrote 6 microbatches of steps 0-2 of rank 0" in done.stderr
        section = yaml.safe_load(done.stdout)
        assert section["train_dataset"]["data_loader"]["dataset_dir"] == str(tmp_path / f"batches{number}")
        assert section["train_dataset"]["batch_size"] == (4 if more else 1)
        assert done.stdout == (tmp_path / f"batches{number}" / "mindformers.yaml").read_text()
        assert ("reads only the first of each folder" in done.stderr) == (not more)
    for source in ("batches0", "batches1", "run"):
        again = python("train.py", source, cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert losses(again.stdout) == expected, source


@pytest.mark.slow
def test_other_batches_give_other_losses(tmp_path: Path) -> None:
    expected = capture(tmp_path, "train.py")
    assert run_trueup("export", "--format", "batches", "-q", "run", "out", cwd=tmp_path).returncode == 0
    file = tmp_path / "out" / "step_3" / "rank_0" / "tokens.npy"
    tokens = np.load(file)
    tokens[1, 5] = (tokens[1, 5] + 1) % 97
    np.save(file, tokens)
    again = losses(python("train.py", "out", cwd=tmp_path).stdout)
    assert [a == b for a, b in zip(again, expected, strict=True)] == [True] * 3 + [False] * 3


@pytest.mark.slow
@pytest.mark.distributed
def test_every_rank_replays_its_own_batches(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    expected = capture(tmp_path, *torchrun)
    assert len(set(expected)) == STEPS * 2 * 2
    done = run_trueup("export", "--format", "batches", "run", "out", cwd=tmp_path)
    assert "of ranks 0-1 to out" in done.stderr
    again = python(*torchrun, "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert losses(again.stdout) == expected


def test_a_model_that_shifts_by_itself_replays_unshifted_labels(tmp_path: Path) -> None:
    import torch

    transformers = pytest.importorskip("transformers")
    from tests.scripts.train_hf import llama

    torch.manual_seed(0)
    model = llama().train()
    ids = torch.randint(1, 64, (2, 16))
    labels = ids.masked_fill(torch.arange(16) < 3, -100)
    mask = torch.ones_like(ids)
    with trueup.Tracer(tmp_path / "run", task="tensor", steps="0"):
        expected = model(input_ids=ids, labels=labels, attention_mask=mask).loss
        expected.backward()
        torch.optim.SGD(model.parameters(), 0.0).step()
    columns = {"input_ids": "tokens", "labels": "labels", "attention_mask": "attention_mask"}
    item = trueup.ReplayDataset(tmp_path / "run", labels="unshifted", columns=columns)[0]
    assert torch.equal(item["labels"][:, 1:], labels[:, 1:])
    assert model(**item).loss.item() == expected.item()
    twice = trueup.ReplayDataset(tmp_path / "run", labels="shifted", columns=columns)[0]
    assert model(**twice).loss.item() != expected.item()
    assert transformers
