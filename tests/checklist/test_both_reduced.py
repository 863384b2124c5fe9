"""Both sides reduced and climbed up again: aligned on every rung, able to start, environment kept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.checklist.guided import BASES, MEGATRON, MINDFORMERS
from tests.checklist.pairs import pairs, side
from trueup.checklist.both_sides import reduced_together
from trueup.checklist.check import compared
from trueup.checklist.configuration import configured
from trueup.checklist.ladder import NUMBERS, expanded
from trueup.checklist.prepare import prepared
from trueup.checklist.readers import read_side
from trueup.cli.app import run

BY_HAND = {"llama3/torchtitan.toml": {"num_layers"}}
"""a side that cannot be reduced in its own form -> the fields that it says are to be set by hand"""


@pytest.mark.parametrize(("target", "reference"), pairs())
def test_every_rung_is_the_same_training_on_both_sides(target: str, reference: str, tmp_path: Path) -> None:
    sides = [read_side([side(name)]) for name in (target, reference)]
    result = reduced_together(*sides, tmp_path, ladder=True)
    by_hand = BY_HAND.get(target, set())
    for pair in result.pairs:
        assert set(pair.differs) <= by_hand, pair.name
    assert [p.name for p in result.pairs] == sorted((p.name for p in result.pairs), key=NUMBERS.__getitem__)
    left = {text.partition(" ")[0] for text in result.sides["target"].unreachable}
    assert by_hand <= left


@pytest.mark.parametrize(("target", "reference"), pairs()[::3])
def test_rungs_of_one_number_are_aligned_though_each_side_was_written_alone(
    target: str, reference: str, tmp_path: Path
) -> None:
    rungs = []
    for number, name in enumerate((target, reference)):
        (tmp_path / str(number)).mkdir()
        result = expanded(read_side([side(name)]), tmp_path / str(number))
        rungs.append({rung.files[0].parent.name: rung.files for rung in result.rungs})
    common = rungs[0].keys() & rungs[1].keys()
    assert {"00_reduced", "13_whole_job"} <= common
    for name in common:
        one, other = (configured([d for p in r[name] for d in read_side([str(p)])]) for r in rungs)
        rows = compared(one, other, recommend=False).rows
        assert {row.key for row in rows if row.matters} <= BY_HAND.get(target, set()), name


def test_the_order_of_the_data_has_one_seed(tmp_path: Path) -> None:
    """MindFormers' data loader has a seed of its own; Megatron shuffles by the seed of the run."""
    text = MINDFORMERS.replace("config: {seed: 1234", "config: {seed: 77").replace(
        " deterministic: 'ON',", ""
    )
    (tmp_path / "a.yaml").write_text(text.replace("seed: 1234\nuse", "seed: 77\nuse"))
    (tmp_path / "b.sh").write_text(MEGATRON.replace("--seed 1234", "--seed 77"))
    result = reduced_together(
        read_side([str(tmp_path / "a.yaml")]),
        read_side([str(tmp_path / "b.sh")]),
        tmp_path / "out",
        ladder=True,
    )
    assert [(pair.name, pair.differs) for pair in result.pairs if pair.differs] == []
    data = yaml.safe_load((tmp_path / "out" / "target" / "00_reduced" / "a.yaml").read_text())
    assert data["train_dataset"]["data_loader"]["config"]["seed"] == 1234
    assert "seed" not in data["train_dataset"], "a key that was not there"
    whole = yaml.safe_load((tmp_path / "out" / "target" / "13_whole_job" / "a.yaml").read_text())
    assert whole["train_dataset"]["data_loader"]["config"]["seed"] == 77


