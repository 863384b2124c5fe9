"""Columns of the records in a workbook: msprobe 26.2.0's, by its names and in its order, then ours.

msprobe names a tensor ``Module.layers.0.ln1.LayerNorm.forward.0.input.0``: the number counts calls of that
name in a step. Where a result does not hold that number the site itself stands there. msprobe's
``backward.N.input`` are the gradients that arrive at a call's outputs, ``backward.N.output`` those of its
inputs: the other way round than here. Its percentages are numbers here, shown as percentages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from trueup.reporting.comparison.result import SIDES, ComparisonResult
from trueup.reporting.document import FrameColumn

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


def record_columns(result: ComparisonResult) -> list[FrameColumn]:
    """All columns, in order; where values were compared, msprobe's columns for tensors in place of those for
    statistics."""
    schema = result.records.collect_schema()
    by_values = pl.col("evidence").cast(pl.String) == "values"
    with_values = bool(result.records.select(by_values.any()).collect().item())
    consistent = pl.col("target_requires_grad") == pl.col("reference_requires_grad")
    return [
        *_basic_columns(schema, {side: result.framework(side) for side in SIDES}, result.module_types()),
        *(_tensor_columns() if with_values else _difference_columns()),
        *(
            FrameColumn(title=f"{prefix} {title}", value=pl.col(f"{side}_{name}"), kind="float")
            for side, prefix in _SIDES
            for name, title in _STATISTICS
        ),
        FrameColumn(title="Requires_grad Consistent", value=_flag(consistent)),
        FrameColumn(title="Result", value=_result()),
        FrameColumn(title="Err_message", value=_text("reason"), width=24),
        FrameColumn(title="NPU_Stack_Info", value=_stack(result.stacks("target")), width=24),
        *_further_columns(),
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
) -> list[FrameColumn]:
    return [
        *(
            FrameColumn(title=f"{prefix} Name", value=_name(side, schema, frameworks[side], types), width=46)
            for side, prefix in _SIDES
        ),
        *(
            FrameColumn(title=f"{prefix} Dtype", value=_dtype(side, frameworks[side]), width=14)
            for side, prefix in _SIDES
        ),
        *(
            FrameColumn(title=f"{prefix} Tensor Shape", value=_text(f"{side}_shape"), width=15)
            for side, prefix in _SIDES
        ),
        *(
            FrameColumn(title=f"{prefix} Requires_grad", value=_flag(pl.col(f"{side}_requires_grad")))
            for side, prefix in _SIDES
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
    own_site = pl.when(present).then(site)
    if f"{side}_global_ordinal" not in schema:
        return own_site
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
    ran = pl.when(phase == "param_grad").then(pl.lit("forward")).otherwise(phase)  # work on gradients
    of_api = pl.concat_str(_api(), number, ran, slot, separator=".")
    called = (
        pl.when(traced & (kind == "module"))
        .then(of_module)
        .when((traced | (phase == "param_grad")) & kind.is_in(["api", "collective"]))
        .then(of_api)
    )
    return pl.when(present).then(pl.coalesce(called, _parameter(root, types), own_site))


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


def _difference_columns() -> list[FrameColumn]:
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
            FrameColumn(title=f"{title} diff", value=differences[name], kind="float")
            for name, title in titles.items()
        ),
        *(
            FrameColumn(
                title=f"{'Norm' if name == 'l2_norm' else title}RelativeErr",
                value=relative[name],
                kind="percent",
            )
            for name, title in titles.items()
        ),
    ]


def _tensor_columns() -> list[FrameColumn]:
    known = {
        "Cosine": pl.col("cosine_similarity"),
        "EucDist": pl.col("rel_l2") * pl.col("reference_l2_norm"),
        "MaxAbsErr": pl.col("max_abs_diff"),
        "MaxRelativeErr": pl.col("max_rel_diff"),
        "One Thousandth Err Ratio": pl.col("fraction_within_thousandth"),
        "Five Thousandths Err Ratio": pl.col("fraction_within_five_thousandths"),
    }
    return [FrameColumn(title=title, value=value, kind="float") for title, value in known.items()]


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


def _further_columns() -> list[FrameColumn]:
    text = [
        ("Status", "status", 12),
        ("Site", "site", 46),
        ("Phase", "phase", 11),
        ("Evidence", "evidence", 10),
    ]
    integers = [("Step", "step"), ("Rank", "rank"), ("Order", "order"), ("Microbatch", "microbatch")]
    numbers = [
        ("Rel L2", "rel_l2"),
        ("Tolerance", "tolerance"),
        ("× tolerance", "score"),
        ("Max abs diff", "max_abs_diff"),
        ("Cosine similarity", "cosine_similarity"),
        ("Scale", "scale"),
        ("Residual", "residual"),
        ("Fraction above", "fraction_above"),
        ("Max ulp diff", "max_ulp_diff"),
        ("Input error", "error_in"),
        ("Maximum gain", "gain"),
        ("Noise floor", "floor"),
        ("Target vs arbiter", "arbiter_target"),
        ("Reference vs arbiter", "arbiter_reference"),
    ]
    return [
        *(FrameColumn(title=title, value=_text(name), width=width) for title, name, width in text),
        *(FrameColumn(title=title, value=pl.col(name), kind="integer") for title, name in integers),
        *(FrameColumn(title=title, value=pl.col(name), kind="float") for title, name in numbers),
        FrameColumn(title="Match pass", value=_text("match_pass")),
        FrameColumn(title="Match confidence", value=pl.col("confidence"), kind="float"),
    ]
