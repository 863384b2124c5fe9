"""The command line, config.json and the docs follow the option dataclasses."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer

from trueup.capture.config_file import ConfigFile, OverflowSection, TaskSection
from trueup.capture.options import CaptureOptions
from trueup.cli.app import USAGE, function_of
from trueup.cli.app import run as run_command
from trueup.cli.command_from import blocks_of, command_from, help_text
from trueup.cli.words import rewritten
from trueup.errors import ConfigError
from trueup.types.option import GivenOptions, Option, option_fields

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    name: Annotated[str, Option("A name.", argument="NAME")]
    rows: Annotated[int, Option("Rows.", "--rows", least=1, excludes="find")] = 5
    find: Annotated[str | None, Option("Text.", "--find")] = None
    noise: Annotated[Path | bool, Option("Profile.", "--noise", off="--no-noise", off_help="None.")] = True
    words: Annotated[tuple[str, ...], Option("Words.", "--word", commas=True)] = ()
    sides: Annotated[tuple[Path, Path] | None, Option("Two.", "--sides A B")] = None
    html: Annotated[bool, Option("A page.", "--html/--no-html")] = True
    hidden: Annotated[int, Option("Only in Python.")] = 0


SEEN: list[object] = []


def sample(options: Sample) -> int:
    """A verb."""
    SEEN.append(options)
    return 3


def partial(options: GivenOptions[Sample]) -> int:
    """A verb of layered options."""
    SEEN.append(dict(options.values))
    return 0


def run(verb: object, *argv: str) -> object:
    app = typer.Typer()
    app.command()(command_from(verb))  # type: ignore[arg-type]
    status = app(args=list(argv), standalone_mode=False)
    assert status == (3 if verb is sample else 0)
    return SEEN[-1]


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        ([], {}),
        (["--rows", "7"], {"rows": 7}),
        (["--no-noise"], {"noise": False}),
        (["--noise", "n"], {"noise": Path("n")}),
        (["--word", "a,b", "--word", "c"], {"words": ("a", "b", "c")}),
        (["--sides", "a", "b"], {"sides": (Path("a"), Path("b"))}),
        (["--no-html"], {"html": False}),
    ],
)
def test_words_become_the_dataclass(argv: list[str], given: dict[str, object]) -> None:
    assert run(sample, "x", *argv) == Sample(name="x", **given)  # type: ignore[arg-type]
    assert run(partial, *argv) == given


@pytest.mark.parametrize(
    ("argv", "place"),
    [
        (["--rows", "0"], "--rows: expected a number from 1"),
        (["--rows", "2", "--find", "x"], "--rows and --find exclude each other"),
        (["--noise", "n", "--no-noise"], "--noise and --no-noise exclude each other"),
        (["--word", ","], "--word: expected"),
    ],
)
def test_a_mistake_names_the_flag(argv: list[str], place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        run(sample, "x", *argv)


@pytest.mark.parametrize(
    ("verb", "argv", "words"),
    [
        (
            "compare",
            ["a", "b", "--steps", "1", "--target-step", "0", "--reference-step", "0"],
            "--steps has no effect",
        ),
        ("compare", ["a", "b", "--ranks", "1", "--target-rank", "0", "--reference-rank", "0"], "--ranks has"),
        ("curves", ["a", "-r", "b", "--report", "html"], "--report has no effect without -o"),
        ("curves", ["a", "-r", "b", "--report", "html", "-o", "out"], ""),
        ("curves", ["a", "-r", "b", "--every", "3"], "--every has no effect without --follow"),
        ("diagnose", ["a", "b", "-o", "out", "--budget", "5"], "--budget has no effect without --replay"),
        ("diagnose", ["a", "b", "-o", "out", "--budget", "5", "--replay", "true"], ""),
        ("monitor", ["a", "--once", "--every", "3"], "--every has no effect with --once"),
        ("monitor", ["a", "--json", "--rows", "3"], "--rows has no effect with --json"),
        ("monitor", ["a", "--rows", "3"], ""),
    ],
)
def test_an_option_without_effect_says_so(
    verb: str,
    argv: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command([verb, *argv]) == 2  # no such runs
    said = capsys.readouterr().err
    assert words in said
    assert ("has no effect" in said) is bool(words)


def test_one_value_where_two_are_expected_names_the_flag() -> None:
    for argv in (["x", "--sides", "a", "--html"], ["x", "--sides", "a"], ["--sides"]):
        with pytest.raises(ConfigError, match="--sides: expected two values, A B"):
            rewritten(argv, sample)
    assert rewritten(["x", "--sides", "a", "b"], sample) == ["x", "--sides", "a", "b"]


def test_help_says_default_bounds_and_what_has_no_effect() -> None:
    fields = {one.name: one for one in option_fields(Sample)}
    assert help_text(fields["rows"]) == "Rows. At least 1. Default: 5."
    assert help_text(fields["html"]) == "A page. Default: on."
    assert "html" in run_help()
    assert "hidden" not in run_help()


def run_help() -> str:
    from typer.testing import CliRunner

    app = typer.Typer()
    app.command()(command_from(sample))
    return CliRunner().invoke(app, ["--help"]).output


def test_every_option_has_a_sentence_and_a_flag_of_its_own() -> None:
    for verb in USAGE:
        flags: list[str] = []
        for block in blocks_of(function_of(verb)):
            for one in block.fields:
                assert one.option.help.endswith("."), (verb, one.name)
                flags += [flag for word in one.option.flags for flag in word.split("/")]
        assert len(flags) == len(set(flags)), verb


def test_keys_of_config_json_exist() -> None:
    models = (ConfigFile, TaskSection, OverflowSection)
    known = {info.alias or name for model in models for name, info in model.model_fields.items()}
    keys = [one.option.config_key for one in option_fields(CaptureOptions) if one.option.config_key]
    assert set(keys) <= known
    assert len(keys) == len(set(keys))


def test_the_page_of_options_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "make_options.py"))["page"]()
    assert (DOCS / "options.md").read_text(encoding="utf-8") == page, "run python docs/make_options.py"
