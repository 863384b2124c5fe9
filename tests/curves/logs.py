"""Logs as the programs write them, line for line: what the readers are tested on."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trueup.curves.curve import Curve
from trueup.store.protobuf import field_bytes, integer_field
from trueup.types.arrays import Floats


def columns(curve: Curve) -> tuple[list[int], Floats, Floats, Floats]:
    """Steps, loss, gradient norm and learning rate."""
    loss, norm, rate = (curve.values(name) for name in ("loss", "grad_norm", "learning_rate"))
    assert loss is not None
    assert norm is not None
    assert rate is not None
    return curve.frame["step"].to_list(), loss, norm, rate


def megatron(curve: Curve, *, first: int = 0, last: int | None = None, skipped: Sequence[int] = ()) -> str:
    """training_log of Megatron-LM, after a few of the lines that come before it."""
    steps, loss, norm, rate = columns(curve)
    lines = [
        "using world size: 8, data-parallel size: 4, context-parallel size: 1",
        "------------------------ arguments ------------------------",
        "  adam_beta2 ...................................... 0.95",
        "  iteration ....................................... 0",
        "training ...",
        "[before the start of training step] datetime: 2026-11-21 10:00:00 ",
    ]
    for at in range(first, len(steps) if last is None else last):
        value = "" if np.isnan(loss[at]) else f" lm loss: {loss[at]:.6E} |"
        lines.append(
            f" [2026-11-21 10:00:{at % 60:02d}.123456] iteration {steps[at]:8d}/{len(steps):8d} | "
            "consumed samples: "
            f"{512 * steps[at]:12d} | elapsed time per iteration (ms): 1234.5 | throughput per GPU "
            "(TFLOP/s/GPU): "
            f"312.2 | learning rate: {rate[at]:.6E} | global batch size:   512 |{value} loss scale: 1.0 | "
            f"grad norm: {norm[at]:.3f} | number of skipped iterations: {int(steps[at] in skipped):3d} | "
            f"number of nan iterations: {int(np.isnan(loss[at])):3d} |"
        )
        if steps[at] % 100 == 0:
            lines.append(f"saving checkpoint at iteration {steps[at]:7d} to /ckpt in torch_dist format")
    return "\n".join(lines) + "\n"


def megatron_norms(squares: Sequence[float]) -> str:
    """What a patched get_parameters prints before the line of its step."""
    items = ", ".join(f"tensor({square:.6f}, device='cuda:0')" for square in squares)
    return f"print torch local norm:\n[{items}]\n"


def mindformers(curve: Curve, *, steps_per_epoch: int | None = None, sink: bool = True) -> str:
    """MFLossMonitor of MindFormers: two lines a step."""
    steps, loss, norm, rate = columns(curve)
    per_epoch = steps_per_epoch or len(steps)
    epochs = -(-len(steps) // per_epoch)
    lines = []
    for at, step in enumerate(steps):
        epoch, inside = (step - 1) // per_epoch + 1, (step - 1) % per_epoch + 1
        value = f"loss: {loss[at]:5.3f}, " if sink else f"loss:[{loss[at]:5.3f}/{loss[at]:5.3f}], "
        head = "2026-11-21 10:00:00,123 - mindformers./log[mindformers/core/callback.py:519] - INFO - "
        lines.append(
            head + f"{{ Epoch:[{epoch:3d}/{epochs:3d}], step:[{inside:5d}/{per_epoch:5d}], {value}"
            f"per_step_time: 1403ms, lr: {rate[at]:.8e}, overflow cond: False, loss_scale: 65536.0, "
            f"global_norm: {norm[at]:.7f}, train_throughput_per_npu: 171.176T"
        )
        lines.append(
            head
            + "   0.1% |                                                  | 0.71230 samples/s/p  1:23:45 }"
        )
    return "\n".join(lines) + "\n"


def mindformers_norm(step: int, per_epoch: int, name: str, value: float) -> str:
    """TrainingStateMonitor of MindFormers."""
    return (
        "2026-11-21 10:00:00,123 - mindformers./log[mindformers/core/callback/callback.py:990] - INFO - "
        f"Epoch:[  1/  1], step:[{step:5d}/{per_epoch:5d}] local_norm/{name}: {value:.4f}\n"
    )


def mindformers_norms(squares: Sequence[float]) -> str:
    """What MFLossMonitor prints of the wrapper's ``local_norm: True`` before the line of its step."""
    head = "2026-11-21 10:00:00,123 - mindformers./log[mindformers/core/callback.py:97] - INFO - "
    sizes = ", ".join(str(4096 * (at + 1)) for at in range(len(squares)))
    return f"{head} norm_size: ({sizes})\nlocal_norm:\n{np.array(squares, np.float32)}\n"


