"""The way in that needs no edit: real programs, captured from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.capture.programs import TRAIN, environment, python, run, run_trueup, write
from tests.warm import COLD
from trueup.capture.launch import environment_from_options, folder, is_first
from trueup.capture.launch.command import check_command
from trueup.capture.launch.outcome import CaptureOutcome, outcome_from_folder, sentences
from trueup.capture.launch.process import run_command
from trueup.capture.options import CaptureOptions, StepSet
from trueup.errors import ConfigError
from trueup.store import Trace

pytestmark = pytest.mark.torch

PYTHON = sys.executable


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write(tmp_path / "train.py", TRAIN)


def test_a_script_is_captured_and_computes_what_it_computes_alone(script: Path, tmp_path: Path) -> None:
    alone = python(script, cwd=tmp_path)
    captured = run_trueup("capture", "-o", "run", "--level", "mix", "--", COLD, "train.py", cwd=tmp_path)
    assert captured.returncode == 0, captured.stderr
    assert captured.stdout == alone.stdout != ""
    assert "captured steps 0-1 of rank 0 at level mix" in captured.stderr
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}
    assert [line["step"] for line in Trace(tmp_path / "run").scalars(0)] == [0, 1, 2]


def test_a_scope_that_leaves_nothing_is_an_error(script: Path, tmp_path: Path) -> None:
    alone = python(script, cwd=tmp_path)
    scope = ("--scope", "Functional.linear.777.forward", "Functional.relu.778.forward")
    captured = run_trueup(
        "capture", "-o", "run", "--level", "mix", *scope, "--", PYTHON, "train.py", cwd=tmp_path
    )
    assert captured.returncode == 2
    assert captured.stdout == alone.stdout
    said = Trace(tmp_path / "run").rank_facts(0)["outside_scope"]
    assert "Functional.linear.777.forward" in said
    assert said in captured.stderr


def test_the_program_s_own_words_are_all_it_prints_when_quiet(script: Path, tmp_path: Path) -> None:
    captured = run_trueup("capture", "-q", "-o", "run", "--", PYTHON, "train.py", "1", cwd=tmp_path)
    assert captured.stderr == ""
    assert captured.stdout.startswith("loss 0")


def test_a_module_run_with_m(script: Path, tmp_path: Path) -> None:
    write(tmp_path / "pkg" / "__init__.py", "")
    script.rename(tmp_path / "pkg" / "train.py")
    captured = run_trueup("capture", "-o", "run", "--", PYTHON, "-m", "pkg.train", cwd=tmp_path)
    assert captured.returncode == 0, captured.stderr
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}


def test_a_console_script(script: Path, tmp_path: Path) -> None:
    tool = write(
        tmp_path / "bin" / "launch-training", f"#!{PYTHON}\nimport runpy\nrunpy.run_path('train.py')\n"
    )
    tool.chmod(0o755)
    env = environment(PATH=f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    captured = run_trueup("capture", "-o", "run", "--", "launch-training", cwd=tmp_path, env=env)
    assert captured.returncode == 0, captured.stderr
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}


@pytest.mark.parametrize(
    ("head", "command"),
    [
        ("#!/bin/sh\n", ("./train.sh",)),
        ("#!/bin/sh\n", ("{folder}/train.sh",)),
        ("#!/bin/sh\n", ("../{name}/train.sh",)),
        ("", ("./train.sh",)),
        ("", ("{folder}/train.sh",)),
        ("#!/bin/sh\n", ("sh", "./train.sh")),
        ("#!/bin/sh\n", ("env", "NUM_STEPS=2", "./train.sh")),
        ("", ("env", "NUM_STEPS=2", PYTHON, "train.py", "2")),
    ],
)
def test_a_shell_script(head: str, command: tuple[str, ...], script: Path, tmp_path: Path) -> None:
    shell = write(tmp_path / "train.sh", f'{head}echo "run as $0 $1"\nexec {PYTHON} train.py 2\n')
    shell.chmod(0o755)
    words = [word.format(folder=tmp_path, name=tmp_path.name) for word in command]
    alone = run("sh", "-c", '"$@"', "sh", *words, "extra", cwd=tmp_path)
    captured = run_trueup("capture", "-o", "run", "--", *words, "extra", cwd=tmp_path)
    assert captured.returncode == alone.returncode == 0, captured.stderr
    assert captured.stdout == alone.stdout != ""
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}


def test_a_script_outside_path_is_not_found_by_its_bare_name(script: Path, tmp_path: Path) -> None:
    write(tmp_path / "train.sh", "#!/bin/sh\n").chmod(0o755)
    captured = run_trueup("capture", "-o", "run", "--", "train.sh", cwd=tmp_path)
    assert captured.returncode == 2
    assert "Try: ./train.sh" in captured.stderr
    assert not (tmp_path / "run").exists()


def test_a_child_process_of_a_launcher_without_torch(script: Path, tmp_path: Path) -> None:
    launcher = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'train.py']))"
    captured = run_trueup("capture", "-o", "run", "--", PYTHON, "-c", launcher, cwd=tmp_path)
    assert captured.returncode == 0, captured.stderr
    trace = Trace(tmp_path / "run")
    assert trace.steps() == {0: [0], 1: [0]}
    assert trace.manifest["command"] == [PYTHON, "-c", launcher]  # what a replay must start again


@pytest.mark.distributed
def test_torchrun_gives_one_trace_of_both_ranks(tmp_path: Path) -> None:
    body = TRAIN.replace(
        "torch.manual_seed(0)", "torch.distributed.init_process_group('gloo'); torch.manual_seed(0)"
    )
    body = body.replace("optimizer = ", "model = nn.parallel.DistributedDataParallel(model); optimizer = ")
    write(tmp_path / "train.py", body + "\ntorch.distributed.destroy_process_group()\n")
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    captured = run_trueup(
        "capture", "-o", "run", "--", *torchrun, cwd=tmp_path, env=environment(OMP_NUM_THREADS="1")
    )
    assert captured.returncode == 0, captured.stderr
    trace = Trace(tmp_path / "run")
    assert trace.steps() == {0: [0, 1], 1: [0, 1]}
    assert trace.manifest["world_size"] == 2
    assert "ranks 0-1" in captured.stderr


def test_workers_that_do_not_train_leave_nothing(tmp_path: Path) -> None:
    body = """
