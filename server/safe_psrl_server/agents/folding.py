"""From a stored stream to a record. Whatever cannot be folded is damage to that agent only."""

from collections.abc import Iterable, Mapping, Sequence

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import restored
from safe_psrl_server.store.interface import DamagedStreamError, StoredStream


def folded(name: str, stream: StoredStream) -> AgentRecord:
    """The record that a stored stream folds to. Raises `DamagedStreamError`."""
    if stream.version == 0:
        raise DamagedStreamError("nothing is stored under its name")
    try:
        record = restored(name, stream.snapshot) if stream.snapshot is not None else AgentRecord(name)
    except Exception as error:  # any failure is damage to this agent only
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error
    apply_all(record, map(events_pb2.Event.FromString, stream.events))  # one at a time: a stream may be long
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
    except Exception as error:  # any failure is damage to this agent only
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error


def attach(record: AgentRecord, policies: Mapping[int, bytes]) -> None:
    """Give the episodes of `record` the policies stored beside its stream. Raises `DamagedStreamError`."""
    try:
        record.attach(policies)
    except Exception as error:  # any failure is damage to this agent only
        raise DamagedStreamError(str(error)) from error
