"""What rounding alone does between a rollout and a trainer: bfloat16 decode with a cache against a prefill.

    python benchmarks/mismatch.py

Random Qwen2 and Llama models on a CPU. Per layer output, the relative L2 error in unit roundoffs of
bfloat16, what
each layer adds to that of its inputs, and the RMS difference of log-probs over that of the trainer's own
bfloat16
forward. The thresholds of ``trueup mismatch`` (src/trueup/mismatch/thresholds.py) lie beyond these.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

EPS = 2.0**-8
PARTS = ("embed_tokens", "self_attn", "mlp", "norm")


def watched(model, names, run):
    """Outputs of modules while ``run`` runs, concatenated along tokens."""
    found = {name: [] for name in names}
    handles = [
        module.register_forward_hook(
            lambda m, a, out, name=name: found[name].append(
                (out[0] if isinstance(out, tuple) else out).detach().float()
            )
        )
        for name, module in model.named_modules()
        if name in found
    ]
    result = run()
    for handle in handles:
        handle.remove()
    return result, {name: torch.cat(rows, dim=1) for name, rows in found.items()}


@torch.no_grad()
def decode(model, prompt, length, seed):
    """Sample with a cache; tokens and their log-probs."""
    draw = torch.Generator().manual_seed(seed)
    ids, past, tokens, log_probs = prompt, None, [], []
    for _ in range(length):
        out = model(input_ids=ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        scores = torch.log_softmax(out.logits[:, -1].float(), -1)
        ids = torch.multinomial(scores.exp(), 1, generator=draw)
        tokens.append(ids)
        log_probs.append(scores.gather(1, ids))
    return torch.cat(tokens, 1), torch.cat(log_probs, 1)


@torch.no_grad()
def score(model, whole, first):
    logits = model(input_ids=whole, use_cache=False).logits[:, first - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(2, whole[:, first:, None])[..., 0]


def errors(ours, theirs):
    length = min(ours.shape[1], theirs.shape[1])
    a, b = ours[:, :length].double(), theirs[:, :length].double()
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).square().mean().sqrt())


def main():
    for config, model_of in ((Qwen2Config, Qwen2ForCausalLM), (LlamaConfig, LlamaForCausalLM)):
        for depth, width, scale in ((2, 64, 0.2), (8, 128, 0.05), (16, 256, 0.02), (4, 128, 0.3)):
            torch.manual_seed(0)
            settings = {"vocab_size": 512, "hidden_size": width, "intermediate_size": 2 * width}
            settings |= {"num_hidden_layers": depth, "num_attention_heads": 4, "num_key_value_heads": 2}
            settings |= {"initializer_range": scale}
            trainer = model_of(config(**settings)).eval()
            server = model_of(config(**settings)).eval()
            server.load_state_dict(trainer.state_dict())
            server = server.to(torch.bfloat16)
            names = [
                name
                for name, _ in trainer.named_modules()
                if name.split(".")[-1] in PARTS or name.split(".")[-1].isdigit()
            ]
            prompt = torch.randint(0, 512, (4, 8))
            (tokens, rollout), served = watched(server, names, lambda: decode(server, prompt, 40, 1))  # noqa: B023
            whole = torch.cat([prompt, tokens], 1)
            training, trained = watched(trainer, names, lambda: score(trainer, whole, 8))  # noqa: B023
            variant, varied = watched(server, names, lambda: score(server, whole, 8))  # noqa: B023
            found = {name: errors(served[name], trained[name]) for name in names}
            noise = {name: errors(varied[name], trained[name]) for name in names}
            before, most, growth, ratio = 0.0, 0.0, 0.0, []
            for name, error in found.items():
                most = max(most, (error - 4 * before) / EPS)
                growth = max(growth, error / before if before > EPS else 0.0)
                before = max(before, error)
                if noise[name] > 0:
                    ratio.append(error / noise[name])
            r, n = (rollout - training).square().mean().sqrt(), (variant - training).square().mean().sqrt()
            size = float(r / rollout.square().mean().sqrt()) / found[names[-1]]
            low, high = min(found.values()) / EPS, before / EPS
            print(f"{config.__name__[:5]} depth {depth}, width {width}, init {scale}")
            print(
                f"  layers {low:.2f} to {high:.2f} u, beyond 4 x inputs {most:.2f} u, "
                f"at most {growth:.2f} x inputs"
            )
            print(f"  layers over noise {min(ratio):.2f} to {max(ratio):.2f}")
            print(
                f"  log-probs RMS {r:.3g}, over noise {r / n:.2f}, over last layer {size:.2f}, "
                f"spread {float(training.std() / rollout.std()):.4f}"
            )


if __name__ == "__main__":
    main()
