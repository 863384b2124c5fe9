"""Columns of the workbook: msprobe 26.2.0's, by its names and in its order, then ours.

msprobe names a tensor ``Module.layers.0.ln1.LayerNorm.forward.0.input.0``: the number counts calls of that
name in a step. Where a result does not hold that number the site itself stands there. msprobe's
``backward.N.input`` are the gradients that arrive at a call's outputs, ``backward.N.output`` those it sends
on: the other way round than here. Its percentages are numbers here, shown as percentages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

FLOAT, PERCENT, INTEGER, TEXT = "float", "percent", "integer", "text"
MAX_FRAMES = 4
_SIDES = (("target", "NPU"), ("reference", "Bench"))
_STATISTICS = (("maximum", "max"), ("minimum", "min"), ("mean", "mean"), ("l2_norm", "l2norm"))
_DTYPES_OF_MINDSPORE = {"bfloat16": "BFloat16", "bool": "Bool"}
_API_PREFIXES = (
    (r"^torch\.nn\.functional\.", "Functional."),
    (r"^torch\.Tensor\.", "Tensor."),
    (r"^torch\.distributed\.", "Distributed."),
    (r"^torch\.", "Torch."),
    (r"^torch_npu\.", "NPU."),
    (r"^mindspore\.mint\.nn\.functional\.", "MintFunctional."),
    (r"^mindspore\.mint\.distributed\.", "MintDistributed."),
    (r"^mindspore\.mint\.", "Mint."),
    (r"^mindspore\.ops\.Primitive\.", "Primitive."),
    (r"^mindspore\.jit\.", "Jit."),
    (r"^mindspore\.Tensor\.", "Tensor."),
    (r"^mindspore\.(ops|nn\.functional)\.", "Functional."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: heading, expression over the result table, how it is written, width in characters."""

    title: str
    value: pl.Expr
    kind: str = TEXT
    width: float = 11


def columns(
    schema: Mapping[str, pl.DataType],
    *,
    with_values: bool,
    frameworks: Mapping[str, str],
    types: Mapping[str, str],
    stacks: Sequence[Sequence[str]],
) -> list[Column]:
    """All columns, in order.

    Args:
        schema: columns of the result table; what it lacks is left empty.
        with_values: values were compared: msprobe's columns for tensors rather than for statistics.
        frameworks: framework of each side, which msprobe's dtype names follow.
        types: class name of each module, for the names of parameters.
        stacks: call stacks of the target, of which the innermost frames are shown.
    """
    measured = _tensor_columns() if with_values else _difference_columns()
    consistent = pl.col("target_requires_grad") == pl.col("reference_requires_grad")
    return [
        *_basic_columns(schema, frameworks, types),
        *measured,
        *(
            Column(title=f"{theirs} {title}", value=pl.col(f"{side}_{name}"), kind=FLOAT)
            for side, theirs in _SIDES
            for name, title in _STATISTICS
        ),
        Column(title="Requires_grad Consistent", value=_flag(consistent)),
        Column(title="Result", value=_result()),
        Column(title="Err_message", value=_text("reason"), width=24),
        Column(title="NPU_Stack_Info", value=_stack(stacks), width=24),
        *_own_columns(),
    ]


def _text(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.String)


def _stack(stacks: Sequence[Sequence[str]]) -> pl.Expr:
    if not stacks:
        return pl.lit(None, dtype=pl.String)
    texts = ["\n".join(frames[:MAX_FRAMES]) for frames in stacks]
    return pl.col("target_stack").replace_strict(
        list(range(len(texts))), texts, default=None, return_dtype=pl.String
    )


def _flag(value: pl.Expr) -> pl.Expr:
    return pl.when(value).then(pl.lit("True")).when(~value).then(pl.lit("False"))


def _basic_columns(
    schema: Mapping[str, pl.DataType], frameworks: Mapping[str, str], types: Mapping[str, str]
) -> list[Column]:
    pairs = [(side, theirs) for side, theirs in _SIDES]
    return [
        *(
            Column(title=f"{theirs} Name", value=_name(side, schema, frameworks[side], types), width=46)
            for side, theirs in pairs
        ),
        *(
            Column(title=f"{theirs} Dtype", value=_dtype(side, frameworks[side]), width=14)
            for side, theirs in pairs
        ),
        *(
            Column(title=f"{theirs} Tensor Shape", value=_text(f"{side}_shape"), width=15)
            for side, theirs in pairs
        ),
        *(
            Column(title=f"{theirs} Requires_grad", value=_flag(pl.col(f"{side}_requires_grad")))
            for side, theirs in pairs
        ),
    ]


def _dtype(side: str, framework: str) -> pl.Expr:
    name = _text(f"{side}_dtype")
    if framework == "mindspore":
        return name.replace(_DTYPES_OF_MINDSPORE).str.replace(r"^([a-z])", "${1}").str.to_titlecase()
    return pl.when(name.is_not_null()).then(pl.concat_str(pl.lit("torch."), name))


