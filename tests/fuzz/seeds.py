"""Small real files of every kind that is read, made by the product's own writers or copied from fixtures."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console

from tests.diagnosing.rl.records import batch, with_losses
from tests.importers.test_api_stack import write as write_api_stack
from tests.mismatch.batches import sampled
from trueup import reporting
from trueup.accepting.evaluation import read_evaluation
from trueup.batches.recorded import RecordedBatches
from trueup.capture.request import CaptureRequest, capture_options
from trueup.cli.app import run
from trueup.comparing.noise import SCHEMA, NoiseProfile
from trueup.comparing.origins import origins
from trueup.comparing.result import open_comparison
from trueup.diagnosing.diagnosis import read_diagnosis
from trueup.diagnosing.replay.plan import build_plan, read_plan
from trueup.errors import TrueupError
from trueup.merging.layout_file import read_layout
from trueup.monitoring.alarms import Subject
from trueup.monitoring.events import alarm_from_subjects
from trueup.monitoring.settings_file import read_settings
from trueup.store import Trace, layout
from trueup.store.rollouts import write_batch, write_loss
from trueup.types.option import GivenOptions
from trueup.wording import document

_TESTS = Path(__file__).resolve().parent.parent
_FIXTURES = _TESTS / "fixtures"
_LARGEST = 400_000
_LAYOUT = """
version: 1
mesh: {dp: 2, tp: 4}
batch: [dp]
parameters:
  - {name: "*.up.weight", tp: shard(0)}
pipeline: {axis: pp, stages: [[0, 1]]}
"""
_CONFIG_JSON = """{"task": "statistics", "dump_path": "run", "rank": [], "step": [0, 2], "level": "L1",
"statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}}"""
_PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(13, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 13))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(2):
    tokens = torch.randint(0, 13, (2, 5))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """Files that one reader reads: any of ``files`` is damaged, then ``read`` is called."""

    reader: str
    files: tuple[Path, ...]
    read: Callable[[], int]
    """returns the exit status; calls what the command line calls"""


def _command(*words: object) -> Callable[[], int]:
    return lambda: run([str(word) for word in words])


