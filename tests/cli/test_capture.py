"""What ``trueup capture`` makes of its options, the config file and the presets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trueup.capture import launch
from trueup.capture.options import CaptureOptions, Level, StepSet, Task
from trueup.cli import app
from trueup.cli.words import rewritten

Parse = Callable[..., tuple[CaptureOptions, list[str]]]


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parse:
    """Run the verb with a launcher that only notes what it is given."""
    seen: list[tuple[CaptureOptions, list[str]]] = []

    def note(options: CaptureOptions, command: Sequence[str], *, say: object) -> int:
        seen.append((options, list(command)))
        return 0

    def parser(*argv: str) -> tuple[CaptureOptions, list[str]]:
        assert app.run(["capture", *argv]) == 0
        return seen[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "launch", note)
    return parser


def test_defaults(parse: Parse) -> None:
    options, command = parse("-o", "run", "--", "python", "train.py", "--lr", "1", "--", "-o", "theirs")
    assert options == CaptureOptions(output=Path("run"))
    assert command == ["python", "train.py", "--lr", "1", "--", "-o", "theirs"]


def test_the_dashes_may_be_left_out(parse: Parse) -> None:
    assert parse("-o", "run", "python", "train.py", "-o", "x", "--quiet")[1] == [
        "python",
        "train.py",
        "-o",
        "x",
        "--quiet",
    ]


def test_every_option(parse: Parse) -> None:
    what = "-o run --level MIX --task tensor --steps 0,5-8 --ranks 1 --scope a b --list x,y --list z"
    where = "--data-mode forward --no-backward --no-gradients --no-optimizer --no-collectives --no-evaluation"
    how = "--no-digest --no-sketch --crc32 --no-stacks --seed 7 --no-deterministic --overwrite"
    options, _ = parse(*f"{what} {where} {how} -- true".split())
    assert options == CaptureOptions(
        output=Path("run"),
        level=Level.MIX,
        task=Task.TENSOR,
        steps=StepSet(((0, 0), (5, 8))),
        ranks=StepSet(((1, 1),)),
        scope=("a", "b"),
        names=("x", "y", "z"),
        data_mode=frozenset({"forward", "input", "output"}),
        backward=False,
        gradients=False,
        optimizer=False,
        collectives=False,
        evaluation=False,
        digest=False,
        sketch=False,
        crc32=True,
        stacks=False,
        seed=7,
        deterministic=False,
        overwrite=True,
    )


def test_options_reach_the_child_unchanged(parse: Parse) -> None:
    options, _ = parse("-o", "run", "--preset", "diagnose", "--scope", "a,b", "--seed", "0", "--", "true")
    assert CaptureOptions.from_json(json.loads(options.dumps())) == options


def test_the_preset(parse: Parse) -> None:
    options, _ = parse("-o", "run", "--preset", "diagnose", "--", "true")
    assert options.store_values_of == {"module", "parameter", "labels", "configuration"}
    assert (options.level, options.steps) == (Level.L0, StepSet(((0, 1),)))
    assert parse("-o", "run", "--preset", "diagnose", "--steps", "3", "--", "true")[0].steps == StepSet(
        ((3, 3),)
    )


def test_flags_win_over_the_preset_and_the_preset_over_the_file(
    parse: Parse, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"level": "mix", "dump_path": "theirs", "step": [9], "async_dump": True, "dump_enable": True}
    Path("config.json").write_text(json.dumps(content))
    options, _ = parse("--config", "config.json", "--", "true")
    assert (options.level, options.output.name, options.steps) == (Level.MIX, "theirs", StepSet(((9, 9),)))
    said = capsys.readouterr().err
    assert "warning: config.json: async_dump has no effect" in said
    assert "dump_enable has no effect on trueup capture" in said
    options, _ = parse(
        "--config", "config.json", "-o", "ours", "--level", "L1", "--preset", "diagnose", "-q", "--", "true"
    )
    assert (options.level, options.output.name, options.steps) == (Level.L1, "ours", StepSet(((0, 1),)))
    assert capsys.readouterr().err == ""


def test_level_debug_needs_a_script_that_saves(parse: Parse, capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.json").write_text('{"level": "debug"}')
    assert app.run(["capture", "--config", "config.json", "--", "true"]) == 2
    assert "PrecisionDebugger.save" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "joined"),
    [
        (["--scope", "a", "b", "-q"], ["--scope", "a,b", "-q"]),
        (["--scope", "a", "b", "--", "x"], ["--scope", "a,b", "--", "x"]),
        (["--scope", "a,b", "--", "x"], ["--scope", "a,b", "--", "x"]),
        (["--scope", "a", "--", "x"], ["--scope", "a", "--", "x"]),
        (["--scope", "a", "-o", "x"], ["--scope", "a", "-o", "x"]),
        (["--scope"], ["--scope"]),
        (["-o", "r", "--", "--scope", "a", "b"], ["-o", "r", "--", "--scope", "a", "b"]),
    ],
)
def test_scope_takes_two_words(argv: list[str], joined: list[str]) -> None:
    assert rewritten(argv, app.function_of("capture")) == joined


@pytest.mark.parametrize(
    ("given", "named"), [(["--no-backward"], "--no-backward"), (["--preset", "batches"], "--preset batches")]
)
def test_a_pass_that_is_off_is_not_all_that_is_asked_for(
    given: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from trueup.cli.app import run

    monkeypatch.chdir(tmp_path)
    assert run(["capture", "-o", "r", *given, "--data-mode", "backward", "--", "true"]) == 2
    assert f"{named} leaves out gradients at calls" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
