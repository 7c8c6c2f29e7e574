"""Values at the edges of what a field can hold, put into any field of any message, by its descriptor."""

import math
import random
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS: Final = (
    *(0, 1, -1, 2, 3, 100, 101, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1),
    *(2**62, 2**63 - 1, -(2**63), 2**64 - 1),
)
RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
REALS: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 60.0, 60.1, 1e9, 1e300, -1e300, 5e-324, 1 + 2**-52, 1 - 2**-53),
    *(math.nan, -math.nan, math.inf, -math.inf),
)
STRINGS: Final = (
    *("", "a", "\0", "a\nb", "é" * 64, "x" * 128, "x" * 129, "../../etc/passwd", "/", "a/b", "%s%n{0}", "\U0001f600"),
    *("\ud7ff\ue000\uffff", "streaming-buffer", "theorem", "certified", "<f8", "<i8", "O", "agent=x,y", "-1", "NaN", '"', "'"),
)
BYTES: Final = (b"", b"\0", b"\xff\xfe\xfd", b"\x78\x9c", b"\xc3\x28")
HUGE: Final = 50_000
BRIEF: Final = 128  # of each of many entries: all must fit into memory


def edge(field: FieldDescriptor, chosen: random.Random) -> Any:
    """A value for one entry of a field that is no message."""
    kind = field.cpp_type
    if kind in RANGES:
        low, high = RANGES[kind]
        return min(max(chosen.choice(INTEGERS) + chosen.choice((0, 0, 0, -1, 1)), low), high)
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return chosen.choice(REALS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chosen.random() < 0.5
    huge = chosen.random() < 0.01
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chosen.randbytes(HUGE) if huge else chosen.choice((*BYTES, chosen.randbytes(chosen.randrange(40))))
    return "y" * HUGE if huge else chosen.choice(STRINGS)


def places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field of `message` and of the messages that are in it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None or _is_map(field):
            continue
        inner = getattr(message, field.name)
        parts = inner if field.is_repeated else [inner] if message.HasField(field.name) else []
        for part in parts[:3]:
            yield from places(part)


def spoil(message: Message, chosen: random.Random, times: int) -> None:
    """Put edge values into `times` fields, wherever they are."""
    for _ in range(times):
        owner, field = chosen.choice(list(places(message)))
        _spoil_field(owner, field, chosen)


def prolong(message: Message, chosen: random.Random, length: int) -> None:
    """Make one field of `message`, or of a message in it, as long as that: repeated ones and texts, if there are any."""
    long = [(owner, field) for owner, field in places(message) if not _is_map(field) and _has_length(field)]
    if not long:
        return
    owner, field = chosen.choice(long)
    if not field.is_repeated:
        setattr(owner, field.name, b"z" * length if field.type == FieldDescriptor.TYPE_BYTES else "z" * length)
    elif field.message_type is not None:
        for _ in range(length):
            getattr(owner, field.name).add()
    else:
        entry = edge(field, chosen)
        getattr(owner, field.name).extend([entry[:BRIEF] if isinstance(entry, str | bytes) else entry] * length)


def _has_length(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated) or field.cpp_type == FieldDescriptor.CPPTYPE_STRING


def _spoil_field(owner: Message, field: FieldDescriptor, chosen: random.Random) -> None:
    if _is_map(field) or chosen.random() < 0.1:
        owner.ClearField(field.name)
    elif field.is_repeated:
        _spoil_entries(getattr(owner, field.name), field, chosen)
    elif field.message_type is not None:
        getattr(owner, field.name).SetInParent()
    else:
        setattr(owner, field.name, edge(field, chosen))


def _spoil_entries(entries: Any, field: FieldDescriptor, chosen: random.Random) -> None:
    is_message, way = field.message_type is not None, chosen.randrange(5)
    if way == 0 and entries:
        del entries[chosen.randrange(len(entries)) :]
    elif way == 1 and entries:
        repeated = [*entries[:20]] * chosen.choice((1, 1, 2, 50))
        entries.extend(repeated)
    elif way == 2 and entries and not is_message:
        entries[chosen.randrange(len(entries))] = edge(field, chosen)
    elif is_message:
        entries.add()
    else:
        entries.append(edge(field, chosen))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
