"""Decides calls: which events a call adds to a record, and what its reply contains. Pure: nothing is changed.

Every function takes a record and either returns events (maybe none) and the content of the reply, or raises a
`ServiceError`, in which case nothing has happened.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from safe_psrl.continuing import ContinuingPsrl
from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.episode import Episode, PairVisits
from safe_psrl_server.agents.episode_events import TimedPlan, ending, observing
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.validation import (
    check_continuity,
    check_first_state,
    check_incarnation,
    check_may_act,
    check_no_gap,
    check_repetition,
    check_state,
    check_step,
    checked_transition,
    closed,
    current_episode,
    find_episode,
    paused,
)
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, ServiceError

MAX_REQUEST_ID: Final = 128
ABANDONED: Final = events_pb2.EPISODE_END_ABANDONED
Reply = TypeVar("Reply")


class Decision(NamedTuple, Generic[Reply]):
    """Events to append, and what the caller receives once they are durable: the reply, or the error that rejects the call."""

    events: Sequence[events_pb2.Event]
    reply: Reply
    refusal: ServiceError | None = None


class PlanNeeded(NamedTuple, Generic[Reply]):
    """A decision that needs a plan for `state`; `finish` turns the plan into the decision."""

    learner: SafePsrl | ContinuingPsrl
    state: AgentState
    finish: Callable[[TimedPlan], Decision[Reply]]
    start: int = 0  # the state in which an epoch starts


class Reported(NamedTuple):
    """Where a transition was recorded, and what follows from it."""

    episode: Episode
    step: int
    seen: Transition
    duplicate: bool
    done: bool  # the episode has ended
    is_last: bool  # the episode ended with this step; a repeated call gets the same reply
    record: AgentRecord

    @property
    def next_state(self) -> int:
        return self.seen.next_state


class Acted(NamedTuple):
    """An action and its place; episode 0 for a fallback outside any episode."""

    action: int
    episode: int
    step: int
    fallback: bool
    incarnation: int
    advisory: bool  # a proposal: the agent is in shadow


# --- starting and ending episodes


def repeated_start(record: AgentRecord, request: control_pb2.StartEpisodeRequest) -> Episode | None:
    """The episode that an equal request started before, or None. Raises if its key was used with other values."""
    check_incarnation(record, request.incarnation)
    if len(request.request_id.encode()) > MAX_REQUEST_ID:
        raise InvalidArgumentError("request_id", f"must be at most {MAX_REQUEST_ID} bytes")
    if request.HasField("state"):
        check_state(record.definition, "state", request.state)
        check_first_state(record, request.state)
    if not request.request_id:
        return None
    for episode in record.episodes.values():
        started = episode.started
        if started.request_id == request.request_id:
            if started.HasField("state") != request.HasField("state") or started.state != request.state:
                raise AlreadyExistsError(
                    f"request_id {request.request_id!r} started episode {episode.number} with another state",
                    "REQUEST_ID_USED",
                    episode=episode.number,
                )
            return episode
    return None


def start_of(record: AgentRecord, episode: Episode) -> events_pb2.EpisodeStarted:
    """How `episode` was started, for a repeated reply. If the agent was demoted since, its actions are marked as proposals."""
    if episode.is_shadow or not record.definition.is_shadow:
        return episode.started
    advisory = events_pb2.EpisodeStarted()
    advisory.CopyFrom(episode.started)
    advisory.shadow = True
    return advisory


def make_room(record: AgentRecord, abandon_open: bool, now_micros: int, ended: int | None = None) -> list[events_pb2.Event]:
    """Events that close what prevents a new episode. Raises if an open episode prevents it and must not be closed.

    `ended` is an episode that ends in the same decision.
    """
    if record.paused:
        raise paused(record.pause_reason)
    open_episodes = [episode for episode in record.open_episodes if episode.number != ended]
    if abandon_open:
        return [ending(episode, ABANDONED, now_micros) for episode in open_episodes]
    excess = len(open_episodes) - record.definition.max_open_episodes + 1
    if excess <= 0:
        return []
    timeout = record.definition.episode_timeout_micros
    # A time that is far in the future was written before the clock was set back.
    inactive = [episode for episode in open_episodes if abs(now_micros - episode.active_micros) >= timeout]
    if len(inactive) < excess:
        first = open_episodes[0]
        raise FailedPreconditionError(
            f"episode {first.number} is open at step {first.next_step}: continue it, end it, or set abandon_open",
            "EPISODE_OPEN",
            open_episode=first.number,
            expected_step=first.next_step,
        )
    return [ending(episode, ABANDONED, now_micros) for episode in inactive]


def end_episode(
    record: AgentRecord, number: int, end: "events_pb2.EpisodeEnd.ValueType", now_micros: int, *, incarnation: int = 0
) -> Decision[Episode]:
    check_incarnation(record, incarnation)
    if end == events_pb2.EPISODE_END_UNSPECIFIED:
        end = events_pb2.EPISODE_END_TRUNCATED
    if end not in {events_pb2.EPISODE_END_TRUNCATED, ABANDONED}:
        raise InvalidArgumentError("end", "must be TRUNCATED or ABANDONED; episodes complete by their last transition")
    episode = find_episode(record, number)
    return Decision([ending(episode, end, now_micros)] if episode.is_open else [], episode)


# --- acting


def act(record: AgentRecord, request: control_pb2.GetActionRequest) -> Acted | None:
    """The action, or None if an episode must be started first."""
    check_incarnation(record, request.incarnation)
    check_state(record.definition, "state", request.state)
    episode = current_episode(record, request.episode if request.HasField("episode") else None)
    if episode is None:
        fallback = record.definition.fallback
        if record.paused and fallback is not None:
            step = request.step if request.HasField("step") else 0
            check_step(record, step)
            advisory = record.definition.is_shadow
            return Acted(int(fallback[step % len(fallback), request.state]), 0, step, True, record.created_micros, advisory)
        return None
    check_may_act(record)
    if not episode.is_open:
        raise closed(episode)
    step = request.step if request.HasField("step") else episode.next_step
    check_step(record, step)
    check_no_gap(episode, step)
    if step == 0:
        check_first_state(record, request.state)
    action, fallback_used = action_at(record, episode, step, request.state)
    return Acted(action, episode.number, step, fallback_used, record.created_micros, is_advisory(record, episode))


def action_at(record: AgentRecord, episode: Episode, step: int, state: int) -> tuple[int, bool]:
    """The action to play, and whether the fallback policy chose it, as it does for a paused agent that has one."""
    if record.paused and record.definition.fallback is not None:
        fallback = record.definition.fallback
        return int(fallback[step % len(fallback), state]), True
    return episode.action(step, state), False


def is_advisory(record: AgentRecord, episode: Episode) -> bool:
    """Whether actions are proposals: if the episode was started in shadow, or the agent has been demoted since."""
    return episode.is_shadow or record.definition.is_shadow


# --- reporting


def report(
    record: AgentRecord,
    number: int | None,
    step: int | None,
    transition: control_pb2.Transition,
    now_micros: int,
    *,
    incarnation: int = 0,
    wants_action: bool = False,
) -> Decision[Reported]:
    """One transition of `number` (the open episode if None) at `step` (the next one if None).

    If the next action is requested, too, a paused agent needs a fallback policy; but not for a repetition of the last step,
    whose reply has no action: a guard may have paused the agent in the commit of that step.
    """
    check_incarnation(record, incarnation)
    episode = current_episode(record, number)
    if wants_action and not _repeats_the_end(episode, step):
        check_may_act(record)
    if episode is None:
        raise FailedPreconditionError("no episode is open: start one with StartEpisode or GetAction", "NO_EPISODE")
    if step is None:
        step = episode.next_step
    else:
        check_step(record, step)
    if step < episode.next_step:
        seen = checked_transition(episode.definition, step, transition, "transition")
        check_repetition(record, episode, seen, transition.terminal)
        return Decision([], Reported(episode, step, seen, True, not episode.is_open, ends_at(episode, step), record))
    if not episode.is_open:
        raise closed(episode)
    check_no_gap(episode, step)
    seen = checked_transition(episode.definition, step, transition, "transition")
    check_continuity(record, episode, seen, episode.transitions[-1] if step else None, "transition")
    done = is_done(record, episode, [seen], terminal=transition.terminal)
    events = observing(record, episode, [seen], done, now_micros)
    return Decision(events, Reported(episode, step, seen, False, done, done, record))


def is_done(record: AgentRecord, episode: Episode, steps: Sequence[Transition], *, terminal: bool) -> bool:
    """Whether `episode` ends with its next `steps`."""
    last = steps[-1].step
    if not episode.is_epoch:
        return terminal or last == record.definition.spec.horizon - 1
    if episode.is_shadow != record.definition.is_shadow:  # an epoch is charged to the agent as a whole, or not at all
        return True
    return last + 1 >= record.definition.message.max_epoch_steps or visits_are_enough(record, episode, steps)


def visits_are_enough(record: AgentRecord, epoch: Episode, steps: Sequence[Transition]) -> bool:
    """Whether the next `steps` end `epoch`: some pair then has as many visits in the epoch as before it."""
    visited = Counter((step.state, step.action) for step in steps)
    first = {(step.state, step.action): record.pair_visits(epoch, step) for step in steps}
    return any(PairVisits(before, visits + visited[pair] - 1).are_enough for pair, (before, visits) in first.items())


def _repeats_the_end(episode: Episode | None, step: int | None) -> bool:
    return episode is not None and step is not None and step < episode.next_step and ends_at(episode, step)


def ends_at(episode: Episode, step: int) -> bool:
    """Whether the reported `step` was the last one, by the horizon or because the episode ended there."""
    return step == episode.definition.spec.horizon - 1 or (not episode.is_open and step == episode.next_step - 1)
