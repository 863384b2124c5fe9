"""verl's configurations: fields of RL, Hydra's words, and settings that differ and that no rule reads."""

from __future__ import annotations

import pprint
import re
from pathlib import Path

import pytest
import yaml

from trueup.checklist.check import Checklist, check
from trueup.checklist.configuration import configured
from trueup.checklist.document import to_json, training_headline
from trueup.checklist.readers import read_side
from trueup.checklist.writing import setting_words
from trueup.errors import ConfigError
from trueup.types.codes import ChecklistCode

CONFIG = """
actor_rollout_ref:
  model: {path: /models/qwen, use_remove_padding: true}
  actor:
    strategy: fsdp2
    loss_agg_mode: token-mean
    clip_ratio: 0.2
    use_kl_loss: true
    kl_loss_type: low_var_kl
    optim: {lr: 1e-6, betas: [0.9, 0.95]}
    fsdp_config: {dtype: bfloat16, model_dtype: fp32, param_offload: false}
    profiler: {tool: "${oc.select:global_profiler.tool,null}"}
    tau_pos: 1.0
  ref:
    strategy: ${actor_rollout_ref.actor.strategy}
    fsdp_config: {dtype: bfloat16}
  rollout: {name: vllm, n: 8, temperature: 1.0, top_p: 1, dtype: bfloat16, prompt_length: "${oc.select:data.max_prompt_length,512}"}
algorithm: {adv_estimator: grpo}
data: {train_batch_size: 128, max_prompt_length: 256}
trainer: {total_training_steps: 100, n_gpus_per_node: 8, nnodes: 1, experiment_name: one}
"""  # noqa: E501


def checked(folder: Path, target: str, reference: str = CONFIG) -> Checklist:
    files = [folder / "target.yaml", folder / "reference.yaml"]
    for file, text in zip(files, (target, reference), strict=True):
        file.write_text(text)
    return check([str(files[0])], [str(files[1])], recommend=False)


def values(source: str) -> dict[str, object]:
    return {name: one.value for name, one in configured(read_side([source])).values.items()}


def different(found: Checklist) -> set[str]:
    return {row.key for row in found.rows if row.matters}


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("token-mean", "seq-mean-token-sum", "loss_agg_mode"),
        ("low_var_kl", "kl", "kl_loss_type"),
        ("temperature: 1.0", "temperature: 0.7", "temperature"),
        ("adv_estimator: grpo", "adv_estimator: rloo", "adv_estimator"),
        ("use_remove_padding: true", "use_remove_padding: false", "remove_padding"),
        ("top_p: 1, dtype: bfloat16", "top_p: 1, dtype: float16", "rollout_dtype"),
    ],
)
def test_one_setting_that_differs_is_its_row(before: str, after: str, field: str, tmp_path: Path) -> None:
    found = checked(tmp_path, CONFIG.replace(before, after))
    assert different(found) == {field}
    assert (found.training, found.exit_code) == ("differ", 1)


def test_the_same_configuration_agrees(tmp_path: Path) -> None:
    assert checked(tmp_path, CONFIG).exit_code == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("experiment_name: one", "experiment_name: two"),  # a name
        ("low_var_kl", "k3"),  # another spelling
        ("clip_ratio: 0.2", "clip_ratio: 0.2\n    ppo_epochs: 1"),  # the default, stated
        ('prompt_length: "${oc.select:data.max_prompt_length,512}"', "prompt_length: 256"),
        ("global_profiler.tool", "global_profiler.other"),
    ],
)
def test_what_is_only_written_otherwise_agrees(before: str, after: str, tmp_path: Path) -> None:
    assert before in CONFIG
    found = checked(tmp_path, CONFIG.replace(before, after))
    keys = {one.key for one in found.not_judged}
    assert found.training == "agree", keys
    assert not different(found)


def test_a_setting_that_no_rule_reads_is_never_green(tmp_path: Path) -> None:
    found = checked(tmp_path, CONFIG.replace("tau_pos: 1.0", "tau_pos: 2.0"))
    assert (found.training, found.exit_code) == ("undecided", 2)
    assert training_headline(found).code is ChecklistCode.NOT_JUDGED
    wanted = {"key": "actor_rollout_ref.actor.tau_pos", "target": 2.0, "reference": 1.0}
    assert to_json(found)["not_judged"] == [wanted]
    one_sided = checked(tmp_path, CONFIG.replace("    tau_pos: 1.0\n", ""))
    assert [(one.target, one.reference) for one in one_sided.not_judged] == [(None, 1.0)]


def test_a_setting_that_a_rule_reads_stands_before_one_that_none_reads(tmp_path: Path) -> None:
    found = checked(tmp_path, CONFIG.replace("tau_pos: 1.0", "tau_pos: 2.0").replace("n: 8", "n: 4"))
    assert found.exit_code == 1


