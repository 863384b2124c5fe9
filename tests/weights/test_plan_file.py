"""A plan as YAML: lossless, and a mistake in it is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.errors import ConfigError
from trueup.weights.plan import ConversionPlan, Permute, PlannedWeight, Reshape, Slice, SourcePiece
from trueup.weights.plan_file import plan_from_text, read_plan, text_from_plan, write_plan

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
    ["on", "null", "1.0", "0x1f", "- a", "a: b", "'", '"', "#x", " x ", "\n", "~"]
)
_SIZES = st.integers(0, 10**12)
_STEPS = st.lists(
    st.lists(_SIZES, max_size=4).map(lambda shape: Reshape(shape=tuple(shape)))
    | st.permutations(range(3)).map(lambda dims: Permute(dims=tuple(dims)))
    | st.builds(Slice, dim=st.integers(0, 3), start=_SIZES, stop=_SIZES),
    max_size=3,
).map(tuple)
_ENTRIES = st.builds(
    PlannedWeight,
    target=_NAMES,
    pieces=st.lists(st.builds(SourcePiece, source=_NAMES, steps=_STEPS), min_size=1, max_size=3).map(tuple),
    join=st.sampled_from([None, "concat", "stack"]),
    dim=st.integers(0, 3),
    steps=_STEPS,
    padding=st.integers(0, 100),
    how=st.sampled_from(["values", "name", "map"]),
    confidence=st.floats(0, 1),
)
_SOME = st.lists(_NAMES, max_size=3).map(tuple)
PLANS = st.builds(
    ConversionPlan, entries=st.lists(_ENTRIES, max_size=4).map(tuple), only_target=_SOME, only_source=_SOME
)


@settings(max_examples=80, deadline=None)
@given(PLANS)
def test_what_is_written_is_read_back(plan: ConversionPlan) -> None:
    assert plan_from_text(text_from_plan(plan)) == plan


def test_a_file(tmp_path: Path) -> None:
    plan = ConversionPlan(entries=(PlannedWeight(target="b", pieces=(SourcePiece(source="a"),)),))
    write_plan(plan, tmp_path / "plan.yaml")
    assert read_plan(tmp_path / "plan.yaml") == plan


def test_what_a_person_writes() -> None:
    plan = plan_from_text(
        """
        version: 1
        names: {norm.gamma: norm.weight}
        entries:
        - target: qkv
          pieces: [q, {source: k, steps: [reshape: [2, 3], permute: [1, 0]]}]
          join: concat
        """
    )
    assert plan.entries == (
        PlannedWeight(target="norm.gamma", pieces=(SourcePiece(source="norm.weight"),), how="map"),
        PlannedWeight(
            target="qkv",
            pieces=(
                SourcePiece(source="q"),
                SourcePiece(source="k", steps=(Reshape(shape=(2, 3)), Permute(dims=(1, 0)))),
            ),
            join="concat",
            how="map",
        ),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\nentries:\n- target: a\n  pieces: [b]\n  joint: concat\n", "line 5: .*joint"),
        ("version: 1\nentries:\n- target: a\n  pieces: []\n", "line 4: entries.1.pieces: list should have"),
        ("version: 1\nentries:\n- target: a\n", "line 3: entries.1.pieces: field required"),
        ("version: 2\nentries: []\n", "line 1: version: input should be 1"),
        ("entries: []\n", "version: field required"),
        (
            "version: 1\nentries:\n- target: a\n  pieces: [b]\n- target: c\n  pieces: [d]\n  join: sum\n",
            "line 7: entries.2.join: input should be 'concat' or 'stack'",
        ),
        (
            "version: 1\nentries:\n- target: a\n  pieces: [b]\n  steps:\n  - reshape: [2, x]\n",
            "line 6: entries.1.steps.1.reshape.2: input should be a valid integer",
        ),
        (
            "version: 1\nentries:\n- target: a\n  pieces: [b]\n  padding: -1\n",
            "line 5: entries.1.padding: input should be greater",
        ),
        ("version: 1\nentries: [\n", "is not YAML: .*line 3"),
        ("just words", "no plan; expected a mapping"),
        ("", "no plan; expected a mapping"),
        (
            "version: 1\nentries:\n- target: a\n  pieces: [b]\n  steps: [{reshape: [1], permute: [0]}]\n",
            r"entry 1 \(a\): a step is one of reshape, permute, slice; found \['permute', 'reshape'\]",
        ),
        (
            "version: 1\nentries:\n- target: a\n  pieces: [b]\n  steps: [{}]\n",
            r"entry 1 \(a\): a step is one of",
        ),
        (
            "version: 1\nentries:\n- target: a\n  pieces: [b]\n  steps: [{reshape: }]\n",
            r"entry 1 \(a\): a step without a value",
        ),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_from_text(text, name="plan.yaml")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_plan(tmp_path / "plan.yaml")
    (tmp_path / "plan.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        read_plan(tmp_path / "plan.yaml")
