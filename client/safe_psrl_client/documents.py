"""Agents' definitions as TOML or JSON documents: the fields of a problem's specification, and of the agent around it.

    num_states = 10                      # and the other fields of a problem, as `safe-psrl spec show` prints them
    ...
    [agent]                              # all of it may be left out
    seed = 1
    options = { cap_pessimism = true }
    fallback_policy = [[1, 1, ...], ...]   # action by step and state, for while the agent is paused

Here is only shape: numbers are numbers, tables are rectangular, no field is misspelt. What they mean the server checks.
"""

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from google.protobuf.message import Message

from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_client.tables import integer_table_of, nested_lists, table_of
from safe_psrl_proto.v1 import model_pb2

CMDP_FIELDS: Final = (
    "num_states",
    "num_actions",
    "horizon",
    "stationary",
    "initial_state",
    "initial_distribution",
    "reward",
    "reward_learned",
    "constraints",
    "available_actions",
    "support",
    "next_states",
    "dirichlet_prior",
)
REQUIRED: Final = ("num_states", "num_actions", "horizon", "reward", "constraints")
CONSTRAINT_FIELDS: Final = ("name", "cost", "cost_budget", "satisfiable_cost", "learned")
OPTION_FIELDS: Final = tuple(field.name for field in model_pb2.SafePsrlOptions.DESCRIPTOR.fields)
AGENT_FIELDS: Final = ("seed", "options", "fallback_policy", "max_open_episodes", "episode_timeout_seconds")
TABLES: Final = ("initial_distribution", "reward", "cost", "available_actions", "support", "dirichlet_prior")
INTEGER_TABLES: Final = ("next_states",)
MASKS: Final = ("available_actions", "support")
PESSIMISM_COEFFICIENTS: Final = {"theorem": 5.0, "published": 0.05, "literal": 0.25}


