"""The guide's case, end to end: a GPT moved from PyTorch to MindSpore, its two faults found and mended, and
the long run that shows that nothing else is wrong. Every step is a command that a person would type.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import socket
import time
from collections.abc import Sequence

from telling import OUT, ROOT, Started, chapter, put_into_page, run, show, start

TORCH, MINDSPORE = "examples/migration/pytorch_gpt.py", "examples/migration/mindspore_gpt.py"
NAMES = ("--from", "hf-llama", "--to", "mindformers-llama-fused", "--num-heads", "4", "--num-kv-heads", "2")
NARROW = ("--layers", "1")
"""of the long runs: MindSpore takes its time on a CPU"""
EXACTLY = ("--preset", "diagnose", "--deterministic")
DECIDED = (0, 1, 2)
"""exit statuses of a comparison: agrees, differs, undecided"""


def port(weights: str, batches: str, *mends: str) -> list[str]:
    """The port's program."""
    words = [MINDSPORE, "--weights", f"{OUT}/{weights}.ckpt", "--data", f"{OUT}/{batches}"]
    return [*words, "--mend", *mends] if mends else words


def mended(weights: str, batches: str) -> list[str]:
    """The port without its faults."""
    return port(weights, batches, "embedding", "decay")


def capture(name: str, *words: str, program: Sequence[str], steps: int) -> None:
    """Capture a run without an edit of its script; what it prints is kept beside the trace."""
    command = ["trueup", "capture", *words, "-o", f"{OUT}/{name}", "--"]
    launcher = [] if program[0] in ("torchrun", "msrun") else ["python"]
    run(*command, *launcher, *program, "--steps", str(steps), log=f"{name}.log")


def weights_and_batches() -> None:
    """What the port needs of its reference."""
    capture("reference", "--preset", "diagnose", program=[TORCH], steps=2)
    show("trueup", "export", "--format", "batches", f"{OUT}/reference", f"{OUT}/batches", "-q")
    show("trueup", "convert-weights", f"{OUT}/reference", f"{OUT}/port.ckpt", *NAMES)


def as_it_came() -> str:
    """Both faults, named."""
    program = port("port", "batches")
    capture("port", "--preset", "diagnose", program=program, steps=2)
    again = shlex.join(["python", *program, "--steps", "2"])
    report = ("--replay", again, "-o", f"{OUT}/diagnosis")
    return show("trueup", "diagnose", f"{OUT}/port", f"{OUT}/reference", *report, allowed=DECIDED)


def without_faults(steps: int) -> tuple[str, str]:
    """The first steps again, then steps that change no weight."""
    capture("mended", "--preset", "diagnose", program=mended("port", "batches"), steps=2)
    report = ("-o", f"{OUT}/diagnosis-mended")
    agrees = show("trueup", "diagnose", f"{OUT}/mended", f"{OUT}/reference", *report, allowed=DECIDED)
    still = ("--learning-rate", "0", "--deterministic")
    capture("still-reference", "--preset", "batches", *still, program=[TORCH], steps=steps)
    show("trueup", "export", "--format", "batches", f"{OUT}/still-reference", f"{OUT}/still-batches", "-q")
    capture("still-port", *still, "--steps", "0", program=mended("port", "still-batches"), steps=steps)
    curves = ("--reference", f"{OUT}/still-reference", "-o", f"{OUT}/still")
    return agrees, show("trueup", "curves", f"{OUT}/still-port", *curves, allowed=DECIDED)


def repeats_begun(steps: int) -> list[Started]:
    """Two repeats of the narrow reference, for its own spread."""
    narrow = ("python", TORCH, *NARROW, "--steps", str(steps))
    return [
        start(*narrow, "--turn", turn, "--curve", f"{OUT}/repeat-{turn}.jsonl", log=f"repeat-{turn}.log")
        for turn in ("1", "2")
    ]


def long_runs_begun(steps: int) -> list[Started]:
    """The reference's long runs, on one process and on two, and the port's on their batches, which train on
    while the story goes on."""
    capture("narrow-reference", *EXACTLY, program=[TORCH, *NARROW], steps=2)
    show("trueup", "convert-weights", f"{OUT}/narrow-reference", f"{OUT}/narrow.ckpt", *NAMES)
    two = ("torchrun", "--standalone", "--nproc-per-node", "2")
    both = ["msrun", "--worker_num", "2", "--local_worker_num", "2", "--master_port", str(free_port())]
    both += ["--join", "True", "--log_dir", f"{OUT}/msrun"]
    ways = (("-2", two, both), ("", (), ["python"]))
    together, alone = (long_run_begun(name, launcher, ports, steps) for name, launcher, ports in ways)
    return [alone, together]


def long_run_begun(name: str, launcher: Sequence[str], ports: Sequence[str], steps: int) -> Started:
    """A long run of the reference, and the port's on its batches, under way."""
    program = [*launcher, TORCH, *NARROW, "--curve", f"{OUT}/reference{name}.jsonl"]
    capture(f"long{name}", "--preset", "batches", program=program, steps=steps)
    show("trueup", "export", "--format", "batches", f"{OUT}/long{name}", f"{OUT}/long-batches{name}", "-q")
    words = [*mended("narrow", f"long-batches{name}"), *NARROW, "--steps", str(steps)]
    return start(*ports, *words, "--curve", f"{OUT}/port{name}.jsonl", log=f"port-long{name}.log")


def long_runs(begun: Sequence[Started]) -> tuple[str, str]:
    """A narrow model on one process and on two, once what was begun has ended."""
    *others, alone, together = begun
    capture("narrow-port", *EXACTLY, program=[*mended("narrow", "long-batches"), *NARROW], steps=2)
    for one in (*others, alone):
        one.end()
    first = judged("curves", "port", "reference")
    together.end()
    return first, judged("curves-2", "port-2", "reference-2")


def judged(name: str, target: str, reference: str) -> str:
    """Hold a curve against the reference's and its repeats'."""
    logs = [f"{OUT}/{one}.jsonl" for one in (reference, "repeat-1", "repeat-2")]
    proof = ("--target-trace", f"{OUT}/narrow-port", "--reference-trace", f"{OUT}/narrow-reference")
    words = (f"{OUT}/{target}.jsonl", "--reference", *logs, *proof, "-o", f"{OUT}/{name}")
    return show("trueup", "curves", *words, allowed=DECIDED)


def free_port() -> int:
    """For the processes to find each other."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number: int = one.getsockname()[1]
        return number


def main() -> None:
    """Tell the story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="of the long runs")
    parser.add_argument("--docs", action="store_true", help="put what was said into docs/migration.md")
    given = parser.parse_args()
    began = time.perf_counter()
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    (ROOT / OUT).mkdir(parents=True)
    said = {}
    chapter("1. The reference, and what the port needs of it: weights and batches")
    weights_and_batches()
    print("\nThe same of a narrow model, whose long runs go on in the background from here on:")
    begun = repeats_begun(given.steps) + long_runs_begun(given.steps)
    chapter("2. The port as it came")
    said["port"] = as_it_came()
    chapter("3. The port with both mended: first steps, then steps that change no weight")
    said["mended"], said["still"] = without_faults(min(given.steps, 30))
    chapter(f"4. {given.steps} steps, on one process and on two, beside two repeats of the reference")
    said["curves"], said["curves-2"] = long_runs(begun)
    print(f"\nReports: {OUT}/diagnosis/diagnosis.html, {OUT}/curves/curves.html", flush=True)
    print(f"The whole story took {time.perf_counter() - began:.0f} s.")
    if given.docs:
        put_into_page(said)


if __name__ == "__main__":
    main()
