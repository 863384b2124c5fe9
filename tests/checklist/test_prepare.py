"""The reduced configuration is what it says, in every dialect; the ladder ends at the original."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.checklist.pairs import SAME, side
from trueup.checklist.check import compared
from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.ladder import expanded
from trueup.checklist.prepare import prepared, reduction
from trueup.checklist.readers import read_side, shell
from trueup.checklist.settings import SettingsDocument
from trueup.errors import ConfigError

SIDES = [name for group in SAME for name in group]
REDUCED = {
    "num_layers": 2,
    "lr_schedule": "constant",
    "warmup_steps": 0,
    "adam_eps": 1e-8,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "context_parallel": 1,
    "expert_parallel": 1,
    "optimizer_parallel": False,
    "sequence_parallel": False,
    "aux_loss_factor": 0.0,
    "graph_kernel_fusion": False,
    "recompute": "none",
    "seed": 1234,
}


def _read(folder: Path) -> Configuration:
    files = sorted(path for path in folder.iterdir() if path.name != "environment.sh" and path.is_file())
    return configured([document for path in files for document in read_side([str(path)])])


def _documents(name: str) -> list[SettingsDocument]:
    return read_side([side(name)])


@pytest.mark.parametrize("name", SIDES)
def test_reduced(name: str, tmp_path: Path) -> None:
    before = configured(_documents(name)).values
    result = prepared(_documents(name), tmp_path)
    after = _read(tmp_path).values
    left = {sentence.partition(" ")[0] for sentence in result.unreachable}
    for field, wanted in REDUCED.items():
        experts = after.get("num_experts")
        dense = field == "aux_loss_factor" and (experts is None or experts.value == 1)
        if field in after and field not in left and not dense:
            assert after[field].value == wanted, field
    assert left <= {"shuffle", "num_layers", "global_batch_size", "gradient_accumulation", "data_parallel"}
    kept = (
        "hidden_size",
        "num_heads",
        "vocab_size",
        "learning_rate",
        "compute_dtype",
        "adam_beta2",
        "norm_eps",
    )
    for field in kept:
        assert before.get(field) is None or after[field].value == before[field].value, field


@pytest.mark.parametrize("name", SIDES)
def test_the_environment_is_shell(name: str, tmp_path: Path) -> None:
    result = prepared(_documents(name), tmp_path)
    done = subprocess.run(
        ["bash", "-euc", f"source {result.environment}; echo $PYTHONHASHSEED"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "1234"
    text = result.environment.read_text()
    for name_ in (
        "HCCL_DETERMINISTIC",
        "ASCEND_LAUNCH_BLOCKING",
        "MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE",
    ):
        assert name_ in text
    framework = configured(_documents(name)).values.get("framework")
    assert "CUBLAS_WORKSPACE_CONFIG" in text or (framework and framework.value == "mindspore")


@pytest.mark.parametrize("group", [g for g in SAME if "torchtitan" not in g[0]], ids=lambda g: g[0])
def test_two_sides_that_agree_still_agree_when_reduced(group: tuple[str, ...], tmp_path: Path) -> None:
    sides = []
    for number, name in enumerate(group[:2]):
        prepared(_documents(name), tmp_path / str(number)) if (
            tmp_path / str(number)
        ).mkdir() is None else None
        sides.append(_read(tmp_path / str(number)))
    rows = [row for row in compared(sides[0], sides[1]).rows if row.matters]
    by_hand = {"shuffle", "data_order_seed"}
    assert {row.key for row in rows} <= by_hand


@pytest.mark.parametrize(
    "name", ["qwen3/megatron_tp.yaml", "qwen3/mindformers_tp.yaml", "mixtral/megatron.sh", "llama2/hf"]
)
def test_the_ladder_adds_one_feature_a_rung_and_ends_at_the_whole_job(name: str, tmp_path: Path) -> None:
    result = expanded(_documents(name), tmp_path)
    sides = [configured([d for path in rung.files for d in read_side([str(path)])]) for rung in result.rungs]
    assert sides[0].values["num_layers"].value == 2
    original = configured(_documents(name))
    assert not [row.key for row in compared(sides[-1], original).rows if row.matters]
    for rung, below, here in zip(result.rungs[1:], sides, sides[1:], strict=False):
        rows = [row for row in compared(here, below).rows if row.reference is not None]
        changed = {row.key for row in rows if row.status.value == "different"}
        changed |= {r.key for r in rows if r.status.value == "not_configurable" and r.key == "shuffle"}
        named = {text.partition(":")[0] for text in rung.adds}
        follows = {
            "data_parallel",
            "num_devices",
            "gradient_accumulation",
            "global_batch_size",
            "padded_vocab_size",
            "virtual_pipeline",
            "zero_level",
            "load_balancing",
            "decay_steps",
            "min_lr",
            "data_order_seed",
        }
        assert named & changed or rung is result.rungs[-1]
        assert changed <= named | follows
    names = [rung.name for rung in result.rungs]
    order = [
        "full size",
        "data parallel, whole batch",
        "tensor parallel",
        "sequence parallel",
        "pipeline parallel",
    ]
    assert [name for name in names if name in order] == [name for name in order if name in names]


def test_the_whole_batch_does_not_wait_for_the_pipeline(tmp_path: Path) -> None:
    """MindFormers counts microbatches at pp > 1 alone, accumulation steps at pp 1 alone."""
    documents = _documents("qwen3/mindformers_tp.yaml")
    whole = configured(documents).values["global_batch_size"].value
    result = expanded(documents, tmp_path)
    names = [rung.name for rung in result.rungs]
    assert names.index("data parallel, whole batch") < names.index("pipeline parallel")
    batches = [_side_value(rung.files[0], "global_batch_size") for rung in result.rungs]
    first = names.index("data parallel, whole batch")
    assert set(batches[first:]) == {whole} != {batches[0]}


def test_devices_follow_the_strategy(tmp_path: Path) -> None:
    result = expanded(_documents("qwen3/megatron_tp.yaml"), tmp_path)
    devices = [_side_value(rung.files[0], "num_devices") for rung in result.rungs]
    assert devices == [1, 1, 1, 2, 4, 4, 8, 8]


def _side_value(path: Path, field: str) -> object:
    return configured(read_side([str(path)])).values[field].value


def test_a_trace_cannot_be_reduced(tmp_path: Path) -> None:
    document = SettingsDocument(dialect="trace", path="x", settings={}, kind="trace")
    with pytest.raises(ConfigError, match="configuration or a command"):
        prepared([document], tmp_path)


REPEATED = """
context: {mode: 0, device_target: Ascend}
runner_config: {epochs: 1, batch_size: 1}
optimizer: {type: AdamW, eps: 1.0e-8}
lr_schedule: {type: ConstantWarmUpLR, learning_rate: 1.0e-4, warmup_steps: 0}
parallel_config: {data_parallel: 1, model_parallel: 1, pipeline_stage: 4, micro_batch_num: &micro 8}
model:
  model_config:
    {type: TYPE, num_layers: &layers 61, num_heads: 8, hidden_size: 512, vocab_size: 32000, DROPOUT}
