"""The sentences a verdict rests on, those that tell the cause first: a terminal shows only the beginning."""

from __future__ import annotations

import math
from typing import Any

from trueup.comparing.ledger import First, Ledger
from trueup.comparing.origins import not_finite_apart
from trueup.matching.step import NO_PARAMETER

_READ_BY = {
    "microbatches": ("forward", "loss", "backward", "param_grad", "collective", "optimizer"),
    "batch_size": ("forward", "loss", "backward", "param_grad", "collective", "optimizer"),
    "learning_rate": ("optimizer",),
    "loss_scale": ("backward", "param_grad", "collective", "optimizer"),
    "batch_digest": ("forward", "loss", "backward", "param_grad", "collective", "optimizer"),
}
"""Settings of a step, most telling first, and the phases that read them."""

_NUM_AHEAD = 2
"""causes that stand before the size of the difference"""

_NEAR = 0.1
"""of its bound: what stays below says nothing"""


def grounds(first: First, ledger: Ledger, scalars: list[dict[str, Any]]) -> list[str]:
    """Causes, the size of the difference, why it is an origin, what else differs; norms last."""
    settings, other_settings = _settings(scalars, first.step, first.row["phase"])
    arguments = [said for said in reversed(first.hints) if said.startswith("arguments differ")]
    dtypes = [said for said in first.hints if said not in arguments]
    causes = [*settings, *_missing(ledger), *arguments]
    said = [
        *causes[:_NUM_AHEAD],
        *_size(first.row),
        *causes[_NUM_AHEAD:],
        *first.said,
        *dtypes,
        *other_settings,
        *_later(first, ledger),
        *_norms(first.row),
    ]
    return list(dict.fromkeys(said))


def _settings(scalars: list[dict[str, Any]], step: int, phase: str) -> tuple[list[str], list[str]]:
    """What the step was run with and differs: what this phase reads, and the rest."""
    read: list[str] = []
    unread: list[str] = []
    for name, phases in _READ_BY.items():
        (read if phase in phases else unread).extend(_setting(scalars, step, name))
    return read, unread


def _setting(scalars: list[dict[str, Any]], step: int, name: str) -> list[str]:
    apart: dict[str, list[dict[str, Any]]] = {}
    for entry in scalars:
        if entry["step"] == step and entry["beyond"] and entry["name"].partition("[")[0] == name:
            apart.setdefault(entry["name"], []).append(entry)
    return [
        f"{'number of ' if name == 'microbatches' else ''}{full} differs in step {step}"
        f"{ranks_said([entry['rank'] for entry in entries])}: "
        f"{entries[0]['target']} against {entries[0]['reference']}"
        for full, entries in apart.items()
    ]


def ranks_said(ranks: list[int]) -> str:
    """Where it is not the first rank alone."""
    if ranks == [0]:
        return ""
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f" on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:4]))}{more}"


def _missing(ledger: Ledger) -> list[str]:
    """Parameters that one run alone has."""
    said = []
    for side in ("target", "reference"):
        names = sorted(
            {name for at, _, name, reason in ledger.groups if at == side and NO_PARAMETER in reason}
        )
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            plural = "s" if len(names) > 1 else ""
            said.append(f"the {side} alone has the parameter{plural} {', '.join(names[:3])}{more}")
    return said


def times_said(ratio: float) -> str:
    """A ratio as a person writes it.

    Example:
        >>> times_said(1.5), times_said(19_812.3), times_said(2.5e9)
        ('1.5 times', '19,800 times', '2.5e+09 times')
    """
    return f"{float(f'{ratio:.3g}'):,.0f} times" if 100 <= ratio < 1e6 else f"{ratio:.3g} times"


def _size(row: dict[str, Any]) -> list[str]:
    """How large the difference is; of NaN and infinities how many there are, which have no size."""
    counted = not_finite_apart(row)
    if counted is not None:
        return [f"{counted.what}: {counted.target:,} in the target, {counted.reference:,} in the reference"]
    said = []
    if row["rel_l2"] is not None and row["tolerance"] is not None:
        kind = "at least " if row["evidence"] == "statistics" else ""
        size = f"relative difference {kind}{row['rel_l2']:.3g} (from {row['evidence']})"
        times = f"tolerance {row['tolerance']:.3g}: {times_said(row['score'])} what rounding explains"
        said.append(f"{size}, {times}" if math.isfinite(row["score"]) else f"{size}, where none is allowed")
    if row["reason"]:
        said.append(row["reason"])
    return said


def _norms(row: dict[str, Any]) -> list[str]:
    if not_finite_apart(row) is not None:
        return []
    said = []
    known = row["scale"] is not None and row["residual"] is not None and row["rel_l2"]
    if known and abs(row["scale"] - 1) > 0.7 * row["rel_l2"] and row["residual"] < 0.5 * row["rel_l2"]:
        sign = "+" if row["scale"] > 1 else "-"
        factor = f"1 {sign} {abs(row['scale'] - 1):.2g}"
        said.append(f"a common factor of {factor} explains most (residual {row['residual']:.2g})")
    if row["target_l2_norm"] is not None and row["reference_l2_norm"] is not None:
        said.append(f"norm {row['target_l2_norm']:.6g} against {row['reference_l2_norm']:.6g}")
    return said


def _later(first: First, ledger: Ledger) -> list[str]:
    total = ledger.beyond
    others = [name.replace("_", " ") for name in ledger.firsts if name != first.row["phase"]]
    if total <= 1:
        return ["no other record differs beyond its tolerance"]
    where = f", also in {', '.join(sorted(others))}" if others else ""
    if ledger.num_origins > 1:
        where += f"; {ledger.num_origins} of them are not explained by what they were made from"
    if ledger.followed:
        where += f"; {ledger.followed} more are within a tolerance widened for weights that differ"
    return [f"{total} of {ledger.compared} compared records differ beyond tolerance in all{where}"]


def before_said(before: dict[str, Any]) -> str:
    """How the records that were compared before a site agree; none of them is left out."""
    equal, within, beyond = before["equal"], before["within_noise"], before.get("beyond", 0)
    total = equal + within + beyond
    if total == 0:
        return "Nothing was compared before it in this step."
    if equal == total:
        return f"All {total} records compared before it in this step are equal bit for bit."
    said = f"Of {total} records before it in this step {equal} are equal bit for bit"
    if within:
        said += f"{',' if beyond else ' and'} {within} within rounding"
    if beyond:
        said += f" and {beyond} beyond tolerance, but explained by what they were made from"
    if not within:
        return f"{said}."
    if before["worst_score"] < _NEAR:
        return f"{said}, far from their bounds." if not beyond else f"{said}."
    near = f"the nearest to its bound reaches {before['worst_score']:.2f} of it, at {before['worst_site']}"
    return f"{said}; {near}."
