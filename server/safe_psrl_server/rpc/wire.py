"""Bounds on a message before it is parsed: a few megabytes have room for millions of empty submessages, each an object.

The scan follows the wire format (tag, length) along the message's descriptor and stops at the limit, so its time is bounded
whatever a message holds.
"""

from typing import Final

from google.protobuf.descriptor import Descriptor

from safe_psrl_server.errors import InvalidArgumentError

MAX_SUBMESSAGES: Final = 20_000
UNCHECKED_BYTES: Final = 2 * MAX_SUBMESSAGES  # a submessage takes two bytes at least: a shorter message is within the limit
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def check_submessages(data: bytes, descriptor: Descriptor) -> None:
    """Raise `InvalidArgumentError` if `data` has more than MAX_SUBMESSAGES; malformed data is left to the parser."""
    if len(data) <= UNCHECKED_BYTES:
        return
    found, waiting = 0, [(0, len(data), descriptor)]
    while waiting:
        place, end, message = waiting.pop()
        while place < end:
            tag, place = _varint(data, place, end)
            kind = tag & 7
            if kind == LENGTH:
                length, place = _varint(data, place, end)
                field = message.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    found += 1
                    if found > MAX_SUBMESSAGES:
                        raise InvalidArgumentError(field.name, f"the request has more than {MAX_SUBMESSAGES} messages in it")
                    waiting.append((place, min(place + length, end), field.message_type))
                place += length
            elif kind == VARINT:
                _, place = _varint(data, place, end)
            elif kind == FIXED64:
                place += 8
            elif kind == FIXED32:
                place += 4
            else:
                return  # groups and unknown types: the parser decides


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """The number at `place`, and where it ends; 0 at the end of the message if it is cut off."""
    number, shift = 0, 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
    return 0, end
