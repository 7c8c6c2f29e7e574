"""Agents' definitions as TOML or JSON documents: the fields of a problem's specification, and of the agent around it.

    num_states = 10                      # and the other fields of a problem, as `safe-psrl spec show` prints them
    ...
    [agent]                              # optional, as are its fields
    seed = 1
    options = { cap_pessimism = true }
    drift = { on_detect = "forget" }
    guard = { max_constraint_regret = 20.0 }
    fallback_policy = [[1, 1, ...], ...]   # action by step and state, while the agent is paused

Only the shape is checked here: numbers are numbers, tables are rectangular, no field is misspelt. The server checks the rest.
The library has its own codec, as this one makes protobuf messages without numpy, and that one arrays without protobuf.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isnan, nan, prod
from typing import Any, Final

from google.protobuf.message import Message

from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_client.fields import LONGEST_VALUE, requirement
from safe_psrl_proto.v1 import model_pb2


def _fields_of(message: type[Message]) -> tuple[str, ...]:
    return tuple(field.name for field in message.DESCRIPTOR.fields)


UNKNOWN_ENTRIES: Final = {"cost": "unknown_costs", "reward": "unknown_rewards"}  # NaN or null in a document
MESSAGE_ONLY: Final = ("non_stationary", "unknown_rewards", "continuing")
CONTINUING: Final = "continuing"  # in place of a horizon
CMDP_FIELDS: Final = (*(name for name in _fields_of(model_pb2.CmdpSpec) if name not in MESSAGE_ONLY), "stationary")
REQUIRED: Final = ("num_states", "num_actions", "horizon", "reward", "constraints")
CONSTRAINT_FIELDS: Final = ("name", "cost", "cost_budget", "satisfiable_cost", "learned")
OPTION_FIELDS: Final = _fields_of(model_pb2.SafePsrlOptions)
PARTS: Final[Mapping[str, type[Message]]] = {  # of a definition: the fields that are tables of fields
    "options": model_pb2.SafePsrlOptions,
    "drift": model_pb2.DriftOptions,
    "guard": model_pb2.Guard,
    "warm_start": model_pb2.WarmStart,
}
AGENT_FIELDS: Final = tuple(name for name in _fields_of(model_pb2.AgentSpec) if name != "cmdp")
NAMES: Final = ("state_names", "action_names")
MASKS: Final = ("available_actions", "support")
PESSIMISM_COEFFICIENTS: Final = {"theorem": 5.0, "published": 0.05, "literal": 0.25}


def parse_document(text: str, kind: str) -> dict[str, Any]:
    """`text` in `kind` ("toml" or "json") as a dictionary."""
    try:
        document = json.loads(text) if kind == "json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: both parsers' own errors, and numbers of too many digits
        raise InvalidDocumentError(f"this {kind} document cannot be read: {error}") from None
    return _table_of_fields(f"this {kind} document", document)


def spec_from_document(document: Mapping[str, Any]) -> model_pb2.AgentSpec:
    """The definition in `document`. A kernel under `transitions`, which simulations need, is ignored."""
    check_fields(document, (*CMDP_FIELDS, "agent", "transitions"), "", REQUIRED)
    fields = {name: value for name, value in document.items() if name in CMDP_FIELDS}
    stationary, constraints = fields.pop("stationary", True), fields.pop("constraints")
    if not isinstance(stationary, bool):
        raise InvalidDocumentError(f"stationary = {stationary!r}: must be true or false")
    if not isinstance(constraints, list):
        raise InvalidDocumentError("constraints: must be a list of tables")
    if len(fields.keys() & {"initial_state", "initial_distribution"}) == 2:
        raise InvalidDocumentError("initial_state: must not be given together with initial_distribution")
    spec = model_pb2.AgentSpec(cmdp=model_pb2.CmdpSpec(non_stationary=not stationary))
    if fields["horizon"] == CONTINUING:
        spec.cmdp.continuing = bool(fields.pop("horizon"))
    for i, value in enumerate(constraints):
        entry = _table_of_fields(f"constraints[{i}]", value)
        check_fields(entry, CONSTRAINT_FIELDS, f"constraints[{i}].", CONSTRAINT_FIELDS[:4])
        fill(spec.cmdp.constraints.add(), entry, f"constraints[{i}].")
    fill(spec.cmdp, fields, "")
    fill_agent(spec, _table_of_fields("agent", document.get("agent", {})))
    return spec


def options_from_document(document: Mapping[str, Any]) -> model_pb2.SafePsrlOptions:
    """The algorithm's options; the coefficient by number or by name."""
    check_fields(document, OPTION_FIELDS, "options.")
    fields = dict(document)
    coefficient = fields.get("pessimism_coefficient")
    if isinstance(coefficient, str):
        if coefficient not in PESSIMISM_COEFFICIENTS:
            names = ", ".join(PESSIMISM_COEFFICIENTS)
            raise InvalidDocumentError(f"options.pessimism_coefficient = {coefficient!r}: must be a number or one of {names}")
        fields["pessimism_coefficient"] = PESSIMISM_COEFFICIENTS[coefficient]
    options = model_pb2.SafePsrlOptions()
    fill(options, fields, "options.")
    return options