import multiprocessing
def work(n):
    import torch
    with torch.no_grad():
        return torch.nn.Linear(2, 2)(torch.ones(n, 2)).shape[0]
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [3]))
"""
    write(tmp_path / "train.py", body)
    captured = run_trueup("capture", "-o", "run", "--", COLD, "train.py", cwd=tmp_path)
    assert captured.stdout == "[3]\n"
    assert captured.returncode == 2
    assert "nothing captured" in captured.stderr
    assert not (tmp_path / "run").exists()


def test_torch_imported_in_a_thread_and_found_before(script: Path, tmp_path: Path) -> None:
    body = """
import importlib.util, threading, runpy
assert importlib.util.find_spec("torch") is not None
thread = threading.Thread(target=__import__, args=("torch",)); thread.start(); thread.join()
import torch
assert type(torch.__spec__.loader).__name__ == type(torch.__loader__).__name__ == "SourceFileLoader"
import sys; sys.argv = ["train.py"]
runpy.run_path("train.py")
"""
    write(tmp_path / "main.py", body)
    captured = run_trueup("capture", "-o", "run", "--", COLD, "main.py", cwd=tmp_path)
    assert captured.returncode == 0, captured.stderr
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}


# -- the start-up file --------------------------------------------------------------------------------------


def child_environment(tmp_path: Path, **base: str) -> dict[str, str]:
    return environment_from_options(CaptureOptions(output=tmp_path / "run"), base=environment(**base))


@pytest.mark.usefixtures("cold")
def test_start_up_imports_neither_torch_nor_trueup_and_leaves_the_path_alone(tmp_path: Path) -> None:
    body = "import sys; print(sorted({m.partition('.')[0] for m in sys.modules})); print(sys.path)"
    alone = python("-c", body, cwd=tmp_path).stdout.splitlines()
    started = python("-c", body, cwd=tmp_path, env=child_environment(tmp_path)).stdout.splitlines()
    assert started[1] == alone[1]
    extra = set(eval(started[0])) - set(eval(alone[0]))
    assert not extra & {"torch", "trueup", "numpy", "json", "typing"}


@pytest.mark.usefixtures("cold")
def test_another_sitecustomize_runs_under_its_own_name(script: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other" / "sitecustomize.py", "import builtins; builtins.other_ran = True\n")
    body = "import sitecustomize; print(sitecustomize.__file__, other_ran)"
    result = python("-c", body, cwd=tmp_path, env=child_environment(tmp_path, PYTHONPATH=str(other.parent)))
    assert result.stdout.split() == [str(other), "True"], result.stderr
    env = environment(PYTHONPATH=str(other.parent))
    body = "assert other_ran\n" + TRAIN
    write(script, body)
    captured = run_trueup("capture", "-o", "run", "--", PYTHON, "train.py", cwd=tmp_path, env=env)
    assert captured.returncode == 0, captured.stderr


@pytest.mark.usefixtures("cold")
def test_an_error_in_another_sitecustomize_looks_as_it_does_alone(tmp_path: Path) -> None:
    other = write(tmp_path / "other" / "sitecustomize.py", "raise ValueError('theirs')\n")
    path = {"PYTHONPATH": str(other.parent)}
    alone = python("-c", "print(1)", cwd=tmp_path, env=environment(**path))
    started = python("-c", "print(1)", cwd=tmp_path, env=child_environment(tmp_path, **path))
    assert (started.stdout, started.stderr) == (alone.stdout, alone.stderr)
    assert "theirs" in started.stderr


@pytest.mark.usefixtures("cold")
def test_a_failing_import_of_torch_passes_through_and_may_be_tried_again(tmp_path: Path) -> None:
    write(tmp_path / "torch" / "__init__.py", "raise ImportError('no libcudart')\n")
    body = """