@pytest.mark.parametrize("data_parallel", [1, 2, 8])
def test_mindformers_starts_on_the_devices_of_its_rung(data_parallel: int, tmp_path: Path) -> None:
    text = MINDFORMERS.replace("data_parallel: 2", f"data_parallel: {data_parallel}")
    (tmp_path / "a.yaml").write_text(text.replace("num_layers: 4", "num_layers: 6"))
    result = expanded(read_side([str(tmp_path / "a.yaml")]), tmp_path)
    used = {r.name: yaml.safe_load(r.files[0].read_text())["use_parallel"] for r in result.rungs}
    assert used["reduced"] is False
    assert used["full size"] is False
    assert used["whole job"] is True
    assert used.get("data parallel, whole batch", True) is True
    (tmp_path / "p").mkdir()
    prepared(read_side([str(tmp_path / "a.yaml")]), tmp_path / "p")
    assert yaml.safe_load((tmp_path / "p" / "a.yaml").read_text())["use_parallel"] is False


ENVIRONMENT = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_DISABLE=0
NVTE_FLASH_ATTN=1
export NVTE_FLASH_ATTN
export HCCL_DETERMINISTIC=false
export WORK="/data/my runs"
export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH
ulimit -n 65536
"""
KEPT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_IB_DISABLE": "0",
    "NVTE_FLASH_ATTN": "1",
    "WORK": "/data/my runs",
    "LD_LIBRARY_PATH": "/opt/lib:/old",
}


def _variables(folder: Path, script: Path, environment: Path) -> dict[str, str]:
    """What the training command sees: torchrun is a program that prints its environment."""
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    (binaries / "torchrun").write_text("#!/bin/bash\nenv\n")
    (binaries / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"source {environment}; source {script}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{binaries}:/usr/bin:/bin", "LD_LIBRARY_PATH": "/old", "TOKENS": "40"},
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_every_environment_line_is_kept(tmp_path: Path) -> None:
    _head, _, command = MEGATRON.partition("torchrun")
    text = f"#!/bin/bash\n{ENVIRONMENT}OMP_NUM_THREADS=4 torchrun{command}"
    (tmp_path / "run.sh").write_text(text.replace("--num-layers 4", "--num-layers 8"))
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path)
    for rung in result.rungs:
        seen = _variables(tmp_path, rung.files[0], result.environment)
        assert {name: seen.get(name) for name in KEPT} == KEPT, rung.name
        assert seen["OMP_NUM_THREADS"] == "4"
    first = _variables(tmp_path, result.rungs[0].files[0], result.environment)
    assert first["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "ulimit -n 65536" in result.rungs[0].files[0].read_text()


def test_what_the_reproduction_sets_is_not_set_back_by_the_script(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        MEGATRON.replace("#!/bin/bash\n", "#!/bin/bash\nexport PYTHONHASHSEED=9\n")
    )
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path)
    assert _variables(tmp_path, result.rungs[0].files[0], result.environment)["PYTHONHASHSEED"] == "1234"
    assert "PYTHONHASHSEED=" in result.rungs[-1].files[0].read_text()


def test_an_environment_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(MINDFORMERS)
    (tmp_path / "env.txt").write_text(
        "export GLOO_SOCKET_IFNAME=eth0\nHCCL_DETERMINISTIC=false\nmindspore==2.6.0\nRANK_TABLE_FILE=/a\n"
    )
    result = prepared(read_side([f"{tmp_path / 'c.yaml'},{tmp_path / 'env.txt'}"]), tmp_path)
    done = subprocess.run(
        ["bash", "-euc", f"source {result.environment}; echo $GLOO_SOCKET_IFNAME $HCCL_DETERMINISTIC"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["eth0", "true"]


@pytest.mark.parametrize("dialect", [name for name in BASES if name not in ("environment", "hf_model")])
def test_a_reduced_configuration_is_read_back(dialect: str, tmp_path: Path) -> None:
    name, text = BASES[dialect]
    (tmp_path / name).write_text(text)
    (tmp_path / "out").mkdir()
    result = prepared(read_side([str(tmp_path / name)]), tmp_path / "out")
    again = configured([d for path in result.rungs[0].files for d in read_side([str(path)])])
    assert not again.unreadable


def test_the_command_writes_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [side("qwen3/mindformers_tp.yaml"), side("qwen3/megatron_tp.yaml"), "--expand"]
    assert run(["check", *words, "-o", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["outcome"] for one in document["aligned"]} == {"agree"}
    assert len(document["target"]["rungs"]) == len(document["reference"]["rungs"])
    changed = tmp_path / "other.yaml"
    changed.write_text((tmp_path / "target" / "13_whole_job" / "mindformers_tp.yaml").read_text())
    changed.write_text(changed.read_text().replace("rms_norm_eps: 1.0e-06", "rms_norm_eps: 1.0e-05"))
    words = [
        str(changed),
        side("qwen3/megatron_tp.yaml"),
        "--prepare",
        "-o",
        str(tmp_path / "second"),
        "--json",
    ]
    status = run(["check", *words])
    document = json.loads(capsys.readouterr().out)
    eps = "norm_eps" in document["aligned"][0]["differs"]
    assert status == int(eps)


@pytest.mark.parametrize(("batch", "accumulation"), [(2, 4), (4, 2), (8, 1)])
def test_a_batch_cut_otherwise_is_one_batch_while_it_is_reduced(
    batch: int, accumulation: int, tmp_path: Path
) -> None:
    """The same global batch in micro-batches of other sizes: one sequence a step on both until it is back."""
    one_by_one = "{batch_size: 1, gradient_accumulation_steps: 8}"
    for name, runner in (
        ("a.yaml", f"{{batch_size: {batch}, gradient_accumulation_steps: {accumulation}}}"),
        ("b.yaml", one_by_one),
    ):
        given = "{batch_size: 2, gradient_accumulation_steps: 1}"
        assert given in MINDFORMERS
        (tmp_path / name).write_text(MINDFORMERS.replace(given, runner))
    sides = [read_side([str(tmp_path / name)]) for name in ("a.yaml", "b.yaml")]
    assert configured(sides[0]).values["global_batch_size"].value == 16
    assert configured(sides[1]).values["global_batch_size"].value == 16
    for one, other in (sides, sides[::-1]):
        result = reduced_together(one, other, tmp_path / "out", ladder=True)
        names = [pair.name for pair in result.pairs]
        whole = names.index("data parallel, whole batch")
        assert all(pair.differs == () for pair in result.pairs[:whole])
        assert {name for pair in result.pairs[whole:] for name in pair.differs} == result.pairs[0].given
        rung = result.sides["target"].rungs[whole]
        again = configured([d for path in rung.files for d in read_side([str(path)])])
        assert again.values["global_batch_size"].value == 16


def test_what_the_given_configurations_differ_in_is_said_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(MINDFORMERS)
    (tmp_path / "b.yaml").write_text(MINDFORMERS.replace("weight_decay: 0.1", "weight_decay: 0.05"))
    words = ["check", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), "--prepare", "-o"]
    assert run([*words, str(tmp_path / "out")]) == 1
    assert "as given: weight_decay" in capsys.readouterr().out


def test_a_script_for_many_nodes_starts_on_one_device(tmp_path: Path) -> None:
    """What names the nodes of the job is left out: its variables are not set where one device is used."""
    nodes = "--nnodes $NNODES --node_rank $RANK --master_addr $ADDR --master_port 6000"
    launcher = f"torchrun --nproc_per_node 8 {nodes}"
    text = MEGATRON.replace("torchrun --nproc_per_node 2", launcher).replace(
        "--num-layers 4", "--num-layers 8"
    )
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "out").mkdir()
    result = prepared(read_side([str(tmp_path / "run.sh")]), tmp_path / "out")
    written = result.rungs[0].files[0].read_text()
    assert "torchrun --nproc_per_node=1 pretrain_gpt.py" in written
    assert "ADDR" not in written


def test_no_key_is_made_up(tmp_path: Path) -> None:
    """What a file says nothing of is not written into it: its program may refuse a key it does not know."""
    for dialect in ("lightning", "plain"):
        name, text = BASES[dialect]
        (tmp_path / name).write_text(text)
        folder = tmp_path / dialect
        folder.mkdir()
        result = prepared(read_side([str(tmp_path / name)]), folder)
        written = yaml.safe_load(result.rungs[0].files[0].read_text())
        assert set(written) - set(yaml.safe_load(text)) <= {"seed", "seed_everything", "deterministic"}


def _command(folder: Path, script: Path, *arguments: str) -> list[str]:
    """The words with which a written script starts its program: torchrun is a program that prints them."""
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    (binaries / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (binaries / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", str(script), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{binaries}:/usr/bin:/bin", "DATA": "/corpus/a b/wiki", "TOKENS": "40"},
        cwd=folder,
    )
    return done.stdout.splitlines()


def test_what_only_the_shell_knows_is_left_to_it(tmp_path: Path) -> None:
    """Arguments of the script, variables of the machine and commands are put in when it is started."""
    text = MEGATRON.replace("--nproc_per_node 2", '--nproc_per_node $(echo "4 2" | cut -c 3)').replace(
        "--bf16",
        '--bf16 --save $1 --load "${2}/last" --tensorboard-dir "`echo /logs/x y`"'
        " --data-cache-path $PWD/cache --vocab-file $(dirname $DATA)/v.json --wandb-exp-name 'costs 5$'",
    )
    text = text.replace("torchrun", 'export TRITON_CACHE_DIR="/t/$(date "+a  b")"\ntorchrun')
    (tmp_path / "run.sh").write_text(text.replace("--num-layers 4", "--num-layers 6"))
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path)
    for rung in result.rungs:
        words = _command(tmp_path, rung.files[0], "/ckpt", "/old run")
        for flag, value in (
            ("--save", "/ckpt"),
            ("--load", "/old run/last"),
            ("--tensorboard-dir", "/logs/x y"),
            ("--data-cache-path", f"{tmp_path}/cache"),
            ("--wandb-exp-name", "costs 5$"),
        ):
            assert words[words.index(flag) + 1] == value, rung.name
        assert 'TRITON_CACHE_DIR="/t/$(date "+a b")"' in rung.files[0].read_text()
    assert "--nproc_per_node=2" in words


@pytest.mark.parametrize(
    ("starter", "program"),
    [
        ("python -u -m torch.distributed.run --nproc-per-node 8 pretrain_gpt.py", "pretrain_gpt.py"),
        ("srun -N 2 --container-image /images/a.sqsh python -u pretrain_gpt.py", "pretrain_gpt.py"),
        ("torchrun --nproc_per_node 8 -m our.pretrain", "-m our.pretrain"),
    ],
)
def test_what_starts_the_program_is_not_handed_to_it(starter: str, program: str, tmp_path: Path) -> None:
    text = MEGATRON.replace("torchrun --nproc_per_node 2 pretrain_gpt.py", starter)
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "out").mkdir()
    result = prepared(read_side([str(tmp_path / "run.sh")]), tmp_path / "out")
    words = _command(tmp_path, result.rungs[0].files[0])
    assert words[: 1 + len(program.split())] == ["--nproc_per_node=1", *program.split()]
    assert words[len(program.split()) + 1].startswith("--")
    assert {"--m", "--u", "--N", "--container-image"} & set(words) == set()


def test_what_needs_the_distributed_optimizer_goes_and_comes_with_it(tmp_path: Path) -> None:
    """Megatron refuses to start with the one and without the other."""
    flags = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --fp8-param-gather"
    (tmp_path / "run.sh").write_text(MEGATRON.replace("--bf16", f"--bf16 --fp8-format hybrid {flags}"))
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path)
    for rung in result.rungs:
        words = rung.files[0].read_text().split()
        is_on = "--use-distributed-optimizer" in words
        assert ("--fp8-param-gather" in words) == ("--overlap-param-gather" in words) == is_on, rung.name
    assert is_on


@pytest.mark.parametrize("ramp", ["--rampup-batch-size 2 2 3000", "--step-batch-size-schedule '0:2 1B:4'"])
def test_a_batch_that_grows_comes_back_with_the_whole_batch(ramp: str, tmp_path: Path) -> None:
    """Megatron refuses a batch that grows to less than it begins with."""
    (tmp_path / "run.sh").write_text(MEGATRON.replace("--bf16", f"--bf16 {ramp}"))
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path)
    with_ramp = [rung.name for rung in result.rungs if ramp.split()[0] in rung.files[0].read_text()]
    whole = next(at for at, rung in enumerate(result.rungs) if rung.name == "data parallel, whole batch")
    assert with_ramp == [rung.name for rung in result.rungs[whole:]]
    assert whole > 0


@pytest.mark.parametrize(("tensor", "pipeline"), [(8, 2), (4, 4)])
def test_each_rung_has_the_devices_its_strategy_needs(tensor: int, pipeline: int, tmp_path: Path) -> None:
    """Also where the script's own number is that of one node of the job."""
    flags = f"--tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {pipeline}"
    (tmp_path / "run.sh").write_text(MEGATRON.replace("--bf16", f"--bf16 {flags}"))
    result = expanded(read_side([str(tmp_path / "run.sh")]), tmp_path)
    texts = {rung.name: rung.files[0].read_text() for rung in result.rungs}
    assert f"--nproc_per_node={tensor} " in texts["tensor parallel"]
    assert f"--nproc_per_node={tensor * pipeline} " in texts["pipeline parallel"]


