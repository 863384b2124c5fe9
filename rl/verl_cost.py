"""CPU seconds of each step of verl's SFT trainer (FSDP2 on a CPU).

    verl_cost.py FOLDER TOKENIZER STEPS TURNS NAME

Two processes, NAME ``off`` and ``on``, take turns step by step; each begins every second pair. TURNS is a
folder that both see. 4 of the 24 layers of Qwen2.5-0.5B (hidden 896), vocabulary 8192, 4 sequences of 256
tokens a step, bfloat16.

"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

os.environ |= {
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "TORCH_COMPILE_DISABLE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": str(20000 + os.getpid() % 20000),
}

import pandas as pd
import torch
from hydra import compose, initialize_config_module
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from verl.trainer import sft_trainer
from verl.utils.distributed import initialize_global_process_group

SETTINGS = """
data.messages_key=messages data.train_batch_size=4 data.max_length=256 data.micro_batch_size_per_gpu=4
data.pad_mode=no_padding data.num_workers=0 data.use_dynamic_bsz=False data.val_files=null
data.truncation=right
model.use_remove_padding=True +model.override_config.attn_implementation=sdpa
model.enable_gradient_checkpointing=False engine=fsdp engine.strategy=fsdp2 engine.use_torch_compile=False
optim.lr=1e-4 trainer.device=cpu trainer.logger=[console] trainer.total_epochs=1 trainer.test_freq=-1
trainer.save_freq=-1 trainer.resume_mode=disable trainer.project_name=toy trainer.experiment_name=cost
"""


def write_inputs(folder: Path, tokenizer: Path, steps: int) -> None:
    """A model with random weights, and conversations that fill a row."""
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=4,
        num_attention_heads=14,
        num_key_value_heads=2,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    rows = [
        [{"role": "user", "content": f"count from {i}"}, {"role": "assistant", "content": f"{i} " * 200}]
        for i in range(4 * steps)
    ]
    pd.DataFrame({"messages": rows}).to_parquet(folder / "sft.parquet")


MOST_SECONDS = 300.0
"""to wait for the other process"""


class Turns:
    """The turns of two processes: a file for each step that one has done."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._other = "on" if name == "off" else "off"
        self._step = 0

    def wait(self) -> None:
        """Until the other has done this step, where it begins the pair, else the one before."""
        begins = self._name == ("off" if self._step % 2 == 0 else "on")
        wanted = self._folder / f"{self._other}-{self._step - begins}"
        until = time.monotonic() + MOST_SECONDS
        while self._step - begins >= 0 and not wanted.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{wanted} did not come")
            time.sleep(0.01)

    def done(self) -> None:
        """This step is."""
        (self._folder / f"{self._name}-{self._step}").touch()
        self._step += 1


def main() -> None:
    """Train, and print the CPU seconds of every step as JSON."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[3])
    turns = Turns(Path(sys.argv[4]), sys.argv[5])
    torch.set_num_threads(1)
    initialize_global_process_group()
    write_inputs(folder, Path(sys.argv[2]), steps)
    given = [
        *SETTINGS.split(),
        f"data.train_files={folder}/sft.parquet",
        f"model.path={folder}/model",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.total_training_steps={steps}",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine", given)
    trainer = sft_trainer.SFTTrainer(config)
    ended = [time.process_time()]
    step = trainer.training_client.train_batch

    def timed(*words: object, **more: object) -> object:
        turns.wait()
        output = step(*words, **more)
        ended.append(time.process_time())
        turns.done()
        return output

    trainer.training_client.train_batch = timed
    trainer.fit()
    print("CPU_SECONDS", json.dumps([b - a for a, b in itertools.pairwise(ended)]), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
