"""Changing an agent's definition while it lives: which fields may change, and how an update becomes a definition."""

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from google.protobuf.message import Message

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.differences import differences
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
    "the limits on open episodes and the mode can change"
)


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
    """What is different in `new`, in words."""
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
    raise InvalidArgumentError("update_mask", f"{path[:200]!r}: {where} has no constraint {name[:100]!r}")


def _copy(target: Message, source: Message, field: str) -> None:
    """Make the field of `target` that of `source`, which may be absent."""
    target.ClearField(field)
    for described, value in source.ListFields():
        if described.name == field:
            target.MergeFrom(type(target)(**{field: value}))
