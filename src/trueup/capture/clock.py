"""When a training step begins and ends, told from what the program does.

A step ends when a training forward of a root begins after an optimizer step, a gradient scaler's step or
update, or cleared gradients, or when the program ends. Forwards before that are microbatches: a new one
begins with the first training forward after a backward.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepClock:
    """Step and microbatch numbers of one process."""

    step: int = 0
    microbatch: int = 0
    manual: bool = False
    """steps end only by ``end``"""
    seen_forward: bool = False
    over: bool = False
    """what may end a step has happened"""
    _backward_since_forward: bool = False

    def training_forward(self) -> bool:
        """A training forward of a root begins. Returns whether the step before it is thereby over."""
        if self.over and self.seen_forward and not self.manual:
            return True
        if self._backward_since_forward:
            self.microbatch += 1
            self._backward_since_forward = False
        if not self.seen_forward:  # gradients cleared before the first forward end nothing
            self.over = False
        self.seen_forward = True
        return False

    def backward(self) -> None:
        """A backward ended, or a forward or backward was left by an exception: the next forward is another
        one."""
        self._backward_since_forward = True

    def may_end(self) -> None:
        """An optimizer stepped, a scaler stepped or was updated, or gradients were cleared."""
        self.over = True

    def end(self) -> None:
        """Go on to the next step."""
        self.step += 1
        self.microbatch = 0
        self.seen_forward = self.over = self._backward_since_forward = False
