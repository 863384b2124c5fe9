"""Fused attention of Ascend, as far as a CPU can tell: what it is given, what it would give back by its
documentation (MindSpore 2.10, ``ops.flash_attention_score``), what is refused. It has run on no Ascend."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, ops

from tests.trainer.layouts import configuration
from trueup.errors import ConfigError
from trueup_gpt.config import config_from
from trueup_gpt.mindspore.limits import check_supported
from trueup_gpt.mindspore.model.attention import AttentionCore

pytestmark = pytest.mark.mindspore

ROWS, LENGTH, HEADS, KEY_HEADS, SIZE = 2, 6, 4, 2, 16
ROUNDING = 4 * 2.0**-11
"""of a few float16 operations on numbers of size 1"""


def _core(*, fused: bool, kind: str = "causal", tokens_first: bool = False) -> AttentionCore:
    model = {"use_flash_attention": fused, "encoder_attn_mask_type": kind, "kv_channels": SIZE}
    plain = configuration("float16", model={**model, "softmax_compute_dtype": "float32"})
    return AttentionCore(config_from(plain).model, 0, tokens_first=tokens_first)


def _given(*, tokens_first: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, rows first or tokens first."""
    random = np.random.default_rng(5)
    shapes = [(ROWS, LENGTH, heads, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    arrays = [random.standard_normal(shape).astype(np.float16) for shape in shapes]
    return tuple(Tensor(one.swapaxes(0, 1) if tokens_first else one) for one in arrays)


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    *,
    attn_mask: Tensor | None = None,
    scalar_value: float = 1.0,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
) -> Tensor:
    """The formula and the demands of the page, in float32: softmax(mask(scale q k^T)) v, True is left out."""
    assert input_layout == "BNSD"
    assert query.dtype in (mindspore.float16, mindspore.bfloat16)
    assert query.dtype == key.dtype == value.dtype
    assert key.shape == value.shape
    (rows, heads, length, size), (_, key_heads, keys, key_size) = query.shape, key.shape
    assert head_num == heads
    assert heads % key_heads == 0
    assert size == key_size
    assert size % 16 == 0
    assert isinstance(scalar_value, float)
    left_out = np.zeros((length, keys), bool)
    if sparse_mode == 2:  # the lower triangle from the upper left vertex
        assert attn_mask is not None
        assert attn_mask.shape == (2048, 2048)
        left_out = attn_mask.asnumpy()[:length, :keys].astype(bool)
    elif attn_mask is not None:
        assert sparse_mode == 0
        allowed = ((rows, heads, length, keys), (rows, 1, length, keys), (length, keys))
        assert attn_mask.shape in allowed
        left_out = attn_mask.asnumpy().astype(bool)
    if attn_mask is not None:
        assert attn_mask.dtype in (mindspore.bool_, mindspore.uint8)
    q, k, v = (one.asnumpy().astype(np.float32) for one in (query, key, value))
    k, v = (one.repeat(heads // key_heads, 1) for one in (k, v))
    scores = np.where(left_out, np.float32(-1e30), scalar_value * q @ k.swapaxes(-1, -2))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return Tensor((weights / weights.sum(-1, keepdims=True) @ v).astype(np.float16))


def _positions() -> Tensor:
    """A part of a row's tokens as context parallelism deals them out: from the front and from the back."""
    return Tensor(np.array([[0, 1, 2, 9, 10, 11]]))


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("kind", ["causal", "padding", "padding_causal", "no_mask", "positions"])
def test_by_its_documentation_it_is_the_attention_written_out(
    kind: str, tokens_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "flash_attention_score", documented)
    places = _positions() if kind == "positions" else None
    valid = Tensor(np.arange(LENGTH)[None] < np.array([[6], [4]])) if "padding" in kind else None
    given = (*_given(tokens_first=tokens_first), places, places, valid)
    how: dict[str, Any] = {
        "kind": "causal" if kind == "positions" else kind,
        "tokens_first": tokens_first,
    }
    found = _core(fused=True, **how)(*given).asnumpy().astype(np.float64)
    expected = _core(fused=False, **how)(*given).asnumpy().astype(np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < ROUNDING


def test_a_mask_that_means_the_opposite_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_where_true(*args: Any, attn_mask: Tensor, **rest: Any) -> Tensor:
        return documented(*args, attn_mask=Tensor(~attn_mask.asnumpy().astype(bool)), **rest)

    monkeypatch.setattr(ops, "flash_attention_score", kept_where_true)
    found, expected = (
        _core(fused=fused)(*_given(), _positions(), _positions(), None).asnumpy() for fused in (True, False)
    )
    assert np.abs(found - expected).max() > 10 * ROUNDING


@pytest.mark.parametrize("kind", ["causal", "no_mask"])
def test_mindspore_takes_what_it_is_given_and_lacks_only_the_kernel(kind: str) -> None:
    mindspore.runtime.launch_blocking()
    with pytest.raises(RuntimeError, match="FlashAttentionScore unregistered"):
        _core(fused=True, kind=kind)(*_given(), None, None, None)
    q, k, v = (mindspore.mint.permute(one, (0, 2, 1, 3)) for one in _given())
    with pytest.raises(RuntimeError, match="head_num"):  # it does look at them on a CPU
        ops.flash_attention_score(q, k, v, HEADS - 1, input_layout="BNSD")


@pytest.mark.parametrize(
    ("device", "dtype", "model", "said", "instead"),
    [
        ("cpu", "float16", {"kv_channels": 16}, "Ascend alone", "leave it out on a CPU"),
        ("npu", "float32", {"kv_channels": 16}, "compute_dtype float32", "float16 and bfloat16"),
        ("npu", "bfloat16", {"kv_channels": 24}, "24 channels", "multiples of 16"),
        ("npu", "bfloat16", {"kv_channels": 1024}, "1024 channels", "up to 512"),
        ("npu", "bfloat16", {"kv_channels": 16, "attention_dropout": 0.1}, "attention_dropout", "leave one"),
    ],
)
def test_what_it_cannot_take_is_refused_with_what_would_do(
    device: str, dtype: str, model: dict[str, Any], said: str, instead: str
) -> None:
    config = config_from(configuration(dtype, model={"use_flash_attention": True, **model}))
    with pytest.raises(ConfigError, match=said) as error:
        check_supported(config, device)
    assert instead in str(error.value)


@pytest.mark.parametrize("name", ["pretrain_gpt_7B", "pretrain_gpt_13B", "pretrain_gpt_70B"])
def test_the_shipped_files_that_ask_for_it_are_taken_on_ascend(name: str) -> None:
    from trueup_gpt.config import load_config

    config = load_config(name)
    assert config.model.use_flash_attention
    check_supported(config, "npu")
