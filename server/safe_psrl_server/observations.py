"""Steps that were reported, as they are stored: one in an event of its own, several in columns."""

from collections.abc import Sequence
from typing import NamedTuple

from safe_psrl.learner import AgentState, Transition
from safe_psrl_proto.v1 import events_pb2

Stored = tuple[int, Sequence[Transition], int]


class Observation(NamedTuple):
    """What an event of steps says, known before it is stored."""

    event: events_pb2.Event
    episode: int
    steps: Sequence[Transition]
    overridden: int  # how many actions were not the proposed ones
    state: AgentState | None = None  # what is learned after it, if that was worked out already


def step_event(now_micros: int, episode: int, step: Transition, overridden: bool) -> events_pb2.Event:
    event = events_pb2.Event(time_micros=now_micros)
    message = event.transition_observed
    message.episode = episode
    message.step, message.state, message.action, message.next_state, message.reward, costs = step
    message.costs.extend(costs)
    if overridden:
        message.overridden = True
    return event


def trajectory_event(now_micros: int, episode: int, steps: Sequence[Transition], overridden: int) -> events_pb2.Event:
    """Of one step at least."""
    event = events_pb2.Event(time_micros=now_micros)
    message = event.trajectory_observed
    numbers, states, actions, next_states, rewards, costs = zip(*steps, strict=True)
    message.episode, message.first_step, message.state, message.overridden = episode, numbers[0], states[0], overridden
    message.actions.extend(actions)
    message.next_states.extend(next_states)
    message.rewards.extend(rewards)
    message.costs.extend([cost for each in costs for cost in each])
    return event


def read(event: events_pb2.Event) -> Stored:
    """The episode, the steps, and of how many of them the event says that they were not the proposed ones."""
    if not event.HasField("trajectory_observed"):
        one = event.transition_observed
        return one.episode, (_step(one),), one.overridden
    message = event.trajectory_observed
    if message.steps:
        steps = [_step(step) for step in message.steps]
        return message.steps[0].episode, steps, sum(step.overridden for step in message.steps)
    next_states, costs = message.next_states[:], message.costs[:]
    width = len(costs) // len(next_states)
    steps = [
        Transition(message.first_step + i, state, action, next_state, reward, tuple(costs[i * width : (i + 1) * width]))
        for i, (state, action, next_state, reward) in enumerate(
            zip([message.state, *next_states[:-1]], message.actions, next_states, message.rewards, strict=True)
        )
    ]
    return message.episode, steps, message.overridden


def write_steps(record: events_pb2.EpisodeRecord, steps: Sequence[Transition]) -> None:
    """Into a snapshot, beside the beginning of their episode."""
    for step, state, action, next_state, reward, costs in steps:
        record.transitions.add(
            episode=record.started.episode,
            step=step,
            state=state,
            action=action,
            next_state=next_state,
            reward=reward,
            costs=costs,
        )


def read_steps(record: events_pb2.EpisodeRecord) -> list[Transition]:
    """Raises ValueError if they are not those of the episode, from the first on."""
    for number, message in enumerate(record.transitions):
        if (message.episode, message.step) != (record.started.episode, number):
            raise ValueError(f"step {number} of episode {record.started.episode} is out of place")
    return [_step(message) for message in record.transitions]


def _step(message: events_pb2.TransitionObserved) -> Transition:
    return Transition(message.step, message.state, message.action, message.next_state, message.reward, tuple(message.costs[:]))
