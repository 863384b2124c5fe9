"""transformers' Trainer on a tiny Llama: accumulation, warm-up, clipping; DDP or FSDP2."""

from __future__ import annotations

import tempfile

import tiny
from outcome import Outcome, arguments, halve_gradient
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class Losses(TrainerCallback):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.outcome.loss(logs["loss"])


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--lora", action="store_true", help="adapters of PEFT alone are trained")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    outcome = Outcome()
    set_seed(args.seed)
    model = tiny.llama()
    layers = model.model.layers
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
        if args.fault == "backward":
            halve_gradient(layers[0].self_attn.v_proj.lora_B.default.weight)
    elif args.fault == "backward":
        halve_gradient(layers[0].mlp.down_proj.weight)
    if args.fault == "forward":
        tiny.raise_eps(layers[1].post_attention_layernorm)
    sharded = {
        "fsdp": "full_shard",
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=args.accumulate,
                max_steps=args.steps,
                learning_rate=1e-3,
                warmup_steps=2,
                weight_decay=0.1,
                adam_beta2=0.95 if args.fault == "optimizer" else 0.999,
                label_smoothing_factor=0.1 if args.fault == "loss" else 0.0,
                gradient_checkpointing=args.recompute,
                bf16=args.bf16,
                logging_steps=1,
                seed=args.seed,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                **(sharded if args.fsdp else {}),
            ),
            train_dataset=tiny.rows(64, args.seed, wrong=args.fault == "data"),
            callbacks=[Losses(outcome)],
        )
        trainer.train()
    outcome.write(trainer.accelerator.unwrap_model(trainer.model).state_dict().items())


if __name__ == "__main__":
    main()
