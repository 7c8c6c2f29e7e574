"""Media players under a policy: fixed rules, what the players saw, and what a simulation reports. The problem is the paper's
streaming buffer, its kernel unknown; or the same without an end, whose budget per step is that of an episode divided by its
horizon. Its histories are in windows of as many steps as an episode has."""

from collections.abc import Callable
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from safe_psrl.problem.documents import spec_to_document
from safe_psrl.problem.presets import continuing_buffer, streaming_buffer
from safe_psrl_client import Client, spec_from_document
from safe_psrl_testbed.simulation import prepare_agent

SPEC: Final = streaming_buffer()  # what an agent knows: the paper's states, actions, horizon, reward, cost and budget
BUDGET: Final = float(SPEC.cost_budgets[0])
LEARNED: Final = "learned"  # the policy of the agents
SHADOW: Final = "in shadow"  # what a rule did while the agents watched
SETTLED: Final = 300  # episodes after which the constraint regret is also reported separately
FAST: Final = 0  # the streaming buffer's actions
SLOW: Final = 1
HALF: Final = 5  # of the buffer, and of the horizon

Rule = Callable[[int, NDArray[np.int64]], NDArray[np.int64]]  # from the step and the players' states to their actions

RULES: Final[dict[str, Rule]] = {
    "always-slow": lambda _, states: np.full_like(states, SLOW),
    "always-fast": lambda _, states: np.full_like(states, FAST),
    "fast-below-half": lambda _, states: np.where(states < HALF, FAST, SLOW),
    "fast-at-first": lambda step, states: np.full_like(states, FAST if step < HALF else SLOW),  # spends the budget at once
}


class MediaHistory:
    """The episodes of P players under one policy; the players' episodes begin and end together."""

    def __init__(self, players: int) -> None:
        self._players = players
        self._states: list[NDArray[np.int64]] = []  # of each episode, [H + 1, P]
        self._actions: list[NDArray[np.int64]] = []  # [H, P]

    def append(self, states: list[NDArray[np.int64]], actions: list[NDArray[np.int64]]) -> None:
        """A whole episode."""
        self._states.append(np.stack(states))
        self._actions.append(np.stack(actions))

    @property
    def episodes(self) -> int:
        return len(self._states)

    @property
    def states(self) -> NDArray[np.int64]:
        """[E, H + 1, P]."""
        return np.array(self._states, np.int64).reshape(-1, SPEC.horizon + 1, self._players)

    @property
    def actions(self) -> NDArray[np.int64]:
        """[E, H, P]."""
        return np.array(self._actions, np.int64).reshape(-1, SPEC.horizon, self._players)

    @property
    def stalls(self) -> NDArray[np.int64]:
        """[E, P]: epochs of an episode that began with an empty buffer."""
        stalls: NDArray[np.int64] = (self.states[:, :-1] == 0).sum(axis=1)
        return stalls

    @property
    def costs(self) -> NDArray[np.int64]:
        """[E, P]: epochs of fast service."""
        costs: NDArray[np.int64] = (self.actions == FAST).sum(axis=1)
        return costs

    @property
    def constraint_regret(self) -> NDArray[np.float64]:
        """[E, P]: cost above the budget, summed up to each episode."""
        regret: NDArray[np.float64] = np.cumsum(self.costs - BUDGET, axis=0)
        return regret

    @property
    def transition_counts(self) -> NDArray[np.int64]:
        """[S, A, S], of all players."""
        counts = np.zeros((SPEC.num_states, SPEC.num_actions, SPEC.num_states), np.int64)
        states = self.states
        np.add.at(counts, (states[:, :-1], self.actions, states[:, 1:]), 1)
        return counts

    def summary(self) -> dict[str, Any]:
        """Means over players and episodes, and the constraint regret of the player with the greatest, as plain values."""
        costs, stalls, regret = self.costs, self.stalls, self.constraint_regret
        late = regret[SETTLED:]
        return {
            "episodes": self.episodes,
            "stalls": float(stalls.mean()),
            "stalls_last_half": float(stalls[self.episodes // 2 :].mean()),
            "cost": float(costs.mean()),
            "keeps_budget": bool(costs.mean() <= BUDGET),
            "over_budget": int((costs > BUDGET).sum()),
            "constraint_regret": float(regret[-1].max()),
            "constraint_regret_max": float(regret.max()),
            "constraint_regret_max_settled": float(late.max()) if len(late) else None,
        }


def best_within_budget(summaries: dict[str, dict[str, Any]]) -> str | None:
    """The fixed rule with the fewest stalls of those that keep the budget."""
    stalls = {name: policy["stalls"] for name, policy in summaries.items() if policy["keeps_budget"] and name in RULES}
    return min(stalls, key=lambda name: stalls[name], default=None)


class MediaSimulation:
    """Players whose service is chosen by the agents `names` of a service, and beside them the same world under fixed rules."""

    def __init__(
        self,
        scenario: str,
        names: list[str],
        players: int,
        seed: int,
        target: str,
        episodes: int,
        *,
        open_episodes: int,
        compare: bool = True,
        method: str = "certified",
        on_detect: str = "alert",
        mode: str = "live",
        continuing: bool = False,
        patience: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        self.scenario = scenario
        self.names = names
        self.episodes = episodes
        self.histories = {policy: MediaHistory(players) for policy in [LEARNED, *(RULES if compare else ())]}
        self._seed = seed
        self._target = target
        self._open_episodes = open_episodes
        self._method = method
        self._on_detect = on_detect
        self._mode = mode
        self.continuing = continuing
        self.unit = "window" if continuing else "episode"
        self._connection: dict[str, Any] = {"patience": patience, "credentials": credentials, "token": token}
        self._interrupted = False
        self._seconds = 0.0

    def prepare(self) -> None:
        """Check that every agent exists and is for this problem; create those that are missing."""
        definition = spec_from_document(spec_to_document(continuing_buffer() if self.continuing else SPEC))
        definition.options.method = self._method
        definition.drift.on_detect = self._on_detect
        definition.max_open_episodes = self._open_episodes
        definition.mode = self._mode
        with Client(self._target, **self._connection) as client:
            for i, name in enumerate(dict.fromkeys(self.names)):
                definition.seed = self._seed + i
                prepare_agent(client, name, definition, self.scenario)

    def agents_constraint_regret(self) -> NDArray[np.float64]:
        """[E, agents]: the cost above the budget of all episodes of an agent, summed up to each round of episodes."""
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        regret = self.agents_constraint_regret()
        policies = {name: history.summary() for name, history in self.histories.items() if history.episodes}
        return {
            "scenario": self.scenario,
            "method": self._method,
            "seed": self._seed,
            "unit": self.unit,
            "horizon": SPEC.horizon,
            "cost_budget": BUDGET,
            "interrupted": self._interrupted,
            "episodes": self.histories[LEARNED].episodes,
            "seconds": self._seconds,
            "agents_constraint_regret": float(regret[-1].max()) if len(regret) else 0.0,
            "agents_constraint_regret_max": float(regret.max()) if len(regret) else 0.0,
            "policies": policies,
            "best_fixed_within_budget": best_within_budget(policies),
        }