def epoch_step(curve: Curve, *, per_epoch: int | None = None, scales: Floats | None = None) -> str:
    """The dynamic-graph trainer of MindFormers."""
    steps, loss, norm, rate = columns(curve)
    lines = []
    for at, step in enumerate(steps):
        epoch, inside = (0, step) if per_epoch is None else divmod(step - 1, per_epoch)
        inside = inside if per_epoch is None else inside + 1
        scale = 4096.0 if scales is None else scales[at]
        lines.append(
            f"train: Epoch:{epoch}, Step:{inside}, Loss: {loss[at]:.6f}, Finite_grads: True, Loss_scale: "
            f"{scale}, "
            f"Learning_rate: ({rate[at]:e},{rate[at]:e},), Grad_norm: {norm[at]:.6f}, Time: 1403.24 ms"
        )
    return "\n".join(lines) + "\n"


def torchtitan(curve: Curve, *, colour: bool = True) -> str:
    """MetricsProcessor.log of torchtitan."""
    red, green, orange, reset = (
        ("\x1b[31m", "\x1b[32m", "\x1b[38;2;180;60;0m", "\x1b[39m") if colour else ("",) * 4
    )
    steps, loss, norm, _ = columns(curve)
    return "".join(
        f"[titan] 2026-11-21 10:00:00,123 - root - INFO - {red}step: {step:2}  {green}loss: {loss[at]:8.5f}  "
        f"{orange}grad_norm: {norm[at]:7.4f}  {green}memory:  5.20GiB(6.57%)  {green}tps: 12,345  "
        f"{green}tflops: "
        f"1,102.33  {red}mfu: 35.10%{reset}\n"
        for at, step in enumerate(steps)
    )


def human(value: float) -> str:
    """nanotron's short numbers: three digits and a letter."""
    if abs(value) < 1:
        return f"{value:.3g}"
    value = float(f"{value:.3g}")
    for letter in ("", "K", "M", "B", "T"):
        if abs(value) < 1000:
            return f"{value:f}".rstrip("0").rstrip(".") + letter
        value /= 1000
    return str(value)


def nanotron(curve: Curve) -> str:
    """LoggerWriter of nanotron."""
    steps, loss, norm, rate = columns(curve)
    return "".join(
        f"\x1b[2;3m11/21 10:00:00 [INFO|DP=0|PP=0|TP=0]\x1b[0m: iteration: {step} / {len(steps)} | "
        "consumed_tokens: "
        f"{human(step * 1048576)} | time_per_iteration_ms: {human(1234.5)} | tokens_per_sec: "
        f"{human(849400.0)} | "
        f"tokens_per_sec_per_gpu: {human(106200.0)} | global_batch_size: {human(512)} | lm_loss: "
        f"{human(loss[at])} | "
        f"lr: {human(rate[at])} | model_tflops_per_gpu: {human(212.3)} | grad_norm: {human(norm[at])}\n"
        for at, step in enumerate(steps)
    )


