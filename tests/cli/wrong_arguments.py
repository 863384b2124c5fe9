"""Every option of every command with values that are none: ``python -m tests.cli.wrong_arguments``.

Prints what was answered with a traceback, without a word on what was wrong, or without what to do next; with
``--accepted`` also what was accepted, to be read by a person. ``--only COMMAND`` tries one command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trueup.cli.app import USAGE, function_of, run
from trueup.cli.command_from import blocks_of
from trueup.types.option import OptionField

GOLDENS = Path(__file__).parents[1] / "fixtures" / "goldens" / "inputs.tar.xz"
FILES = (
    "missing",
    "empty",
    "folder",
    "text",
    "binary",
    "parameters.json",
    "list.json",
    "below/text/x",
    "/dev/null",
)
WORDS = (
    "-1",
    "0",
    "1e400",
    "nan",
    "99999999999999999999999",
    "x",
    "1.5",
    ",",
    "a,b",
    "=",
    "0-",
    "-",
    "5-2",
    "é\x00"[:1],
)
BASE: dict[str, list[str]] = {
    "capture": ["-o", "out", "--quiet"],
    "accept": ["repeat", "reference", "-o", "out"],
    "alias": [],
    "check": ["settings.json", "other-settings.json"],
    "check-run": ["repeat"],
    "compare": ["repeat", "reference"],
    "compare-weights": ["a.safetensors", "b.safetensors"],
    "convert-weights": ["a.safetensors", "converted.safetensors", "--to", "hf-llama"],
    "curves": ["gpu1.log", "--reference", "gpu2.log"],
    "match": ["repeat", "reference"],
    "diagnose": ["repeat", "reference", "-o", "out"],
    "dump-config": ["--kind", "full", "--path", "dump", "-o", "dump.json", "--overwrite"],
    "inspect": ["repeat"],
    "export": ["repeat", "exported"],
    "mismatch": ["tokens.npz"],
    "monitor": ["watched", "--once"],
    "noise": ["--reference", "reference"],
    "replay": ["--reference", "reference", "-o", "out"],
    "seed-all": [],
}
COMMAND = {"capture", "noise", "replay"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one command line was answered with."""

    argv: tuple[str, ...]
    status: int
    said: str

    @property
    def may_be_silent(self) -> bool:
        """Whether a verdict was asked for without being printed."""
        return self.argv[0] not in COMMAND and bool({"-q", "--quiet"} & {*self.argv})

    @property
    def problem(self) -> str:
        """What is wrong with the answer; empty for nothing."""
        if "Traceback" in self.said or "internal error" in self.said:
            return "traceback"
        if self.status not in (0, 1, 2):
            return f"exit status {self.status}"
        errors = [line for line in self.said.splitlines() if line.startswith("error: ")]
        if self.status == 2 and not self.said.strip() and not self.may_be_silent:
            return "status 2 without a word"
        if errors and "hint: " not in self.said and not re.search(r"expected|trueup |; ", errors[0]):
            return "no next step"
        if re.search(r"\w+Warning: ", self.said):
            return "warning"
        return ""


def prepare(folder: Path) -> None:
    """The files that command lines name, below ``folder``."""
    from safetensors.numpy import save_file

    with tarfile.open(GOLDENS) as archive:
        archive.extractall(folder, filter="data")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    (folder / "below").mkdir()
    (folder / "below" / "text").write_text("x")
    (folder / "text").write_text("some words\nand no more of them\n")
    (folder / "binary").write_bytes(bytes(range(256)) * 16)
    (folder / "parameters.json").write_text('{"a": 1}')
    (folder / "list.json").write_text("[1, 2]")
    tokens = {"response_mask": np.ones((2, 3)), "rollout_log_probs": np.full((2, 3), -0.5)}
    np.savez(folder / "tokens.npz", old_log_probs=np.full((2, 3), -0.5), **tokens)
    weights = {"model.embed_tokens.weight": np.arange(24, dtype=np.float32).reshape(6, 4)}
    save_file(weights, folder / "a.safetensors")
    save_file(weights, folder / "b.safetensors")


