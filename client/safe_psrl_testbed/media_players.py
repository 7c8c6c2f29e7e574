"""Media players behind a network, with a policy that chooses the service of each: agents, or a fixed rule.

They play episodes, each of which begins with empty buffers; or a task that never ends, in windows of as many steps.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl_client import Client, InvalidArgumentError, RemoteAgent
from safe_psrl_testbed.kernels import DEPARTURE
from safe_psrl_testbed.media import FAST, SLOW, SPEC, MediaHistory, Rule

LARGEST_STATE: Final = 9  # of the streaming buffer's ten


def quantised(levels: ArrayLike) -> NDArray[np.int64]:
    """The agents' states: whole media units in the buffer. 0: playback stalls."""
    return np.clip(np.floor(np.asarray(levels, np.float64)), 0, LARGEST_STATE).astype(np.int64)


class PlaybackBuffers:
    """Buffers of several players, up to nine media units each. An epoch plays one with the paper's probability.

    The same seed gives the same playback events, whatever arrives, so that policies are comparable.
    """

    def __init__(self, players: int, seed: int) -> None:
        self.levels = np.zeros(players)  # in media units, parts of one included
        self._generator = np.random.default_rng([seed, 0])

    @property
    def states(self) -> NDArray[np.int64]:
        return quantised(self.levels)

    def empty(self) -> NDArray[np.int64]:
        """Every player begins another clip; the states, all 0."""
        self.levels = np.zeros(len(self.levels))
        return self.states

    def advance(self, received: ArrayLike) -> NDArray[np.int64]:
        """An epoch in which so many media units arrived; the next states."""
        plays = self._generator.random(len(self.levels)) < DEPARTURE
        levels = self.levels + np.asarray(received, np.float64)
        levels -= plays & (levels >= 1.0)
        self.levels = np.minimum(levels, LARGEST_STATE)  # the excess is lost
        return self.states


class Network(Protocol):
    def advance(self, fast: NDArray[np.bool_]) -> ArrayLike:
        """An epoch in which players get the fast or the slow service; the media units that each of them received."""
        ...


class Policy(Protocol):
    def begin(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Begin an episode, or a task that never ends, for every player; the first actions."""
        ...

    def step(self, states: NDArray[np.int64], actions: NDArray[np.int64], next_states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Report a step of every player; the next actions, which after the last step of an episode are ignored."""
        ...


class FixedRule:
    """The same rule for every player."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._step = 0

    def begin(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        self._step = 0
        return self._rule(0, states)

    def step(self, states: NDArray[np.int64], actions: NDArray[np.int64], next_states: NDArray[np.int64]) -> NDArray[np.int64]:
        del states, actions
        self._step += 1
        return self._rule(self._step % SPEC.horizon, next_states)


class ServedAgents:
    """The agent of each player, by name; a repeated name is shared. Each player has its own stream.

    `incumbent` acts for the players whose agent is in shadow.
    """

    def __init__(self, client: Client, names: Sequence[str], incumbent: Rule | None = None) -> None:
        self._incumbent, self._step = incumbent, 0
        # an agent's first player abandons what a previous run left open; it begins before any other player of that agent
        self._agents = [RemoteAgent(client, name, "stream", abandon_open=name not in names[:i]) for i, name in enumerate(names)]

    def begin(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        self._step = 0
        proposals = [agent.begin(state) for agent, state in zip(self._agents, states.tolist(), strict=True)]
        return self._executed(proposals, states)

    def step(self, states: NDArray[np.int64], actions: NDArray[np.int64], next_states: NDArray[np.int64]) -> NDArray[np.int64]:
        self._step += 1
        steps = zip(self._agents, states.tolist(), actions.tolist(), next_states.tolist(), strict=True)
        answers = [agent.step(state, action, next_state) for agent, state, action, next_state in steps]
        return self._executed([SLOW if action is None else action for action in answers], next_states)

    def _executed(self, proposals: Sequence[int], states: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._incumbent is None:
            refuse_shadow(agent.name for agent in self._agents if agent.advisory)
            return np.array(proposals)
        advisory = [agent.advisory for agent in self._agents]
        return np.where(advisory, self._incumbent(self._step % SPEC.horizon, states), proposals)

    def close(self) -> None:
        for agent in self._agents:
            agent.close()


def refuse_shadow(names: Iterable[str]) -> None:
    """Raise `InvalidArgumentError` for agents in shadow where no other controller acts."""
    for name in names:
        raise InvalidArgumentError(f"agent {name} is in shadow: promote it, or choose another --agent")


class MediaPlayers:
    """All players get a service for each epoch. At the end of an episode they begin another clip with an empty buffer, unless
    the task is `continuing`."""

    def __init__(self, network: Network, players: int, seed: int, *, continuing: bool = False) -> None:
        self._network = network
        self._buffers = PlaybackBuffers(players, seed)
        self._continuing = continuing

    def play(
        self,
        policy: Policy,
        history: MediaHistory,
        episodes: int,
        stopping: threading.Event | None = None,
        on_episode: Callable[[], object] = lambda: None,
    ) -> None:
        """Play until `history` has that many episodes or windows, or until `stopping` is set."""
        next_actions: NDArray[np.int64] | None = None  # of a continuing task
        while history.episodes < episodes and not (stopping and stopping.is_set()):
            states = [self._buffers.states if self._continuing else self._buffers.empty()]
            actions = [policy.begin(states[0]) if next_actions is None else next_actions]
            for _ in range(SPEC.horizon):
                states.append(self._buffers.advance(self._network.advance(actions[-1] == FAST)))
                actions.append(policy.step(states[-2], actions[-1], states[-1]))
            history.append(states, actions[:-1])
            next_actions = actions[-1] if self._continuing else None
            on_episode()
