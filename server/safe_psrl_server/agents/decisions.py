"""What a call means for a record: the events it leads to, and what its reply is made of. Pure: nothing is changed.

Every function takes a record and either returns events (maybe none) and the content of the reply, or raises a
`ServiceError`, in which case nothing has happened.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.episode import Episode
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
    """Events to append, and what the caller receives once they are durable: the reply, or the refusal if there is one."""

    events: Sequence[events_pb2.Event]
    reply: Reply
    refusal: ServiceError | None = None


class PlanNeeded(NamedTuple, Generic[Reply]):
    """A decision that needs a plan for `state`; `finish` turns the plan into the decision."""

    learner: SafePsrl
    state: AgentState
    finish: Callable[[TimedPlan], Decision[Reply]]


class Reported(NamedTuple):
    """Where a transition was entered, and what follows from it."""

    episode: Episode
    step: int
    next_state: int
    duplicate: bool
    done: bool  # the episode has ended
    is_last: bool  # by this step, so that a repeated call gets the same reply
    record: AgentRecord


class ReportedSteps(NamedTuple):
    """The part of a trajectory that is new, and whether the episode is complete with it."""

    fresh: Sequence[Transition]
    duplicates: int
    done: bool


class Acted(NamedTuple):
    """An action and its place; episode 0 for a fallback outside any episode."""

    action: int
    episode: int
    step: int
    fallback: bool
    incarnation: int


# --- starting and ending episodes


def repeated_start(record: AgentRecord, request: control_pb2.StartEpisodeRequest) -> Episode | None:
    """The episode that an equal request started before, or None. Raises if its key was used for something else."""
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
            return Acted(int(fallback[step, request.state]), 0, step, True, record.created_micros)
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
    return Acted(action, episode.number, step, fallback_used, record.created_micros)


def action_at(record: AgentRecord, episode: Episode, step: int, state: int) -> tuple[int, bool]:
    """The action to play, and whether it is the fallback policy's: that of a paused agent that has one."""
    if record.paused and record.definition.fallback is not None:
        return int(record.definition.fallback[step, state]), True
    return episode.policy.item(step, state), False


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

    If the next action is requested, too, a paused agent needs a fallback policy.
    """
    check_incarnation(record, incarnation)
    if wants_action:
        check_may_act(record)
    episode = current_episode(record, number)
    if episode is None:
        raise FailedPreconditionError("no episode is open: start one with StartEpisode or GetAction", "NO_EPISODE")
    if step is None:
        step = episode.next_step
    else:
        check_step(record, step)
    if step < episode.next_step:
        seen = checked_transition(episode.definition, step, transition, "transition")
        check_repetition(record, episode, seen, transition.terminal)
        return Decision([], Reported(episode, step, seen.next_state, True, not episode.is_open, ends_at(episode, step), record))
    if not episode.is_open:
        raise closed(episode)
    check_no_gap(episode, step)
    seen = checked_transition(episode.definition, step, transition, "transition")
    check_continuity(record, seen, episode.transitions[-1] if step else None, "transition")
    done = transition.terminal or step == record.definition.spec.horizon - 1
    events = observing(record, episode, [seen], done, now_micros)
    return Decision(events, Reported(episode, step, seen.next_state, False, done, done, record))


def ends_at(episode: Episode, step: int) -> bool:
    """Whether the reported `step` was the last one: of the horizon, or because the episode was ended there."""
    return step == episode.policy.shape[0] - 1 or (not episode.is_open and step == episode.next_step - 1)


def report_all(record: AgentRecord, episode: Episode, transitions: Sequence[control_pb2.Transition]) -> ReportedSteps:
    """A trajectory of `episode` from step 0 on, checked step by step."""
    horizon = record.definition.spec.horizon
    if len(transitions) > horizon:
        raise InvalidArgumentError("transitions", f"must be at most the horizon, {horizon} (are {len(transitions)})")
    duplicates = min(episode.next_step, len(transitions))
    if len(transitions) > duplicates and not episode.is_open:
        raise closed(episode)
    previous = episode.transitions[-1] if episode.transitions else None
    fresh = list[Transition]()
    for step, transition in enumerate(transitions):
        field = f"transitions[{step}]"
        seen = checked_transition(episode.definition, step, transition, field)
        if step < duplicates:
            check_repetition(record, episode, seen, transition.terminal)
            continue
        if transition.terminal and step < len(transitions) - 1:
            raise InvalidArgumentError(f"{field}.terminal", "is set, but more transitions follow")
        check_continuity(record, seen, previous, field)
        fresh.append(seen)
        previous = seen
    if not fresh:
        return ReportedSteps(fresh, duplicates, not episode.is_open)
    return ReportedSteps(fresh, duplicates, transitions[-1].terminal or len(transitions) == horizon)
