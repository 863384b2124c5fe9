"""torchtitan: its Trainer and its Llama over gloo: FSDP2, bfloat16, clipping, two steps of accumulation.

What needs a GPU is the display of its memory alone; the batches are ours.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
torch._utils._get_available_device_type = lambda: "cpu"  # where there is none, torchtitan takes "cuda"

from outcome import Outcome, arguments, halve_gradient_in  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.components.lr_scheduler import build_lr_schedulers  # noqa: E402
from torchtitan.components.optimizer import build_optimizers  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama  # noqa: E402
from torchtitan.protocols.train_spec import TrainSpec, register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

VOCABULARY, ROWS, LENGTH = 128, 2, 32


class Batches:
    """Rows of random tokens; every process reads its own."""

    def __init__(self, *, seed: int, wrong: bool, rank: int, size: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.wrong, self.rank, self.size = wrong, rank, size

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            ids = torch.randint(VOCABULARY, (ROWS * self.size, LENGTH + 1), generator=self.draw)
            if self.wrong:
                ids[:, 5] = (ids[:, 5] + 1) % VOCABULARY
            own = ids[self.rank * ROWS : (self.rank + 1) * ROWS]
            yield {"input": own[:, :-1].contiguous()}, own[:, 1:].contiguous()


class Metrics:
    """Takes what the trainer reports; torchtitan's own asks a GPU for its memory."""

    color = SimpleNamespace(blue="", red="", reset="")
    device_memory_monitor = SimpleNamespace(
        device_name="cpu", get_peak_stats=lambda: SimpleNamespace(max_reserved_gib=0.0, max_reserved_pct=0.0)
    )
    ntokens_since_last_log = 0

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.data_loading_times = outcome, []

    def should_log(self, step: int) -> bool:
        return True

    def log(self, step: int, average: float, largest: float, norm: float, **more: Any) -> None:
        self.outcome.loss(average)


def main() -> None:
    """Train."""
    args = arguments(__doc__).parse_args()
    outcome = Outcome()
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    metrics = Metrics(outcome)
    scale = 1.01 if args.fault == "loss" else 1.0

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        loss = cross_entropy_loss(logits, labels)
        return loss * scale if scale != 1.0 else loss

    register_train_spec(
        "tiny",
        TrainSpec(
            model_cls=Transformer,
            model_args={
                "tiny": TransformerModelArgs(
                    dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=VOCABULARY, multiple_of=32
                )
            },
            parallelize_fn=parallelize_llama,
            pipelining_fn=None,
            build_optimizers_fn=build_optimizers,
            build_lr_schedulers_fn=build_lr_schedulers,
            build_dataloader_fn=lambda **given: Batches(
                seed=args.seed, wrong=args.fault == "data", rank=rank, size=size
            ),
            build_tokenizer_fn=None,
            build_loss_fn=lambda *given, **more: loss_of,
            build_metrics_processor_fn=lambda *given, **more: metrics,
        ),
    )
    config = JobConfig()
    config.model.name = config.model.flavor = "tiny"
    config.training.local_batch_size, config.training.seq_len = ROWS, LENGTH
    config.training.global_batch_size = 2 * ROWS * size
    config.training.steps = 10
    config.optimizer.lr = 1e-3
    config.optimizer.beta2 = 0.99 if args.fault == "optimizer" else 0.95
    config.optimizer.implementation = "foreach"
    config.lr_scheduler.warmup_steps = 2
    config.activation_checkpoint.mode = "none"
    config.debug.seed = args.seed
    with tempfile.TemporaryDirectory() as folder:
        config.job.dump_folder = folder
        trainer = Trainer(config)
        model = trainer.model_parts[0]
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale in a reduction
        if args.fault == "forward":
            model.layers["1"].ffn_norm.eps = 1e-2
        if args.fault == "backward":
            halve_gradient_in(model.layers["0"].feed_forward.w2)
        batches = trainer.batch_generator(trainer.dataloader)
        for _ in range(args.steps):
            trainer.step += 1
            trainer.train_step(batches)
    outcome.write(model.state_dict().items())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
