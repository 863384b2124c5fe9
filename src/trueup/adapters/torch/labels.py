"""The labels a loss was made with, read from the autograd graph right behind it: nothing is wrapped.

What is gathered by an index is the logarithm of a probability where the index is a label: it is gathered from
a log-softmax, or from logits whose log-sum-exp is taken too. Other indices pick experts, or the last token.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from trueup.types.trace import reduction_word

MAX_NODES = 256
"""nodes behind the loss that are looked at; a loss without labels is given up on after that"""

_LABELS = {"NllLossBackward0": "target", "NllLoss2DBackward0": "target", "GatherBackward0": "index"}
"""node -> what it keeps of its labels"""
_TARGETS = (
    *("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "SoftMarginLossBackward0"),
    *("BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0", "KlDivBackward0"),
)
"""nodes that keep a target that is no label: numbers to come near to, or probabilities"""
_WEIGHTS = {
    **dict.fromkeys(("NllLossBackward0", "NllLoss2DBackward0", "BinaryCrossEntropyBackward0"), ("weight",)),
    "BinaryCrossEntropyWithLogitsBackward0": ("weight", "pos_weight"),
}
"""node -> what it keeps of the weights of classes or elements"""
_LOGARITHMS = ("LogSoftmaxBackward0", "LogSigmoidBackward0", "LogBackward0")
"""what makes logarithms of probabilities: what these are multiplied with, one by one, is soft labels"""
_GATHERED = "GatherBackward0"
_NUMBERS = ("ignore_index", "reduction")
_CTC = "CtcLossBackward0"
"""keeps numbers of it; its labels are rows of letters, which no position has"""
_LENGTHS = ("input_lengths", "target_lengths")
MOST_LENGTHS = 64
"""rows of a batch whose lengths are kept"""
_MOST_VIEWS = 8
"""casts and views between a log-softmax and what gathers from it"""
_VIEWS = (
    *("Alias", "Clone", "Copy", "ToCopy", "Expand", "Flatten", "Index", "Narrow", "Permute", "Reshape"),
    *(
        "Select",
        "Slice",
        "Split",
        "Squeeze",
        "TBackward",
        "Transpose",
        "Unbind",
        "Unsqueeze",
        "UnsafeView",
        "View",
    ),
)
"""beginnings of their nodes' names"""


def labels_of(loss: Tensor) -> tuple[list[tuple[str, Tensor]], dict[str, object]]:
    """Slots and tensors of the labels, loss masks, targets (of a regression, or soft labels) and weights
    behind ``loss``, and what the loss was told besides.

    Labels that the program keeps packed (offloaded, checkpointed) are left alone: unpacking them would run
    its code.
    """
    labels: list[tuple[Node, Tensor]] = []
    factors: list[tuple[Node, Tensor]] = []
    targets: list[tuple[Node, Tensor]] = []
    weights: dict[str, Tensor] = {}
    loss_arguments: dict[str, object] = {}
    seen: set[Node] = set()
    todo = [loss.grad_fn]
    while todo and len(seen) < MAX_NODES:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        weights |= _weights_of(node)
        found = _picks_by(node)
        if found is not None:
            labels.append((node, found))
            loss_arguments |= _numbers_of(node)
            if node.name() != _GATHERED:
                continue
        if node.name() == _CTC:
            loss_arguments |= _of_ctc(node)
            continue
        factors += [(node, one) for one in _multiplied(node)]
        targets += [(node, one) for one in _comes_near(node)]
        todo += [after for after, _ in node.next_functions]
    ordered = _of_probabilities(labels, seen)
    sizes = {label.numel() for label in ordered}
    masks = [t for t in _given(factors) if t.numel() in sizes and t.numel() > 1]
    of_masks = {id(one) for one in masks}
    soft = [t for t in _given(targets) if t.is_floating_point() and id(t) not in of_masks]
    slots = [*_slots("labels", ordered), *_slots("mask", masks), *_slots("targets", soft)]
    return [*slots, *weights.items()], loss_arguments


def _weights_of(node: Node) -> dict[str, Tensor]:
    """By their names in PyTorch; of a loss of several terms those of the first."""
    kept = {name: _kept(node, name) for name in _WEIGHTS.get(node.name(), ())}
    return {name: one for name, one in kept.items() if one is not None and not one.requires_grad}


