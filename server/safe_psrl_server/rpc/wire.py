"""Bounds on a message before it is parsed: a few megabytes have room for millions of empty submessages, each an object, or for
a text that takes long to search or to quote.

The scan follows the wire format (tag, length) along the message's descriptor and stops at the limits. It is compiled: in the
interpreter the scan of a message with millions of small fields would hold up all other calls.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from numpy.typing import NDArray

from safe_psrl.compiled import compiled
from safe_psrl_server.errors import InvalidArgumentError

MAX_SUBMESSAGES: Final = 20_000
MAX_FIELDS: Final = 10 * MAX_SUBMESSAGES  # of all messages together: numbers in a packed field are one
MAX_TEXT_BYTES: Final = 256 * 1024  # of one field; checks of its meaning allow less
UNCHECKED_BYTES: Final = 2 * MAX_SUBMESSAGES  # a submessage takes two bytes at least: a shorter message is within the limits
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
GROUPS_END: Final = 4  # 3 and 4 mark groups, which have no length
NO_MESSAGE, TEXT = -1, -2  # in place of a message type
WITHIN, TOO_MANY, TOO_LONG = 0, 1, 2


def check_submessages(data: bytes, descriptor: Descriptor) -> None:
    """Raise `InvalidArgumentError` if `data` has too many submessages or fields, or too long a text.

    Malformed data is left to the parser.
    """
    if len(data) <= UNCHECKED_BYTES:
        return
    types, names = _types_in(descriptor)
    found, kind, number = _excess(np.frombuffer(data, np.uint8), types, MAX_SUBMESSAGES, MAX_FIELDS, MAX_TEXT_BYTES)
    field = names.get((kind, number), "request")
    if found == TOO_LONG:
        raise InvalidArgumentError(field, f"must be at most {MAX_TEXT_BYTES} bytes")
    if found == TOO_MANY:
        raise InvalidArgumentError(field, f"the request has more than {MAX_SUBMESSAGES} messages or {MAX_FIELDS} fields in it")


def load_scan() -> None:
    """Load the compiled scan, or compile it, which takes seconds."""
    _excess(np.frombuffer(bytes(1), np.uint8), np.zeros((1, 1), np.int64), 1, 1, 1)


@lru_cache
def _types_in(descriptor: Descriptor) -> tuple[NDArray[np.int64], dict[tuple[int, int], str]]:
    """Message types are numbered, `descriptor` is 0: [type, field number] is the field's type. Names by both."""
    found: list[Any] = [descriptor]
    for message in found:
        inner = [field.message_type for field in message.fields if field.message_type is not None]
        found += [kind for kind in dict.fromkeys(inner) if kind not in found]
    numbers = 1 + max((field.number for message in found for field in message.fields), default=0)
    types, names = np.full((len(found), numbers), NO_MESSAGE, np.int64), {}
    for kind, message in enumerate(found):
        for field in message.fields:
            names[kind, field.number] = field.name
            if field.message_type is not None:
                types[kind, field.number] = found.index(field.message_type)
            elif field.type == FieldDescriptor.TYPE_STRING:
                types[kind, field.number] = TEXT
    return types, names


@compiled
def _excess(
    data: NDArray[np.uint8], types: NDArray[np.int64], most_messages: int, most_fields: int, most_text: int
) -> tuple[int, int, int]:
    """WITHIN, TOO_MANY or TOO_LONG, and the message type and the number of the field."""
    waiting = np.empty((most_messages + 1, 3), np.int64)  # begin, end and type of submessages
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, len(data), 0
    depth, messages, fields = 1, 0, 0
    while depth > 0:
        depth -= 1
        place, end, kind = waiting[depth, 0], waiting[depth, 1], waiting[depth, 2]
        while place < end:
            tag, place = _varint(data, place, end)
            number, wire_type = tag >> 3, tag & 7
            fields += 1
            if fields > most_fields:
                return TOO_MANY, kind, number
            if wire_type == LENGTH:
                length, place = _varint(data, place, end)
                length = min(length, end - place)
                inner = types[kind, number] if number < types.shape[1] else NO_MESSAGE
                if inner == TEXT and length > most_text:
                    return TOO_LONG, kind, number
                if inner >= 0:
                    messages += 1
                    if messages > most_messages:
                        return TOO_MANY, kind, number
                    waiting[depth, 0], waiting[depth, 1], waiting[depth, 2] = place, place + length, inner
                    depth += 1
                place += length
            else:
                place = _skipped(data, place, end, wire_type)
    return WITHIN, 0, 0


@compiled
def _skipped(data: NDArray[np.uint8], place: int, end: int, wire_type: int) -> int:
    """Where a value without a length ends; the end of the message if the parser will reject it."""
    if wire_type == VARINT:
        return _varint(data, place, end)[1]
    if wire_type == FIXED64:
        return place + 8
    if wire_type == FIXED32:
        return place + 4
    return place if wire_type <= GROUPS_END else end


@compiled
def _varint(data: NDArray[np.uint8], place: int, end: int) -> tuple[int, int]:
    """The number at `place`, without the bits above 2^62, and where it ends; 0 at the end of the message if it is cut off."""
    number, shift = 0, 0
    while place < end and shift < 70:
        byte = int(data[place])
        place += 1
        if shift < 56:
            number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
    return 0, end
