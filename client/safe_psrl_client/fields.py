"""Messages made from a caller's values: a value of the wrong type is an error that names its field."""

from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from safe_psrl_client.errors import InvalidArgumentError

MessageT = TypeVar("MessageT", bound=Message)
LONGEST_VALUE: Final = 60  # characters

SIGNED: Final = "a whole number"
WANTED: Final = {
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_UINT64: "a whole number, at least 0",
    FieldDescriptor.TYPE_INT32: "a whole number below 2^31",
}


def requirement(field: Any) -> str:
    """What a value of `field` must be."""
    if field.message_type is not None:
        return f"must be {field.message_type.name}"
    wanted = WANTED.get(field.type, SIGNED)
    return f"must be a list, each {wanted}" if field.is_repeated else f"must be {wanted}"


def message_of(kind: type[MessageT], **values: Any) -> MessageT:
    """`kind(**values)`. Raises `InvalidArgumentError` that names the field whose value has the wrong type or range."""
    try:
        return kind(**values)
    except (TypeError, ValueError, OverflowError):
        for name, value in values.items():
            field = kind.DESCRIPTOR.fields_by_name[name]
            try:
                kind(**{name: value})
            except (TypeError, ValueError, OverflowError):
                wanted = requirement(field)
                message = f"{name} = {value!r:.{LONGEST_VALUE}}: {wanted}"
                raise InvalidArgumentError(message, violations={name: wanted}) from None
        raise
