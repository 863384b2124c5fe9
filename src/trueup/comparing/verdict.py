"""One conclusion over two runs: whether they agree, else where they part, how sure that is, and what to do
next."""

from __future__ import annotations

import math
from typing import Any

from trueup.comparing.captured import not_paired, phases_said, unseen
from trueup.comparing.grounds import before_said, grounds, ranks_said
from trueup.comparing.ledger import First, Ledger
from trueup.comparing.microbatches import led_by_microbatches
from trueup.comparing.origins import is_from_outside, not_finite_apart
from trueup.comparing.scalars import DECISIVE, NORM
from trueup.types import Outcome

_TRUST = {"digest": 0.99, "values": 0.99, "sketch": 0.95, "statistics": 0.8, "none": 0.5}
"""How far evidence of each kind can be trusted to show a difference where there is one."""

_ABSENT = 0.95
"""confidence where one side has nothing at all"""

_PHASE_SAID = {
    "param": "the weights at the start",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "param_grad": "a parameter's gradient",
    "collective": "a collective",
    "optimizer": "the optimizer's update",
}


def verdict_from(
    ledger: Ledger,
    scalars: list[dict[str, Any]],
    *,
    target: str,
    reference: str,
    level: str | None,
    command: str,
    measured: bool = False,
    alike: bool = False,
    captured: str = "",
) -> dict[str, Any]:
    """The ``verdict`` object of result.json; ``measured``: tolerances come from a noise profile; ``alike``:
    the same parts of a step were captured on both sides; ``captured``: in words, how the captures differ."""
    first = min(ledger.firsts.values(), key=lambda f: (f.step, f.order), default=None)
    lacking, origin = ledger.lacking, ledger.origin
    if lacking is not None and origin is not None and _is_drawn_after(origin, lacking):
        verdict = _lacking(lacking, origin, ledger, scalars, target, reference, level, command)
    elif ledger.origin is not None:
        verdict = _differ(ledger.origin, ledger, scalars, target, reference, level, command)
    elif first is not None:
        verdict = _grown(first, ledger, scalars, target, reference, level, command, measured=measured)
    else:
        verdict = _without_difference(ledger, scalars, target, reference, alike=alike, captured=captured)
    return led_by_microbatches(verdict, ledger, scalars, target=target, reference=reference)


def _without_difference(
    ledger: Ledger,
    scalars: list[dict[str, Any]],
    target: str,
    reference: str,
    *,
    alike: bool,
    captured: str,
) -> dict[str, Any]:
    """No record is beyond its tolerance."""
    apart = [
        s
        for s in scalars
        if s["beyond"] and s["name"].partition("[")[0] in DECISIVE and s["step"] in ledger.limits
    ]
    if apart:
        return _scalars_differ(apart, ledger)
    unpaired = not_paired(ledger.counts, ledger.alone)
    if unpaired and (captured or "forward" in unpaired):  # other code may show other gradients, as it does
        return _not_compared(ledger, unpaired, captured)
    if ledger.not_bracketed:
        return _undecided(ledger, target, reference)
    phases = unseen(ledger.counts)
    return _agree(ledger, captured) if not phases else _agree_in_part(ledger, phases, alike=alike)


def confidence(evidence: str, score: float, before: dict[str, Any], match: float) -> float:
    """How sure it is that this site is where the runs part.

    trust(evidence) * match * (1 - doubt): a score s leaves a doubt of 1 / (1 + s^2) (1/2 at the bound, 1 % at
    ten times it); it shrinks to a third where everything before was bit for bit equal, since rounding cannot
    then have come in.
    """
    doubt = 0.0 if math.isinf(score) else 1.0 / (1.0 + score * score)
    if before["within_noise"] == before.get("beyond", 0) == 0 and before["equal"] > 0:
        doubt /= 3.0
    return round(_TRUST.get(evidence, 0.5) * match * (1.0 - doubt), 3)


def _differ(
    first: First,
    ledger: Ledger,
    scalars: list[dict[str, Any]],
    target: str,
    reference: str,
    level: str | None,
    command: str,
) -> dict[str, Any]:
    row, phase = first.row, first.row["phase"]
    score = row["score"] if row["score"] is not None else math.inf
    absent = row["target_record"] is None or row["reference_record"] is None
    return {
        "outcome": Outcome.DIFFER.value,
        "exit_code": Outcome.DIFFER.exit_code,
        "headline": _headline(first),
        "where": row["site"],
        "owner": first.owner,
        "step": first.step,
        "rank": first.rank,
        "phase": phase,
        "confidence": _ABSENT
        if absent
        else confidence(row["evidence"], score, first.before, row["confidence"] or 0.0),
        "evidence": grounds(first, ledger, scalars),
        "before": before_said(first.before),
        **_next(first, level, command, target, reference),
    }