for _ in range(2):
    try:
        import torch
    except ImportError as error:
        print(error)
"""
    result = python("-c", body, cwd=tmp_path, env=child_environment(tmp_path))
    assert result.stdout == "no libcudart\n" * 2
    assert result.stderr == ""


def test_an_error_of_ours_is_one_line_and_training_goes_on(script: Path, tmp_path: Path) -> None:
    env = child_environment(tmp_path) | {"TRUEUP_CAPTURE": '{"options": {"no such": 1}, "folders": []}'}
    result = python(script, "1", cwd=tmp_path, env=env)
    assert result.returncode == 0
    assert result.stdout.startswith("loss 0")
    assert len(result.stderr.splitlines()) == 1
    assert "not captured: ConfigError" in result.stderr


@pytest.mark.usefixtures("cold")
def test_trueup_is_found_where_the_program_s_environment_lacks_it(script: Path, tmp_path: Path) -> None:
    base = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    env = environment_from_options(CaptureOptions(output=tmp_path / "run"), base=base)
    result = python("-c", "import sys; print([p for p in sys.path if 'startup' in p])", cwd=tmp_path, env=env)
    assert result.stdout == "[]\n"
    result = run(PYTHON, script, cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}


def test_seeds_and_determinism_from_outside(tmp_path: Path) -> None:
    body = """
