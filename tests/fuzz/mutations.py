"""Bytes that are nearly a message: flipped, cut, repeated, with unknown fields and wrong lengths."""

import random
from collections.abc import Callable, Sequence
from typing import Final

UNKNOWN_FIELDS: Final = (
    b"\xc2\x3e\x03abc",  # number 1000, three bytes
    b"\xc0\x3e\x7f",  # a number
    b"\xc1\x3e" + bytes(8),  # 64 bits
    b"\xc3\x3e\xc4\x3e",  # a group
    b"\xc3\x3e",  # a group without end
    b"\xc4\x3e",  # an end without group
    b"\x00\x00",  # number 0, which there is not
    b"\x07",  # a type that there is not
    b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a tag that is too long
    b"\x0a\xff\xff\xff\xff\x0f",  # the first field, four gigabytes
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # the first field, minus one byte
)
DEEP: Final = b"\x12\x7f" * 200


def mutated(data: bytes, chosen: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """`data` after one to four mutations; `others` are what may be spliced in."""
    for _ in range(chosen.choice((1, 1, 1, 2, 3, 4))):
        data = chosen.choice(WAYS)(data, chosen, others)
    return data


def _flip(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = chosen.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chosen.randrange(8)]) + data[at + 1 :]


def _set(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = chosen.randrange(len(data))
    return data[:at] + bytes([chosen.choice((0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256)))]) + data[at + 1 :]


def _cut(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    return data[: chosen.randrange(len(data) + 1)]


def _remove(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    first, second = sorted(chosen.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[second:]


def _insert(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    at = chosen.randrange(len(data) + 1)
    return data[:at] + chosen.randbytes(chosen.randrange(1, 9)) + data[at:]


def _repeat(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    first, second = sorted(chosen.randrange(len(data) + 1) for _ in range(2))
    return data[:second] + data[first:second] * chosen.choice((1, 1, 2, 20)) + data[second:]


def _double(data: bytes, _chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    """Every field twice: the last one counts, and messages are merged."""
    return data + data if len(data) < 100_000 else data


def _know_nothing(data: bytes, chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    at = chosen.choice((0, len(data), chosen.randrange(len(data) + 1)))
    return data[:at] + chosen.choice(UNKNOWN_FIELDS) + data[at:]


def _nest(data: bytes, _chosen: random.Random, _others: Sequence[bytes]) -> bytes:
    return data + DEEP


def _splice(data: bytes, chosen: random.Random, others: Sequence[bytes]) -> bytes:
    if not others:
        return data
    other = chosen.choice(others)
    return data[: chosen.randrange(len(data) + 1)] + other[chosen.randrange(len(other) + 1) :]


WAYS: Final[tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...]] = (
    *(_flip, _flip, _set, _set, _cut, _remove, _insert, _repeat, _double, _know_nothing, _nest, _splice, _splice),
)
