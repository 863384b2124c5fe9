"""Each dialect is recognised by what its file holds, and every value keeps its place."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.dialect import ValueOrigin
from trueup.checklist.readers import read_side
from trueup.errors import ConfigError

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "megatron log": (
        "[2026-01-01 10:00] starting\n------------ arguments ------------\n  num_layers ...... 4\n"
        "  bf16 ..... True\n  data_path .... ['/a', '/b']\n------- end of arguments -------\n iteration 1\n",
        "megatron",
        {"num_layers": 4, "compute_dtype": "bfloat16", "data_files": ["/a", "/b"]},
    ),
    "megatron yaml": (
        "language_model:\n  num_layers: 4\n  hidden_size: 8\n"
        "  num_attention_heads: 2\n  ffn_hidden_size: 12\n"
        "model_parallel:\n  tensor_model_parallel_size: 2\nlr: 1e-4\n",
        "megatron",
        {"num_layers": 4, "tensor_parallel": 2, "learning_rate": 1e-4, "intermediate_size": 12},
    ),
    "megatron recipe": (
        "ENV_VARS:\n  PYTHONHASHSEED: 3\nMODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 8\n"
        "  --num-attention-heads: 2\n  --disable-bias-linear: true\n  --sequence-parallel: false\n"
        "  --no-rope-fusion: true\n  --data-path: [/a, /b]\n",
        "megatron",
        {
            "num_layers": 4,
            "linear_bias": False,
            "sequence_parallel": False,
            "rope_fusion": False,
            "data_files": ["/a", "/b"],
            "hash_seed": "3",
        },
    ),
    "mindformers": (
        "model:\n  model_config:\n    num_layers: 4\n"
        "    hidden_size: 4096\n    multiple_of: 256\nrunner_wrapper:\n"
        "  use_clip_grad: True\n",
        "mindformers",
        {"num_layers": 4, "intermediate_size": 11008, "clip_grad": 1.0, "weight_decay_scope": "matrices"},
    ),
    "pynative": (
        "training_config:\n  seed: 42\nmodel_config:\n  num_layers: 4\n  position_embedding_type: 'rope'\n"
        "optimizer_config:\n  eps: 1.e-8\n  learning_rate_scheduler_kwargs:\n    warmup_steps: 200\n"
        "    decay_steps: 2000\n    use_cosine: True\n    end_learning_rate: 1.25e-7\n",
        "pynative",
        {"seed": 42, "lr_schedule": "cosine", "warmup_steps": 200, "min_lr": 1.25e-7, "adam_eps": 1e-8},
    ),
    "hugging face model": (
        '{"model_type": "qwen2", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_act": "silu"}',
        "hf_model",
        {"num_layers": 4, "num_kv_heads": 8, "qkv_bias": True, "activation": "swiglu"},
    ),
    "gpt2": (
        '{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "resid_pdrop": 0.1, '
        '"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}',
        "hf_model",
        {"num_layers": 2, "intermediate_size": 32, "activation": "gelu_tanh", "tie_embeddings": True},
    ),
    "training arguments": (
        '{"per_device_train_batch_size": 2, "optim": "adamw_torch", "warmup_ratio": 0.1, "max_steps": 200}',
        "hf_trainer",
        {"micro_batch_size": 2, "optimizer": "adamw", "warmup_steps": 20},
    ),
    "trainer state": (
        '{"global_step": 5, "max_steps": 50, "train_batch_size": 3, "log_history": []}',
        "hf_trainer",
        {"train_steps": 50, "micro_batch_size": 3},
    ),
    "deepspeed": (
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true}, '
        '"gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2}}',
        "deepspeed",
        {"global_batch_size": 64, "compute_dtype": "float16", "zero_level": 2, "loss_scaling": "dynamic"},
    ),
    "torchtitan": (
        '[job]\ndescription = "x"\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 64\n'
        "[optimizer]\nlr = 1e-3\n",
        "torchtitan",
        {"num_layers": 32, "intermediate_size": 14336, "seq_length": 64, "weight_decay_scope": "all"},
    ),
    "nemo": (
        "trainer:\n  devices: 8\n  num_nodes: 2\n  precision: bf16\n  max_steps: 100\n"
        "model:\n  encoder_seq_length: 64\n  tensor_model_parallel_size: 2\n"
        "  pipeline_model_parallel_size: 1\n"
        "  num_layers: 4\n  num_attention_heads: 8\n  activation: fast-swiglu\n  bias: false\n"
        "  normalization: layernorm1p\n  seq_len_interpolation_factor: 2.0\n"
        "  optim:\n    name: distributed_fused_adam\n    lr: 0.1\n    betas: [0.9, 0.95]\n"
        "    sched:\n      name: CosineAnnealing\n      warmup_steps: 5\n      constant_steps: 10\n",
        "nemo",
        {
            "num_kv_heads": 8,
            "activation": "swiglu",
            "compute_dtype": "bfloat16",
            "norm_zero_centered": True,
            "rope_scaling": "linear",
            "rope_scaling_factor": 2.0,
            "weight_decay_scope": "matrices",
            "adam_beta2": 0.95,
            "optimizer": "adamw",
            "decay_steps": 90,
            "data_parallel": 8,
            "tie_embeddings": True,
        },
    ),
    "llama factory": (
        "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_rank: 4\nlora_target: v_proj,q_proj\n"
        "template: t\ncutoff_len: 512\nneat_packing: true\nbf16: true\nwarmup_ratio: 0.1\nmax_steps: 50\n",
        "llamafactory",
        {
            "lora_alpha": 8.0,
            "lora_targets": ["q_proj", "v_proj"],
            "recompute": "full",
            "reset_attention_mask": True,
            "seq_length": 512,
            "warmup_steps": 5,
            "compute_dtype": "bfloat16",
        },
    ),
    "llama factory, all weights": (
        "finetuning_type: full\npure_bf16: true\nlora_rank: 4\n",
        "llamafactory",
        {"lora_rank": 0, "param_dtype": "bfloat16", "seq_length": 2048, "lr_schedule": "linear"},
    ),
    "axolotl": (
        "base_model: m\nmodel_type: LlamaForCausalLM\nadapter: lora\nlora_r: 4\nlora_target_linear: true\n"
        "datasets:\n- path: a/b\n  type: alpaca\nmicro_batch_size: 3\nlearning_rate: 2e-4\n"
        "cosine_min_lr_ratio: 0.1\nbf16: auto\nmax_steps: 1000\n",
        "axolotl",
        {
            "lora_targets": ["all"],
            "data_files": ["a/b"],
            "micro_batch_size": 3,
            "min_lr": 2e-5,
            "warmup_steps": 30,
            "lr_schedule": "cosine",
            "seq_length": 512,
        },
    ),
    "ms-swift": (
        "#!/bin/bash\nswift sft --model m --train_type full --torch_dtype bfloat16 \\\n"
        "--dataset a b --max_length 64\n",
        "swift",
        {
            "learning_rate": 1e-5,
            "weight_decay": 0.1,
            "adam_beta2": 0.95,
            "lora_rank": 0,
            "param_dtype": "bfloat16",
            "lr_schedule": "cosine",
            "data_files": ["a", "b"],
        },
    ),
    "torchtune": (
        "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 64}\n"
        "model:\n  _component_: torchtune.models.llama3_1.lora_llama3_1_8b\n"
        "  lora_attn_modules: [v_proj, q_proj]\n  apply_lora_to_mlp: true\n"
        "dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}\n"
        "optimizer: {_component_: torch.optim.AdamW, lr: 3e-4}\n"
        "batch_size: 2\ndtype: bf16\nclip_grad_norm: null\n",
        "torchtune",
        {
            "lora_rank": 8,
            "lora_targets": ["down_proj", "gate_proj", "q_proj", "up_proj", "v_proj"],
            "reset_position_ids": True,
            "param_dtype": "bfloat16",
            "weight_decay": 0.01,
            "lr_schedule": "constant",
            "clip_grad": 0.0,
        },
    ),
    "lightning": (
        "seed_everything: 7\ntrainer:\n  precision: bf16-mixed\n"
        "  accumulate_grad_batches: 4\n  max_steps: 10\n"
        "model:\n  class_path: m.GPT\n  init_args:\n    n_layer: 3\n"
        "optimizer:\n  class_path: torch.optim.AdamW\n"
        "  init_args:\n    lr: 0.1\n    betas: [0.9, 0.95]\n",
        "lightning",
        {"compute_dtype": "bfloat16", "num_layers": 3, "adam_beta2": 0.95, "seed": 7, "optimizer": "adamw"},
    ),
    "lightning with its defaults": (
        "trainer:\n  devices: 4\n  num_nodes: 2\n  strategy: ddp\n  precision: 16-mixed\n  max_steps: 100\n"
        "data:\n  class_path: m.Data\n  init_args:\n    batch_size: 3\n    shuffle: false\n"
        "optimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 0.1\n"
        "lr_scheduler:\n  class_path: torch.optim.lr_scheduler.CosineAnnealingLR\n"
        "  init_args:\n    T_max: 100\n    eta_min: 0.01\n",
        "lightning",
        {
            "adam_beta2": 0.999,
            "adam_eps": 1e-8,
            "weight_decay": 0.01,
            "loss_scaling": "dynamic",
            "param_dtype": "float32",
            "data_parallel": 8,
            "global_batch_size": 24,
            "lr_schedule": "cosine",
            "decay_steps": 100,
            "min_lr": 0.01,
            "shuffle": False,
            "deterministic": False,
        },
    ),
    "litgpt": (
        "model_config:\n  n_layer: 3\n  n_embd: 8\n  n_head: 2\n  norm_class_name: RMSNorm\n"
        "  mlp_class_name: LLaMAMLP\n  rope_base: 10000\nprecision: bf16-true\ndevices: 2\nseed: 1\n"
        "train:\n  global_batch_size: 16\n  micro_batch_size: 4\n  max_norm: 1.0\n  min_lr: 4.0e-05\n"
        "  lr_warmup_steps: 20\n  max_seq_length: 64\n  tie_embeddings: false\n"
        "optimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 0.0004\n    betas: [0.9, 0.95]\n",
        "lightning",
        {
            "num_layers": 3,
            "compute_dtype": "bfloat16",
            "param_dtype": "bfloat16",
            "activation": "swiglu",
            "global_batch_size": 16,
            "clip_grad": 1.0,
            "warmup_steps": 20,
            "min_lr": 4e-5,
            "adam_beta2": 0.95,
            "seed": 1,
            "seq_length": 64,
        },
    ),
    "plain": (
        "model:\n  n_layers: 3\n  d_model: 8\noptim:\n  lr: 1e-3\n  betas: [0.9, 0.99]\nrandom_seed: 5\n",
        "plain",
        {"num_layers": 3, "hidden_size": 8, "learning_rate": 1e-3, "seed": 5},
    ),
    "npu-smi": (
        "+------------------------------------------------+\n"
        "| npu-smi 24.1.0       Version: 24.1.0           |\n"
        "+---------------------------+--------------------+\n"
        "| NPU   Name                | Health             |\n"
        "| 0     910B2               | OK                 |\n",
        "environment",
        {"driver_version": "24.1.0"},
    ),
    "nvidia-smi": (
        "Mon Nov 23 08:00:00 2026\n+-------------------------------------------------------------------+\n"
        "| NVIDIA-SMI 560.35.03    Driver Version: 560.35.03    CUDA Version: 12.6   |\n"
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |    0 |\n",
        "environment",
        {"driver_version": "560.35.03", "cuda_version": None},
    ),
    "environment": (
        "# of the node\nexport HCCL_DETERMINISTIC=true  # on\nMS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE\n"
        "mindspore==2.4.10\ntorch-npu==2.1.0.post12\n",
        "environment",
        {"hccl_deterministic": True, "overflow_mode": "infnan", "mindspore_version": "2.4.10"},
    ),
}


def _side(*sources: Path | str) -> Configuration:
    return configured(read_side([str(source) for source in sources]))


def _values(side: Configuration, wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: side.values[name].value if name in side.values else None for name in wanted}


@pytest.mark.parametrize("wanted", [">=2.4", "~=2.4.0", ">2.3,<2.6", ">=2.4, !=2.5.0", "<3"])
def test_a_range_is_no_version(wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(f"torch{wanted}\ntransformers==4.51.3\n", encoding="utf-8")
    side = _side(path)
    assert side.values["transformers_version"].value == "4.51.3"
    assert "torch_version" not in side.values
    assert wanted in side.unreadable["torch_version"]


@pytest.mark.parametrize("name", CASES)
def test_dialect_and_values(name: str, tmp_path: Path) -> None:
    text, dialect, wanted = CASES[name]
    path = tmp_path / "nameless"
    path.write_text(text, encoding="utf-8")
    side = _side(path)
    assert side.documents[0].dialect == dialect
    assert _values(side, wanted) == wanted


def test_places_are_lines(tmp_path: Path) -> None:
    for name, line in (("mindformers", 3), ("torchtitan", 7), ("megatron log", 3), ("megatron recipe", 4)):
        path = tmp_path / name.replace(" ", "_")
        path.write_text(CASES[name][0], encoding="utf-8")
        field = "seq_length" if name == "torchtitan" else "num_layers"
        assert _side(path).values[field].settings[0].place == f"{path}:{line}"


def test_a_launch_script_is_gone_through_as_a_shell_would(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "#!/bin/bash\n"
        "export MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE\n"
        "LAYERS=${1:-4}\nNODES=2\nGPUS=$((4 * NODES))\nSIZE=big\n"
        'if [[ "$SIZE" == "small" ]]; then\n    HIDDEN=64\nelse\n    HIDDEN=128  # wide\nfi\n'
        "if [ -z ${UNKNOWN} ]; then\n  SEED=7\nfi\n"
        'MODEL=(\n    --num-layers $LAYERS\n    # --num-layers 99\n    --hidden-size "$HIDDEN"\n)\n'
        'MODEL+=("--num-attention-heads 8" --swiglu)\n'
        'TRAIN=" \\\n    --lr 1e-4 \\\n    --seed ${SEED} --no-rope-fusion --disable-bias-linear "\n'
        "for i in 1 2; do echo $i --num-layers 77; done\n"
        'case "${SIZE}" in small) MODEL+=(--sequence-parallel) ;;'
        " big) MODEL+=(--qk-layernorm) ;; *) exit 2;; esac\n"
        "if (( GPUS > 4 && NODES == 2 )); then\n  MODEL+=(--tensor-model-parallel-size 2)\nfi\n"
        'torchrun --nproc_per_node $GPUS pretrain_gpt.py "${MODEL[@]}" $TRAIN --bf16 \\\n'
        "    --data-path $DATA\n",
        encoding="utf-8",
    )
    side = _side(path)
    wanted = {
        "num_layers": 4,
        "hidden_size": 128,
        "num_heads": 8,
        "activation": "swiglu",
        "learning_rate": 1e-4,
        "seed": 7,
        "rope_fusion": False,
        "linear_bias": False,
        "compute_dtype": "bfloat16",
        "num_devices": 8,
        "overflow_mode": "infnan",
        "qk_norm": True,
        "sequence_parallel": False,
        "tensor_parallel": 2,
    }
    assert _values(side, wanted) == wanted
    assert side.values["num_layers"].settings[0].place == f"{path}:16"
    assert any("DATA" in note for note in side.notes)


def test_a_branch_only_the_shell_can_decide_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "#!/bin/bash\nA='--num-layers 2 --hidden-size 8'\n"
        "if [ $(hostname) = x ]; then\n  A='--num-layers 9'\nfi\n"
        "python pretrain_gpt.py $A\n",
        encoding="utf-8",
    )
    side = _side(path)
    assert side.values["num_layers"].value == 2
    assert any("line 3" in note for note in side.notes)


CHOICES = """#!/bin/bash
SIZE=$1
LR=$2
PRECISION=${3}
TP=${4:-1}
DEVICES=`python -c "import torch; print(torch.cuda.device_count())"`
if [ $SIZE = 1B ]; then
LAYERS=16
gqa_options=""
elif [ $SIZE = 8B ]; then
LAYERS=32
gqa_options=" \\
    --group-query-attention \\
    --num-query-groups 8"
