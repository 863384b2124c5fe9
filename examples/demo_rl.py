"""Training against inference, in two minutes: ``make demo-rl``.

A small random Qwen2 serves responses in bfloat16 with a KV cache, and a float32 trainer scores them, as in a
step of RL. Twice: healthy, and with the weights of one layer left behind in the server. ``trueup mismatch``
explains the first by rounding, and names the layer of the second. Then two trainings of two steps by GRPO
(rl/loop.py), of which one normalises its advantages over the whole batch: ``trueup compare`` says so.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rl.faults import OverBatch
from rl.loop import Settings, Trainer

VOCABULARY, PROMPT, RESPONSE, ROWS = 128, 12, 24, 24
WATCHED = ("embed_tokens", "input_layernorm", "self_attn", "post_attention_layernorm", "mlp", "norm")


def small_model(seed: int = 0) -> Qwen2ForCausalLM:
    """Four layers, random weights: nothing is downloaded."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    return Qwen2ForCausalLM(config).eval()


def server_of(trainer: Qwen2ForCausalLM, dtype: torch.dtype = torch.bfloat16) -> Qwen2ForCausalLM:
    """The trainer's weights, as an inference engine gets them."""
    return copy.deepcopy(trainer).to(dtype).eval()


@contextmanager
def watched(model: Qwen2ForCausalLM) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Outputs of layers, call by call, in the order in which layers run."""
    found: dict[str, list[torch.Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, given: object, out: object) -> None:
            first = out[0] if isinstance(out, tuple) else out
            found.setdefault(name, []).append(first.detach().float())

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if name.split(".")[-1] in WATCHED or name.split(".")[-1].isdigit()
    ]
    yield found
    for handle in handles:
        handle.remove()


@torch.no_grad()
def rollout(
    server: Qwen2ForCausalLM, *, temperature: float = 1.0, top_k: int = 0, late: int = 0, seed: int = 0
) -> dict[str, np.ndarray]:
    """Sample responses token by token: tokens, their log-probs, and each layer's output for them.

    ``late``: how many positions too far the rotary embedding of sampled tokens is, which is a fault.
    """
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (ROWS, PROMPT), generator=draw)
    prompts, past, tokens, log_probs = ids, None, [], []
    with watched(server) as layers:
        for at in range(RESPONSE):
            places = torch.arange(PROMPT)[None] if at == 0 else torch.tensor([[PROMPT + at - 1 + late]])
            out = server(input_ids=ids, past_key_values=past, use_cache=True, position_ids=places)
            past, scores = out.past_key_values, out.logits[:, -1].float() / temperature
            if top_k:
                scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], float("-inf"))
            scores = torch.log_softmax(scores, -1)
            ids = torch.multinomial(scores.exp(), 1, generator=draw)
            tokens.append(ids)
            log_probs.append(scores.gather(1, ids))
    arrays = {f"rollout/{name}": torch.cat(outs, 1)[:, PROMPT - 1 :].numpy() for name, outs in layers.items()}
    sampled = torch.cat(tokens, 1)
    return {
        "prompts": prompts.numpy(),
        "tokens": sampled.numpy(),
        "rollout_log_probs": torch.cat(log_probs, 1).numpy(),
        **arrays,
    }


@torch.no_grad()
def scored(
    trainer: Qwen2ForCausalLM, batch: dict[str, np.ndarray], *, rows: int = ROWS
) -> dict[str, np.ndarray]:
    """The batch with the trainer's log-probs and layer outputs, from forwards of ``rows`` whole sequences."""
    whole = torch.from_numpy(np.concatenate([batch["prompts"], batch["tokens"]], 1))
    with watched(trainer) as layers:
        outs = [trainer(input_ids=part[:, :-1], use_cache=False).logits for part in whole.split(rows)]
    scores = torch.log_softmax(torch.cat(outs)[:, PROMPT - 1 :].float(), -1)
    log_probs = scores.gather(2, whole[:, PROMPT:, None])[..., 0]
    arrays = {f"training/{name}": torch.cat(outs)[:, PROMPT - 1 :].numpy() for name, outs in layers.items()}
    kept = {name: array for name, array in batch.items() if name != "prompts"}
    return {**kept, "training_log_probs": log_probs.numpy(), **arrays}


def compared(folder: Path) -> int:
    """Exit status of a comparison of two trainings on the same tokens."""
    settings, runs = Settings(steps=2), [folder / name for name in ("target", "reference")]
    for run in runs:
        shutil.rmtree(run, ignore_errors=True)
    Trainer(runs[1], settings).run()
    OverBatch(runs[0], settings, replay=runs[1]).run()
    command = ["trueup", "compare", *map(str, runs), "-o", str(folder / "verdict")]
    print(f"\nadvantages over the whole batch: {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", *command], check=False).returncode


def main() -> int:
    """Both steps; the exit status is 0 where the verdicts are those that are due."""
    folder = Path("out/demo-rl")
    folder.mkdir(parents=True, exist_ok=True)
    trainer = small_model()
    healthy, stale = server_of(trainer), server_of(trainer)
    with torch.no_grad():  # what one update changes, and what was not sent to the server
        stale.model.layers[2].mlp.down_proj.weight.mul_(0.9)
    due = {"healthy": 0, "one layer's weights left behind": 1}
    for number, (name, server) in enumerate(zip(due, (healthy, stale), strict=True), 1):
        file = folder / f"step_{number}.npz"
        np.savez(file, **scored(trainer, rollout(server)), step=number)
        out = folder / f"step_{number}"
        command = [sys.executable, "-m", "trueup", "mismatch", str(file), "-o", str(out)]
        print(f"\n{name}: trueup mismatch {file} -o {out}", flush=True)
        due[name] -= subprocess.run(command, check=False).returncode
    due["advantages over the whole batch"] = 1 - compared(folder)
    pages = [*sorted(folder.glob("*/mismatch.html")), folder / "verdict" / "rl.html"]
    print(f"\npages: {', '.join(map(str, pages))}")
    return int(any(due.values()))


if __name__ == "__main__":
    sys.exit(main())