def _is_drawn_after(origin: First, lacking: First) -> bool:
    """Whether the runs part in weights, after one that only the one has: every later draw is another."""
    return origin.row["phase"] == "param" and (lacking.step, lacking.order) < (origin.step, origin.order)


def _lacking(
    lacking: First,
    origin: First,
    ledger: Ledger,
    scalars: list[dict[str, Any]],
    target: str,
    reference: str,
    level: str | None,
    command: str,
) -> dict[str, Any]:
    side = "reference" if lacking.row["target_record"] is None else "target"
    found = _differ(origin, ledger, scalars, target, reference, level, command)
    alone = f"the {side} alone has the parameter {lacking.row['name']}"
    said = [line for line in found["evidence"] if line != alone and line not in origin.said]
    said = [
        f"{origin.row['name']}: {line}" if line.startswith(("relative", "norm")) else line for line in said
    ]
    return found | {
        "evidence": said,
        "headline": (
            f"{alone[0].upper()}{alone[1:]}; the weights drawn after it differ, from {origin.row['name']} on."
        ),
        "where": lacking.row["site"],
        "owner": lacking.owner,
        "step": lacking.step,
        "confidence": _ABSENT,
        "before": before_said(lacking.before),
    }


def _is_other_data(first: First) -> bool:
    """Whether the runs part in what the program gives the model."""
    return is_from_outside(first.row) and first.row["kind"] == "module"


def _headline(first: First) -> str:
    if _is_other_data(first):
        return f"The runs are given different data: what enters the model differs in step {first.step}."
    where = "" if first.owner is None else f", in {first.owner or 'the root module'}"
    if first.weight is not None and first.row["phase"] == "forward":
        return (
            f"The runs first differ in the gradient of {first.weight} in step {first.step}, changed after "
            "the backward pass."
        )
    if first.weight is not None:
        where = f", with the gradient of {first.weight}"
    phase = first.row["phase"]
    place = f"in {_PHASE_SAID.get(phase, phase)} of step {first.step}{where}"
    counted = not_finite_apart(first.row)
    if counted is not None and 0 in (counted.target, counted.reference):
        return f"{counted.what} appears in the {counted.side} first, {place}."
    return f"The runs first differ {place}."


def _grown(
    first: First,
    ledger: Ledger,
    scalars: list[dict[str, Any]],
    target: str,
    reference: str,
    level: str | None,
    command: str,
    *,
    measured: bool,
) -> dict[str, Any]:
    """Records beyond tolerance, each explained by what it was made from: no place made the error."""
    verdict = _differ(first, ledger, scalars, target, reference, level, command)
    entered = first.row["error_in"]
    came = "" if entered is None else f" ({entered:.2g} at most)"
    verdict["evidence"].insert(0, f"what it was made from differs already{came}, within what is accepted")
    if not measured:
        return verdict
    phase, where = first.row["phase"], first.row["site"]
    return verdict | {
        "outcome": Outcome.UNDECIDED.value,
        "exit_code": Outcome.UNDECIDED.exit_code,
        "headline": (
            "No record was made wrong by more than noise explains, but noise grew beyond its measure, first "
            f"in {_PHASE_SAID.get(phase, phase)} of step {first.step}, at {where}."
        ),
        "confidence": round(0.5 * verdict["confidence"], 3),
        "next": f"trueup noise -k 8 --reference {reference} -- COMMAND",
        "next_note": "to know the noise better; or trueup replay, which lets none in",
    }


def _next(first: First, level: str | None, command: str, target: str, reference: str) -> dict[str, str]:
    step = first.step
    if _is_other_data(first):
        again = f"trueup diagnose {target} {reference} -o OUT"
        return {
            "next": again,
            "next_note": "to see how the batches differ: shifted, reordered, of another shard",
        }
    if level == "L0" and first.row["phase"] in ("forward", "loss", "backward"):
        closer, note = "--level mix", "on both sides, to see the call inside"
    elif first.row["evidence"] not in ("values", "digest") and first.row["phase"] != "param":
        closer, note = "--task tensor", "on both sides, to see which elements"
    else:
        again = f"trueup compare {target} {reference} --steps {step} -o OUT"
        return {"next": again, "next_note": "then read report.html at this site"}
    return {"next": f"trueup capture {closer} --steps {step} -o RUN -- {command}", "next_note": note}


def _scalars_differ(apart: list[dict[str, Any]], ledger: Ledger) -> dict[str, Any]:
    names = sorted({s["name"] for s in apart})
    of_norm = names == [NORM]
    said = [
        f"{s['name']} of step {s['step']}{ranks_said([s['rank']])}: {s['target']} against {s['reference']}"
        for s in apart[:6]
    ]
    return {
        "outcome": Outcome.DIFFER.value,
        "exit_code": Outcome.DIFFER.exit_code,
        "headline": (
            f"The recorded tensors agree, but not the gradient norm of step {apart[0]['step']}."
            if of_norm
            else f"The tensors agree, but the runs were set differently: {', '.join(names)}."
        ),
        "where": "gradient norm" if of_norm else None,
        "owner": None,
        "step": apart[0]["step"],
        "rank": None,
        "phase": "param_grad" if of_norm else None,
        "confidence": 0.99,
        "evidence": said,
        "before": f"All {ledger.compared} compared records agree within rounding.",
        "next": None,
        "next_note": (
            "compare what happens between backward and clipping: reduction, scaling, the norm itself"
            if of_norm
            else "bring the settings named above to the same values and capture again"
        ),
    }


