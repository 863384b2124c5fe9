"""One configuration trained on PyTorch and on MindSpore, captured and compared: ``make demo-mindspore``.

First both as the file says: they agree. Then the MindSpore run with one key changed, the epsilon of the
norms: they do not, and the diagnosis names the norm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 3
CHANGED = "model_config.norm_epsilon=1e-3"


def trueup(*words: str, expected: int, quiet: bool = False) -> None:
    """Run the command and show it; another exit status than ``expected`` ends the demonstration."""
    command = [sys.executable, "-m", "trueup", *words]
    print(f"\n$ trueup {' '.join(words)}", flush=True)
    environment = os.environ | {"GLOG_v": "3"}
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL if quiet else None, check=False)
    if done.returncode != expected:
        sys.exit(f"exit status {done.returncode}, expected {expected}")


def capture(output: Path, framework: str, *changes: str) -> None:
    """Train the shipped configuration and capture it, without an edit."""
    settings = [
        f"training_config.training_iters={STEPS}",
        f"training_config.output_dir={output}.run",
        *changes,
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    program = [
        sys.executable,
        "-m",
        "trueup_gpt",
        "tiny",
        "--device",
        "cpu",
        "--framework",
        framework,
        *words,
    ]
    trueup("capture", "--preset", "diagnose", "-o", str(output), "--", *program, expected=0, quiet=True)


def main() -> None:
    """Three runs, two diagnoses."""
    folder = Path(tempfile.mkdtemp(prefix="trueup-demo-"))
    capture(folder / "reference", "pytorch")
    capture(folder / "target", "mindspore")
    pair = [str(folder / "target"), str(folder / "reference")]
    trueup("diagnose", *pair, "-o", str(folder / "agree"), expected=0)
    capture(folder / "changed", "mindspore", CHANGED)
    trueup("diagnose", str(folder / "changed"), pair[1], "-o", str(folder / "differ"), expected=1)
    print(f"\nreports: {folder}/agree/diagnosis.html, {folder}/differ/diagnosis.html")


if __name__ == "__main__":
    main()
