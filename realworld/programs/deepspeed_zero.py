"""DeepSpeed: its engine, accumulation, clipping and ZeRO stages 0 to 3 over gloo."""

from __future__ import annotations

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_IGNORE_CUDA_DETECTION", "1")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))

import deepspeed  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
from outcome import Outcome, arguments, halve_gradient  # noqa: E402


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--stage", type=int, default=0)
    args = parser.parse_args()
    outcome = Outcome()
    deepspeed.init_distributed("gloo")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(args.seed)
    model = tiny.llama()
    if args.fault == "forward":
        tiny.raise_eps(model.model.layers[1].post_attention_layernorm)
    if args.fault == "backward":
        halve_gradient(model.model.layers[0].mlp.down_proj.weight)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95 if args.fault == "optimizer" else 0.999)
    )
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 100000, "overlap_comm": False},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 100000,
    }
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    rows = tiny.rows(64, args.seed, wrong=args.fault == "data")[rank::size]
    at = 0
    for _ in range(args.steps):
        for _ in range(2):
            batch = rows[at : at + 2]
            at += 2
            ids = torch.stack([row["input_ids"] for row in batch])
            loss = engine(input_ids=ids, labels=ids).loss
            if args.fault == "loss":
                loss = loss * 1.01
            engine.backward(loss)
            engine.step()
        outcome.loss(loss)
    whole = deepspeed.zero.GatheredParameters(list(model.parameters())) if args.stage == 3 else None
    if whole is None:
        outcome.write(model.state_dict().items())
    else:
        with whole:
            outcome.write((name, weight.detach().clone()) for name, weight in model.named_parameters())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