def _function(read: Callable[[], object]) -> Callable[[], int]:
    """A reader that no verb calls by itself: its errors are printed as the command line prints them."""

    def status() -> int:
        try:
            read()
        except (TrueupError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    return status


def make_seeds(folder: Path) -> list[Seed]:
    """All of them, below ``folder``."""
    makers = (_weights, _logs, _configurations, _trace, _results, _dumps, _batches, _tokens)
    return [seed for maker in makers for seed in maker(folder)]


def _files_of(*places: Path) -> tuple[Path, ...]:
    found = [p for place in places for p in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return tuple(path for path in found if path.is_file() and path.stat().st_size <= _LARGEST)


def _weights(folder: Path) -> Iterator[Seed]:
    import torch
    from safetensors.numpy import save_file

    arrays = {
        "model.embed_tokens.weight": np.arange(24, dtype=np.float32).reshape(6, 4),
        "model.layers.0.mlp.down_proj.weight": np.eye(4, dtype=np.float16),
        "lm_head.weight": np.linspace(0, 1, 24, dtype=np.float32).reshape(6, 4),
    }
    root = folder / "weights"
    (root / "npy").mkdir(parents=True)
    reference = root / "reference.safetensors"
    save_file(arrays, root / "target.safetensors")
    save_file(arrays, reference)
    for name, array in arrays.items():
        np.save(root / "npy" / f"{name}.npy", array)
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, root / "target.pt")
    for name in ("target.ckpt", "named", "hf"):
        form = {"named": "npy", "hf": "hf"}.get(name, "ckpt")
        run(
            [
                "convert-weights",
                str(reference),
                str(root / name),
                "--to",
                "hf-llama",
                "--format",
                form,
                "--quiet",
            ]
        )
    plan = root / "plan.yaml"
    run(
        [
            "convert-weights",
            str(reference),
            str(root / "c.safetensors"),
            "--to",
            "megatron",
            "--save-plan",
            str(plan),
        ]
    )
    for name in ("target.safetensors", "npy", "target.pt", "target.ckpt", "named", "hf"):
        if (root / name).exists():
            yield Seed(
                reader=f"weights:{name}",
                files=_files_of(root / name),
                read=_command("compare-weights", root / name, reference),
            )
    if plan.is_file():
        yield Seed(
            reader="weights:plan",
            files=(plan,),
            read=_command("compare-weights", root / "c.safetensors", reference, "--plan", plan),
        )


def _logs(folder: Path) -> Iterator[Seed]:
    from tests.curves import logs
    from tests.curves.simulating import Truth, simulate

    curve, _ = simulate(Truth(num_steps=60, data_sigma=0.02), 7)
    rate = 1e-4 * np.minimum(1, np.arange(1, 61) / 20)
    curve = replace(curve, frame=curve.frame.with_columns(pl.Series("learning_rate", rate)))
    root = folder / "logs"
    root.mkdir()
    texts = {
        **{name: getattr(logs, name) for name in ("megatron", "mindformers", "epoch_step", "torchtitan")},
        **{name: getattr(logs, name) for name in ("nanotron", "verl", "trainer_console", "jsonl")},
        "trainer_state.json": logs.trainer_state,
    }
    for name, write in texts.items():
        (root / name).write_text(write(curve))
    logs.wandb_csv(curve, root / "wandb.csv")
    curve.frame.write_parquet(root / "table.parquet")
    (root / "events.out.tfevents.1").write_bytes(logs.events(curve))
    (root / "events.out.tfevents.2").write_bytes(logs.events(curve, tensors=True))
    (root / "reference.jsonl").write_text(logs.jsonl(curve))
    for path in sorted(root.iterdir()):
        if path.name != "reference.jsonl":
            words = ("curves", path, "--reference", root / "reference.jsonl")
            yield Seed(reader=f"log:{path.name}", files=(path,), read=_command(*words))


def _configurations(folder: Path) -> Iterator[Seed]:
    import torch

    root = folder / "configurations"
    shutil.copytree(_TESTS / "checklist" / "configurations", root)
    for path in sorted(root.glob("*/*")):
        if path.is_file():
            words = ("check", path, root / "llama2" / "pynative.yaml")
            yield Seed(reader=f"check:{path.suffix}", files=(path,), read=_command(*words))
    hf = sorted(root.glob("*/hf"))[0]
    yield Seed(
        reader="check:hf", files=_files_of(hf), read=_command("check", hf, root / "qwen3" / "megatron.yaml")
    )
    arguments = argparse.Namespace(
        num_layers=2, hidden_size=8, lr=1e-4, tensor_model_parallel_size=1, bf16=True
    )
    checkpoint = root / "common.pt"
    torch.save({"args": arguments, "iteration": 3}, checkpoint)
    words = ("check", checkpoint, root / "qwen3" / "megatron.yaml")
    yield Seed(reader="check:checkpoint", files=(checkpoint,), read=_command(*words))
    monitor = root / "monitor.yaml"
    monitor.write_text("every: 10\nmax_captures: 2\nweights: true\n")
    yield Seed(reader="monitor.yaml", files=(monitor,), read=_function(lambda: read_settings(monitor)))
    layout = root / "layout.yaml"
    layout.write_text(_LAYOUT)
    yield Seed(reader="layout.yaml", files=(layout,), read=_function(lambda: read_layout(layout)))
    captured = root / "config.json"
    captured.write_text(_CONFIG_JSON)
    request = CaptureRequest(given=GivenOptions({}), config=captured)
    yield Seed(reader="config.json", files=(captured,), read=_function(lambda: capture_options(request)))


def _trace(folder: Path) -> Iterator[Seed]:
    root = folder / "trace"
    root.mkdir()
    run_, copy, map_ = _captured(root / "run", _PROGRAM), root / "copy", root / "map.yaml"
    _alarm(run_)
    shutil.copytree(run_, copy)
    run(["match", str(run_), str(copy), "-o", str(map_)])
    files = _files_of(run_)
    plain = tuple(path for path in files if path.suffix == ".json" or path.suffix == ".jsonl")
    for words in (
        ("inspect", run_),
        ("inspect", run_, "--step", "0"),
        ("compare", run_, copy),
        ("compare", copy, run_, "--quiet"),
        ("match", run_, copy),
        ("monitor", run_, "--json"),
        ("check", run_, copy),
        ("curves", run_, "--reference", copy),
        ("compare-weights", run_, copy),
    ):
        yield Seed(reader=f"trace:{words[0]}", files=files, read=_command(*words))
    yield Seed(reader="trace:json", files=plain, read=_command("compare", run_, copy, "--quiet"))
    for form in ("msprobe", "batches", "grads"):
        yield Seed(reader=f"trace:export {form}", files=files, read=_exported(run_, root / form, form))
    yield Seed(
        reader="map.yaml", files=(map_,), read=_command("compare", run_, copy, "--map", map_, "--quiet")
    )


def _captured(output: Path, program: str) -> Path:
    script = output.with_suffix(".py")
    script.write_text(program)
    words = [
        "capture",
        "-o",
        str(output),
        "--level",
        "mix",
        "--task",
        "tensor",
        "--monitor",
        "--steps",
        "0,1",
    ]
    command = [sys.executable, "-m", "trueup", *words, "--quiet", "--", sys.executable, str(script)]
    subprocess.run(command, check=True, capture_output=True, cwd=output.parent)
    return output


def _alarm(run_: Path) -> None:
    """What a monitor leaves that gave one."""
    subjects = [Subject(name="loss", value=9.0, threshold=3.0)]
    alarm = alarm_from_subjects("loss_spike", subjects, step=1, rank=0)
    file = layout.event_file(run_, alarm.step, alarm.rule, alarm.rank)
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        json.dumps({"version": 1, "time": 1.0, **document(alarm), "captured_step": 2, "rerun": "again"})
    )


