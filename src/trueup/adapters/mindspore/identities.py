"""Numbers that tell the objects of a program apart for good: keys of MindSpore's compiled code.

MindSpore finds what it compiled for a parameter, for the object of a jitted method or for a traced function
by ``id``. That is an address: what is made where another object lay gets the code compiled for that one, and
may be computed with that one's values. What lies where hangs on all that is made and freed, by capture too
(docs/decisions/0050).
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterable

from mindspore import Parameter
from mindspore.graph import api as graph_api
from mindspore.graph import jit_trace

ADDRESS_LIMIT = (
    "an object passed to compiled code lies where another lay that is gone: MindSpore by itself takes the "
    "code compiled for that one and may compute with its values; here it was compiled anew: keep such objects"
)
_AGAIN = 1 << 64
"""beyond all addresses: what is added to the number of the object that lay there before"""


class Identities:
    """``id``, but of an object that lies where another lay it is a number that no other object has."""

    def __init__(self, compiled: Iterable[str]) -> None:
        """``compiled``: keys with plain addresses in them."""
        self._owners: dict[int, tuple[weakref.ref[object], int]] = {}
        self._addresses: dict[str, str] = {}
        """numbers that are no addresses -> the address"""
        self._addressed: set[str] = set()
        """keys with such numbers, as MindSpore itself would have made them"""
        self._before = "\n".join(compiled)
        """keys from before capture: whose addresses they hold is known only of what is still there; those of
        several parameters stand as one number"""
        found = {int(number) for number in re.findall(r"\d+", self._before)}
        for value in gc.get_objects() if found else ():
            if id(value) in found or issubclass(type(value), Parameter):
                self._own(value, id(value))

    def __call__(self, value: object) -> int:
        """The number of an object, its address unless that was another's; the same as long as it lives."""
        address = id(value)
        owner = self._owners.get(address)
        if owner is None:
            return self._own(value, address + _AGAIN * (str(address) in self._before))
        return owner[1] if owner[0]() is value else self._own(value, owner[1] + _AGAIN)

    def _own(self, value: object, number: int) -> int:
        address = id(value)
        try:
            self._owners[address] = weakref.ref(value), number
        except TypeError:  # None, a number, a class with slots: whether it is still there is not known
            return address
        if number != address:
            self._addresses[str(number)] = str(address)
        return number

    def was_others(self, key: object) -> bool:
        """Whether MindSpore itself would have taken for it what it compiled for an object that is gone."""
        if not self._addresses or not isinstance(key, str):
            return False
        addressed = key
        for number, address in self._addresses.items():
            addressed = addressed.replace(number, address)
        if addressed == key:
            return False
        found = addressed in graph_api.ms_compile_cache or addressed in self._addressed
        self._addressed.add(addressed)
        return found


def install() -> Identities:
    """From now on MindSpore's keys hold numbers instead of addresses, for as long as the process is there."""
    numbers = Identities(graph_api.ms_compile_cache)
    for module in (graph_api, jit_trace):
        vars(module)["id"] = numbers
    return numbers
