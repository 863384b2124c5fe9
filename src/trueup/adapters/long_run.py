"""Changes of a run that a person asks for, without an edit of the program: the learning rate, the batches.

The learning rate is held while an optimizer steps and given back afterwards, so that schedules, which compute
the next rate from the last, go their own way unharmed. How, each framework says.
"""

from __future__ import annotations

from typing import ClassVar, Generic

from trueup.adapters.base import ModuleT, TensorT
from trueup.adapters.batches import BatchChange
from trueup.adapters.engine import BaseEngine


class BaseLongRun(Generic[ModuleT, TensorT]):
    """What is changed in this process, and how often it was."""

    BATCHES_FROM: ClassVar[str]
    """what gives batches that can be changed"""
    OPTIMIZERS: ClassVar[str]
    """those whose rate can be held"""
    WHY_NOT: ClassVar[str]
    """said of an optimizer whose rate cannot be held"""

    def __init__(self, engine: BaseEngine[ModuleT, TensorT]) -> None:
        options = engine.sink.options
        only, skip = options.only_batch, options.skip_batch
        self.engine = engine
        self.rate: float | None = options.learning_rate
        self.batches = (
            None
            if only is None and skip is None
            else BatchChange(
                only=only, skip=skip, is_evaluating=self._is_evaluating, source=self.BATCHES_FROM
            )
        )
        self.num_updates = 0
        self.without_rate: str | None = None
        """class of an optimizer whose rate cannot be held"""

    def _is_evaluating(self) -> bool:
        """Whether the batch that is asked for is for evaluation."""
        raise NotImplementedError

    @property
    def wanted(self) -> bool:
        """Anything is to be changed."""
        return self.rate is not None or self.batches is not None

    def facts(self) -> dict[str, object]:
        """What was changed so far."""
        changed: dict[str, object] = {}
        if self.rate is not None:
            changed["learning_rate"] = {"rate": self.rate, "updates": self.num_updates}
        return {**changed, **(self.batches.facts() if self.batches is not None else {})}

    def unkept(self) -> list[str]:
        """What was asked for and did not happen, once the run is over."""
        found = []
        if self.rate is not None and not self.num_updates:
            found.append(f"--learning-rate had no effect: {self.OPTIMIZERS}")
        if self.without_rate is not None:
            found.append(f"--learning-rate had no effect on {self.without_rate}{self.WHY_NOT}")
        return found + (self.batches.unkept() if self.batches is not None else [])
