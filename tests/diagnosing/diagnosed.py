"""Faults of the small GPT: captured as ``--preset diagnose`` does, replayed in this process, diagnosed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bugzoo.models.gpt import GPT, batch
from torch import Tensor

import trueup
from tests.diagnosing.runs import SMALL, train
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.gradients import VALUES, build_gradient_plan
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.replay import build_plan
from trueup.reporting.diagnosis import diagnosis_report
from trueup.reporting.render import write
from trueup.store import Trace
from trueup.types.reason import Reason

Program = dict[str, Any]


def capture(folder: Path, program: Program, **options: Any) -> Trace:
    """One run as the preset captures it."""
    options = {"level": "L0", "steps": "0,1", "store_values_of": VALUES, **options}
    with trueup.Tracer(folder, **options):
        train(**program)
    trace = Trace(folder)
    assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]
    return trace


def diagnosed(
    folder: Path, reference: Trace, program: Program, *, replay: bool = False, gradients: bool = False
) -> Diagnosis:
    """Capture, replay as asked, diagnose, and draw the page."""
    target = capture(folder / "target", program)
    again = given = None
    if replay:
        again = folder / "replay"
        plan = build_plan(target, reference, again / "plan", level="L0", inside=(), steps={0})
        capture(again, program, steps="0", replay=plan.folder)
    if gradients:
        given = folder / "given"
        made = build_gradient_plan(reference, target, folder / "gradients")
        capture(given, program, gradients_from=made.folder)
    found = diagnose(folder / "target", reference.path, output=folder / "out", replay=again, gradients=given)
    write(diagnosis_report(found), folder / "diagnosis.html")
    return found


# -- programs ------------------------------------------


def adam(**settings: Any) -> Callable[[GPT], torch.optim.Optimizer]:
    """AdamW as the reference has it, but for what is given; ``everywhere`` decays biases and norms too."""
    everywhere = settings.pop("everywhere", False)
    leave = settings.pop("leave", None)
    kind = settings.pop("kind", torch.optim.AdamW)

    def make(model: GPT) -> torch.optim.Optimizer:
        own = [(n, p) for n, p in model.named_parameters() if n != leave]
        groups = [
            {"params": [p for _, p in own if p.ndim > 1], "weight_decay": settings.get("weight_decay", 0.1)},
            {"params": [p for _, p in own if p.ndim <= 1], "weight_decay": 0.1 if everywhere else 0.0},
        ]
        return kind(groups, **{"lr": 1e-3, **{k: v for k, v in settings.items() if k != "weight_decay"}})

    return make


def clipped(limit: float) -> Callable[[GPT, int], Any]:
    """Clip to a norm before the step."""
    return lambda model, step: torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


REFERENCE: Program = {"optimizer": adam(), "before_step": clipped(0.5)}


class NoBiasCorrection(torch.optim.Optimizer):
    """AdamW without the correction of its moments."""

    def __init__(self, groups: Any, **defaults: Any) -> None:
        super().__init__(groups, {"betas": (0.9, 0.999), "eps": 1e-8, **defaults})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"step": torch.tensor(0.0), "exp_avg": p * 0, "exp_avg_sq": p * 0}
                state["step"] += 1
                state["exp_avg"].lerp_(p.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


def ordinary(step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step, as ``train`` makes it itself."""
    return batch(SMALL, step=10 * step, size=2)


def shifted_twice(step: int) -> tuple[Tensor, Tensor]:
    """Labels two positions ahead."""
    ids, labels = ordinary(step)
    return ids, torch.cat([labels[:, 1:], labels[:, :1]], 1)


def a_step_ahead(step: int) -> tuple[Tensor, Tensor]:
    """The batch of the next step."""
    return ordinary(step + 1)


def transposed(model: GPT) -> None:
    """A square weight converted for another layout."""
    weight = model.layers[1].attn.proj.weight
    weight.data = weight.data.T.contiguous()


def initialised_wider(model: GPT) -> None:
    """One weight from another distribution."""
    torch.nn.init.normal_(model.layers[0].mlp.up.weight, std=0.3)


def norm_eps(model: GPT) -> None:
    """Another framework's default."""
    model.layers[1].ln1.eps = 1e-3


def attention_scale(model: GPT) -> None:
    """A rounded constant."""
    model.layers[1].attn.scale *= 1.01


def gradient_scale(model: GPT) -> None:
    """One gradient counted a little too much."""
    model.layers[1].mlp.up.weight.register_hook(lambda gradient: gradient * 1.01)


def frozen(model: GPT) -> None:
    """One weight that does not learn."""
    model.get_parameter("layers.1.mlp.down.weight").requires_grad_(False)


def two_at_once(model: GPT) -> None:
    """In the forward, and in the backward of another layer."""
    model.layers[0].attn.scale *= 1.02
    model.layers[1].mlp.up.weight.register_hook(lambda gradient: gradient * 1.05)


def put_back(model: GPT) -> torch.optim.Optimizer:
    """An optimizer after whose step somebody puts the head's old weight back."""
    updater = adam()(model)
    step, head = updater.step, model.head.weight

    def stepped() -> None:
        before = head.detach().clone()
        step()
        head.data.copy_(before)

    updater.step = stepped  # type: ignore[method-assign, assignment]
    return updater


class Masters:
    """AdamW over float32 copies of a bfloat16 model, which are copied out after the update, or before it."""

    def __init__(self, model: GPT, *, late: bool) -> None:
        self.pairs = [(p, torch.nn.Parameter(p.detach().float())) for p in model.parameters()]
        self.inner = torch.optim.AdamW([copy for _, copy in self.pairs], 1e-2)
        self.late = late

    def step(self) -> None:
        """One update."""
        for p, copy in self.pairs:
            copy.grad = None if p.grad is None else p.grad.float()
        if self.late:
            self.copy_out()
        self.inner.step()
        if not self.late:
            self.copy_out()

    def copy_out(self) -> None:
        """The model's weights are the copies, rounded."""
        for p, copy in self.pairs:
            p.data.copy_(copy.data)

    def zero_grad(self) -> None:
        """No gradients are left."""
        for p, _ in self.pairs:
            p.grad = None


def mixed(*, late: bool = False) -> Program:
    """A bfloat16 model with master weights."""
    return {"change": lambda model: model.bfloat16(), "optimizer": lambda model: Masters(model, late=late)}


def facts_of(reason: Reason) -> str:
    """The code, numbers and places of a reason and its parts, in one line to search."""
    own = [reason.code.value, *(f"{name} {value}" for name, value in reason.facts.items())]
    return " · ".join([*own, *map(facts_of, reason.parts)])
