"""The labels a loss was made with: the integers passed to the API call that the loss comes from; and its
targets, where these are no whole numbers (soft labels, values to predict).

MindSpore's graph keeps no tensors that can be read. What was passed to a loss function is remembered by the
number of the node that its result came from; which of those calls the loss was made with, the graph says.
"""

from __future__ import annotations

import json

from mindspore import Tensor

MAX_NODES = 256
"""nodes behind the loss that are looked at; a loss without labels is given up on after that"""

_LABELS = {
    "cross_entropy": ("input.1", "input.target"),
    "nll_loss": ("input.1", "input.target"),
    "SoftmaxCrossEntropyWithLogits": ("input.1",),
    "SparseSoftmaxCrossEntropyWithLogits": ("input.1",),
    "gather": ("input.2", "input.index"),
    "gather_d": ("input.2", "input.index"),
    "gather_elements": ("input.2", "input.index"),
}
"""last part of a function's name -> slots of its labels"""
_WITH_TARGETS = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"),
)
_TARGETS = dict.fromkeys(_WITH_TARGETS, ("input.1", "input.target"))
"""last part of a function's name -> slots of its targets that are no labels"""
_ARGUMENTS = ("ignore_index", "reduction")


class Labels:
    """What loss functions of the step under way were given."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Tensor, dict[str, object], object]] = {}
        """the node is kept too: another one may get the number of one that is gone"""

    def note(
        self,
        name: str,
        tensors: list[tuple[str, Tensor]],
        arguments: str | None,
        results: list[tuple[str, Tensor]],
    ) -> None:
        """An API call has returned."""
        slots = [of.get(name.rpartition(".")[2], ()) for of in (_LABELS, _TARGETS)]
        if not any(slots) or not results or results[0][1]._grad_node is None:
            return
        labels = (t for where, t in tensors if where in slots[0] and not t.is_floating_point())
        targets = (t for where, t in tensors if where in slots[1] and t.is_floating_point())
        label = next(labels, None)
        label = next(targets, None) if label is None else label
        if label is not None:
            given = {
                key.removeprefix("input."): value for key, value in json.loads(arguments or "{}").items()
            }
            loss_arguments = {key: given[key] for key in _ARGUMENTS if key in given}
            node = results[0][1]._grad_node
            self._of[node._unique_id()] = label, loss_arguments, node

    def behind(self, loss: Tensor) -> tuple[list[tuple[str, Tensor]], dict[str, object]]:
        """Slots and tensors of the labels and targets behind ``loss``, and what the loss was told besides."""
        used: set[int] = set()
        loss_arguments: dict[str, object] = {}
        seen: set[int] = set()
        todo = [loss._grad_node]
        while todo and len(seen) < MAX_NODES and self._of:
            node = todo.pop(0)
            if node is None or node._unique_id() in seen:
                continue
            seen.add(node._unique_id())
            known = self._of.get(node._unique_id())
            if known is not None:
                used.add(node._unique_id())
                loss_arguments |= known[1]
                continue
            todo += [after for after, _ in node.next_functions]
        found = [
            tensor for node, (tensor, _, _) in self._of.items() if node in used
        ]  # as the program used them
        given = {
            "labels": [one for one in found if not one.is_floating_point()],
            "targets": [one for one in found if one.is_floating_point() and _is_given(one)],
        }
        return [
            (word if at == 0 else f"{word}.{at}", tensor)
            for word, tensors in given.items()
            for at, tensor in enumerate(tensors)
        ], loss_arguments

    def forget(self) -> None:
        """The step is over."""
        self._of.clear()


def _is_given(tensor: Tensor) -> bool:
    """Whether nothing computed it that a gradient goes through."""
    node = tensor._grad_node
    return node is None or not node.next_functions