def values_of(field: OptionField) -> Iterator[list[str]]:
    """Words that follow the flag."""
    if field.name == "follow":  # it ends only when somebody stops it
        return
    if field.kind is bool and not field.option.read and not field.choices:
        yield from ([], ["x"])
        return
    words = (*FILES, *WORDS)
    if field.pair or (field.option.metavar.count(" ") == 1 and field.option.read_all is not None):
        yield from ([word, word] for word in words)
        yield ["x"]
        return
    yield from ([word] for word in words)


def command_lines(verb: str) -> Iterator[tuple[str, ...]]:
    """All that are tried of one command."""
    base, end = BASE[verb], ("--", "true") if verb in COMMAND else ()
    for at, word in enumerate(base):
        if not word.startswith("-") and (at == 0 or not base[at - 1].startswith("-")):
            for file in FILES:
                yield (verb, *base[:at], file, *base[at + 1 :], *end)
    yield (verb, *base, "--nope", *end)
    for field in fields_of(verb):
        rest = without(base, field)
        for words in values_of(field):
            yield (verb, *rest, field.flag, *words, *end)
        for off in field.option.flags[-1].split("/")[1:]:
            yield (verb, *rest, field.flag, off, *end)
    for argv in refused_lines(verb):
        yield (*argv, *end)


def refused_lines(verb: str) -> Iterator[tuple[str, ...]]:
    """Those that are refused before anything is read: an option given twice, and one without its value, at
    the end or before another option."""
    for field in fields_of(verb):
        rest, flag = without(BASE[verb], field), field.flag
        if field.kind is bool:
            continue
        if not field.option.bare:
            yield (verb, *rest, flag)
            for other in [one.flag for one in fields_of(verb) if one.flag != flag][:1]:
                yield (verb, *rest, flag, other, "1")
        if not field.repeated:
            value = [next(iter(field.choices), "1")] * (
                2 if field.pair or field.option.metavar.count(" ") == 1 else 1
            )
            yield (verb, *rest, flag, *value, flag, *value)


def fields_of(verb: str) -> list[OptionField]:
    """Its options that have a flag."""
    return [f for block in blocks_of(function_of(verb)) for f in block.fields if f.option.flags]


def without(base: list[str], field: OptionField) -> list[str]:
    """``base`` without an option and its value."""
    at = next((at for at, word in enumerate(base) if word in field.option.flags), None)
    return base if at is None else base[:at] + base[at + (1 if field.kind is bool else 2) :]


def answer(argv: tuple[str, ...]) -> Answer:
    """Run one in the present folder."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = run(list(argv))
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 99
        except BaseException as error:
            status = 98
            said.write(f"Traceback: {type(error).__name__}: {error}")
    return Answer(argv=argv, status=status, said=said.getvalue())


def clear(kept: set[str]) -> None:
    """Remove what a command wrote."""
    for name in set(os.listdir()) - kept:
        shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
    for folder, inside in (("folder", ()), ("below", ("text",))):
        for name in set(os.listdir(folder)) - set(inside):
            path = os.path.join(folder, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def main() -> int:
    """Try all; returns 1 where an answer is bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=sorted(USAGE))
    parser.add_argument("--accepted", action="store_true")
    parser.add_argument("--refused", action="store_true")
    wanted = parser.parse_args()
    tried = bad = 0
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        os.chdir(name)
        kept = set(os.listdir())
        for verb in wanted.only:
            for argv in command_lines(verb):
                given = answer(argv)
                clear(kept)
                tried += 1
                bad += bool(given.problem)
                line = " ".join(map(repr, argv))
                if given.problem:
                    print(f"BAD {given.problem}: {line}\n{given.said[-1500:]}\n", flush=True)
                elif wanted.accepted and given.status < 2:
                    print(f"accepted {given.status}: {line}", flush=True)
                elif wanted.refused and given.status == 2:
                    print(f"{line}\n    " + "\n    ".join(given.said.strip().splitlines()[:4]), flush=True)
    print(f"{tried} command lines, {bad} answered badly")
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
