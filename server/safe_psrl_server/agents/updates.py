"""Changing an agent's definition while it runs: which fields may change, how an update becomes a definition, what differs."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.errors import InvalidArgumentError

TABLES: Final = ("reward", "available_actions")  # of the problem
OF_CONSTRAINTS: Final = ("cost_budget", "satisfiable_cost", "cost")
WHOLE: Final = (
    "fallback_policy",
    "max_open_episodes",
    "episode_timeout_seconds",
    "max_epoch_steps",
    "options",
    "drift",
    "guard",
    "mode",
)
PARTS: Final = ("options", "drift", "guard")
MUTABLE: Final = re.compile(rf"spec\.({'|'.join((*TABLES, *WHOLE))}|constraints\[\d+\]\.({'|'.join(OF_CONSTRAINTS)}))(\.\w+)?")
CAN_CHANGE: Final = (
    "budgets, satisfiable costs, known rewards and costs, available actions, options, drift, guard, the fallback policy, "
    "the limits on open episodes and epochs, and the mode can change"
)
MOST_NAMED: Final = 5  # differing fields in an error
LONGEST_VALUE: Final = 60  # characters
DERIVED: Final = "always_satisfiable"  # set by the server


def updated(current: model_pb2.AgentSpec, update: model_pb2.AgentSpec, paths: Iterable[str]) -> model_pb2.AgentSpec:
    """`current` with the fields `paths` of `update`. Raises `InvalidArgumentError`."""
    paths = list(paths)
    if not paths:
        raise InvalidArgumentError("update_mask", "must name the fields to change")
    new = model_pb2.AgentSpec()
    new.CopyFrom(current)
    if "options.method" in paths and update.options.method != current.options.method:
        new.options.Clear()  # those of another method do not apply
    for path in paths:
        head, _, field = path.rpartition(".")
        if head == "cmdp" and field in TABLES:
            _copy(new.cmdp, update.cmdp, field)
        elif head.startswith("cmdp.constraints.") and field in OF_CONSTRAINTS:
            name = head.removeprefix("cmdp.constraints.")
            _copy(_constraint(new, name, path, "the agent"), _constraint(update, name, path, "the update"), field)
        elif path in WHOLE:
            _copy(new, update, path)
        elif head in PARTS and field in getattr(new, head).DESCRIPTOR.fields_by_name:
            _copy(getattr(new, head), getattr(update, head), field)
        else:
            raise InvalidArgumentError("update_mask", f"{path[:200]!r} cannot be updated: {CAN_CHANGE}")
    return new


def refuse_fixed(old: Definition, new: Definition) -> None:
    """Raise `InvalidArgumentError` if they differ in a field that cannot change."""
    for field, difference in differences(old.message, new.message).items():
        if not MUTABLE.fullmatch(field):
            raise InvalidArgumentError(field, f"cannot change (it {difference}): {CAN_CHANGE}; or create another agent")
    learns = old.spec.learns_signals or new.spec.learns_signals
    if learns and not np.array_equal(old.spec.learned, new.spec.learned):
        raise InvalidArgumentError("spec.constraints", "which rewards and costs are learned cannot change")


def changes(old: model_pb2.AgentSpec, new: model_pb2.AgentSpec) -> list[str]:
    """A description of what differs in `new`."""
    named = {f"constraints[{i}]": f"constraints.{constraint.name}" for i, constraint in enumerate(old.cmdp.constraints)}
    lines = []
    for field, difference in differences(new, old).items():
        place, _, rest = field.removeprefix("spec.").partition(".")
        lines.append(f"{named.get(place, place)}{'.' * bool(rest)}{rest} {difference.replace(', not ', ', was ')}")
    return lines


def _constraint(spec: model_pb2.AgentSpec, name: str, path: str, where: str) -> model_pb2.Constraint:
    for constraint in spec.cmdp.constraints:
        if constraint.name == name:
            return constraint
    known = ", ".join(repr(constraint.name[:100]) for constraint in spec.cmdp.constraints[:MOST_NAMED])
    reason = f"{where} has no constraint {name[:100]!r}; it has {known or 'none'}"
    raise InvalidArgumentError("update_mask", f"{path[:200]!r}: {reason}")


def _copy(target: Message, source: Message, field: str) -> None:
    """Copy the field from `source` to `target`; clear it if `source` has none."""
    target.ClearField(field)
    for described, value in source.ListFields():
        if described.name == field:
            target.MergeFrom(type(target)(**{field: value}))


def differences(existing: model_pb2.AgentSpec, requested: model_pb2.AgentSpec) -> dict[str, str]:
    """What differs, by field as errors name it: `spec.seed`: "is 3, not 4"."""
    fields: dict[str, str] = {}
    for path, ours, theirs in _differing(existing, requested, "spec"):
        fields[path.replace("spec.cmdp.", "spec.")] = _comparison(ours, theirs)
    return fields


def described(fields: dict[str, str]) -> str:
    """A description of the first `fields`."""
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
