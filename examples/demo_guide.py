"""The accuracy guide in three stages, on a pair with two planted deviations: one in settings, one in code.

1. Checklist: both configurations are compared, and what differs is aligned.
2. Steps 1 and 2: both programs are captured, and the target is replayed with the reference's values.
3. Long run: the loss curves are held to the standard.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from trueup.cli.app import run

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("out") / "demo-guide"
TRAIN = "python examples/train_gpt.py --settings {settings} --steps {steps} --length {length}"
LONG = TRAIN + " --layers 1"
"""the smallest model of this code: a thousand steps in seconds"""


def main() -> int:
    """Walk through the stages; 1 where one does not end as it should."""
    began = time.perf_counter()
    os.chdir(ROOT)  # the programs that are named in commands lie below it, beside the same Python
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two small programs at a time: more threads only wait
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    _settings("reference", weight_decay=0.01)
    _settings("target", weight_decay=0.1)
    ends = [*_checklist(), *_first_steps(), *_long_run()]
    print(f"\nThe whole walk took {time.perf_counter() - began:.0f} s. All that was made is in {OUT}.")
    return int(not all(ends))


def _checklist() -> list[bool]:
    _say("1. Checklist", "Before anything is run: do both configurations describe the same training?")
    command = f"trueup check {OUT}/target.yaml {OUT}/reference.yaml --no-recommendations"
    differ = _run(command) == 1
    print("\nThe target's weight decay is another one. It is set to the reference's, and checked again:")
    _settings("target", weight_decay=0.01)
    return [differ, _run(command) == 0]


def _first_steps() -> list[bool]:
    _say("2. Steps 1 and 2", "The settings are aligned. Where do the programs diverge, and why?")
    programs = {
        "reference": TRAIN.format(settings=f"{OUT}/reference.yaml", steps=2, length=128),
        "target": TRAIN.format(settings=f"{OUT}/target.yaml", steps=2, length=128) + " --fault norm-eps",
    }
    captured = [
        _run(f"trueup capture --preset diagnose -o {OUT}/{name} -- {program}") == 0
        for name, program in programs.items()
    ]
    replay = f"--replay {shlex.quote(programs['target'])} -o {OUT}/diagnosis"
    return [*captured, _run(f"trueup diagnose {OUT}/target {OUT}/reference {replay}") == 1]


def _long_run() -> list[bool]:
    _say("3. Long run", "The eps is set right in the code. Do a thousand steps agree?")
    trained = [_trained(name) for name in ("reference", "target")]  # at the same time
    ends = [process.wait() == 0 for process in trained]
    logs = f"{OUT}/target.log --reference {OUT}/reference.log"
    return [*ends, _run(f"trueup curves {logs} --assume weights,settings,randomness -o {OUT}/curves") == 0]


def _trained(name: str) -> subprocess.Popen[bytes]:
    """The long run of one side, begun."""
    program = LONG.format(settings=f"{OUT}/{name}.yaml", steps=1000, length=16)
    print(f"\n$ {program} > {OUT}/{name}.log &", flush=True)
    with (OUT / f"{name}.log").open("w") as log:
        return subprocess.Popen([sys.executable, *shlex.split(program)[1:]], stdout=log)


def _settings(name: str, *, weight_decay: float) -> None:
    lines = ("learning_rate: 0.001", f"weight_decay: {weight_decay}", "clip_grad: 1.0")
    (OUT / f"{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _say(title: str, sentence: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}\n{sentence}")


def _run(command: str) -> int:
    """Run a command as it is shown, here where it needs no process of its own; its exit status."""
    print(f"\n$ {command}", flush=True)
    words = shlex.split(command)
    if words[1] == "capture":
        return subprocess.run([sys.executable, "-m", *words], check=False).returncode
    ended = run(words[1:])
    sys.stdout.flush()
    return ended


if __name__ == "__main__":
    sys.exit(main())
