"""Changes of a run with torch (``adapters.long_run``). At rate 0 weight decay is held at 0 with the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueup.adapters.long_run import BaseLongRun
from trueup.adapters.torch import batches
from trueup.adapters.torch.quiet import quiet

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

_current: LongRun | None = None
_installed: list[bool] = []


class LongRun(BaseLongRun[torch.nn.Module, Tensor]):
    """What is changed in this process, and how often it was."""

    BATCHES_FROM = "torch DataLoader"
    OPTIMIZERS = "no optimizer of torch.optim stepped"
    WHY_NOT = ", which has no rate of its own"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._own: dict[int, list[dict[str, object]]] = {}
        """optimizer under way -> settings of its groups, to be given back"""

    def _is_evaluating(self) -> bool:
        """Whether gradients are off, or the program has set its model, where it is known, to evaluation."""
        if not torch.is_grad_enabled():
            return True
        known = [model for model in (reference() for reference, _ in self.engine.roots) if model is not None]
        return bool(known) and not any(model.training for model in known)

    def forward(self, *, training: bool) -> None:
        """A forward of a root begins: the batch last given was for training, or for evaluation."""
        if self.batches is not None:
            self.batches.used(training=training)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer is about to step: its norm is noted, its rate held."""
        if self.rate is None or id(optimizer) in self._own:
            return
        self._note_norm(optimizer)
        self._own[id(optimizer)] = [
            {key: group[key] for key in ("lr", "weight_decay") if key in group}
            for group in optimizer.param_groups
        ]
        for group in optimizer.param_groups:
            if group.get("lr") is None:
                self.without_rate = type(optimizer).__name__
                continue
            group["lr"] = _like(group["lr"], self.rate)
            if self.rate == 0 and "weight_decay" in group:
                group["weight_decay"] = _like(group["weight_decay"], 0.0)
        self.num_updates += 1
        rates = [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
        self.engine.sink.scalar("learning_rate", rates)

    def groups_of_program(self, optimizer: torch.optim.Optimizer) -> list[dict[str, object]]:
        """The groups of an optimizer with the settings the program gave them."""
        own = self._own.get(id(optimizer)) or [{} for _ in optimizer.param_groups]
        return [{**group, **kept} for group, kept in zip(optimizer.param_groups, own, strict=True)]

    def release(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has stepped: its settings are the program's again."""
        for group, own in zip(optimizer.param_groups, self._own.pop(id(optimizer), []), strict=False):
            group.update(own)

    def _note_norm(self, optimizer: torch.optim.Optimizer) -> None:
        """L2 norm over the gradients the optimizer receives, for steps whose program reports none."""
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        local = [getattr(g, "_local_tensor", g) for g in found if g.layout is torch.strided]
        if local:
            norms = [torch.linalg.vector_norm(g.detach(), dtype=torch.float32) for g in local]
            total = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
            self.engine.sink.scalar("_received_norms", total, per_microbatch=True)


def begin(engine: Engine) -> LongRun | None:
    """Put the hooks in place that run before all others; None where nothing is to be changed."""
    global _current
    run = LongRun(engine)
    _current = run if run.wanted else None
    if _current is not None and not _installed:
        register_optimizer_step_pre_hook(_before_step)
    if run.batches is not None:
        batches.install(lambda: None if _current is None else _current.batches)
    return _current


def end() -> None:
    """Nothing is changed any more."""
    global _current
    _current = None


def complete() -> None:
    """Put the hook in place that runs after all others."""
    if _current is not None and not _installed:
        _installed.append(True)
        register_optimizer_step_post_hook(_after_step)


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    if _current is not None:
        try:
            with torch.no_grad(), quiet():
                _current.hold(optimizer)
        except Exception as error:
            _current.engine.failed("learning rate", error)


def _after_step(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    if _current is not None:
        try:
            _current.release(optimizer)
        except Exception as error:
            _current.engine.failed("learning rate", error)


def _like(own: Any, value: float) -> Any:
    """The value as the optimizer keeps it: a capturable one holds its rate in a tensor."""
    return torch.full_like(own, value) if isinstance(own, Tensor) else value
