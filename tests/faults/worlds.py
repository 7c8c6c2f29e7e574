"""Small problems that the clients simulate: the service knows everything but the kernel."""

import random
from typing import NamedTuple

from safe_psrl_proto.v1 import model_pb2

Weights = list[list[list[float]]]  # by state, action, next state


class Seen(NamedTuple):
    next_state: int
    reward: float
    costs: list[float]


class World:
    """A kernel drawn from `seed`. More reward costs more, so that the dual variable has something to do."""

    def __init__(self, seed: int, *, learned: bool) -> None:
        chosen = random.Random(seed)
        self.num_states, self.num_actions, self.horizon = (5, 3, 6) if learned else (4, 2, 8)
        self.learned = learned
        pairs = [[a / (self.num_actions - 1) for a in range(self.num_actions)] for _ in range(self.num_states)]
        self.reward = [[0.2 + 0.7 * price * chosen.random() for price in row] for row in pairs]
        self.costs = [[[price * chosen.uniform(0.5, 1) for price in row] for row in pairs] for _ in range(1 + learned)]
        self.kernel: Weights = [[self._row(chosen) for _ in row] for row in pairs]

    def spec(self, seed: int) -> model_pb2.AgentSpec:
        constraints = [
            model_pb2.Constraint(
                name=f"cost-{i}",
                cost=self._table(cost),
                cost_budget=0.25 * self.horizon,
                satisfiable_cost=0.05 * self.horizon,
                learned=self.learned and i == 1,
            )
            for i, cost in enumerate(self.costs)
        ]
        problem = model_pb2.CmdpSpec(
            num_states=self.num_states,
            num_actions=self.num_actions,
            horizon=self.horizon,
            initial_state=0,
            reward=self._table(self.reward),
            reward_learned=self.learned,
            constraints=constraints,
        )
        return model_pb2.AgentSpec(cmdp=problem, seed=seed)

    def step(self, chosen: random.Random, state: int, action: int) -> Seen:
        (next_state,) = chosen.choices(range(self.num_states), self.kernel[state][action])
        reward, costs = self.reward[state][action], [cost[state][action] for cost in self.costs]
        if self.learned:  # noise of three values, whose sums are exact whatever their order
            reward, costs = chosen.choice([0.0, 0.5, 1.0]), [chosen.choice([0.0, 0.25, 0.5]) for _ in costs]
        return Seen(next_state, reward, costs)

    def _row(self, chosen: random.Random) -> list[float]:
        return [chosen.random() ** 3 + 0.01 for _ in range(self.num_states)]

    def _table(self, values: list[list[float]]) -> model_pb2.Table:
        shape = [self.num_states, self.num_actions]
        return model_pb2.Table(shape=shape, values=[value for row in values for value in row])
