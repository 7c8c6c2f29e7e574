"""Bounds on a message before it is parsed: a few megabytes have room for millions of empty submessages, each an object.

The scan follows the wire format (tag, length) along the message's descriptor. It only looks into messages that have messages
in them, and stops at the limit, so its time is bounded whatever the bytes are.
"""

from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor

from safe_psrl_server.errors import InvalidArgumentError

MAX_FIELDS: Final = 20_000  # of all messages that have messages in them; the numbers of a table are one field
UNCHECKED_BYTES: Final = 2 * MAX_FIELDS  # a field takes two bytes at least: a shorter message is within the limit
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
GROUPS: Final = (3, 4)  # their begin and end, which have no value


def check_fields(data: bytes, descriptor: Descriptor) -> None:
    """Raise `InvalidArgumentError` if `data` has more than MAX_FIELDS; malformed data is left to the parser."""
    if len(data) <= UNCHECKED_BYTES:
        return
    found, waiting = 0, [(0, len(data), descriptor)]
    while waiting:
        place, end, message = waiting.pop()
        inner = _inner(message)
        while place < end:
            tag, place = _varint(data, place, end)
            number, kind = tag >> 3, tag & 7
            found += 1
            if found > MAX_FIELDS:
                field = message.fields_by_number.get(number)
                name = "request" if field is None else field.name
                raise InvalidArgumentError(name, f"the request has more than {MAX_FIELDS} fields")
            if kind == LENGTH:
                length, place = _varint(data, place, end)
                if number in inner:
                    waiting.append((place, min(place + length, end), inner[number]))
                place += length
            elif kind == VARINT:
                _, place = _varint(data, place, end)
            elif kind in {FIXED64, FIXED32}:
                place += 8 if kind == FIXED64 else 4
            elif kind not in GROUPS:
                return  # no such type: the parser rejects it


@cache
def _inner(message: Descriptor) -> dict[int, Descriptor]:
    """The types of its fields that are messages with messages in them, by field number."""
    types = {field.number: field.message_type for field in message.fields if field.message_type is not None}
    return {number: kind for number, kind in types.items() if any(field.message_type is not None for field in kind.fields)}


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """The number at `place`, and where it ends; 0 at the end of the message if it is cut off."""
    if place < end and data[place] < 0x80:  # most numbers are a byte
        return data[place], place + 1
    number, shift = 0, 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
    return 0, end
