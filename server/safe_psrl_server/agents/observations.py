"""Reported steps as they are stored: in columns, one message for any number of consecutive steps of an episode."""

from collections.abc import Sequence
from typing import NamedTuple

from safe_psrl.learner import Transition
from safe_psrl_proto.v1 import events_pb2


class Observation(NamedTuple):
    """The content of a `TransitionsObserved` message."""

    episode: int
    steps: Sequence[Transition]
    overridden: int  # steps whose action was not the proposed one


def write_steps(message: events_pb2.TransitionsObserved, observation: Observation) -> None:
    """Fill `message` with at least one step."""
    numbers, states, actions, next_states, rewards, costs = zip(*observation.steps, strict=True)
    message.episode, message.first_step, message.state = observation.episode, numbers[0], states[0]
    message.overridden = observation.overridden
    message.actions.extend(actions)
    message.next_states.extend(next_states)
    message.rewards.extend(rewards)
    message.costs.extend([cost for each in costs for cost in each])


def read_steps(message: events_pb2.TransitionsObserved) -> Observation:
    """Raises ValueError if the columns have different lengths."""
    next_states, costs = message.next_states[:], message.costs[:]
    width, rest = divmod(len(costs), max(len(next_states), 1))
    if rest:
        raise ValueError(f"{len(costs)} costs do not belong to {len(next_states)} steps")
    columns = zip([message.state, *next_states[:-1]], message.actions, next_states, message.rewards, strict=True)
    steps = [
        Transition(message.first_step + i, state, action, next_state, reward, tuple(costs[i * width : (i + 1) * width]))
        for i, (state, action, next_state, reward) in enumerate(columns if next_states else ())
    ]
    return Observation(message.episode, steps, message.overridden)