import os, random, numpy, torch
print(torch.initial_seed(), random.random(), numpy.random.rand(), torch.rand(1).item())
print(torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic)
print(os.environ["PYTHONHASHSEED"], os.environ["CUBLAS_WORKSPACE_CONFIG"], hash("text"))
"""
    write(tmp_path / "seeds.py", body)
    words = ("capture", "-o", "run", "--seed", "42", "--deterministic", "--", PYTHON, "seeds.py")
    said = run_trueup(*words, cwd=tmp_path).stdout.splitlines()
    generator = torch.Generator().manual_seed(42)
    assert said[0] == f"42 0.6394267984578837 0.3745401188473625 {torch.rand(1, generator=generator).item()}"
    assert said[1] == "True True"
    hashed = python("-c", "print(hash('text'))", cwd=tmp_path, env=environment(PYTHONHASHSEED="42")).stdout
    assert said[2] == f"42 :4096:8 {hashed.strip()}"


def test_another_seed_draws_other_numbers(tmp_path: Path) -> None:
    options = CaptureOptions(output=tmp_path / "run", seed=43)
    env = environment_from_options(options, base=environment())
    del env["PYTHONHASHSEED"]  # a matter of Python's own start: the test before
    body = "import random, torch; print(torch.initial_seed(), random.random())"
    assert python("-c", body, cwd=tmp_path, env=env).stdout == "43 0.038551839337380045\n"


# -- how it ends --------------------------------------------------------------------------------------------


def test_the_exit_status_is_the_program_s(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "\nsys.exit(37)\n")
    captured = run_trueup("capture", "-o", "run", "--", PYTHON, "train.py", "2", cwd=tmp_path)
    assert captured.returncode == 37
    assert "exit status 37" in captured.stderr
    assert Trace(tmp_path / "run").steps() == {0: [0], 1: [0]}


def test_an_exception_keeps_its_traceback_and_the_steps_before_it(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        TRAIN.replace("    loss.backward()", "    assert step < 2, 'exploded'\n    loss.backward()"),
    )
    captured = run_trueup("capture", "-o", "run", "--steps", "all", "--", PYTHON, "train.py", cwd=tmp_path)
    assert captured.returncode == 1
    assert "AssertionError: exploded" in captured.stderr
    assert "trueup" not in captured.stderr.partition("AssertionError")[0]
    assert {0, 1} <= set(Trace(tmp_path / "run").steps())


@pytest.mark.parametrize(
    ("number", "handled"), [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)]
)
def test_signals_reach_the_program(tmp_path: Path, number: signal.Signals, handled: bool) -> None:
    handler = f"import signal; signal.signal({int(number)}, lambda *_: sys.exit(9))\n" if handled else ""
    write(
        tmp_path / "train.py",
        f"import sys\n{handler}{TRAIN}\nimport time; print('ready', flush=True); time.sleep(60)\n",
    )
    words = [PYTHON, "-m", "trueup", "capture", "-o", "run", "--", PYTHON, "train.py"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line == "ready\n":
                break
        started = time.monotonic()
        process.send_signal(number)
        process.wait(30)
        assert time.monotonic() - started < 20
        assert process.returncode == (9 if handled else 128 + number)
        assert "captured steps 0-1" in process.stderr.read()


def test_control_c_at_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    write(
        tmp_path / "main.py",
        """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
for _ in range(20):
    time.sleep(0.1)
print("interrupted", len(seen), flush=True)
""",
    )
    typing = """
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    words = [sys.executable, "-m", "trueup", "capture", "-o", "run", "--", sys.executable, "main.py"]
    os.execv(sys.executable, words)
said = b""
while b"ready" not in said:
    said += os.read(terminal, 4096)
os.write(terminal, b"\\x03")
while b"interrupted" not in said:
    said += os.read(terminal, 4096)