def test_words_of_a_command_and_overrides_are_the_same_document(tmp_path: Path) -> None:
    words = [
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.actor.optim.betas=[0.9,0.95]",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.rollout.n=8",
    ]
    file = tmp_path / "overrides.yaml"
    file.write_text("".join(f"- {word}\n" for word in words))
    found = values(f"python -m verl.trainer.main_ppo {' '.join(words)}")
    assert found == values(str(file))
    assert (found["adv_estimator"], found["rollouts_per_prompt"], found["adam_beta2"]) == ("grpo", 8, 0.95)
    assert found["loss_agg_mode"] == "token_mean"  # verl's default


def test_interpolations_are_followed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("top_p: 1,", 'top_p: "${oc.select:nothing.here,0.9}",'))
    assert values(str(file))["top_p"] == 0.9
    file.write_text(CONFIG.replace("{dtype: bfloat16}", '{dtype: "${actor_rollout_ref.rollout.dtype}"}'))
    assert values(str(file))["reference_compute_dtype"] == "bfloat16"
    file.write_text(CONFIG.replace("top_p: 1,", 'top_p: "${actor_rollout_ref.rollout.top_p}",'))
    configured(read_side([str(file)]))  # a circle ends


SCRIPT = """set -x
clip_high=0.28
length=$((1024 * 2))
ray job submit --no-wait --runtime-env="${ENV}" \\
    -- python3 -m recipe.dapo.main_dapo \\
    data.max_response_length=${length} \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.actor.clip_ratio_high=${clip_high} \\
    +actor_rollout_ref.model.override_config.attention_dropout=0. \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    actor_rollout_ref.rollout.n=8 $@
"""


def test_a_launch_script_of_verl(tmp_path: Path) -> None:
    """verl's examples are scripts of Hydra's words, without a flag of the training program."""
    for text in (SCRIPT, SCRIPT.replace('ray job submit --no-wait --runtime-env="${ENV}" \\\n    -- ', "")):
        file = tmp_path / "run.sh"
        file.write_text(text)
        found = values(str(file))
        assert found["clip_ratio_high"] == 0.28
        assert found["response_length"] == 2048
        assert (found["rollouts_per_prompt"], found["context_parallel"]) == (8, 2)
    other = tmp_path / "other.sh"
    other.write_text(SCRIPT.replace("clip_high=0.28", "clip_high=0.2"))
    assert different(check([str(other)], [str(file)], recommend=False)) == {"clip_ratio_high"}
    file.write_text("python -c 'a.b=1 c.d=2'\necho done\n")
    with pytest.raises(ConfigError):
        values(str(file))


def test_recommendations_for_a_script_of_verl_are_words_of_hydra(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    side = configured(read_side([str(file)]))
    assert setting_words(side, "adam_beta2", 0.95) == "'actor_rollout_ref.actor.optim.betas=[0.9, 0.95]'"
    assert setting_words(side, "shuffle", False) == "data.shuffle=False"


def test_prompts_of_a_step_are_no_microbatches_times_replicas(tmp_path: Path) -> None:
    """verl's batch holds prompts, of which each has several responses, in several updates."""
    file = tmp_path / "run.sh"
    file.write_text(
        SCRIPT.replace(
            "rollout.n=8",
            "rollout.n=5 data.train_batch_size=1024 trainer.n_gpus_per_node=8 "
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40",
        )
    )
    found = check([str(file)], [str(file)])
    assert "batch_adds_up" not in {one.key for one in found.unmet}


TRL = """
per_device_train_batch_size: 4
learning_rate: 1e-6
num_generations: 8
max_completion_length: 512
beta: 0.04
loss_type: dapo
epsilon: 0.2
temperature: 1.0
"""


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("dapo", "grpo", "loss_agg_mode"),
        ("beta: 0.04", "beta: 0.0", "kl_loss_factor"),
        ("epsilon: 0.2", "epsilon: 0.2\nepsilon_high: 0.28", "clip_ratio_high"),
        ("temperature: 1.0", "temperature: 0.7", "temperature"),
        ("num_generations: 8", "num_generations: 4", "rollouts_per_prompt"),
        ("beta: 0.04", "beta: 0.04\nscale_rewards: none", "norm_adv_by_std"),
        ("beta: 0.04", "beta: 0.04\nscale_rewards: batch", "adv_std_over"),
        ("beta: 0.04", "beta: 0.04\nimportance_sampling_level: sequence", "ratio_level"),
        ("beta: 0.04", "beta: 0.04\nmask_truncated_completions: true", "truncated_left_out"),
    ],
)
def test_arguments_of_trls_grpo(tmp_path: Path, before: str, after: str, field: str) -> None:
    assert field in different(checked(tmp_path, TRL.replace(before, after), TRL))
    assert not different(checked(tmp_path, TRL, TRL))


def test_a_value_stands_where_it_is_written_not_where_something_was_asked_before_it(tmp_path: Path) -> None:
    file = tmp_path / "grpo.yaml"
    file.write_text(TRL)
    found = configured(read_side([str(file)])).values["temperature"]
    assert found.settings[0].key == "temperature"


def test_the_same_deviation_and_ratio_by_default_or_by_name(tmp_path: Path) -> None:
    more = "scale_rewards: group\nimportance_sampling_level: token\nmask_truncated_completions: false\n"
    assert not different(checked(tmp_path, TRL + more, TRL))


