"""The guide's case, end to end: a GPT moved from PyTorch to MindSpore, its two faults found and mended, and
the long run that shows that nothing else is wrong. Every step is a command that a person would type.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = Path("out") / "migration"
TORCH, MINDSPORE = "examples/migration/pytorch_gpt.py", "examples/migration/mindspore_gpt.py"
BIN = Path(sys.executable).parent
PORT = [MINDSPORE, "--weights", f"{OUT}/port.ckpt", "--data", f"{OUT}/batches"]
MENDED = [*PORT, "--mend", "embedding", "decay"]


def say(text: str) -> None:
    """A chapter of the story."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


@dataclass
class Started:
    """A command under way, and where its words go."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path | None

    def end(self, allowed: Sequence[int] = (0,)) -> None:
        """Wait for it; a failure ends the story with its words."""
        status = self.process.wait()
        if status not in allowed:
            seen = "" if self.log is None else f"; what it said is in {self.log}"
            sys.exit(f"\nthis command failed with exit status {status}{seen}: {shlex.join(self.words)}")


def start(*words: str, log: Path | None = None) -> Started:
    """Start a command as it would be typed; what it prints goes to the screen, or to a log."""
    print(f"$ {shlex.join(words)}", flush=True)
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    kept = None if log is None else (ROOT / log).open("wb")
    errors = None if kept is None else subprocess.STDOUT
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=kept, stderr=errors)
    return Started(words, process, log)


def trueup(*words: str, allowed: Sequence[int] = (0,)) -> None:
    """Run the command line tool."""
    start("trueup", *words).end(allowed)


def capture(name: str, *words: str, program: Sequence[str], steps: int) -> None:
    """Capture a run without an edit of its script; what it prints is kept beside the trace."""
    command = [
        "trueup",
        "capture",
        *words,
        "-o",
        f"{OUT}/{name}",
        "--",
        "python",
        *program,
        "--steps",
        str(steps),
    ]
    start(*command, log=OUT / f"{name}.log").end()


def main() -> None:
    """Run the story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="of the long runs")
    steps = parser.parse_args().steps
    began = time.perf_counter()
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    (ROOT / OUT).mkdir(parents=True)

    say("1. The reference, and what the port needs of it: weights and batches")
    capture("reference", "--preset", "diagnose", program=[TORCH], steps=2)
    capture("long", "--preset", "batches", program=[TORCH, "--log", f"{OUT}/reference.jsonl"], steps=steps)
    trueup("export", "--format", "batches", f"{OUT}/long", f"{OUT}/batches", "-q")
    to = ("--from", "hf-llama", "--to", "mindformers-llama-fused", "--num-heads", "4", "--num-kv-heads", "2")
    trueup("convert-weights", f"{OUT}/reference", f"{OUT}/port.ckpt", *to)

    say("2. The port as it came")
    capture("port", "--preset", "diagnose", program=PORT, steps=2)
    again = shlex.join(["python", *PORT, "--steps", "2"])
    report = ("-o", f"{OUT}/diagnosis")
    trueup("diagnose", f"{OUT}/port", f"{OUT}/reference", "--replay", again, *report, allowed=(0, 1, 2))

    say("3. The port with both mended: first steps, then steps that change no weight")
    capture("mended", "--preset", "diagnose", program=MENDED, steps=2)
    trueup(
        "diagnose", f"{OUT}/mended", f"{OUT}/reference", "-o", f"{OUT}/diagnosis-mended", allowed=(0, 1, 2)
    )
    still = ("--learning-rate", "0", "--steps", "0")
    capture("still-reference", *still, program=[TORCH], steps=min(steps, 50))
    capture("still-port", *still, program=MENDED, steps=min(steps, 50))
    judged("still", f"{OUT}/still-port", f"{OUT}/still-reference")

    say(f"4. {steps} steps, on one process and on two, beside two repeats of the reference")
    alone = start(
        "python", *MENDED, "--steps", str(steps), "--log", f"{OUT}/port.jsonl", log=OUT / "port.log"
    )
    for turn in (1, 2):
        repeat = [
            "python",
            TORCH,
            "--steps",
            str(steps),
            "--turn",
            str(turn),
            "--log",
            f"{OUT}/repeat-{turn}.jsonl",
        ]
        start(*repeat, log=OUT / "repeat.log").end()
    two = ["torchrun", "--standalone", "--nproc-per-node", "2", TORCH, "--steps", str(steps)]
    two = ["trueup", "capture", "--preset", "batches", "-o", f"{OUT}/long-2", "--", *two]
    start(*two, "--log", f"{OUT}/reference-2.jsonl", log=OUT / "reference-2.log").end()
    trueup("export", "--format", "batches", f"{OUT}/long-2", f"{OUT}/batches-2", "-q")
    alone.end()
    both = [
        "msrun",
        "--worker_num",
        "2",
        "--local_worker_num",
        "2",
        "--join",
        "True",
        "--log_dir",
        f"{OUT}/msrun",
    ]
    port_2 = [word.replace(f"{OUT}/batches", f"{OUT}/batches-2") for word in MENDED]
    start(*both, *port_2, "--steps", str(steps), "--log", f"{OUT}/port-2.jsonl", log=OUT / "port-2.log").end()
    repeats = [f"{OUT}/repeat-{turn}.jsonl" for turn in (1, 2)]
    judged("curves", f"{OUT}/port.jsonl", f"{OUT}/reference.jsonl", *repeats)
    judged("curves-2", f"{OUT}/port-2.jsonl", f"{OUT}/reference-2.jsonl", *repeats)
    print(f"\nReports: {OUT}/diagnosis/diagnosis.html, {OUT}/curves/curves.html", flush=True)
    print(f"The whole story took {time.perf_counter() - began:.0f} s.")


def judged(name: str, target: str, *references: str) -> None:
    """Hold a curve against the reference's and its repeats'."""
    proof = ("--target-trace", f"{OUT}/mended", "--reference-trace", f"{OUT}/reference")
    trueup("curves", target, "--reference", *references, *proof, "-o", f"{OUT}/{name}", allowed=(0, 1, 2))


if __name__ == "__main__":
    main()
