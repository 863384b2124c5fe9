"""Options described once: bounds, choices, relations, and their JSON form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest

from trueup.capture.options import CaptureOptions, StepSet
from trueup.comparing.options import CompareOptions
from trueup.errors import ConfigError
from trueup.monitoring.settings import MonitorSettings, RuleSettings
from trueup.types.option import GivenOptions, Option, check_options, expected, option_fields
from trueup.types.plain import fields_from_json, fields_to_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: Annotated[float, Option("A share.", least=0, most=1)] = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    folder: Annotated[Path, Option("A folder.", "--folder")]
    colour: Annotated[Colour, Option("A colour.", "--colour")] = Colour.RED
    word: Annotated[Literal["a", "b"] | None, Option("A word.", "--word")] = None
    names: Annotated[tuple[str, ...], Option("Names.", "--name")] = ()
    pair: Annotated[tuple[int, int] | None, Option("A pair.", together="rate")] = None
    rate: Annotated[float | None, Option("A rate.", above=0, together="pair")] = None
    kinds: Annotated[frozenset[str], Option("Kinds.")] = frozenset()
    noise: Annotated[Path | bool, Option("Noise.")] = True
    inner: Annotated[Inner, Option("More.")] = field(default_factory=Inner)


FULL = Sample(
    folder=Path("x"),
    colour=Colour.BLUE,
    word="b",
    names=("n",),
    pair=(1, 2),
    rate=0.5,
    kinds=frozenset({"k", "j"}),
    noise=Path("profile"),
    inner=Inner(share=1.0),
)


@pytest.mark.parametrize("value", [FULL, Sample(folder=Path("y"), noise=False)])
def test_json_round_trip(value: Sample) -> None:
    plain = json.loads(json.dumps(fields_to_json(value)))
    assert fields_from_json(Sample, plain, source="test") == value


def test_sets_are_sorted() -> None:
    assert fields_to_json(FULL)["kinds"] == ["j", "k"]


@pytest.mark.parametrize(
    ("plain", "place"),
    [
        ({"fodler": "x"}, "fodler"),
        ({"folder": 3}, "folder"),
        ({"colour": "green"}, "colour"),
        ({"word": "c"}, "word"),
        ({"names": "text"}, "names"),
        ({"pair": [1]}, "pair"),
        ({"pair": [1, "x"]}, "pair"),
        ({"rate": 0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"noise": 3.5}, "noise"),
        ({"inner": {"share": 2}}, "inner.share"),
        ({"inner": []}, "inner"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(plain: dict[str, object], place: str) -> None:
    with pytest.raises(ConfigError, match=f"source: .*{place}"):
        fields_from_json(Sample, {"folder": "x", **plain}, source="source")


def test_relations_and_bounds_of_a_value() -> None:
    check_options(FULL)
    with pytest.raises(ConfigError, match="pair and rate"):
        check_options(Sample(folder=Path("x"), rate=1.0))
    with pytest.raises(ConfigError, match="rate"):
        check_options(Sample(folder=Path("x"), pair=(1, 2), rate=-1.0))


def test_a_field_knows_its_flag_choices_and_default() -> None:
    fields = {one.name: one for one in option_fields(Sample)}
    assert fields["folder"].required
    assert fields["colour"].flag == "--colour"
    assert list(fields["colour"].choices) == ["red", "blue"]
    assert fields["colour"].default_text() == "red"
    assert fields["colour"].from_text("BLUE", "--colour") is Colour.BLUE
    assert list(fields["word"].choices) == ["a", "b"]
    with pytest.raises(ConfigError, match="--word: expected one of: a, b"):
        fields["word"].from_text("c", "--word")


def test_what_was_given_replaces_the_rest() -> None:
    given: GivenOptions[Sample] = GivenOptions({"colour": Colour.BLUE})
    assert given.over(Sample(folder=Path("x"))) == Sample(folder=Path("x"), colour=Colour.BLUE)
    assert given.get("colour", Colour) is Colour.BLUE
    assert given.get("word", str) is None
    assert "colour" in given
    assert "word" not in given


def test_a_long_value_is_cut_in_an_error() -> None:
    assert len(str(expected("x", "text", "y" * 10_000))) < 200


def test_options_of_an_older_trace_are_read() -> None:
    options = CaptureOptions.from_json({"output": "run", "level": "mix"})
    assert (options.steps, options.ranks) == (StepSet(), StepSet())
    assert CaptureOptions.from_json(json.loads(options.dumps())) == options


def test_options_of_results_and_monitors_are_plain_json() -> None:
    plain = CompareOptions(steps=frozenset({3, 1}), noise=Path("n"), mapping=Path("m.yaml")).to_json()
    assert (plain["steps"], plain["noise"], plain["mapping"]) == ([1, 3], "n", "m.yaml")
    json.dumps(plain)
    settings = MonitorSettings(every=3, modules=("a",), rules=RuleSettings(disabled=("nan",)))
    assert MonitorSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_numbers_written_as_text_are_read_where_yaml_gives_text() -> None:
    settings = MonitorSettings.from_json({"rules": {"vanishing_share": "1e-3", "spike_window": 64.0}})
    assert settings.rules == RuleSettings(vanishing_share=1e-3, spike_window=64)
