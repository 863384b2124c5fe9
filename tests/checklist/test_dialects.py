"""The dialects' data: defaults as the frameworks have them, translations that are usual mistakes."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.checklist.test_readers import CASES
from trueup.checklist.configuration import configured
from trueup.checklist.dialect import ValueOrigin, dialects, writes
from trueup.checklist.expression import NOTHING, parsed
from trueup.checklist.fields import canonical, fields
from trueup.checklist.readers import read_side
from trueup.checklist.rules import rules
from trueup.checklist.writing import changed, written
from trueup.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
ANCHOR_KEYS = Path(__file__).parent / "pynative_keys.yaml"


def _values(text: str, folder: Path) -> dict[str, Any]:
    path = folder / "file"
    path.write_text(text, encoding="utf-8")
    return {name: v.value for name, v in configured(read_side([str(path)])).values.items()}


def test_defaults_of_training_arguments_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    known = {f.name: f.default for f in dataclasses.fields(transformers.TrainingArguments)}
    checked = 0
    for key, text in dialects()["hf_trainer"].defaults.items():
        expression = parsed(str(text))
        if key in known and not expression.names:
            assert known[key] == expression.evaluate(NOTHING), key
            checked += 1
    assert checked > 12


def test_defaults_of_pynative_are_the_published_ones() -> None:
    published = yaml.safe_load(ANCHOR_KEYS.read_text())
    dialect = dialects()["pynative"]
    sections = {"m": "model_config", "moe": "moe_config", "t": "training_config", "p": "parallel_config",
                "d": "dataset_config", "o": "optimizer_config", "lora": "lora_config"}  # fmt: skip
    checked = 0
    for key, text in dialect.defaults.items():
        root, _, name = key.partition(".")
        known = published.get(sections.get(root, ""), {})
        expression = parsed(str(text))
        if name in known and not expression.names:
            off = known[name] is None and expression.evaluate(NOTHING) in (1, 0.0, -1.0, "none", 1000, 2)
            assert off or known[name] == expression.evaluate(NOTHING), key
            checked += 1
    assert checked > 40


def test_every_field_of_a_rule_can_be_read_in_some_dialect() -> None:
    read = {
        name for dialect in dialects().values() if dialect.title != "plain file" for name in dialect.fields
    }
    derived = {name for name, spec in fields().all.items() if spec.derive}
    ruled = {rule.field for file in rules().values() for rule in file if rule.field}
    assert ruled - read - derived == {"head_dtype", "bias_add_dtype"}  # fixed in every framework's code


def test_megatron_without_bf16_and_fp16_is_float32(tmp_path: Path) -> None:
    command = "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2"
    values = _values(f"#!/bin/bash\n{command}\n", tmp_path)
    assert (values["compute_dtype"], values["grad_comm_dtype"]) == ("float32", "float32")
    assert _values(f"#!/bin/bash\n{command} --bf16\n", tmp_path)["grad_comm_dtype"] == "float32"
    assert (
        _values(f"#!/bin/bash\n{command} --bf16 --grad-reduce-in-bf16\n", tmp_path)["grad_comm_dtype"]
        == "bfloat16"
    )
    assert _values(f"#!/bin/bash\n{command} --fp16\n", tmp_path)["loss_scaling"] == "dynamic"


def test_megatron_groups_are_one_unless_told(tmp_path: Path) -> None:
    command = "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 4"
    assert _values(f"#!/bin/bash\n{command} --num-query-groups 2\n", tmp_path)["num_kv_heads"] == 4
    assert _values(f"#!/bin/bash\n{command} --group-query-attention\n", tmp_path)["attention"] == "mqa"
    both = f"{command} --group-query-attention --num-query-groups 2"
    assert _values(f"#!/bin/bash\n{both}\n", tmp_path)["attention"] == "gqa"


def test_megatron_feed_forward_and_vocabulary_as_its_code_computes_them(tmp_path: Path) -> None:
    command = (
        "python pretrain_gpt.py --num-layers 2 --hidden-size 4096 --num-attention-heads 4 --vocab-size 50257"
    )
    values = _values(f"#!/bin/bash\n{command} --swiglu --tensor-model-parallel-size 8\n", tmp_path)
    assert values["intermediate_size"] == 10880  # int(4 * 4096 * 2 / 3 / 64) * 64
    assert values["padded_vocab_size"] == 51200  # the next multiple of 128 * 8
    assert _values(f"#!/bin/bash\n{command}\n", tmp_path)["intermediate_size"] == 16384


def test_mindformers_gradients_travel_in_the_dtype_of_the_weights(tmp_path: Path) -> None:
    text = "model:\n  model_config:\n    num_layers: 2\n    param_init_type: '{}'\n"
    for dtype in ("float32", "bfloat16"):
        assert _values(text.format(dtype), tmp_path)["grad_comm_dtype"] == dtype


@pytest.mark.parametrize(
    ("multiplier", "multiple", "wanted"), [(None, 256, 11008), (1.3, 1024, 14336), (None, 4096, 12288)]
)
def test_mindformers_width_from_multiple_of(
    multiplier: float | None, multiple: int, wanted: int, tmp_path: Path
) -> None:
    line = "" if multiplier is None else f"    ffn_dim_multiplier: {multiplier}\n"
    text = f"model:\n  model_config:\n    hidden_size: 4096\n    multiple_of: {multiple}\n{line}"
    assert _values(text, tmp_path)["intermediate_size"] == wanted


MOE = "--num-experts 8 --moe-router-topk 2"
BASE = "python pretrain_gpt.py --num-layers 4 --hidden-size 8 --num-attention-heads 2"


@pytest.mark.parametrize(
    ("flags", "config", "field", "value"),
    [
        ("--lr 1e-3 --decoupled-lr 1e-4", {}, "embedding_learning_rate", 1e-4),
        ("--lr 1e-3", {}, "embedding_learning_rate", 1e-3),
        (
            "--window-size 128 --window-attn-skip-freq 2",
            {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 128},
            "sliding_layers",
            [0, 2],
        ),
        (
            "--no-rope-freq [0,0,0,1] --position-embedding-type rope",
            {"no_rope_layers": [1, 1, 1, 0]},
            "unrotated_layers",
            [3],
        ),
        (
            f"{MOE} --moe-layer-freq ([0]*1+[1]*1+[0]*1+[1]*1)",
            {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "mlp_only_layers": [2]},
            "dense_layers",
            [2],
        ),
        (
            f"{MOE} --moe-layer-freq 2",
            {"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
            "expert_layer_step",
            2,
        ),
        (
            "--rope-scaling-type yarn --rope-scaling-mscale 0.7",
            {"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 0.7}},
            "rope_mscale",
            0.7,
        ),
        (
            "--use-rope-scaling",
            {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
            "rope_high_freq_factor",
            4.0,
        ),
    ],
)
def test_what_differs_by_layer_or_group_reads_alike(
    flags: str, config: dict[str, Any], field: str, value: Any, tmp_path: Path
) -> None:
    assert _values(f"#!/bin/bash\n{BASE} {shlex.join(flags.split())}\n", tmp_path)[field] == value
    if config:
        base = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 8, "num_attention_heads": 2}
        assert _values(json.dumps(base | config), tmp_path)[field] == value


def test_high_precision_mode_and_the_other_ascend_settings(tmp_path: Path) -> None:
    values = _values(
        "model:\n  model_config:\n    num_layers: 2\n"
        "context:\n  enable_graph_kernel: True\n  deterministic: 'ON'\n"
        "  ascend_config:\n    precision_mode: must_keep_origin_dtype\n"
        "    ge_options:\n      global:\n        ge.opSelectImplmode: high_precision\n",
        tmp_path,
    )
    wanted = {"operator_precision": "high_precision", "graph_kernel_fusion": True, "deterministic": True}
    assert {name: values[name] for name in wanted} == wanted
    assert values["precision_mode"] == "must_keep_origin_dtype"


def test_a_default_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(CASES["deepspeed"][0])
    value = configured(read_side([str(path)])).values["loss_scale_window"]
    assert (value.origin, value.says) == (ValueOrigin.DEFAULT, "DeepSpeed 0.16")


WRITTEN = (
    *("megatron yaml", "mindformers", "pynative", "hugging face model"),
    *("training arguments", "deepspeed", "torchtitan", "nemo"),
    *("llama factory", "axolotl", "torchtune"),
)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    """The keys a dialect names for a value of a field give the field that value; what is not set is none."""
    path = tmp_path / "file"
    path.write_text(CASES[name][0])
    document = read_side([str(path)])[0]
    dialect = dialects()[document.dialect]
    tried = 0
    for field, table in dialect.write.items():
        for value in table:
            keys = None if value == "*" else writes(dialect, document, field, value)
            if not keys:
                continue
            path.write_text(written(document, changed(document, keys), remarks=[]))
            again = configured(read_side([str(path)])).values
            read = again[field].value if field in again else "none"
            code = field in dialect.not_configurable and read == "none"
            assert code or read == canonical(value, fields().spec(field)), (field, value)
            tried += 1
    assert tried


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a.b()", "(lambda: 1)()", "[x for x in y]", "1 if", "f'{a}'"]
)
def test_an_expression_is_only_an_expression(text: str) -> None:
    with pytest.raises(ConfigError, match="not an expression"):
        parsed(text)


def test_what_a_settled_operand_decides_an_unset_one_does_not_unsettle() -> None:
    assert parsed("unset and False").evaluate(NOTHING) is False
    assert parsed("unset or True").evaluate(NOTHING) is True
    assert parsed("first(unset, 3)").evaluate(NOTHING) == 3
    assert parsed("leading_zeros('([0]*3+[1]*2)')").evaluate(NOTHING) == 3


def test_the_page_of_fields_is_the_one_the_data_makes() -> None:
    namespace = runpy.run_path(str(DOCS / "make_check_fields.py"))
    assert (DOCS / "check-fields.md").read_text() == namespace["page"](), (
        "run python docs/make_check_fields.py"
    )


YAML_CFG = """
language_model:
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 8
  num_query_groups: {groups}
  ffn_hidden_size: null
  activation_func: {activation}
  num_moe_experts: {experts}
  moe_ffn_hidden_size: 32
  normalization: RMSNorm
  layernorm_epsilon: 1.e-5
  add_bias_linear: False
  init_method: null
