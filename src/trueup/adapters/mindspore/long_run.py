"""Changes of a run that a person asks for, without an edit of the program: the learning rate, the batches.

The learning rate is held while an optimizer updates and given back afterwards, so that the program's
schedule goes its own way. Batches come from ``mindspore.dataset``; a program that reads its data otherwise
gets its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mindspore import Parameter, Tensor, nn

from trueup.adapters.batches import ChangedBatches
from trueup.adapters.long_run import BaseLongRun

if TYPE_CHECKING:
    from trueup.adapters.mindspore.engine import Engine

_current: LongRun | None = None
_installed: list[bool] = []


class LongRun(BaseLongRun[nn.Cell, Tensor]):
    """What is changed in this process, and how often it was."""

    engine: Engine
    BATCHES_FROM = "mindspore.dataset iterator"
    OPTIMIZERS = "no optimizer with a rate to hold updated anything"
    WHY_NOT = ": a schedule inside it sets its rate"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._own: list[tuple[Parameter, Tensor]] = []
        """rates of the optimizer under way, to be given back"""

    def _is_evaluating(self) -> bool:
        """Whether the program has set its model to evaluation: cells that were never told anything train."""
        known = [cell for cell in (reference() for reference, _ in self.engine.roots) if cell is not None]
        return bool(known) and self._has_trained and not any(cell.training for cell in known)

    _has_trained = False

    def forward(self, *, training: bool, cell: nn.Cell) -> None:
        """A forward of a root begins: the batch last given was for training, or for evaluation."""
        self._has_trained |= bool(cell.training)
        if self.batches is not None:
            self.batches.used(training=training)

    def hold(self, optimizer: nn.Optimizer, gradients: object) -> None:
        """The optimizer is about to update: the norm it is given is noted, its rate held."""
        if self.rate is None or self._own:
            return
        listed = (
            [g for g in gradients if isinstance(g, Tensor)] if isinstance(gradients, (tuple, list)) else []
        )
        norm = self.engine.summariser.norm(listed) if listed else None
        if norm is not None:
            self.engine.sink.scalar("_received_norms", norm, per_microbatch=True)
        rates = _rates(optimizer)
        if not rates:
            self.without_rate = type(optimizer).__name__
            return
        for rate in rates:
            self._own.append((rate, Tensor(rate.asnumpy().copy())))
            rate.set_data(Tensor(self.rate, rate.dtype))
        self.num_updates += 1
        self.engine.sink.scalar("learning_rate", [self.rate] * len(rates))

    def release(self) -> None:
        """The optimizer has updated: its settings are the program's again."""
        for rate, own in self._own:
            rate.set_data(own)
        self._own = []


def _rates(optimizer: nn.Optimizer) -> list[Parameter]:
    """The parameters an optimizer keeps its rates in; none where a schedule computes them."""
    if hasattr(optimizer, "param_groups"):
        found = [group["lr"] for group in optimizer.param_groups]
    else:
        rate = getattr(optimizer, "learning_rate", None)
        found = list(rate) if isinstance(rate, (tuple, list)) else [rate]
        if getattr(optimizer, "dynamic_lr", False):
            return []
    return (
        list({id(one): one for one in found}.values()) if all(isinstance(o, Parameter) for o in found) else []
    )


def begin(engine: Engine) -> LongRun | None:
    """What is to be changed under the session's options; None where that is nothing."""
    global _current
    run = LongRun(engine)
    _current = run if run.wanted else None
    if run.batches is not None:
        _watch_datasets()
    return _current


def end() -> None:
    """Nothing is changed any more."""
    global _current
    _current = None


def _watch_datasets() -> None:
    """Wrap the iterators of every dataset, once a process."""
    if _installed:
        return
    _installed.append(True)
    from mindspore.dataset import Dataset

    for name in ("create_tuple_iterator", "create_dict_iterator", "__iter__"):
        original = getattr(Dataset, name)
        setattr(Dataset, name, _changed(original))


def _changed(original: Callable[..., Iterator[object]]) -> Callable[..., object]:
    @functools.wraps(original)
    def iterate(self: object, *args: object, **kwargs: object) -> object:
        inner = original(self, *args, **kwargs)
        change = None if _current is None else _current.batches
        if change is None or isinstance(inner, ChangedBatches):
            return inner
        return ChangedBatches(change, self, inner)

    return iterate
