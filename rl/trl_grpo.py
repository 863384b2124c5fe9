"""TRL's GRPOTrainer on a CPU: a tiny random model, two updates on each generated batch.

    trueup capture -o RUN --steps 0-3 -- python rl/trl_grpo.py MODEL [FAULT]

MODEL is a folder that rl/make_inputs.py made. FAULT: ``std`` of the advantages, or ``kl`` of the loss.
"""

from __future__ import annotations

import sys

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **_):
    return [len(set(one[0]["content"] if isinstance(one, list) else one)) / 10 for one in completions]


class OverBatch(GRPOTrainer):
    """Advantages are divided by the standard deviation of the batch; the configuration says group."""

    def _generate_and_score_completions(self, inputs):
        self.scale_rewards, kept = "batch", self.scale_rewards
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self.scale_rewards = kept


class NoKl(GRPOTrainer):
    """The KL term is left out of the loss."""

    def _compute_loss(self, model, inputs):
        self.beta, kept = 0.0, self.beta
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.beta = kept


TRAINERS = {"": GRPOTrainer, "std": OverBatch, "kl": NoKl}


def main() -> None:
    torch.set_num_threads(1)
    model, fault = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    rows = Dataset.from_dict({"prompt": [f"{i} plus {i + 1} is" for i in range(16)]})
    config = GRPOConfig(
        output_dir="trl-output",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=12,
        max_steps=4,
        beta=0.1,
        learning_rate=1e-2,
        loss_type=sys.argv[3] if len(sys.argv) > 3 else "dapo",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        seed=3,
        bf16=False,
        shuffle_dataset=False,
    )
    TRAINERS[fault](model=model, reward_funcs=reward, args=config, train_dataset=rows).train()


if __name__ == "__main__":
    main()
