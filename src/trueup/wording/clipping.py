"""English of loss scale, clipping and copies of gradients."""

from __future__ import annotations

from trueup.types.codes import ClippingCode as C
from trueup.types.reason import reason
from trueup.wording.phrase import ReasonFacts, clause, heading, ranks_named


def _copy_differs(facts: ReasonFacts) -> str:
    return (
        f"{facts['parameter']}: on {ranks_named(facts['ranks'])}, the gradient differs from the other copies "
        f"along {facts['axis']}"
    )


def _left_out(facts: ReasonFacts) -> str:
    clipped = {
        "out": "neither clipped nor counted in the norm",
        "below": "not counted in the norm of the others",
        "own": "clipped by a norm of their own",
        "in": "counted in the norm but not clipped",
    }.get(facts["counts"], "not clipped, unlike all others")
    return f"Gradients of {facts['parameters']} are {clipped} ({facts['side']})"


def _others_cut(facts: ReasonFacts) -> str:
    of_others = "the norm of the others alone, {rest:.6g}, to {limit:.6g}"
    made = dict.fromkeys(("out", "below", "own"), of_others) | {
        "in": "the norm of all gradients, {all:.6g}, to {limit:.6g}"
    }
    text = facts.fill(
        made.get(facts["counts"], "norm {rest:.6g} to {clipped:.6g}"), clipped=facts["factor"] * facts["rest"]
    )
    others = f"the others times {facts['factor']:.4g}, which brings {text}"
    these = {
        "below": "these gradients, whose own norm {left:.6g} is below that, times 1",
        "own": "these gradients times {times:.4g}, which brings their own norm, {left:.6g}, to {limit:.6g}",
    }.get(facts["counts"], "these gradients times 1")
    return f"{facts['side']}: {facts.fill(these)}, {others}"


_LEFT_OUT: dict[str, object] = {"parameters": "a.weight", "side": "target", "counts": "out"}
_NORMS: dict[str, object] = {
    "factor": 0.46,
    "rest": 1.7,
    "all": 1.8,
    "limit": 0.8,
    "left": 0.59,
    "times": 1.0,
}
_OTHERS: dict[str, object] = _LEFT_OUT | _NORMS
_VALUES: dict[str, object] = {"target": 0.25, "reference": 1.0}