moe_config:
  {expert_num: &experts 16, first_k_dense_replace: 3, aux_loss_factor: 0.05, aux_loss_factors: [0.0001]}
callbacks:
  - {type: TopkBiasBalanceCallback, num_layers: *layers, expert_num: *experts,
     micro_batch_num: *micro, depth: 61}
"""


def _reduced_yaml(text: str, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    result = prepared(read_side([str(path)]), tmp_path / "out")
    return cast("dict[str, Any]", yaml.safe_load(result.rungs[0].files[0].read_text()))


def test_a_value_written_once_changes_wherever_it_is_repeated(tmp_path: Path) -> None:
    """MindFormers' callback that balances experts counts layers and microbatches of the model."""
    data = _reduced_yaml(REPEATED.replace("TYPE", "LlamaConfig").replace(", DROPOUT", ""), tmp_path)
    callback = data["callbacks"][0]
    assert data["model"]["model_config"]["num_layers"] == callback["num_layers"] == 2
    assert data["parallel_config"]["micro_batch_num"] == callback["micro_batch_num"] == 1
    assert callback["expert_num"] == data["moe_config"]["expert_num"] == 16
    assert callback["depth"] == 61  # an equal number that is written for itself


def test_the_key_that_is_there_is_the_one_that_is_set(tmp_path: Path) -> None:
    """GPT2 and Bloom of MindFormers have ``hidden_dropout_rate``; DeepSeek has a list of factors."""
    names = ("hidden_dropout_rate", "attention_dropout_rate", "embedding_dropout_prob")
    rates = ", ".join(f"{name}: 0.1" for name in names)
    data = _reduced_yaml(REPEATED.replace("TYPE", "GPT2Config").replace("DROPOUT", rates), tmp_path)
    model = data["model"]["model_config"]
    assert {name: model[name] for name in names} == dict.fromkeys(names, 0.0)
    assert "hidden_dropout" not in model
    assert data["moe_config"]["aux_loss_factors"] == [0.0]
    assert data["moe_config"]["first_k_dense_replace"] == 1


