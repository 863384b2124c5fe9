"""The small rules by themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.comparing.first import Preceding
from trueup.comparing.history import cancelled_part, update_spread
from trueup.comparing.precision import role_of
from trueup.comparing.result import plain
from trueup.comparing.thresholds import KNOWN_NORM
from trueup.comparing.verdict import confidence
from trueup.types.confidence import Word


@given(noise=st.floats(0, 10), numel=st.floats(1, 1e9))
def test_no_gradient_noise_explains_more_than_two_updates_or_itself(noise: float, numel: float) -> None:
    assert 0 <= update_spread(noise, numel) <= max(2, KNOWN_NORM * noise)
    assert update_spread(0.0, numel) == 0


def test_a_flip_or_two_is_allowed_only_where_one_is_likely() -> None:
    assert update_spread(1e-7, 512) > 2 * math.sqrt(2 / 512)
    assert update_spread(1e-12, 512) < 1e-5


@given(
    size=st.floats(1e-6, 1.0), noise=st.floats(1e-5, 1e-1), share=st.floats(0.1, 0.5), seed=st.integers(0, 99)
)
def test_a_part_without_gradient_flips_by_chance(size: float, noise: float, share: float, seed: int) -> None:
    """Adam's first update of a vector, a part of which holds rounding alone, in two runs."""
    draw = np.random.default_rng(seed)
    exact = size * draw.standard_normal(192)
    exact[: int(192 * share)] = 0.0
    sides = [exact + size * noise * draw.standard_normal(192) for _ in range(2)]
    target, reference = (side / (np.abs(side) + 1e-8) for side in sides)
    apart = float(np.linalg.norm(sides[0] - sides[1]))
    relative = apart / float(np.linalg.norm(sides[1]))
    allowed = update_spread(relative, 192) + cancelled_part(apart, 192)
    assert np.linalg.norm(target - reference) <= allowed * np.linalg.norm(reference)


@pytest.mark.parametrize(
    ("call", "role"),
    [
        (("module", "layers.0.ln1", "LayerNorm"), "norm"),
        (("module", "emb", "Embedding"), "embedding"),
        (("module", "lm_head", "Linear"), "head"),
        (("module", "layers.0.attn.rotary", "Rotary"), "rotary"),
        (("module", "layers.0.mlp.up", "Linear"), "linear"),
        (("api", "torch.nn.functional.softmax", None), "softmax"),
        (("api", "torch.Tensor.__add__", None), "residual"),
        (("api", "torch.nn.functional.cross_entropy", None), "loss"),
        (("api", "torch.Tensor.normal_", None), "other"),
        (("loss", "loss", None), "loss"),
    ],
)
def test_roles(call: tuple[str, str, str | None], role: str) -> None:
    assert role_of(*call) == role


def test_a_vector_added_is_a_bias() -> None:
    assert role_of("api", "torch.add", None, bias=True) == "bias_add"


def test_summary_is_valid_json() -> None:
    assert plain({"a": math.inf, "b": (-math.inf, math.nan), "c": 1}) == {
        "a": "inf",
        "b": ["-inf", None],
        "c": 1,
    }


def test_confidence_follows_evidence_score_and_what_came_before() -> None:
    equal = Preceding(equal=9, within=0, exceeding=0)
    noisy = Preceding(equal=5, within=4, exceeding=0, worst_score=0.5, worst_site="a")
    words = [
        confidence("values", 10, equal, 1.0),
        confidence("statistics", 10, equal, 1.0),
        confidence("sketch", 10, equal, 0.5),
        confidence("sketch", 4.1, equal, 1.0),
        confidence("sketch", 4.1, noisy, 1.0),
        confidence("sketch", 7.1, noisy, 1.0),
        confidence("sketch", 1.1, noisy, 1.0),
        confidence("none", 1.1, noisy, 0.5),
    ]
    assert [one.word for one in words] == [
        Word.CERTAIN,
        Word.LIKELY,
        Word.LIKELY,
        Word.CERTAIN,
        Word.LIKELY,
        Word.CERTAIN,
        Word.POSSIBLE,
        Word.POSSIBLE,
    ]
