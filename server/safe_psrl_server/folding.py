"""From what is stored to a record. Whatever cannot be folded is damage, of that agent alone."""

from collections.abc import Iterable, Mapping, Sequence

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.snapshot import restored
from safe_psrl_server.store.interface import DamagedStreamError, StoredStream


def folded(name: str, stream: StoredStream) -> AgentRecord:
    """The record that a stored stream gives, which has events. Raises `DamagedStreamError`."""
    if stream.version == 0:
        raise DamagedStreamError("nothing is stored under its name")
    try:
        record = restored(name, stream.snapshot) if stream.snapshot is not None else AgentRecord(name)
    except Exception as error:  # whatever it is, it is this agent's alone
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error
    apply_all(record, map(events_pb2.Event.FromString, stream.events))  # one at a time: a history may be long
    attach(record, stream.policies)
    if record.version != stream.version:
        raise DamagedStreamError(f"it folds to version {record.version}, not {stream.version}")
    return record


def parsed(payloads: Sequence[bytes]) -> list[events_pb2.Event]:
    try:
        return [events_pb2.Event.FromString(payload) for payload in payloads]
    except Exception as error:  # protobuf raises a type of its own for every implementation
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error


def apply_all(record: AgentRecord, events: Iterable[events_pb2.Event]) -> None:
    try:
        for event in events:
            record.apply(event)
    except Exception as error:  # whatever it is, it is this agent's alone
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error


def attach(record: AgentRecord, policies: Mapping[int, bytes]) -> None:
    """Give the record's episodes the policies that are stored beside their stream. Raises `DamagedStreamError`."""
    try:
        record.attach(policies)
    except Exception as error:  # whatever it is, it is this agent's alone
        raise DamagedStreamError(str(error)) from error
