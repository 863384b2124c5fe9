"""trueup on a real verl: ``make rl``. GRPO and PPO on a CPU, with capture and without, and a Ray cluster.

    python rl/run.py [cost] [grpo] [ppo] [ray] [trl] [sft] [engines] [unchanged] [faults] [debugger]

Each line says what was held against what; the exit status is 1 where something does not hold. What costs is
measured alone; then two trainings run at a time. One training of an algorithm records its rollouts, shows its
phases and layers, and is the reference of its faults.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "rl"
PYTHON = Path(os.environ.get("TRUEUP_RL_VENV") or ROOT / ".cache/rl").absolute() / "bin" / "python"
TRUEUP = [sys.executable, "-m", "trueup"]
NUMBER = re.compile(r"([\w@/]+):(-?[\d.e+-]+|nan)")
NOT_NUMERICAL = ("timing", "perf", "mfu", "memory", "throughput")
IN_FLOAT32 = {f"rollout_corr/{name}" for name in ("kl", "k3_kl", "chi2_token", "chi2_seq", "rollout_ppl")}
"""metrics that verl computes in float32 here; the others are rounded to bfloat16, as its old_log_probs are"""
GRPO = {
    "algorithm.adv_estimator": "grpo",
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.logger": "[console]",
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.total_training_steps": 2,
    "trainer.resume_mode": "disable",
    "trainer.project_name": "toy",
    "trainer.experiment_name": "toy",
    "data.train_batch_size": 4,
    "data.max_prompt_length": 64,
    "data.max_response_length": 12,
    "data.dataloader_num_workers": 0,
    "data.shuffle": False,
    "actor_rollout_ref.model.use_remove_padding": False,
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.optim.lr": 1e-3,
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.ref.fsdp_config.dtype": "float32",
    "actor_rollout_ref.ref.fsdp_config.model_dtype": "fp32",
    "actor_rollout_ref.rollout.name": "hfcpu",
    "actor_rollout_ref.rollout.n": 2,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.load_format": "auto",
    "actor_rollout_ref.rollout.free_cache_engine": False,
    "reward.custom_reward_function.name": "compute_score",
    "reward.num_workers": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,  # each is a process
    "ray_kwargs.ray_init.num_cpus": 16,
    "+ray_kwargs.ray_init.num_gpus": 1,
    "+ray_kwargs.ray_init.include_dashboard": False,
}
PPO = {
    "algorithm.adv_estimator": "gae",
    "critic.model.use_remove_padding": False,
    "critic.ppo_micro_batch_size_per_gpu": 2,
    "critic.ppo_mini_batch_size": 2,
    "critic.forward_micro_batch_size_per_gpu": 2,
    "+critic.model.override_config.attn_implementation": "sdpa",
    "critic.strategy": "fsdp2",
    "critic.model.enable_gradient_checkpointing": False,
}
SFT = """
data.val_files=null data.messages_key=messages data.train_batch_size=4 data.max_length=64
data.micro_batch_size_per_gpu=2 data.pad_mode=no_padding data.num_workers=0 data.use_dynamic_bsz=False
model.use_remove_padding=True +model.override_config.attn_implementation=sdpa
model.enable_gradient_checkpointing=False engine=fsdp engine.strategy=fsdp2 engine.use_torch_compile=False
optim.lr=1e-3 trainer.device=cpu trainer.logger=[console] trainer.total_training_steps=2
trainer.total_epochs=1 trainer.test_freq=-1 trainer.save_freq=-1 trainer.resume_mode=disable
trainer.project_name=toy trainer.experiment_name=sft
"""
MOST_COST = 1.15
COST_STEPS, COST_WARM = 12, 3
"""steps of each process; those in which code is captured and memory is first taken"""
AT_A_TIME = 2
RAY_PORT = 6391
ENGINES = Path(os.environ.get("TRUEUP_REALWORLD_VENVS") or ROOT / ".cache/realworld") / "light/bin/python"
"""with transformers and Megatron-core: realworld/setup.sh light"""
PHASES = {
    "grpo": {("actor", "compute_log_prob"), ("reference", "ref_log_prob"), ("actor", "update")},
    "ppo": {("critic", "values"), ("critic", "update")},
}


class Bench:
    """A folder with inputs, and what was found there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed = 0
        self._lock = threading.Lock()
        subprocess.run([PYTHON, HERE / "make_inputs.py", folder / "inputs"], check=True, capture_output=True)

    def verl(
        self,
        name: str,
        more: Mapping[str, object],
        *,
        captured: bool,
        options: Sequence[str] = (),
        **variables: str,
    ) -> str:
        """Run verl's PPO trainer, captured with more options; what it printed."""
        inputs, place = self.folder / "inputs", self.folder / name
        files = {
            "data.train_files": inputs / "train.parquet",
            "data.val_files": inputs / "val.parquet",
            "actor_rollout_ref.model.path": inputs / "model",
            "reward.custom_reward_function.path": inputs / "reward.py",
            "trainer.default_local_dir": place / "checkpoints",
        }
        if "critic.strategy" in more:
            files |= {"critic.model.path": inputs / "model", "critic.model.tokenizer_path": inputs / "model"}
        settings = [f"{key}={value}" for key, value in {**GRPO, **files, **more}.items()]
        command = [str(PYTHON), "-m", "verl.trainer.main_ppo", *settings]
        if captured:
            given = ["-o", str(place / "run"), "--steps", "1-2", *options]
            command = [*TRUEUP, "capture", *given, "--", *command]
        return self.run(name, command, **variables)

    def run(self, name: str, command: Sequence[str], **variables: str) -> str:
        (self.folder / name).mkdir(exist_ok=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ray-") as temporary:  # Ray's sockets want a short path
            done = subprocess.run(
                command,
                cwd=self.folder / name,
                env=environment(RAY_TMPDIR=temporary, **variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        (self.folder / name / "log.txt").write_text(done.stdout)
        took = f"{time.monotonic() - begun:.0f} s"
        self.holds(f"{name}: exit status 0 ({took})", done.returncode == 0, done.stdout[-2000:])
        return done.stdout

    def holds(self, what: str, fine: bool, found: object = "") -> None:
        with self._lock:
            self.failed += not fine
            print(f"{'ok  ' if fine else 'FAIL'} {what}{'' if fine else f': {found}'}", flush=True)


def environment(**more: str) -> dict[str, str]:
    """Of a verl on a CPU whose rows come in the same order in every run."""
    return {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_CPU_PIN": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ADDRESS": "local",
        **more,
    }


def logged(text: str) -> dict[int, dict[str, str]]:
    """Step -> the numbers that verl's console logger printed of it, but times and memory."""
    found = {}
    for line in text.splitlines():
        at = re.search(r"step:(\d+) - ", line)
        if at:
            numbers = dict(NUMBER.findall(line[at.end() :]))
            found[int(at[1])] = {k: v for k, v in numbers.items() if not any(w in k for w in NOT_NUMERICAL)}
    return found


def traces(run: Path) -> dict[tuple[str, str], set[int]]:
    """Role and phase -> steps that a trace has of it, in any process."""
    found: dict[tuple[str, str], set[int]] = {}
    for file in run.rglob("scalars/rank_*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            for phase in line.get("phases", ()):
                if phase["calls"][1] > phase["calls"][0]:
                    found.setdefault((phase["role"], phase["phase"]), set()).add(line["step"])
    return found


def train(bench: Bench, name: str) -> None:
    """One algorithm, captured and monitored: every phase is there, its log-probs give verl's metrics, and its
    layers explain why they differ from the rollout's."""
    options = ["--monitor", "--task", "tensor"]  # rows of other packing and workers are found by values
    watched = logged(bench.verl(f"{name}-captured", replayed(bench, name), captured=True, options=options))
    run = bench.folder / f"{name}-captured" / "run"
    phases = traces(run)
    for wanted in sorted(PHASES["grpo"] | PHASES[name]):
        bench.holds(f"{name}: {wanted[0]} {wanted[1]} in steps 1 and 2", phases.get(wanted) == {1, 2}, phases)
    out = bench.folder / f"{name}-mismatch"
    status = subprocess.run([*TRUEUP, "mismatch", run, "-o", out, "-q"], check=False).returncode
    page = json.loads((out / "mismatch.json").read_text())
    layers = [(one["name"], one["num_tokens"], round(one["rel_l2"], 5)) for one in page["layers"]]
    bench.holds(
        f"{name}: rollout and trainer, layer by layer: {layers}", status == 0 and len(layers) == 6, page
    )
    lines = [json.loads(line) for line in (run / "monitor" / "mismatch.jsonl").read_text().splitlines()]
    events = [file.name for file in run.glob("monitor/events/*.mismatch.*")]
    series = {line["step"]: line["k3"] for line in lines}
    bench.holds(
        f"{name}: k3 of the monitor in 2 steps, no alarm", set(series) == {1, 2} and not events, events
    )
    found = page["steps"]
    for step, numbers in watched.items():
        metrics = found[str(step)]["verl"]
        off = {
            key: (value, metrics[key])
            for key, value in numbers.items()
            if key in IN_FLOAT32 and abs(float(value) - metrics[key]) > 1e-4 * abs(metrics[key]) + 5e-6
        }
        both = len(set(numbers) & IN_FLOAT32)
        bench.holds(
            f"{name}: step {step}: {both} metrics of verl are those of mismatch", not off and both, off
        )


def replayed(bench: Bench, name: str) -> dict[str, object]:
    """Rollouts are recorded by the first run that has these settings, and taken from there by others."""
    return {
        **MORE[name],
        "skip.rollout_tq.enable": True,
        "skip.rollout_tq.dump_dir": bench.folder / f"rollouts-{name}",
        "skip.rollout_tq.steps": "[1,2]",
        "trainer.balance_batch": False,
    }


def unchanged(bench: Bench) -> None:
    """Capture on and off, both on the rollouts that a captured run recorded: its own rows stand otherwise."""
    plain, watched = (
        logged(bench.verl(f"grpo-{word}", replayed(bench, "grpo"), captured=word == "on"))
        for word in ("off", "on")
    )
    differ = {(s, k) for s in plain for k in plain[s] if plain[s][k] != watched.get(s, {}).get(k)}
    count = sum(map(len, plain.values()))
    bench.holds(f"grpo: {count} numbers that verl logs are equal with capture", not differ and count, differ)


FAULTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "grpo": {
        "over_batch": ("advantages", "rl.normalised_over_batch"),
        "k1": ("kl_loss", "rl.kl_estimator"),
        "sequence_mean": ("policy_loss", "rl.aggregated_otherwise"),
    },
    "ppo": {"not_clipped": ("value_loss", "rl.not_clipped"), "lam_one": ("advantages", "rl.gamma_lam")},
}
"""of rl/verl_faults.py -> the quantity and reason of the verdict"""
MORE = {
    "grpo": {"actor_rollout_ref.rollout.n": 4, "actor_rollout_ref.actor.ppo_mini_batch_size": 4},
    "ppo": {**PPO, "algorithm.lam": 0.9, "critic.cliprange_value": 0.01},
}
BENIGN = {
    "microbatches": {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1},
    "padding removed": {"actor_rollout_ref.model.use_remove_padding": True},
    "two workers": {"trainer.n_gpus_per_node": 2, "+ray_kwargs.ray_init.num_gpus": 2},
}


def fault(bench: Bench, algorithm: str, name: str) -> None:
    """A fault in verl itself, on the rollouts that the first run recorded."""
    bench.verl(name, replayed(bench, algorithm), captured=True, RL_FAULT=name)
    checks = compared(bench, name, f"{algorithm}-captured")
    first = min((c for c in checks if c["status"] == "failed"), key=_place, default=None)
    said = None if first is None else (first["quantity"], first["reason"]["code"])
    bench.holds(f"{algorithm}: {name} is found in verl", said == FAULTS[algorithm][name], said)


def benign(bench: Bench, name: str) -> None:
    """The same training in other microbatches, without padding, or with two workers."""
    place, settings = name.replace(" ", "-"), {**replayed(bench, "grpo"), **BENIGN[name]}
    bench.verl(place, settings, captured=True, options=["--task", "tensor"])
    checks = compared(bench, place, "grpo-captured")
    alarms = [one["said"] for one in checks if one["status"] == "failed"]
    bench.holds(f"grpo: {name}: no alarm in {len(checks)} checks", bool(checks) and not alarms, alarms)
    codes = exit_statuses(bench, place, "grpo-captured")
    bench.holds(f"grpo: {name}: compare and diagnose agree", codes == (0, 0), codes)


def _place(check: Mapping[str, object]) -> tuple[object, object]:
    return check["step"], not check["confirmed"]


def compared(bench: Bench, target: str, reference: str) -> list[dict]:
    """What ``trueup compare`` says of the pipeline of two runs."""
    out = bench.folder / f"{target}-compared"
    runs = [str(bench.folder / name / "run") for name in (target, reference)]
    subprocess.run([*TRUEUP, "compare", *runs, "-o", str(out), "-q"], check=False)
    return json.loads((out / "rl.json").read_text())["checks"]


def exit_statuses(bench: Bench, target: str, reference: str) -> tuple[int, int]:
    """Of ``trueup compare`` and ``trueup diagnose``."""
    runs = [str(bench.folder / name / "run") for name in (target, reference)]
    out = str(bench.folder / f"{target}-diagnosed")
    one, other = (
        subprocess.run([*TRUEUP, verb, *runs, "-o", f"{out}-{verb}", "-q"], check=False).returncode
        for verb in ("compare", "diagnose")
    )
    return one, other


def sft(bench: Bench) -> None:
    """verl's SFT trainer with one worker and with two, and with padding: one training."""

    def train(name: str, workers: int, *more: str) -> None:
        place = bench.folder / name
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={workers}"]
        words = [*launcher, "-m", "verl.trainer.sft_trainer", *SFT.split(), *more]
        files = [
            f"data.train_files={bench.folder}/inputs/sft.parquet",
            f"model.path={bench.folder}/inputs/model",
            f"trainer.default_local_dir={place}/checkpoints",
        ]
        given = ["-q", "-o", str(place / "run"), "--task", "tensor"]
        bench.run(name, [*TRUEUP, "capture", *given, "--", str(PYTHON), *words, *files])

    train("sft", 1)
    train("sft-two", 2)
    train("sft-padded", 1, "model.use_remove_padding=False")
    for name in ("sft-two", "sft-padded"):
        codes = exit_statuses(bench, name, "sft")
        bench.holds(f"sft: {name} and one worker without padding agree", codes == (0, 0), codes)


def debugger(bench: Bench) -> None:
    """``tool: precision_debugger`` of verl's profiler, unchanged, with trueup under msprobe's name."""
    path = f"{HERE}:{ROOT / 'src'}:{PYTHON.parents[1] / 'beside'}"
    alias = [str(PYTHON), "-m", "trueup", "alias", "msprobe"]
    subprocess.run(alias, env=environment(PYTHONPATH=path), check=True, capture_output=True)
    try:
        config = bench.folder / "precision.json"
        config.write_text(json.dumps({"task": "statistics", "level": "L0", "step": [], "rank": []}))
        dumps = bench.folder / "debugger" / "dumps"
        tool = "global_profiler.global_tool_config.precision_debugger"
        profiled = {
            "global_profiler.tool": "precision_debugger",
            "global_profiler.steps": "[1,2]",
            "global_profiler.save_path": dumps,
            f"+{tool}.config_path": config,
            "actor_rollout_ref.actor.profiler.enable": True,
            "actor_rollout_ref.ref.profiler.enable": True,
        }
        bench.verl("debugger", {**MORE["grpo"], **profiled}, captured=False, PYTHONPATH=path)
        traces = sorted({str(file.parent.relative_to(dumps)) for file in dumps.rglob("manifest.json")})
        bench.holds(f"debugger: traces of {traces}", len(traces) >= 2, traces)
    finally:
        subprocess.run(
            [*alias, "--remove"], env=environment(PYTHONPATH=path), check=True, capture_output=True
        )


def cost(bench: Bench) -> None:
    """CPU seconds of a step of verl's SFT trainer, captured at L0 over not captured: two processes take turns
    step by step, so that whatever else the machine does weighs on both; the median of the pairs."""

    def steps(word: str) -> list[float]:
        place = bench.folder / f"cost-{word}"
        place.mkdir()
        words = [place, bench.folder / "inputs/model", COST_STEPS, bench.folder / "turns", word]
        command = [str(PYTHON), str(HERE / "verl_cost.py"), *map(str, words)]
        if word == "on":
            given = ["-q", "-o", str(place / "run"), "--steps", f"{COST_WARM - 1}-{COST_STEPS - 1}"]
            command = [*TRUEUP, "capture", *given, "--", *command]
        text = bench.run(place.name, command)
        line = next(line for line in text.splitlines() if line.startswith("CPU_SECONDS"))
        return json.loads(line.partition(" ")[2])[COST_WARM:]

    (bench.folder / "turns").mkdir()
    with ThreadPoolExecutor(2) as pool:
        off, on = pool.map(steps, ("off", "on"))
    ratios = [one / other for one, other in zip(on, off, strict=True)]
    ratio = statistics.median(ratios)
    said = f"{statistics.median(on):.3f} against {statistics.median(off):.3f} s, {len(ratios)} pairs"
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    bench.holds(f"cost: L0 takes {ratio:.3f} of a step's CPU seconds ({said}: {spread})", ratio <= MOST_COST)


TRL_FAULTS = {"std": ("advantages", "rl.std_of_batch"), "kl": ("loss", "rl.term_missing")}
"""of rl/trl_grpo.py -> the quantity and reason of the verdict"""


def _trl(bench: Bench, fault: str, kind: str) -> str:
    """Train with TRL's GRPOTrainer, captured; the run's name."""
    name = f"trl-{fault or kind}"
    command = [str(PYTHON), str(HERE / "trl_grpo.py"), str(bench.folder / "inputs" / "model"), fault, kind]
    place = bench.folder / name / "run"
    captured = [*TRUEUP, "capture", "-o", str(place), "--steps", "0-3", "--", *command]
    bench.run(name, captured, PYTHONPATH=f"{HERE}:{PYTHON.parents[1] / 'trl'}")
    return name


def trl(bench: Bench) -> None:
    """TRL's GRPOTrainer: every loss type keeps to its formula, and faults are found."""
    for kind in ("dapo", "grpo", "bnpo", "dr_grpo"):
        name = _trl(bench, "", kind)
        held = [c for c in compared(bench, name, name) if c["quantity"] in ("loss", "advantages")]
        codes = {one["reason"]["code"] for one in held}
        bench.holds(f"trl: {kind} keeps to its formula", codes == {"rl.formula_holds"}, codes)
    for fault, wanted in TRL_FAULTS.items():
        checks = compared(bench, _trl(bench, fault, "dapo"), "trl-dapo")
        first = min((c for c in checks if c["status"] == "failed"), key=_place, default=None)
        said = None if first is None else (first["quantity"], first["reason"]["code"])
        bench.holds(f"trl: {fault} is found", said == wanted, said)


def engines(bench: Bench) -> None:
    """Hugging Face's model under FSDP2, and Megatron-core's: the same weights on the same tokens."""
    if not ENGINES.exists():
        print(f"     engines: left out, {ENGINES} is not there", flush=True)
        return
    tokens = bench.folder / "tokens" / "run"
    path = f"{ROOT / 'src'}:{ROOT}"
    command = [str(ENGINES), str(HERE / "two_engines.py")]
    bench.run("tokens", [*command, "hf", str(tokens)], PYTHONPATH=path)
    for name, words in (("hf", ["hf"]), ("megatron", ["megatron"]), ("megatron-eps", ["megatron"])):
        run = bench.folder / name / "run"
        given = ["-q", "--level", "L0", "--task", "tensor", "--steps", "0-3", "-o", str(run)]
        more = [str(run), str(tokens), name.partition("-")[2]]
        captured = [str(ENGINES), "-m", "trueup", "capture", *given, "--", *command, *words, *more]
        bench.run(name, captured, PYTHONPATH=path)
    codes = exit_statuses(bench, "megatron", "hf")
    bench.holds("engines: Megatron and FSDP2 agree, module by module", codes == (0, 0), codes)
    checks = compared(bench, "megatron", "hf")
    apart = [one["said"] for one in checks if one["status"] != "passed"]
    bench.holds(f"engines: {len(checks)} checks of the pipeline agree", bool(checks) and not apart, apart)
    codes = exit_statuses(bench, "megatron-eps", "hf")
    page = json.loads((bench.folder / "megatron-eps-diagnosed-diagnose" / "diagnosis.json").read_text())
    module = page["findings"][0]["module"]
    wanted = "model.decoder.layers.0.input_layernorm"
    bench.holds("engines: another epsilon is found", codes[0] == 1 and module == wanted, (codes, module))


def cluster(bench: Bench) -> None:
    """Workers of a cluster that was started before capture."""
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:
        start = [PYTHON.parent / "ray", "start", "--head", f"--port={RAY_PORT}", "--num-cpus=4", "--block"]
        more = ["--include-dashboard=false", f"--temp-dir={temporary}"]
        head = subprocess.Popen(
            [*start, *more], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said = next((line for line in head.stdout or () if "Ray runtime started" in line), "")
            bench.holds("ray: cluster started", bool(said))
            run = bench.folder / "ray" / "run"
            command = [*TRUEUP, "capture", "-o", str(run), "--", str(PYTHON), str(HERE / "ray_job.py")]
            bench.run("ray", command, RAY_ADDRESS=f"127.0.0.1:{RAY_PORT}")
            facts = [json.loads(file.read_text()) for file in run.rglob("ranks/rank_*.json")]
            actors = [one.get("ray", {}).get("actor") for one in facts]
            bench.holds("ray: 3 actors captured, with their class", actors == ["Trainer"] * 3, facts)
        finally:
            head.terminate()  # and with it what it started; `ray stop` would end every cluster of the machine
            head.communicate(timeout=60)


Task = Callable[[Bench], None]
RECORDS: Mapping[str, Task] = {
    "grpo": partial(train, name="grpo"),
    "ppo": partial(train, name="ppo"),
    "sft": sft,
    "trl": trl,
    "ray": cluster,
    "engines": engines,
}
"""parts that need no other"""


def on_records(asked: Sequence[str]) -> list[Task]:
    """What runs on the rollouts that ``grpo`` and ``ppo`` recorded."""
    tasks: list[Task] = [unchanged] if "unchanged" in asked else []
    if "faults" in asked:
        tasks += [partial(benign, name=name) for name in BENIGN]
        tasks += [partial(fault, algorithm=of, name=name) for of, names in FAULTS.items() for name in names]
    return tasks + ([debugger] if "debugger" in asked else [])


def side_by_side(bench: Bench, tasks: Sequence[Task]) -> None:
    """Run tasks, two at a time; one that breaks is a failure, and the others go on."""

    def run(task: Task) -> None:
        try:
            task(bench)
        except Exception as error:  # of any kind: it is told, and counts
            bench.holds(f"{task}: ran to its end", False, repr(error))

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(run, tasks))


def main() -> int:
    every = ["cost", *RECORDS, "unchanged", "faults", "debugger"]
    asked = sys.argv[1:] or every
    if not PYTHON.exists():
        print(f"{PYTHON} is not there: rl/setup.sh makes it")
        return 2
    begun, before = time.monotonic(), os.times()
    with tempfile.TemporaryDirectory(prefix="rl-") as folder:
        bench = Bench(Path(folder))
        if "cost" in asked:
            cost(bench)
        later = on_records(asked)
        needed = {"grpo", "ppo"} if "faults" in asked else {"grpo"} if "unchanged" in asked else set()
        side_by_side(bench, [task for name, task in RECORDS.items() if name in asked or name in needed])
        side_by_side(bench, later)
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    print(f"{time.monotonic() - begun:.0f} s, {cpu:.0f} CPU seconds; {bench.failed} failed")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
