"""How ``tests/fixtures/goldens/inputs.tar.xz`` was made: ``python -m tests.goldens.make_inputs ARCHIVE``.

Traces, replays, a monitored run and logs, written by trueup 0.1.0. They are not made again: that today's code
reads what that version wrote, and says the same of it, is what the golden answers show.
"""

from __future__ import annotations

import json
import platform
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from bugzoo.models.gpt import GPT, GPTConfig, batch

import trueup
from tests.accepting.evaluations import results
from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from tests.diagnosing import diagnosed as runs
from tests.diagnosing.runs import train
from trueup.curves.curve import Curve
from trueup.diagnosing.gradients import VALUES, build_gradient_plan
from trueup.diagnosing.replay import build_plan
from trueup.store import Trace

TINY = GPTConfig(vocab_size=16, num_layers=2, hidden_size=8, num_heads=2, seq_length=8)
REFERENCE = {**runs.REFERENCE, "config": TINY}
BFLOAT16 = {**runs.mixed(), "config": TINY}


def in_halves(model: GPT) -> None:
    """Another order of the same sums."""
    for layer in model.layers:
        up = layer.mlp.up

        def forward(x: torch.Tensor, up: torch.nn.Linear = up) -> torch.Tensor:
            half = x.shape[-1] // 2
            first = torch.nn.functional.linear(x[..., :half], up.weight[:, :half])
            return first + torch.nn.functional.linear(x[..., half:], up.weight[:, half:], up.bias)

        up.forward = forward


def shifted_twice(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels two positions ahead."""
    ids, labels = batch(TINY, step=10 * step, size=2)
    return ids, torch.cat([labels[:, 1:], labels[:, :1]], 1)


TARGETS: dict[str, dict[str, Any]] = {
    "repeat": {},
    "in-halves": {"change": in_halves},
    "norm-eps": {"change": runs.norm_eps},
    "attention-scale": {"change": runs.attention_scale},
    "gradient-scale": {"change": runs.gradient_scale},
    "two-at-once": {"change": runs.two_at_once},
    "transposed": {"change": runs.transposed},
    "frozen": {"change": runs.frozen},
    "labels": {"data": shifted_twice},
    "clipping": {"before_step": runs.clipped(0.25)},
    "not-cleared": {"clear": False},
    "rate": {"optimizer": runs.adam(lr=2e-3)},
    "put-back": {"optimizer": runs.put_back},
}
REPLAYED = ("in-halves", "norm-eps", "attention-scale", "gradient-scale", "two-at-once")
GIVEN = ("attention-scale", "clipping", "rate")
TWO_STEPS = ("clipping", "not-cleared", "rate", "put-back")
"""against ``reference-of-two``; the others are one step, which is half as large"""


def capture(folder: Path, program: dict[str, Any], **options: Any) -> Trace:
    """One run as ``--preset diagnose`` captures it."""
    with trueup.Tracer(folder, **{"level": "L0", "steps": "0", "store_values_of": VALUES, **options}):
        train(**program)
    return Trace(folder)


def traces(folder: Path) -> None:
    """Every target with its replays, in both precisions."""
    references = {
        "0": capture(folder / "reference", REFERENCE),
        "0,1": capture(folder / "reference-of-two", REFERENCE, steps="0,1"),
    }
    for name, change in TARGETS.items():
        steps = "0,1" if name in TWO_STEPS else "0"
        program, reference = {**REFERENCE, **change}, references[steps]
        target = capture(folder / name, program, steps=steps)
        if name in REPLAYED:
            again = folder / f"{name}.replay"
            plan = build_plan(target, reference, again / "plan", level="L0", inside=(), steps={0})
            capture(again, program, steps="0", replay=plan.folder)
        if name in GIVEN:
            made = build_gradient_plan(reference, target, folder / "plan")
            capture(folder / f"{name}.gradients", program, steps=steps, gradients_from=made.folder)
    capture(folder / "reference-bf16", BFLOAT16, steps="0,1")
    capture(folder / "late-bf16", {**runs.mixed(late=True), "config": TINY}, steps="0,1")
    for name in ("reference", "norm-eps"):
        program = {**REFERENCE, **TARGETS.get(name, {})}
        capture(folder / f"{name}.calls", program, level="mix", store_values_of=())
    program = {**REFERENCE, "clear": False}
    capture(folder / "not-cleared.calls", program, level="mix", store_values_of=(), steps="0,1")


def changed(curve: Curve, **columns: Any) -> Curve:
    """A curve with other columns."""
    return replace(
        curve, frame=curve.frame.with_columns(*(pl.Series(name, v) for name, v in columns.items()))
    )


def curves(folder: Path) -> None:
    """Logs of a reference with a repeat, of targets good and bad, and of runs at learning rate 0."""
    steps = np.arange(1200)
    target, (first, second) = simulate(Truth(num_steps=1200, sigma=0.004, spike_rate=0.0), 2)
    loss = target.frame["loss"].to_numpy()
    spiked = loss + np.where((steps == 700) | (steps == 701), 3.0, 0.0)
    still = changed(first, learning_rate=np.zeros(1200))
    made = {
        "good.log": logs.mindformers(target),
        "parted.log": logs.mindformers(changed(target, loss=loss + 0.003 * np.maximum(steps - 800, 0))),
        "offset.log": logs.mindformers(changed(target, loss=loss + 0.1)),
        "spiked.log": logs.mindformers(changed(target, loss=spiked)),
        "gpu1.log": logs.megatron(first),
        "gpu2.log": logs.megatron(second),
        "still0.log": logs.megatron(still),
        "still.log": logs.megatron(changed(still, loss=still.frame["loss"].to_numpy() + 1e-3)),
        "moved.log": logs.megatron(changed(still, loss=still.frame["loss"].to_numpy() + 0.5)),
    }
    for name, text in made.items():
        (folder / name).write_text(text)


def evaluations(folder: Path) -> None:
    """Scores of both models, good and bad; settings of both, good and bad."""
    scores = {"arc": (0.50, 0.014), "hellaswag": (0.60, 0.005)}
    results(folder / "eval.json", scores)
    results(folder / "good-eval.json", {**scores, "arc": (0.49, 0.014)})
    results(folder / "bad-eval.json", {**scores, "hellaswag": (0.50, 0.005)})
    settings = {"num_layers": 2, "hidden_size": 16, "learning_rate": 0.001, "adam_beta2": 0.999}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "other-settings.json").write_text(json.dumps({**settings, "adam_beta2": 0.95}))


def monitored(folder: Path) -> None:
    """A watched run with a NaN at step 3."""
    torch.manual_seed(0)
    with trueup.Tracer(folder, monitor=trueup.Monitor(modules=["*"])):
        net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(6):
            loss = (net(torch.randn(4, 8)) * (float("nan") if step == 3 else 1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uname = member.gname = ""
    member.uid = member.gid = member.mtime = 0
    return member


def main(archive: Path) -> None:
    """Make all of it."""
    platform.platform = lambda *_, **__: "Linux"  # not this machine's
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        traces(folder)
        curves(folder)
        evaluations(folder)
        monitored(folder / "watched")
        with tarfile.open(archive, "w:xz", preset=9) as file:
            for path in sorted(folder.iterdir()):
                if path.name != "plan":
                    file.add(path, path.name, filter=_of_nobody)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