def part_from_document(part: str, document: Mapping[str, Any]) -> Message:
    """The part of a definition with that name in `PARTS`."""
    if part == "options":
        return options_from_document(document)
    message = PARTS[part]()
    check_fields(document, _fields_of(PARTS[part]), f"{part}.")
    fill(message, document, f"{part}.")
    return message


def spec_to_document(spec: model_pb2.AgentSpec) -> dict[str, Any]:
    """The document that `spec_from_document` reads as `spec`."""
    agent = _plain_fields(spec)
    cmdp = agent.pop("cmdp", {})
    if cmdp.pop("non_stationary", False):
        cmdp["stationary"] = False
    if cmdp.pop("continuing", False):
        cmdp["horizon"] = CONTINUING
    return {**cmdp, **({"agent": agent} if agent else {})}


def fill_agent(spec: model_pb2.AgentSpec, fields: dict[str, Any]) -> None:
    """Write the fields of a table `agent`."""
    check_fields(fields, AGENT_FIELDS, "agent.")
    for part in PARTS:
        if part in fields:
            document = _table_of_fields(f"agent.{part}", fields.pop(part))
            getattr(spec, part).CopyFrom(part_from_document(part, document))
    if "fallback_policy" in fields:
        table = table_of("agent.fallback_policy", fields.pop("fallback_policy"))
        if len(table.shape) != 2 or not all(value.is_integer() for value in table.values):
            raise InvalidDocumentError("agent.fallback_policy: must be a table of whole numbers, [horizon, num_states]")
        actions = [int(value) for value in table.values]
        spec.fallback_policy.CopyFrom(model_pb2.Policy(horizon=table.shape[0], num_states=table.shape[1], actions=actions))
    if "environment" in fields:
        notes = _table_of_fields("agent.environment", fields.pop("environment"))
        for name, text in notes.items():
            if not isinstance(text, str):
                raise InvalidDocumentError(f"agent.environment.{name} = {text!r:.{LONGEST_VALUE}}: must be text")
        spec.environment.update(notes)
    fill(spec, fields, "agent.")


def fill(message: Message, fields: Mapping[str, Any], where: str) -> None:
    """Write plain values and tables into the fields of the same name."""
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if name in UNKNOWN_ENTRIES:
            _fill_signal(message, name, table_of(where + name, value, unknown=True))
            continue
        if field.message_type is not None:
            convert = integer_table_of if field.message_type is model_pb2.IntegerTable.DESCRIPTOR else table_of
            getattr(message, name).CopyFrom(convert(where + name, value))
            continue
        if field.is_repeated:
            _fill_names(message, name, value, where)
            continue
        wrong = InvalidDocumentError(f"{where}{name} = {value!r:.{LONGEST_VALUE}}: {requirement(field)}")
        if (field.type == field.TYPE_BOOL) != isinstance(value, bool):  # protobuf takes true for 1, and 1 for true
            raise wrong
        try:
            setattr(message, name, value)
        except (TypeError, ValueError, OverflowError):
            raise wrong from None


def _fill_names(message: Message, name: str, value: object, where: str) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise InvalidDocumentError(f"{where}{name} = {value!r:.{LONGEST_VALUE}}: must be a list of names")
    getattr(message, name).extend(value)


