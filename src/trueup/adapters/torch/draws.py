"""Which modules draw random numbers, and where the generators stand as these begin."""

from __future__ import annotations

import zlib
from contextlib import suppress

import torch

from trueup.adapters.torch.engine import Engine, ModuleFrame

_PLACE, _KEPT = slice(8, 40), slice(-24, None)
"""bytes of the state of a Mersenne Twister: its place and the first numbers it goes on from (behind the seed
it was given), and the normal number that it keeps for the next call"""


def standing() -> int | None:
    """A number that two runs share where their generators would draw the same numbers: of that of the CPU,
    and of the accelerator's current device where it is in use. None where one cannot be read: under a
    transform, or of a backend whose generators do not say where they stand."""
    with suppress(Exception):
        state = torch.default_generator.get_state().numpy()
        number = zlib.crc32(state[_KEPT].tobytes(), zlib.crc32(state[_PLACE].tobytes()))
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None:
            backend = getattr(torch, accelerator.type)
            if backend.is_initialized():
                generator = backend.default_generators[backend.current_device()]
                number = zlib.crc32(b"%d %d" % (generator.initial_seed(), generator.get_offset()), number)
        return number
    return None


def note(engine: Engine, frame: ModuleFrame) -> None:
    """Keep where the generators stood as a call began that drew; of outermost calls in any case, so that one
    that drew nothing is not taken for one that nobody looked at."""
    if frame.stood is None or (now := standing()) is None:
        return
    moved = now != frame.stood
    if moved or len(frame.path) == 1:
        microbatch = frame.recorder.calls.cell(frame.call, "microbatch")
        entry = [frame.name, microbatch, frame.stood, moved]
        engine.sink.scalar("draws", entry, per_microbatch=True)
