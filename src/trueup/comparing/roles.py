"""What part a call plays in a transformer, from its class or function name."""

from __future__ import annotations

import re

_BY_NAME = (
    ("loss", re.compile(r"loss|cross_entropy|nll|criterion", re.I)),
    ("rotary", re.compile(r"rotary|rope", re.I)),
    ("softmax", re.compile(r"softmax", re.I)),
    ("norm", re.compile(r"norm(?!al)|(^|[._])ln(_?\\d+|_f)?$", re.I)),
    ("head", re.compile(r"(^|[._])(lm_head|head|output_layer|unembed\w*)$", re.I)),
    ("embedding", re.compile(r"embed|(^|[._])(wte|wpe)$", re.I)),
)
_LINEAR = {
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "rmatmul",
    "conv1d",
    "conv2d",
    "dense",
}
_ADD = {"add", "iadd", "radd"}


def role_of(kind: str, name: str, type_: str | None, *, bias: bool = False) -> str:
    """One of ``embedding head norm softmax rotary residual bias_add loss linear other``.

    ``bias``: one of an addition's inputs is a vector. A module's last name component and its class are both
    looked at.

    Example:
        >>> role_of("api", "torch.nn.functional.layer_norm", None)
        'norm'
    """
    short = name.rsplit(".", 1)[-1]
    if kind == "loss":
        return "loss"
    for role, pattern in _BY_NAME:
        if pattern.search(short) or (type_ is not None and pattern.search(type_)):
            return role
    plain = short.strip("_").lower()
    if kind == "api" and plain in _ADD:
        return "bias_add" if bias else "residual"
    if plain in _LINEAR or (type_ is not None and re.search(r"linear|dense|conv", type_, re.I)):
        return "linear"
    return "other"
