"""Launch scripts, logs and configurations in the forms that Megatron-LM and MindFormers themselves have."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from trueup.checklist import check
from trueup.checklist.check import compared
from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.judging import DemandRow
from trueup.checklist.readers import log, mappings, opening, shell
from trueup.checklist.settings import SettingsDocument
from trueup.checklist.writing import changed, setting_words, written
from trueup.errors import ConfigError
from trueup.reporting.checklist_rows import shown

FLAGS = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --lr 1e-4 --bf16"
ARGUMENTS = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "lr": 0.0001,
    "bf16": True,
    "params_dtype": "torch.bfloat16",
    "lr_warmup_samples": 0,
    "lr_warmup_iters": 5,
    "layernorm_zero_centered_gamma": False,
    "align_grad_reduce": True,
    "spec": ["local"],
}
CORE = """\
use_legacy: {legacy}
runner_config: {{batch_size: 1}}
model:
  model_config:
    {model}
    hidden_size: 64
    num_layers: 4
"""


def script(text: str) -> SettingsDocument:
    return shell.documents(text, "run.sh")[0]


def side(*documents: SettingsDocument) -> Configuration:
    return configured(documents)


def core(model: str = "model_type: qwen3", *, legacy: bool = False) -> Configuration:
    return side(mappings.document(CORE.format(model=model, legacy=legacy), "core.yaml"))


def block(prefix: str = "", **changed: object) -> str:
    lines = [f"{prefix}  {key} {'.' * 20} {value}" for key, value in {**ARGUMENTS, **changed}.items()]
    return "\n".join([f"{prefix}---- arguments ----", *lines, f"{prefix}---- end of arguments ----", ""])


@pytest.mark.parametrize(
    "declared", ["", "declare -a ", "typeset -a ", "local -a ", "readonly ", "declare -ra "]
)
def test_an_array_that_is_declared(declared: str) -> None:
    found = script(f'{declared}ARGS=(\n  {FLAGS}\n)\ntorchrun p.py "${{ARGS[@]}}" --seed 7\n')
    assert found.settings["num_layers"].value == 4
    assert found.settings["seed"].value == 7
    assert not found.exports


@pytest.mark.parametrize(
    ("line", "exported"),
    [("export A=1", True), ("declare -x A=1", True), ("declare A=1", False), ("readonly A=1", False)],
)
def test_what_is_exported(line: str, exported: bool) -> None:
    assert ("A" in script(f"{line}\ntorchrun p.py {FLAGS}\n").exports) is exported


@pytest.mark.parametrize("word", ["$EXTRA", "${EXTRA_ARGS}", '"$@"', "${@:2}", "${MORE[@]}", "$(flags)"])
def test_an_open_word_is_no_second_value(word: str) -> None:
    found = script(f"torchrun p.py {FLAGS.replace('--lr 1e-4', f'--lr 1e-4 {word}')} {word} --seed 3\n")
    assert found.settings["lr"].value == 0.0001
    assert found.settings["bf16"].value is True


@pytest.mark.parametrize(("flag", "value"), [("--lr $LR", "${LR}"), ("--data-path 1 $DATA", [1, "${DATA}"])])
def test_an_open_word_is_the_value_where_one_is_due(flag: str, value: object) -> None:
    found = script(f"torchrun p.py {FLAGS} {flag}\n")
    assert found.settings[flag[2:].partition(" ")[0].replace("-", "_")].value == value


def test_a_message_is_no_value() -> None:
    found = script(
        f'DATA=${{1:?give the data}}\n: "${{TOK:?not set}}"\ntorchrun p.py {FLAGS} --data-path $DATA\n'
    )
    assert found.settings["data_path"].value == "${1}"


def test_a_command_in_quotes() -> None:
    inner = (
        f'set -e\n  torchrun p.py {FLAGS} --no-load-rng $([ "$X" = d ] && echo --deterministic-mode) --seed 3'
    )
    found = script(f"bash -c '{inner}'\n")
    assert found.settings["no_load_rng"].value is True
    assert found.settings["seed"].value == 3


def test_flags_that_turn_something_off_are_written_back() -> None:
    found = script(f"torchrun p.py {FLAGS} --no-gradient-accumulation-fusion --no-persist-layer-norm\n")
    text = written(found, changed(found, {"seed": 1}), remarks=[])
    assert "--no-gradient-accumulation-fusion" in text
    assert "--no-persist-layer-norm" in text
    assert not subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "0: ",
        "[default0]:",
        "[rank0]: ",
        "[2025-03-02 11:22:33] ",
        "(Actor pid=4411, ip=10.0.0.3) ",
        "[0]:",
    ],
)
def test_a_log_with_the_launchers_prefix(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(block(prefix))
    lines = log.arguments_of(path)
    assert lines is not None
    assert {key: one.value for key, one in log.document(lines, "train.log").settings.items()} == ARGUMENTS


def test_a_block_of_arguments_in_another_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_layers = 4"):
        log.document([(2, "  num_layers = 4"), (3, "  hidden_size = 64")], "train.log")


def both(tmp_path: Path, printed: str, flags: str) -> tuple[str, list[str]]:
    (tmp_path / "train.log").write_text(printed)
    (tmp_path / "run.sh").write_text(f"torchrun p.py {flags}\n")
    found = check([str(tmp_path / "train.log")], [str(tmp_path / "run.sh")])
    return found.training, [one.key for one in found.not_judged]


def test_a_log_lists_what_nobody_set(tmp_path: Path) -> None:
    flags = f"{FLAGS} --lr-warmup-iters 5"
    assert both(tmp_path, block(), flags) == ("agree", [])
    assert both(tmp_path, block(), f"{flags} --spec local") == ("agree", [])
    assert both(tmp_path, block(), f"{flags} --spec other") == ("undecided", ["spec"])
    assert both(tmp_path, block(), f"{flags} --made-up-flag 3") == ("undecided", ["made_up_flag"])


def test_megatron_settles_fusions_itself() -> None:
    learned = side(script(f"torchrun p.py {FLAGS}\n"))
    assert "rope_fusion" not in learned.values
    rotary = side(script(f"torchrun p.py {FLAGS} --position-embedding-type rope\n"))
    assert rotary.values["rope_fusion"].value is True
    assert learned.values["activation_fusion"].value is True
    assert "activation_fusion" not in side(script(f"torchrun p.py {FLAGS} --disable-bias-linear\n")).values


def test_core_models_of_mindformers_have_their_own_defaults() -> None:
    found, legacy = core().values, core("type: LlamaConfig", legacy=True).values
    assert (found["seq_length"].value, legacy["seq_length"].value) == (4096, 2048)
    assert (found["compute_dtype"].value, legacy["compute_dtype"].value) == ("bfloat16", "float16")
    assert found["qk_norm"].value is True
    assert core("model_type: qwen2").values["qk_norm"].value is False
    assert core("architectures: [Qwen3ForCausalLM]").values["qk_norm"].value is True
    assert "bos_token_id" not in found
    assert "router_version" not in core("model_type: qwen3_moe").values
    assert core("model_type: qwen3_moe").values["capacity_factor"].value == -1.0


def test_core_models_are_told_their_own_keys() -> None:
    moe = core("model_type: qwen3_moe\n    moe_aux_loss_coeff: 0.01\n    router_aux_loss_coef: 0.5")
    assert moe.values["aux_loss_factor"].value == 0.01
    assert setting_words(moe, "aux_loss_factor", 0.0) == "model.model_config.moe_aux_loss_coeff: 0.0"


def test_core_models_whose_sizes_are_elsewhere() -> None:
    text = CORE.format(model="model_type: qwen3", legacy=False).replace("    hidden_size: 64\n", "")
    found = side(mappings.document(text, "core.yaml"))
    assert "rope_theta" not in found.values
    assert any("pretrained_model_dir" in note for note in found.notes)
    assert not core().notes


def rows(target: str, reference: str) -> dict[str, DemandRow]:
    from trueup.checklist.check import compared

    found = compared(side(script(target)), side(script(reference)))
    return {row.key: row for row in found.rows}


@pytest.mark.parametrize(("factor", "matters"), [("0", False), ("0.01", True)])
def test_a_loss_that_is_off_has_no_form(factor: str, matters: bool) -> None:
    moe = f"torchrun p.py {FLAGS} --num-experts 8 --moe-aux-loss-coeff {factor}"
    moe += " --moe-router-load-balancing-type "
    assert rows(f"{moe}aux_loss\n", f"{moe}seq_aux_loss\n")["load_balancing"].matters is matters


@pytest.mark.parametrize(("window", "there"), [("32,0", False), ("16,0", True)])
def test_a_window_over_all_tokens_has_no_layers(window: str, there: bool) -> None:
    found = rows(f"torchrun p.py {FLAGS}\n", f"torchrun p.py {FLAGS} --window-size {window}\n")
    assert ("sliding_layers" in found) is there


def test_a_recipe_with_lines_of_a_script(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    path.write_text(
        "BEFORE_SCRIPT: |\n  python -m pip uninstall -y x\n"
        "MODEL_ARGS:\n  --num-layers: 6\n  --hidden-size: 8\n  --bf16: true\n"
    )
    assert opening.read_side([str(path)])[0].settings["num_layers"].value == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([0, 1, 2, 3], "0-3"),
        ([0, 1, 2, 4, 5, 6], "0, 1, 2, 4, 5, 6"),
        ([3, 7, 8, 9, 10, 2], "3, 7-10, 2"),
        ([True, 2], "True, 2"),
        ([], "none"),
    ],
)
def test_a_list_of_layers(value: list[object], text: str) -> None:
    assert shown(value) == text


def held(printed: dict[str, object], flags: str, folder: Path) -> set[str]:
    """What differs, or stays open, between a log with ``printed`` and the script that was started."""
    (folder / "train.log").write_text(block(**printed))
    (folder / "run.sh").write_text(f"torchrun p.py {flags}\n")
    found = check([str(folder / "train.log")], [str(folder / "run.sh")], recommend=False)
    rows = [row.key for row in (*found.rows, *found.undecided) if row.matters or row in found.undecided]
    return {*rows, *(one.key for one in found.not_judged)}


REST = FLAGS.replace("--num-layers 4 ", "")
PRINTED = [  # what Megatron-LM's parser makes of the flags, and the same flags with one change
    ({"encoder_num_layers": 4, "decoder_num_layers": 6}, "--encoder-num-layers 4 --decoder-num-layers 6", ""),
    (
        {"encoder_num_layers": 4, "decoder_num_layers": 6},
        "--encoder-num-layers 3 --decoder-num-layers 6",
        "num_layers",
    ),
    (
        {"encoder_num_layers": 4, "decoder_num_layers": 6},
        "--encoder-num-layers 4 --decoder-num-layers 5",
        "num_decoder_layers",
    ),
    ({"num_layers": 6, "hybrid_layer_pattern": "M-M|*-M"}, "--hybrid-layer-pattern M-M|*-M", ""),
    ({"num_layers": 6, "hybrid_layer_pattern": "M-M|*-M"}, "--hybrid-layer-pattern M-|M*-M", ""),
    ({"num_layers": 6, "hybrid_layer_pattern": "M-M*-M"}, "--hybrid-override-pattern M-M*-M", ""),
    ({"num_layers": 6, "hybrid_layer_pattern": "M-M*-M"}, "--hybrid-layer-pattern M*M--M", "layer_pattern"),
    (
        {"num_layers": 6, "hybrid_layer_pattern": "M-M*-M"},
        "--hybrid-layer-pattern M-M*-M-",
        "layer_pattern num_layers",
    ),
    (
        {"num_layers": 4, "hybrid_layer_pattern": "M-M*/M-/M-", "mtp_num_layers": 2},
        "--hybrid-layer-pattern M-M*/M-/M-",
        "",
    ),
    (
        {"num_layers": 4, "hybrid_layer_pattern": "M-M*/M-/M-", "mtp_num_layers": 2},
        "--hybrid-layer-pattern M-M*/M-",
        "num_mtp_layers",
    ),
    (
        {
            "optimizer": "muon",
            "use_distributed_optimizer": False,
            "use_layer_wise_distributed_optimizer": True,
        },
        "--num-layers 4 --optimizer muon --use-distributed-optimizer",
        "",
    ),
    (
        {
            "optimizer": "muon",
            "use_distributed_optimizer": False,
            "use_layer_wise_distributed_optimizer": True,
        },
        "--num-layers 4 --optimizer dist_muon",
        "",
    ),
    (
        {
            "optimizer": "muon",
            "use_distributed_optimizer": False,
            "use_layer_wise_distributed_optimizer": False,
        },
        "--num-layers 4 --optimizer muon --use-distributed-optimizer",
        "optimizer_parallel",
    ),
    ({"bert_binary_head": False}, "--num-layers 4 --bert-no-binary-head", ""),
    ({"bert_binary_head": True}, "--num-layers 4 --bert-no-binary-head", "bert_binary_head"),
    ({"no_persist_layer_norm": True}, "--num-layers 4 --no-persist-layer-norm", ""),
    ({"no_persist_layer_norm": False}, "--num-layers 4 --no-persist-layer-norm", "no_persist_layer_norm"),
    ({"use_mamba_mem_eff_path": False}, "--num-layers 4 --disable-mamba-mem-eff-path", ""),
    ({"exp_avg_dtype": "torch.float32"}, "--num-layers 4 --exp-avg-dtype fp32", ""),
    ({"exp_avg_dtype": "torch.float32"}, "--num-layers 4 --exp-avg-dtype bf16", "exp_avg_dtype"),
]


@pytest.mark.parametrize(("printed", "flags", "differs"), PRINTED)
def test_arguments_that_megatron_s_parser_calls_otherwise(
    printed: dict[str, object], flags: str, differs: str, tmp_path: Path
) -> None:
    quoted = " ".join(word if word.startswith("--") else f"'{word}'" for word in flags.split())
    assert held(printed, f"{REST} --lr-warmup-iters 5 {quoted}", tmp_path) == set(differs.split())


def test_a_recipe_s_text_is_split_as_the_shell_does(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    path.write_text("MODEL_ARGS:\n  --num-layers: 4\n  --lr: 0.1\n  --seed: 1\n  --spec: 'a.b c'\n")
    found = opening.read_side([str(path)])
    assert found[0].settings["spec"].value == ["a.b", "c"]


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("SchedulerType.COSINE", True),
        ("<SchedulerType.COSINE: 'cosine'>", True),
        ("SchedulerType.LINEAR", False),
        ("<SchedulerType.COSINE: 'linear'>", False),
    ],
)
def test_members_of_enums_as_python_prints_them(printed: str, same: bool, tmp_path: Path) -> None:
    """As ``print(training_arguments)`` and a file written from it have them."""
    files = []
    for name, kind in (("a.json", printed), ("b.json", "cosine")):
        plain = {"learning_rate": 1e-5, "max_steps": 10, "lr_scheduler_type": kind, "optim": "adamw_torch"}
        files.append(tmp_path / name)
        files[-1].write_text(json.dumps(plain))
    found = check([str(files[0])], [str(files[1])], recommend=False)
    assert (found.training == "agree") == same


@pytest.mark.parametrize(
    ("target", "reference", "differs"),
    [("--moe-router-dtype fp32", "", True), ("", "", False), ("--moe-router-dtype fp32",) * 2 + (False,)],
)
def test_a_dtype_that_one_of_two_scripts_of_one_program_sets(
    target: str, reference: str, differs: bool
) -> None:
    """Without the flag the router computes in the dtype of its input, here bfloat16."""
    moe = "--num-experts 8 --moe-router-topk 2"
    for sides in ((target, reference), (reference, target)):
        words = [f"torchrun p.py {FLAGS} {moe} {flags}\n" for flags in sides]
        rows = {r.key: r for r in compared(*(side(script(text)) for text in words)).rows if r.matters}
        assert ("router_dtype" in rows) == differs
