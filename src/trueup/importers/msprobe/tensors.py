"""One row of summaries as msprobe describes a tensor, with msprobe's definitions of its four numbers."""

from __future__ import annotations

import json
import math

from trueup.importers.msprobe.names import dtype_for_dump
from trueup.types.trace import SummaryRow

_INTEGERS = ("int", "uint")
_STATISTICS = ("Max", "Min", "Mean", "Norm")


def tensor_for_dump(summary: SummaryRow, requires_grad: bool | None, framework: str) -> dict[str, object]:
    """The object msprobe would have written, without ``data_name``.

    Ours are taken over finite values and count the others; msprobe's are taken over all of them, so that
    counted NaN and infinities come back. Of integers msprobe on PyTorch gives neither mean nor norm, of a 0-d
    tensor the value four times. ``requires_grad`` is left out where it is not known.
    """
    leaf: dict[str, object] = {
        "type": "mindspore.Tensor" if framework == "mindspore" else "torch.Tensor",
        "dtype": dtype_for_dump(summary["dtype"], framework),
        "shape": list(summary["shape"] or ()),
    }
    kind, _, digest = (summary.get("source_digest") or "").partition(":")
    if kind == "xor":  # then msprobe writes nothing else
        leaf["md5"] = digest if digest.startswith("0x") else float(digest)
    else:
        leaf.update(zip(_STATISTICS, _statistics(summary, framework), strict=True))
    if requires_grad is not None:
        leaf["requires_grad"] = requires_grad
    if summary["crc32"] is not None:
        leaf["md5"] = f"{summary['crc32']:08x}"
    elif digest and kind != "xor":
        leaf["md5"] = digest
    extra = summary.get("source_extra")
    if extra:
        leaf.update(json.loads(extra))
    return leaf


def _statistics(summary: SummaryRow, framework: str) -> tuple[object, object, object, object]:
    maximum, minimum, mean, norm = _over_all_values(summary)
    dtype = summary["dtype"]
    if dtype == "bool":
        truth = [None if v is None else bool(v) for v in (maximum, minimum)]
        return truth[0], truth[1], None, None
    if framework == "mindspore" or not dtype.startswith(_INTEGERS):
        if not summary["shape"] and maximum is not None:
            return maximum, minimum, maximum, maximum
        return maximum, minimum, mean, norm
    whole = [int(v) if v is not None and math.isfinite(v) else v for v in (maximum, minimum)]
    if not summary["shape"]:
        return whole[0], whole[1], whole[0], whole[0]
    return whole[0], whole[1], None, None


def _over_all_values(
    summary: SummaryRow,
) -> tuple[float | None, float | None, float | None, float | None]:
    maximum, minimum = summary["maximum"], summary["minimum"]
    mean, norm = summary["mean"], summary.get("captured_l2_norm", summary["l2_norm"])
    nan, plus, minus = summary["num_nan"], summary["num_posinf"], summary["num_neginf"]
    if nan:
        return math.nan, math.nan, math.nan, math.nan
    if plus or minus:
        mean = math.nan if plus and minus else math.inf if plus else -math.inf
        norm = math.inf
        maximum = math.inf if plus else -math.inf if maximum is None else maximum
        minimum = -math.inf if minus else math.inf if minimum is None else minimum
    return maximum, minimum, mean, norm