def _results(folder: Path) -> Iterator[Seed]:
    """What commands leave and others read, of two runs that differ."""
    root = folder / "trace"
    run_, out, plan = root / "run", root / "out", root / "plan"
    other = _captured(root / "other", _PROGRAM.replace("lr=1e-2", "lr=1e-2, eps=1e-3"))
    run(["compare", str(run_), str(other), "-o", str(out), "--quiet"])
    results = tuple(path for path in _files_of(out) if path.suffix in (".json", ".parquet"))
    yield Seed(reader="result", files=results, read=_function(lambda: _shown(out)))
    yield Seed(
        reader="result:reports", files=results, read=_function(lambda: _reported(out, root / "reports"))
    )
    yield Seed(reader="result:frame", files=results, read=_function(lambda: open_comparison(out).frame()))
    yield Seed(reader="result:origins", files=results, read=_function(lambda: origins(out)))
    run(["diagnose", str(run_), str(other), "-o", str(root / "diagnosis"), "--no-html", "--quiet"])
    diagnosis = (root / "diagnosis" / "diagnosis.json",)
    yield Seed(
        reader="diagnosis", files=diagnosis, read=_function(lambda: read_diagnosis(diagnosis[0].parent))
    )
    build_plan(Trace(run_), Trace(other), plan)
    yield Seed(reader="plan", files=(plan / "plan.json",), read=_function(lambda: read_plan(plan)))
    table = pl.DataFrame({name: [None] for name in SCHEMA}, schema=SCHEMA)
    noise = NoiseProfile(table=table, facts={"schema_version": 1, "num_repeats": 2}, path=other).write(other)
    yield Seed(
        reader="noise", files=_files_of(noise), read=_function(lambda: NoiseProfile.read(noise).summary())
    )


def _reported(result: Path, output: Path) -> None:
    reporting.write_reports(result, output=output, formats=set(reporting.FORMATS))


