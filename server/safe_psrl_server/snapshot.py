"""A record as one message, and back: how streams are shortened and agents travel."""

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import SNAPSHOT_FORMAT, AgentRecord
from safe_psrl_server.conversion import pack


def snapshot_of(record: AgentRecord) -> events_pb2.Snapshot:
    """All that `AgentRecord.restore` needs to give an equal record."""
    snapshot = events_pb2.Snapshot(
        format=SNAPSHOT_FORMAT, version=record.version, deleted=not record.exists, created_micros=record.created_micros
    )
    if not record.exists:
        return snapshot
    state = record.settled_state()
    snapshot.spec.CopyFrom(record.definition.message)
    snapshot.episode = state.episode
    snapshot.dual_variables.extend(state.dual_variables)
    snapshot.transition_counts.CopyFrom(pack(state.transition_counts))
    snapshot.signal_sums.CopyFrom(pack(state.signal_sums))
    snapshot.visits.CopyFrom(pack(state.visits))
    snapshot.totals.CopyFrom(record.totals)
    snapshot.paused, snapshot.pause_reason = record.paused, record.pause_reason
    for episode in record.episodes.values():
        snapshot.episodes.add(
            started=episode.started, transitions=episode.transitions, end=episode.end, active_micros=episode.active_micros
        )
    return snapshot


def restored(name: str, data: bytes) -> AgentRecord:
    """The record that was serialised into `data`, at its version."""
    snapshot = events_pb2.Snapshot.FromString(data)
    record = AgentRecord(name)
    record.restore(snapshot)
    record.version = snapshot.version
    return record
