"""Updates of an agent's definition, from plain values by field.

    constraints.NAME.cost_budget   and satisfiable_cost, cost
    reward, available_actions
    options.FIELD, drift.FIELD, guard.FIELD   such as options.confidence, drift.on_detect
    fallback_policy, max_open_episodes, episode_timeout_seconds, max_epoch_steps
    mode                           live or shadow

None stands for the default.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from safe_psrl_client.documents import (
    AGENT_FIELDS,
    CMDP_FIELDS,
    CONSTRAINT_FIELDS,
    OPTION_FIELDS,
    check_fields,
    fill,
    fill_agent,
    part_from_document,
)
from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_proto.v1 import model_pb2

TABLES: Final = ("reward", "available_actions")
OF_CONSTRAINTS: Final = ("cost_budget", "satisfiable_cost", "cost")
PARTS: Final = ("options", "drift", "guard")
OF_AGENTS: Final = (*PARTS, "fallback_policy", "max_open_episodes", "episode_timeout_seconds", "max_epoch_steps", "mode")
FIELDS: Final = (*TABLES, *OF_AGENTS, *(f"constraints.NAME.{field}" for field in OF_CONSTRAINTS))
FIXED: Final = {*CMDP_FIELDS, *AGENT_FIELDS} - {*TABLES, *OF_AGENTS}  # of a definition
FIXED_OF_CONSTRAINTS: Final = {*CONSTRAINT_FIELDS} - {*OF_CONSTRAINTS}


class Update(NamedTuple):
    """New values, and the paths of the fields that have them."""

    spec: model_pb2.AgentSpec
    paths: list[str]


def update_from_document(changes: Mapping[str, Any]) -> Update:
    """Raises `InvalidDocumentError` that names a field that does not exist, or has a value of the wrong type."""
    update = Update(model_pb2.AgentSpec(), [])
    for path, value in changes.items():
        head, _, field = path.partition(".")
        if head == "constraints":
            name, _, field = field.rpartition(".")
            _refuse_fixed(path, field in FIXED_OF_CONSTRAINTS, OF_CONSTRAINTS)
            check_fields({field: value}, OF_CONSTRAINTS, f"constraints.{name or 'NAME'}.")
            fill(_constraint(update.spec, name), _given(field, value), f"constraints.{name}.")
            update.paths.append(f"cmdp.{path}")
        elif path in TABLES:
            fill(update.spec.cmdp, _given(path, value), "")
            update.paths.append(f"cmdp.{path}")
        else:
            _refuse_fixed(path, head in FIXED, FIELDS)
            if path in OPTION_FIELDS:
                raise InvalidDocumentError(f"{path}: is not a field; did you mean options.{path}?")
            check_fields({head: value}, FIELDS, "")
            _fill_agent_field(update.spec, head, field, value)
            update.paths.append(path)
    return update


def _refuse_fixed(path: str, is_fixed: bool, known: tuple[str, ...]) -> None:
    if is_fixed:
        raise InvalidDocumentError(f"{path}: cannot be updated; the fields that can are {', '.join(known)}")


def _fill_agent_field(spec: model_pb2.AgentSpec, head: str, field: str, value: Any) -> None:
    if not field:
        fill_agent(spec, _given(head, value))
    elif head in PARTS:
        part = getattr(spec, head)
        check_fields({field: value}, tuple(part.DESCRIPTOR.fields_by_name), f"{head}.")
        part.MergeFrom(part_from_document(head, _given(field, value)))
    else:
        raise InvalidDocumentError(f"{head}.{field}: is not a field; {head} is set as a whole")


def _given(field: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {field: value}


def _constraint(spec: model_pb2.AgentSpec, name: str) -> model_pb2.Constraint:
    for constraint in spec.cmdp.constraints:
        if constraint.name == name:
            return constraint
    return spec.cmdp.constraints.add(name=name)
