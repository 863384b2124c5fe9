"""Reads damaged files as the command line does: every reader succeeds, or says which file is wrong.

``python -m tests.fuzz.harness --num 10000 [--seed N]`` prints the inputs that were handled badly, each with
the number that makes it again (``--only NUMBER``).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import Seed, make_seeds

MOST_SECONDS = 20
MEMORY_BYTES = 4 << 30
"""address space beyond what the harness has when it begins"""
_WARNING = re.compile(r"\b\w*Warning: ")
_FRAME = re.compile(r'src/trueup/(\S+)", line (\d+)')
_LONGEST_SHOWN = 1500


class TooSlowError(BaseException):
    """A reader took longer than ``MOST_SECONDS``; no ``except Exception`` stops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """An input that a reader handled badly."""

    number: int
    reader: str
    file: str
    mutation: str
    problem: str
    detail: str


def problem_of(seed: Seed, file: Path) -> tuple[str, str]:
    """What is wrong with how ``seed`` is read, one line and the output; empty where nothing is."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), _limited() as warned:
        try:
            status = seed.read()
        except BaseException as error:  # PanicException of polars is none of Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            trace = traceback.format_exc()
            return f"{type(error).__name__}: {str(error)[:200]}", trace + output.getvalue()
    text = output.getvalue()
    if warned:
        return f"{warned[0].category.__name__}: {warned[0].message}", f"{warned[0]}\n{text}"
    return _problem_in(text, status, file), text


def _problem_in(text: str, status: int, file: Path) -> str:
    if (at := text.find("internal error in trueup")) >= 0:
        return text[at : at + 200].splitlines()[0]
    if "Traceback (most recent call last)" in text:
        return "a traceback is printed"
    if found := _WARNING.search(text):
        return text[found.start() : found.start() + 200].splitlines()[0]
    if status not in (0, 1, 2):
        return f"exit status {status}"
    error = next((line for line in text.splitlines() if line.startswith("error:")), None)
    if error is not None and not any(part in text for part in _names_of(file)):
        return f"the message names no file: {error[:160]}"
    return ""


def _names_of(file: Path) -> list[str]:
    """The file, or a folder around it that a person would know."""
    around = [folder for folder in file.parents if folder.parent != folder][:4]
    return [file.name, *(str(folder) for folder in around)]


@contextlib.contextmanager
def _limited() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings as a person sees them, and an end."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {MOST_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", category)
            yield warned
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(
    seeds: Sequence[Seed], *, num: int, seed: int, only: int | None = None, shown: bool = False
) -> tuple[list[Bad], dict[str, tuple[int, float]]]:
    """Damage a file ``num`` times and read it; returns what went badly, and inputs and seconds by reader."""
    bad: list[Bad] = []
    times: dict[str, tuple[int, float]] = {}
    for number in range(num) if only is None else [only]:
        chance = random.Random(f"{seed} {number}")
        chosen = seeds[number % len(seeds)]
        file = chance.choice(chosen.files)
        before = file.read_bytes()
        damaged, mutation = mutated(before, chance)
        begin = time.perf_counter()
        try:
            file.write_bytes(damaged)
            problem, detail = problem_of(chosen, file)
        finally:
            file.write_bytes(before)
        inputs, seconds = times.get(chosen.reader, (0, 0.0))
        times[chosen.reader] = inputs + 1, seconds + time.perf_counter() - begin
        if problem:
            bad.append(
                Bad(
                    number=number,
                    reader=chosen.reader,
                    file=str(file),
                    mutation=mutation,
                    problem=problem,
                    detail=detail,
                )
            )
        if shown:
            print(f"{number} {chosen.reader} {file.name} {mutation}: {problem or 'ok'}\n{detail}")
    return bad, times


def sound(seeds: Sequence[Seed]) -> list[str]:
    """Readers that do not read their seed as it was made: nothing would be tested with those."""
    return [
        f"{seed.reader}: {problem or text}"
        for seed in seeds
        for problem, text in [problem_of(seed, seed.files[0])]
        if problem or "error:" in text
    ]


def limit_memory() -> None:
    """Memory that a file only claims is refused here, and spares the machine."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, resource.RLIM_INFINITY))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 where an input was handled badly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None)
    parser.add_argument("--reader", default="")
    given = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="trueup-fuzz-") as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            seeds = make_seeds(Path(folder))
        seeds = [one for one in seeds if given.reader in one.reader]
        problems = sound(seeds)
        limit_memory()
        bad, times = fuzz(seeds, num=given.num, seed=seed, only=given.only, shown=given.only is not None)
    _print(bad, times, problems, seed)
    return int(bool(bad or problems))


def _print(bad: list[Bad], times: dict[str, tuple[int, float]], problems: list[str], seed: int) -> None:
    for problem in problems:
        print(f"seed not read: {problem}")
    for reader, (inputs, seconds) in times.items():
        print(f"{reader:32} {inputs:6} inputs {seconds:8.1f} s")
    kinds: dict[str, list[Bad]] = {}
    for one in bad:
        kinds.setdefault(_kind_of(one), []).append(one)
    for kind, ones in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = min(ones, key=lambda one: len(one.detail))
        print(f"\n{len(ones)} x {kind}")
        print(f"  number {first.number}, {first.file}, {first.mutation}: {first.problem}")
        print("    " + first.detail[-_LONGEST_SHOWN:].replace("\n", "\n    "))
    num = sum(inputs for inputs, _ in times.values())
    print(f"{num} inputs of {len(times)} readers with seed {seed}: {len(bad)} handled badly")


def _kind_of(bad: Bad) -> str:
    """Inputs of one kind fail at one place of the product."""
    frames = _FRAME.findall(bad.detail)
    where = ":".join(frames[-1]) if frames else bad.problem[:60]
    return f"{bad.reader.partition(':')[0]}, {where}"


if __name__ == "__main__":
    sys.exit(main())
