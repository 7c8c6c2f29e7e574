"""Limits a message before it is parsed: a few megabytes can hold millions of empty submessages, each of which becomes an
object, or a text that takes long to search and to quote.

The scan follows the wire format (tag, length) along the message's descriptor. It only looks into messages that have messages
in them, and stops at the limit, so its time is bounded whatever the bytes are. A long scan lets other calls proceed in between.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from safe_psrl_server.errors import InvalidArgumentError

MAX_FIELDS: Final = 20_000  # counted in messages that can contain messages; the numbers of a table are one field
MAX_TEXT_BYTES: Final = 256 * 1024  # of one field; most fields have a lower limit, checked later
FIELDS_AT_ONCE: Final = 200  # scanned before other calls may proceed: some tenths of a millisecond
UNCHECKED_BYTES: Final = 2 * MAX_FIELDS  # a field takes two bytes at least: a shorter message is within the limit
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
GROUPS: Final = (3, 4)  # begin and end of a group, which have no value


def check_fields(data: bytes, descriptor: Descriptor) -> None:
    """Raise `InvalidArgumentError` if `data` has too many fields or too long a text; malformed data is left to the parser."""
    for _ in checking_fields(data, descriptor):
        pass


def checking_fields(data: bytes, descriptor: Descriptor) -> Iterator[None]:
    """`check_fields` as a generator of short parts, for the event loop."""
    if len(data) <= UNCHECKED_BYTES:
        return
    found, outer = 0, [(0, len(data), descriptor)]
    while outer:
        place, end, message = outer.pop()
        inner, texts = _nested(message)
        while place < end:
            tag, place = _varint(data, place, end)
            number, kind = tag >> 3, tag & 7
            found += 1
            if found > MAX_FIELDS:
                raise InvalidArgumentError(_name(message, number), f"the request has more than {MAX_FIELDS} fields")
            if found % FIELDS_AT_ONCE == 0:
                yield
            if kind != LENGTH:
                place = _skipped(data, place, end, kind)
                continue
            length, place = _varint(data, place, end)
            if number in texts and length > MAX_TEXT_BYTES:
                raise InvalidArgumentError(_name(message, number), f"must be at most {MAX_TEXT_BYTES} bytes")
            if length and number in inner:
                outer += [(place + length, end, message), (place, min(place + length, end), inner[number])]
                break
            place += length


def _skipped(data: bytes, place: int, end: int, kind: int) -> int:
    """The position after a value without a length; the end of the message if the parser will reject it."""
    if kind == VARINT:
        return _varint(data, place, end)[1]
    if kind == FIXED64:
        return place + 8
    if kind == FIXED32:
        return place + 4
    return place if kind in GROUPS else end


@cache
def _nested(message: Descriptor) -> tuple[dict[int, Descriptor], frozenset[int]]:
    """By field number: the message types that can contain messages, and the fields that are texts."""
    types = {field.number: field.message_type for field in message.fields if field.message_type is not None}
    inner = {number: kind for number, kind in types.items() if any(field.message_type is not None for field in kind.fields)}
    return inner, frozenset(field.number for field in message.fields if field.type == FieldDescriptor.TYPE_STRING)


def _name(message: Descriptor, number: int) -> str:
    field = message.fields_by_number.get(number)
    return "request" if field is None else field.name


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """The number at `place`, and the position after it; 0 and the end of the message if it is truncated."""
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
