"""Reported steps as they are stored: in columns, one message for any number of consecutive steps of an episode."""

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import events_pb2, model_pb2


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


LARGE: Final = 4_096  # entries. An entry takes about a byte: a smaller policy costs its event less than a page of the database
LEVEL: Final = 1  # zlib: a million entries in 2 to 12 ms; higher levels take up to ten times as long and save a tenth


def is_large(event: events_pb2.Event) -> bool:
    """Whether a policy of `event` is stored outside the stream."""
    return event.WhichOneof("kind") in {"episode_started", "agent_imported"} and any(_large(event))


def is_bulky(events: Sequence[events_pb2.Event]) -> bool:
    """Whether `events` create an agent whose tables are large."""
    for event in events:
        kind = event.WhichOneof("kind")
        if kind == "agent_imported" or (kind == "agent_created" and event.agent_created.spec.ByteSize() > LARGE):
            return True
    return False


def encode(events: Sequence[events_pb2.Event]) -> tuple[list[bytes], dict[int, bytes]]:
    """The stored form of `events`, and the policies stored outside the stream, by episode. Sets the digests in `events`."""
    payloads, policies = list[bytes](), dict[int, bytes]()
    for event in events:
        apart = [(started, started.policy.SerializeToString()) for started in _large(event)]
        for started, policy in apart:
            policies[started.episode] = zlib.compress(policy, LEVEL)
            started.policy_digest = _digest(policies[started.episode])
            strip(started)
        payloads.append(event.SerializeToString())
        for started, policy in apart:  # restored: copying the message would take several times as long
            started.policy.ParseFromString(policy)
    return payloads, policies


def strip(started: events_pb2.EpisodeStarted) -> None:
    """Remove a policy that is stored outside the stream; its sizes and digest stay."""
    if started.policy_digest:
        started.policy.ClearField("actions")
        started.policy.ClearField("mixture")
        started.policy.ClearField("probabilities")


def read_policy(started: events_pb2.EpisodeStarted, stored: bytes | None) -> model_pb2.Policy:
    """Read the separately stored policy of `started`. Raises ValueError if it is missing or was changed."""
    if stored is None:
        raise ValueError(f"the policy of episode {started.episode} is missing")
    if not isinstance(stored, bytes) or _digest(stored) != started.policy_digest:
        raise ValueError(f"the policy of episode {started.episode} was changed")
    return model_pb2.Policy.FromString(zlib.decompress(stored))


def _large(event: events_pb2.Event) -> Iterator[events_pb2.EpisodeStarted]:
    """The episode starts whose policies are stored outside the stream; for an imported agent, those stored so before."""
    kind = event.WhichOneof("kind")
    if kind == "episode_started":
        started = event.episode_started
        policy = started.policy
        if policy.horizon * policy.num_states + len(policy.probabilities) > LARGE:
            yield started
    elif kind == "agent_imported":
        yield from (kept.started for kept in event.agent_imported.snapshot.episodes if kept.started.policy_digest)


def _digest(policy: bytes) -> bytes:
    return hashlib.blake2b(policy, digest_size=32).digest()
