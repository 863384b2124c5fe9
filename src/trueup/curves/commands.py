"""The exact commands a judgement leads to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from trueup.curves.curve import Curve
from trueup.curves.judgement import CurveJudgement
from trueup.errors import TraceError
from trueup.store import Trace
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason, reason
from trueup.types.status import Outcome

_PLACEHOLDER = "python train.py"
_STEPS_BEFORE = 5
"""captured before an onset that is not known to the step: each costs time and room"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command and what it is for."""

    line: str
    purpose: Reason

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"line": self.line, "purpose": self.purpose}


def captured_step(curve: Curve, step: int) -> int:
    """The number trueup gives a step that the log calls ``step``: it counts from 0, most logs from 1."""
    return step if curve.trace is not None or curve.span[0] == 0 else max(0, step - 1)


def commands(
    judgement: CurveJudgement, target: Curve, *, program: str | None = None, proved: bool = False
) -> list[Command]:
    """What to run next; ``program`` is the training command, else that of the target's trace.

    ``proved``: both runs have traces, or a person vouches for what they would prove.
    """
    run = program or _program_of(target)
    case, step = judgement.case, judgement.step
    at = None if step is None else captured_step(target, step)
    if case == "not_finite":
        return [
            Command(
                line=f"trueup capture -o target-overflow --task overflow_check -- {run}",
                purpose=reason(Curves.NAME_FIRST_OVERFLOW),
            )
        ]
    if case in ("loss_diffusion", "spike", "passing_difference") and step is not None and at is not None:
        return _around(at, run, _captured_before(judgement, target, at), step)
    if case in (
        "first_step_gap",
        "second_step_gap",
        "local_norm",
        "does_not_converge",
        "plateau_too_high",
        "steady_offset",
        "late_difference",
        "learning_rates_differ",
        "fluctuation",
    ):
        found = []
        if target.trace is None or case != "first_step_gap":
            found.append(
                Command(
                    line=f"trueup capture -o target --preset diagnose -- {run}",
                    purpose=reason(Curves.CAPTURE_FIRST_STEPS),
                )
            )
        found.append(
            Command(
                line="trueup diagnose target reference -o diagnosis",
                purpose=reason(Curves.DIAGNOSE_STEPS),
            )
        )
        if case == "first_step_gap" and at is not None:
            line = f"trueup capture -o target-batch-{at} --only-batch {at} --learning-rate 0 -- {run}"
            found.insert(0, Command(line=line, purpose=reason(Curves.ONE_BATCH, step=step)))
        if case == "fluctuation":
            line = f"trueup capture -o target-frozen --learning-rate 0 -- {run}"
            found.insert(0, Command(line=line, purpose=reason(Curves.FROZEN_RUN)))
        return found
    if case == "aligned" and at is not None:
        line = f"trueup capture -o target-batch-{at} --only-batch {at} --learning-rate 0 -- {run}"
        return [Command(line=line, purpose=reason(Curves.ONE_BATCH, step=step))]
    if case == "aligned" and judgement.outcome is Outcome.UNDECIDED and not proved:
        line = f"trueup capture -o target --preset diagnose --deterministic -- {run}"
        purpose = reason(Curves.PROVE_CONDITIONS)
        return [Command(line=line, purpose=purpose)]
    return []


def _captured_before(judgement: CurveJudgement, target: Curve, at: int) -> int:
    """The first step to capture: the one before the onset may be, but no more than some steps back."""
    found = [one.number("earliest") for one in judgement.reasons if one.code is Curves.ONSET]
    first = captured_step(target, int(found[0])) if found and found[0] is not None else at
    return max(0, min(at, max(first, at - _STEPS_BEFORE)) - 1)


def _around(at: int, run: str, begin: int, step: int) -> list[Command]:
    steps = f"{begin}-{at + 1}"
    return [
        Command(
            line=f"trueup capture -o target-step-{at} --preset diagnose --steps {steps} -- {run}",
            purpose=reason(Curves.CAPTURE_AROUND, step=step),
        ),
        Command(
            line=f"trueup diagnose target-step-{at} reference-step-{at} -o diagnosis",
            purpose=reason(Curves.DIAGNOSE_STEPS),
        ),
        Command(
            line=f"trueup capture -o target-without-{at} --skip-batch {at} -- {run}",
            purpose=reason(Curves.WITHOUT_BATCH),
        ),
    ]


def _program_of(curve: Curve) -> str:
    if curve.trace is None:
        return _PLACEHOLDER
    try:
        words = Trace(curve.trace).manifest.get("command")
    except TraceError:
        return _PLACEHOLDER
    return shlex.join(words) if words else _PLACEHOLDER
