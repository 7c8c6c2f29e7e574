"""One agent of a service and the simulated environment that it plays, with an account of how it does."""

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
from safe_psrl_testbed.environment import Outcome, TabularEnvironment
from safe_psrl_testbed.scenario import Scenario


class SeededEnvironment:
    """An environment whose first episode is the first one of `seed`."""

    def __init__(self, environment: TabularEnvironment, seed: int) -> None:
        self.environment = environment
        self._seed: int | None = seed

    def reset(self) -> int:
        seed, self._seed = self._seed, None
        return self.environment.reset(seed)

    def step(self, action: int) -> Outcome:
        return self.environment.step(action)


class Player:
    """Plays the agent `name`, and adds up what it earned and spent, against the exact optimum."""

    def __init__(self, scenario: Scenario, name: str, mode: Mode, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.episodes = 0
        self._mode = mode
        self._spec = scenario.spec
        self._environment = SeededEnvironment(scenario.environment(seed), seed)
        self._optimum = exact_optimum(self._spec, self._environment.environment.transitions)
        self._reward = 0.0
        self._exact_reward = 0.0
        self._costs = np.zeros(self._spec.num_constraints)
        self._violations = np.zeros(self._spec.num_constraints, np.int64)
        self._dual_variables: list[float] | None = None
        if mode == "local":
            self._value_of(np.zeros((self._spec.horizon, self._spec.num_states), np.int32))  # compiles, before it is urgent

    def play(self, client: Client, episodes: int, stopping: threading.Event, on_episode: Callable[[], object]) -> None:
        """Play that many episodes, or until `stopping`. An agent that was left in an episode begins a new one."""
        try:
            with RemoteAgent(client, self.name, self._mode, abandon_open=True) as agent:
                while self.episodes < episodes and not stopping.is_set():
                    self._enter(play_episode(self._environment, agent), agent.policy)
                    on_episode()
        except Exception:
            if not stopping.is_set():  # else the client was closed under it, as it would not stop by itself
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
        transitions = self._environment.environment.transitions
        evaluate_policy(transitions, self._spec.next_states, self._spec.signals, policy, values)
        return float(values[0] @ self._spec.initial_distribution)
