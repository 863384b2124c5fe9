"""What goes wrong when gradients become new weights."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import nn

from bugzoo.entries import plant
from bugzoo.optimizers import adamw, warm_up
from bugzoo.trainer import Trainer


@plant("setting")
def setting(trainer: Trainer, name: str, value: Any) -> None:
    """Another setting of AdamW, such as the other framework's default."""
    for group in trainer.optimizer.param_groups:
        group[name] = tuple(value) if isinstance(value, list) else value


@plant("weight-decay")
def weight_decay(trainer: Trainer) -> None:
    """The two common defaults of AdamW."""
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.01


@plant("decay-on-all")
def decay_on_all(trainer: Trainer) -> None:
    """Norms and biases decay too."""
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = trainer.base.weight_decay


@plant("no-bias-correction")
def no_bias_correction(trainer: Trainer) -> None:
    """Moments are used as they are: an Adam that counts its first step as its ten thousandth."""

    class Uncorrected(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                beta1, beta2 = group["betas"]
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._one(weight, group, beta1, beta2)

        @torch.no_grad()
        def _one(self, weight: nn.Parameter, group: dict[str, Any], beta1: float, beta2: float) -> None:
            state = self.state[weight]
            if not state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            state["exp_avg"].lerp_(weight.grad, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
            weight.addcdiv_(
                state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-group["lr"]
            )

    groups = [dict(group) for group in trainer.optimizer.param_groups]
    trainer.set_optimizer(Uncorrected([{k: g[k] for k in ("params", "weight_decay")} for g in groups]))
    for group, before in zip(trainer.optimizer.param_groups, groups, strict=True):
        group.update({name: before[name] for name in ("lr", "betas", "eps", "initial_lr")})
    trainer.schedule = warm_up(trainer.optimizer, trainer.base)


@plant("decay-in-gradient")
def decay_in_gradient(trainer: Trainer) -> None:
    """Adam with weight decay added to the gradient."""
    adam = torch.optim.Adam(
        [{k: g[k] for k in ("params", "weight_decay")} for g in trainer.optimizer.param_groups],
        lr=trainer.base.learning_rate,
        betas=(0.9, 0.95),
    )
    trainer.set_optimizer(adam)


@plant("stale-weights")
def stale_weights(trainer: Trainer) -> None:
    """The optimizer was made before the weights were copied elsewhere: it updates what nobody uses."""
    forgotten = copy.deepcopy(trainer.model)
    trainer.set_optimizer(adamw(list(forgotten.named_parameters()), trainer.base))


@plant("weight-left-out")
def weight_left_out(trainer: Trainer, path: str) -> None:
    """One weight is in no group."""
    weight = trainer.model.get_parameter(path)
    for group in trainer.optimizer.param_groups:
        group["params"] = [given for given in group["params"] if given is not weight]


@plant("no-master-weights")
def no_master_weights(trainer: Trainer) -> None:
    """The copies are rounded as well: what is smaller than a rounding error is lost."""
    masters = trainer.masters
    assert masters is not None
    copy_out = masters.copy_out

    def rounded() -> None:
        copy_out()
        with torch.no_grad():
            for name, weight in masters.working.items():
                masters.copies[name].copy_(weight.float())

    masters.copy_out = rounded  # type: ignore[method-assign]


@plant("stale-working-copy")
def stale_working_copy(trainer: Trainer) -> None:
    """Working weights are copied out before the update: always one step old."""
    masters = trainer.masters
    assert masters is not None
    update, copy_out = trainer.update, masters.copy_out
    masters.copy_out = lambda: None  # type: ignore[method-assign]

    def late() -> None:
        copy_out()
        update()

    trainer.update = late  # type: ignore[method-assign]


@plant("learning-rate-off-by-one")
def learning_rate_off_by_one(trainer: Trainer) -> None:
    """The schedule advances before the first update."""
    trainer.schedule.step()


@plant("learning-rate-constant")
def learning_rate_constant(trainer: Trainer) -> None:
    """Nobody advances the schedule."""
    trainer.advance = lambda: None  # type: ignore[method-assign]


@plant("step-per-microbatch")
def step_per_microbatch(trainer: Trainer) -> None:
    """The optimizer steps after every microbatch."""
    accumulate = trainer.accumulate
    done = []

    def step_too() -> None:
        accumulate()
        done.append(None)
        if len(done) % trainer.base.accumulation:
            trainer.clip()
            trainer.optimizer.step()

    trainer.accumulate = step_too  # type: ignore[method-assign]


@plant("moments-bf16")
def moments_bf16(trainer: Trainer) -> None:
    """Moments are kept in bfloat16."""
    update = trainer.update

    def rounded() -> None:
        update()
        for state in trainer.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].to(torch.bfloat16))

    trainer.update = rounded  # type: ignore[method-assign]


@plant("update-skipped")
def update_skipped(trainer: Trainer) -> None:
    """The scaler takes the first step for an overflow."""
    update, scaler, seen = trainer.update, trainer.scaler, []
    assert scaler is not None

    def skipping() -> None:
        seen.append(None)
        if len(seen) > 1:
            update()
        else:
            scaler.update()

    trainer.update = skipping  # type: ignore[method-assign]


@plant("weights-not-shared")
def weights_not_shared(trainer: Trainer) -> None:
    """Embedding and head are tied in the configuration, not in the model."""
    model: Any = trainer.model
    with contextlib.suppress(AttributeError):
        model.head.weight = nn.Parameter(model.emb.weight.detach().clone())
    trainer.set_optimizer(adamw(trainer.named_weights(), trainer.base))
