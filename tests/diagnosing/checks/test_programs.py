"""``trueup check-run -- COMMAND`` on whole programs: run twice, on several ranks, Hugging Face models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capture.programs import environment, run_trueup, write
from trueup.types.codes import CheckCode
from trueup.types.reason import read_reason, reason

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, time
import torch
from tests.diagnosing.checks import trainings
torch.set_num_threads(1)
training = trainings.build()
{change}
trainings.train(training, int(sys.argv[1]) if len(sys.argv) > 1 else 3)
print("ended")
"""
NOISE = """
generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
trainings._through(training, lambda x: x + 1e-6 * torch.randn(x.shape, generator=generator))
"""
RANKS = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from tests.diagnosing.checks import trainings
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, kind = dist.get_rank(), sys.argv[1]
training = trainings.build()
torch.manual_seed(7 if kind == "same masks" else 100 + rank)
inner = training.model
alone = [dist.new_group([one]) for one in range(2)][rank]

class OfMegatron(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.dp_group, self.dp_cp_group = module, alone, alone
    def forward(self, *args):
        return self.module(*args)

OfMegatron.__name__ = "DistributedDataParallel"
if kind.startswith("parts"):
    inner.head.weight.data += rank  # each rank has a part of the model, and reads what the other reads
    whole = kind == "parts of Megatron"
    wrap = nn.parallel.DistributedDataParallel
    training.model = OfMegatron(inner) if whole else wrap(inner, process_group=alone)
else:
    training.model = nn.parallel.DistributedDataParallel(inner)
if kind == "bypassed":
    training.loss = lambda model, ids, labels: trainings.loss_of(model.module, ids, labels)
given = training.batch
shift = 0 if kind == "same batch" or kind.startswith("parts") else 1000 * rank
training.batch = lambda step: given(step + shift)
if kind == "drifting":
    def drift(step):
        inner.head.weight.data += 1e-3 * rank
    training.after_update = drift
trainings.train(training)
dist.destroy_process_group()
"""


def check(folder: Path, *words: str | Path) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit status, outcomes by name, standard error."""
    done = run_trueup("check-run", "--json", *words, cwd=folder, env=environment(PYTHONPATH=str(ROOT)))
    document = json.loads(done.stdout)
    return done.returncode, {outcome["name"]: outcome for outcome in document["checks"]}, done.stderr


def undone(outcomes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [o for o in outcomes.values() if o["verdict"] in ("failed", "undecided")]


def test_a_clean_program(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", PROGRAM.format(change=""))
    status, outcomes, said = check(tmp_path, "-o", "out", "--to-the-end", "--", sys.executable, program)
    assert (status, undone(outcomes)) == (0, [])
    assert outcomes["repeatable"]["verdict"] == "passed"
    assert said.count("ended") == 2
    assert json.loads((tmp_path / "out" / "checks.json").read_text())["exit_code"] == 0
    assert (tmp_path / "out" / "again" / "step_000001").is_dir()


def test_a_program_that_does_not_repeat(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", PROGRAM.format(change=NOISE))
    status, outcomes, _ = check(tmp_path, "--", sys.executable, program)
    assert status == 1
    outcome = outcomes["repeatable"]
    assert outcome["verdict"] == "failed"
    first = outcome["places"][0]
    assert first["site"] == "layers.1.mlp.act · torch.randn · output.0"
    assert first["detail_reason"]["code"] == CheckCode.RANDOM_NUMBERS
    assert "randn(x.shape, generator=generator)" in first["source"]


def test_a_trace_is_no_second_run_of_itself(tmp_path: Path) -> None:
    """It would repeat itself always; the other run of the two is one."""
    program = write(tmp_path / "train.py", PROGRAM.format(change=""))
    check(tmp_path, "-o", "out", "--", sys.executable, program)
    refused = run_trueup("check-run", "out/run", "--again", "out/run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "expected a second run" in refused.stderr
    status, outcomes, _ = check(tmp_path, "out/run", "--again", "out/again")
    assert (status, outcomes["repeatable"]["verdict"]) == (0, "passed")


def test_a_program_without_a_seed_is_not_decided(tmp_path: Path) -> None:
    change = "torch.seed(); training.model.head.reset_parameters()"
    program = write(tmp_path / "train.py", PROGRAM.format(change=change))
    status, outcomes, _ = check(tmp_path, "--only", "repeatable", "--", sys.executable, program)
    assert (status, outcomes["repeatable"]["verdict"]) == (2, "undecided")
    why = read_reason(outcomes["repeatable"], "sentence")
    assert why == reason(CheckCode.OTHER_WEIGHTS, parameter="head.weight", step=0)


def test_a_long_program_is_stopped_when_its_steps_are_there(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", PROGRAM.format(change=""))
    words = ["--once", "--steps", "0-1", "--", sys.executable, program, "100000"]
    status, outcomes, said = check(tmp_path, *words)
    assert (status, undone(outcomes)) == (0, [])
    assert "ended" not in said


def test_the_checklist_a_person_reads(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", PROGRAM.format(change="trainings.log_of_negative(training)"))
    done = run_trueup(
        "check-run", "--once", "--", sys.executable, program,
        cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT), COLUMNS="120"),
    )  # fmt: skip
    assert done.returncode == 1
    assert "✗ No NaN or infinity is made" in done.stdout
    assert "at layers.1.mlp.act · torch.log · output.0" in " ".join(done.stdout.split())
    assert "torch.log(-x.abs() - 1)" in done.stdout
    assert "✓ Ids, labels and the first loss make sense" in done.stdout


@pytest.mark.parametrize("model", ["llama", "gpt2", "qwen2_moe"])
def test_hugging_face_models_are_clean(model: str, tmp_path: Path) -> None:
    script = ROOT / "tests" / "scripts" / "train_hf.py"
    twice = model == "qwen2_moe"
    words = [] if twice else ["--once"]
    status, outcomes, _ = check(tmp_path, *words, "--", sys.executable, script, model)
    assert (status, undone(outcomes)) == (0, [])
    for name in ("labels", "finite", "gradients", "grad_norm", "updates", *["repeatable"] * twice):
        assert outcomes[name]["verdict"] == "passed", outcomes[name]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "check_name", "code", "facts"),
    [
        ("clean", None, None, {}),
        ("same batch", "own_batches", CheckCode.SAME_BATCH, {"num": 3, "total": 3}),
        ("drifting", "replicas", CheckCode.REPLICAS_DIFFER, {"slot": "value", "step": 1}),
        ("same masks", "streams", CheckCode.SAME_MASK_ON_RANKS, {"first": 0, "rank": 1}),
        ("bypassed", "replicas", CheckCode.REPLICAS_DIFFER, {"slot": "clipped", "step": 0}),
    ],
)
def test_two_ranks(
    kind: str, check_name: str | None, code: CheckCode | None, facts: dict[str, Any], tmp_path: Path
) -> None:
    program = write(tmp_path / "train.py", RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
    status, outcomes, error = check(
        tmp_path,
        "--once",
        "--",
        *launcher,
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        program,
        kind,
    )
    if check_name is None:
        assert (status, undone(outcomes)) == (0, []), error
        assert outcomes["replicas"]["numbers"]["ranks"] == 2
        assert outcomes["own_batches"]["verdict"] == "passed"
        return
    assert status == 1
    assert outcomes[check_name]["verdict"] == "failed", outcomes[check_name]
    why = read_reason(outcomes[check_name], "sentence")
    assert why is not None
    assert why.code is code
    assert facts.items() <= why.facts.items()


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["parts", "parts of Megatron"])
def test_ranks_that_hold_parts_of_a_model_are_no_replicas(kind: str, tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    status, outcomes, error = check(tmp_path, "-o", "out", "--once", "--", *launcher, program, kind)
    assert (status, undone(outcomes)) == (0, []), error
    for name, code in (("own_batches", CheckCode.ONE_DATA_RANK), ("replicas", CheckCode.ONE_REPLICA)):
        assert read_reason(outcomes[name], "sentence") == reason(code)
    line = json.loads((tmp_path / "out" / "run" / "ranks" / "rank_00001.json").read_text())
    assert line["groups"] == {"weights": [1], "batches": [1]}
