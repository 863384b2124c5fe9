"""``trueup compare-weights``: two sets of weights, of one framework or two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from trueup.cli.printing import note_line, print_json, table_width, warning_line
from trueup.cli.shared import AllowUnmatched, Limit, NumHeads, NumKvHeads, Printed
from trueup.types.option import Option

if TYPE_CHECKING:
    from trueup.weights.weight_set import WeightSet


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPairOptions:
    """Which weights, how they are paired, and when two agree."""

    target: Annotated[
        Path, Option("Weights to check: a file, a folder (also of .npy files), a trace.", argument="TARGET")
    ]
    reference: Annotated[Path, Option("Weights that are trusted.", argument="REFERENCE")]
    by: Annotated[
        Literal["auto", "name", "map", "values"],
        Option(
            "How weights are paired: same name; naming maps; a plan inferred from values.",
            "--by",
            default="auto: by name, or by map where most names exist on one side only",
        ),
    ] = "auto"
    plan: Annotated[
        Path | None,
        Option("A plan that produces TARGET's weights from REFERENCE's.", "--plan FILE", excludes="by"),
    ] = None
    rtol: Annotated[
        float, Option("Relative tolerance; 0: bit-identical.", "--rtol", default="0", least=0)
    ] = 0.0
    atol: Annotated[float, Option("Absolute tolerance.", "--atol", default="0", least=0)] = 0.0
    num_heads: NumHeads = None
    num_kv_heads: NumKvHeads = None
    allow_unmatched: AllowUnmatched = False
    limit: Limit = 40


def command(options: WeightPairOptions, printed: Printed) -> int:
    """Compare two sets of weights, or of arrays, pair by pair.

    Exit status: 0 if all agree (across dtypes: except for rounding), 1 if some differ, 2 if none differs
    but shapes do not match or a weight is unmatched.
    """
    from trueup.reporting.render import show
    from trueup.reporting.weights import weights_json, weights_report
    from trueup.weights.comparing import compare_weights
    from trueup.weights.opening import open_weights

    target, original = open_weights(options.target), open_weights(options.reference)
    reference, note = _renamed(target, original, options)
    comparison = compare_weights(target, reference, rtol=options.rtol, atol=options.atol)
    code = comparison.exit_code(allow_unmatched=options.allow_unmatched)
    if printed.as_json:
        print_json(weights_json(comparison, exit_code=code))
    elif not printed.quiet:
        from rich.console import Console

        for sentence in dict.fromkeys((*target.remarks, *reference.remarks)):
            warning_line(sentence)
        if note:
            note_line(note)
        report = weights_report(comparison, exit_code=code, limit=options.limit)
        show(report, Console(highlight=False, width=table_width()))
    return code


def _renamed(target: WeightSet, reference: WeightSet, options: WeightPairOptions) -> tuple[WeightSet, str]:
    """The reference under the target's names, and how that came about."""
    from trueup.cli.inferring import infer_plan
    from trueup.weights.applying import apply_plan
    from trueup.weights.converting import merged
    from trueup.weights.layouts import Heads
    from trueup.weights.model_config import heads_beside
    from trueup.weights.pairing import most_common, renamed_by_map
    from trueup.weights.plan_file import read_plan

    if options.plan is not None:
        return apply_plan(read_plan(options.plan), reference), f"paired by {options.plan}"
    if options.by == "values":
        inferred = infer_plan(target, reference)
        lowest = min((entry.confidence for entry in inferred.entries), default=1.0)
        return apply_plan(inferred, reference), f"paired by an inferred plan, lowest confidence {lowest:.2f}"
    given = Heads(num_heads=options.num_heads, num_kv_heads=options.num_kv_heads)
    heads = merged(given, merged(heads_beside(reference.path), heads_beside(target.path)))
    if options.by == "map":
        return renamed_by_map(target, reference, heads)
    return most_common(target, reference, heads) if options.by == "auto" else (reference, "")