def _multiplied(node: Node) -> list[Tensor]:
    """Factors that a product keeps."""
    names = ("self", "other") if node.name() == "MulBackward0" else ()
    return [kept for name in names if (kept := _kept(node, name)) is not None]


def _comes_near(node: Node) -> list[Tensor]:
    """What a loss comes near to: its target, or soft labels that weigh logarithms of probabilities."""
    target = _kept(node, "target") if node.name() in _TARGETS else None
    return [
        *(() if target is None else (target,)),
        *(one for one in _multiplied(node) if _weighs_logarithms(node, one)),
    ]


def _given(tensors: list[tuple[Node, Tensor]]) -> list[Tensor]:
    """Those that no gradient goes to, in the order in which the program used them."""
    return [t for _, t in sorted(tensors, key=lambda one: one[0]._sequence_nr()) if not t.requires_grad]


def _weighs_logarithms(node: Node, factor: Tensor) -> bool:
    """Whether a product is of ``factor`` and as many logarithms of probabilities."""
    logarithm = next((one for one in _made_of(node) if one.name() in _LOGARITHMS), None)
    if logarithm is None:
        return False
    made = _kept(logarithm, "result" if "Softmax" in logarithm.name() else "self")
    return made is not None and made.numel() == factor.numel()


def _numbers_of(node: Node) -> dict[str, int | str | None]:
    return {name: _saved_number(node, name) for name in _NUMBERS if hasattr(node, f"_saved_{name}")}


def _of_ctc(node: Node) -> dict[str, object]:
    """What a connectionist temporal classification was told."""
    numbers: dict[str, object] = {
        "blank": int(getattr(node, "_saved_blank", 0)),
        "zero_infinity": bool(getattr(node, "_saved_zero_infinity", False)),
    }
    return numbers | {name: _lengths(node, name) for name in _LENGTHS}


def _lengths(node: Node, name: str) -> list[int] | None:
    """Of each row, where these are kept as numbers."""
    kept = getattr(node, f"_saved_{name}", None)
    return [int(one) for one in kept[:MOST_LENGTHS]] if isinstance(kept, tuple) else None


def _picks_by(node: Node) -> Tensor | None:
    """The whole numbers that a node picks elements by."""
    kept = _LABELS.get(node.name())
    found = None if kept is None else _kept(node, kept)
    return None if found is None or found.is_floating_point() else found


def _of_probabilities(labels: list[tuple[Node, Tensor]], seen: set[Node]) -> list[Tensor]:
    """Those that pick logarithms of probabilities; of a loss in chunks as the program used them, not as the
    graph is walked."""
    normalised = {one for node in seen if node.name().startswith("Logsumexp") for one in _made_of(node)}
    ordered = sorted(labels, key=lambda one: one[0]._sequence_nr())
    return [
        label
        for node, label in ordered
        if node.name() != _GATHERED
        or any("LogSoftmax" in one.name() for one in _made_of(node))
        or not normalised.isdisjoint(_made_of(node))
    ]


def _made_of(node: Node) -> list[Node]:
    """What its tensor was made of: the node before it, and what that is a cast or view of. A sigmoid of
    logits whose log-sum-exp is taken too is a router's score, and its index no label."""
    found: list[Node] = []
    while len(found) < _MOST_VIEWS:
        before = next((one for one, _ in node.next_functions if one is not None), None)
        if before is None:
            break
        found.append(before)
        if not before.name().startswith(_VIEWS):
            break
        node = before
    return found


def _kept(node: Node, name: str) -> Tensor | None:
    """What the node keeps under a name, if it is kept as it is."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    return raw.data if isinstance(raw.data, Tensor) else None


def _saved_number(node: Node, name: str) -> int | str | None:
    """A number the node keeps; how it sums in a word."""
    number = _signed(node, name)
    return reduction_word(number) if name == "reduction" else number


def _signed(node: Node, name: str) -> int:
    """A whole number a node keeps; it gives negative ones as if they had no sign."""
    number = int(getattr(node, f"_saved_{name}"))
    return number - (1 << 64) if number >= 1 << 63 else number


def _slots(word: str, tensors: list[Tensor]) -> list[tuple[str, Tensor]]:
    return [(word if number == 0 else f"{word}.{number}", tensor) for number, tensor in enumerate(tensors)]
