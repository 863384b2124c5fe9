"""``trueup compare-weights``: two sets of weights, of one framework or two."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueup.cli.printing import note_line, warning_line
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from trueup.weights.layouts import Heads
    from trueup.weights.weight_set import WeightSet

_WAYS = ("auto", "name", "map", "values")
_WIDTH_IN_A_FILE = 240


def command(
    target: Annotated[
        Path, typer.Argument(help="Weights under question: a file, a folder (also of .npy files), a trace.")
    ],
    reference: Annotated[Path, typer.Argument(help="Weights that are trusted.")],
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="auto|name|map|values",
            help="How weights are paired: same name; naming maps; a plan inferred from both. Default: by "
            "name, or where most names are on one side alone, by map.",
        ),
    ] = "auto",
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="A plan that makes TARGET's weights of REFERENCE's."),
    ] = None,
    rtol: Annotated[float, typer.Option(help="Relative tolerance; 0: bits must be equal.")] = 0.0,
    atol: Annotated[float, typer.Option(help="Absolute tolerance.")] = 0.0,
    num_heads: Annotated[
        int | None,
        typer.Option("--num-heads", min=1, help="Attention heads, for maps. Default: config.json."),
    ] = None,
    num_kv_heads: Annotated[
        int | None, typer.Option("--num-kv-heads", min=1, help="See --num-heads.")
    ] = None,
    allow_unmatched: Annotated[
        bool, typer.Option("--allow-unmatched", help="Weights of one side alone do not count.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status tells.")
    ] = False,
) -> None:
    """Compare two sets of weights, or of arrays, pair by pair.

    Ends with 0 if all agree (across dtypes: but for rounding), 1 if some differ, 2 if none differs but
    shapes do not fit or some weight has no partner.
    """
    from trueup.reporting.render import show
    from trueup.reporting.weights import weights_json, weights_report
    from trueup.weights.comparing import compare_weights
    from trueup.weights.layouts import Heads
    from trueup.weights.opening import open_weights

    if by not in _WAYS:
        raise ConfigError(f"--by {by!r}: there is {', '.join(_WAYS)}")
    if plan is not None and by != "auto":
        raise ConfigError(f"--plan {plan} and --by {by}: one of them")
    mine, theirs = open_weights(target), open_weights(reference)
    given = Heads(num_heads=num_heads, num_kv_heads=num_kv_heads)
    theirs, told = _renamed(mine, theirs, by, plan, given)
    comparison = compare_weights(mine, theirs, rtol=rtol, atol=atol)
    code = comparison.exit_code(allow_unmatched=allow_unmatched)
    if as_json:
        print(json.dumps(weights_json(comparison, exit_code=code), ensure_ascii=False, indent=2))
    elif not quiet:
        from rich.console import Console

        for sentence in dict.fromkeys((*mine.remarks, *theirs.remarks)):
            warning_line(sentence)
        if told:
            note_line(told)
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_IN_A_FILE)
        show(weights_report(comparison, exit_code=code, limit=limit), console)
    raise typer.Exit(code)


def _renamed(
    target: WeightSet, reference: WeightSet, by: str, plan: Path | None, given: Heads
) -> tuple[WeightSet, str]:
    """The reference under the target's names, and how that came about."""
    from trueup.cli.inferring import infer_plan
    from trueup.weights.applying import apply_plan
    from trueup.weights.converting import merged
    from trueup.weights.model_config import heads_beside
    from trueup.weights.pairing import most_common, renamed_by_map
    from trueup.weights.plan_file import read_plan

    if plan is not None:
        return apply_plan(read_plan(plan), reference), f"paired by {plan}"
    if by == "values":
        inferred = infer_plan(target, reference)
        lowest = min((entry.confidence for entry in inferred.entries), default=1.0)
        return apply_plan(inferred, reference), f"paired by an inferred plan, lowest confidence {lowest:.2f}"
    found = merged(given, merged(heads_beside(reference.path), heads_beside(target.path)))
    if by == "map":
        return renamed_by_map(target, reference, found)
    return most_common(target, reference, found) if by == "auto" else (reference, "")
