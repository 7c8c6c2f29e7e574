"""What media players saw, epoch by epoch, and what it comes to. The problem is the streaming buffer, its kernel unknown."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl.problem.presets import streaming_buffer
from safe_psrl_testbed.rules import FAST

SPEC: Final = streaming_buffer()  # what an agent is told: the paper's states, actions, horizon, reward, cost and budget
BUDGET: Final = float(SPEC.cost_budgets[0])
SETTLED: Final = 300  # episodes after which the constraint regret is looked at by itself


class Books:
    """Of one policy and P players, whose episodes begin and end together."""

    def __init__(self, players: int) -> None:
        self._players = players
        self._states: list[NDArray[np.int64]] = []  # of each episode, [H + 1, P]
        self._actions: list[NDArray[np.int64]] = []  # [H, P]

    def enter(self, states: list[NDArray[np.int64]], actions: list[NDArray[np.int64]]) -> None:
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
        """[E, P]: epochs of an episode that began with nothing to play."""
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


def account(books: Books) -> dict[str, Any]:
    """Means over players and episodes, and the constraint regret of the player with the greatest, as plain values."""
    costs, stalls, regret = books.costs, books.stalls, books.constraint_regret
    late = regret[SETTLED:]
    return {
        "episodes": books.episodes,
        "stalls": float(stalls.mean()),
        "stalls_last_half": float(stalls[books.episodes // 2 :].mean()),
        "cost": float(costs.mean()),
        "keeps_budget": bool(costs.mean() <= BUDGET),
        "over_budget": int((costs > BUDGET).sum()),
        "constraint_regret": float(regret[-1].max()),
        "constraint_regret_max": float(regret.max()),
        "constraint_regret_max_settled": float(late.max()) if len(late) else None,
    }


def best_within_budget(accounts: dict[str, dict[str, Any]]) -> str | None:
    """The policy with the fewest stalls of those that keep the budget."""
    within = {name: policy["stalls"] for name, policy in accounts.items() if policy["keeps_budget"]}
    return min(within, key=lambda name: within[name], default=None)