@pytest.mark.parametrize(
    "place",
    [
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        '$( cd "$( dirname "$0" )"; pwd )',
        "$(dirname $(readlink -f $0))",
        "`dirname $0`",
    ],
)
def test_a_place_beside_the_script_is_still_that_of_the_script(place: str, tmp_path: Path) -> None:
    """The script's own variables are put into a command of the shell: they are not written."""
    text = f"""HERE={place}
NAME=wiki
export PYTHONPATH=$(dirname ${{HERE}}):$HERE/lib
FIRST=$(printf '%s %s' $NAME b | awk '{{print $1}}')
WARM=$((${{TOKENS}} / 8))
torchrun"""
    folder = tmp_path / "job" / "scripts"
    folder.mkdir(parents=True)
    script = MEGATRON.replace("torchrun", text).replace(
        "--bf16", "--bf16 --vocab-file $HERE/v.json --wandb-exp-name $FIRST --exit-interval $WARM"
    )
    (folder / "run.sh").write_text(script)
    result = prepared(read_side([str(folder / "run.sh")]), tmp_path)
    written = result.rungs[0].files[0]
    words = _command(tmp_path, written)
    assert words[words.index("--vocab-file") + 1] == f"{folder}/v.json"
    assert words[words.index("--wandb-exp-name") + 1] == "wiki"
    assert words[words.index("--exit-interval") + 1] == "5"
    assert _variables(tmp_path, written, result.environment)["PYTHONPATH"] == f"{tmp_path}/job:{folder}/lib"


@pytest.mark.parametrize("ratio", [0.03, 0.1])
def test_a_warmup_whose_length_only_the_data_tells_is_reduced_too(ratio: float, tmp_path: Path) -> None:
    """MindFormers' usual form: a share of total_steps -1, those of the data set."""
    text = MINDFORMERS.replace(
        "warmup_steps: 0, total_steps: 1000", f"warmup_ratio: {ratio}, total_steps: -1"
    )
    (tmp_path / "a.yaml").write_text(text.replace("ConstantWarmUpLR", "CosineWithWarmUpLR"))
    (tmp_path / "b.sh").write_text(MEGATRON)
    sides = [read_side([str(tmp_path / name)]) for name in ("a.yaml", "b.sh")]
    result = reduced_together(*sides, tmp_path / "out", ladder=True)
    folders = {rung.name: rung.files[0] for rung in result.sides["target"].rungs}
    assert "warmup_steps" not in result.pairs[0].differs
    for name, is_back in (("reduced", False), ("full size", False), ("learning-rate schedule", True)):
        schedule = yaml.safe_load(folders[name].read_text())["lr_schedule"]
        assert (schedule.get("warmup_ratio"), schedule.get("warmup_steps")) == (
            (ratio, None) if is_back else (None, 0)
        ), name
