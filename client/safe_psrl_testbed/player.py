"""One agent of a service and the simulated environment that it plays, with its results."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from safe_psrl.arrays import Policy
from safe_psrl.methods.episode import COST_TOLERANCE
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl_client import Client, EpisodeResult, Mode, RemoteAgent, SafePsrlClientError
from safe_psrl_client.play import play_episode
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_testbed.scenario import Scenario


class Player:
    """Plays the agent `name`, and sums its rewards and costs against the exact optimum."""

    def __init__(self, scenario: Scenario, name: str, mode: Mode, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.episodes = 0
        self._mode = mode
        self._spec = scenario.spec
        self._environment = scenario.environment(seed)
        self._optimum = exact_optimum(self._spec, self._environment.transitions)
        self._reward = 0.0
        self._exact_reward = 0.0
        self._costs = np.zeros(self._spec.num_constraints)
        self._violations = np.zeros(self._spec.num_constraints, np.int64)
        self._dual_variables: list[float] | None = None
        if mode == "local":
            self._value_of(
                np.zeros((self._spec.horizon, self._spec.num_states), np.int32)
            )  # compiles the kernel before the first episode

    def play(self, client: Client, episodes: int, stopping: threading.Event, on_episode: Callable[[], object]) -> None:
        """Play that many episodes, or until `stopping`. An episode that was left open is abandoned."""
        try:
            with RemoteAgent(client, self.name, self._mode, abandon_open=True) as agent:
                while self.episodes < episodes and not stopping.is_set():
                    self._enter(play_episode(self._environment, agent), agent.policy)
                    on_episode()
        except Exception:
            if not stopping.is_set():  # the client was closed because the player did not stop in time
                raise
        with suppress(SafePsrlClientError, ValueError):
            status = client.get_agent(self.name).status
            self._dual_variables = [constraint.dual_variable for constraint in status.constraints]

    def summary(self) -> dict[str, Any]:
        """As plain values."""
        spec, count = self._spec, max(self.episodes, 1)
        earned = self._exact_reward if self._mode == "local" else self._reward
        return {
            "agent": self.name,
            "episodes": self.episodes,
            "mean_reward": self._reward / count,
            "objective_regret": self.episodes * self._optimum.reward - earned,
            "optimum": {"reward": self._optimum.reward, "costs": self._optimum.costs.tolist()},
            "constraints": [
                {
                    "name": name,
                    "mean_cost": float(self._costs[i]) / count,
                    "cost_budget": float(spec.cost_budgets[i]),
                    "violations": int(self._violations[i]),
                    "dual_variable": None if self._dual_variables is None else self._dual_variables[i],
                }
                for i, name in enumerate(spec.constraint_names)
            ],
        }

    def _enter(self, result: EpisodeResult, policy: model_pb2.Policy | None) -> None:
        self.episodes += 1
        self._reward += result.reward
        self._costs += result.costs
        self._violations += np.asarray(result.costs) > self._spec.cost_budgets + COST_TOLERANCE
        if policy is not None:
            self._exact_reward += self._value_of(np.array(policy.actions, np.int32).reshape(policy.horizon, -1))

    def _value_of(self, policy: Policy) -> float:
        """The expected reward of `policy` [H, S] on the true kernel."""
        values = np.empty((1 + self._spec.num_constraints, self._spec.num_states))
        transitions = self._environment.transitions
        evaluate_policy(transitions, self._spec.next_states, self._spec.signals, policy, values)
        return float(values[0] @ self._spec.initial_distribution)
