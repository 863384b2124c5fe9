"""The scale of the loss, which keeps small float16 gradients from vanishing."""

from __future__ import annotations

from trueup_gpt.config import TrainingConfig


class LossScale:
    """Static, dynamic or none (1). A step whose gradients are not finite is skipped, unless there is none.

    Dynamic: divided by ``loss_scale_factor`` after such a step, at least 1, multiplied by it after
    ``loss_scale_window`` finite steps in a row.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.dynamic = config.loss_scale_value is not None
        self.used = self.dynamic or config.loss_scale is not None
        self.value = float(config.loss_scale_value or config.loss_scale or 1.0)
        self._factor, self._window = config.loss_scale_factor, config.loss_scale_window
        self._finite = 0

    def update(self, *, finite: bool) -> None:
        """After a step."""
        if not self.dynamic:
            return
        self._finite = self._finite + 1 if finite else 0
        if not finite:
            self.value = max(1.0, self.value / self._factor)
        elif self._finite >= self._window:
            self.value, self._finite = self.value * self._factor, 0

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"value": self.value, "finite": self._finite}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """From a checkpoint; a static scale stays that of the configuration."""
        if self.dynamic:
            self.value, self._finite = state["value"], int(state["finite"])