def _fill_signal(message: Any, name: str, table: model_pb2.Table) -> None:
    """Write a reward or cost table, and which of its entries are unknown."""
    unknown = [isnan(entry) for entry in table.values]
    if any(unknown):
        getattr(message, UNKNOWN_ENTRIES[name]).CopyFrom(model_pb2.Table(shape=table.shape, values=unknown))
    values = [0.0 if isnan(entry) else entry for entry in table.values]
    getattr(message, name).CopyFrom(model_pb2.Table(shape=table.shape, values=values))


def _plain_fields(message: Message) -> dict[str, Any]:
    fields = {field.name: value for field, value in message.ListFields()}
    for name, mask in UNKNOWN_ENTRIES.items():
        if mask in fields:
            unknown = fields.pop(mask).values
            values = [nan if missing else entry for entry, missing in zip(fields[name].values, unknown, strict=True)]
            fields[name] = model_pb2.Table(shape=fields[name].shape, values=values)
    return {name: _plain_value(name, value) for name, value in fields.items()}


def _plain_value(name: str, value: Any) -> Any:
    if name == "constraints":
        return [_plain_fields(constraint) for constraint in value]
    if isinstance(value, model_pb2.Table | model_pb2.IntegerTable):
        return nested_lists(value.shape, [bool(entry) for entry in value.values] if name in MASKS else list(value.values))
    if isinstance(value, model_pb2.Policy):
        return nested_lists([value.horizon, value.num_states], list(value.actions))
    if name in NAMES:
        return list(value)
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return _plain_fields(value) if isinstance(value, Message) else value


def _table_of_fields(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidDocumentError(f"{where}: must be a table of fields")
    return dict(value)


def check_fields(document: Mapping[str, Any], known: tuple[str, ...], where: str, required: tuple[str, ...] = ()) -> None:
    for field in document:
        if field not in known:
            close = get_close_matches(field, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
            raise InvalidDocumentError(f"{where}{field}: is not a field; {hint}")
    for field in required:
        if field not in document:
            raise InvalidDocumentError(f"{where}{field}: is missing")


LARGEST_INTEGER: Final = 2**31  # an integer table's entries are below it


def table_of(field: str, value: object, *, unknown: bool = False) -> model_pb2.Table:
    """`value`, a number or lists in lists of numbers, as a table. Raises `InvalidDocumentError` if it is not rectangular.

    With `unknown`, entries may be None, and are NaN in the table.
    """
    shape: list[int] = []
    level: list[Any] = [value]
    while level and isinstance(level[0], list | tuple):
        length = len(level[0])
        if not all(isinstance(row, list | tuple) and len(row) == length for row in level):
            raise InvalidDocumentError(f"{field}: must be rectangular; its rows at depth {len(shape) + 1} differ in length")
        shape.append(length)
        level = [entry for row in level for entry in row]
    for entry in level:
        if not isinstance(entry, int | float) and not (unknown and entry is None):
            raise InvalidDocumentError(f"{field}: must be numbers, got {entry!r:.60}")
    try:
        return model_pb2.Table(shape=shape, values=[nan if entry is None else float(entry) for entry in level])
    except OverflowError:  # a whole number of hundreds of digits
        raise InvalidDocumentError(f"{field}: must be numbers of at most 308 digits") from None


def integer_table_of(field: str, value: object) -> model_pb2.IntegerTable:
    """The same of whole numbers."""
    table = table_of(field, value)
    for entry in table.values:
        if not (entry.is_integer() and abs(entry) < LARGEST_INTEGER):
            raise InvalidDocumentError(f"{field}: must be whole numbers below 2^31, got {entry:g}")
    return model_pb2.IntegerTable(shape=table.shape, values=[int(entry) for entry in table.values])


def nested_lists(shape: Sequence[int], values: Sequence[Any]) -> Any:
    """Lists in lists of that shape, row-major; the one value itself if the shape is empty."""
    if not shape:
        return values[0]
    width = prod(shape[1:])
    return [nested_lists(shape[1:], values[i * width : (i + 1) * width]) for i in range(shape[0])]
