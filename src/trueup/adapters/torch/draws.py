"""Which modules draw random numbers, and where the generators stand as these begin."""

from __future__ import annotations

import zlib

import torch

from trueup.adapters.torch.engine import Engine, ModuleFrame

_PLACE, _KEPT = slice(8, 40), slice(-24, None)
"""bytes of the state of a Mersenne Twister: its place and the first numbers it goes on from (behind the seed
it was given), and the normal number that it keeps for the next call"""
_ACCELERATORS = ("cuda", "npu", "xpu")


def standing() -> int | None:
    """A number that two runs share where their generators would draw the same numbers: of that of the CPU,
    and of the current device's where one was used; None where a transform leaves no numbers to read."""
    try:
        state = torch.default_generator.get_state().numpy()
    except RuntimeError:
        return None
    number = zlib.crc32(state[_KEPT].tobytes(), zlib.crc32(state[_PLACE].tobytes()))
    for name in _ACCELERATORS:
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            generator = device.default_generators[device.current_device()]
            number = zlib.crc32(b"%d %d" % (generator.initial_seed(), generator.get_offset()), number)
    return number


def note(engine: Engine, frame: ModuleFrame) -> None:
    """Keep where the generators stood as a call began that drew; of outermost calls in any case, so that one
    that drew nothing is not taken for one that nobody looked at."""
    if frame.stood is None:
        return
    moved = standing() != frame.stood
    if moved or len(frame.path) == 1:
        microbatch = frame.recorder.calls.cell(frame.call, "microbatch")
        entry = [frame.name, microbatch, frame.stood, moved]
        engine.sink.scalar("draws", entry, per_microbatch=True)
