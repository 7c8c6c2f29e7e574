"""What a call means for a record: the events that it makes, and what it is answered. Decides; changes nothing.

Every function takes the record as it is and either returns events (maybe none) with what the reply is made of, or raises a
`ServiceError`, in which case nothing has happened.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from safe_psrl.learner import Plan, Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agent_record import COMPLETED, AgentRecord, Episode
from safe_psrl_server.conversion import KnownSignals, Move, write_policy
from safe_psrl_server.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StepGapError,
)
from safe_psrl_server.observations import Observation, step_event, trajectory_event

MAX_REQUEST_ID = 128
MOST_NOTED = 10_000  # moves of a problem, and steps, that are known to be possible
LONGEST_NOTED = 40  # bytes of a message: one with the fields of a move alone has fewer
ABANDONED = events_pb2.EPISODE_END_ABANDONED
Key = TypeVar("Key")
Value = TypeVar("Value")


class Reported(NamedTuple):
    """Where a transition was entered, and what came of it."""

    episode: Episode
    step: int
    next_state: int
    duplicate: bool
    done: bool  # the episode has ended
    is_last: bool  # by this step: a repeated call gets the reply that it got before


class Acted(NamedTuple):
    """An action, and where it belongs; episode 0 for a fallback outside any episode."""

    action: int
    episode: int
    step: int
    fallback: bool


# --- beginning and ending episodes


def repeated_start(record: AgentRecord, request: control_pb2.StartEpisodeRequest) -> Episode | None:
    """The episode that this very request began before, or None. Raises if its key was used for something else."""
    if len(request.request_id.encode()) > MAX_REQUEST_ID:
        raise InvalidArgumentError("request_id", f"must be at most {MAX_REQUEST_ID} bytes")
    if request.HasField("state"):
        check_state(record, "state", request.state)
        check_first_state(record, request.state)
    if not request.request_id:
        return None
    for episode in record.episodes.values():
        started = episode.started
        if started.request_id == request.request_id:
            same = started.HasField("state") == request.HasField("state") and started.state == request.state
            if not same:
                raise AlreadyExistsError(
                    f"request_id {request.request_id!r} began episode {episode.number} with another state",
                    "REQUEST_ID_USED",
                    episode=episode.number,
                )
            return episode
    return None


def make_room(
    record: AgentRecord, abandon_open: bool, now_micros: int, before: Sequence[events_pb2.Event] = ()
) -> list[events_pb2.Event]:
    """Events that close what stands in the way of a new episode. Raises if something does that must not be closed.

    `before` are events that will have been applied by then.
    """
    if record.paused:
        raise paused(record)
    ended = {event.episode_ended.episode for event in before if event.HasField("episode_ended")}
    open_episodes = [episode for episode in record.open_episodes if episode.number not in ended]
    if abandon_open:
        return [ending(episode, ABANDONED, now_micros) for episode in open_episodes]
    excess = len(open_episodes) - record.definition.max_open_episodes + 1
    if excess <= 0:
        return []
    stale_before = now_micros - record.definition.episode_timeout_micros
    stale = [episode for episode in open_episodes if episode.active_micros <= stale_before]
    if len(stale) < excess:
        first = open_episodes[0]
        raise FailedPreconditionError(
            f"episode {first.number} is open at step {first.next_step}: go on with it, end it, or ask to abandon it",
            "EPISODE_OPEN",
            open_episode=first.number,
            expected_step=first.next_step,
        )
    return [ending(episode, ABANDONED, now_micros) for episode in stale]


def trajectory_in(events: Sequence[events_pb2.Event]) -> events_pb2.Event | None:
    """The one that is a trajectory, if there is one."""
    return next((event for event in events if event.HasField("trajectory_observed")), None)


def starting(
    plan: Plan, request_id: str, state: int | None, planned_by: str, plan_seconds: float, now_micros: int
) -> events_pb2.Event:
    """The event that begins the episode of `plan`."""
    event = events_pb2.Event(time_micros=now_micros)
    started = event.episode_started  # written in place: a message that is put into another one is copied
    started.episode, started.request_id = plan.episode, request_id
    started.pessimism.extend(plan.pessimism.tolist())
    started.dual_scale.extend(plan.dual_scale.tolist())
    started.dual_variables.extend(plan.dual_variables.tolist())
    started.next_dual_variables.extend(plan.next_dual_variables.tolist())
    started.predicted_reward = plan.predicted_reward
    started.predicted_costs.extend(plan.predicted_costs.tolist())
    started.kernel_draws, started.kernel_satisfiable = plan.kernel_draws, plan.kernel_satisfiable
    started.planned_by, started.plan_seconds = planned_by, plan_seconds
    write_policy(plan.policy, plan.probabilities, started.policy)
    if state is not None:
        started.state = state
    return event


def ending(
    episode: Episode, end: "events_pb2.EpisodeEnd.ValueType", now_micros: int, steps: Sequence[Transition] = ()
) -> events_pb2.Event:
    """The event that ends `episode` after `steps` more."""
    played = [*episode.transitions, *steps]
    reward, costs = signals_of(played, len(episode.started.pessimism))
    event = events_pb2.Event(time_micros=now_micros)
    ended = event.episode_ended
    ended.episode, ended.end, ended.steps, ended.reward = episode.number, end, len(played), reward
    ended.costs.extend(costs)
    return event


def signals_of(steps: Sequence[Transition], num_constraints: int) -> tuple[float, list[float]]:
    """The sums of their rewards and costs."""
    reward, totals = 0.0, [0.0] * num_constraints
    for _, _, _, _, earned, costs in steps:
        reward += earned
        for i, cost in enumerate(costs):
            totals[i] += cost
    return reward, totals


def end_episode(
    record: AgentRecord, number: int, end: "events_pb2.EpisodeEnd.ValueType", now_micros: int
) -> tuple[list[events_pb2.Event], Episode]:
    if end == events_pb2.EPISODE_END_UNSPECIFIED:
        end = events_pb2.EPISODE_END_TRUNCATED
    if end not in {events_pb2.EPISODE_END_TRUNCATED, ABANDONED}:
        raise InvalidArgumentError("end", "must be TRUNCATED or ABANDONED; episodes complete by their last transition")
    episode = find_episode(record, number)
    return ([ending(episode, end, now_micros)] if episode.is_open else []), episode


# --- acting


def act(record: AgentRecord, request: control_pb2.GetActionRequest) -> Acted | None:
    """The action, or None if an episode must be begun first."""
    check_state(record, "state", request.state)
    episode = _meant_episode(record, request.episode if request.HasField("episode") else None)
    if episode is None:
        fallback = record.definition.fallback
        if record.paused and fallback is not None:
            step = request.step if request.HasField("step") else 0
            check_step(record, step)
            return Acted(int(fallback[step, request.state]), 0, step, True)
        return None
    check_may_act(record)
    if not episode.is_open:
        raise closed(episode)
    step = request.step if request.HasField("step") else episode.next_step
    check_step(record, step)
    refuse_gap(episode, step)
    if step == 0:
        check_first_state(record, request.state)
    action, fallback_used = action_at(record, episode, step, request.state)
    return Acted(action, episode.number, step, fallback_used)


def action_at(record: AgentRecord, episode: Episode, step: int, state: int) -> tuple[int, bool]:
    """What to play; of the fallback policy while the agent is paused and has one."""
    if record.paused and record.definition.fallback is not None:
        return int(record.definition.fallback[step, state]), True
    return episode.policy.item(step, state), False


# --- reporting


def report(
    record: AgentRecord, number: int | None, step: int | None, transition: control_pb2.Transition, now_micros: int
) -> tuple[list[events_pb2.Event], Reported]:
    """One transition into `number` (the open episode if None) at `step` (the next one if None)."""
    episode = _meant_episode(record, number)
    if episode is None:
        raise FailedPreconditionError("no episode is open: begin one with StartEpisode or GetAction", "NO_EPISODE")
    if step is None:
        step = episode.next_step
    else:
        check_step(record, step)
    if step < episode.next_step:
        seen = observe(record, step, transition)
        refuse_conflict(record, episode, seen, transition.terminal)
        return [], Reported(episode, step, seen.next_state, True, not episode.is_open, ends_at(episode, step))
    if not episode.is_open:
        raise closed(episode)
    refuse_gap(episode, step)
    seen = observe(record, step, transition)
    refuse_jump(record, seen, episode.transitions[-1] if step else None)
    overridden = int(episode.policy.item(step, seen.state) != seen.action)
    event = step_event(now_micros, episode.number, seen, overridden > 0 and episode.is_apart)
    record.foresee(Observation(event, episode.number, (seen,), overridden))
    done = transition.terminal or step == record.definition.spec.horizon - 1
    events = [event, ending(episode, COMPLETED, now_micros, (seen,))] if done else [event]
    return events, Reported(episode, step, seen.next_state, False, done, done)


def ends_at(episode: Episode, step: int) -> bool:
    """Whether `step`, which was reported, was the last: of the horizon, or because the episode was ended there."""
    return step == episode.policy.shape[0] - 1 or (not episode.is_open and step == episode.next_step - 1)


def report_all(
    record: AgentRecord, number: int, transitions: Sequence[control_pb2.Transition], now_micros: int
) -> tuple[list[events_pb2.Event], int, bool]:
    """A trajectory from step 0 on: its events, how many steps were there already, and whether the episode is done."""
    episode = find_episode(record, number)
    horizon = record.definition.spec.horizon
    if len(transitions) > horizon:
        raise InvalidArgumentError("transitions", f"must be at most the horizon, {horizon} (are {len(transitions)})")
    duplicates = min(episode.next_step, len(transitions))
    if len(transitions) > duplicates and not episode.is_open:
        raise closed(episode)
    fresh = (known_path(record, transitions) if not duplicates else None) or checked_path(record, episode, transitions)
    if not fresh:
        return [], duplicates, not episode.is_open
    overridden = overrides(episode, fresh)
    event = trajectory_event(now_micros, episode.number, fresh, overridden if episode.is_apart else 0)
    record.foresee(Observation(event, episode.number, fresh, overridden))
    done = transitions[-1].terminal or len(transitions) == horizon
    events = [event, ending(episode, COMPLETED, now_micros, fresh)] if done else [event]
    return events, duplicates, done


def known_path(record: AgentRecord, transitions: Sequence[control_pb2.Transition]) -> list[Transition] | None:
    """A trajectory from step 0 on of which every step is noted; None if one is not, or if they do not follow each other."""
    noted = record.definition.noted.steps.get
    messages = [transition.SerializeToString() for transition in transitions]
    path = [seen for seen in map(noted, enumerate(messages)) if seen is not None]
    if not path or len(path) < len(messages):
        return None
    _, states, _, next_states, _, _ = zip(*path, strict=True)
    follows = states[0] in record.definition.first_states and states[1:] == next_states[:-1]
    return path if follows else None


def checked_path(record: AgentRecord, episode: Episode, transitions: Sequence[control_pb2.Transition]) -> list[Transition]:
    """What a trajectory from step 0 on adds to `episode`, looked at step by step."""
    before = episode.transitions[-1] if episode.transitions else None
    fresh = list[Transition]()
    for step, transition in enumerate(transitions):
        seen = observe(record, step, transition, "transitions[{}]")
        if step < episode.next_step:
            refuse_conflict(record, episode, seen, transition.terminal)
            continue
        if transition.terminal and step < len(transitions) - 1:
            raise InvalidArgumentError(f"transitions[{step}].terminal", "is set, but more transitions follow")
        refuse_jump(record, seen, before, "transitions[{}]")
        fresh.append(seen)
        before = seen
    return fresh


def observe(record: AgentRecord, step: int, transition: control_pb2.Transition, place: str = "transition") -> Transition:
    """How `transition` will be stored: checked, and with the known signals where they were left out.

    `place` is where it stands in the request, with the step to be put in.
    """
    message = transition.SerializeToString()
    return record.definition.noted.steps.get((step, message)) or checked_step(record, step, transition, message, place)


def checked_step(record: AgentRecord, step: int, transition: control_pb2.Transition, message: bytes, place: str) -> Transition:
    """The same of a transition that is not noted, which `message` is on the wire; it is noted if it says just a move."""
    definition = record.definition
    state, action, next_state = transition.state, transition.action, transition.next_state
    move = (step if definition.varies_by_step else 0, state, action, next_state)
    reward, costs = known = definition.noted.moves.get(move) or checked_move(record, move, place.format(step))
    if transition.HasField("reward"):
        reward = transition.reward
        check_signal(f"{place.format(step)}.reward", reward)
    elif definition.learns_reward:
        raise InvalidArgumentError(f"{place.format(step)}.reward", "is missing, and this agent learns its reward")
    if transition.costs:
        costs = tuple(transition.costs)
        if len(costs) != len(known[1]):
            wanted = f"must be {len(known[1])}, one for each constraint (are {len(costs)})"
            raise InvalidArgumentError(f"{place.format(step)}.costs", wanted)
        for i, cost in enumerate(costs):
            check_signal(f"{place.format(step)}.costs[{i}]", cost)
    elif definition.learns_costs:
        raise InvalidArgumentError(f"{place.format(step)}.costs", "are missing, and this agent learns its costs")
    seen = Transition(step, state, action, next_state, reward, costs)
    says_more = transition.HasField("reward") or transition.costs or transition.terminal
    if not says_more and len(message) <= LONGEST_NOTED:
        note(definition.noted.steps, (step, message), seen)
    return seen


def overrides(episode: Episode, steps: Sequence[Transition]) -> int:
    """How many of `steps` have another action than proposed."""
    proposed = episode.policy.item
    return sum([proposed(step, state) != action for step, state, action, _, _, _ in steps])


def checked_move(record: AgentRecord, move: Move, place: str) -> KnownSignals:
    """What is known of a move that is possible; it is noted."""
    definition, spec, (step, state, action, next_state) = record.definition, record.definition.spec, move
    check_state(record, f"{place}.state", state)
    check_state(record, f"{place}.next_state", next_state)
    if not 0 <= action < spec.num_actions:
        raise InvalidArgumentError(f"{place}.action", f"must be from 0 to {spec.num_actions - 1} (is {action})")
    if not spec.available_actions[state, action]:
        raise InvalidArgumentError(f"{place}.action", f"{action} is not available in state {state}", "ACTION_UNAVAILABLE")
    if spec.place_of(step, state, action, next_state) < 0:
        raise InvalidArgumentError(
            f"{place}.next_state", f"{next_state} is outside the support of state {state}, action {action}", "OUTSIDE_SUPPORT"
        )
    reward, *costs = spec.signals[:, step % spec.signals.shape[1], state, action].tolist()
    known = reward, tuple(costs)
    note(definition.noted.moves, move, known)
    return known


def note(noted: dict[Key, Value], key: Key, value: Value) -> None:
    """For the next time."""
    if len(noted) >= MOST_NOTED:
        noted.clear()
    noted[key] = value


def check_signal(field: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidArgumentError(field, f"must be a number from 0 to 1 (is {value})")


# --- what is refused, and how


def find_episode(record: AgentRecord, number: int) -> Episode:
    episode = record.episodes.get(number)
    if episode is not None:
        return episode
    if 1 <= number <= record.state.episode:
        raise FailedPreconditionError(f"episode {number} is closed", "EPISODE_CLOSED", episode=number)
    raise NotFoundError(f"there is no episode {number}; the latest is {record.state.episode}", "EPISODE_NOT_FOUND")


def check_may_act(record: AgentRecord) -> None:
    if record.paused and record.definition.fallback is None:
        raise paused(record)


def paused(record: AgentRecord) -> FailedPreconditionError:
    return FailedPreconditionError(f"the agent is paused: {record.pause_reason or 'no reason given'}", "AGENT_PAUSED")


def closed(episode: Episode) -> FailedPreconditionError:
    how = events_pb2.EpisodeEnd.Name(episode.end).removeprefix("EPISODE_END_").lower()
    return FailedPreconditionError(
        f"episode {episode.number} is closed ({how} after {episode.next_step} steps)",
        "EPISODE_CLOSED",
        episode=episode.number,
        end=how,
    )


def check_state(record: AgentRecord, field: str, state: int) -> None:
    last = record.definition.spec.num_states - 1
    if not 0 <= state <= last:
        raise InvalidArgumentError(field, f"must be from 0 to {last} (is {state})")


def check_step(record: AgentRecord, step: int) -> None:
    last = record.definition.spec.horizon - 1
    if not 0 <= step <= last:
        raise InvalidArgumentError("step", f"must be from 0 to {last} (is {step})")


def check_first_state(record: AgentRecord, state: int) -> None:
    if state not in record.definition.first_states:
        raise InvalidArgumentError("state", f"episodes of this agent do not begin in state {state}", "NOT_AN_INITIAL_STATE")


def refuse_gap(episode: Episode, step: int) -> None:
    if step > episode.next_step:
        raise StepGapError(
            f"step {step} of episode {episode.number} comes too early: step {episode.next_step} was not reported",
            expected_step=episode.next_step,
            episode=episode.number,
        )


def refuse_jump(record: AgentRecord, seen: Transition, before: Transition | None, place: str = "transition") -> None:
    """A step begins where the one before led; the first one where episodes begin."""
    if before is not None and before.next_state != seen.state:
        raise InvalidArgumentError(
            f"{place.format(seen.step)}.state",
            f"must be {before.next_state}, where the step before led (is {seen.state})",
            "STATE_MISMATCH",
            expected_state=before.next_state,
        )
    if before is None and seen.state not in record.definition.first_states:
        raise InvalidArgumentError(
            f"{place.format(seen.step)}.state",
            f"episodes of this agent do not begin in state {seen.state}",
            "NOT_AN_INITIAL_STATE",
        )


def refuse_conflict(record: AgentRecord, episode: Episode, seen: Transition, terminal: bool) -> None:
    """The same step again must be the same in every field."""
    last = seen.step == episode.next_step - 1
    ended_here = last and episode.end == COMPLETED
    at_horizon = seen.step == record.definition.spec.horizon - 1
    if episode.transitions[seen.step] != seen or (terminal != ended_here and not at_horizon):
        raise AlreadyExistsError(
            f"step {seen.step} of episode {episode.number} was reported with other values",
            "TRANSITION_CONFLICT",
            episode=episode.number,
            step=seen.step,
        )


def _meant_episode(record: AgentRecord, number: int | None) -> Episode | None:
    """The episode `number`; if None, the open one, or None if there is not exactly one."""
    if number is not None:
        return find_episode(record, number)
    open_episodes = record.open_episodes
    if len(open_episodes) > 1:
        raise FailedPreconditionError(f"{len(open_episodes)} episodes are open: say which is meant", "EPISODE_AMBIGUOUS")
    return open_episodes[0] if open_episodes else None