PHRASES = {
    C.LOSS_SCALE: heading(
        "Loss scale differs in step {step}: {target:g} (target), {reference:g} (reference)",
        {"step": 0, "target": 1024.0, "reference": 65536.0},
    ),
    C.LOSS_SCALE_CAUSE: clause("a different initial loss scale, or a different growth rule"),
    C.SAME_LOSS_SCALE: clause("set the same loss scale in both runs; the unscaled gradients may agree"),
    C.NOT_CLIPPED: clause("not clipped (norm {norm:.6g})", {"norm": 1.5}),
    C.MULTIPLIED: clause("norm {norm:.6g} multiplied by {factor:.4g}", {"norm": 1.5, "factor": 2.0}),
    C.MULTIPLIED_DIFFERS: heading(
        "All gradients are multiplied before the update: by {target:.6g} (target), {reference:.6g} "
        "(reference)",
        {"target": 2.0, "reference": 1.0},
    ),
    C.VALUES_DIFFER: heading(
        "Elements of gradients are clipped at {target:.6g} (target), {reference:.6g} (reference)", _VALUES
    ),
    C.VALUE_CAUSE: clause("a different clip value"),
    C.TO_NORM: clause("norm {norm:.6g} clipped to {clipped:.6g}", {"norm": 1.5, "clipped": 1.0}),
    C.NORM_BEFORE_REDUCTION: heading(
        "The {side} alone clips to the norm of gradients before they are reduced", {"side": "target"}
    ),
    C.SCALED_UNCUT: clause(
        "norm {norm:.6g} multiplied to {scaled:.6g} before clipping, which cuts nothing",
        {"norm": 0.4, "scaled": 0.2},
    ),
    C.AT_VALUE: clause("elements clipped at {limit:.6g}", {"limit": 0.5}),
    C.TO_OWN_NORM: clause("each clipped to norm {limit:.6g}", {"limit": 0.5}),
    C.OWN_NORMS: heading(
        "Only the {side} clips each gradient by its own norm, to {limit:.6g}",
        {"side": "target", "limit": 0.5},
    ),
    C.OWN_NORMS_DIFFER: heading(
        "Each gradient is clipped to norm {target:.6g} (target), {reference:.6g} (reference)", _VALUES
    ),
    C.OWN_NORMS_CAUSE: clause("clip_grad_norm_ is called for each parameter by itself"),
    C.BY_PARAMETER: clause(
        "scaled by {usual:.4g}, {num:count parameter} by other factors ({parameter}: {factor:.4g})",
        {"usual": 0.5, "num": 1, "parameter": "layers.0.weight", "factor": 0.25},
    ),
    C.BOTH: clause(
        "gradients: {parts[0]} (target), {parts[1]} (reference)",
        {"parts": (reason(C.NOT_CLIPPED, norm=1.5), reason(C.TO_NORM, norm=1.5, clipped=1.0))},
    ),
    C.NORM_OF_OWN_PART: heading(
        "Each rank clips by its own norm: {together:.6g} in all (target), {reference:.6g} (reference)",
        {"norm": 0.2, "together": 0.283, "reference": 0.2},
    ),
    C.CLIPPED_BETWEEN: heading(
        "Gradients are clipped to norm {limit:.6g} after microbatch 0, before the next is added",
        {"limit": 0.25},
    ),
    C.CLIPPED_EACH: heading(
        "Gradients are clipped to norm {limit:.6g} after every microbatch, before the next is added",
        {"limit": 0.25},
    ),
    C.FIRST_COUNTS: clause(
        lambda facts: facts.fill(
            "microbatch 0 counts {factors:list} times as much as the next"
            + (" on these ranks" if len(facts["factors"]) > 1 else "")
            + ", its gradients have norm {norms:list}; in the reference all count alike"
        ),
        {"factors": ("0.352", "0.39"), "norms": ("0.711", "0.64")},
        {"factors": ("0.352",), "norms": ("0.711",)},
    ),
    C.NORM_DIFFERS: heading(
        "Gradients are clipped to different norms: {target:.6g} (target), {reference:.6g} (reference)",
        _VALUES,
    ),
    C.METHOD_DIFFERS: heading("Gradients are clipped by different methods"),
    C.TARGET_ONLY: heading(
        "Gradients are clipped to norm {target:.6g} in the target, not in the reference (norm "
        "{reference:.6g})",
        _VALUES,
    ),
    C.REFERENCE_ONLY: heading(
        "Gradients are clipped to norm {reference:.6g} in the reference, not in the target (norm "
        "{target:.6g})",
        {"target": 1.5, "reference": 1.0},
    ),
    C.SCALED_BY_RANKS: heading(
        "All gradients are scaled by {factor:.6g}; axis {axis} has {size:count rank}",
        {"factor": 0.5, "axis": "dp", "size": 2},
    ),
    C.FACTOR_DIFFERS: heading(
        "Clipping factor differs for gradients of the same norm: {target:.6g} (target), {reference:.6g} "
        "(reference)",
        _VALUES,
    ),
    C.NORM_TYPE: heading(
        "Norm type differs: the {side} alone clips by the largest element, {norm:.4g}",
        {"side": "target", "norm": 4.69},
    ),
    C.REPORTED_NORM: heading(
        "Reported gradient norm is {target:.4g} (target), {reference:.4g} (reference) times the actual norm",
        _VALUES,
    ),
    C.SCALED_BEFORE: heading(
        "The target's gradients are multiplied by {factor:.4g} between backward and clipping",
        {"factor": 0.5},
    ),
    C.SCALED_IN_REFERENCE: heading(
        "Only the reference's gradients are multiplied, by {factor:.4g}, between backward and clipping",
        {"factor": 1 / 1024},
    ),
    C.CLIPPED_SCALED: heading(
        "The target's gradients are clipped before they are divided by the loss scale, {scale:.6g}",
        {"scale": 256.0},
    ),
    C.UNSCALED_TWICE: heading(
        "The target's gradients are divided by the loss scale, {scale:.6g}, twice", {"scale": 256.0}
    ),
    C.LEFT_OUT: heading(
        _left_out,
        _LEFT_OUT,
        *({**_LEFT_OUT, "counts": counts} for counts in ("in", "below", "own", "neither")),
    ),
    C.OTHERS_CUT: clause(
        _others_cut,
        _OTHERS,
        {**_OTHERS, "counts": "in"},
        {**_OTHERS, "counts": "below"},
        {**_OTHERS, "counts": "own", "left": 1.2, "times": 0.67},
        {**_OTHERS, "counts": "neither", "side": "reference"},
    ),
    C.UNSCALED_CAUSE: clause(
        "gradients divided by another loss scale (that of another step), or divided twice"
    ),
    C.SCALED_BEFORE_NORM: heading(
        "Gradients are multiplied by {target:.6g} (target), {reference:.6g} (reference) before their norm is "
        "taken",
        {"target": 0.00048828125, "reference": 0.0009765625, "step": 0},
    ),
    C.NORM_TYPE_CAUSE: clause("another norm_type of clip_grad_norm_"),
    C.NOT_CALLED_CAUSE: clause("clip_grad_norm_ is not called, or is called after optimizer.step()"),
    C.LIMIT_CAUSE: clause("a different max_norm"),
    C.GROUPS_CAUSE: clause("each parameter group, or each of several optimizers, clipped by its own norm"),
    C.NORM_CAUSE: clause("a norm over different parameters or ranks, or with copies counted twice"),
    C.CLIP_ONCE: clause("clipping inside the loop over microbatches"),
    C.CLIP_AFTER_LAST: clause("clip once, after the last microbatch of a step"),
    C.SUM_CAUSE: clause("a missing or extra sum over ranks"),
    C.SOME_SCALED_CAUSE: clause("a factor applied to some weights only"),
    C.COMPARE_CODE: clause("compare the code of both runs between backward() and optimizer.step()"),
    C.SOME_RANKS: heading("Some ranks clip their gradients by a different factor"),
    C.RANK_FACTOR: clause(
        "clipping factor over the reference's: {factor:.6g} on rank {rank}, {usual:.6g} on other ranks",
        {"rank": 1, "factor": 0.5, "usual": 1.0},
    ),
    C.RANKS_DIFFER: heading("Clipping factors differ between ranks in the target, not in the reference"),
    C.SUMS_SCALED: heading(
        "Clipping factor of the summed gradients is {factor:.6g} times the reference's", {"factor": 0.5}
    ),
    C.COMPARE_NORMS: clause("compare how both runs compute the norm for clipping"),
    C.COPY_DIFFERS: clause(
        _copy_differs,
        {"parameter": "layers.0.weight", "ranks": ("1",), "axis": "dp"},
        {"parameter": "layers.0.weight", "ranks": ("1", "3"), "axis": "dp"},
    ),
    C.ON_RANKS: heading(
        lambda facts: f"Gradients of {facts['parameters']} differ on {ranks_named(facts['ranks'])}",
        {"parameters": "layers.0.weight", "ranks": ("1",)},
        {"parameters": "2 of 12 parameters (a, b, …)", "ranks": ("1", "3")},
    ),
    C.AMONG_RANKS: clause("measured among the target's own ranks, which hold the same weights"),
}
