"""Which fields of two definitions differ, for the error of a creation that finds another agent under its name."""

from collections.abc import Iterator
from typing import Any, Final

from safe_psrl_proto.v1 import model_pb2

MOST_NAMED: Final = 5
LONGEST_VALUE: Final = 60  # characters
DERIVED: Final = "always_satisfiable"  # set by the server


def differences(existing: model_pb2.AgentSpec, requested: model_pb2.AgentSpec) -> dict[str, str]:
    """What differs, by field as errors name it: `spec.seed`: "is 3, not 4"."""
    fields: dict[str, str] = {}
    for path, ours, theirs in _differing(existing, requested, "spec"):
        fields[path.replace("spec.cmdp.", "spec.")] = _comparison(ours, theirs)
    return fields


def described(fields: dict[str, str]) -> str:
    """The first of `fields` in words."""
    named = [f"{field} {comparison}" for field, comparison in list(fields.items())[:MOST_NAMED]]
    more = len(fields) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _differing(ours: Any, theirs: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    for field in ours.DESCRIPTOR.fields:
        mine, other, place = _value(ours, field), _value(theirs, field), f"{path}.{field.name}"
        present = not field.has_presence or ours.HasField(field.name) == theirs.HasField(field.name)
        if field.name == DERIVED or (mine == other and present):
            continue
        if field.message_type is None or field.message_type.name in {"Table", "IntegerTable", "Policy"}:
            yield place, mine, other
        elif field.message_type.GetOptions().map_entry:
            for key in sorted({*mine, *other}):
                if mine.get(key) != other.get(key):
                    yield f"{place}.{key}", mine.get(key), other.get(key)
        elif not field.is_repeated:
            yield from _differing(mine, other, place)
        elif len(mine) != len(other):
            yield place, f"{len(mine)} entries", f"{len(other)}"
        else:
            for i, (one, another) in enumerate(zip(mine, other, strict=True)):
                yield from _differing(one, another, f"{place}[{i}]")


def _value(message: Any, field: Any) -> Any:
    """None for a number or a text that is not set."""
    absent = field.message_type is None and field.has_presence and not message.HasField(field.name)
    return None if absent else getattr(message, field.name)


def _comparison(ours: Any, theirs: Any) -> str:
    if hasattr(ours, "DESCRIPTOR"):
        return "has other entries"
    texts = ("not set" if value is None else f"{value!s:.{LONGEST_VALUE}}" for value in (ours, theirs))
    return "is {}, not {}".format(*texts)
