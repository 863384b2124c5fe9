"""verl: its SFT trainer with the FSDP2 engine on a tiny Qwen2, packed rows without padding; no file of it is
edited."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
}
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
sys.path.append(str(Path(__file__).parents[2] / "rl"))  # verl_cpu: what lets it train without a GPU

import pandas as pd  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from outcome import Outcome, arguments, halve_gradient_in  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from verl.trainer import sft_trainer  # noqa: E402
from verl.utils.distributed import initialize_global_process_group  # noqa: E402

SETTINGS = """
data.messages_key=messages data.train_batch_size=4 data.max_length=64 data.micro_batch_size_per_gpu=1
data.pad_mode=no_padding data.num_workers=0 data.use_dynamic_bsz=False data.val_files=null
model.use_remove_padding=True +model.override_config.attn_implementation=sdpa
model.enable_gradient_checkpointing=False engine=fsdp engine.strategy=fsdp2 engine.use_torch_compile=False
optim.lr=1e-3 trainer.device=cpu trainer.logger=[console] trainer.total_epochs=1 trainer.test_freq=-1
trainer.save_freq=-1 trainer.resume_mode=disable trainer.project_name=toy trainer.experiment_name=sft
"""


def write_inputs(folder: str, seed: int, *, wrong: bool) -> None:
    """A model with random weights, its tokenizer, and conversations."""
    tokenizer = tiny.tokenizer()
    tokenizer.save_pretrained(f"{folder}/model")
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + (-len(tokenizer)) % 8,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(f"{folder}/model")
    rows = []
    for i in range(seed, seed + 32):
        said = f"{i} plus {i + 1 + int(wrong)} is"
        rows.append([{"role": "user", "content": said}, {"role": "assistant", "content": f"{2 * i + 1}."}])
    pd.DataFrame({"messages": rows}).to_parquet(f"{folder}/sft.parquet")


def main() -> None:
    """Train."""
    args = arguments(__doc__).parse_args()
    outcome = Outcome()
    initialize_global_process_group()
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder, args.seed, wrong=args.fault == "data")
        given = [
            *SETTINGS.split(),
            f"data.train_files={folder}/sft.parquet",
            f"model.path={folder}/model",
            f"trainer.default_local_dir={folder}/checkpoints",
            f"trainer.total_training_steps={args.steps}",
            f"optim.betas=[0.9,{0.95 if args.fault == 'optimizer' else 0.999}]",
        ]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("sft_trainer_engine", given)
        trainer = sft_trainer.SFTTrainer(config)
        model = trainer.engine.module
        layers = model.model.layers
        if args.fault == "forward":
            layers[1].post_attention_layernorm.variance_epsilon = 1e-2
        if args.fault == "backward":
            halve_gradient_in(layers[0].mlp.down_proj)
        if args.fault == "loss":
            usual = trainer.loss_fn

            def larger(*words: Any, **more: Any) -> Any:
                loss, metrics = usual(*words, **more)
                return loss * 1.01, metrics

            trainer.training_client.set_loss_fn(loss_fn=larger)
        step = trainer.training_client.train_batch

        def noted(*words: Any, **more: Any) -> Any:
            output = step(*words, **more)
            outcome.loss(next(iter(torch.as_tensor(output["metrics"]["loss"]).flatten())))
            return output

        trainer.training_client.train_batch = noted
        trainer.fit()
        outcome.write(model.state_dict().items())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