def _exported(trace: Path, destination: Path, form: str) -> Callable[[], int]:
    def status() -> int:
        shutil.rmtree(destination, ignore_errors=True)
        return run(["export", str(trace), str(destination), "--format", form, "--quiet"])

    return status


def _shown(folder: Path) -> None:
    reporting.print_summary(folder, Console())


def _dumps(folder: Path) -> Iterator[Seed]:
    root = folder / "dumps"
    root.mkdir()
    for archive in (
        _FIXTURES / "msprobe" / "msprobe-26.2.0.tar.xz",
        _FIXTURES / "mindspore" / "mindspore-2.10.tar.xz",
    ):
        with tarfile.open(archive) as opened:
            opened.extractall(root, filter="data")
    steps = sorted(root.glob("msprobe-26.2.0/accumulation/*/step0"))
    for step in steps:
        copy = root / "copies" / step.parent.name
        shutil.copytree(step.parent, copy)
        for words in (("inspect", step.parent, "--step", "0"), ("compare", step.parent, copy, "--quiet")):
            yield Seed(reader=f"msprobe:{step.parent.name}", files=_files_of(step), read=_command(*words))
    for dump in sorted(p.parent for p in root.glob("mindspore-2.10/*/rank_0")):
        copy = root / "copies" / dump.name
        shutil.copytree(dump, copy)
        for words in (("inspect", dump), ("compare", dump, copy, "--quiet")):
            yield Seed(reader=f"mindspore:{dump.name}", files=_files_of(dump), read=_command(*words))


def _batches(folder: Path) -> Iterator[Seed]:
    for form in ("batches", "megatron"):
        root = folder / "recordings" / form
        run(["export", str(folder / "trace" / "copy"), str(root), "--format", form, "--quiet"])
        yield Seed(
            reader=f"recording:{form}", files=_files_of(root), read=_function(partial(_read_all, root))
        )


def _read_all(recording: Path) -> None:
    for _ in RecordedBatches.open(recording):
        pass


def _tokens(folder: Path) -> Iterator[Seed]:
    """What reinforcement learning, evaluations and older tools leave."""
    root = folder / "tokens"
    for name in ("target", "reference"):
        held = with_losses(batch(), batch().batch.arrays["old_log_probs"], numbers={"loss": 0.5})  # type: ignore[union-attr]
        assert held.batch is not None
        write_batch(root / name, 1, held.batch.arrays, held.batch.settings)
        write_loss(root / name, 1, held.losses[0].arrays, held.batch.settings, held.losses[0].numbers)
    target = root / "target"
    words = ("compare", target, root / "reference", "--quiet")
    yield Seed(reader="rollouts", files=_files_of(target), read=_command(*words))
    np.savez(root / "tokens.npz", **sampled(rows=4, length=8))
    plain = {"model": {"vocab": {"a": 0, "1": 1, "!": 2}}, "added_tokens": [{"id": 2, "content": "!"}]}
    (root / "tokenizer.json").write_text(json.dumps(plain))
    files = (root / "tokens.npz", root / "tokenizer.json")
    read = _command("mismatch", root / "tokens.npz", "--tokenizer", root)
    yield Seed(reader="mismatch", files=files, read=read)
    scores = {
        "results": {"arc": {"acc,none": 0.5, "acc_stderr,none": 0.01}, "mmlu": {"acc,none": 0.4}},
        "group_subtasks": {"mmlu": ["arc"], "arc": []},
        "higher_is_better": {"arc": {"acc": True}},
        "n-samples": {"arc": {"original": 9, "effective": 9}},
        "versions": {"arc": 1.0},
        "config": {"model": "hf", "limit": None},
    }
    evaluation = root / "results.json"
    evaluation.write_text(json.dumps(scores))
    yield Seed(reader="evaluation", files=(evaluation,), read=_function(lambda: read_evaluation(evaluation)))
    listed = write_api_stack(root / "rank0" / "api_stack_dump.pkl")
    yield Seed(reader="api_stack", files=(listed,), read=_command("inspect", listed, "--step", "0"))
