"""An object at the address of one that is gone gets no code that was compiled for that one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import pytest
from mindspore import Parameter, Tensor

from trueup.adapters.mindspore.identities import ADDRESS_LIMIT, Identities
from trueup.store import Trace

pytestmark = pytest.mark.mindspore
PROGRAM = Path(__file__).with_name("programs") / "addresses.py"


class Thing:
    """Known by its address, and of a size that few objects have."""

    __slots__ = ("__weakref__", *(f"unused_{i}" for i in range(41)))


class Slotted:
    """Nothing tells when it goes."""

    __slots__ = ()


def some() -> list[Thing]:
    """Things with others between them, which stay and keep the memory for their like."""
    made = [Thing() for _ in range(256)]
    _staying.extend(made[1::2])
    return made[::2]


_staying: list[Thing] = []


def made_at(addresses: set[int]) -> Thing:
    kept = []
    for _ in range(10_000):
        kept.append(Thing())
        if id(kept[-1]) in addresses:
            return kept[-1]
    raise AssertionError("no address came again")


def test_compiled_code_is_not_that_of_an_object_that_is_gone(tmp_path: Path) -> None:
    """MindSpore itself takes it: where it no longer does, ``identities`` has no use any more."""
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "run"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["without"] == {"parameter": 8.0, "object": 8.0, "function": 8.0}
    assert said["with"] == {"parameter": 1.0, "object": 1.0, "function": 1.0}
    facts = Trace(tmp_path / "run").rank_facts(0)
    assert ADDRESS_LIMIT in facts["limits"]
    assert facts["num_failures"] == 0, facts["failures"]


def test_the_number_is_the_address_and_stays() -> None:
    number = Identities(())
    things = [Thing() for _ in range(3)]
    assert [number(thing) for thing in things * 2] == [id(thing) for thing in things * 2]
    slotted = Slotted()
    assert [number(one) for one in (None, slotted, None)] == [id(None), id(slotted), id(None)]


def test_numbers_of_objects_that_follow_one_another_at_an_address_are_all_different() -> None:
    number = Identities(())
    things = some()
    addresses = {id(thing) for thing in things}
    seen = [number(thing) for thing in things]
    del things
    for _ in range(5):
        thing = made_at(addresses)
        addresses = {id(thing)}
        assert number(thing) == number(thing) != id(thing)
        seen.append(number(thing))
        del thing
    assert len(set(seen)) == len(seen)


def test_an_object_that_was_there_before_capture_keeps_its_address_and_one_after_it_does_not() -> None:
    staying, going = some(), some()
    there, gone = ({id(one) for one in things} for things in (staying, going))
    compiled = [f"f.1795.0.{id(one)}" for one in staying + going]
    del going
    number = Identities(compiled)
    assert {number(one) for one in staying} == there
    assert number(made_at(gone)) not in gone
    del staying
    assert number(made_at(there)) not in there


def test_parameters_that_stand_as_one_number_in_a_key_keep_their_addresses() -> None:
    first, second = (Parameter(Tensor(1.0, ms.float32), name=name) for name in "ab")
    number = Identities([f"f.1795.0.{id(first)}{id(second)}"])
    assert (number(first), number(second)) == (id(first), id(second))


def test_only_a_key_that_was_compiled_for_another_is_told() -> None:
    number = Identities(())
    things = some()
    addresses = {id(thing) for thing in things}
    assert not any(number.was_others(f"f.{number(thing)}") for thing in things)
    del things
    thing = made_at(addresses)
    addresses = {id(thing)}
    assert not number.was_others(f"f.{number(thing)}")  # MindSpore has compiled nothing for the address
    del thing
    thing = made_at(addresses)
    assert number.was_others(f"f.{number(thing)}")
    assert not number.was_others(f"g.{number(thing)}")