def parse_document(text: str, kind: str) -> dict[str, Any]:
    """`text` in `kind` ("toml" or "json") as a dictionary."""
    try:
        document = json.loads(text) if kind == "json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # both parsers' own errors are ValueErrors, as is a number of too many digits
        raise InvalidDocumentError(f"this {kind} document cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise InvalidDocumentError(f"this {kind} document must be a table of fields")
    return document


def spec_from_document(document: Mapping[str, Any]) -> model_pb2.AgentSpec:
    """The definition in `document`. A kernel under `transitions`, which simulations need, is no part of it."""
    _refuse_unknown(document, (*CMDP_FIELDS, "agent", "transitions"), "")
    _require(document, REQUIRED, "")
    fields = {name: value for name, value in document.items() if name in CMDP_FIELDS}
    cmdp = model_pb2.CmdpSpec(non_stationary=not _flag("stationary", fields.pop("stationary", True)))
    for i, entry in enumerate(_entries(fields.pop("constraints"))):
        _refuse_unknown(entry, CONSTRAINT_FIELDS, f"constraints[{i}].")
        _require(entry, CONSTRAINT_FIELDS[:4], f"constraints[{i}].")
        _fill(cmdp.constraints.add(), entry, f"constraints[{i}].")
    if len(fields.keys() & {"initial_state", "initial_distribution"}) == 2:
        raise InvalidDocumentError("initial_state: must not be given together with initial_distribution")
    _fill(cmdp, fields, "")
    spec = model_pb2.AgentSpec(cmdp=cmdp)
    _complete(spec, _table_of_fields("agent", document.get("agent", {})))
    return spec


def options_from_document(document: Mapping[str, Any]) -> model_pb2.SafePsrlOptions:
    """The algorithm's settings; the coefficient by number or by name."""
    _refuse_unknown(document, OPTION_FIELDS, "options.")
    fields = dict(document)
    coefficient = fields.get("pessimism_coefficient")
    if isinstance(coefficient, str):
        if coefficient not in PESSIMISM_COEFFICIENTS:
            names = ", ".join(PESSIMISM_COEFFICIENTS)
            raise InvalidDocumentError(f"options.pessimism_coefficient = {coefficient!r}: must be a number or one of {names}")
        fields["pessimism_coefficient"] = PESSIMISM_COEFFICIENTS[coefficient]
    options = model_pb2.SafePsrlOptions()
    _fill(options, fields, "options.")
    return options


def spec_to_document(spec: model_pb2.AgentSpec) -> dict[str, Any]:
    """The document that gives `spec` again."""
    cmdp = _plain_fields(spec.cmdp)
    if cmdp.pop("non_stationary", False):
        cmdp["stationary"] = False
    agent = _plain_fields(spec)
    del agent["cmdp"]
    if spec.HasField("options"):
        agent["options"] = _plain_fields(spec.options)
    if spec.HasField("fallback_policy"):
        policy = spec.fallback_policy
        agent["fallback_policy"] = nested_lists([policy.horizon, policy.num_states], list(policy.actions))
    return {**cmdp, **({"agent": agent} if agent else {})}


def _complete(spec: model_pb2.AgentSpec, fields: dict[str, Any]) -> None:
    _refuse_unknown(fields, AGENT_FIELDS, "agent.")
    if "options" in fields:
        spec.options.CopyFrom(options_from_document(_table_of_fields("agent.options", fields.pop("options"))))
    if "fallback_policy" in fields:
        table = table_of("agent.fallback_policy", fields.pop("fallback_policy"))
        if len(table.shape) != 2 or not all(value.is_integer() for value in table.values):
            raise InvalidDocumentError("agent.fallback_policy: must be a table of whole numbers, [horizon, num_states]")
        actions = [int(value) for value in table.values]
        policy = model_pb2.Policy(horizon=table.shape[0], num_states=table.shape[1], actions=actions)
        spec.fallback_policy.CopyFrom(policy)
    _fill(spec, fields, "agent.")


def _fill(message: Message, fields: Mapping[str, Any], where: str) -> None:
    """Write plain values and tables into the fields of the same name."""
    for name, value in fields.items():
        if name in TABLES:
            getattr(message, name).CopyFrom(table_of(where + name, value))
            continue
        if name in INTEGER_TABLES:
            getattr(message, name).CopyFrom(integer_table_of(where + name, value))
            continue
        kind = message.DESCRIPTOR.fields_by_name[name]
        is_flag = kind.type == kind.TYPE_BOOL
        if is_flag != isinstance(value, bool):
            raise InvalidDocumentError(
                f"{where}{name} = {value!r}: must be {'true or false' if is_flag else 'a number or word'}"
            )
        try:
            setattr(message, name, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidDocumentError(f"{where}{name} = {value!r:.60}: {error}") from None


def _plain_fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, model_pb2.Table):
            values = [bool(v) for v in value.values] if field.name in MASKS else list(value.values)
            fields[field.name] = nested_lists(list(value.shape), values)
        elif isinstance(value, model_pb2.IntegerTable):
            fields[field.name] = nested_lists(list(value.shape), list(value.values))
        elif field.name == "constraints":
            fields[field.name] = [_plain_fields(constraint) for constraint in value]
        elif not isinstance(value, Message) or field.name == "cmdp":
            fields[field.name] = value
    return fields


def _entries(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidDocumentError("constraints: must be a list of tables")
    return [_table_of_fields(f"constraints[{i}]", entry) for i, entry in enumerate(value)]


def _table_of_fields(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidDocumentError(f"{where}: must be a table of fields")
    return dict(value)


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidDocumentError(f"{field} = {value!r}: must be true or false")
    return value


def _refuse_unknown(document: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for field in document:
        if field not in known:
            close = get_close_matches(field, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
            raise InvalidDocumentError(f"{where}{field}: is not a field; {hint}")


def _require(document: Mapping[str, Any], fields: tuple[str, ...], where: str) -> None:
    for field in fields:
        if field not in document:
            raise InvalidDocumentError(f"{where}{field}: is missing")