model_parallel: {{tensor_model_parallel_size: 2, bf16: True}}
group_query_attention: False
lr: 1.e-3
"""


@pytest.mark.parametrize(
    ("changed", "flags"),
    [
        ({}, "--swiglu"),
        ({"groups": 2}, "--swiglu --group-query-attention --num-query-groups 2"),
        ({"experts": 8}, "--swiglu --num-experts 8"),
        ({"activation": "squaredrelu"}, "--squared-relu"),
        ({"activation": "gelu"}, "--no-bias-gelu-fusion"),
    ],
)
def test_megatron_s_yaml_says_what_its_flags_say(
    changed: dict[str, object], flags: str, tmp_path: Path
) -> None:
    """The names of its configuration class: no flag says whether heads share keys."""
    file = tmp_path / "gpt.yaml"
    file.write_text(
        YAML_CFG.format(**({"groups": "null", "experts": "null", "activation": "swiglu"} | changed))
    )
    command = (
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 "
        "--normalization RMSNorm --norm-epsilon 1e-5 "
        "--disable-bias-linear --tensor-model-parallel-size 2 --bf16 --lr 1e-3 "
        f"--moe-ffn-hidden-size 32 {flags}"
    )
    left, right = (configured(read_side([one])) for one in (str(file), command))
    for key in ("activation", "num_experts", "num_kv_heads", "intermediate_size", "moe_intermediate_size"):
        assert (key in left.values) == (key in right.values), key
        if key in left.values:
            assert left.values[key].value == right.values[key].value, key