def test_a_trainer_without_grpo_has_no_rl_fields(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text("per_device_train_batch_size: 4\nlr_scheduler_type: cosine\nbeta: 0.1\n")
    assert not {"kl_loss_factor", "adv_estimator", "temperature"} & values(str(file)).keys()


SLIME = (
    "python train.py --num-layers 36 --hidden-size 2560 --num-attention-heads 32 --lr 1e-6 "
    "--advantage-estimator grpo "
    "--eps-clip 0.2 --eps-clip-high 0.28 --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl "
    "--n-samples-per-prompt 8 --rollout-temperature 1.0 --rollout-max-response-len 8192"
)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("estimator grpo", "estimator gspo", "adv_estimator"),
        ("high 0.28", "high 0.2", "clip_ratio_high"),
        ("coef 0.001", "coef 0.01", "kl_loss_factor"),
        ("temperature 1.0", "temperature 0.8", "temperature"),
        ("--use-kl-loss", "", "kl_loss"),
        ("--lr 1e-6", "--lr 1e-6 --calculate-per-token-loss", "loss_agg_mode"),
        ("--lr 1e-6", "--lr 1e-6 --disable-grpo-std-normalization", "norm_adv_by_std"),
    ],
)
def test_flags_of_slime(tmp_path: Path, before: str, after: str, field: str) -> None:
    files = [tmp_path / "target.sh", tmp_path / "reference.sh"]
    files[0].write_text(SLIME.replace(before, after))
    files[1].write_text(SLIME)
    found = check([str(files[0])], [str(files[1])], recommend=False)
    assert field in different(found)
    assert not different(check([str(files[1])], [str(files[1])], recommend=False))


OPENRLHF = (
    "python -m openrlhf.cli.train_ppo_ray --pretrain /models/q --micro_train_batch_size 8 "
    "--train_batch_size 64 "
    "--n_samples_per_prompt 8 --temperature 1.0 --advantage_estimator group_norm --actor_learning_rate 5e-7 "
    "--use_kl_loss --kl_estimator k3 --init_kl_coef 0.001 --eps_clip_low_high 0.2 0.28"
)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("group_norm", "rloo", "adv_estimator"),
        ("estimator k3", "estimator k1", "kl_loss_type"),
        ("--use_kl_loss", "", "kl_in_reward"),
        ("coef 0.001", "coef 0.01", "kl_loss_factor"),
        ("0.2 0.28", "0.2 0.3", "clip_ratio_high"),
        ("5e-7", "1e-6", "learning_rate"),
        ("--temperature 1.0", "--temperature 0.8", "temperature"),
    ],
)
def test_flags_of_openrlhf(tmp_path: Path, before: str, after: str, field: str) -> None:
    files = [tmp_path / "target.sh", tmp_path / "reference.sh"]
    files[0].write_text(OPENRLHF.replace(before, after))
    files[1].write_text(OPENRLHF)
    assert field in different(check([str(files[0])], [str(files[1])], recommend=False))
    assert not different(check([str(files[1])], [str(files[1])], recommend=False))


def log_of(folder: Path, text: str, *, ray: bool = True, cut: bool = False) -> Path:
    """What verl prints of a configuration, as Ray shows it among what others print."""
    lines = pprint.pformat(yaml.safe_load(re.sub(r'"\$\{[^"]*\}"|\$\{[^}]*\}', '"4"', text))).splitlines()
    lines = lines[: len(lines) // 2] if cut else lines
    own, other = (
        ("\x1b[36m(TaskRunner pid=12)\x1b[0m ", "\x1b[36m(Worker pid=13)\x1b[0m ") if ray else ("", "")
    )
    between = f"{other}loading {{'a': 1}}" if ray else None
    said = ["ray init kwargs: {'num_cpus': 16}", f"{own}checking"]
    said += [line for one in lines for line in (f"{own}{one}", between) if line is not None]
    file = folder / "train.log"
    file.write_text("\n".join([*said, f"{own}step:1 - actor/loss:0.1"]) + "\n")
    return file


@pytest.mark.parametrize("ray", [True, False])
def test_a_console_log_has_the_configuration(ray: bool, tmp_path: Path) -> None:
    file = log_of(tmp_path, CONFIG, ray=ray)
    found = values(str(file))
    assert (found["loss_agg_mode"], found["kl_loss_type"], found["rollouts_per_prompt"]) == (
        "token_mean",
        "k3",
        8,
    )
    other = tmp_path / "reference.yaml"
    other.write_text(CONFIG.replace("token-mean", "seq-mean-token-sum"))
    rows = check([str(file)], [str(other)], recommend=False).rows
    (row,) = [one for one in rows if one.key == "loss_agg_mode"]
    assert row.matters
    (document,) = read_side([str(file)])
    assert {one.place for one in document.settings.values()} == {str(file)}


def test_a_log_that_ends_within_it_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_side([str(log_of(tmp_path, CONFIG, ray=False, cut=True))])