fi
case $PRECISION in
  bf16) pr_options="--bf16" ;;
  fp16) pr_options="--fp16 --initial-loss-scale 4096" ;;
esac
if [ $TP -gt 1 ]; then
    sp_options="--sequence-parallel"
fi
STEPS=$(( 80000 / ${5:-8} ))
options="--num-layers ${LAYERS} --hidden-size 64 --num-attention-heads 8 --lr ${LR} --train-iters ${STEPS} \\
    --tensor-model-parallel-size ${TP} --load $6 ${sp_options}"
run_cmd="torchrun --nproc_per_node $DEVICES pretrain_gpt.py ${options} ${gqa_options} ${pr_options}"
eval ${run_cmd}
"""
"""a script whose arguments choose the model and its options"""


def test_a_script_is_read_with_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(CHOICES)
    side = _side(f"bash {path} 8B 1e-5 bf16 2 16 /weights")
    wanted = {
        "num_layers": 32,
        "num_kv_heads": 8,
        "learning_rate": 1e-5,
        "compute_dtype": "bfloat16",
        "sequence_parallel": True,
        "train_steps": 5000,
        "initial_weights": "/weights",
    }
    assert _values(side, wanted) == wanted
    small = _side(f"{path} 1B 1e-4 fp16")
    other = {
        "num_layers": 16,
        "num_kv_heads": 8,
        "compute_dtype": "float16",
        "loss_scale": 4096.0,
        "sequence_parallel": False,
        "tensor_parallel": 1,
        "train_steps": 10000,
    }
    assert _values(small, other) == other
    assert "`python -c " in small.unreadable["num_devices"]  # one word: its parts are no flags


def test_what_a_branch_may_set_is_not_taken_for_the_default(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(CHOICES)
    side = _side(path)
    assert side.values["hidden_size"].value == 64
    for field in ("compute_dtype", "num_layers", "num_kv_heads", "loss_scale"):
        assert field not in side.values
    assert "pr_options" in side.unreadable["compute_dtype"]
    assert side.values["initial_weights"].value == "${6}"  # and not the variable of options after it
    assert side.values["sequence_parallel"].value is False  # $4 has a default: decided
    assert any("line 7, 10, 16" in note for note in side.notes)


def test_arguments_move_up_by_shift(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "#!/bin/bash\nNAME=$1\nshift\n"
        "python pretrain_gpt.py --num-layers $1 --hidden-size 8 --seed $# --lr $2\n"
    )
    wanted = {"num_layers": 3, "seed": 2, "learning_rate": 0.1}
    assert _values(_side(f"sh {path} x 3 0.1"), wanted) == wanted


def test_a_flag_without_its_number_is_not_one(tmp_path: Path) -> None:
    side = _side("python pretrain_gpt.py --num-layers --hidden-size 8 --lr --swiglu")
    assert {"num_layers", "learning_rate"} <= side.unreadable.keys()
    assert side.values["hidden_size"].value == 8


def test_text_is_no_number_to_compute_with(tmp_path: Path) -> None:
    side = _side("python pretrain_gpt.py --num-layers 2 --hidden-size ${H} --num-attention-heads 2")
    assert "'${H}' is not a number" in side.unreadable["intermediate_size"]


def test_files_a_command_names_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CASES["mindformers"][0])
    (tmp_path / "run.sh").write_text(
        '#!/bin/bash\nbash msrun_launcher.sh "run_mindformer.py --config run.yaml --use_parallel True" 8\n'
    )
    side = _side(tmp_path / "run.sh")
    assert [document.dialect for document in side.documents] == ["mindformers"]
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": 8}')
    (tmp_path / "hf.sh").write_text(
        "#!/bin/bash\ndeepspeed train.py --deepspeed ds.json --learning_rate 1e-3 --max_grad_norm 0.5\n"
    )
    side = _side(tmp_path / "hf.sh")
    assert [document.dialect for document in side.documents] == ["hf_trainer", "deepspeed"]
    assert side.values["zero_level"].value == 2
    (tmp_path / "ds.json").unlink()
    assert any("ds.json" in note for note in _side(tmp_path / "hf.sh").notes)


def test_a_command_of_another_program_is_refused() -> None:
    with pytest.raises(ConfigError, match="no flag of Megatron-LM"):
        read_side(["python x.py --foo 1 --bar"])


def test_nothing_in_a_script_is_run(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    witness = tmp_path / "witness"
    path.write_text(
        f"#!/bin/bash\ntouch {witness}\nX=$(touch {witness})\n"
        f"python train.py --num-layers `touch {witness}` --lr 1\n",
        encoding="utf-8",
    )
    _side(path)
    assert not witness.exists()


class Mischief:
    """Pickles as a call that would leave a file behind."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.witness,)