os.waitpid(child, 0)
print(said.decode())
"""
    result = python("-c", typing, cwd=tmp_path)
    assert "interrupted 1" in result.stdout, result.stderr


def test_nothing_captured_is_said_with_the_likely_reason(tmp_path: Path) -> None:
    captured = run_trueup(
        "capture", "-o", "run", "--", PYTHON, "-c", "print('no training here')", cwd=tmp_path
    )
    assert captured.returncode == 2
    assert captured.stdout == "no training here\n"
    assert "no process of" in captured.stderr
    failed = run_trueup("capture", "-o", "run", "--", PYTHON, "-c", "raise SystemExit(5)", cwd=tmp_path)
    assert failed.returncode == 5


def test_steps_that_were_never_reached_are_named(script: Path, tmp_path: Path) -> None:
    captured = run_trueup("capture", "-o", "run", "--steps", "50", "--", PYTHON, "train.py", cwd=tmp_path)
    assert captured.returncode == 2
    assert "made 3 training steps (0 to 2)" in captured.stderr
    captured = run_trueup(
        "capture", "-o", "run", "--overwrite", "--steps", "0-9", "--", PYTHON, "train.py", cwd=tmp_path
    )
    assert captured.returncode == 0
    assert "before step 9" in captured.stderr


# -- before it begins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("python3", "-I", "train.py"),
        ("python3", "-E", "train.py"),
        ("python3", "-S", "-m", "train"),
        ("python3", "-IS", "train.py"),
        ("python3", "-sE", "train.py"),
        ("python3", "-W", "ignore", "-I", "train.py"),
        ("python3", "-Xdev", "-uI", "train.py"),
        ("env", "A=1", "python3", "-I", "train.py"),
        ("env", "torchrun", "--no-python", "python3", "-E", "train.py"),
    ],
)
def test_a_python_that_shuts_capture_out_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"with -[IES], which .* Leave -[IES] out"):
        check_command(words)


@pytest.mark.parametrize(
    "words",
    [
        ("python3", "-s", "-u", "-B", "train.py", "-I"),
        ("python3", "-W", "I", "train.py"),
        ("python3", "-c", "print(1)", "-E"),
        ("python3", "-m", "pkg", "-S"),
        ("python3", "-", "-S"),
        ("python3", "--check-hash-based-pycs", "always", "train.py", "-E"),
    ],
)
def test_the_same_letters_elsewhere_are_the_program_s_own(words: tuple[str, ...]) -> None:
    assert Path(check_command(words)).name == "python3"


@pytest.mark.parametrize(
    "head",
    [
        f"#!{PYTHON} -sE",
        "#!/usr/bin/env -S python3 -I",
        f"#!/bin/sh\n'''exec' {PYTHON} -E \"$0\" \"$@\"\n' '''",
    ],
)
def test_a_shebang_that_shuts_capture_out_is_refused(tmp_path: Path, head: str) -> None:
    tool = write(tmp_path / "tool", f"{head}\nopen('ran', 'w')\n")
    tool.chmod(0o755)
    captured = run_trueup("capture", "-o", "run", "--", "./tool", cwd=tmp_path)
    assert captured.returncode == 2
    assert "the first line of ./tool" in captured.stderr
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


def test_what_cannot_run_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN)
    with pytest.raises(ConfigError, match="no command to run"):
        check_command([])
    with pytest.raises(ConfigError, match="'no-such-tool': no such command"):
        check_command(["no-such-tool"])
    with pytest.raises(ConfigError, match=r"Try: python .*train\.py"):
        check_command([str(tmp_path / "train.py")])
    with pytest.raises(ConfigError, match="it is a folder"):
        check_command([str(tmp_path)])
    broken = write(tmp_path / "broken", "#!/no/such/interpreter\n")
    broken.chmod(0o755)
    captured = run_trueup("capture", "-o", "run", "--", "./broken", cwd=tmp_path)
    assert captured.returncode == 2
    assert "cannot run './broken'" in captured.stderr
    assert "Traceback" not in captured.stderr


def test_a_folder_with_a_trace_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    for name in (
        "manifest.json",
        "scalars/rank_00000.jsonl",
        "step_000007/rank_00000/calls.parquet",
        "mine.txt",
    ):
        write(run_folder / name, "{}")
    with pytest.raises(ConfigError, match="already holds a trace"):
        folder.prepare(run_folder, overwrite=False)
    assert (run_folder / "step_000007").exists()
    folder.prepare(run_folder, overwrite=True)
    assert [path.name for path in run_folder.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_written_is_named_before_the_run(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    for output in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(ConfigError, match=r"is a file|cannot be written"):
            folder.prepare(output, overwrite=False)


def test_a_person_s_pythonpath_and_hash_seed_stay(tmp_path: Path) -> None:
    base = {"PYTHONPATH": "a::b", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    options = CaptureOptions(output=tmp_path, seed=3, deterministic=True)
    made = environment_from_options(options, base=base)
    assert made["PYTHONPATH"].split(os.pathsep)[1:] == ["a", "", "b"]
    assert made["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert made["PYTHONHASHSEED"] == "3"
    assert environment_from_options(options, base=made)["PYTHONPATH"] == made["PYTHONPATH"]
    assert base == {"PYTHONPATH": "a::b", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    empty = environment_from_options(CaptureOptions(output=tmp_path), base={})
    assert os.pathsep not in empty["PYTHONPATH"]
    assert "PYTHONHASHSEED" not in empty


@pytest.mark.parametrize(
    ("words", "env", "first"),
    [
        ("torchrun --nnodes 2 train.py", {}, True),
        ("torchrun --nnodes 2 --node-rank 0 train.py", {"RANK": "0", "SLURM_PROCID": "0"}, True),
        ("torchrun --nnodes 2 --node_rank 1 train.py", {}, False),
        ("accelerate launch --machine_rank=3 train.py", {}, False),
        ("python train.py", {"SLURM_PROCID": "5"}, False),
        ("python train.py", {"OMPI_COMM_WORLD_RANK": "1"}, False),
        ("python train.py", {"RANK": "", "NODE_RANK": "x"}, True),
        ("python train.py --node-rank", {}, True),
    ],
)
def test_the_first_launcher_of_a_job(words: str, env: dict[str, str], first: bool) -> None:
    assert is_first(words.split(), env) is first


def test_one_launcher_a_rank_gives_one_trace(script: Path, tmp_path: Path) -> None:
    words = (PYTHON, "-m", "trueup", "capture", "-o", "run", "--", PYTHON, "train.py")
    jobs = [
        subprocess.Popen(
            words, cwd=tmp_path, env=environment(RANK=rank, WORLD_SIZE="2"), stderr=-1, text=True
        )
        for rank in "01"
    ]
    said = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert Trace(tmp_path / "run").steps() == {0: [0, 1], 1: [0, 1]}
    assert "captured" in said[0]
    assert said[1] == ""
    late = python(*words[1:], cwd=tmp_path, env=environment(RANK="1", WORLD_SIZE="2"))
    assert late.returncode == 0, late.stderr


# -- what is said -------------------------------------------------------------------------------------------


def outcome(**facts: object) -> CaptureOutcome:
    usual = {"output": Path("/x/run"), "steps": {0: [0]}, "seen": True}
    usual |= {"num_steps_run": 2, "num_failures": 0, "num_bytes": 10}
    return CaptureOutcome(**{**usual, **facts})  # type: ignore[arg-type]


def test_the_closing_sentences() -> None:
    options = CaptureOptions(output=Path("run"), steps=StepSet(((0, 1),)))

    def said(**facts: object) -> str:
        return "\n".join(sentences(outcome(**facts), options, command="python t.py"))

    assert "captured step 0 of rank 0" in said()
    assert "step 1: not every rank" in said(steps={0: [0, 1], 1: [0]})
    assert "capture had 3 internal errors" in said(num_failures=3)
    assert "disabled before the end (step 1: no room)" in said(stood_aside="step 1: no room")
    assert said(steps={}, stood_aside="step 0: no room").startswith("nothing captured: step 0: no room")
    assert "before its first step was whole" in said(steps={}, num_steps_run=0)
    assert "no process of 'python t.py'" in said(steps={}, num_steps_run=0, seen=False)
    assert "after 1 step, before step 1" in said(num_steps_run=1)


def test_an_empty_or_missing_folder_is_an_outcome_too(tmp_path: Path) -> None:
    assert not outcome_from_folder(tmp_path).seen
    assert not outcome_from_folder(tmp_path / "none").steps
    write(tmp_path / "scalars" / "rank_00000.jsonl", '{"step": 4}\n{"st')
    write(tmp_path / "ranks" / "rank_00000.json", "{")
    assert outcome_from_folder(tmp_path).num_steps_run == 5


@pytest.mark.parametrize(("then", "status"), [("exit 3", 3), ("exec sleep 60", 0)])
def test_a_program_that_fails_on_its_last_step_has_failed(then: str, status: int, tmp_path: Path) -> None:
    """Its last step is written on the way out: it is not ended by us, and its own status counts."""
    written = tmp_path / "step"
    line = f"sleep 0.3; touch {written}; {then}"
    found = run_command(
        ["sh", "-c", line], program="/bin/sh", environment=dict(os.environ), enough=written.exists
    )
    assert found == status