def loop(curve: Curve) -> str:
    """A program of one's own."""
    steps, loss, norm, rate = columns(curve)
    return "".join(
        f"step {step} loss {float(loss[at])!r} norm {float(norm[at])!r} lr {float(rate[at])!r}\n"
        for at, step in enumerate(steps)
    )


def nanogpt(curve: Curve) -> str:
    """nanoGPT's line, with what people add at its end."""
    steps, loss, norm, rate = columns(curve)
    return "".join(
        f"iter {step}: loss {loss[at]:.4f}, time 12.31ms, mfu 3.10%, lr {float(rate[at])!r} "
        f"norm {float(norm[at])!r}\n"
        for at, step in enumerate(steps)
    )


def verl(curve: Curve) -> str:
    """The console of verl, as numpy 2 prints scalars."""
    steps, loss, norm, rate = columns(curve)
    return "".join(
        f"(TaskRunner pid=123) step:{step} - actor/entropy:0.31 - "
        f"actor/pg_loss:np.float64({float(loss[at])!r}) - "
        f"actor/grad_norm:{float(norm[at])!r} - actor/lr:{float(rate[at])!r} - perf/throughput:1234.5 - "
        "timing_s/step:12.25\n"
        for at, step in enumerate(steps)
    )


def trainer_state(curve: Curve) -> str:
    """trainer_state.json of the Hugging Face Trainer, an evaluation among the entries."""
    steps, loss, norm, rate = columns(curve)
    history: list[dict[str, float]] = [
        {"epoch": 0.1, "grad_norm": norm[at], "learning_rate": rate[at], "loss": loss[at], "step": step}
        for at, step in enumerate(steps)
    ]
    history.insert(10, {"epoch": 0.1, "eval_loss": 9.9, "eval_runtime": 1.0, "step": steps[9]})
    return json.dumps(
        {"best_metric": None, "global_step": steps[-1], "log_history": history, "max_steps": 10}
    )


def trainer_console(curve: Curve) -> str:
    """What the Trainer prints."""
    _, loss, norm, rate = columns(curve)
    return "".join(
        f"{{'loss': {loss[at]:.4f}, 'grad_norm': {norm[at]}, 'learning_rate': {rate[at]}, 'epoch': 0.01}}\n"
        for at in range(len(loss))
    )


def jsonl(
    curve: Curve, names: Sequence[str] = ("_step", "train/loss", "train/grad_norm", "train/learning_rate")
) -> str:
    """A W&B history, one object a line."""
    lines = zip(*columns(curve), strict=True)
    return "".join(json.dumps({n: float(v) for n, v in zip(names, row, strict=True)}) + "\n" for row in lines)


def wandb_csv(curve: Curve, path: Path) -> None:
    """A panel of W&B, exported."""
    steps, loss, _, _ = columns(curve)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["Step", "run-7 - train/loss", "run-7 - train/loss__MIN", "run-7 - train/loss__MAX"])
        writer.writerows([step, loss[at], loss[at], loss[at]] for at, step in enumerate(steps))


def events(curve: Curve, *, tensors: bool = False) -> bytes:
    """A TensorBoard event file; checksums are left zero, for nothing here reads them."""
    steps, loss, norm, rate = columns(curve)
    out = _record(_fixed64(1, 1e9) + field_bytes(3, b"brain.Event:2"))
    for at, step in enumerate(steps):
        for tag, value in (
            ("train/loss", loss[at]),
            ("train/grad_norm", norm[at]),
            ("train/learning_rate", rate[at]),
        ):
            content = (
                field_bytes(8, integer_field(1, 1) + field_bytes(5, struct.pack("<f", value)))
                if tensors
                else bytes([2 << 3 | 5]) + struct.pack("<f", value)
            )
            summary = field_bytes(1, field_bytes(1, tag.encode()) + content)
            out += _record(_fixed64(1, 1e9) + integer_field(2, step) + field_bytes(5, summary))
    return out


def _fixed64(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _record(message: bytes) -> bytes:
    return struct.pack("<QI", len(message), 0) + message + b"\0\0\0\0"
