"""The transitions of an agent that are still stored one by one: those that no snapshot has replaced by counts."""

from collections.abc import Iterable
from typing import NamedTuple

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.episode import corrected
from safe_psrl_server.agents.events import Observation, read_steps, write_steps
from safe_psrl_server.store.interface import StoredStream


class StoredTransitions(NamedTuple):
    """The steps of each episode, and how many other transitions were learned."""

    episodes: list[events_pb2.TransitionsObserved]
    dropped: int


def stored_transitions(stream: StoredStream) -> StoredTransitions:
    """The transitions of a stream: from the episodes in its snapshot, then from its events. Corrections are applied."""
    episodes, dropped = dict[int, list[Transition]](), 0
    if stream.snapshot is not None:
        dropped += _kept(events_pb2.Snapshot.FromString(stream.snapshot), episodes)
    for data in stream.events:
        event = events_pb2.Event.FromString(data)
        match event.WhichOneof("kind"):
            case "transitions_observed":
                seen = read_steps(event.transitions_observed)
                episodes.setdefault(seen.episode, []).extend(seen.steps)
            case "signal_corrected":
                _correct(episodes, [event.signal_corrected])
            case "agent_imported":
                dropped += _kept(event.agent_imported.snapshot, episodes)
    messages = []
    for number, steps in sorted(episodes.items()):
        message = events_pb2.TransitionsObserved()
        write_steps(message, Observation(number, steps, 0))
        messages.append(message)
    return StoredTransitions(messages, dropped)


def _kept(snapshot: events_pb2.Snapshot, episodes: dict[int, list[Transition]]) -> int:
    """Add the episodes that `snapshot` contains. Returns the number of the other transitions."""
    kept = 0
    for episode in snapshot.episodes:
        steps = list(read_steps(episode.transitions).steps)
        if steps:
            episodes[episode.started.episode] = steps
            _correct(episodes, episode.corrections)
        kept += len(steps)
    return snapshot.totals.transitions - kept


def _correct(episodes: dict[int, list[Transition]], corrections: Iterable[events_pb2.SignalCorrected]) -> None:
    for one in corrections:
        steps = episodes[one.episode]
        steps[one.step] = corrected(steps[one.step], one)
