"""Checks of a call's fields: states, steps, episodes, transitions. Each raises a `ServiceError` and changes nothing."""

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.definition_checks import MAX_EPOCH_STEPS
from safe_psrl_server.agents.episode import COMPLETED, Episode
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StepGapError,
)


def check_incarnation(record: AgentRecord, incarnation: int) -> None:
    """Reject a call for a deleted agent, so that it does not change a new agent of the same name. 0 stands for any agent."""
    if incarnation not in {0, record.created_micros}:
        raise NotFoundError(f"agent {record.name!r} was deleted and created again since", "AGENT_REPLACED", agent=record.name)


def check_definition_version(record: AgentRecord, expected: int) -> None:
    """Reject an update of a definition that has changed since the caller read it. 0 stands for any version."""
    if expected not in {0, record.definition_version}:
        raise FailedPreconditionError(
            f"the definition has version {record.definition_version}, not {expected}: read it again, then repeat the update",
            "DEFINITION_CHANGED",
            definition_version=record.definition_version,
        )


def find_episode(record: AgentRecord, number: int) -> Episode:
    episode = record.episodes.get(number)
    if episode is not None:
        return episode
    if 1 <= number <= record.episode:
        raise FailedPreconditionError(f"episode {number} is closed and no longer kept", "EPISODE_CLOSED", episode=number)
    raise NotFoundError(f"there is no episode {number}; the latest is {record.episode}", "EPISODE_NOT_FOUND")


def current_episode(record: AgentRecord, number: int | None) -> Episode | None:
    """The episode `number`; if None, the open one, or None if none is open."""
    if number is not None:
        return find_episode(record, number)
    open_episodes = record.open_episodes
    if len(open_episodes) > 1:
        raise FailedPreconditionError(f"{len(open_episodes)} episodes are open: set episode", "EPISODE_AMBIGUOUS")
    return open_episodes[0] if open_episodes else None


def check_may_act(record: AgentRecord) -> None:
    if record.paused and record.definition.fallback is None:
        raise paused(record.pause_reason)


def paused(reason: str) -> FailedPreconditionError:
    return FailedPreconditionError(f"the agent is paused: {reason or 'no reason given'}", "AGENT_PAUSED")


def closed(episode: Episode) -> FailedPreconditionError:
    end = events_pb2.EpisodeEnd.Name(episode.end).removeprefix("EPISODE_END_").lower()
    return FailedPreconditionError(
        f"episode {episode.number} is closed ({end} after {episode.next_step} steps)",
        "EPISODE_CLOSED",
        episode=episode.number,
        end=end,
    )


def check_state(definition: Definition, field: str, state: int) -> None:
    last = definition.spec.num_states - 1
    if not 0 <= state <= last:
        raise InvalidArgumentError(field, f"must be from 0 to {last}, got {state}")


def check_step(record: AgentRecord, step: int) -> None:
    last = (MAX_EPOCH_STEPS if record.definition.spec.is_continuing else record.definition.spec.horizon) - 1
    if not 0 <= step <= last:
        raise InvalidArgumentError("step", f"must be from 0 to {last}, got {step}")


def check_first_state(record: AgentRecord, state: int, field: str = "state") -> None:
    if not record.definition.spec.is_continuing and state not in record.definition.first_states:
        raise InvalidArgumentError(field, f"episodes of this agent do not begin in state {state}", "NOT_AN_INITIAL_STATE")


def check_no_gap(episode: Episode, step: int) -> None:
    if step > episode.next_step:
        raise StepGapError(
            f"step {step} of episode {episode.number} comes too early: step {episode.next_step} was not reported",
            expected_step=episode.next_step,
            episode=episode.number,
        )


def check_continuity(record: AgentRecord, episode: Episode, seen: Transition, previous: Transition | None, field: str) -> None:
    """A step begins where the previous one led; the first one where episodes begin, or the epoch began."""
    expected = episode.started.state if previous is None else previous.next_state
    if previous is None and not episode.is_epoch:
        check_first_state(record, seen.state, f"{field}.state")
    elif expected != seen.state:
        raise InvalidArgumentError(
            f"{field}.state",
            f"must be {expected}, where the previous step led, got {seen.state}",
            "STATE_MISMATCH",
            expected_state=expected,
        )


def check_repetition(record: AgentRecord, episode: Episode, seen: Transition, terminal: bool) -> None:
    """A step that is reported again must be equal in every field."""
    ended_here = seen.step == episode.next_step - 1 and episode.end == COMPLETED
    at_horizon = episode.is_epoch or seen.step == record.definition.spec.horizon - 1
    if episode.transitions[seen.step] != seen or (terminal != ended_here and not at_horizon):
        raise AlreadyExistsError(
            f"step {seen.step} of episode {episode.number} was reported with other values",
            "TRANSITION_CONFLICT",
            episode=episode.number,
            step=seen.step,
        )


def checked_transition(definition: Definition, step: int, transition: control_pb2.Transition, field: str) -> Transition:
    """`transition` as it is stored: possible, and with the known signals where they were left out."""
    state, action, next_state = transition.state, transition.action, transition.next_state
    _check_move(definition, step, state, action, next_state, field)
    spec = definition.spec
    if transition.terminal and spec.is_continuing:
        raise InvalidArgumentError(f"{field}.terminal", "must not be set: a continuing task has no end; see EndEpisode")
    reward, *known = spec.signals[:, step % spec.signals.shape[1], state, action].tolist()
    if transition.HasField("reward"):
        reward = transition.reward
        check_signal(f"{field}.reward", reward)
    elif definition.learns_reward:
        raise InvalidArgumentError(f"{field}.reward", "is missing, and this agent learns its reward")
    costs = tuple(transition.costs) or tuple(known)
    if transition.costs:
        if len(costs) != len(known):
            wanted = f"must have {len(known)} entries, one per constraint"
            raise InvalidArgumentError(f"{field}.costs", f"{wanted}, got {len(costs)}")
        for i, cost in enumerate(costs):
            check_signal(f"{field}.costs[{i}]", cost)
    elif definition.learns_costs:
        raise InvalidArgumentError(f"{field}.costs", "are missing, and this agent learns its costs")
    return Transition(step, state, action, next_state, reward, costs)


def _check_move(definition: Definition, step: int, state: int, action: int, next_state: int, field: str) -> None:
    spec = definition.spec
    check_state(definition, f"{field}.state", state)
    check_state(definition, f"{field}.next_state", next_state)
    if not 0 <= action < spec.num_actions:
        raise InvalidArgumentError(f"{field}.action", f"must be from 0 to {spec.num_actions - 1}, got {action}")
    if not spec.available_actions[state, action]:
        raise InvalidArgumentError(f"{field}.action", f"{action} is not available in state {state}", "ACTION_UNAVAILABLE")
    if spec.place_of(step, state, action, next_state) < 0:
        raise InvalidArgumentError(
            f"{field}.next_state", f"{next_state} is outside the support of state {state}, action {action}", "OUTSIDE_SUPPORT"
        )


def check_signal(field: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidArgumentError(field, f"must be a number from 0 to 1, got {value}")
