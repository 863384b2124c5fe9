"""Averaged copies of the weights that a program keeps beside the model it trains: moving averages, target
networks, momentum encoders.

Found by one look through the objects that Python's collector knows, where a model first trains in a captured
step (and once more after that step, for copies made meanwhile; again where tensors of a copy were replaced by
others): a module of the model's own class (``AveragedModel`` holds one), a dict with the names of the
trainable parameters, a list in their order, of the same shapes, in other memory, in no optimizer.
Content tells a copy of the weights from moments and sums of gradients, which have the same names and shapes.

A copy is recorded once the program has written it: a frozen reference model, or a checkpoint kept in memory,
stays what it was. One in a finer dtype that always rounds to the weights is what an optimizer of the
program's own updates: master weights, recorded as such, and no average. Nothing here keeps a tensor of the
program alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from trueup.adapters.torch.weight_copies import (
    Copy,
    address,
    copies_of,
    hold_the_same,
    is_waiting,
    models_of,
    moved_of,
    objects_of,
    version_of,
)

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine

_MOST_COPIES = 4


class Averages:
    """Copies of the models of one process that the program averages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._copies: list[Copy] = []
        self._facts: dict[str, dict[str, object]] = {}
        """slot -> what is known of a copy"""
        self._masters: dict[str, dict[str, object]] = {}
        """the same of master weights"""
        self._searched: dict[str, int] = {}
        """names of models -> searches made for copies of them"""

    # -- when ------------------------------------------

    def root(self, module: nn.Module) -> None:
        """A training forward of a root begins in a captured step."""
        name = self._engine.root_name(module)
        if self._is_on() and name not in self._searched:
            self._searched[name] = 1
            self._search(module, name, self._engine.sink.recorder.step)

    def record(self) -> None:
        """The program may have averaged: record every copy that it has written in the step under way."""
        step = self._engine.sink.recorder.step
        if not self._is_on() or not self._searched or step < 0:
            return
        self._record_news(step)
        if self._look_again(step):
            self._record_news(step)

    def _record_news(self, step: int) -> None:
        for copy in self._copies:
            if copy.is_alive and self._is_news(copy, step):
                self._record(copy, step)

    def evaluates(self) -> None:
        """A model is called without gradients: after an update, what it is averaged to may soon be gone."""
        try:
            if self._engine.sink.over:
                self.record()
        except Exception as error:
            self._engine.failed("averaged weights", error)

    def forget(self, *tensors: Tensor) -> None:
        """These are about to swap their contents, which torch refuses for what has a weak reference."""
        known = set(map(id, tensors))
        self._copies = [
            copy
            for copy in self._copies
            if copy.container is None or not known & {id(one.copy()) for one in copy.tensors}
        ]

    def facts(self) -> list[dict[str, object]] | None:
        """Of each copy that was recorded, be it there still or not; None where none was looked for."""
        return list(self._facts.values()) if self._searched else None

    def master_facts(self) -> list[dict[str, object]]:
        """Of each copy that was recorded as master weights."""
        return list(self._masters.values())

    def _is_on(self) -> bool:
        engine = self._engine
        return engine.sink.active and engine.optimizer_on and engine.scope is None and engine.forcing is None

    # -- what was written ------------------------------------------

    def _is_news(self, copy: Copy, step: int) -> bool:
        """Whether the program wrote a copy since it was last noted."""
        tensors = [(one, one.copy()) for one in copy.tensors]
        if any(is_waiting(tensor) for _, tensor in tensors if tensor is not None):
            return False
        written = [one for one, held in tensors if held is not None and version_of(held) != one.version]
        moved = written
        if not written or all(tensor is None or tensor.is_cpu for _, tensor in tensors):
            moved = moved_of(
                copy.tensors
            )  # a device is asked, and waited for, only where versions say nothing
        if not written and not moved:
            return copy.slot is not None and copy.recorded != step  # it stayed
        for one in moved:
            one.is_written = True
        return copy.is_average or self._tells(copy, step)

    def _tells(self, copy: Copy, step: int) -> bool:
        """Whether a copy that was written is one to record: not where it was made anew of the weights."""
        if copy.slot is not None and not copy.is_master:
            return True
        pairs = [(one.own(), one.copy()) for one in copy.tensors if not one.is_buffer]
        follows, finer = hold_the_same(pairs), _is_finer(pairs)
        if copy.is_master and not follows:  # it only began as the weights
            copy.slot = None
        copy.is_master = follows and finer
        if follows and not finer and copy.container is not None:  # made anew of the weights
            for one in copy.tensors:
                one.note()
            copy.held = step + 1
            return False
        return True

    def _record(self, copy: Copy, step: int) -> None:
        engine = self._engine
        if copy.slot is None:
            copy.slot = f"master.{len(self._masters)}" if copy.is_master else f"copy.{len(self._facts)}"
        copy.recorded = step
        engine.summariser.forget()  # averages are often written through ``data``, which counts no version
        for one in copy.tensors:
            tensor, own = one.copy(), one.own()
            if tensor is None or own is None:
                continue
            call = engine.add_call("average", one.fqn, copy.kind, "train", None)
            engine.tensor(call, "average", copy.slot, tensor)
            engine.tensor(call, "average", "weight", own)
            one.note()
        if copy.is_master:
            self._masters[copy.slot] = {"slot": copy.slot, "kind": copy.kind, "held": copy.held}
            return
        self._facts[copy.slot] = {
            "slot": copy.slot,
            "kind": copy.kind,
            "held": copy.held,
            "constant": [one.fqn for one in copy.tensors if not one.is_written],
        }

    # -- where they are ------------------------------------------

    def _look_again(self, step: int) -> bool:
        """After the step in which a model was first seen, unless a copy was recorded, and where the tensors
        of a copy are gone: a program that makes new ones at each update holds those in the same dict or list.
        Whether it looked."""
        gone = [copy for copy in self._copies if not copy.is_alive]
        self._copies = [copy for copy in self._copies if copy.is_alive]
        looked = False
        for root, name in [(one(), name) for one, name in self._engine.roots if name in self._searched]:
            lost: dict[int | None, Copy] = {
                copy.container: copy for copy in gone if copy.root == name and copy.container is not None
            }
            known = any(
                copy.root == name and copy.slot is not None and not copy.is_master for copy in self._copies
            )
            if root is not None and (lost or (self._searched[name] == 1 and not known)):
                self._searched[name] += 1
                looked = True
                for found in self._search(root, name, step + 1):
                    if (before := lost.get(found.container)) is not None:
                        found.take_over(before)
        return looked

    def _search(self, root: nn.Module, name: str, step: int) -> list[Copy]:
        """Copies of a model that are not known yet; each is noted as it is."""
        known = {address(one.copy()) for copy in self._copies for one in copy.tensors}
        found: list[Copy] = []
        models = [model for model in models_of(self._engine, root, name) if model.trainable]
        objects = objects_of(models, self._roots())
        for model in models:
            copies = copies_of(model, name, objects, known)
            known |= {address(one.copy()) for copy in copies for one in copy.tensors}
            found += copies
        found = found[: max(0, _MOST_COPIES - len(self._copies))]
        for copy in found:
            pairs = [(one.own(), one.copy()) for one in copy.tensors if not one.is_buffer]
            copy.held = step if hold_the_same(pairs) else None
            for one in copy.tensors:
                one.note()
        self._copies += found
        return found

    def _roots(self) -> list[nn.Module]:
        return [root for one, _ in self._engine.roots if (root := one()) is not None]


def _is_finer(pairs: Sequence[tuple[Tensor | None, Tensor | None]]) -> bool:
    """Whether a copy keeps more digits of some weight than the model does."""
    return any(
        own is not None and other is not None and own.dtype.itemsize < other.dtype.itemsize
        for own, other in pairs
    )