def test_checkpoint_arguments_are_read_without_unpickling(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    arguments = argparse.Namespace(
        num_layers=6,
        bf16=True,
        lr=1e-3,
        data_path=["/x"],
        kv_channels=None,
        path=Path("/a"),
        evil=Mischief(witness),
    )
    folder = tmp_path / "ckpt" / "iter_0000010" / "mp_rank_00"
    folder.mkdir(parents=True)
    (tmp_path / "ckpt" / "latest_checkpointed_iteration.txt").write_text("10")
    (folder / "model_optim_rng.pt").write_bytes(
        pickle.dumps({"args": arguments, "model": {"w": [1.0, (2, 3)]}, "iteration": 10})
    )
    side = _side(tmp_path / "ckpt")
    wanted = {"num_layers": 6, "compute_dtype": "bfloat16", "learning_rate": 1e-3, "data_files": ["/x"]}
    assert _values(side, wanted) == wanted
    assert not witness.exists()


@pytest.mark.torch
@pytest.mark.parametrize("legacy", [False, True])
def test_checkpoint_of_torch_save(legacy: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "model_optim_rng.pt"
    content = {
        "args": argparse.Namespace(num_layers=3, params_dtype=torch.bfloat16, adam_eps=1e-6),
        "model": {"w": torch.ones(2, 2)},
    }
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    assert _side(path).values["num_layers"].value == 3


def test_several_files_describe_one_side(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    (tmp_path / "training_args.json").write_text('{"optim": "adamw_torch", "max_grad_norm": 0.5}')
    (tmp_path / "ds_config.json").write_text('{"gradient_clipping": 1.0, "zero_optimization": {"stage": 1}}')
    (tmp_path / "env.txt").write_text("PYTHONHASHSEED=3\n")
    folder = _side(tmp_path)
    assert [d.dialect for d in folder.documents] == ["hf_model", "hf_trainer", "deepspeed"]
    joined = _side(",".join(str(tmp_path / n) for n in ("config.json", "training_args.json", "env.txt")))
    assert _values(joined, {"num_layers": 0, "clip_grad": 0, "hash_seed": 0}) == {
        "num_layers": 2,
        "clip_grad": 0.5,
        "hash_seed": "3",
    }
    assert any("clip_grad" in note and "0.5" in note and "1.0" in note for note in folder.notes)


def test_what_a_file_sets_stands_before_the_default_of_another(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"optim": "adamw_torch"}')
    (tmp_path / "b.json").write_text('{"gradient_clipping": 0.3, "zero_optimization": {}}')
    value = _side(f"{tmp_path / 'a.json'},{tmp_path / 'b.json'}").values["clip_grad"]
    assert (value.value, value.origin) == (0.3, ValueOrigin.SET)


def test_what_cannot_be_a_value_is_said_and_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\npython pretrain_gpt.py --num-layers $LAYERS --hidden-size 8 --swiglu\n")
    side = _side(path)
    assert "num_layers" not in side.values
    assert "LAYERS" in side.unreadable["num_layers"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "got nothing"),
        ("[1, 2]", "a list of 2"),
        ("just words", "text"),
        ('{"a": ', "not a configuration"),
        ("#!/bin/bash\necho hello\n", "no training command"),
        ("a: [1\nb: 2", "not a configuration"),
    ],
)
def test_what_is_no_configuration_is_refused_by_name(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_side([str(path)])
    assert str(path) in str(caught.value)


def test_a_trace_is_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "scalars").mkdir()
    manifest = {
        "schema_version": 1,
        "framework": "pytorch",
        "framework_version": "2.13.0",
        "seed": 3,
        "deterministic_algorithms": True,
        "environment": {"PYTHONHASHSEED": "1"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    groups = [
        {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1, "num_params": 3},
        {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.0, "num_params": 5},
    ]
    rank = {
        "optimizers": [{"class": "AdamW", "groups": groups}],
        "configuration": {"": {"model_type": "llama", "num_hidden_layers": 2, "rms_norm_eps": 1e-6}},
    }
    (tmp_path / "ranks" / "rank_00000.json").write_text(json.dumps(rank))
    (tmp_path / "scalars" / "rank_00000.jsonl").write_text(
        '{"batch_size": 8, "microbatches": 2, "global_batch_size": 8}\n'
    )
    wanted = {
        "num_layers": 2,
        "adam_eps": 1e-6,
        "weight_decay": 0.1,
        "weight_decay_scope": "matrices",
        "micro_batch_size": 4,
        "deterministic": True,
        "torch_version": "2.13.0",
        "optimizer": "adamw",
    }
    assert _values(_side(tmp_path), wanted) == wanted


def test_sections_of_megatron_s_yaml_in_its_log(tmp_path: Path) -> None:
    """As argparse prints what ``--yaml-cfg`` gave it."""
    log = tmp_path / "run.log"
    log.write_text(
        "------------------------ arguments ------------------------\n"
        "  language_model ......... namespace(num_layers=24, activation_func='swiglu', "
        "num_moe_experts=None, window_size=(128, 0), init_method=<function init at 0x7f>, "
        "inner=namespace(hidden_size=64))\n"
        "  model_parallel ......... namespace(params_dtype=torch.bfloat16, bf16=True)\n"
        "  lr .............................................. 0.001\n"
        "-------------------- end of arguments ---------------------\n"
    )
    (found,) = read_side([str(log)])
    values = {key: one.value for key, one in found.settings.items()}
    assert values["num_layers"] == 24
    assert values["hidden_size"] == 64
    assert values["window_size"] == [128, 0]
    assert (values["init_method"], values["params_dtype"]) == ("init", "torch.bfloat16")
    assert values["lr"] == 0.001
    assert "language_model" not in values


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, '{"a": ' * 5000, "a: " + "[" * 300 + "]" * 300, "{a: " * 300],
    ids=["lists", "objects", "closed", "flow"],
)
def test_what_is_nested_too_deeply_is_refused(text: str, tmp_path: Path) -> None:
    """The parser in C calls itself at each level: the process ended."""
    for name in ("deep.yaml", "deep.json"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=r"nested deeper than 100 levels at line 1"):
            read_side([str(tmp_path / name)])


def test_aliases_that_repeat_each_other_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="aliases stand for more than"):
        read_side([str(tmp_path / "bomb.yaml")])
    (tmp_path / "few.yaml").write_text("num_layers: &n 4\nother: *n\nhidden_size: 8\n")
    assert read_side([str(tmp_path / "few.yaml")])
