"""The exact commands a judgement leads to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from trueup.curves.curve import Curve
from trueup.curves.judgement import Judgement
from trueup.errors import TraceError
from trueup.store import Trace
from trueup.types.status import Outcome

_PLACEHOLDER = "python train.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command and what it is for."""

    line: str
    purpose: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"line": self.line, "purpose": self.purpose}


def captured_step(curve: Curve, step: int) -> int:
    """The number trueup gives a step that the log calls ``step``: it counts from 0, most logs from 1."""
    return step if curve.trace is not None or curve.span[0] == 0 else max(0, step - 1)


def commands(
    judgement: Judgement, target: Curve, *, program: str | None = None, proved: bool = False
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
                purpose="name the first call that makes NaN or infinity",
            )
        ]
    if case in ("loss_diffusion",) and at is not None:
        return _around(at, run)
    if case in ("first_step_gap", "steady_offset", "late_difference", "learning_rates_differ", "fluctuation"):
        found = []
        if target.trace is None or case != "first_step_gap":
            found.append(
                Command(
                    line=f"trueup capture -o target --preset diagnose -- {run}",
                    purpose="the first two steps of the target; the reference's likewise",
                )
            )
        found.append(
            Command(
                line="trueup diagnose target reference -o diagnosis",
                purpose="where the first steps differ, and why",
            )
        )
        if case == "first_step_gap" and at:
            line = f"trueup capture -o target-batch-{at} --only-batch {at} --learning-rate 0 -- {run}"
            found.insert(0, Command(line=line, purpose=f"the batch of step {step} alone, weights untouched"))
        if case == "fluctuation":
            line = f"trueup capture -o target-frozen --learning-rate 0 -- {run}"
            found.insert(
                0, Command(line=line, purpose="forward and backward step by step, weights untouched")
            )
        return found
    if case == "aligned" and at is not None:
        line = f"trueup capture -o target-batch-{at} --only-batch {at} --learning-rate 0 -- {run}"
        return [Command(line=line, purpose=f"the batch of step {step} alone, weights untouched")]
    if case == "aligned" and judgement.outcome is Outcome.UNDECIDED and not proved:
        line = f"trueup capture -o target --preset diagnose --deterministic -- {run}"
        purpose = (
            "its first two steps, and the reference's likewise: given with --target-trace target "
            "--reference-trace reference they prove weights, hyperparameters and batches"
        )
        return [Command(line=line, purpose=purpose)]
    return []


def _around(at: int, run: str) -> list[Command]:
    steps = f"{max(0, at - 1)}-{at + 1}"
    return [
        Command(
            line=f"trueup capture -o target-step-{at} --preset diagnose --steps {steps} -- {run}",
            purpose="the steps around the onset; trueup counts from 0. The reference's likewise",
        ),
        Command(
            line=f"trueup diagnose target-step-{at} reference-step-{at} -o diagnosis",
            purpose="where these steps differ, and why",
        ),
        Command(
            line=f"trueup capture -o target-without-{at} --skip-batch {at} -- {run}",
            purpose="the same training without that batch: was it the data?",
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