def _undecided(ledger: Ledger, target: str, reference: str) -> dict[str, Any]:
    return {
        "outcome": Outcome.UNDECIDED.value,
        "exit_code": Outcome.UNDECIDED.exit_code,
        "headline": (
            f"No difference beyond tolerance, but {ledger.not_bracketed} records have no verdict and "
            "do not lie between "
            "matched ones that agree."
        ),
        "where": None,
        "owner": None,
        "step": None,
        "rank": None,
        "phase": None,
        "confidence": round(0.5 * ledger.compared / max(ledger.compared + ledger.not_bracketed, 1), 3),
        "evidence": list(ledger.not_bracketed_examples),
        "before": f"{ledger.compared} records were compared; all agree within rounding.",
        "next": f"trueup compare {target} {reference} -o OUT",
        "next_note": "then read report.html: the unmatched and undecided rows",
    }


def _agree_in_part(ledger: Ledger, phases: list[str], *, alike: bool) -> dict[str, Any]:
    """All that was compared agrees, but of some phases only one run holds anything."""
    outcome = Outcome.UNDECIDED if alike else Outcome.AGREE
    alone = f"{phases_said(phases)} {'is' if len(phases) == 1 else 'are'} in one trace alone"
    why = ", though both were captured alike" if alike else ""
    return _agree(ledger) | {
        "outcome": outcome.value,
        "exit_code": outcome.exit_code,
        "headline": f"What both runs hold agrees, but {alone}{why}.",
        "confidence": 0.5,
        "evidence": [
            f"{ledger.compared} records were compared, and agree",
            f"not compared: {phases_said(phases)}",
        ],
        "next_note": "capture the same parts of a step on both sides"
        if not alike
        else "does the run that lacks them train at all?",
    }


def _not_compared(ledger: Ledger, phases: list[str], captured: str) -> dict[str, Any]:
    """What was compared agrees, but of a phase that both runs hold not one record has a counterpart."""
    why = f": {captured}" if captured else ""
    return _agree(ledger, captured) | {
        "outcome": Outcome.UNDECIDED.value,
        "exit_code": Outcome.UNDECIDED.exit_code,
        "headline": f"Nothing of {phases_said(phases)} could be compared, though both runs hold both{why}."
        if len(phases) > 1
        else f"Nothing of {phases_said(phases)} could be compared, though both runs hold it{why}.",
        "confidence": 0.5,
        "evidence": [
            f"not compared: {phases_said(phases)}",
            f"{ledger.compared} other records were compared, and agree",
        ],
        "next_note": "capture both runs with the same --level and --task",
    }


def _agree(ledger: Ledger, captured: str = "") -> dict[str, Any]:
    total = sum(ledger.counts.values())
    equal = sum(count for (_, status), count in ledger.counts.items() if status == "equal")
    weakest = max((e for e in ledger.evidence if e != "none"), key=list(_TRUST).index, default="none")
    return {
        "outcome": Outcome.AGREE.value,
        "exit_code": Outcome.AGREE.exit_code,
        "headline": _agreement(equal, ledger.compared, total),
        "where": None,
        "owner": None,
        "step": None,
        "rank": None,
        "phase": None,
        "confidence": 0.99 if equal == ledger.compared else _TRUST[weakest],
        "evidence": _agreeing(equal, ledger.compared, total, captured),
        "before": "",
        "next": None,
        "next_note": "capture both runs with the same --level and --task to compare the rest"
        if captured and ledger.compared < total
        else "nothing to do for these steps; for longer runs compare more of them",
    }


def _agreement(equal: int, compared: int, total: int) -> str:
    if equal == total:
        return "The runs are equal bit for bit."
    if equal == compared:
        return "What could be compared of the runs is equal bit for bit."
    return "The runs agree within rounding."


def _agreeing(equal: int, compared: int, total: int, captured: str) -> list[str]:
    """How what was compared agrees, and why the rest was not compared."""
    within = f", {compared - equal} within what rounding explains" if compared > equal else ""
    said = [f"{equal} records equal bit for bit{within}"]
    open_ = total - compared
    if open_ and captured:
        said.append(f"{open_} records not compared; the two were not captured alike: {captured}")
    elif open_:
        said.append(
            f"{open_} records without a counterpart or a summary, each between matched ones that agree: the "
            "same mathematics by other calls"
        )
    return said