def test_the_folder_that_was_written_is_a_side(tmp_path: Path) -> None:
    """``trueup check OUT/target OUT/reference``: the configuration, and the environment beside it."""
    _reduced_yaml(REPEATED.replace("TYPE", "LlamaConfig").replace(", DROPOUT", ""), tmp_path)
    kinds = [document.kind for document in read_side([str(tmp_path / "out")])]
    assert kinds == ["yaml", "environment"]
    (tmp_path / "out" / "other.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError, match="several configurations"):
        read_side([str(tmp_path / "out")])


def test_a_key_of_megatrons_yaml_stays_without_a_value(tmp_path: Path) -> None:
    """``--yaml-cfg`` is read without defaults: a key that is gone ends the program."""
    text = (
        "language_model: {num_layers: 24, hidden_size: 64, num_attention_heads: 4,\n"
        "  recompute_method: uniform, recompute_granularity: full, recompute_num_layers: 1}\n"
        "model_parallel: {tensor_model_parallel_size: 2, sequence_parallel: true, tp_comm_overlap: true}\n"
        "micro_batch_size: 2\nglobal_batch_size: 8\nlr: 1.0e-4\nlr_decay_style: cosine\ntrain_iters: 90\n"
        "lr_warmup_fraction: 0.1\nrampup_batch_size: [2, 2, 8]\nuse_distributed_optimizer: true\n"
    )
    data = _reduced_yaml(text, tmp_path)
    assert data["model_parallel"]["sequence_parallel"] is False
    assert data["use_distributed_optimizer"] is False
    assert data["lr_warmup_fraction"] is None
    assert data["rampup_batch_size"] is None
    assert data["language_model"]["recompute_granularity"] is None
    before = yaml.safe_load(text)
    assert before.keys() <= data.keys()
    assert all(before[key].keys() <= data[key].keys() for key in ("language_model", "model_parallel"))


LAYERED = (
    "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 6 --hidden-size 64 --num-attention-heads 4 "
    "--num-experts 4 --moe-layer-freq FREQ --lr 1e-4 --train-iters 9 --micro-batch-size 1"
)


@pytest.mark.parametrize(
    ("freq", "wanted"), [("'([0]*1+[1]*5)'", "([0,1])"), ("'[0,1,0,1,0,1]'", "([0,1])"), ("2", "2")]
)
def test_a_list_with_one_item_a_layer_is_as_long_as_the_layers(
    freq: str, wanted: str, tmp_path: Path
) -> None:
    """Megatron counts it when it builds the model; every rung has the list of its layers."""
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{LAYERED.replace('FREQ', freq)}\n")
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path / "out")
    first, last = (read_side([str(result.rungs[at].files[0])])[0].settings for at in (0, -1))
    assert (first["num_layers"].value, str(first["moe_layer_freq"].value)) == (2, wanted)
    assert (last["num_layers"].value, str(last["moe_layer_freq"].value)) == (6, freq.strip("'"))


def test_layer_types_of_a_model_are_as_many_as_its_layers(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 4
    model = {"model_type": "x", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**model, "architectures": ["X"], "layer_types": kinds}))
    result = prepared(read_side([str(path)]), tmp_path / "out")
    data = json.loads(result.rungs[0].files[0].read_text())
    assert (data["num_hidden_layers"], data["layer_types"]) == (2, kinds[:2])


def test_a_log_is_written_with_the_flags_that_set_it(tmp_path: Path) -> None:
    """Some arguments have another name in Megatron's log than the flag that sets them."""
    values = {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "normalization": "RMSNorm",
        "layernorm_epsilon": 1e-6,
        "layernorm_zero_centered_gamma": True,
        "fp8": "hybrid",
        "perform_initialization": False,
        "moe_layer_freq": [0, 1, 1, 1],
        "num_experts": 4,
        "lr": 1e-4,
        "tokenizer_type": "NullTokenizer",
        "mock_data": True,
        "micro_batch_size": 1,
        "train_iters": 9,
    }
    lines = "\n".join(f"  {key} {'.' * (40 - len(key))} {value}" for key, value in values.items())
    head, end = "------------------------ arguments ------------------------", "end of arguments"
    (tmp_path / "run.log").write_text(f"{head}\n{lines}\n-------------------- {end} ---------------------\n")
    result = prepared(read_side([str(tmp_path / "run.log")]), tmp_path / "out")
    words = shlex.split(result.rungs[0].files[0].read_text().partition("torchrun")[2])
    for wanted in (
        *(["--norm-epsilon", "1e-06"], ["--apply-layernorm-1p"], ["--moe-layer-freq", "([0,1])"]),
        *(["--tokenizer-type", "NullTokenizer"], ["--mock-data"]),
    ):
        at = words.index(wanted[0])
        assert words[at : at + len(wanted)] == wanted
    assert "--layernorm-epsilon" not in words


@pytest.mark.parametrize("name", ["hybrid_layer_pattern", "hybrid_override_pattern"])
def test_the_pattern_of_a_hybrid_model_is_cut_with_its_layers(name: str) -> None:
    flags = "--hidden-size 64 --num-attention-heads 4 --seq-length 32 --lr 1e-4"
    words = f"torchrun p.py --{name.replace('_', '-')} 'M*|M-/M' {flags}\n"
    (document,) = shell.documents(words, "run.sh")
    changes, _ = reduction([document], {})
    assert {
        key: value for one in changes for key, value in one.keys.items() if "layer" in key or "pattern" in key
    } == {
        "num_layers": 2,
        "noop_layers": None,
        "encoder_num_layers": None,
        name: "M*",
    }
