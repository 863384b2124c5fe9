"""The demo: train a small GPT twice, the second time with a believable mistake, and let trueup find it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("out") / "demo"


def trueup(*arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
    """Run the command line tool as a person would; stop with its own message when it fails."""
    done = subprocess.run([sys.executable, "-m", "trueup", *arguments], cwd=ROOT, check=False)
    if done.returncode not in allowed:
        sys.exit(done.returncode)


def main() -> None:
    """Capture reference and target, compare, and say where the report is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", default="rope-bf16", help="any of those examples/train_gpt.py knows")
    fault = parser.parse_args().fault
    began = time.perf_counter()
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    script = [sys.executable, "examples/train_gpt.py", "--steps", "2"]
    for name, extra in (("reference", []), ("target", ["--fault", fault])):
        shown = " ".join(["python", *script[1:], *extra])
        print(f"\n$ trueup capture --level mix -o out/demo/{name} -- {shown}", flush=True)
        trueup("capture", "--level", "mix", "-o", str(OUT / name), "--", *script, *extra)
    print("\n$ trueup compare out/demo/target out/demo/reference -o out/demo/report", flush=True)
    trueup("compare", str(OUT / "target"), str(OUT / "reference"), "-o", str(OUT / "report"), allowed=(0, 1))
    print(f"\nThe planted mistake was: {fault}. The report: {OUT / 'report' / 'report.html'}")
    print(f"The whole demo took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
