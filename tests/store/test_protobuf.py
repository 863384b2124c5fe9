"""Protobuf's wire format, field by field."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.store.protobuf import (
    Damaged,
    field_bytes,
    fields,
    integer_field,
    signed,
    unsigned,
    unsigned_values,
)

WORDS = st.integers(0, 2**64 - 1)


@given(numbers=st.lists(WORDS, max_size=8))
def test_packed_numbers(numbers: list[int]) -> None:
    packed = memoryview(b"".join(integer_field(1, number)[1:] for number in numbers))
    assert list(unsigned_values(packed, 0, len(packed))) == numbers


@given(number=st.integers(1, 2**29 - 1), value=WORDS, content=st.binary(max_size=300))
def test_what_is_written_is_read_back(number: int, value: int, content: bytes) -> None:
    message = memoryview(integer_field(number, value) + field_bytes(number, content))
    first, second = fields(message, 0, len(message))
    assert (first[0], unsigned(message, *first[1:])) == (number, value)
    assert (second[0], bytes(message[slice(*second[1:])])) == (number, content)


@given(message=st.binary(max_size=40))
def test_any_bytes_are_fields_or_refused(message: bytes) -> None:
    with contextlib.suppress(Damaged):
        for number, begin, end in fields(memoryview(message), 0, len(message)):
            assert number > 0
            assert begin <= end <= len(message)


@pytest.mark.parametrize("message", ["08", "0880", "12", "120568", "0b", "00", "08" + "ff" * 11])
def test_what_is_cut_off_or_not_a_message_is_refused(message: str) -> None:
    data = memoryview(bytes.fromhex(message))
    with pytest.raises(Damaged):
        list(fields(data, 0, len(data)))


def test_an_empty_number_is_refused() -> None:
    with pytest.raises(Damaged):
        unsigned(memoryview(b""), 0, 0)


def test_negative_numbers_are_twos_complement() -> None:
    assert [signed(word) for word in (2**64 - 1, 2**63, 2**63 - 1)] == [-1, -(2**63), 2**63 - 1]
