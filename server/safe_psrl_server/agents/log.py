"""The log of an agent: who did what, when, and why. Kept by the fold, so that it outlives the events."""

from collections.abc import Sequence
from typing import Final

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import events_pb2

MOST_ENTRIES: Final = 256
KINDS: Final = {
    "agent_created": events_pb2.LOG_KIND_CREATED,
    "agent_updated": events_pb2.LOG_KIND_UPDATED,
    "agent_paused": events_pb2.LOG_KIND_PAUSED,
    "agent_resumed": events_pb2.LOG_KIND_RESUMED,
    "agent_imported": events_pb2.LOG_KIND_IMPORTED,
    "drift_detected": events_pb2.LOG_KIND_DRIFT_DETECTED,
}


def log_entry(event: events_pb2.Event, episode: int, spec: CmdpSpec) -> events_pb2.LogEntry | None:
    """The entry for `event`, after `episode` started episodes; None if it is not one for the log."""
    name = event.WhichOneof("kind") or ""
    kind = KINDS.get(name)
    if kind is None:
        return None
    content = getattr(event, name)
    if name == "agent_paused" and content.guard:
        kind = events_pb2.LOG_KIND_GUARDED
    details = drift_details(event.drift_detected, spec) if name == "drift_detected" else getattr(content, "changes", ())
    return events_pb2.LogEntry(
        time_micros=event.time_micros,
        kind=kind,
        episode=episode,
        by=getattr(content, "by", ""),
        reason=getattr(content, "reason", ""),
        details=details,
        rows=event.drift_detected.rows,
    )


def drift_details(detected: events_pb2.DriftDetected, spec: CmdpSpec) -> list[str]:
    """What was detected where, and what was done about it, in words."""
    done = (
        "the agent was paused"
        if detected.paused
        else {
            "alert": "nothing was forgotten",
            "forget": "what is older than the short memory was forgotten",
        }.get(detected.on_detect, detected.on_detect)
    )
    rows = [
        f"state {labelled(row.state, spec.state_names)}, action {labelled(row.action, spec.action_names)}: {row.statistic:.3g}"
        for row in detected.rows
    ]
    return [f"statistic {detected.statistic:.3g}; {done}", *rows]


def labelled(number: int, names: Sequence[str]) -> str:
    """A state or an action, with its name if it has one."""
    return f"{number} ({names[number]})" if names else str(number)
