"""Policies that choose the service of each UE: agents of a service, or a fixed rule."""

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from safe_psrl_client import Client, RemoteAgent
from safe_psrl_testbed.media import SLOW, Rule


class Policy(Protocol):
    def begin(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Begin an episode for every UE; the first actions."""
        ...

    def step(self, states: NDArray[np.int64], actions: NDArray[np.int64], next_states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Report a step of every UE; the next actions, which after the last step are ignored."""
        ...


class FixedRule:
    """The same rule for every UE."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._step = 0

    def begin(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        self._step = 0
        return self._rule(0, states)

    def step(self, states: NDArray[np.int64], actions: NDArray[np.int64], next_states: NDArray[np.int64]) -> NDArray[np.int64]:
        del states, actions
        self._step += 1
        return self._rule(self._step, next_states)


class ServedAgents:
    """The agent of each UE, by name; a repeated name is shared. Each UE has its own stream."""

    def __init__(self, client: Client, names: Sequence[str]) -> None:
        # an agent's first UE abandons what a previous run left open; it begins before any other UE of that agent
        self._agents = [RemoteAgent(client, name, "stream", abandon_open=name not in names[:i]) for i, name in enumerate(names)]

    def begin(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([agent.begin(state) for agent, state in zip(self._agents, states.tolist(), strict=True)])

    def step(self, states: NDArray[np.int64], actions: NDArray[np.int64], next_states: NDArray[np.int64]) -> NDArray[np.int64]:
        seen = zip(self._agents, states.tolist(), actions.tolist(), next_states.tolist(), strict=True)
        answers = [agent.step(state, action, next_state) for agent, state, action, next_state in seen]
        return np.array([SLOW if action is None else action for action in answers])

    def close(self) -> None:
        for agent in self._agents:
            agent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