def _name(side: str, schema: Mapping[str, pl.DataType], framework: str, types: Mapping[str, str]) -> pl.Expr:
    """What msprobe calls the tensor, or our site where the result does not hold the numbers for it."""
    site = pl.col("site") if side == "target" else pl.coalesce("reference_site", "site")
    present = pl.col(f"{side}_call").is_not_null()
    ours = pl.when(present).then(site)
    if f"{side}_global_ordinal" not in schema:
        return ours
    kind, phase, slot = _text("kind"), _text("phase"), _text("slot")
    number = pl.col(f"{side}_global_ordinal").cast(pl.String)
    root = "Cell" if framework == "mindspore" else "Module"
    module = pl.concat_str(
        pl.lit(root),
        pl.when(_text("module") == "")
        .then(pl.lit(""))
        .otherwise(pl.concat_str(pl.lit("."), _text("module"))),
        pl.lit("."),
        _text("type"),
    )
    swapped = (
        pl.when(slot.str.starts_with("output"))
        .then(slot.str.replace("^output", "input"))
        .otherwise(slot.str.replace("^input", "output"))
    )
    slot = pl.when(phase == "backward").then(swapped).otherwise(slot)
    traced = phase.is_in(["forward", "backward"])
    of_module = pl.concat_str(module, phase, number, slot, separator=".")
    of_api = pl.concat_str(_api(), number, phase, slot, separator=".")
    called = (
        pl.when(traced & (kind == "module"))
        .then(of_module)
        .when(traced & kind.is_in(["api", "collective"]))
        .then(of_api)
    )
    return pl.when(present).then(pl.coalesce(called, _parameter(root, types), ours))


def _api() -> pl.Expr:
    name = _text("name")
    for pattern, prefix in _API_PREFIXES:
        name = name.str.replace(pattern, prefix)
    return name


def _parameter(root: str, types: Mapping[str, str]) -> pl.Expr:
    name = _text("name")
    owner, leaf = name.str.replace(r"\.?[^.]*$", ""), name.str.extract(r"([^.]*)$", 1)
    type_ = (
        owner.replace_strict(list(types), list(types.values()), default=None, return_dtype=pl.String)
        if types
        else pl.lit(None)
    )
    head = pl.concat_str(
        pl.lit(root),
        pl.when(owner == "").then(pl.lit("")).otherwise(pl.concat_str(pl.lit("."), owner)),
        pl.lit("."),
        type_,
    )
    phase, slot = _text("phase"), _text("slot")
    tail = (
        pl.when((phase == "param") & (slot == "value"))
        .then(pl.lit(".forward.0.parameters."))
        .when((phase == "param_grad") & (slot == "accumulated"))
        .then(pl.lit(".parameters_grad.0."))
    )
    return pl.when(_text("kind") == "parameter").then(pl.concat_str(head, tail, leaf))


def _difference_columns() -> list[Column]:
    titles = {"maximum": "Max", "minimum": "Min", "mean": "Mean", "l2_norm": "L2norm"}
    differences = {name: pl.col(f"target_{name}") - pl.col(f"reference_{name}") for name in titles}
    relative = {
        name: pl.when(value == 0)
        .then(0.0)
        .when(pl.col(f"reference_{name}") != 0)
        .then((value / pl.col(f"reference_{name}")).abs())
        for name, value in differences.items()
    }
    return [
        *(
            Column(title=f"{title} diff", value=differences[name], kind=FLOAT)
            for name, title in titles.items()
        ),
        *(
            Column(
                title=f"{'Norm' if name == 'l2_norm' else title}RelativeErr",
                value=relative[name],
                kind=PERCENT,
            )
            for name, title in titles.items()
        ),
    ]


def _tensor_columns() -> list[Column]:
    known = {
        "Cosine": pl.col("cosine_similarity"),
        "EucDist": pl.col("rel_l2") * pl.col("reference_l2_norm"),
        "MaxAbsErr": pl.col("max_abs_diff"),
        "MaxRelativeErr": pl.col("max_rel_diff"),
        "One Thousandth Err Ratio": pl.col("fraction_within_thousandth"),
        "Five Thousandths Err Ratio": pl.col("fraction_within_five_thousandths"),
    }
    return [Column(title=title, value=value, kind=FLOAT) for title, value in known.items()]


def _result() -> pl.Expr:
    """msprobe's words: pass, warning, error; and unmatched, which msprobe calls a pass."""
    status = _text("status")
    return (
        pl.when(status.is_in(["equal", "within_noise"]))
        .then(pl.lit("pass"))
        .when(status == "unmatched")
        .then(pl.lit("unmatched"))
        .when(status == "undecided")
        .then(pl.lit("warning"))
        .otherwise(pl.lit("error"))
    )


def _own_columns() -> list[Column]:
    text = [
        ("Status", "status", 12),
        ("Site", "site", 46),
        ("Phase", "phase", 11),
        ("Evidence", "evidence", 10),
    ]
    whole = [("Step", "step"), ("Rank", "rank"), ("Order", "order"), ("Microbatch", "microbatch")]
    numbers = [
        ("Rel L2", "rel_l2"),
        ("Tolerance", "tolerance"),
        ("Times tolerance", "score"),
        ("Max abs diff", "max_abs_diff"),
        ("Cosine similarity", "cosine_similarity"),
        ("Scale", "scale"),
        ("Residual", "residual"),
        ("Fraction above", "fraction_above"),
        ("Max ulp diff", "max_ulp_diff"),
        ("Made from, differs by", "error_in"),
        ("Passed on at most", "gain"),
        ("Noise floor", "floor"),
        ("Target from arbiter", "arbiter_target"),
        ("Reference from arbiter", "arbiter_reference"),
    ]
    return [
        *(Column(title=title, value=_text(name), width=width) for title, name, width in text),
        *(Column(title=title, value=pl.col(name), kind=INTEGER) for title, name in whole),
        *(Column(title=title, value=pl.col(name), kind=FLOAT) for title, name in numbers),
        Column(title="Match pass", value=_text("match_pass")),
        Column(title="Match confidence", value=pl.col("confidence"), kind=FLOAT),
    ]
