"""TRL's trainers on a tiny Llama: SFT (padded or packed), DPO with a reference, GRPO with generation."""

from __future__ import annotations

import tempfile
from typing import Any

import tiny
from datasets import Dataset
from outcome import Outcome, arguments, halve_gradient
from transformers import TrainerCallback, set_seed


class Losses(TrainerCallback):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.outcome.loss(logs["loss"])


def reward(completions: list[Any], **kwargs: Any) -> list[float]:
    """How many different letters a completion has."""
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [len(set(text)) / 10 for text in texts]


def wrong_reward(completions: list[Any], **kwargs: Any) -> list[float]:
    """The same, one completion's counted twice."""
    return [value * (2 if at == 1 else 1) for at, value in enumerate(reward(completions))]


def rows(method: str, seed: int, *, wrong: bool) -> Dataset:
    """Questions, with one answer (SFT), a good and a bad one (DPO), or none (GRPO)."""
    add = lambda i: i + (1 if wrong else 0)  # noqa: E731
    question = [f"{i + seed} plus {add(i) + seed} is" for i in range(32)]
    answer = [f" {2 * i + 2 * seed}." for i in range(32)]
    if method == "sft":
        text = [q + a for q, a in zip(question, answer, strict=True)]
        return Dataset.from_dict({"text": text})
    if method == "dpo":
        return Dataset.from_dict({"prompt": question, "chosen": answer, "rejected": [" no." for _ in answer]})
    return Dataset.from_dict({"prompt": question})


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--method", choices=("sft", "dpo", "grpo"), default="sft")
    parser.add_argument("--packing", action="store_true")
    args = parser.parse_args()
    outcome = Outcome()
    set_seed(args.seed)
    tokenizer = tiny.tokenizer()
    vocabulary = len(tokenizer) + (-len(tokenizer)) % 8
    model = tiny.llama(vocabulary, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    layers = model.model.layers
    if args.fault == "forward":
        tiny.raise_eps(layers[1].post_attention_layernorm)
    if args.fault == "backward":
        halve_gradient(layers[0].mlp.down_proj.weight)
    wrong_loss = args.fault == "loss"
    shared: dict[str, Any] = {
        "max_steps": args.steps,
        "learning_rate": 1e-3,
        "adam_beta2": 0.95 if args.fault == "optimizer" else 0.999,
        "logging_steps": 1,
        "seed": args.seed,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    data = rows(args.method, args.seed, wrong=args.fault == "data")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/model")  # where DPO and GRPO read their reference model from
        model.config._name_or_path = f"{folder}/model"
        common = {"model": model, "train_dataset": data, "processing_class": tokenizer}
        common["callbacks"] = [Losses(outcome)]
        if args.method == "sft":
            from trl import SFTConfig, SFTTrainer

            config = SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=4,
                max_length=32,
                packing=args.packing,
                label_smoothing_factor=0.1 if wrong_loss else 0.0,
                **shared,
            )
            trainer = SFTTrainer(args=config, **common)
        elif args.method == "dpo":
            from trl import DPOConfig, DPOTrainer

            config = DPOConfig(
                output_dir=folder,
                per_device_train_batch_size=2,
                max_length=48,
                beta=0.2 if wrong_loss else 0.1,
                **shared,
            )
            trainer = DPOTrainer(args=config, **common)
        else:
            from trl import GRPOConfig, GRPOTrainer

            config = GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=8,
                beta=0.2 if wrong_loss else 0.04,
                **shared,
            )
            trainer = GRPOTrainer(args=config, reward_funcs=reward, **common)
        trainer.train()
    outcome.write(model.state_dict().items())


if __name__ == "__main__":
    main()
