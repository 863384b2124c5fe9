"""What a weight is for, by the words of its name that families of models use, and by those beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_NORM = r"(ln|norm|layer_?norm|rms_?norm|rmsnorm)"
_ATTENTION = r"((self_?)?(attn|attention)|self)"
_CROSS = r"((cross|enc_?dec|encoder(_decoder)?)(_?(attn|attention))?)"
_MLP = r"(ffn?|mlp|feed_?forward|moe)"
FIRST, CROSS, SECOND = "first norm", "cross norm", "second norm"
"""of a layer: before attention, before attention to an encoder, before the MLP"""
_USES = tuple(
    (use, re.compile(pattern))
    for use, pattern in (
        ("query", r"((w|to|linear)?_?)(q|query)(_?(proj|lin|linear))?"),
        ("key", r"((w|to|linear)?_?)(k|key)(_?(proj|lin|linear))?"),
        ("value", r"((w|to|linear)?_?)(v|value)(_?(proj|lin|linear))?"),
        ("embedding", r"tok|tokens?|wte|table|(\w+_)?emb(ed\w*)?"),
        (
            "output",
            r"w?o|(w|o|to|c|attn|attention)?_?(out|output|proj)(_?(proj|layer))?|dense|(lm_?)?head|unembed",
        ),
        ("gate", r"w_?gate|gate(_?proj)?|w1"),
        ("up", r"w_?up|up(_?proj)?|w3|wi|(c_)?fc(_?1)?|linear_?1"),
        ("down", r"w_?down|down(_?proj)?|w2|fc_?2|linear_?2"),
        (
            FIRST,
            rf"(n|ln|norm)_?1|input_{_NORM}|(pre_?)?{_ATTENTION}_{_NORM}|(pre_?)?{_NORM}_{_ATTENTION}",
        ),
        (CROSS, rf"(pre_?)?{_CROSS}_{_NORM}|(pre_?)?{_NORM}_{_CROSS}"),
        (
            SECOND,
            rf"(n|ln|norm)_?2|post_attention_{_NORM}|(pre_?)?{_MLP}_{_NORM}|{_NORM}_{_MLP}",
        ),
    )
)
"""use of a weight -> what families of models call it (w1, w3, w2 as Llama and Mixtral have them)"""
_LEAVES = ("weight", "bias", "scale", "kernel", "gamma", "beta")
_BARE, _LAST = re.compile(_NORM), re.compile(rf"final_{_NORM}")
_NUMBERED = re.compile(r"(n|ln|norm)_?(?P<number>[123])")
_TO_ENCODER = re.compile(r"cross\w*|enc_?dec\w*|encoder_(attn|attention)|multihead_attn")
"""what attention to an encoder is called (the last by PyTorch's decoder layer)"""
_OF_MLP = re.compile(rf"{_MLP}|dense_\w+")
_PARTS = (
    (CROSS, _TO_ENCODER),
    (FIRST, re.compile(_ATTENTION)),
    (SECOND, re.compile(rf"{_MLP}|dense\w*|fc_?\d")),
)
"""norm of a part of a layer -> what the part is called"""


def uses_of(names: Collection[str]) -> dict[str, str | None]:
    """The use of each weight of a model; None where no word tells it.

    A norm without a word for its use is that of what stands beside it (``layer.1.layer_norm`` beside
    ``layer.1.EncDecAttention``); of three numbered norms of a layer the second is that of the attention to an
    encoder; the last norm of a layer with attention is that of its MLP, and the last of a model is none.

    Example:
        >>> uses_of(["h.0.ln_cross.weight", "h.0.attn.wq.weight"])
        {'h.0.ln_cross.weight': 'cross norm', 'h.0.attn.wq.weight': 'query'}
    """
    beside: dict[str, set[str]] = {}
    for name in names:
        words = _words(name)
        for depth in range(len(words)):
            beside.setdefault(".".join(words[:depth]), set()).add(words[depth])
    return {name: _by_those_beside(name, beside) or _by_name(name) for name in names}


def _words(name: str) -> list[str]:
    """Of a name, in lower case, ``EncDecAttention`` as ``enc_dec_attention``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split(".")


def _by_those_beside(name: str, beside: Mapping[str, Collection[str]]) -> str | None:
    words = _words(name)
    words = words[:-1] if words[-1] in _LEAVES else words
    if not words:
        return None
    its, others = words[-1], beside.get(".".join(words[:-1]), ())
    parts = {use for other in others for use, means in _PARTS if means.fullmatch(other)}
    if _BARE.fullmatch(its):
        return parts.pop() if len(parts) == 1 else None
    if _LAST.fullmatch(its):
        return SECOND if FIRST in parts else None
    number = _number(its)
    is_one_of_three = number is not None and "3" in map(_number, others)
    return (FIRST, CROSS, SECOND)[int(number) - 1] if number is not None and is_one_of_three else None


def _number(word: str) -> str | None:
    found = _NUMBERED.fullmatch(word)
    return None if found is None else found["number"]


def _by_name(name: str) -> str | None:
    """By the last word that says it, whether its attention is to an encoder, and whether an output is an
    MLP's."""
    words = name.lower().split(".")
    use = next((use for word in reversed(words) for use, means in _USES if means.fullmatch(word)), None)
    if use == "output" and any(map(_OF_MLP.fullmatch, _words(name))):
        return "down"
    to_encoder = use is not None and "norm" not in use and any(map(_TO_ENCODER.fullmatch, _words(name)))
    return f"cross {use}" if to_encoder else use
