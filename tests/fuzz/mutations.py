"""Damages the content of a file the way disks, editors and interrupted copies do, and worse."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_KEY = re.compile(rb'"?[A-Za-z_][\w.]*"?\s*[:=]')
_NUMBERS = [
    *(b"NaN", b"nan", b".nan", b"Infinity", b"-Infinity", b"inf", b".inf", b"1e400", b"-1e400", b"1e308"),
    *(b"-1", b"0", b"-0.0", b"99999999999999999999", b"18446744073709551615", b"-9223372036854775809"),
    *(b"1" + b"0" * 400, b"0x7f", b"1_000", b"4294967296", b"1e-400", b"0.5"),
]
_VALUES = [b"null", b"true", b'"text"', b"[]", b"{}", b"[1, [2]]", b"-3", b'""', b"~", b"1e400"]
_BYTES = [b"\xff\xfe", b"\x00", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f", b"\x80\x04\x95"]
_SIZES = [0, 1, 7, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]
_WRONG: list[object] = [
    None,
    True,
    -1,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    "text",
    "",
    [],
    {},
    [None],
    [[1]],
]
_LONGEST_FOR_PATTERNS = 300_000


def _truncated(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _flipped_at_an_end(data: bytes, chance: random.Random) -> bytes:
    """Headers and footers: where sizes and offsets are."""
    reach = min(len(data), 96)
    if not reach:
        return data
    at = chance.randrange(reach)
    at = at if chance.random() < 0.5 else len(data) - 1 - at
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _other_number(data: bytes, chance: random.Random) -> bytes:
    return _replaced(data, _NUMBER, chance, chance.choice(_NUMBERS))


def _other_value(data: bytes, chance: random.Random) -> bytes:
    pattern = re.compile(rb"(?<=[:=,\[]) ?[^,:=\[\]{}\n]+")
    return _replaced(data, pattern, chance, b" " + chance.choice(_VALUES))


def _without_key(data: bytes, chance: random.Random) -> bytes:
    return _replaced(data, _KEY, chance, chance.choice((b"", b'"other":', b"other: ")))


def _replaced(data: bytes, pattern: re.Pattern[bytes], chance: random.Random, by: bytes) -> bytes:
    found = [] if len(data) > _LONGEST_FOR_PATTERNS else list(pattern.finditer(data))
    if not found:
        return _flipped(data, chance)
    at = chance.choice(found)
    return data[: at.start()] + by + data[at.end() :]


def _twice(data: bytes, chance: random.Random) -> bytes:
    """A part of it repeated: a line, a key, a block."""
    begin = chance.randrange(len(data) + 1)
    end = min(len(data), begin + chance.choice((1, 8, 64, 4096)))
    return data[:end] + data[begin:end] + data[end:]


def _without_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return _truncated(data, chance)
    at = chance.randrange(len(lines))
    del lines[at : at + chance.choice((1, 1, 3))]
    return b"".join(lines)


def _not_text(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_BYTES) + data[at:]


def _other_size(data: bytes, chance: random.Random) -> bytes:
    """A binary size that the file only claims."""
    width = chance.choice((4, 8))
    if len(data) < width:
        return data
    near = chance.random() < 0.6
    at = chance.randrange(min(len(data) - width + 1, 64 if near else len(data)))
    number = chance.choice(_SIZES) % (1 << (8 * width))
    return data[:at] + number.to_bytes(width, chance.choice(("little", "big"))) + data[at + width :]


def _other_json(data: bytes, chance: random.Random) -> bytes:
    """One node of a JSON document (or of one line of JSON lines) deleted, renamed, or of another type."""
    lines = data.splitlines(keepends=True)
    number = chance.randrange(len(lines)) if lines else 0
    for text, put in ((data, None), (lines[number] if lines else b"", number)):
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            continue
        places = _places([tree])
        if len(places) > 1:
            holder, key = chance.choice(places[1:])
            if isinstance(holder, dict) and chance.random() < 0.4:
                holder.pop(key)
            else:
                holder[key] = chance.choice(_WRONG)
        changed = json.dumps(tree).encode()
        return changed if put is None else b"".join((*lines[:put], changed, b"\n", *lines[put + 1 :]))
    return _other_value(data, chance)


def _places(tree: object) -> list[tuple[dict[object, object] | list[object], object]]:
    found, open_nodes = [], [tree]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, (dict, list)):
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                found.append((node, key))
                open_nodes.append(child)
    return found


def _empty(data: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"", b"\n", b"{}", b"[]", b"null", b"0", data[:8], data * 2))


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    *(_truncated, _flipped, _flipped_at_an_end, _other_number, _other_number, _other_value, _without_key),
    *(_twice, _without_lines, _not_text, _other_size, _other_json, _other_json, _empty),
]


def mutated(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """``data`` after one to three mutations, and their names."""
    names = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        mutation = chance.choice(MUTATIONS)
        names.append(mutation.__name__.strip("_"))
        data = mutation(data, chance)
    return data, "+".join(names)
