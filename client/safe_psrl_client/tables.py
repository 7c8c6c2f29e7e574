"""Nested lists as the contract's tables, and back."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_proto.v1 import model_pb2

LARGEST_INTEGER: Final = 2**31  # an integer table's entries are below it


def table_of(field: str, value: object) -> model_pb2.Table:
    """`value`, a number or lists in lists of numbers, as a table. Raises `InvalidDocumentError` if it is not rectangular."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and isinstance(level[0], list | tuple):
        length = len(level[0])
        if not all(isinstance(row, list | tuple) and len(row) == length for row in level):
            raise InvalidDocumentError(f"{field}: must be rectangular; its rows at depth {len(shape) + 1} differ in length")
        shape.append(length)
        level = [entry for row in level for entry in row]
    for entry in level:
        if not isinstance(entry, int | float):
            raise InvalidDocumentError(f"{field}: must be numbers (one is {entry!r:.60})")
    try:
        return model_pb2.Table(shape=shape, values=[float(entry) for entry in level])
    except OverflowError:  # a whole number of hundreds of digits
        raise InvalidDocumentError(f"{field}: must be numbers of at most 308 digits") from None


def integer_table_of(field: str, value: object) -> model_pb2.IntegerTable:
    """The same of whole numbers."""
    table = table_of(field, value)
    for entry in table.values:
        if not (entry.is_integer() and abs(entry) < LARGEST_INTEGER):
            raise InvalidDocumentError(f"{field}: must be whole numbers below 2^31 (one is {entry:g})")
    return model_pb2.IntegerTable(shape=table.shape, values=[int(entry) for entry in table.values])


def nested_lists(shape: Sequence[int], values: Sequence[Any]) -> Any:
    """Lists in lists of that shape, row-major; the one value itself if the shape is empty."""
    if not shape:
        return values[0]
    width = prod(shape[1:])
    return [nested_lists(shape[1:], values[i * width : (i + 1) * width]) for i in range(shape[0])]
