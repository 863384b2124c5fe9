"""Whether a program sums the gradients of a step's microbatches in buffers of its own."""

from __future__ import annotations

from trueup.store.view import StepView


def sums_elsewhere(view: StepView) -> bool:
    """Whether each microbatch's gradient is taken away before the next one comes: what backward leaves in
    ``.grad`` has the bits of that microbatch's own gradient in every microbatch, and no optimizer of the
    framework is given any. No record then holds the sum of the step. False where digests are not known."""
    return view.once(sums_elsewhere, lambda: _taken_away(view))


def _taken_away(view: StepView) -> bool:
    own: dict[tuple[int, int], int | None] = {}
    left: dict[tuple[int, int], int | None] = {}
    for record, (call, phase, slot) in enumerate(zip(view.record_call, view.phase, view.slot, strict=True)):
        if phase != "param_grad":
            continue
        if slot == "clipped":
            return False
        place = call, view.record_microbatch[record]
        if slot == "local":
            if place in own:  # several uses arrive one by one, and no single one is the microbatch's
                return False
            own[place] = view.digest(record)
        elif slot == "accumulated":
            left[place] = view.digest(record)
    microbatches = {number for _, number in left}
    if len(microbatches) < 2 or not left.keys() <= own.keys():
        return False
    return all(digest is not None and digest == own[place] for place, digest in left.items())
