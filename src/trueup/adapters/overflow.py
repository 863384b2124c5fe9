"""Task ``overflow_check``: statistics only, until a call makes a value that is not finite; then its values.

What is found counts when it does harm: a loss, gradient or weight of the step is not finite, or the step
broke off. A mask's infinities, and gradients of a step that the gradient scaler skips, are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from trueup.adapters.base import ModuleT, Slotted, TensorT
from trueup.numerics.not_finite import Caller, Count, How, Origins

if TYPE_CHECKING:
    from trueup.adapters.engine import BaseEngine

_MAX_A_STEP = 5
"""origins noted in one step: the first is what counts"""
_DECISIVE = ("loss", "param_grad", "optimizer", "param")


class OverflowWatch(Generic[ModuleT, TensorT]):
    """Looks at every record of the step under way."""

    def __init__(self, engine: BaseEngine[ModuleT, TensorT]) -> None:
        self._engine = engine
        self._room = min(_MAX_A_STEP, engine.sink.options.overflow_nums or _MAX_A_STEP)
        self.pending: int | None = None
        """the call whose value has just been found: its other tensors are captured too"""
        self.end_step()

    def end_step(self) -> None:
        """The step is over."""
        self._origins = Origins(self._caller)
        self._found: list[dict[str, object]] = []
        self._harmed: set[str] = set()
        """phases of the step with a value that is not finite, of those in which it does harm"""
        self._updated = False
        self.pending = None

    def found(self, *, skipped: bool) -> list[dict[str, object]]:
        """What was made in the step under way and did harm; ``skipped`` by the gradient scaler."""
        harmless = self._updated and not self._harmed
        if skipped:
            harmless = self._harmed <= {"param_grad"}
        return [] if harmless else self._found

    def seen(self, call: int, phase: str, slot: str, row: int | None, tensor: TensorT) -> None:
        """One more record; its values are kept if they are the first that are not finite."""
        self._updated |= phase == "optimizer" or (phase == "param_grad" and slot == "accumulated")
        if row is None or not self._inexact(tensor):
            return
        count = self._count(row, tensor)
        if count.finite and count.lowest > -6e4:
            return
        how = self._origins.see(call, phase, slot, count)
        if not count.finite and phase in _DECISIVE:
            self._harmed.add(phase)
        if how is None or len(self._found) >= self._room:
            return
        self._found.append(self._described(call, phase, slot, count, how))
        self.pending = call
        self._engine.summariser.keep_values(row, tensor, phase, slot)

    def keep(self, call: int, phase: str, *sides: Slotted[TensorT]) -> None:
        """Keep the values of a call's tensors; ``sides`` are its inputs and outputs by slot, outputs last.

        An input that the call has overwritten is left out.
        """
        self.pending = None
        written = {self._address(t) for _, t in sides[-1]} if phase == "forward" else set()
        rows = {slot: row for of, at, slot, _, row, *_ in self._engine.sink.recorder.records
                if of == call and at == phase}  # fmt: skip
        for number, side in enumerate(sides):
            for slot, tensor in side:
                row = rows.get(slot)
                if row is not None and (number == len(sides) - 1 or self._address(tensor) not in written):
                    self._engine.summariser.keep_values(row, tensor, phase, slot)

    def _inexact(self, tensor: TensorT) -> bool:
        """Whether the tensor's dtype has values that are not finite."""
        raise NotImplementedError

    def _address(self, tensor: TensorT) -> int:
        """Where the values lie."""
        raise NotImplementedError

    def _count(self, row: int, tensor: TensorT) -> Count:
        """How many values are not finite, and the lowest."""
        raise NotImplementedError

    def _counted(self, row: int) -> Count:
        """From the row, where it is written already."""
        view = self._engine.sink.recorder.view(row)
        lowest = float(view["minimum"])
        return Count(
            num_nan=int(view["num_nan"]),
            num_posinf=int(view["num_posinf"]),
            num_neginf=int(view["num_neginf"]),
            lowest=lowest if lowest == lowest else 0.0,
        )

    def _caller(self, call: int) -> Caller:
        row = self._engine.sink.recorder.calls[call]
        return Caller(parent=row.parent, arguments=row.arguments, recompute=row.mode == "recompute")

    def _described(self, call: int, phase: str, slot: str, count: Count, how: How) -> dict[str, object]:
        recorder = self._engine.sink.recorder
        made = recorder.calls[call]
        where = made.name or "(root)"
        if made.kind in ("api", "collective") and made.parent is not None:
            where = f"{recorder.calls[made.parent].name or '(root)'} · {where}"
        frames = recorder.stacks.get(-1 if made.stack is None else made.stack) or []
        gradient = "gradient of " if phase == "backward" else ""
        return {
            "site": f"{where}{f'[{made.ordinal}]' if made.ordinal else ''} · {gradient}{slot}",
            "call": call,
            "phase": phase,
            "slot": slot,
            "microbatch": made.microbatch,
            "how": how.value,
            "num_nan": count.num_nan,
            "num_posinf": count.num_posinf,
            "num_neginf": count.num_neginf,
            "source": frames[0] if frames else None,
        }
